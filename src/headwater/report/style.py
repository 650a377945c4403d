"""One look for every figure: the page, its style sheet and the PNG files take colours and dashes from here.

The colours were searched for, not picked: six hues of which any two stay apart (in OKLab) for readers with normal,
red-blind and green-blind sight, and which all stand out from their background by 3:1 or more. A seventh curve takes the
first colour again with a dash, so that colour alone never has to tell methods apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Theme:
    page: str
    surface: str  # behind charts and tables
    ink: str
    muted: str  # secondary text
    line: str  # borders and axes
    grid: str
    colours: tuple[str, ...]
    dots: str  # quantities: split figure and the right answers of a confusion matrix
    wrong: str  # the wrong answers
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
    """Colour number and dash of the curve with this number."""
    return slot % len(LIGHT.colours), DASHES[slot // len(LIGHT.colours) % len(DASHES)]


def shade(share: float) -> tuple[float, bool]:
    """How opaque a cell of a matrix is, and whether it takes the text colour for strong cells.

    Small shares are lifted, as errors are what the picture is for. Above a half there is a step: it shows where most
    of a class goes, and leaves out the middle tones, on which neither dark nor light figures can be read well.
    """
    return (0.5 * (2 * share) ** 0.7, False) if share <= 0.5 else (0.85 + 0.3 * (share - 0.5), True)


def variables() -> str:
    """Both themes as CSS custom properties; the reader's system chooses."""
    return f":root{{{_declare(LIGHT)}}}\n@media (prefers-color-scheme:dark){{:root{{{_declare(DARK)}}}}}\n"


def curve_rules() -> str:
    """A class for every colour and every dash."""
    colours = "".join(f".c{at}{{--own:var(--c{at})}}" for at in range(len(LIGHT.colours)))
    dashes = "".join(
        f".d{at}{{stroke-dasharray:{' '.join(map(str, dash)) or 'none'}}}" for at, dash in enumerate(DASHES)
    )
    return f"{colours}\n{dashes}\n"


def classes(slot: int) -> str:
    """The classes of curve number `slot`."""
    colour, dash = look(slot)
    return f"c{colour} d{DASHES.index(dash)}"


def legend(figure: Any, handles: Sequence[Any]) -> None:
    """Above a drawing of matplotlib's, in as many columns as there is room for, four at most."""
    for columns in range(min(4, len(handles)), 0, -1):
        drawn = figure.legend(handles=handles, loc="outside upper center", ncols=columns, frameon=False)
        if columns == 1 or drawn.get_window_extent().width <= figure.bbox.width:
            return
        drawn.remove()


def _declare(theme: Theme) -> str:
    named = ("page", "surface", "ink", "muted", "line", "grid", "dots", "wrong")
    plain = "".join(f"--{name}:{getattr(theme, name)};" for name in named)
    return (
        plain + f"--on-dots:{theme.on_dots};" + "".join(f"--c{at}:{value};" for at, value in enumerate(theme.colours))
    )
