"""Devices: which one a run computes on, and how torch is set up for it. `device_memory` says what is there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from headwater.errors import ConfigError

CPU = torch.device("cpu")
KNOWN = "'auto', 'cpu', 'cuda', 'cuda:N' or 'mps'"
LESS_MEMORY = (
    "lower batch in [local], [sector] or [server], engine.workers, or engine.device_memory (MB of rows that stay "
    "there) or engine.stack_memory, or set engine.stack = 'off' or engine.device = 'cpu'"
)


def find(name: str, elsewhere: bool = False, key: str = "engine.device") -> torch.device:
    """The device of `engine.device`.

    Args:
        name: "auto" for a GPU where torch finds one and else the CPU, or a device of torch.
        elsewhere: tasks run on other machines, which may have what this one has not.
        key: what set it, for messages.

    Raises:
        ConfigError: torch does not know this device, or it is not in this machine.
    """
    device, present = meant(name, key)
    if present or elsewhere:
        return device
    if count := _count(device.type):
        raise ConfigError(f"{key} = {name!r}: this machine has {count}, numbered from 0; use {device.type!r}")
    raise ConfigError(
        f"{key} = {name!r}: torch {torch.__version__} finds no such device in this machine; use 'auto' or "
        "'cpu', or install a build of torch for it"
    )


def meant(name: str, key: str = "engine.device") -> tuple[torch.device, bool]:
    """The device of `engine.device`, and whether this machine has it.

    Args:
        name: as for `find`.
        key: as for `find`.

    Raises:
        ConfigError: torch does not know this device.
    """
    if name == "auto":
        return next((torch.device(kind) for kind in ("cuda", "mps") if _count(kind)), CPU), True
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"{key} must be {KNOWN}, got {name!r}") from None
    return (CPU, True) if device.type == "cpu" else (device, _count(device.type) > (device.index or 0))


def present(name: str) -> torch.device:
    """The device of `engine.device`, or the CPU if this machine has it not."""
    device, there = meant(name)
    return device if there else CPU


def _count(kind: str) -> int:
    """How many devices of a kind torch can use here."""
    try:
        module: Any = torch.get_device_module(kind)
        return int(module.device_count()) if module.is_available() else 0
    except (RuntimeError, AttributeError):  # a kind of device without a module cannot be used
        return 0


def of_worker(device: torch.device, number: int) -> torch.device:
    """The device of a worker process: several GPUs are shared out in turn, unless the device has a number."""
    if device.type != "cuda" or device.index is not None:
        return device
    return torch.device("cuda", number % max(1, _count("cuda")))


def about(device: torch.device, precision: str, history: Sequence[str] = ()) -> dict[str, Any]:
    """What result.json says of a device; `history` has the kinds of device of all rounds, in order."""
    facts: dict[str, Any] = {"type": device.type, "precision": precision}
    if len(history) > 1:
        facts["before"] = list(history[:-1])
    if device.type == "cuda":
        facts |= {"name": torch.cuda.get_device_name(device), "cuda": torch.version.cuda}
    return facts


# -- settings of a process


def settle(device: torch.device, threads: int) -> Callable[[], None]:
    """Set up torch for tasks: the number of threads, and for a GPU algorithms that give the same result every time.

    An operation that has no such algorithm gives a warning of torch. Convolutions compute with full float32.

    Returns:
        A function that restores what was set before.
    """
    usual = torch.get_num_threads()
    torch.set_num_threads(threads)
    if device.type != "cuda":
        return lambda: torch.set_num_threads(usual)
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    cudnn: Any = torch.backends.cudnn
    kept = cudnn.allow_tf32, cudnn.benchmark
    torch.use_deterministic_algorithms(True, warn_only=True)  # cuBLAS also needs CUBLAS_WORKSPACE_CONFIG: see `startup`
    cudnn.allow_tf32 = cudnn.benchmark = False

    def restore() -> None:
        torch.set_num_threads(usual)
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        cudnn.allow_tf32, cudnn.benchmark = kept

    return restore


@contextmanager
def seeded(device: torch.device, seed: int) -> Iterator[None]:
    """Seed the generator of a device, whose state outside tasks belongs to the user."""
    module: Any = torch.get_device_module(device)
    if device.type == "cpu" or not hasattr(module, "get_rng_state"):
        yield
        return
    where = (device,) if device.type == "cuda" else ()
    before = module.get_rng_state(*where)
    torch.Generator.manual_seed(_generator(device), seed) if device.type == "cuda" else module.manual_seed(seed)
    try:
        yield
    finally:
        module.set_rng_state(before, *where)


def _generator(device: torch.device) -> torch.Generator:
    torch.cuda.init()  # type: ignore[no-untyped-call]
    number = torch.cuda.current_device() if device.index is None else device.index
    return torch.cuda.default_generators[number]


def out_of_memory(error: BaseException) -> bool:
    """Whether a device had no memory left."""
    return isinstance(error, torch.OutOfMemoryError)
