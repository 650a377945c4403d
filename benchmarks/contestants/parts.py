"""The parts of a FedHEAD+ round one after the other, each as a tuned loop: see `crew`.

Twenty clients on two workers; two leaders at the same time; the server alone, on both cores; means in between.
"""

from __future__ import annotations

import time
from itertools import pairwise

from contestants.crew import Crew
from contestants.serve import Outcome, Pack, Work, measured, serve
from contestants.usage import Meter


def prepare(pack: Pack) -> Work:
    sectors, places = pack.orders.shape[:2]
    count = sectors * places
    clients, leaders = list(range(count)), list(range(count, count + sectors))
    mean, final = count + sectors, count + sectors + 1
    rows, server = pack.arrays["leader_rows"], pack.arrays["server_rows"]
    crew = Crew(pack, final + 1, max(rows.shape[1], len(server)))
    alone = Crew(pack, final + 1, len(server), (2,))  # the server's student, for whom all wait, on both cores
    teams = [clients[i * places : (i + 1) * places] for i in range(sectors)]

    def work(rounds: int) -> Outcome:
        few = slice(None) if rounds else slice(1)  # epochs
        crew.models[mean] = crew.start
        meter = Meter()
        meter.start()
        marks = [time.perf_counter()]
        crew.do([("train", mean, c, pack.orders[c // places, c % places, few]) for c in clients])
        marks.append(time.perf_counter())
        crew.models[mean] = crew.mean(slice(0, count))
        met = zip(leaders, teams, rows, pack.arrays["leader_orders"], strict=True)
        crew.do([("teach", mean, leader, team, held, orders[few]) for leader, team, held, orders in met])
        marks.append(time.perf_counter())
        crew.models[mean] = crew.mean(slice(count, mean))
        crew.do([("ask", leader, leader, server) for leader in leaders])
        alone.models.copy_(crew.models)
        alone.outputs.copy_(crew.outputs[:, : len(server)])
        alone.do([("distil", mean, final, leaders, server, pack.arrays["server_orders"][few])])
        marks.append(time.perf_counter())
        meter.stop()
        parts = [round(after - before, 4) for before, after in pairwise(marks)]
        return measured(meter, 1, crew.flat.state(alone.models[final].clone()), parts=parts)

    def close() -> None:
        crew.close()
        alone.close()

    work.close = close  # type: ignore[attr-defined]
    return work


if __name__ == "__main__":
    serve(prepare)
