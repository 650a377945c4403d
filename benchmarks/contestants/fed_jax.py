"""FedJAX's federated averaging, with the clients that the pack names and on the backend that FedJAX chooses.

Batches lie in the order in which they are met, so FedJAX need not shuffle.
"""

from __future__ import annotations

from typing import Any

import fedjax
import jax
from fedjax.algorithms import fed_avg
from jax import numpy as jnp

from contestants.jax_loop import NAMES, loss, state_of
from contestants.serve import Outcome, Pack, Work, serve, timed


def prepare(pack: Pack) -> Work:
    about, x, y = pack.about, pack.arrays["x"].reshape(len(pack.arrays["y"]), -1), pack.arrays["y"]
    start = {name: jnp.asarray(pack.arrays[f"model/{name}"]) for name in NAMES}

    def slopes(weights: Any, batch: Any, rng: Any) -> Any:
        return jax.grad(lambda held: loss(tuple(held[name] for name in NAMES), batch["x"], batch["y"]))(weights)

    averaging = fed_avg.federated_averaging(
        slopes,
        fedjax.optimizers.sgd(about["lr"]),
        fedjax.optimizers.sgd(1.0),  # FedJAX takes the mean of updates for a gradient
        fedjax.ShuffleRepeatBatchHParams(batch_size=about["batch"], num_epochs=1, skip_shuffle=True),
    )
    keys = [jax.random.PRNGKey(place) for place in range(pack.active.shape[1])]  # nothing is drawn from them

    def rounds(count: int) -> Any:
        state = averaging.init(start)
        for number in range(count):
            clients = [
                (place, fedjax.ClientDataset({"x": x[rows], "y": y[rows]}), keys[place])
                for place, rows in enumerate(pack.orders[number].reshape(len(keys), -1))
            ]
            state, _ = averaging.apply(state, clients)
        return jax.block_until_ready(state.params)

    def work(count: int) -> Outcome:
        found = timed(max(1, count), lambda: rounds(max(1, count)))
        return Outcome(found.seconds, state_of([found.state[name] for name in NAMES]), found.more)

    return work


if __name__ == "__main__":
    serve(prepare)
