"""Data from the network or from a checkpoint cannot run code."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import headwater
from headwater.core import records, serialization
from headwater.deploy.party_run import ValueStore
from headwater.engines.jobs import LOST
from headwater.training import checkpoint

SOURCE = Path(headwater.__file__).parent
READERS = [
    *sorted((SOURCE / "deploy").rglob("*.py")),
    *(SOURCE / "core" / name for name in ("params.py", "records.py", "serialization.py")),
    *(SOURCE / "training" / name for name in ("checkpoint.py", "result.py")),
]
LOADERS = {"pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}


@pytest.mark.parametrize("path", READERS, ids=lambda path: str(path.relative_to(SOURCE)))
def test_modules_that_read_foreign_data_use_no_pickle(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        assert not {name.partition(".")[0] for name in names} & LOADERS
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            called = ast.unparse(node.func)
            assert called not in ("torch.load", "eval", "exec")
            if called in ("np.load", "numpy.load"):
                allowed = {word.arg: ast.unparse(word.value) for word in node.keywords}
                assert allowed.get("allow_pickle") == "False"


def test_a_pickle_in_place_of_a_value_or_a_checkpoint_is_not_loaded(tmp_path: Path) -> None:
    """The file would make another one if anybody unpickled it."""
    made = tmp_path / "made"
    evil = f"cos\nmkdir\n(S'{made}'\ntR.".encode()
    import pickle

    pickle.loads(evil)
    assert made.exists()  # it works where it is unpickled
    made.rmdir()
    store = ValueStore(tmp_path / "values", "one")
    store["x"] = 3
    (path,) = (tmp_path / "values" / "one").glob("*.value")
    path.write_bytes(evil * 10)
    assert store["x"] is LOST
    path.write_bytes(evil * 10)  # it was removed
    with pytest.raises(ValueError, match="is no record"):
        records.decode({"$": "record", "class": "os:system", "fields": {}}, checkpoint._handle)
    with pytest.raises(ValueError, match="does not hold a value"):
        serialization.read(path)
    assert not made.exists()
