"""Flower's simulation: a client is one CPU, two at a time, in Ray's processes."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable
from functools import cache

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from contestants.serve import Pack, measured, say
from contestants.usage import Meter, held

PATH = "HEADWATER_BENCH_PACK"


@cache
def loaded() -> Pack:
    """Once in each of Ray's processes."""
    torch.set_num_threads(1)
    return Pack.load(os.environ[PATH])


client = ClientApp()


@client.train()
def train(message: Message, context: Context) -> Message:
    pack, told = loaded(), message.content["config"]
    about, model = pack.about, pack.net()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    model.train()
    optimizer = pack.optimizer(model.parameters())
    data = TensorDataset(pack.x, pack.y)
    for order in pack.orders[told["server-round"] - 1, told["place"]].tolist():
        for x, y in DataLoader(data, batch_size=about["batch"], sampler=order):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    counted = MetricRecord({"num-examples": pack.orders.shape[3]})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": counted}), reply_to=message)


class Told(FedAvg):
    """Federated averaging over the clients that the pack names for each round."""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        while len(nodes := sorted(grid.get_node_ids())) < loaded().about["clients"]:
            time.sleep(0.1)
        for place, number in enumerate(loaded().active[server_round - 1]):
            told = ConfigRecord({"server-round": server_round, "place": place})
            content = RecordDict({"arrays": arrays, "config": told})
            yield Message(content, dst_node_id=nodes[number], message_type=MessageType.TRAIN)


server = ServerApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    pack = loaded()
    rounds, start = pack.about["rounds"], ArrayRecord(pack.net().state_dict())
    Told(fraction_evaluate=0.0).start(grid, start, num_rounds=1)
    meter = Meter()
    meter.start()
    result = Told(fraction_evaluate=0.0).start(grid, start, num_rounds=rounds)
    meter.stop()
    memory = held()
    found = measured(meter, rounds, result.arrays.to_torch_state_dict())
    say(seconds=found.seconds, accuracy=pack.accuracy(found.state), **found.more, **memory)


def simulate(path: str) -> None:
    os.environ[PATH] = path
    say(ready=True)
    sys.stdin.readline()
    settings = {
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        "init_args": {"num_cpus": 2, "_node_ip_address": "127.0.0.1", "include_dashboard": False},
    }
    run_simulation(server, client, num_supernodes=loaded().about["clients"], backend_config=settings)


if __name__ == "__main__":
    from contestants import flower  # under a name that Ray's processes find too

    flower.simulate(sys.argv[1])
