"""What the authors of the listed sets publish: where it is, and the check-sums of its files. Those of packed forms are
here too. Little more than a table, so that saying what is missing costs nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class File:
    """A published file: 32 digits are its MD5, 64 its SHA-256; a length of 0 is not known."""

    digest: str
    size: int = 0

    @property
    def kind(self) -> str:
        return "MD5" if len(self.digest) == 32 else "SHA-256"


@dataclass(frozen=True)
class Published:
    """One set. `get` names those of its files that have to be fetched; other forms of them are read as well."""

    source: str
    get: tuple[str, ...] = ()
    files: Mapping[str, File] = field(default_factory=dict)
    hub: str = ""  # its name at the Hugging Face hub, if what is there is the same

    def told(self) -> str:
        """The check-sums of what has to be fetched, in words; empty if none is known."""
        known = [f"{name} has {self.files[name].kind} {self.files[name].digest}" for name in self.get]
        return ", ".join(known)


CIFAR = "https://www.cs.toronto.edu/~kriz/cifar.html"
SVHN = {
    "train_32x32.mat": File("e26dedcc434d2e4c54c9b2d4a06d8373", 182_040_794),
    "test_32x32.mat": File("eb5a983be6a315427106f1b164d9cef3", 64_275_384),
    "extra_32x32.mat": File("a93ce644f1a588dc4d68dda5feec44a7", 1_329_278_602),
}
STL10 = {
    "stl10_binary.tar.gz": File("91f7769df0f17e558f3565bffb0c7dfb", 2_640_397_119),
    "train_X.bin": File("918c2871b30a85fa023e0c44e0bee87f", 138_240_000),
    "train_y.bin": File("5a34089d4802c674881badbb80307741", 5_000),
    "test_X.bin": File("7f263ba9f9e0b06b93213547f721ac82", 221_184_000),
    "test_y.bin": File("36f9794fa4beb8a2c72628de14fa638e", 8_000),
    "unlabeled_X.bin": File("5242ba1fed5e4be9e1e742405eb56ca4", 2_764_800_000),
}
IMAGENET32 = {
    "train_data_batch_1": File("6c4495e65cd24a8c3019857ef9b758ee"),
    "train_data_batch_2": File("3dd727de4155836807dfc19f98c9fe70"),
    "train_data_batch_3": File("03d3dc4e850e23e1d526f268a0196296"),
    "train_data_batch_4": File("876f7e6d6ddb1f52ecb654ffdc8293f6"),
    "train_data_batch_5": File("c789bcdd1feed34a9bc58598a1a1bf7d"),
    "train_data_batch_6": File("8ce5344cb1e11f31bc507cae4c856083"),
    "train_data_batch_7": File("32ecc8ad6c55b1c9cb6cf79a2cc46094"),
    "train_data_batch_8": File("bdeb6da3d05771121992b48c59c69439"),
    "train_data_batch_9": File("58417149b5ce31688f805341e7f57b4f"),
    "train_data_batch_10": File("46ad60a1144aaf97a143914453b0dabb"),
    "val_data": File("06c02b8b4c8de8b3a36b07859a49de6f"),
}
MNIST = {
    "train-images-idx3-ubyte.gz": File("f68b3c2dcbeaaa9fbdd348bbdeb94873"),
    "train-labels-idx1-ubyte.gz": File("d53e105ee54ea40749a09fcbcd1e9432"),
    "t10k-images-idx3-ubyte.gz": File("9fb629c4189551a2d022fa330f9573f3"),
    "t10k-labels-idx1-ubyte.gz": File("ec29112dd5afa0611ce80d1b7f02629c"),
}
FASHION = {
    "train-images-idx3-ubyte.gz": File("8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
    "train-labels-idx1-ubyte.gz": File("25c81989df183df01b3e8a0aad5dffbe"),
    "t10k-images-idx3-ubyte.gz": File("bef4ecab320f06d8554ea6380940ec79"),
    "t10k-labels-idx1-ubyte.gz": File("bb300cfdad3c16e7a12a480ee83cd310"),
}

PUBLISHED: dict[str, Published] = {
    "cifar10": Published(
        CIFAR,
        ("cifar-10-python.tar.gz",),
        {
            "cifar-10-python.tar.gz": File("c58f30108f718f92721af3b95e74349a", 170_498_071),
            "cifar-10-binary.tar.gz": File("c32a1d4ab5d03f1284b67883e8d87530", 170_052_171),
            "data_batch_1": File("c99cafc152244af753f735de768cd75f", 31_035_704),
            "data_batch_2": File("d4bba439e000b95fd0a9bffe97cbabec", 31_035_320),
            "data_batch_3": File("54ebc095f3ab1f0389bbae665268c751", 31_035_999),
            "data_batch_4": File("634d18415352ddfa80567beed471001a", 31_035_696),
            "data_batch_5": File("482c414d41f54cd18b22e5b47cb7c3cb", 31_035_623),
            "test_batch": File("40351d587109b95175f43aff81a1287e", 31_035_526),
            "cifar10_lossless_webp.zip": File("3ca12a975e8326ce77ac4153aa9fbadaaea135f2045564b5b9b80a1aaabf3eed"),
        },
        hub="uoft-cs/cifar10",
    ),
    "cifar100": Published(
        CIFAR,
        ("cifar-100-python.tar.gz",),
        {
            "cifar-100-python.tar.gz": File("eb9058c3a382ffc7106e4002c42a8d85", 169_001_437),
            "cifar-100-binary.tar.gz": File("03b5dce01913d631647c71ecec9e9cb8", 168_513_733),
            "train": File("16019d7e3df5f24257cddd939b257f8d", 155_249_918),
            "test": File("f0ef6b0ae62326f3e7ffdfab6717acfc", 31_049_977),
        },
        hub="uoft-cs/cifar100",
    ),
    "svhn": Published(
        "http://ufldl.stanford.edu/housenumbers", ("train_32x32.mat", "test_32x32.mat"), SVHN, "ufldl-stanford/svhn"
    ),
    "svhn_extra": Published(
        "http://ufldl.stanford.edu/housenumbers", ("extra_32x32.mat", "test_32x32.mat"), SVHN, "ufldl-stanford/svhn"
    ),
    "stl10": Published("https://cs.stanford.edu/~acoates/stl10", ("stl10_binary.tar.gz",), STL10, hub="tanganke/stl10"),
    "stl10_unlabelled": Published("https://cs.stanford.edu/~acoates/stl10", ("stl10_binary.tar.gz",), STL10),
    "tiny_imagenet32": Published(
        "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
        ("tiny-imagenet-200.zip",),
        {
            "tiny-imagenet-200.zip": File("90528d7ca1a48142e341f4ef8d21d0de", 248_100_043),
            "tiny_imagenet32_lossless_webp.zip": File(
                "e207aa9faa731fc64cc2eb16a5066ffc178e04abc1c1c65e4e9e1a2f6cdd9d43"
            ),
        },
    ),
    "imagenet32": Published("https://image-net.org/download-images.php", tuple(IMAGENET32), IMAGENET32),
    "mnist": Published("https://ossci-datasets.s3.amazonaws.com/mnist/", tuple(MNIST), MNIST, "ylecun/mnist"),
    "emnist_letters": Published(
        "https://www.nist.gov/itl/products-and-services/emnist-dataset",
        ("gzip.zip",),
        {"gzip.zip": File("58c8d27c78d21e728a6bc7b3cc06412e")},
    ),
    "fashion_mnist": Published(
        "https://github.com/zalandoresearch/fashion-mnist",
        tuple(FASHION),
        FASHION | {"fashion_mnist.npz": File("c535ecffa67e2356b51371a57bad26ff4920241658c93839660c3e3ca1f35b06")},
        "zalando-datasets/fashion_mnist",
    ),
    "ag_news": Published(
        "https://github.com/mhjabreel/CharCnn_Keras/tree/master/data/ag_news_csv",
        ("train.csv", "test.csv"),
        {
            "train.csv": File("b1a00f826fdfbd249f79597b59e1dc12"),
            "test.csv": File("d52ea96a97a2d943681189a97654912d"),
            "train_subset.csv.gz": File("e897183178efd27dca40a30f4264d08092e09c054211b06453b55c69ab5c5b1b"),
            "test.csv.gz": File("833bd98f12b2ccd132b6ab29e8b13424681271d44ace4b7db2e683db9e1d8d11"),
        },
    ),
    "sst2": Published(
        "https://dl.fbaipublicfiles.com/glue/data/SST-2.zip",
        ("SST-2.zip",),
        {
            "SST-2.zip": File("9f81648d4199384278b86e315dac217c"),
            "glue_train_phrases.csv.gz": File("a1d7b403aea00c6acc13df0dd2fc8262ebb919c7bdf94f8f1ae3f036ce7e7df4"),
            "train_sentences.csv.gz": File("ae0a69cf46c6d2afe781de8a8e792e22c7958f27f2efe7f9216a8ecbbbff0c06"),
            "test.csv.gz": File("29f7d65122ffe61dda12fb7c1285b352126a45002626262ac07cf5b2f13496be"),
        },
    ),
    "iscx_vpn2016": Published(
        "https://www.unb.ca/cic/datasets/vpn.html",
        (),
        {"flows_15s.csv.gz": File("346e506aa7c62a6cbabdd25b289170dcca27d62d2ab41f5bf37eff9a511a7839")},
    ),
    "nsl_kdd": Published(
        "https://www.unb.ca/cic/datasets/nsl.html",
        (),
        {
            "train_20percent.csv.gz": File("f182a564db57650c74fedabddd0d021c7dab3a57e7980160159ef0f320cffb4d"),
            "test.csv.gz": File("d392e5890856a080d11043084d59f2c9fd29d878f7ca04a816b1b4e9630717e6"),
        },
    ),
}


def official(path: Path) -> File | None:
    """What is known of the published file of this name, in the nearest folder around it that is named after a set."""
    owner = next((folder.name for folder in path.parents if folder.name in PUBLISHED), "")
    return PUBLISHED[owner].files.get(path.name) if owner else None


def digest(path: Path, file: File) -> str:
    """The check-sum of a file, of the kind that is known of its original."""
    with path.open("rb") as content:
        return hashlib.file_digest(content, "md5" if file.kind == "MD5" else "sha256").hexdigest()


def differs(path: Path) -> str:
    """How a file differs from the published one of its name, in words; empty if it does not or cannot be told."""
    file = official(path)
    try:
        found = digest(path, file) if file is not None and path.is_file() else ""
    except OSError:
        return ""
    if file is None or not found or found == file.digest:
        return ""
    return f"its {file.kind} is {found}, that of the published file {file.digest}"


def altered(path: Path) -> bool:
    """Whether a file is as long as the published one and yet another: then it is that one, with wrong bytes in it.

    A file of any other length is one that somebody made, such as a part of the set, and is judged by what it holds.
    """
    file = official(path)
    return file is not None and bool(file.size) and path.stat().st_size == file.size and bool(differs(path))
