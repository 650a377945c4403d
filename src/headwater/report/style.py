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
    return f":root{{{_declare(LIGHT)}}}\n@media (prefers-color-scheme:dark){{:root{{{_declare(DARK)}}}}}\n"


def curve_rules() -> str:
    """CSS rules: one class per colour and per dash."""
    colours = "".join(f".c{at}{{--own:var(--c{at})}}" for at in range(len(LIGHT.colours)))
    dashes = "".join(
        f".d{at}{{stroke-dasharray:{' '.join(map(str, dash)) or 'none'}}}" for at, dash in enumerate(DASHES)
    )
    return f"{colours}\n{dashes}\n"


def classes(slot: int) -> str:
    """CSS classes of curve number `slot`."""
    colour, dash = look(slot)
    return f"c{colour} d{DASHES.index(dash)}"


def _declare(theme: Theme) -> str:
    named = ("page", "surface", "ink", "muted", "line", "grid", "dots", "wrong")
    plain = "".join(f"--{name}:{getattr(theme, name)};" for name in named)
    return (
        plain + f"--on-dots:{theme.on_dots};" + "".join(f"--c{at}:{value};" for at, value in enumerate(theme.colours))
    )
