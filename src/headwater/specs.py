"""What a stage is asked to do: frozen, validated, printable, and a section of the configuration each.

Kept free of torch so that a configuration can be read and refused before anything heavy is imported.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from annotated_types import Ge, Gt
from pydantic import ConfigDict, model_validator
from pydantic.dataclasses import dataclass

STRICT = ConfigDict(extra="forbid", arbitrary_types_allowed=True)

Optimizer = Literal["sgd", "adam", "adamw"]
Mix = Literal["probs", "logits", "losses"]
Weights = Literal["samples", "uniform", "labels", "confidence", "learned"]
LowBit = Literal["none", "feedback", "straight-through"]
Restore = Literal["last", "best", "best_or_init"]
Positive = Annotated[float, Gt(0)]
NotNegative = Annotated[float, Ge(0)]
Count = Annotated[int, Ge(0)]
AtLeastOne = Annotated[int, Ge(1)]


@dataclass(frozen=True, config=STRICT, kw_only=True)
class Descent:
    """What training and distilling have in common. Either `epochs` or `steps` says how long."""

    epochs: Count | None = None
    steps: Count | None = None
    batch: AtLeastOne = 32
    optimizer: Optimizer = "sgd"
    lr: Positive = 0.1
    momentum: NotNegative = 0.0
    weight_decay: NotNegative = 0.0
    clip: Positive | None = None  # largest gradient norm

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if (self.epochs is None) == (self.steps is None):
            raise ValueError("give either epochs or steps, not both and not neither")
        if self.momentum and self.optimizer != "sgd":
            raise ValueError(f"momentum goes with optimizer 'sgd', not with {self.optimizer!r}")
        return self


@dataclass(frozen=True, config=STRICT, kw_only=True)
class LocalSpec(Descent):
    """Stage 1, training on a client's own labels."""

    drop_last: bool = False  # leave out an epoch's smaller last batch, as FedHEAD's code does for images
    lr_time_decay: NotNegative = 0.0  # lr / (1 + lr_time_decay · step), as FedHEAD's code uses its "weight decay"
    low_bit: LowBit = "none"  # weights of one bit, as in FedDF's table 4: by error feedback or straight through


@dataclass(frozen=True, config=STRICT, kw_only=True)
class DistillSpec(Descent):
    """Stage 3, a student taught by an ensemble. With `patience` set, training stops early on validation data."""

    batch: AtLeastOne = 64
    optimizer: Optimizer = "adam"
    lr: Positive = 1e-3
    schedule: Literal["constant", "cosine"] = "constant"
    temperature: Positive = 1.0
    t2: bool = False  # multiply the loss by temperature²
    mix: Mix = "probs"  # what is averaged over teachers
    weights: Weights = "samples"  # how much each teacher counts
    sharpen: Positive = 1.0  # the mean of probabilities to the power 1 / sharpen; FedBE has 0.5
    labelled: NotNegative = 0.0  # weight of a cross-entropy with the reference set's labels, where it has any
    metric: Literal["loss", "accuracy"] = "loss"  # on the validation set
    patience: AtLeastOne | None = None  # in epochs, or in steps when `steps` is given
    eval_every: AtLeastOne | None = None  # same unit; 1 epoch or 100 steps when unset
    min_delta: NotNegative = 0.0
    restore: Restore = "last"
    swa_from: Count | None = None  # the result is the mean of the student's weights from this step on
    swa_every: AtLeastOne = 25  # steps from one of them to the next

    @model_validator(mode="after")
    def _can_be_done(self) -> Self:
        if self.weights == "labels" and self.mix == "logits":
            raise ValueError("weights = 'labels' weighs probabilities class by class; use mix = 'probs' with it")
        if self.sharpen != 1 and self.mix != "probs":
            raise ValueError(f"sharpen works on the mean of probabilities; use mix = 'probs' with it, not {self.mix!r}")
        if self.swa_from is not None and self.restore != "last":
            raise ValueError(
                f"swa_from averages weights along the way, so no single step can be restored; use restore = 'last' "
                f"with it, not {self.restore!r}"
            )
        return self

    @property
    def judged(self) -> bool:
        """Whether validation decides anything."""
        return self.patience is not None or self.restore != "last"


# What a stage of a method built by hand is until somebody says more; a run then lets it follow the data.
LOCAL, DISTILL = LocalSpec(epochs=5), DistillSpec(epochs=10)
