"""Times as ratios, taken in turns in one run, because a shared machine is never quiet.

    python benchmarks/bench.py                       W1 to W7
    python benchmarks/bench.py W1 W2 --repeats 5     some works
    python benchmarks/bench.py --quick               small sizes, to see that all contestants work

Each contestant has a process of its own (see contest.py) and gets the same images, split, batches in the same order and
first weights (packs.py), so equal work shows as equal accuracy. Prints a table for each work and what it must show, and
appends a JSON line a row to benchmarks/history.jsonl, unless the sizes are the small ones of --quick.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path

WORKS = {
    "W1": "works.w1",
    "W2": "works.w2",
    "W3": "works.w3",
    "W4": "works.w4",
    "W5": "works.w5",
    "W6": "works.w6",
    "W7": "works.w7",
}
MORE = {"engines": "works.engines", "teachers": "works.teachers"}  # only when they are asked for


def main() -> int:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument(
        "works", nargs="*", metavar="WORK", help=f"any of {', '.join(WORKS | MORE)}; without one, W1 to W7"
    )
    asked.add_argument("--repeats", type=int, help="turns of each contestant; without it, as many as suit the work")
    asked.add_argument("--quick", action="store_true", help="small sizes; the history stays as it is")
    asked.add_argument("--no-history", action="store_true", help="print only")
    given = asked.parse_args()
    unknown = [name for name in given.works if name not in WORKS | MORE]
    if unknown:
        asked.error(f"there is no work called {unknown[0]!r}; there are {', '.join(WORKS | MORE)}")
    if given.repeats is not None and given.repeats < 1:
        asked.error(f"--repeats must be at least 1, got {given.repeats}")
    kept = not (given.quick or given.no_history)
    names = given.works or list(WORKS)
    return max(one(name, names[0], given.repeats, given.quick, kept) for name in names)


def one(name: str, first: str, repeats: int | None, quick: bool, kept: bool) -> int:
    import packs
    import record

    begun, busy = time.monotonic(), record.load()
    where = record.about() | {"load": busy, "run": time.time_ns()}
    work = import_module((WORKS | MORE)[name]).work(quick)
    print(f"\n{name}: {work.title}", flush=True)
    if name == first and busy > 1:
        print(f"the machine is busy (load {busy}), so ratios may mislead; wait or repeat")
    try:
        with tempfile.TemporaryDirectory(prefix="headwater-bench-") as folder:
            answers = work.measure(Path(folder), repeats or (1 if quick else work.repeats))
    except packs.Missing as missing:
        print(f"{name} is left out: {missing}")
        return 1
    if not answers:
        return 1
    rows = record.rows_of(name, work.title, answers, work.reference, work.cpu)
    print(record.table(rows, work.unit))
    for claim in work.claims:
        print(claim.told(answers))
    print(f"{name} took {time.monotonic() - begun:.0f} s", file=sys.stderr)
    if kept:
        record.keep(rows, where)
    return 0


if __name__ == "__main__":
    sys.exit(main())
