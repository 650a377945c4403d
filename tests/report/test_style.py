"""Colours that everybody can tell apart, in both themes."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from headwater.report import style

# Machado, Oliveira and Fernandes 2009, severity 1: what linear red, green and blue become for three kinds of eyes
SIGHT = {
    "normal": np.eye(3),
    "red-blind": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "green-blind": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
}
TO_CONES = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
TO_OKLAB = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)
THEMES = pytest.mark.parametrize("theme", [style.LIGHT, style.DARK], ids=["light", "dark"])


def linear(colour: str) -> np.ndarray:
    parts = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def contrast(one: str, other: str) -> float:
    """As the accessibility guidelines define it."""
    dark, light = sorted(float(linear(each) @ [0.2126, 0.7152, 0.0722]) for each in (one, other))
    return (light + 0.05) / (dark + 0.05)


@THEMES
@pytest.mark.parametrize("sight", SIGHT)
def test_any_two_curves_differ_for_all_eyes(theme, sight):
    seen = [TO_OKLAB @ np.cbrt(TO_CONES @ np.clip(SIGHT[sight] @ linear(each), 0, 1)) for each in theme.colours]
    assert min(100 * np.linalg.norm(one - other) for one, other in combinations(seen, 2)) > 12


@THEMES
def test_everything_stands_out_from_its_background(theme):
    assert min(contrast(each, theme.surface) for each in (*theme.colours, theme.dots, theme.wrong)) > 3
    assert min(contrast(each, back) for each in (theme.ink, theme.muted) for back in (theme.surface, theme.page)) > 4.5
    assert contrast(theme.colours[0], theme.page) > 4.5, "the name above the title is text"


@THEMES
@pytest.mark.parametrize("share", [0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.501, 0.6, 0.8, 1.0])
def test_figures_in_a_matrix_are_readable_on_every_shade(theme, share):
    depth, strong = style.shade(share)
    for paint in (theme.dots, theme.wrong):
        mixed = [
            depth * int(paint[at : at + 2], 16) + (1 - depth) * int(theme.surface[at : at + 2], 16) for at in (1, 3, 5)
        ]
        shade = "#" + "".join(f"{round(part):02x}" for part in mixed)
        assert contrast(theme.on_dots if strong else theme.ink, shade) > 4.5


def test_no_two_of_two_dozen_curves_look_alike():
    assert len({style.look(slot) for slot in range(24)}) == 24


def test_classes_get_different_colours_from_dark_to_light():
    found = [style.ramp(at, 10) for at in range(10)]
    light = [float(linear(each) @ [0.2126, 0.7152, 0.0722]) for each in found]
    assert light == sorted(light)
    assert len({*found}) == 10
    assert style.ramp(0, 1) == found[0]


def test_both_themes_declare_the_same_names():
    light, dark = style.variables().split("@media")
    names = [{part.split(":")[0].strip() for part in text.split("--")[1:]} for text in (light, dark)]
    assert names[0] == names[1]
    assert {"c5", "surface", "on-dots"} <= names[0]
