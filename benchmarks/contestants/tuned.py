"""The same by hand with all that pays on this hardware: see `crew`."""

from __future__ import annotations

from contestants.crew import Crew
from contestants.serve import Outcome, Pack, State, Work, serve, timed


def prepare(pack: Pack) -> Work:
    places = pack.active.shape[1]
    crew = Crew(pack, places + 1)
    everybody = slice(1, places + 1)

    def rounds(count: int) -> State:
        crew.models[0] = crew.start
        for number in range(count):  # all clients are of one size, so any order is longest first
            crew.do([("train", 0, 1 + i, orders) for i, orders in enumerate(pack.orders[number])])
            crew.models[0] = crew.mean(everybody)
        return crew.flat.state(crew.models[0].clone())

    def work(count: int) -> Outcome:
        return timed(max(1, count), lambda: rounds(max(1, count)))

    work.close = crew.close  # type: ignore[attr-defined]
    return work


if __name__ == "__main__":
    serve(prepare)
