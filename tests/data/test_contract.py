"""What every listed data set promises: in miniature, in its authors' own format, and as the real one where it is."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from headwater.core.rng import stream
from headwater.data import DATASETS
from headwater.data.base import Data, Examples
from headwater.data.loading import load
from headwater.data.published import PUBLISHED
from headwater.errors import DataError
from miniatures import EMBEDDED, MINIATURES, Miniature

REAL = {
    "digits": (1438, 359, (1, 8, 8), 10),
    "toy2d": (900, 1500, (2,), 3),
    "fashion_mnist": (60_000, 10_000, (1, 28, 28), 10),
    "cifar10": (50_000, 10_000, (3, 32, 32), 10),
    "tiny_imagenet32": (8_000, 2_000, (3, 32, 32), 200),
    "ag_news": (37_436, 7_600, (128,), 4),
    "sst2": (67_349, 1_821, (128,), 2),
    "iscx_vpn2016": (15_007, 3_751, (23,), 14),
    "nsl_kdd": (25_192, 22_544, (41,), 5),
}
SEALED = [name for name, miniature in MINIATURES.items() if miniature.sealed]


@pytest.fixture(params=list(MINIATURES))
def name(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


def written(name: str, where: Path) -> tuple[Miniature, list[Path]]:
    """The miniature of a set below a data directory, and its files."""
    miniature = MINIATURES[name]
    folder = where / (miniature.folder or name)
    folder.mkdir(parents=True)
    miniature.write(folder)
    return miniature, sorted(path for path in folder.rglob("*") if path.is_file())


def same(one: Data, other: Data) -> bool:
    pairs = ((one.train, other.train), (one.test, other.test))
    alike = all(_equal(a.x, b.x) and torch.equal(a.y, b.y) for a, b in pairs)
    return alike and one.class_names == other.class_names


def _equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and torch.equal(torch.nan_to_num(a), torch.nan_to_num(b))


def _tried(name: str, where: Path) -> tuple[Data | None, str]:
    try:
        return load(name, where), ""
    except DataError as error:
        return None, str(error)


def check_samples(found: Data, part: Examples, kind: str) -> None:
    assert part.y.dtype == torch.int64
    assert tuple(part.x.shape) == (len(part.y), *found.shape)
    assert 0 <= int(part.y.min()) <= int(part.y.max()) < found.classes
    assert found.tokens == (kind == "tokens")
    if kind == "tokens":
        assert part.x.dtype == torch.int64
        assert int(part.x.min()) >= 0
    else:
        assert part.x.dtype.is_floating_point
    if kind == "image":
        assert part.x.dtype == torch.float32
        assert -1.0 <= float(part.x.min()) < float(part.x.max()) <= 1.0


def test_every_listed_set_has_a_miniature_or_comes_with_the_package() -> None:
    assert {*MINIATURES, *EMBEDDED} == set(DATASETS)


class TestMiniatures:
    def test_keeps_what_the_table_says(self, name: str, tmp_path: Path) -> None:
        miniature, _ = written(name, tmp_path)
        found = load(name, tmp_path)
        sizes = len(found), len(found.test), found.shape, found.classes
        assert sizes == (miniature.train, miniature.test, miniature.shape, miniature.classes)
        assert found.name == name
        assert len(set(found.class_names)) == len(found.class_names) == found.classes
        check_samples(found, found.train, miniature.kind)
        check_samples(found, found.test, miniature.kind)

    def test_is_the_same_every_time(self, name: str, tmp_path: Path) -> None:
        written(name, tmp_path)
        assert same(load(name, tmp_path), load(name, tmp_path))

    def test_reading_writes_nothing(self, name: str, tmp_path: Path) -> None:
        _, files = written(name, tmp_path)
        before = {path: path.read_bytes() for path in files}
        load(name, tmp_path)
        assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


class TestDamage:
    def test_a_file_with_something_else_in_it_is_named(self, name: str, tmp_path: Path) -> None:
        """As a server sends it that has moved."""
        _, files = written(name, tmp_path)
        for path in files:
            right = path.read_bytes()
            path.write_bytes(b"<html>\n<body>404 not found</body>\n</html>\n")
            with pytest.raises(DataError) as caught:
                load(name, tmp_path)
            assert path.name in str(caught.value)
            assert "damaged or incomplete" in str(caught.value)
            path.write_bytes(right)

    def test_an_empty_file_is_named(self, name: str, tmp_path: Path) -> None:
        _, files = written(name, tmp_path)
        for path in files:
            right = path.read_bytes()
            path.write_bytes(b"")
            with pytest.raises(DataError) as caught:
                load(name, tmp_path)
            assert path.name in str(caught.value)
            path.write_bytes(right)

    @pytest.mark.parametrize("name", SEALED)
    def test_a_file_that_ends_too_early_is_named(self, name: str, tmp_path: Path) -> None:
        _, files = written(name, tmp_path)
        for path in files:
            right = path.read_bytes()
            for kept in (len(right) // 3, len(right) * 9 // 10, len(right) - 1):
                path.write_bytes(right[:kept])
                with pytest.raises(DataError) as caught:
                    load(name, tmp_path)
                assert path.name in str(caught.value), kept
                assert "damaged or incomplete" in str(caught.value)
            path.write_bytes(right)

    @pytest.mark.parametrize("name", SEALED)
    def test_a_changed_byte_is_found_or_without_effect(self, name: str, tmp_path: Path) -> None:
        """It may stand in a name or a date; but no sample is ever another than it was."""
        _, files = written(name, tmp_path)
        right = load(name, tmp_path)
        noticed = 0
        for path in files:
            content = path.read_bytes()
            for place in stream(7, name, path.name).integers(0, len(content), 6):
                changed = bytearray(content)
                changed[place] ^= 0x55
                path.write_bytes(changed)
                found, said = _tried(name, tmp_path)
                assert path.name in said if found is None else same(found, right), (path.name, place)
                noticed += found is None
            path.write_bytes(content)
        assert noticed


class TestMissing:
    def test_says_what_to_get_from_where_and_where_to_put_it(self, name: str, tmp_path: Path) -> None:
        with pytest.raises(DataError) as caught:
            load(name, tmp_path)
        said = str(caught.value)
        assert said.startswith(name)
        assert "is not in the data directory" in said
        assert str(tmp_path / (MINIATURES[name].folder or name)) in said
        assert "get it from http" in said
        assert "--data-dir or HEADWATER_DATA" in said

    def test_says_which_check_sums_the_files_must_have(self, name: str, tmp_path: Path) -> None:
        known = PUBLISHED.get(name)
        if known is None or not known.get:
            pytest.skip(f"no check-sum of {name} is known")
        with pytest.raises(DataError) as caught:
            load(name, tmp_path)
        for file in known.get:
            assert f"{file} has {known.files[file].kind} {known.files[file].digest}" in str(caught.value)

    def test_offers_to_fetch_what_the_hub_has(self, name: str, tmp_path: Path) -> None:
        with pytest.raises(DataError) as caught:
            load(name, tmp_path)
        hub = PUBLISHED[name].hub if name in PUBLISHED else ""
        assert ("HEADWATER_FETCH=1" in str(caught.value)) == bool(hub)
        assert hub in str(caught.value)

    def test_one_file_of_several_is_missed(self, name: str, tmp_path: Path) -> None:
        """A set is read whole or not at all."""
        _, files = written(name, tmp_path)
        for path in files:
            right = path.read_bytes()
            path.unlink()
            with pytest.raises(DataError) as caught:
                load(name, tmp_path)
            assert path.name.removesuffix(".npz").removesuffix(".gz") in str(caught.value)
            path.write_bytes(right)


@pytest.mark.parametrize("name", list(REAL))
def test_the_real_ones(name: str, request: pytest.FixtureRequest) -> None:
    """Once only, since some take seconds to decode; that they are the same twice is tested on the miniatures."""
    folder: Path | None = None
    if name not in EMBEDDED:
        folder = request.getfixturevalue("real_data")
        if not (folder / name).is_dir():
            pytest.skip(f"{name} is not in the data directory")
    found = load(name, folder)
    assert (len(found), len(found.test), found.shape, found.classes) == REAL[name]
    assert len(set(found.class_names)) == len(found.class_names) == found.classes
    assert sorted(found.labels.unique().tolist()) == list(range(found.classes))
    kind = MINIATURES[name].kind if name in MINIATURES else "image" if name == "digits" else "flows"
    some = found.take(range(0, len(found), 97))
    for part in (some, found.test):
        check_samples(found, part, kind)
        if kind == "image":
            assert float(part.x.min()) == -1.0
            assert float(part.x.max()) == 1.0
