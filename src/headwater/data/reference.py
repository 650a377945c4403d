"""What a run asks of its reference set. Free of torch, so that what cannot be is refused before anything is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headwater.data import DATASETS
from headwater.errors import ConfigError, nearest

HOLDOUT, NOISE, GENERATOR = "holdout", "noise", "generator"
WORDS = (HOLDOUT, NOISE, GENERATOR)
KINDS = ("uniform", "gaussian")


@dataclass(frozen=True, kw_only=True)
class Reference:
    """`source` is one of the three words, a data set's name, a path or "package.module:function".

    `classes` (how many, or which; empty for all) and `fraction` narrow a source that is a set of samples. Of "holdout"
    they leave out a part of what was set aside: the clients' data is the same whatever they say.
    """

    source: str = HOLDOUT
    size: int = 5000  # at most
    noise: str = "uniform"
    classes: int | Sequence[int] = ()
    fraction: float = 1.0
    labelled: bool = False  # the labels of a source of the user's own number the same classes as the clients' data

    def __post_init__(self) -> None:
        if self.size < 0:
            raise ConfigError(f"data.reference_size must be 0 or more, got {self.size}; 0 means no reference set")
        if self.noise not in KINDS:
            raise ConfigError(
                f"data.reference_noise must be {' or '.join(map(repr, KINDS))}, "
                f"got {self.noise!r}{nearest(self.noise, KINDS)}"
            )
        if not 0 < self.fraction <= 1:
            raise ConfigError(
                f"data.reference_fraction must be above 0 and at most 1, got {self.fraction}; 1 uses the whole source"
            )
        if not well_formed(self.classes):
            raise ConfigError(
                "data.reference_classes must say how many classes, at least 1, or list class numbers from 0 on, each "
                f"once, got {self.classes!r}"
            )
        if not isinstance(self.classes, int):
            object.__setattr__(self, "classes", tuple(self.classes))
        if self.noise != KINDS[0] and self.source != NOISE:
            raise ConfigError(
                f"data.reference_noise = {self.noise!r} has no effect, since data.reference is {self.source!r}; "
                "set data.reference = 'noise' or remove it"
            )
        if self.source in (NOISE, GENERATOR):
            self.check_drawn()
            if self.labelled:
                raise ConfigError(
                    f"data.reference_labelled = true needs a source with labels, and {self.source!r} has none; "
                    "use 'holdout', a file or function of your own, or remove it"
                )
        if self.labelled and self.source in DATASETS:
            raise ConfigError(
                f"data.reference_labelled = true cannot be for {self.source!r}, whose labels number classes of its "
                "own; use 'holdout', a file or function of your own, or remove it"
            )

    @property
    def narrowed(self) -> bool:
        """Whether a part of the source's samples is left out on purpose."""
        return self.classes != () or self.fraction < 1

    def check_drawn(self) -> None:
        """Refuse what only a set of samples can have, for a source that is drawn in any number."""
        if self.classes != ():
            raise ConfigError(
                f"data.reference_classes picks samples by their labels, but {self.source!r} is drawn without looking "
                "at classes; name a data set as data.reference or remove it"
            )
        if self.fraction < 1:
            raise ConfigError(
                f"data.reference_fraction is a share of a set of samples, but {self.source!r} is drawn in any number; "
                "say how many with data.reference_size"
            )


def well_formed(classes: int | Sequence[int]) -> bool:
    """Whether this is a number of classes or a list of different class numbers."""
    if isinstance(classes, int):
        return classes >= 1
    return len(set(classes)) == len(classes) and all(number >= 0 for number in classes)
