"""Distillation with nothing done twice: each teacher sees each image once, spread over two processes of one thread,
and then one process trains the student (with as many threads as the second argument says)."""

from __future__ import annotations

import sys

import numpy as np

from contestants.crew import Crew
from contestants.serve import Outcome, Pack, State, Work, serve, timed


def prepare(pack: Pack, threads: int = 1) -> Work:
    count, rows = pack.about["teachers"], np.arange(len(pack.x))
    crew = Crew(pack, count + 2, len(rows))
    alone = crew if threads == 1 else Crew(pack, count + 2, len(rows), (threads,))
    for number in range(count):
        crew.models[number] = crew.flat.vector_of(pack.state(f"teacher{number}"))
    orders, student = pack.arrays["orders"], count

    def taught(epochs: np.ndarray) -> State:
        crew.do([("ask", teacher, teacher, rows) for teacher in range(count)])
        if alone is not crew:
            alone.outputs.copy_(crew.outputs)
        alone.models[student] = crew.start
        alone.do([("distil", student, student + 1, list(range(count)), rows, epochs)])
        return crew.flat.state(alone.models[student + 1].clone())

    def work(rounds: int) -> Outcome:
        return timed(1, lambda: taught(orders if rounds else orders[:1]))

    def close() -> None:
        crew.close()
        alone.close()

    work.close = close  # type: ignore[attr-defined]
    return work


if __name__ == "__main__":
    threads = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    serve(lambda pack: prepare(pack, threads))
