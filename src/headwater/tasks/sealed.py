"""Values that are sealed for the server, so that a host relays what it cannot read."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from headwater.core import serialization
from headwater.secure import primitives
from headwater.secure.primitives import KEY, TAG
from headwater.tasks.cost import Cost
from headwater.tasks.secure import byte_array, byte_outline
from headwater.tasks.task import TaskContext, task

PAD = 1024  # sealed values are filled up to a multiple of this, so that a size tells little


@task("average", cost=Cost(), returns=lambda ctx: {"secret": byte_outline(KEY), "public": byte_outline(KEY)})
def make_key(ctx: TaskContext) -> dict[str, Tensor]:
    """At the server: a key pair for what is sent to it in this round."""
    entropy = ctx.entropy(KEY)
    return {"secret": byte_array(entropy), "public": byte_array(primitives.public_of(entropy))}


def _sealed(ctx: TaskContext, value: Any, **_: Any) -> Tensor:
    size = serialization.Laid.out(value).bytes
    outline = byte_outline(KEY + -(-(size + 8) // PAD) * PAD + TAG)
    outline.form = value  # type: ignore[attr-defined] # an outline has no content, so it remembers what it stands for
    return outline


@task("average", cost=Cost(), masks="add", returns=_sealed)
def seal(ctx: TaskContext, value: Any, public: Tensor) -> Tensor:
    """At a client: a value that only the owner of a key can read."""
    content = serialization.to_bytes(value)
    text = len(content).to_bytes(8, "little") + content
    seed = ctx.entropy(KEY)
    key = primitives.agreed(seed, public.numpy().tobytes(), "sealed value")
    return byte_array(
        primitives.public_of(seed) + primitives.sealed(key, text + bytes(-len(text) % PAD), "sealed value")
    )


@task("average", cost=Cost(), masks="remove", returns=lambda ctx, box, secret: box.form)
def unseal(ctx: TaskContext, box: Tensor, secret: Tensor) -> Any:
    """At the server: the value that was sealed."""
    content = box.numpy().tobytes()
    key = primitives.agreed(secret.numpy().tobytes(), content[:KEY], "sealed value")
    text = primitives.opened(key, content[KEY:], "sealed value")
    return serialization.from_bytes(text[8 : 8 + int.from_bytes(text[:8], "little")])
