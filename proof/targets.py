"""What is fuzzed. A target prepares valid content once, and `case` changes it, hands it to the library and looks on.

`case(rng)` returns True if the library took what it got. It may raise an error that the library means for its user.
Everything else that comes out of it is a finding.
"""

from __future__ import annotations

import contextlib
import copy
import gzip
import io
import json
import os
import random
import shutil
import sys
import tomllib
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import mutations as change
import numpy as np
from stamps import ROOT

sys.path += [str(ROOT / "tests"), str(ROOT / "tools")]

SMALL = ("rounds=1", "data.fraction=0.1", "partition.clients=4", "partition.sectors=2", "partition.alpha=1.0")
SMALL = (*SMALL, "model.name=mlp", "model.hidden=[8]", "local.epochs=1", "engine.name=inline")
SCHEMES = ("dirichlet", "iid", "shards", "quantity", "two-level", "client-prior", "dirichlet-balanced")
SECTIONS = ("data", "partition", "model", "local", "robust", "attack", "faults")


class Target:
    """One kind of input.

    Args:
        place: an empty directory.
    """

    name: ClassVar[str]
    what: ClassVar[str]  # for the table

    def __init__(self, place: Path) -> None:
        self.place = place

    def case(self, rng: random.Random) -> bool:
        raise NotImplementedError


def small_run(place: Path, *sets: str) -> Path:
    """The directory of a short run."""
    from headwater.config import Config
    from headwater.training.experiment import prepare
    from headwater.training.loop import train

    train(prepare(Config.load("fedavg", [*SMALL, *sets])), out=place / "run")
    return place / "run"


def command(*words: str) -> bool:
    """Run a command of the library in this process; whether it went well. Its defects are raised."""
    from headwater.cli.app import main

    os.environ["HEADWATER_DEBUG"] = "1"
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        return main(words) == 0


class Configuration(Target):
    """Files of all presets and of the default configuration, and the words of --set."""

    name, what = "config", "configuration files, `--set` words and nested values"

    def __init__(self, place: Path) -> None:
        super().__init__(place)
        from headwater import presets
        from headwater.config import Config
        from headwater.config.load import layers

        texts = [Config.load(method).to_toml() for method in ("fedavg", "fedhead+", "mtgc", "fedhkd", "frame", "feddf")]
        texts += [presets.text(name) for name in presets.names()]
        self.texts = [(text, tomllib.loads(text)) for text in texts]
        self.keys = sorted({f"{a}.{b}" for _, t in self.texts for a, v in t.items() if isinstance(v, dict) for b in v})
        self.keys += ["seed", "rounds", "eval_every", "data", "local", "algorithm.name", "", ".", "a.b.c"]
        self.layers = layers

    def case(self, rng: random.Random) -> bool:
        from headwater.config import Config

        text, tree = rng.choice(self.texts)
        way = rng.randrange(4)
        sets = []
        if way in (0, 3):
            for _ in range(rng.randint(1, 3)):
                odd = change.toml_value(change.odd(rng))
                value = rng.choice((odd, odd, odd, rng.choice(change.TEXTS), "[" * 2000, "9" * 5000))
                sets.append(f"{rng.choice(self.keys)}{rng.choice(('=', '=', '=', '==', ''))}{value}")
        if way == 1:
            tree.pop("extends", None)
            config = Config.load(None, [f"algorithm.name={rng.choice(('fedavg', 'fedhead', 'fedhkd'))}"])
            config = config.merged(change.changed_tree(rng, config.tree()))
        elif way == 0:
            config = Config.load(None, sets)
        else:
            file = self.place / "config.toml"
            file.write_bytes(change.toml_change(rng, text, tree))
            config = Config.load(file, sets)
        assert Config.from_toml(config.to_toml()) == config, "it is not read back as it was written"
        return True


class Prepared(Target):
    """Configurations whose values have the right types and any size, up to the point where a run would begin."""

    name, what = "settings", "settings of the right type and any size, up to the first round"

    def __init__(self, place: Path) -> None:
        super().__init__(place)
        from headwater.config import Config

        self.base = Config.load("fedavg", SMALL).tree()

    def case(self, rng: random.Random) -> bool:
        from headwater.config import Config
        from headwater.training.experiment import prepare

        tree = copy.deepcopy(self.base)
        tree["algorithm"] = {"name": rng.choice(("fedavg", "fedhead", "feddf", "mtgc", "fedhkd", "local"))}
        tree["partition"]["scheme"] = rng.choice(SCHEMES)
        if tree["partition"]["scheme"] != "dirichlet":
            for key in ("alpha", "drop_remainders"):
                tree["partition"].pop(key, None)
        spots = [
            (tree[section], key)
            for section in SECTIONS
            for key, value in tree[section].items()
            if isinstance(value, int | float | list) or rng.random() < 0.1
        ]
        for holder, key in rng.sample(spots, rng.randint(1, 2)):
            if isinstance(holder[key], list) and holder[key]:
                holder[key] = [change.alike(rng, each) for each in holder[key]]
            elif isinstance(holder[key], float) and rng.random() < 0.5:
                holder[key] = rng.choice((1e-6, 0.01, 0.3, 0.99, 1.0, 3.0, 1000.0))
            elif isinstance(holder[key], int) and rng.random() < 0.5:
                holder[key] = rng.choice((0, 1, 2, 3, 5, 17, 100))
            else:
                holder[key] = change.alike(rng, holder[key])
        prepare(Config(**tree))
        return True


def table_text(separator: str, rows: int = 24) -> str:
    rng = random.Random(rows)
    lines = [separator.join(("a", "b", "word", "label", "who", "part", "said"))]
    for at in range(rows):
        cells = (f"{rng.random():.3f}", str(at), rng.choice(("red", "blue")), rng.choice(("yes", "no")), f"c{at % 3}")
        lines.append(separator.join((*cells, "test" if at % 4 == 0 else "train", f"it was {at} things")))
    return "\n".join(lines) + "\n"


class Tables(Target):
    """csv, tsv, their compressed forms, and parquet; with columns for clients, tests and texts."""

    name, what = "tables", "tables: .csv, .tsv, .csv.gz, .tsv.gz, .parquet"

    def __init__(self, place: Path) -> None:
        super().__init__(place)
        import pandas as pd

        frame = pd.read_csv(io.StringIO(table_text(",")))
        frame.to_parquet(place / "t.parquet")
        self.parquet = (place / "t.parquet").read_bytes()
        self.frame = frame

    def case(self, rng: random.Random) -> bool:
        from headwater.data.loading import load, options_for

        kind = rng.choice((".csv", ".csv", ".tsv", ".csv.gz", ".tsv.gz", ".parquet"))
        if kind == ".parquet":
            data = change.changed_bytes(rng, self.parquet)
            if rng.random() < 0.4:
                data = self.rewritten(rng)
        else:
            separator = "," if "csv" in kind else "\t"
            data = change.table_change(rng, table_text(separator), separator)
            if kind.endswith(".gz"):
                data = gzip.compress(data, 1)
                data = change.changed_bytes(rng, data) if rng.random() < 0.3 else data
        file = self.place / f"data{kind}"
        file.write_bytes(data)
        options: dict[str, Any] = {"label": "label"}
        for key, value in (("client", "who"), ("test", "part"), ("text", "said"), ("drop", ("said",))):
            if rng.random() < 0.3:
                options[key] = value
        self.take(load(str(file), None, options_for(str(file), options)))
        return True

    def rewritten(self, rng: random.Random) -> bytes:
        """A parquet file with a column of another type."""
        frame, column = self.frame.copy(), rng.choice(list(self.frame.columns))
        made: Any = rng.choice(
            (
                [change.odd(rng) if rng.random() < 0.1 else "x" for _ in range(len(frame))],
                [[1, 2]] * len(frame),
                [{"a": 1}] * len(frame),
                [b"\xff\x00"] * len(frame),
                [None] * len(frame),
                np.arange(len(frame)).astype("datetime64[s]"),
                np.full(len(frame), np.nan),
                [True, False] * (len(frame) // 2),
            )
        )
        try:
            frame[column] = made
            file = io.BytesIO()
            frame.to_parquet(file)
        except Exception:
            return change.changed_bytes(rng, self.parquet)
        return file.getvalue()

    @staticmethod
    def take(data: Any) -> None:
        assert len(data.train.x) == len(data.train.y)
        assert len(data.test.x) == len(data.test.y)
        if len(data.train.y):
            assert 0 <= int(data.train.y.min()) <= int(data.train.y.max()) < data.classes


class Arrays(Target):
    """Files of arrays, and folders with one for each client."""

    name, what = "arrays", "arrays: .npz files, and folders of them"

    def __init__(self, place: Path) -> None:
        super().__init__(place)
        draw = np.random.default_rng(0)
        self.x, self.y = draw.normal(size=(24, 5)).astype(np.float32), np.arange(24) % 3
        self.folder = place / "folder"
        self.folder.mkdir()

    def case(self, rng: random.Random) -> bool:
        from headwater.data.loading import load

        x, y = self.x, self.y
        if rng.random() < 0.7:
            whole = {"x_train": x[:18], "y_train": y[:18], "x_test": x[18:], "y_test": y[18:]}
            if rng.random() < 0.4:
                whole["client"] = np.arange(18) % 3
            (self.place / "a.npz").write_bytes(change.npz_change(rng, whole))
            Tables.take(load(str(self.place / "a.npz")))
        else:
            for name in ("a", "b"):
                np.savez(self.folder / f"{name}.npz", x=x, y=y)
            (self.folder / f"{rng.choice('ab')}.npz").write_bytes(change.npz_change(rng, {"x": x, "y": y}))
            Tables.take(load(str(self.folder)))
        return True


class PublishedSets(Target):
    """Every listed data set in its authors' format: idx, tar.gz, zip, pickles, .mat, .bin, csv, tsv, parquet."""

    name, what = (
        "published",
        "listed data sets in their authors' formats: idx, gz, tar.gz, zip, pickle, .mat, .bin, .csv",
    )

    def __init__(self, place: Path) -> None:
        super().__init__(place)
        from miniatures import MINIATURES

        self.sets: dict[str, tuple[Path, dict[Path, bytes]]] = {}
        for name, miniature in MINIATURES.items():
            top = place / name
            folder = top / (miniature.folder or name)
            folder.mkdir(parents=True)
            miniature.write(folder)
            self.sets[name] = top, {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    def case(self, rng: random.Random) -> bool:
        from headwater.data.loading import load

        name = rng.choice(list(self.sets))
        top, files = self.sets[name]
        path = rng.choice(list(files))
        data = files[path]
        if data[:2] == b"\x1f\x8b" and rng.random() < 0.7:  # what is inside, packed again
            data = gzip.compress(change.changed_bytes(rng, gzip.decompress(data)), 1)
        elif path.suffix in (".csv", ".tsv", ".txt") and rng.random() < 0.7:
            separator = "\t" if path.suffix == ".tsv" else ","
            data = change.table_change(rng, data.decode("utf-8", "replace"), separator)
        elif path.suffix == ".npz" and rng.random() < 0.7:
            with np.load(path) as arrays:
                data = change.npz_change(rng, dict(arrays))
        elif path.suffix == ".zip" and rng.random() < 0.7:
            data = change.member_change(rng, data)
        else:
            data = change.changed_bytes(rng, data)
        path.write_bytes(data)
        try:
            Tables.take(load(name, top))
        finally:
            path.write_bytes(files[path])
        return True


class Images(Target):
    """Folders of images by class, by client and class, and by part."""

    name, what = "images", "folders of images: .png, .jpg, .webp, .bmp, .gif, .ppm, .tif"

    def __init__(self, place: Path) -> None:
        super().__init__(place)
        from PIL import Image

        draw = np.random.default_rng(1)
        self.files: dict[str, bytes] = {}
        for kind in ("png", "jpeg", "webp", "bmp", "gif", "ppm", "tiff"):
            for mode in ("L", "RGB"):
                pixels = draw.integers(0, 256, (6, 6) if mode == "L" else (6, 6, 3), dtype=np.uint8)
                file = io.BytesIO()
                Image.fromarray(pixels).save(file, kind)
                self.files[f"{mode}.{kind}"] = file.getvalue()
        grey = io.BytesIO()
        Image.fromarray(np.arange(36, dtype=np.uint16).reshape(6, 6) * 900).save(grey, "png")
        self.files["deep.png"] = grey.getvalue()
        self.top = place / "images"

    def case(self, rng: random.Random) -> bool:
        from headwater.data.loading import load

        shutil.rmtree(self.top, ignore_errors=True)
        depth = rng.randrange(3)
        for at in range(8):
            name = rng.choice(list(self.files))
            above = ("train" if at % 4 else "test",) if depth == 2 else (f"c{at % 2}",) if depth == 1 else ()
            folder = self.top.joinpath(*above, f"class{at % 2}" if rng.random() < 0.97 else "odd é")
            folder.mkdir(parents=True, exist_ok=True)
            data = self.files[name]
            file = folder / f"{at}.{name.partition('.')[2]}"
            file.write_bytes(change.changed_bytes(rng, data) if rng.random() < 0.2 else data)
        options = {"pixels": rng.choice((0, 1, 8))} if rng.random() < 0.5 else {}
        Tables.take(load(str(self.top), None, options))
        return True


class Checkpoints(Target):
    """Heads and values of checkpoints; half of the heads have a hash that fits what was changed."""

    name, what = "checkpoints", "checkpoints: heads and values, damaged, or changed and hashed again"

    def __init__(self, place: Path) -> None:
        super().__init__(place)
        from headwater.config import Config
        from headwater.training.experiment import prepare

        sets = ("rounds=2", "algorithm.name=scaffold")
        self.run = small_run(place, *sets)
        self.context = prepare(Config.load("scaffold", [*SMALL, *sets[:1]])).context()
        self.files = {path: path.read_bytes() for path in (self.run / "checkpoints").rglob("*") if path.is_file()}

    def case(self, rng: random.Random) -> bool:
        from headwater.engines.inline import Inline
        from headwater.training import checkpoint

        where = self.run / "checkpoints"
        heads = sorted(where.glob("round-*.json"))
        changed = [rng.choice(list(self.files))] if rng.random() < 0.3 else rng.choice((heads, heads, heads[-1:]))
        added = []
        for path in changed:
            data = self.files[path]
            if path.suffix == ".json" and rng.random() < 0.8:
                row = json.loads(data)
                row.pop("sha256")
                row = change.changed_tree(rng, row)
                if isinstance(row, dict) and rng.random() < 0.8:
                    row["sha256"] = checkpoint._sha256(row)
                data = change.json_bytes(rng, row)
            elif path.suffix == ".value" and rng.random() < 0.8:
                added += self.stored_again(rng, path, data, heads)
                data = self.files[path]
            else:
                data = change.changed_bytes(rng, data)
            path.write_bytes(data)
        engine = Inline()
        engine.start(self.context)
        try:
            return checkpoint.load(where, engine) is not None
        finally:
            engine.close()
            for path in (*changed, *(heads if added else ())):
                path.write_bytes(self.files[path])
            for path in added:
                path.unlink(missing_ok=True)

    @staticmethod
    def stored_again(rng: random.Random, path: Path, data: bytes, heads: list[Path]) -> list[Path]:
        """A changed value under the name of its new hash, which every head names in place of the old one."""
        import hashlib

        from headwater.training import checkpoint

        data = change.changed_bytes(rng, data)
        other = path.with_name(f"{hashlib.sha256(data).hexdigest()}.value")
        other.write_bytes(data)
        for head in heads:
            row = json.loads(head.read_text(encoding="utf-8").replace(path.name, other.name))
            row.pop("sha256")
            head.write_text(json.dumps(row | {"sha256": checkpoint._sha256(row)}), encoding="utf-8")
        return [other]


class Safetensors(Target):
    """Trained models: the head of the file, what it says about the model, and its tensors."""

    name, what = "safetensors", "trained models (.safetensors), loaded and used for a prediction"

    def __init__(self, place: Path) -> None:
        super().__init__(place)
        self.file = small_run(place) / "model.safetensors"
        data = self.file.read_bytes()
        length = int.from_bytes(data[:8], "little")
        self.data, self.head, self.rest = data, json.loads(data[8 : 8 + length]), data[8 + length :]

    def case(self, rng: random.Random) -> bool:
        import headwater as hw

        head = self.head
        match rng.randrange(4):
            case 0:
                data = change.changed_bytes(rng, self.data)
            case 1:
                text = json.dumps(change.changed_tree(rng, head)).encode("utf-8", "surrogatepass")
                data = len(text).to_bytes(8, "little") + text + self.rest
            case _:
                about = json.dumps(change.changed_tree(rng, json.loads(head["__metadata__"]["headwater"])))
                changed = head | {"__metadata__": head["__metadata__"] | {"headwater": about}}
                text = json.dumps(changed).encode("utf-8", "surrogatepass")
                data = len(text).to_bytes(8, "little") + text + self.rest
        self.file.write_bytes(data)
        model = hw.load(self.file)
        model.predict(np.zeros((2, 1, 8, 8), dtype=np.float32))
        return True


class Messages(Target):
    """Requests to a client and to a host, replies to a host, and what carries them over Flower."""

    name, what = "messages", "messages: requests to clients and hosts, replies, and their form on the wire"

    def __init__(self, place: Path) -> None:
        super().__init__(place)
        from headwater.deploy.transport import Message
        from loopback import Loopback, small

        settings: dict[str, Any] = {"data__fraction": 0.1, "partition__alpha": 1.0, "local__epochs": 1, "rounds": 1}
        made = small("scaffold", **settings, model__name="mlp", model__hidden=[8], partition__clients=4)
        self.federation = Loopback(made, place / "parties")
        self.requests: list[tuple[str, Message]] = []
        self.replies: list[tuple[Any, Message]] = []
        for link in self.federation.links.values():
            link._meddle = lambda to, message: message
            for to, answer in list(link._answers.items()):
                link._answers[to] = self._noted(to, answer)
        self.federation.train()
        self.answers = {to: answer for link in self.federation.links.values() for to, answer in link._answers.items()}
        self.models = made.models
        self.noting = False

    def _noted(self, to: str, answer: Callable[[Any], Any]) -> Callable[[Any], Any]:
        self.noting = True

        def noted(message: Any) -> Any:
            reply = answer(message)
            if self.noting:
                self.requests.append((to, message))
                self.replies.append((message, reply))
            return reply

        return noted

    def case(self, rng: random.Random) -> bool:
        from headwater.deploy.payload import PayloadReader, Refused
        from headwater.deploy.steps import StepResults, decode, trust

        way = rng.randrange(4)
        try:
            if way == 0:
                to, message = rng.choice(self.requests)
                reply = self.answers[to](self.changed(rng, message))
                return "failed" not in reply.head
            if way == 1:
                asked, reply = rng.choice(self.replies)
                changed = self.changed(rng, reply)
                steps = [decode(row, trust()) for row in asked.head["steps"]]
                PayloadReader(self.models, 1 << 24).unpack(changed)
                with contextlib.suppress(Exception):  # as the Dispatcher, which leaves the party out
                    StepResults.decode(changed.head, steps)
                return True
            return self.wire(rng) if way == 2 else self.frames(rng)
        except Refused:
            return False

    def changed(self, rng: random.Random, message: Any) -> Any:
        from headwater.deploy.transport import Message, RawArray

        head, parts = message.head, list(message.parts)
        if rng.random() < 0.8 or not parts:
            head = json.loads(json.dumps(change.changed_tree(rng, head)))
        if parts and rng.random() < 0.5:
            at = rng.randrange(len(parts))
            dtype, shape, data = parts[at]
            match rng.randrange(5):
                case 0:
                    dtype = rng.choice(("float16", "int8", "complex64", "object", "", "float64"))
                case 1:
                    shape = tuple(rng.choice(((), (0,), (-1,), (2**40,), (*shape, 1), shape[:-1], (2**62, 2**62))))
                case 2:
                    data = change.changed_bytes(rng, data)
                case 3:
                    del parts[at]
                case _:
                    parts.insert(at, parts[at])
            if at < len(parts):
                parts[at] = RawArray(dtype, shape, data)
        return Message(head if isinstance(head, dict) else {"head": head}, tuple(parts))

    def wire(self, rng: random.Random) -> bool:
        """Bytes of a Flower record."""
        from flwr.app import ConfigRecord, RecordDict

        from headwater.deploy.flower.messages import from_flower, to_flower
        from headwater.deploy.transport import Unanswered

        _, message = rng.choice(self.replies)
        content = to_flower(message)
        record: Any = dict(content.config_records["head"])
        key = rng.choice(list(record))
        record[key] = change.json_change(rng, record[key]) if key != "data" else change.changed_bytes(rng, record[key])
        record[rng.choice(("head", "form", "odd"))] = rng.choice((record[key], b"", b"null", 7, "text", [1.0]))
        changed = RecordDict({"head": ConfigRecord(record)})
        try:
            from_flower(changed)
        except Unanswered:
            return False
        return True

    def frames(self, rng: random.Random) -> bool:
        """A value as it lies in files and shared memory."""
        from headwater.core import sealed

        values = next(iter(self.federation.stores.values()))
        file = self.place / "one.value"
        value = values[rng.choice(sorted(values.names))] if values.names else {"a": 1}
        with file.open("wb") as opened:
            sealed.write(value, opened)
        file.write_bytes(change.changed_bytes(rng, file.read_bytes()))
        with contextlib.suppress(sealed.Damaged):
            sealed.read(file)
            return True
        return False


class Manifests(Target):
    """Folders of parties, agreements, requests for keys, approvals, what parties note, and splits in files."""

    name, what = "manifests", "party folders, agreements, key requests, approvals, notes of parties, split files"

    def __init__(self, place: Path) -> None:
        super().__init__(place)
        from headwater.config import Config
        from headwater.deploy.approving import approve
        from headwater.deploy.enrolling import enrol, install
        from headwater.deploy.init import init
        from headwater.training.experiment import prepare

        made = prepare(Config.load("fedavg", SMALL))
        self.top = place / "federation"
        init(made, self.top, enrol=True)
        names = ("server", "s0", "s1", "c0", "c1", "c2", "c3")
        requests = [enrol(self.top / name).file for name in names]
        self.approval = approve(self.top, requests).file
        for name in names:
            install(self.top / name, self.approval)
        self.request = requests[0]
        self.notes(names)
        self.split = place / "partition.json"
        self.labels = made.split.train.y.numpy()
        self.split.write_bytes((small_run(place) / "partition.json").read_bytes())
        self.files = {p: p.read_bytes() for p in (*self.top.rglob("*"), self.split, *requests) if p.is_file()}
        self.texts = [p for p in self.files if p.suffix in (".toml", ".json", ".jsonl")]

    def notes(self, names: tuple[str, ...]) -> None:
        """What parties write while they run."""
        from headwater.deploy.folder import PartyFolder
        from headwater.deploy.refusals import RefusedLog
        from headwater.deploy.sent_log import SentLog
        from headwater.deploy.status import LOCK, Status

        for name in names:
            folder = PartyFolder.open(self.top / name)
            status, sent, refused = Status(folder), SentLog(folder), RefusedLog(folder)
            status.update(round=2, phase="training", accuracy=0.5, message="it works")
            sent.add(1, "above", "model", "sector_client", "up", 100, "1.2.model")
            sent.add(1, "above", "control", "", "up", 0, "losses")
            refused.add(1, "s0", "it is not agreed")
            status.close()
            sent.close()
            (folder.state / LOCK).unlink()
            (folder.state / "membership.json").write_text(json.dumps({"census": {"c0": 5}, "joined": []}))
            (folder.state / "revoked.json").write_text(json.dumps(["c9"]))
            (folder.state / "control.json").write_text(json.dumps({"do": "pause"}))

    def case(self, rng: random.Random) -> bool:
        path = rng.choice(self.texts)
        data = self.files[path]
        if path.suffix == ".toml":
            data = change.toml_change(rng, data.decode(), tomllib.loads(data.decode()))
        elif data[:1] in b"[{":
            data = change.json_change(rng, data) if path.suffix != ".jsonl" else change.lines_change(rng, data)
        else:
            data = change.changed_bytes(rng, data)
        path.write_bytes(data)
        try:
            if path == self.split:
                return self.split_read()
            owner = next((p for p in path.parents if p.parent == self.top), self.top / "c0")
            return self.used(rng, path, owner)
        finally:
            for each, content in self.files.items():
                if not each.exists() or each.stat().st_size != len(content) or each.read_bytes() != content:
                    each.write_bytes(content)

    def used(self, rng: random.Random, path: Path, owner: Path) -> bool:
        """Do something that reads the changed file."""
        from headwater.deploy.approving import approve
        from headwater.deploy.enrolling import install
        from headwater.deploy.folder import PartyFolder
        from headwater.deploy.refusals import RefusedLog
        from headwater.deploy.sent_log import SentLog

        if owner.name == "ca":
            approve(self.top, [self.request])
        elif path.name.endswith(".request.json"):
            approve(self.top, [path])
        elif path.name == "approval.json":
            install(owner, path)
        elif path.parent.name == "state":
            if rng.random() < 0.4:
                return command("deploy", rng.choice(("status", "audit")), str(owner))
            folder = PartyFolder.open(owner)
            SentLog(folder).close()
            RefusedLog(folder).add(2, "s0", "no")
        elif rng.random() < 0.3:
            words = rng.choice((("status", str(self.top)), ("status", str(owner)), ("audit", str(owner))))
            return command("deploy", *words)
        else:
            PartyFolder.open(owner)
        return True

    def split_read(self) -> bool:
        from headwater.partition.manifest import Manifest

        found = Manifest(manifest=str(self.split))
        found.fixed_split(self.labels, None)
        return True


class Runs(Target):
    """Run directories read by report, audit, runs and predict."""

    name, what = "runs", "run directories, read by `report`, `audit`, `runs` and `compare`"

    def __init__(self, place: Path) -> None:
        super().__init__(place)
        first = small_run(place, "rounds=3", "algorithm.name=fedhead", "robust.server=median")
        (place / "runs").mkdir()
        first.rename(place / "runs" / "a")
        second = small_run(place, "rounds=3")
        second.rename(place / "runs" / "b")
        names = ("rounds.jsonl", "result.json", "config.toml", "partition.json", "timeline.jsonl")
        self.paths = [place / "runs" / run / name for run in "ab" for name in names]
        self.files = {path: path.read_bytes() for path in self.paths}

    def case(self, rng: random.Random) -> bool:
        from headwater.report import page
        from headwater.report.method_table import tabulate
        from headwater.report.runs import find

        path = rng.choice(self.paths)
        data = self.files[path]
        if path.suffix == ".toml":
            data = change.toml_change(rng, data.decode(), tomllib.loads(data.decode()))
        else:
            data = change.json_change(rng, data) if path.suffix == ".json" else change.lines_change(rng, data)
        path.write_bytes(data)
        try:
            match rng.randrange(6):
                case 0:
                    return command("audit", str(path.parent), *(("--json",) if rng.random() < 0.5 else ()))
                case 1:
                    return command("runs", str(path.parent.parent))
                case 2:
                    runs = find([path.parent.parent])
                    page.render(runs)
                    return True
                case _:
                    runs = find([path.parent.parent])
                    tabulate(runs, 0.5 if rng.random() < 0.3 else None, None)
                    return all(isinstance(run.damage, str) for run in runs)
        finally:
            path.write_bytes(self.files[path])


@dataclass(frozen=True)
class Chosen:
    """Targets by name."""

    known: ClassVar[dict[str, type[Target]]] = {
        each.name: each
        for each in (
            Configuration,
            Prepared,
            Tables,
            Arrays,
            PublishedSets,
            Images,
            Checkpoints,
            Safetensors,
            Messages,
            Manifests,
            Runs,
        )
    }


TARGETS = Chosen.known
warnings.filterwarnings("ignore")
