"""The final model at every client: the bits and the header of the run's own file, and nothing that is no model."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors import safe_open

import headwater as hw
from headwater.core import sealed
from headwater.core.params import Params, digest
from headwater.deploy.answering import Answering
from headwater.deploy.final_model import MODEL, PERSONAL, PREFIX, FinalModel, tell_end
from headwater.deploy.payload import PayloadReader, Refused, pack
from headwater.deploy.quoting import OWN_LOG
from headwater.deploy.transport import Message
from headwater.errors import OutputError
from headwater.training.model_tensors import tensors_of
from headwater.training.run_directory import write_model
from loopback import Loopback, LoopbackLink, small

BRIEF = {"data__fraction": 0.15, "partition__alpha": 1.0, "local__epochs": 1, "rounds": 1, "partition__clients": 3}
RUN = "0123456789abcdef"


def read(path: Path) -> tuple[str, dict[str, str]]:
    with safe_open(path, "pt") as model:
        return digest({name: model.get_tensor(name) for name in model.keys()}), model.metadata()  # noqa: SIM118


@pytest.mark.parametrize(
    ("method", "shared", "personal"),
    [
        ("fedavg", True, False),
        ("fedhkd", True, True),
        pytest.param("fedproto", False, True, marks=pytest.mark.thorough),
        pytest.param("fed-ensemble", True, False, marks=pytest.mark.thorough),
        pytest.param("fedhead+", True, False, marks=pytest.mark.thorough),
        pytest.param("local", False, True, marks=pytest.mark.thorough),
        pytest.param("fedma", True, False, marks=pytest.mark.thorough),
    ],
)
def test_every_client_gets_the_model_of_the_run(method: str, shared: bool, personal: bool, tmp_path: Path) -> None:
    made = small(method, **BRIEF)
    with closing(Loopback(made, tmp_path / "values")) as federation:
        run = federation.train(tmp_path / "run")
        sent = FinalModel.read(tmp_path / "run" / "checkpoints", RUN)
        assert bool(sent.params) == shared
        assert set(sent.personal) == (set(made.tree.holders) if personal else set())
        client = made.tree.holders[0]
        message = sent.message({"federation": "same"}, (client,))
        assert message.payload == sent.nbytes == sum(params.nbytes for params in sent.params.values())
        came = FinalModel.of(message, PayloadReader(made.models, 1 << 30))
        assert set(came.personal) == ({client} if personal else set())
        folder = tmp_path / "folder"
        folder.mkdir()
        came.write(folder, client, federation.agreement, federation.stores[client])
        wanted, about = read(tmp_path / "run" / "model.safetensors")
        if shared:
            assert read(folder / MODEL) == (wanted, about)
        else:
            assert read(folder / MODEL) == read(folder / PERSONAL)
            assert read(folder / MODEL)[0] == digest(run.params[client].named())
        assert (folder / PERSONAL).exists() == personal
        x = made.split.test.x[:20]
        found = hw.load(folder)
        if shared:
            assert found.predict_proba(x).tolist() == hw.load(tmp_path / "run").predict_proba(x).tolist()
        else:
            own = made.models[run.params[client].layout.arch].build().eval()
            own.load_state_dict(run.params[client].named(), strict=False)
            with torch.no_grad():
                wanted_answers = torch.softmax(own(x), 1).numpy()
            np.testing.assert_allclose(found.predict_proba(x), wanted_answers, rtol=0, atol=1e-6)
        if personal:
            assert hw.load(folder / PERSONAL).predict(x).shape == (20,)


def test_a_client_reads_its_table_with_the_final_model(tmp_path: Path) -> None:
    """The header has columns, means and words, as they were agreed on."""
    rng, kind = np.random.default_rng(0), np.arange(120) % 2
    frame = pd.DataFrame(
        {
            "age": 30 + 20 * kind + rng.normal(0, 2, 120),
            "colour": np.array(["red", "blue"])[kind],
            "label": np.array(["young", "old"])[kind],
        }
    )
    frame.to_csv(tmp_path / "people.csv", index=False)
    made = small("fedavg", data__name=str(tmp_path / "people.csv"), **BRIEF | {"data__fraction": 1.0})
    with closing(Loopback(made, tmp_path / "values")) as federation:
        federation.train(tmp_path / "run")
        client = made.tree.holders[0]
        folder = tmp_path / "folder"
        folder.mkdir()
        final = FinalModel.read(tmp_path / "run" / "checkpoints", RUN)
        assert MODEL in final.write(folder, client, federation.agreement, federation.stores[client])
    assert read(folder / MODEL) == read(tmp_path / "run" / MODEL)
    frame.iloc[:10, [1, 0]].to_csv(tmp_path / "new.csv", index=False)  # by name, in any order
    found, rows = hw.load(folder), frame[["age", "colour"]][:10]
    assert found.predict_proba(rows).tolist() == hw.load(tmp_path / "run").predict_proba(rows).tolist()
    assert found.predict_proba(tmp_path / "new.csv").tolist() == found.predict_proba(rows).tolist()
    assert {str(name) for name in found.classes_} == {"young", "old"}


def test_an_older_checkpoint_is_not_taken_for_the_final_model(tmp_path: Path) -> None:
    made = small("fedavg", **BRIEF | {"rounds": 2})
    with closing(Loopback(made, tmp_path / "values")) as federation:
        federation.train(tmp_path / "run")
    checkpoints = tmp_path / "run" / "checkpoints"
    assert FinalModel.read(checkpoints, RUN).params
    for value in (checkpoints / "values").iterdir():
        content = bytearray(value.read_bytes())
        content[-1] ^= 1
        value.write_bytes(content)
    with pytest.raises(sealed.Damaged):
        FinalModel.read(checkpoints, RUN)
    newest = sorted(checkpoints.glob("round-*.json"))[-1]
    newest.write_text(newest.read_text().replace('"round": 2', '"round": 7'))
    with pytest.raises(OutputError, match="damaged"):
        FinalModel.read(checkpoints, RUN)


def test_a_revoked_member_is_not_told_the_end_and_not_awaited() -> None:
    said: list[str] = []
    agreement = SimpleNamespace(
        stamp={"federation": "same"}, sectors={"s0": ("c0", "c1", "c2")}, config=SimpleNamespace(rounds=1)
    )
    folder = SimpleNamespace(members=("c0", "c1", "c2"), federation=agreement)
    process: Any = SimpleNamespace(folder=folder, log=said.append, fault=said.append, sent=SimpleNamespace(add=print))
    asked: list[str] = []

    def answering(name: str) -> Any:
        def answer(message: Message) -> Message:
            asked.append(name)
            return Message({})

        return answer

    with closing(LoopbackLink({name: answering(name) for name in folder.members}, lambda to, message: message)) as link:
        link.away.add("c2")  # absent, and revoked while it is waited for
        looks = iter([{"c1"}])
        tell_end(process, link, FinalModel(run=RUN), lambda: next(looks, {"c1", "c2"}))
    assert asked == ["c0"]
    assert said == []


def test_what_is_no_final_model_is_refused(tmp_path: Path) -> None:
    made = small("fedavg", **BRIEF)
    reader, model = PayloadReader(made.models, 1 << 30), made.context().initial(made.model.name, 0)
    head = {"do": "end", "run": RUN, "personal": {}}
    assert FinalModel.of(pack(head, {PREFIX: model}), reader).params.keys() == {""}
    for message in (
        pack(head, {PREFIX: torch.zeros(3)}),
        pack(head, {"other": model}),
        pack(head | {"run": "../../x"}, {PREFIX: model}),
        pack(head | {"personal": [1]}, {PREFIX: model}),
        pack(head | {"personal": {"c0": "x"}}, {PREFIX: model}),
        pack(head, {PREFIX: Params(model.vector[1:], model.counters, model.layout)}),
        Message({"do": "end"}),
    ):
        with pytest.raises(Refused):
            FinalModel.of(message, reader)


def test_a_model_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    made = small("fedavg", **BRIEF)
    tensors = tensors_of({"": made.context().initial(made.model.name, 0)})
    write_model(tmp_path / MODEL, tensors, {})
    assert [path.name for path in tmp_path.iterdir()] == [MODEL]


def test_a_final_model_that_cannot_be_used_does_not_keep_a_client_from_ending() -> None:
    said: list[str] = []

    def take(message: Message) -> None:
        raise KeyError("no such part")

    process: Any = SimpleNamespace(fault=said.append, folder=SimpleNamespace(federation=SimpleNamespace(sha256="same")))
    answering = Answering(process, lambda head: Message({}), lambda run, census: None, take)  # type: ignore[arg-type,return-value]
    reply = answering.answer(Message({"do": "end", "federation": "same"}))
    assert reply.head["failed"] == f"failed: KeyError; {OWN_LOG}", "the text of an exception stays here"
    assert len(said) == 1
    assert "refused the final model" in said[0]
    assert "no such part" in said[0]
    assert answering.stop.wait(30)
