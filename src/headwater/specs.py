"""Settings of the training stages: frozen, validated dataclasses, each a section of the configuration.

Free of torch, so that a configuration can be checked before anything heavy is imported.
"""

from __future__ import annotations

import math
from abc import ABCMeta
from dataclasses import replace
from typing import Annotated, Any, Literal, Self

from annotated_types import Ge, Gt
from pydantic import ConfigDict, ValidationError, model_validator
from pydantic.dataclasses import dataclass

from headwater.errors import ConfigError, nearest

STRICT = ConfigDict(extra="forbid", arbitrary_types_allowed=True)

Optimizer = Literal["sgd", "adam", "adamw"]
Mix = Literal["probs", "logits", "losses"]
Weights = Literal["samples", "uniform", "labels", "confidence", "learned", "agreement"]
LrSchedule = Literal["constant", "step", "cosine", "time", "shared-counter"]
Augment = Literal["none", "flip", "crop-flip"]
LowBit = Literal["none", "feedback", "straight-through"]
Restore = Literal["last", "best", "best_or_init"]
SecureMode = Literal["none", "sectors", "server", "both"]
RobustRule = Literal["none", "median", "trimmed-mean", "krum", "multi-krum", "geometric-median", "norm-bound"]
AttackKind = Literal["none", "label-flip", "sign-flip", "scale", "gaussian", "backdoor", "lying-leader", "lying-host"]
NoiseAt = Literal["client", "sector", "server"]
Positive = Annotated[float, Gt(0)]
NotNegative = Annotated[float, Ge(0)]
Count = Annotated[int, Ge(0)]
AtLeastOne = Annotated[int, Ge(1)]
LEARNING_RATE = {"sgd": 0.1, "adam": 1e-3, "adamw": 1e-3}  # what is used if none is set


class CheckedArguments(ABCMeta):
    """Metaclass of methods and specs: a wrong argument is a `ConfigError` in one sentence, not pydantic's error."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().__call__(*args, **kwargs)
        except ValidationError as error:
            raise ConfigError(_sentence(cls, error)) from None


def _sentence(kind: type, error: ValidationError) -> str:
    first = error.errors()[0]
    given, accepted = repr(first["input"]), [*getattr(kind, "__pydantic_fields__", {})]
    # pydantic numbers an argument that was given by position.
    where = [accepted[part] if isinstance(part, int) and part < len(accepted) else str(part) for part in first["loc"]]
    key = ".".join(where)
    if first["type"] == "unexpected_keyword_argument":
        return f"{kind.__name__} has no setting {key!r}{nearest(key, accepted)} (accepted: {', '.join(accepted)})"
    if first["type"] == "unexpected_positional_argument":
        return f"{kind.__name__} takes its settings by name, got {given[:70]} (accepted: {', '.join(accepted)})"
    if first["type"] == "missing":
        return f"{kind.__name__} needs {key}, which was not given (accepted: {', '.join(accepted)})"
    if not key:  # a check of several settings together
        return f"{kind.__name__}: {first['msg'].removeprefix('Value error, ')}"
    wanted = first["msg"].removeprefix("Input ").removeprefix("Value error, ")
    return f"{kind.__name__}: {key} {wanted}, got {given if len(given) <= 70 else given[:67] + '...'}"


@dataclass(frozen=True, config=STRICT, kw_only=True)
class Descent(metaclass=CheckedArguments):
    """Gradient descent: what local training and distillation have in common.

    Args:
        epochs: passes over the data; give either this or `steps`.
        steps: gradient steps; give either this or `epochs`.
        batch: samples per step.
        optimizer: the update rule.
        lr: learning rate; that of the first round if there is a schedule.
        lr_schedule: learning rate of later rounds. "step": multiplied by `lr_factor` every `lr_every` rounds. "cosine":
            falls along half a cosine over the run's rounds. "time": lr / (1 + lr_decay · rounds done).
            "shared-counter": lr / (1 + lr_time_decay · steps), where the steps of all trainings so far count: those of
            earlier rounds, and in a round first those of the clients in tree order, then those of the leaders, then
            those of the server. A distillation counts as if it did not stop early.
        lr_factor: factor of "step".
        lr_every: rounds from one "step" to the next.
        lr_decay: decay per round of "time".
        lr_time_decay: the learning rate is lr / (1 + lr_time_decay · step), as FedHEAD's code uses its "weight decay".
            Steps are counted from the beginning of a training or, with "shared-counter", from that of the run.
        momentum: of SGD.
        weight_decay: factor of the weights that is added to the gradient (Adam, SGD) or subtracted (AdamW).
        clip: largest norm of a gradient; None: not clipped.
    """

    epochs: Count | None = None
    steps: Count | None = None
    batch: AtLeastOne = 32
    optimizer: Optimizer = "sgd"  # of a stage built in Python; a run that leaves it open takes Adam or the method's own
    lr: Positive = 0.1
    lr_schedule: LrSchedule = "constant"
    lr_factor: Positive = 0.5
    lr_every: AtLeastOne = 10
    lr_decay: NotNegative = 0.1
    lr_time_decay: NotNegative = 0.0
    momentum: NotNegative = 0.0
    weight_decay: NotNegative = 0.0
    clip: Positive | None = None

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if (self.epochs is None) == (self.steps is None):
            raise ValueError("give either epochs or steps, not both and not neither")
        if self.momentum and self.optimizer != "sgd":
            raise ValueError(f"momentum goes with optimizer 'sgd', not with {self.optimizer!r}")
        if self.lr_schedule == "shared-counter" and not self.lr_time_decay:
            raise ValueError(
                "lr_schedule = 'shared-counter' divides the rate by 1 + lr_time_decay · steps; give lr_time_decay, for "
                "example 1e-4"
            )
        return self

    def in_round(self, number: int, rounds: int) -> Self:
        """The stage with the learning rate of a round.

        Args:
            number: number of the round, from 1.
            rounds: rounds of the run.
        """
        done = number - 1
        if self.lr_schedule in ("constant", "shared-counter") or not done:
            return self
        if self.lr_schedule == "step":
            factor = self.lr_factor ** (done // self.lr_every)
        elif self.lr_schedule == "cosine":
            factor = 0.5 * (1 + math.cos(math.pi * done / rounds))
        else:
            factor = 1 / (1 + self.lr_decay * done)
        return replace(self, lr=self.lr * factor)

    def after(self, steps: int) -> Self:
        """The stage with the learning rate that "shared-counter" has after so many steps; others stay as they are."""
        if self.lr_schedule != "shared-counter" or not steps:
            return self
        slower = 1 + self.lr_time_decay * steps
        return replace(self, lr=self.lr / slower, lr_time_decay=self.lr_time_decay / slower)


@dataclass(frozen=True, config=STRICT, kw_only=True)
class LocalSpec(Descent):
    """Stage 1: training on a client's own labelled rows.

    Args:
        drop_last: leave out the smaller last batch of an epoch, as FedHEAD's code does for images.
        augment: random changes of training images: mirrored, or also moved by up to an eighth of their size.
        low_bit: one-bit weights, as in FedDF's table 4: by error feedback or straight through. `fedavg`, `fedprox` and
            `feddf` send such models packed, a bit per weight.
    """

    drop_last: bool = False
    augment: Augment = "none"
    low_bit: LowBit = "none"


@dataclass(frozen=True, config=STRICT, kw_only=True)
class DistillSpec(Descent):
    """Stage 3: distillation of an ensemble into a student. With `patience`, it stops early on validation data.

    Args:
        schedule: of the learning rate.
        temperature: softmax temperature of teachers and student.
        t2: multiply the loss by temperature².
        mix: what is averaged over teachers.
        weights: how much each teacher counts.
        sharpen: raise the mean of probabilities to the power 1 / sharpen; FedBE has 0.5.
        labelled: weight of a cross-entropy with the reference set's labels, where it has any.
        metric: what is measured on the validation set.
        patience: epochs (steps, if `steps` is given) without improvement after which it stops; None: it does not.
        eval_every: epochs (steps) from one validation to the next; None: 1 epoch or 100 steps.
        min_delta: smallest change that counts as an improvement.
        restore: the result: the last student, the one with the best validation, or the best of these and the start.
        when: distil "always" or, with "better-teacher", only if the teachers together are more accurate on the
            validation set than the start, which is the result otherwise.
        augment: random changes of the images that are distilled on, as in `[local]`. Teachers are then asked anew about
            every batch instead of once about every image.
        swa_from: average the student's weights from this step on; None: no averaging.
        swa_every: steps from one averaged set of weights to the next.
    """

    batch: AtLeastOne = 64
    optimizer: Optimizer = "adam"
    lr: Positive = 1e-3
    schedule: Literal["constant", "cosine"] = "constant"
    temperature: Positive = 1.0
    t2: bool = False
    mix: Mix = "probs"
    weights: Weights = "samples"
    sharpen: Positive = 1.0
    labelled: NotNegative = 0.0
    metric: Literal["loss", "accuracy"] = "loss"
    patience: AtLeastOne | None = None
    eval_every: AtLeastOne | None = None
    min_delta: NotNegative = 0.0
    restore: Restore = "last"
    when: Literal["always", "better-teacher"] = "always"
    augment: Augment = "none"
    swa_from: Count | None = None
    swa_every: AtLeastOne = 25

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
        """True if validation data decides which weights are returned or when training stops."""
        return self.patience is not None or self.restore != "last"


# Default stages of a method that is built in Python. A run treats them as left open, so they adapt to the data.
LOCAL, DISTILL = LocalSpec(epochs=5), DistillSpec(epochs=10)
