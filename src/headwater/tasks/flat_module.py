"""One module whose parameters, buffers and gradients are views of flat vectors.

Loading a model is one copy, an optimiser step works on one tensor, and a correction or a clip is one operation.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from functools import partial
from math import prod

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headwater.core.params import Layout, Params, cut, held_parts, set_training
from headwater.core.rng import derive
from headwater.errors import OutputError
from headwater.models.base import ModelSpec
from headwater.models.parts import classifier_of, extractor_of, layers_before
from headwater.tasks.batched.threads import Helpers
from headwater.tasks.bn_folding import twin_of
from headwater.tasks.devices import CPU
from headwater.tasks.frozen_part import FeatureTables, FrozenPart

BATCH = 64  # rows of one forward pass: more do not fit the cache
FLAT_BATCH = 1024  # where it has linear layers only
LARGE = 256 << 20  # bytes of a table that is held in memory
_BATCH_NORM = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


class FlatModule:
    """A module whose parameters, buffers and gradients are views of flat vectors.

    Args:
        spec: how to build the module.
        arch: name of its architecture.
        device: where it computes.
        precision: of forward passes: "float32", or "bfloat16" for those operations that torch's autocast chooses.
        frozen: what models of this architecture never change; None for what the module is built with.

    Attributes:
        module: the module itself.
        vector: all parameters and float buffers that may change.
        flat: the trainable parameters, as one parameter.
        grad: their gradient.
        fixed: whether the extractor never changes.
    """

    def __init__(
        self,
        spec: ModelSpec,
        arch: str,
        device: torch.device = CPU,
        precision: str = "float32",
        frozen: FrozenPart | None = None,
    ) -> None:
        with torch.random.fork_rng(devices=[]):
            # What is drawn here is overwritten by the first load. `torch.manual_seed` would take milliseconds to tell
            # devices that are not used.
            torch.default_generator.manual_seed(derive(0, "bench"))  # the name of the stream fixes its numbers
            self.module = spec.build()
        self._head, self._channel_first = spec.head, spec.channel_first
        self._autocast = None if precision == "float32" else partial(torch.autocast, device.type, torch.bfloat16)
        start = Params.of(self.module, arch, spec.buffers)
        self.layout: Layout = start.layout
        if device != CPU:
            self.module.to(device)
        self.vector, self.counters = start.vector.to(device, copy=True), start.counters.to(device, copy=True)
        self.flat = nn.Parameter(self.vector[: self.layout.size])
        self.grad = torch.zeros_like(self.flat)
        self.flat.grad = self.grad
        weights, grads = cut(self.flat.data, self.layout.trainable), cut(self.grad, self.layout.trainable)
        rest = cut(self.vector[self.layout.size :], self.layout.floats) | cut(self.counters, self.layout.counters)
        if self.layout.frozen and frozen is not None:
            rest |= {name: tensor.to(device) for name, tensor in frozen.tensors.items()}
        for name, parameter in self.module.named_parameters():
            if name in weights:
                parameter.data, parameter.grad = weights[name], grads[name]
            elif name in rest:  # frozen: out of the optimiser's reach
                parameter.data = rest.pop(name)
        for name, view in rest.items():
            owner, _, leaf = name.rpartition(".")
            self.module.get_submodule(owner)._buffers[leaf] = view
        self._alone: bool | None = None  # whether the last training batch had one row
        self.fixed, self._tables = spec.freeze == "extractor", FeatureTables() if frozen is None else frozen.tables
        self._held = held_parts(self.module)
        self._leading = next(part for part in self.module.modules() if part not in self._held)  # shows the mode
        self._norms = [m for m in self.module.modules() if isinstance(m, _BATCH_NORM)]
        own = getattr(self.module, "loss", None)
        self._own_loss: Callable[[Tensor, Tensor], Tensor] | None = own if callable(own) else None
        self._twin = twin_of(self.module)
        flat = all(
            isinstance(m, nn.Linear | nn.BatchNorm1d) for m in self.module.modules() if list(m.parameters(False))
        )
        self._batch = FLAT_BATCH if flat else BATCH

    def load(self, params: Params) -> FlatModule:
        """Copy a model into the module."""
        if params.layout.trainable != self.layout.trainable:
            raise ValueError(f"a model of architecture {params.layout.arch!r} does not fit {self.layout.arch!r}")
        self.vector.copy_(params.vector)
        self.counters.copy_(params.counters)
        return self

    def params(self, weight: float) -> Params:
        """A copy of the model that the module holds."""
        return Params(self.vector.clone(), self.counters.clone(), self.layout, weight)

    def train(self, batch: int) -> None:
        """Training mode. For a batch of one row, which has no variance, batch norm uses its running statistics."""
        alone = batch == 1
        if self._alone is alone and self._leading.training:  # setting the mode of all parts is slow
            return
        set_training(self.module, self._held)
        if alone:
            for norm in self._norms:
                norm.eval()
        self._alone = alone

    def __call__(self, x: Tensor) -> Tensor:
        output: Tensor = self._forward(self.module, self.laid_out(x))
        return output

    def _forward(self, net: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """What a part of the module returns, in the type of the parameters."""
        if self._autocast is None:
            return net(x)
        with self._autocast():
            return net(x).to(self.vector.dtype)

    def laid_out(self, x: Tensor) -> Tensor:
        """Images in the memory layout with the channel last, which is fastest, if the module can take it."""
        if x.dim() != 4:
            return x
        kind = torch.contiguous_format if self._channel_first else torch.channels_last
        x = x.contiguous(memory_format=kind)
        _, c, h, w = x.shape
        strides = (c * h * w, h * w, w, 1) if self._channel_first else (c * h * w, 1, c * w, c)
        # Those of an axis of length one are arbitrary, but kernels are chosen by them: results must not depend on where
        # rows came from.
        return x if x.stride() == strides else x.as_strided(x.shape, strides)

    def weights(self) -> Tensor:
        """All trainable parameters as one vector that gradients flow through."""
        return torch.cat([p.reshape(-1) for p in self.module.parameters() if p.requires_grad])

    def features(self, x: Tensor) -> Tensor:
        """Outputs of the extractor, for a model in two parts."""
        return self._forward(extractor_of(self.module, self._head), self.laid_out(x))

    def classify(self, features: Tensor) -> Tensor:
        """Logits of the classifier for features."""
        output: Tensor = self._forward(self.classifier, features)
        return output

    @property
    def classifier(self) -> nn.Module:
        return classifier_of(self.module, self._head)

    def layers(self, method: str) -> nn.Module:
        """The extractor as a sequence of layers; raises ConfigError if it is none."""
        return layers_before(self.module, self._head, method)

    def head(self, model: Params) -> dict[str, Tensor]:
        """Tensors of a model's classifier, by their names in the classifier."""
        names = {id(t): name for name, t in (*self.module.named_buffers(), *self.module.named_parameters())}
        own, tensors = self.classifier, model.named()  # in which no part of it is frozen
        return {leaf: tensors[names[id(t)]] for leaf, t in (*own.named_parameters(), *own.named_buffers())}

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        """Cross-entropy, unless the module brings a `loss(outputs, y)` of its own."""
        return self._own_loss(output, y) if self._own_loss else F.cross_entropy(output, y)

    def outputs(self, x: Tensor, batch: int | None = None, helpers: Helpers | None = None) -> Tensor:
        """Logits for all inputs in evaluation mode.

        Args:
            x: inputs.
            batch: rows of one pass.
            helpers: threads that share the batches.
        """
        if self.fixed:
            x, net = self.represent(x, helpers=helpers), self.classifier.eval()
            return self._table(net, x, batch)
        return self._table(self._judging(), x, batch, helpers)

    def represent(self, x: Tensor, batch: int | None = None, helpers: Helpers | None = None) -> Tensor:
        """Features of all inputs in evaluation mode; known ones if the extractor never changes."""

        def features() -> Tensor:
            layer = self.classifier  # one layer for both: it is never folded
            return self._table(extractor_of(self._judging(), self._head, layer), x, batch, helpers)

        return self._tables.of(x, features) if self.fixed else features()

    def shortened(self, x: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """Rows to train on and what gives their logits: features and the classifier, if the extractor never changes."""
        return (self.represent(x), self.classify) if self.fixed else (self.laid_out(x), self)

    def _judging(self) -> nn.Module:
        """The module in evaluation mode."""
        return self._twin.ready() if self._twin is not None else self.module.eval()

    @torch.no_grad()
    def _table(
        self, net: Callable[[Tensor], Tensor], x: Tensor, batch: int | None, helpers: Helpers | None = None
    ) -> Tensor:
        width = batch or self._batch
        first = self._forward(net, self.laid_out(x[:width]))
        table = room((len(x), *first.shape[1:]), first.dtype, device=first.device)
        table[:width] = first

        def fill(at: int) -> None:
            with torch.no_grad():  # a setting of each thread
                table[at : at + width] = self._forward(net, self.laid_out(x[at : at + width]))

        rest = range(width, len(x), width)
        if helpers is not None:
            helpers.share(fill, rest)
        else:
            for at in rest:
                fill(at)
        return table


def share(hits: Tensor) -> float:
    """Share of what is true."""
    return float(precise(hits).mean())


def precise(tensor: Tensor) -> Tensor:
    """A tensor in 64 bits, on the host: not every device has such numbers. An outline stays one."""
    return (tensor if tensor.is_meta else tensor.cpu()).double()


def room(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device = CPU) -> Tensor:
    """An empty tensor; a large one on the host is in an unlinked file, which is removed with the tensor."""
    count = prod(shape)
    size = count * dtype.itemsize
    if size <= LARGE or device != CPU:
        return torch.empty(shape, dtype=dtype, device=device)
    with tempfile.NamedTemporaryFile(prefix="headwater-table-") as file:
        try:
            os.posix_fallocate(file.fileno(), 0, size)  # fails now if the disk is full, not by a crash later
        except OSError as error:
            problem = f"there is no room for {size:,} bytes of models' outputs in {tempfile.gettempdir()}"
            raise OutputError(f"{problem} ({error.strerror}); make room, or set TMPDIR to a larger disk") from error
        return torch.from_file(file.name, shared=True, size=count, dtype=dtype).view(shape)
