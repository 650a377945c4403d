"""Perceptrons with one hidden layer as a JAX user writes them: a round is one compiled function.

It goes through a client's batches with `lax.scan`; its clients either take turns in another scan or, with the argument
`vmap`, go side by side. With a second argument, `evaluated`, each round ends with the accuracy and the loss on all test
images, in another compiled function. Compiling is not timed.
"""

from __future__ import annotations

import sys
from typing import Any

import jax
import numpy as np
import torch
from jax import Array, lax
from jax import numpy as jnp

from contestants.serve import Outcome, Pack, State, Work, serve, timed

NAMES = ("features.1.weight", "features.1.bias", "classifier.weight", "classifier.bias")
Weights = tuple[Array, ...]


def logits(weights: Weights, x: Array) -> Array:
    w1, b1, w2, b2 = weights
    return jax.nn.relu(x @ w1.T + b1) @ w2.T + b2


def cross_entropy(output: Array, y: Array) -> Array:
    return -jnp.take_along_axis(jax.nn.log_softmax(output), y[:, None], 1).mean()


def loss(weights: Weights, x: Array, y: Array) -> Array:
    return cross_entropy(logits(weights, x), y)


@jax.jit
def scores(weights: Weights, x: Array, y: Array) -> tuple[Array, Array]:
    """Accuracy and loss."""
    output = logits(weights, x)
    return (output.argmax(1) == y).mean(), cross_entropy(output, y)


def prepare(pack: Pack, way: str = "scan", evaluated: str = "") -> Work:
    lr, start = pack.about["lr"], tuple(jnp.asarray(pack.arrays[f"model/{name}"]) for name in NAMES)
    table, labels = rows(pack, "x", "y")
    test = rows(pack, "x_test", "y_test")
    orders = batches(pack)

    def client(weights: Weights, x: Array, y: Array) -> Weights:
        """`x` is (step, sample, …): all that a client meets in a round."""

        def step(weights: Weights, batch: tuple[Array, Array]) -> tuple[Weights, None]:
            slopes = jax.grad(loss)(weights, *batch)
            return tuple(weight - lr * slope for weight, slope in zip(weights, slopes, strict=True)), None

        return lax.scan(step, weights, (x, y))[0]

    def in_turn(weights: Weights, x: Array, y: Array) -> Weights:
        def add(total: Weights, own: tuple[Array, Array]) -> tuple[Weights, None]:
            return jax.tree.map(jnp.add, total, client(weights, *own)), None

        total = lax.scan(add, jax.tree.map(jnp.zeros_like, weights), (x, y))[0]
        return jax.tree.map(lambda summed: summed / len(x), total)

    def side_by_side(weights: Weights, x: Array, y: Array) -> Weights:
        trained = jax.vmap(client, in_axes=(None, 0, 0))(weights, x, y)
        return jax.tree.map(lambda stacked: stacked.mean(0), trained)

    @jax.jit
    def one_round(weights: Weights, table: Array, labels: Array, order: Array) -> Weights:
        return (side_by_side if way == "vmap" else in_turn)(weights, table[order], labels[order])

    def rounds(count: int) -> Any:
        weights, history = start, []
        for number in range(count):
            weights = one_round(weights, table, labels, orders[number])
            if evaluated:
                history.append(scores(weights, *test))  # read after the last round, so that nothing waits for it
        return jax.block_until_ready((weights, history))[0]

    def work(count: int) -> Outcome:
        found = timed(max(1, count), lambda: rounds(max(1, count)))
        return Outcome(found.seconds, state_of(found.state), found.more)

    return work


def rows(pack: Pack, x: str, y: str) -> tuple[Array, Array]:
    """Flat inputs, and labels."""
    return jnp.asarray(pack.arrays[x].reshape(len(pack.arrays[y]), -1)), jnp.asarray(pack.arrays[y])


def batches(pack: Pack) -> Array:
    """(round, place, step, sample): rows of the training set."""
    orders, batch = pack.orders.astype(np.int32), pack.about["batch"]
    if orders.shape[3] % batch:
        raise ValueError("all batches of the JAX loop have one size, so that it is compiled once")
    return jnp.asarray(orders.reshape(*orders.shape[:2], -1, batch))


def state_of(weights: Any) -> State:
    return {name: torch.from_numpy(np.array(weight)) for name, weight in zip(NAMES, weights, strict=True)}


if __name__ == "__main__":
    serve(lambda pack: prepare(pack, *sys.argv[2:]))
