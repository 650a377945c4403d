"""The final model at every client: the bits and the header of the run's own file, and nothing that is no model."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors import safe_open

from headwater.core.params import Params, digest
from headwater.deploy.final_model import MODEL, PERSONAL, PREFIX, FinalModel
from headwater.deploy.party_process import _Answering
from headwater.deploy.payload import PayloadReader, Refused, pack
from headwater.deploy.transport import Message
from headwater.training.result import model_tensors
from headwater.training.run_directory import write_model
from loopback import Loopback, small

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
        ("fedproto", False, True),
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
        message = sent.message("same", (client,))
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
    tensors = model_tensors({"": made.context().initial(made.model.name, 0)})
    write_model(tmp_path / MODEL, tensors, {})
    assert [path.name for path in tmp_path.iterdir()] == [MODEL]


def test_a_final_model_that_cannot_be_used_does_not_keep_a_client_from_ending() -> None:
    said: list[str] = []

    def take(message: Message) -> None:
        raise KeyError("no such part")

    process: Any = SimpleNamespace(fault=said.append, folder=SimpleNamespace(federation=SimpleNamespace(sha256="same")))
    answering = _Answering(process, lambda head: Message({}), lambda run: None, take)  # type: ignore[arg-type,return-value]
    reply = answering.answer(Message({"do": "end", "federation": "same"}))
    assert "no such part" in reply.head["failed"]
    assert said == [f"refused the final model: {reply.head['failed']}"]
    assert answering.stop.wait(30)
