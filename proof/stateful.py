"""State machines of the protocols: messages lost, doubled, reordered and damaged, in many more cases than the tests.

    make stateful                              STATEFUL="--examples 50 rounds" for less
    python proof/stateful.py [--examples N] [--steps N] [--out FILE] [MACHINE ...]

`rounds` is a federation of real parties whose messages hypothesis moves (`tests/round_machine.py`), `sums` a secure sum
between members and an aggregator (`tests/sum_machine.py`). After each case it is checked what must hold whatever
happened; the files say what that is. A machine does the same cases each time. Writes stateful.json; exit status 1 if
something did not hold.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from stamps import HERE, ROOT, stamp, write

sys.path.append(str(ROOT / "tests"))

from machines import run
from round_machine import RoundProtocol
from sum_machine import SecureSum

MACHINES: dict[str, tuple[Any, str, int]] = {  # what is tried, and how many cases are done for each one of --examples
    "rounds": (RoundProtocol, "rounds of a federation of seven parties, two rounds each", 1),
    "sums": (SecureSum, "secure sums of three to seven members", 20),
}
OUTCOMES = ("cases", "sums begun", "members left out", "sums opened", "sums lost")  # not done to messages


def tried(name: str, examples: int, steps: int) -> dict[str, Any]:
    """Run a machine, and tell what was done and what did not hold."""
    machine, what, often = MACHINES[name]
    machine.tally.clear()
    begun, findings = time.monotonic(), []
    try:
        run(machine, examples * often, steps)
    except Exception as error:
        several = error.exceptions if isinstance(error, ExceptionGroup) else (error,)
        # Each with the steps of its simplest case.
        findings += ["".join(traceback.format_exception_only(each))[-4000:] for each in several]
    done = dict(sorted(machine.tally.items()))
    return {
        "what": what,
        "cases": done.get("cases", 0),
        "steps": sum(count for kind, count in done.items() if kind not in OUTCOMES),
        "done": {kind: count for kind, count in done.items() if kind != "cases"},
        "findings": findings,
        "seconds": round(time.monotonic() - begun),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--examples", type=int, default=100, help="cases of `rounds`; of `sums`, 20 times as many")
    parser.add_argument("--steps", type=int, default=40, help="most steps of a case before it is brought to its end")
    parser.add_argument("--out", type=Path, default=HERE / "stateful.json")
    parser.add_argument("machines", nargs="*", metavar="MACHINE", help="rounds, sums; both by default")
    options = parser.parse_args()
    if unknown := sorted(set(options.machines) - set(MACHINES)):
        parser.error(f"there is no machine {unknown[0]!r}; take one of {', '.join(MACHINES)}")
    names = options.machines or list(MACHINES)
    words = f"--examples {options.examples} --steps {options.steps} {' '.join(options.machines)}".rstrip()
    made = stamp(f"python proof/stateful.py {words}")
    before = json.loads(options.out.read_text(encoding="utf-8"))["machines"] if options.out.exists() else {}
    machines = {name: before[name] for name in MACHINES if name in before}
    for name in names:
        machines[name] = told = tried(name, options.examples, options.steps) | {"commit": made["commit"]}
        write(options.out, made | {"machines": {each: machines[each] for each in MACHINES if each in machines}})
        print(f"{name}: {told['cases']} cases, {told['steps']} steps, {len(told['findings'])} findings")
        print("\n".join(told["findings"]), end="")
    return 1 if any(machines[name]["findings"] for name in names) else 0


if __name__ == "__main__":
    sys.exit(main())
