"""pfl-research's federated averaging on two processes that share the cohort.

The driver starts this once; it starts the second process itself. Both do everything, and the first one speaks.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

PORT = 29400
if __name__ == "__main__":  # before pfl is imported, which then joins the two
    os.environ |= {"PFL_WORKER_ADDRESSES": f"127.0.0.1:{PORT},127.0.0.1:{PORT + 1}", "GLOO_SOCKET_IFNAME": "lo"}
    os.environ.setdefault("PFL_WORKER_RANK", "0")
    if os.environ["PFL_WORKER_RANK"] == "0":
        second = [sys.executable, "-m", "contestants.pfl_research", *sys.argv[1:]]
        subprocess.Popen(second, env=os.environ | {"PFL_WORKER_RANK": "1"}, stdin=subprocess.DEVNULL)

import torch  # noqa: E402
from pfl.aggregate.simulate import SimulatedBackend  # noqa: E402
from pfl.algorithm.base import NNAlgorithmParams  # noqa: E402
from pfl.algorithm.federated_averaging import FederatedAveraging  # noqa: E402
from pfl.callback.base import TrainingProcessCallback  # noqa: E402
from pfl.data.dataset import Dataset  # noqa: E402
from pfl.data.federated_dataset import FederatedDatasetBase  # noqa: E402
from pfl.hyperparam import NNTrainHyperParams  # noqa: E402
from pfl.internal.ops import get_ops  # noqa: E402
from pfl.metrics import Metrics  # noqa: E402
from pfl.model.pytorch import PyTorchModel  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from contestants.serve import Outcome, Pack, measured, say  # noqa: E402
from contestants.usage import Meter, held  # noqa: E402


class Clients(FederatedDatasetBase):
    """The clients of each round in turn; every process takes its share of them. Round 0 is that of warming up."""

    def __init__(self, pack: Pack) -> None:
        super().__init__()
        self.pack, self.round = pack, 0

    def __next__(self) -> Any:
        raise NotImplementedError

    def get_cohort(self, cohort_size: int) -> Iterator[tuple[Dataset, int]]:
        here, orders = get_ops().distributed, self.pack.orders[max(0, self.round - 1)]
        self.round += 1
        for place, order in enumerate(orders):
            if place % here.world_size == here.global_rank:
                rows = torch.from_numpy(order[0])  # one epoch: pfl meets a user's data in the order in which it lies
                yield Dataset((self.pack.x[rows], self.pack.y[rows]), user_id=str(place)), 0


class Learner(nn.Module):
    """The net with the two methods that pfl asks for."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def loss(self, x: Tensor, y: Tensor, eval: bool = False) -> Tensor:
        self.train(not eval)
        return F.cross_entropy(self.net(x), y)

    def metrics(self, x: Tensor, y: Tensor, eval: bool = False) -> dict[str, Any]:
        return {}


class Clock(TrainingProcessCallback):
    """Puts the first weights back after the round of warming up, and times the others."""

    def __init__(self, last: int) -> None:
        self.last, self.meter = last, Meter()

    def on_train_begin(self, *, model: PyTorchModel) -> Metrics:
        self.first = model.get_parameters()
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        if central_iteration == 0:
            model.set_parameters(self.first)
            self.meter.start()
        if central_iteration == self.last:
            self.meter.stop()
        return False, Metrics()


def run(pack: Pack) -> Outcome:
    about = pack.about
    net, clock = Learner(pack.net()), Clock(about["rounds"])
    model = PyTorchModel(
        net,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(net.parameters(), lr=1.0),  # pfl takes the mean of updates for a gradient
    )
    clients = Clients(pack)
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=1 + about["rounds"],
            evaluation_frequency=10 * about["rounds"],
            train_cohort_size=pack.active.shape[1],
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(training_data=clients, val_data=clients),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_num_epochs=about["epochs"], local_learning_rate=about["lr"], local_batch_size=about["batch"]
        ),
        callbacks=[clock],
        send_metrics_to_platform=False,
    )
    return measured(clock.meter, about["rounds"], net.net.state_dict())


def main() -> None:
    torch.set_num_threads(1)
    first, pack = get_ops().distributed.global_rank == 0, Pack.load(sys.argv[1])
    if first:
        say(ready=True)
        sys.stdin.readline()
    found = run(pack)
    if first:
        memory = held()
        say(seconds=found.seconds, accuracy=pack.accuracy(found.state), **found.more, **memory)


if __name__ == "__main__":
    main()
