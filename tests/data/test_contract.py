"""Every listed data set keeps the contract: in miniature, in its authors' format, and the real one if it is there."""

from __future__ import annotations

from pathlib import Path

import pytest

import chosen
from data.contract import check_damage, check_miniature, check_missing, check_samples, same, write_miniature
from headwater.core.rng import stream
from headwater.data import DATASETS
from headwater.data.base import Data
from headwater.data.files import published
from headwater.data.loading import load
from headwater.errors import DataError
from miniatures import EMBEDDED, MINIATURES

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


def written(name: str, where: Path) -> list[Path]:
    return write_miniature(name, MINIATURES[name], where)


def _tried(name: str, where: Path) -> tuple[Data | None, str]:
    try:
        return load(name, where), ""
    except DataError as error:
        return None, str(error)


def test_every_listed_set_is_tested() -> None:
    """In miniature here, as embedded, or in a test file of its own that calls `check_listed`."""
    here = Path(__file__).parent / "datasets"
    for name in set(DATASETS) - {*MINIATURES, *EMBEDDED}:
        assert (here / f"test_{name}.py").is_file(), f"write {here / f'test_{name}.py'} with check_listed"


def test_miniatures_are_read(name: str, tmp_path: Path) -> None:
    check_miniature(name, MINIATURES[name], tmp_path)


class TestDamage:
    def test_a_file_with_something_else_in_it_is_named(self, name: str, tmp_path: Path) -> None:
        """Such as the error page of a server."""
        page = b"<html>\n<body>404 not found</body>\n</html>\n"
        check_damage(name, written(name, tmp_path), tmp_path, page, "damaged or incomplete")

    def test_an_empty_file_is_named(self, name: str, tmp_path: Path) -> None:
        check_damage(name, written(name, tmp_path), tmp_path, b"")

    @pytest.mark.parametrize("name", SEALED)
    def test_a_file_that_ends_too_early_is_named(self, name: str, tmp_path: Path) -> None:
        files = written(name, tmp_path)
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
        files = written(name, tmp_path)
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
        check_missing(name, MINIATURES[name], tmp_path)

    def test_says_which_check_sums_the_files_must_have(self, name: str, tmp_path: Path) -> None:
        known = published(name)
        if not known.get:
            pytest.skip(f"no check-sum of {name} is known")
        with pytest.raises(DataError) as caught:
            load(name, tmp_path)
        for file in known.get:
            assert f"{file} has {known.files[file].kind} {known.files[file].digest}" in str(caught.value)

    def test_offers_to_fetch_what_the_hub_has(self, name: str, tmp_path: Path) -> None:
        with pytest.raises(DataError) as caught:
            load(name, tmp_path)
        hub = published(name).hub
        assert ("HEADWATER_FETCH=1" in str(caught.value)) == bool(hub)
        assert hub in str(caught.value)

    def test_one_file_of_several_is_missed(self, name: str, tmp_path: Path) -> None:
        """A set is read whole or not at all."""
        files = written(name, tmp_path)
        for path in files:
            right = path.read_bytes()
            path.unlink()
            with pytest.raises(DataError) as caught:
                load(name, tmp_path)
            assert path.name.removesuffix(".npz").removesuffix(".gz") in str(caught.value)
            path.write_bytes(right)


@pytest.mark.parametrize("name", chosen.first(REAL, REAL.keys() - {"cifar10", "ag_news", "sst2"}))  # seconds each
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
