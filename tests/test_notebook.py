"""Executes examples/notebook.ipynb as a user would, and checks what its cells show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

NOTEBOOK = Path(__file__).parents[1] / "examples" / "notebook.ipynb"
SECONDS = 900  # for one cell; each takes seconds on an idle machine
MOST_TEXT = 2000  # letters that a cell may show as plain text


def read() -> Any:
    nbformat = pytest.importorskip("nbformat", reason="pip install 'headwater[test]'")
    return nbformat.read(NOTEBOOK, as_version=4)


def test_it_is_short_and_without_outputs() -> None:
    cells = read().cells
    assert len(cells) < 15
    assert all(not cell.outputs for cell in cells if cell.cell_type == "code")


@pytest.mark.thorough
@pytest.mark.filterwarnings("default")  # of Jupyter
def test_every_cell_runs_and_shows_little(tmp_path: Path) -> None:
    nbclient = pytest.importorskip("nbclient", reason="pip install 'headwater[test]'")
    pytest.importorskip("ipykernel", reason="pip install 'headwater[test]'")
    notebook = read()
    client = nbclient.NotebookClient(notebook, timeout=SECONDS, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
    outputs = [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]
    texts = ["".join(_texts(shown)) for shown in outputs]
    assert max(map(len, texts)) <= MOST_TEXT
    pages = ["".join(out.get("data", {}).get("text/html", "") for out in shown) for shown in outputs]
    for at, word in (
        (0, "fedhead on digits"),
        (3, "3 methods on digits"),
        (5, "Split of digits"),
        (6, "Plan of fedhead"),
    ):
        assert word in pages[at]
        assert "<svg" in pages[at]
    assert "<progress" not in "".join(pages), "a progress bar is removed at the end"
    assert not any(out.get("name") == "stderr" for shown in outputs for out in shown)
    assert "ended after round" in texts[-1]
    assert "'class_2'" in texts[-1]
    assert list(tmp_path.iterdir()) == []


def _texts(outputs: Any) -> list[str]:
    return [out.get("text", "") or out.get("data", {}).get("text/plain", "") for out in outputs]
