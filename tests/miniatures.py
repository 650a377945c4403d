"""Every listed data set in miniature: a few samples, written as the set's authors write all of them."""

from __future__ import annotations

import gzip
import io
import pickle
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from scipy.io import savemat

from headwater.core.rng import stream

KDD = 41  # features, of which the second to the fourth are words


@dataclass(frozen=True)
class Miniature:
    """What `write` puts into a folder, and what reading it must give: training and test samples, shape and classes."""

    write: Callable[[Path], None]
    train: int
    test: int
    shape: tuple[int, ...]
    classes: int
    kind: str = "image"  # or "tokens" or "flows"
    folder: str = ""  # where it lies, if not in a folder of its name
    sealed: bool = True  # any cut or changed byte shows; not so in files that are nothing but values or lines


def pixels(count: int, side: int = 32, channels: int = 3) -> Any:
    """Bytes of all levels, (n, channels, side, side)."""
    made = stream(count, "pixels").integers(0, 256, (count, channels, side, side), dtype=np.uint8)
    made[:, :, 0, 0], made[:, :, -1, -1] = 0, 255
    return made


def put(folder: Path, files: Mapping[str, bytes]) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def tar(path: Path, inside: str, files: Mapping[str, bytes]) -> Path:
    """Members of a top folder in a .tar.gz, beside others that nobody asked for."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        for name, content in {"readme.html": b"<html></html>", **files}.items():
            member = tarfile.TarInfo(f"{inside}/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def idx(values: Any, pack: bool = True) -> bytes:
    """Images or labels as the MNIST family has them."""
    header = np.array([2051 if values.ndim == 3 else 2049, *values.shape], dtype=">i4").tobytes()
    content = header + values.astype(np.uint8).tobytes()
    return gzip.compress(content, mtime=0) if pack else content


def idx_files(
    classes: int, start: int = 0, stem: str = "{}", test: str = "t10k", pack: bool = True
) -> dict[str, bytes]:
    """Two training images and a test image of each class."""
    made = {}
    for part, count in (("train", 2 * classes), (test, classes)):
        name = stem.format(part) + "-{}-ubyte" + (".gz" if pack else "")
        made[name.format("images-idx3")] = idx(pixels(count, 28, 1)[:, 0], pack)
        made[name.format("labels-idx1")] = idx(np.arange(count) % classes + start, pack)
    return made


def cifar_files(classes: int, binary: bool = False) -> dict[str, bytes]:
    """Batches of `classes` images each, which have the pixels of `pixels(classes)`."""
    stems = [*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"] if classes == 10 else ["train", "test"]
    x, y = pixels(classes).reshape(classes, -1), np.arange(classes)
    if binary:
        before = [y] if classes == 10 else [y // 5, y]
        rows = np.concatenate([*(labels[:, None].astype(np.uint8) for labels in before), x], axis=1).tobytes()
        return {f"{stem}.bin": rows for stem in stems}
    named = {b"labels": y.tolist()}
    if classes == 100:
        named = {b"fine_labels": y.tolist(), b"coarse_labels": (y // 5).tolist()}
    return {stem: pickle.dumps({b"batch_label": b"one", **named, b"data": x}, protocol=2) for stem in stems}


def cifar(classes: int) -> Callable[[Path], None]:
    inside = "cifar-10-batches-py" if classes == 10 else "cifar-100-python"
    return lambda folder: tar(folder / f"cifar-{classes}-python.tar.gz", inside, cifar_files(classes)) and None


def mat(count: int) -> bytes:
    """Digits 1 to 9 and 0 in turn, the last of which SVHN calls 10; the pixels are those of `pixels(count)`."""
    buffer = io.BytesIO()
    x, y = pixels(count).transpose(2, 3, 1, 0), (np.arange(count) % 10 + 1)[:, None].astype(np.uint8)
    savemat(buffer, {"X": x, "y": y}, do_compression=True)
    return buffer.getvalue()


def svhn(folder: Path) -> None:
    put(folder, {"train_32x32.mat": mat(20), "test_32x32.mat": mat(10)})


def svhn_extra(folder: Path) -> None:
    put(folder, {"extra_32x32.mat": mat(30), "test_32x32.mat": mat(10)})


def stl_files() -> dict[str, bytes]:
    """Ten images a part, column by column, with the pixels of `pixels(10, 96)`; labels from 1 on."""
    x, y = pixels(10, 96).transpose(0, 1, 3, 2).tobytes(), np.arange(1, 11, dtype=np.uint8).tobytes()
    names = ("train_X.bin", "test_X.bin", "unlabeled_X.bin")
    return {"class_names.txt": b"airplane\n", **dict.fromkeys(names, x), "train_y.bin": y, "test_y.bin": y}


def stl10(folder: Path) -> None:
    tar(folder / "stl10_binary.tar.gz", "stl10_binary", stl_files())


def imagenet_files(npz: bool = False) -> dict[str, bytes]:
    """Ten batches of two images and a validation batch; labels from 1 to 1000."""
    made = {}
    for number, name in enumerate([*(f"train_data_batch_{n}" for n in range(1, 11)), "val_data"]):
        y = [number + 1, 1000 - number]
        content = {"data": pixels(2).reshape(2, -1), "labels": y, "mean": np.zeros(3072)}
        if npz:
            buffer = io.BytesIO()
            np.savez(buffer, **{key: np.asarray(value) for key, value in content.items()})
            made[f"{name}.npz"] = buffer.getvalue()
        else:
            made[name] = pickle.dumps(content)
    return made


def tiny_files() -> dict[str, bytes]:
    """Fifty JPEG images of one grey level in each of two classes."""
    top = "tiny-imagenet-200"
    made = {f"{top}/wnids.txt": b"n02\nn01\n", f"{top}/words.txt": b"n01\tgoldfish\nn02\tnewt\nn03\tcat\n"}
    for kind, level in (("n01", 40), ("n02", 200)):
        buffer = io.BytesIO()
        Image.new("RGB", (64, 64), (level, level, level)).save(buffer, "JPEG")
        made |= {f"{top}/train/{kind}/images/{kind}_{number}.JPEG": buffer.getvalue() for number in range(50)}
    return made


def zipped(path: Path, files: Mapping[str, bytes]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def letters(folder: Path) -> None:
    zipped(folder / "gzip.zip", {f"gzip/{n}": c for n, c in idx_files(26, 1, "emnist-letters-{}", "test").items()})


def tiny(folder: Path) -> None:
    zipped(folder / "tiny-imagenet-200.zip", tiny_files())


def ag_news(folder: Path) -> None:
    lines = [f'"{n % 4 + 1}","Headline {n}","What ""happened"" on day {n}."\n' for n in range(12)]
    put(folder, {"train.csv": "".join(lines).encode(), "test.csv": "".join(lines[:5]).encode()})


def sst2(folder: Path) -> None:
    lines = "".join(f"a film of {n} hours \t{n % 2}\n" for n in range(8))
    put(folder, {name: f"sentence\tlabel\n{lines}".encode() for name in ("train.tsv", "dev.tsv")})


def flows(folder: Path) -> None:
    rows = "".join(f"{n},{n * 1.5},{('CHAT', 'VPN-CHAT')[n % 2]}\n" for n in range(20))
    put(folder, {"flows_15s.csv.gz": gzip.compress(f"duration,total_fiat,label\n{rows}".encode(), mtime=0)})


def unicauca75(folder: Path) -> None:
    head = "Flow.ID,Source.IP,Flow.Duration,Total.Fwd.Packets,Timestamp,Label,L7Protocol,ProtocolName\n"
    rows = "".join(
        f"f{n},10.0.0.{n},{n},{n % 7},26/04/2017,BENIGN,{n % 3},{('DNS', 'SSL')[n % 2]}\n" for n in range(20)
    )
    put(folder, {"Dataset-Unicauca-Version2-87Atts.csv": (head + rows).encode()})


def unicauca141(folder: Path) -> None:
    head = "flow_key,src_ip,src_port,pktTotalCount,flowStart,category,application_protocol,web_service\n"
    rows = "".join(f"k{n},10.0.0.{n},{n},{n % 7},1.5e9,Web,TLS,{('Google', 'Amazon')[n % 2]}\n" for n in range(20))
    put(folder, {"Unicauca-dataset-April-June-2019-Network-flows.csv": (head + rows).encode()})


def nsl_kdd(folder: Path) -> None:
    def rows(attacks: list[str]) -> bytes:
        values = ",".join(["0"] * (KDD - 4))
        return "".join(f"{n},tcp,http,SF,{values},{attack},20\n" for n, attack in enumerate(attacks)).encode()

    known = ["normal", "neptune", "satan", "warezclient", "rootkit"]
    put(folder, {"KDDTrain+.txt": rows(known * 2), "KDDTest+.txt": rows([*known, "mscan"])})


EMBEDDED = ("digits", "toy2d")  # no file of the user's is involved
MINIATURES: dict[str, Miniature] = {
    "mnist": Miniature(lambda folder: put(folder, idx_files(10)), 20, 10, (1, 28, 28), 10),
    "fashion_mnist": Miniature(lambda folder: put(folder, idx_files(10)), 20, 10, (1, 28, 28), 10),
    "emnist_letters": Miniature(letters, 52, 26, (1, 28, 28), 26),
    "cifar10": Miniature(cifar(10), 50, 10, (3, 32, 32), 10),
    "cifar100": Miniature(cifar(100), 100, 100, (3, 32, 32), 100),
    "svhn": Miniature(svhn, 20, 10, (3, 32, 32), 10),
    "svhn_extra": Miniature(svhn_extra, 30, 10, (3, 32, 32), 10, folder="svhn"),
    "stl10": Miniature(stl10, 10, 10, (3, 32, 32), 10),
    "stl10_unlabelled": Miniature(stl10, 10, 10, (3, 32, 32), 10, folder="stl10"),
    "tiny_imagenet32": Miniature(tiny, 80, 20, (3, 32, 32), 2),
    "imagenet32": Miniature(lambda folder: put(folder, imagenet_files(npz=True)), 20, 2, (3, 32, 32), 1000),
    "ag_news": Miniature(ag_news, 12, 5, (128,), 4, "tokens", sealed=False),
    "sst2": Miniature(sst2, 8, 8, (128,), 2, "tokens", sealed=False),
    "iscx_vpn2016": Miniature(flows, 16, 4, (2,), 2, "flows"),
    "unicauca75": Miniature(unicauca75, 16, 4, (2,), 2, "flows", sealed=False),
    "unicauca141": Miniature(unicauca141, 16, 4, (2,), 2, "flows", sealed=False),
    "nsl_kdd": Miniature(nsl_kdd, 10, 6, (KDD,), 5, "flows", sealed=False),
}
