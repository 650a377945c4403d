"""Colours and dashes of all figures, on the page and in PNG files.

The six colours were found by a search: any two are distinct (in OKLab) for readers with normal, red-blind and
green-blind sight, and each has a contrast of at least 3:1 to its background. A seventh curve has the first colour again
with a dash, so that two curves never differ in nothing.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Theme:
    page: str
    surface: str  # behind charts and tables
    ink: str
    muted: str  # secondary text
    line: str  # borders and axes
    grid: str
    colours: tuple[str, ...]
    dots: str  # amounts: dots of a split, correct predictions of a confusion matrix
    wrong: str  # wrong predictions
    on_dots: str  # text on a dark cell


LIGHT = Theme(
    page="#f5f6f8",
    surface="#ffffff",
    ink="#1a2027",
    muted="#525c68",
    line="#cdd3da",
    grid="#e7eaee",
    colours=("#2067da", "#da6600", "#1ea28f", "#943b84", "#554f00", "#341d5e"),
    dots="#114a9f",
    wrong="#963a00",
    on_dots="#ffffff",
)
DARK = Theme(
    page="#0e1217",
    surface="#161b22",
    ink="#e8ecf1",
    muted="#a3aebb",
    line="#39424d",
    grid="#252c35",
    colours=("#1881f1", "#fe8c2c", "#67fded", "#c35890", "#f5e717", "#b9aefd"),
    dots="#5aa3ff",
    wrong="#ff8a3d",
    on_dots="#0e1217",
)
DASHES = ((), (7, 4), (2, 4), (10, 4, 2, 4))  # lengths in pixels; solid first


RAMP = ((68, 1, 84), (65, 68, 135), (42, 120, 142), (34, 168, 132), (122, 209, 81), (253, 231, 37))


def look(slot: int) -> tuple[int, tuple[int, ...]]:
    """Colour number and dash of curve number `slot`."""
    return slot % len(LIGHT.colours), DASHES[slot // len(LIGHT.colours) % len(DASHES)]


def shade(share: float) -> tuple[float, bool]:
    """Opacity of a cell of a confusion matrix, and whether its text has the colour for dark cells.

    Small shares are emphasised, since the matrix is read for errors. Above one half there is a step: it marks the
    main prediction of a class, and avoids middle tones, on which neither dark nor light text is readable.
    """
    return (0.5 * (2 * share) ** 0.7, False) if share <= 0.5 else (0.85 + 0.3 * (share - 0.5), True)


def variables() -> str:
    """Both themes as CSS custom properties; the system's colour scheme chooses."""
    light, dark = ("".join(f"--{name}:{value};" for name, value in named(theme).items()) for theme in (LIGHT, DARK))
    return f":root{{{light}}}\n@media (prefers-color-scheme:dark){{:root{{{dark}}}}}\n"


def named(theme: Theme) -> dict[str, str]:
    """The colours of a theme by the name of their CSS custom property."""
    plain = {name.replace("_", "-"): value for name, value in vars(theme).items() if name != "colours"}
    return plain | {f"c{at}": value for at, value in enumerate(theme.colours)}


def ramp(at: int, of: int) -> str:
    """Colour of class `at` of `of`, from dark blue to yellow (viridis), which colour-blind readers can order, too."""
    place = at / max(of - 1, 1) * (len(RAMP) - 1)
    low = min(int(place), len(RAMP) - 2)
    return "#" + "".join(
        f"{round(a + (b - a) * (place - low)):02x}" for a, b in zip(RAMP[low], RAMP[low + 1], strict=True)
    )
