"""Fuzzing: changed inputs of every kind that the library reads, and what must not come of them.

    make fuzz                                  FUZZ="--cases 1000 config tables" for less
    python proof/fuzz.py [--cases N] [--first N] [--out FILE] [TARGET ...]

Each target (targets.py) starts from valid content and changes bytes, lengths, types, keys, numbers and nesting. Case N
of a target is always the same: --first N --cases 1 repeats it. Targets run in child processes.
Findings are: an error that is not one of the library's own for its user, a case that takes more than CPU seconds of
the processor, a case by which the process grows by more than MEMORY, and a process that dies. Writes fuzz.json; exit
status 1 if there is a finding.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

from stamps import HERE, stamp, write

CPU = 20.0  # seconds of the processor for one case
MEMORY = 512  # MiB by which one case may let the process grow
ADDRESSES = 8 << 30  # bytes of address space of the child process
SHOWN = 8  # cases of a finding that are noted
ALIVE = 600.0  # seconds without a sign of life after which a child process is ended


class Hang(BaseException):
    """Raised by the alarm; no `except Exception` of the library catches it."""


def where(error: BaseException) -> str:
    """The innermost line of the library that an error came through."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if f"{os.sep}headwater{os.sep}" in frame.filename] or list(frames)
    last = ours[-1]
    return f"{Path(last.filename).name}:{last.lineno} {last.name}"


def peak() -> float:
    """The largest memory of this process so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def child(name: str, first: int, cases: int, sign: Path) -> None:
    """Run cases, and print a line of JSON for every finding and at the end."""
    out = os.fdopen(os.dup(1), "w")
    with open(os.devnull, "w") as nothing:  # what is said during a case belongs to it
        os.dup2(nothing.fileno(), 1)
        os.dup2(nothing.fileno(), 2)
    try:
        import targets

        from headwater.errors import UserError

        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            target = targets.TARGETS[name](Path(folder))
            resource.setrlimit(resource.RLIMIT_AS, (ADDRESSES, ADDRESSES))

            def alarm(*_: object) -> None:
                raise Hang

            signal.signal(signal.SIGPROF, alarm)
            counts: Counter[str] = Counter()
            most, began = 0.0, peak()
            for number in range(first, first + cases):
                sign.write_text(str(number))
                before, found = peak(), None
                signal.setitimer(signal.ITIMER_PROF, CPU)
                try:
                    counts["accepted" if target.case(random.Random(f"{name} {number}")) else "refused"] += 1
                except UserError as error:
                    counts["refused"] += 1
                    if "\n" in str(error).strip() or len(str(error)) > 5000:
                        found = {
                            "kind": "sentence",
                            "error": "not one short sentence",
                            "text": str(error)[:300],
                            "at": where(error),
                        }
                except Hang as error:
                    found = {"kind": "hang", "error": f"more than {CPU:g} s", "text": "", "at": where(error)}
                except BaseException as error:
                    told = str(error)[:300]
                    found = {"kind": "foreign", "error": type(error).__name__, "text": told, "at": where(error)}
                finally:
                    signal.setitimer(signal.ITIMER_PROF, 0)
                most = max(most, peak() - before)
                if found is None and peak() - before > MEMORY:
                    found = {"kind": "memory", "error": f"{peak() - before:.0f} MiB", "text": "", "at": ""}
                if found:
                    counts[found["kind"]] += 1
                    print(json.dumps(found | {"case": number}), file=out, flush=True)
            done = {"counts": counts, "most": most, "growth": peak() - began, "done": cases}
            print(json.dumps(done), file=out, flush=True)
    except BaseException:
        print(json.dumps({"broken": traceback.format_exc()[-3000:]}), file=out, flush=True)


def run(name: str, first: int, cases: int) -> dict[str, Any]:
    """All cases of a target. After a case that ended the process, the next one has a new process."""
    begun, counts, findings = time.monotonic(), Counter[str](), dict[str, dict[str, Any]]()
    most = growth = 0.0
    with tempfile.TemporaryDirectory() as folder:
        sign, end = Path(folder) / "case", first + cases
        while first < end:
            words = [sys.executable, str(HERE / "fuzz.py"), "--child", str(sign), "--first", str(first)]
            words += ["--cases", str(end - first), name]
            process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
            lines = [json.loads(line) for line in _lines(process, sign)]
            if broken := next((line for line in lines if "broken" in line), None):
                return {"broken": broken["broken"]}
            finished = next((line for line in lines if "done" in line), None)
            for line in lines:
                if "kind" in line:
                    key = f"{line['kind']}: {line['error']} at {line['at']}"
                    row = findings.setdefault(key, {"text": line["text"], "number": 0, "cases": []})
                    row["number"] += 1
                    row["cases"] = [*row["cases"], line["case"]][:SHOWN]
            if finished:
                counts.update(finished["counts"])
                most, growth = max(most, finished["most"]), max(growth, finished["growth"])
                break
            at = int(sign.read_text()) if sign.exists() else first
            row = findings.setdefault(f"died: status {process.returncode}", {"text": "", "number": 0, "cases": []})
            row["number"] += 1
            row["cases"] = [*row["cases"], at][:SHOWN]
            counts["died"] += 1
            first = at + 1
    told = {key: counts[key] for key in ("accepted", "refused", "foreign", "sentence", "hang", "memory", "died")}
    sizes = {"largest_case_mib": round(most, 1), "growth_mib": round(growth, 1)}
    return {"cases": cases} | told | sizes | {"seconds": round(time.monotonic() - begun), "findings": findings}


def _lines(process: subprocess.Popen[str], sign: Path) -> list[str]:
    """What a child writes. It is ended when it stays with one case for too long, as in code that hears no alarm."""
    seen, since = "", time.monotonic()
    while True:
        try:
            output, _ = process.communicate(timeout=5)
            return output.splitlines()
        except subprocess.TimeoutExpired:
            now = sign.read_text() if sign.exists() else ""
            if now != seen:
                seen, since = now, time.monotonic()
            elif time.monotonic() - since > ALIVE:
                process.kill()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--carry-on", action="store_true", help="leave out targets that FILE has with so many cases")
    parser.add_argument("--out", type=Path, default=HERE / "fuzz.json")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("targets", nargs="*", metavar="TARGET")
    options = parser.parse_args()
    if options.child:
        child(options.targets[0], options.first, options.cases, options.child)
        return 0
    import targets

    names = options.targets or list(targets.TARGETS)
    if unknown := [name for name in names if name not in targets.TARGETS]:
        parser.error(f"there is no target {unknown[0]} (targets: {', '.join(targets.TARGETS)})")
    known = json.loads(options.out.read_text(encoding="utf-8")) if options.out.exists() else {"targets": {}}
    failed = False
    for name in names:
        if options.carry_on and known["targets"].get(name, {}).get("cases", 0) >= options.cases:
            continue
        found = run(name, options.first, options.cases)
        about = stamp(f"python proof/fuzz.py --cases {options.cases} {name}")
        known["bounds"] = {"cpu_seconds": CPU, "memory_mib": MEMORY}
        known["targets"][name] = {"what": targets.TARGETS[name].what} | about | found
        write(options.out, known)
        if "broken" in found:
            print(f"{name}: the target itself failed:\n{found['broken']}")
            failed = True
            continue
        print(f"{name}: " + ", ".join(f"{key} {value}" for key, value in found.items() if key != "findings"))
        for key, row in found["findings"].items():
            print(f"  {key}: {row['number']} times, such as cases {row['cases']}: {row['text'][:200]}")
        failed = failed or bool(found["findings"])
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
