"""The evidence tables, one after another, in the order of their worth; what was stopped carries on.

    python experiments/evidence/run.py [--tables mtgc,fedhkd] [--out runs/evidence]

One run at a time, on one core. Every stage of QUEUE is a table and its seeds: `headwater reproduce NAME.toml` trains
the seeds that the committed data lack, `experiments/collect.py` adds them to the data.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from headwater.papers import scales
from headwater.papers.table import load

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))  # for the module that all experiments share

from committed import complete, read  # noqa: E402

# Table and seeds. A later stage of the same table adds seeds.
QUEUE = (
    ("text", "0,1,2"),
    ("mtgc", "0,1,2"),
    ("traffic", "0"),
    ("cifar10", "0"),
    ("fedeed", "0,1,2"),
    ("mtgc_long", "0,1,2"),
    ("traffic", "0,1,2"),
    ("fedhkd", "0,1,2"),
    ("probe", "0,1,2"),
    ("mtgc_cifar10", "0"),
    ("cifar10", "0,1,2"),
    ("mtgc", "0,1,2,3,4"),
    ("fedhkd", "0,1,2,3,4"),
    ("fedeed", "0,1,2,3,4"),
    ("text", "0,1,2,3,4"),
    ("mtgc_cifar10", "0,1,2"),
    ("traffic", "0,1,2,3,4"),
)


def missing(table: str, seeds: str) -> str:
    """Those of some seeds that the committed data of a table lack."""
    if table == "probe":  # which keeps what it has by itself
        return seeds
    known = complete(load(str(HERE / f"{table}.toml"), scales.names()), read(HERE / f"{table}_obtained.csv"))
    return ",".join(seed for seed in seeds.split(",") if int(seed) not in known)


def done(command: list[str]) -> bool:
    """Whether a command succeeds; ends this one too where it was stopped from outside."""
    code = subprocess.run(command, check=False).returncode
    if code < 0 or code >= 128:
        sys.exit("stopped; the same command carries on")
    return code == 0


def stage(table: str, seeds: str, out: Path) -> bool:
    """Train what is missing of a table, and collect it; whether that went well."""
    if table == "probe":
        probe = [sys.executable, str(HERE / "probe.py"), "--seeds", seeds, "--out", str(out / "probe")]
        return done(probe)
    file, place = str(HERE / f"{table}.toml"), out / table
    options = ["--scale", "paper", "--seeds", seeds, "--workers", "1", "--out", str(place), "--quiet"]
    command = f"python experiments/evidence/run.py --tables {table}"
    collect = [sys.executable, str(HERE.parent / "collect.py"), file, str(place), "--command", command]
    return done([sys.executable, "-m", "headwater", "reproduce", file, *options]) and done(collect)


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--tables", help="names with commas; all in the order of QUEUE if left out")
    asked.add_argument("--seeds", help="only stages with no other seeds than these, such as 0,1,2")
    asked.add_argument("--out", type=Path, default=Path("runs/evidence"))
    given = asked.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    chosen = given.tables.split(",") if given.tables else list(dict.fromkeys(table for table, _ in QUEUE))
    allowed = set(given.seeds.split(",")) if given.seeds else None
    failed: list[str] = []
    for table, seeds in QUEUE:
        if table not in chosen or (allowed is not None and not set(seeds.split(",")) <= allowed):
            continue
        if lacking := missing(table, seeds):
            print(f"{table}, seeds {lacking}", flush=True)
            went_well = stage(table, lacking, given.out) and done([sys.executable, str(HERE / "verdicts.py")])
            failed += [] if went_well else [f"{table}, seeds {lacking}"]
    if failed:
        sys.exit(f"not everything went well: {'; '.join(failed)}")


if __name__ == "__main__":
    main()
