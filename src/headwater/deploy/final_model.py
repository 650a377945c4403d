"""The final model in every client's folder, in the form in which a run leaves its model.

The server sends it down the tree with `end`. A client's personal model is at that client already, under a name that the
server knows from its last checkpoint; only this name is sent. What is sent here is recorded as `final`: the ledger
counts rounds, so it has no part in it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from headwater.algorithms.base import outputs
from headwater.core import sealed
from headwater.core.params import Params, digest
from headwater.core.values import Located
from headwater.deploy.agreement import Agreement, deployed_experiment, empty_split
from headwater.deploy.control import Stopped
from headwater.deploy.deployed_engine import AWAY
from headwater.deploy.dispatch import REJOIN
from headwater.deploy.party_files import FINAL
from headwater.deploy.party_run import ValueStore
from headwater.deploy.payload import PayloadReader, Refused, pack
from headwater.deploy.quoting import quoted
from headwater.deploy.transport import Downlink, Message, ask
from headwater.engines.base import Engine
from headwater.engines.jobs import Ref, pick
from headwater.errors import OutputError
from headwater.inference.trained import KEY as METADATA
from headwater.training import checkpoint
from headwater.training.model_tensors import describe_model, frozen_of, named, tensors_of
from headwater.training.opening import run_context
from headwater.training.run_directory import write_model

if TYPE_CHECKING:
    from headwater.deploy.party_process import PartyProcess

RUN = re.compile(r"[0-9a-f]{16}")  # the name of a run
MODEL, PERSONAL = FINAL
TIER = "final"  # in place of a tier, for what is sent after the last round
PREFIX = "final."  # of the values' names in the message
END_SECONDS = 20.0  # to answer `end`
SECONDS_PER_BYTE = 1e-6  # more, for a slow link


@dataclass(frozen=True)
class FinalModel:
    """What clients get when the run is over.

    Args:
        params: the global model under "", or the members of an ensemble by name; empty if all models are personal.
        personal: by client, where in its own store its personal model is.
        run: name of the run, whose values a client has in its store.
    """

    params: Mapping[str, Params] = field(default_factory=dict)
    personal: Mapping[str, Ref] = field(default_factory=dict)
    run: str = ""

    @property
    def nbytes(self) -> int:
        return sum(params.nbytes for params in self.params.values())

    @staticmethod
    def read(checkpoints: Path, run: str, own: Iterable[str] = ()) -> FinalModel:
        """From the last checkpoint of a finished run.

        Args:
            checkpoints: directory of the checkpoints.
            run: name of the run.
            own: names of the user's own parts in the configuration, as for `checkpoint.load`.

        Raises:
            OutputError, Damaged: the last checkpoint cannot be read. An older one has another model.
        """
        files = _CheckpointFiles()
        last = checkpoint.load(checkpoints, cast(Engine, files), own)
        if last is None:
            return FinalModel(run=run)
        if last.skipped:
            raise OutputError(last.skipped[0].rpartition(";")[0])
        shown = outputs(last.state.state)
        params: dict[str, Params] = {}
        if shown.model is not None:
            params = {"": files.value(shown.model)}
        elif shown.personal is None and shown.team is not None:
            members = cast(Mapping[str, Located], shown.team.members)
            params = {name: files.value(member) for name, member in named(members).items()}
        held = {} if shown.personal is None else shown.personal.nodes
        refs = {client: files.there(ref) for client, ref in held.items() if isinstance(ref, Ref)}
        return FinalModel(params, {client: ref for client, ref in refs.items() if ref is not None}, run)

    def message(self, stamp: Mapping[str, Any], clients: Collection[str]) -> Message:
        """The message `end`.

        Args:
            stamp: of the agreement.
            clients: those under the receiver; it gets only the names that are for them.
        """
        personal = {c: [ref.name, list(ref.part)] for c, ref in self.personal.items() if c in clients}
        head = {"do": "end", **stamp, "run": self.run, "personal": personal}
        return pack(head, {f"{PREFIX}{name}": params for name, params in self.params.items()})

    @staticmethod
    def of(message: Message, reader: PayloadReader) -> FinalModel:
        """From the message `end`.

        Raises:
            Refused: if anything in it is not as `message` writes it.
        """
        params: dict[str, Params] = {}
        for name, value in reader.unpack(message).items():
            if not name.startswith(PREFIX) or not isinstance(value, Params):
                raise Refused(f"{name!r:.80} is no final model")
            params[name.removeprefix(PREFIX)] = value
        try:
            rows = message.head.get("personal") or {}
            personal = {str(c): Ref(str(name), str(c), tuple(part)) for c, (name, part) in rows.items()}
        except (TypeError, ValueError, AttributeError) as error:
            raise Refused(f"it does not say where personal models are ({type(error).__name__})") from error
        if not isinstance(run := message.head.get("run"), str) or RUN.fullmatch(run) is None:
            raise Refused("it does not say which run is over")
        return FinalModel(params, personal, run)

    def write(self, folder: Path, client: str, agreement: Agreement, store: ValueStore) -> str:
        """Write the models to a client's folder. Returns a sentence about what was written.

        Without a global model the personal one is written under both names.
        """
        personal: dict[str, Params] = {}
        if (ref := self.personal.get(client)) is not None:
            value = pick(store[ref.name], ref)
            if isinstance(value, Params):
                personal = {"": value}
        written = {MODEL: dict(self.params) or personal, PERSONAL: personal}
        experiment = deployed_experiment(agreement, empty_split(agreement), dict.fromkeys(agreement.sector_of, 1))
        said = []
        for file, params in written.items():
            if not params:
                continue
            tensors = tensors_of(params, frozen_of(run_context(experiment), params))
            write_model(folder / file, tensors, {METADATA: describe_model(experiment, params)})
            said.append(f"{file} (SHA-256 {digest(tensors)[:12]}…)")
        if not said:
            return f"there is no final model for {client}"
        return f"the final model is in {folder}: {', '.join(said)}"


class _CheckpointFiles:
    """Stands in for an engine when a checkpoint is read: knows in which file, or at which party, each value is."""

    def __init__(self) -> None:
        self._files: dict[str, Any] = {}
        self._directory = Path()

    def load(self, files: Mapping[str, Any], directory: Path) -> None:
        self._files, self._directory = dict(files), directory

    def value(self, located: Located) -> Params:
        """A model at the server."""
        [ref] = located.refs()
        model: Params = pick(sealed.read_stored(self._directory / self._files[ref.name]), ref)
        return model

    def there(self, ref: Ref) -> Ref | None:
        """A value by the name that it has at its own party; None if it was lost."""
        file = self._files.get(ref.name)
        if not isinstance(file, str) or not file.startswith(AWAY):
            return None
        _, home, name = file.split(AWAY, 2)
        return Ref(name, home, ref.part)


def tell_end(
    process: PartyProcess,
    link: Downlink,
    final: FinalModel,
    revoked: Callable[[], Collection[str]],
    stopped: Stopped | None = None,
) -> None:
    """Send `end` with the final model to all parties below, and to absent ones if they come back soon.

    Args:
        revoked: parties below that are neither told nor awaited, also if they were revoked just now.
        stopped: why there is no final model, if the run was stopped.
    """
    left, until, waits = set(process.folder.members).difference(revoked()), time.monotonic() + REJOIN, False
    while left and time.monotonic() < until:
        left -= _send(process, link, sorted(left & link.present()), final, stopped)
        left.difference_update(revoked())
        if left and not waits:
            waits = True
            process.log(f"waiting up to {REJOIN:.0f} s to tell {', '.join(sorted(left))} that the run is over")
        time.sleep(0.5 if left else 0)
    if left:
        process.log(f"{', '.join(sorted(left))} could not be told that the run is over; stop these processes by hand")


def _send(
    process: PartyProcess, link: Downlink, names: list[str], final: FinalModel, stopped: Stopped | None
) -> set[str]:
    """Send `end` to these parties. Returns those that have answered."""
    agreement = process.folder.federation
    for name in names if final.nbytes else ():
        process.sent.add(agreement.config.rounds, name, "model", TIER, "down", final.nbytes, "the final model")
    below = {client for name in names for client in agreement.sectors.get(name, (name,))}
    seconds = END_SECONDS + len(names) * final.nbytes * SECONDS_PER_BYTE
    message = final.message(agreement.stamp, below)
    if stopped is not None:
        message = Message(message.head | {"stopped": stopped.round}, message.parts)
    replies = ask(link, names, message, seconds)
    for name, reply in replies.items():
        if failed := reply.head.get("failed"):
            process.fault(f"{name} did not take the final model and says {quoted(failed)}")
    return set(replies)
