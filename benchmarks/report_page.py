"""Measures the report page: how long it takes to write, how large it is, and how soon a browser shows it.

python benchmarks/report_page.py [RUNS] [ROUNDS], 50 and 100 if left out. Needs selenium, chromium and chromedriver. The
runs are made up. Their page is opened three times; the smallest time of each kind is printed.
"""

from __future__ import annotations

import json
import math
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

OPENED = 3
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking")
TIMES = """
  const load = performance.getEntriesByType("navigation")[0], curves = performance.getEntriesByName("curves");
  return document.documentElement.dataset.drawn && {
    "text and tables": load.domContentLoadedEventEnd, "both curves": curves[1].startTime,
    "all charts": performance.now()}"""


def main() -> None:
    given = [int(word) for word in sys.argv[1:]]
    runs, rounds = [*given, *(50, 100)[len(given) :]]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for at in range(runs):
            write_run(folder / "runs" / f"run-{at:03}", at, rounds)
        begun = time.perf_counter()
        from headwater.report import write

        imported = time.perf_counter()
        page = write(folder / "runs", folder / "report.html")
        written = time.perf_counter()
        print(f"{runs} runs of {rounds} rounds: {page.stat().st_size / 1e6:.2f} MB")
        print(f"imported in {imported - begun:.2f} s, written in {written - imported:.2f} s")
        for name, took in shown(page, folder / "profile").items():
            print(f"{name} after {took / 1000:.2f} s")


def write_run(path: Path, at: int, rounds: int, clients: int = 20) -> None:
    """A run with the files and keys that a real one has."""
    path.mkdir(parents=True)
    method, seed = f"method {at // 5}", at % 5
    (path / "config.toml").write_text(
        f'seed = {seed}\nrounds = {rounds}\n[data]\nname = "digits"\n[partition]\nclients = {clients}\nsectors = 2\n'
        f'[algorithm]\nname = "{method}"\nmu = {at // 5}\n'
    )
    rows = []
    for number in range(1, rounds + 1):
        value = 0.9 - 0.7 * math.exp(-number / (5 + at))
        sent = {"up": 1000 * (1 + at), "down": 1000}
        row: dict[str, Any] = {"round": number, "accuracy": value, "loss": 2 - 2 * value}
        row["seconds"] = {"train": 0.4, "distill": 0.1, "evaluate": 0.1}
        row["bytes"] = {"server_sector": sent, "sector_client": sent}
        row["client_accuracy"] = {f"c{client}": value - client / 100 for client in range(clients)}
        row["distill"] = {"s0": {"teacher_accuracy": value, "student_before": value - 0.1, "student_after": value}}
        rows.append(json.dumps(row))
    (path / "rounds.jsonl").write_text("\n".join(rows) + "\n")
    counts = [[(client * 7 + label * at) % 13 for label in range(10)] for client in range(clients)]
    split = {"sectors": [client % 2 for client in range(clients)], "counts": counts, "sha256": f"{seed}"}
    (path / "partition.json").write_text(json.dumps(split))
    result = {"algorithm": method, "seed": seed, "rounds": rounds, "accuracy": value, "partition_sha256": f"{seed}"}
    result["confusion"] = [[90 if r == c else (r + c) % 3 for c in range(10)] for r in range(10)]
    (path / "result.json").write_text(json.dumps(result))


def shown(page: Path, profile: Path) -> dict[str, float]:
    """Milliseconds from the request to each stage."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or shutil.which("google-chrome") or ""
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    best: dict[str, float] = {}
    try:
        for _ in range(OPENED):
            driver.get(page.as_uri())
            while not (found := driver.execute_script(TIMES)):
                time.sleep(0.05)
            best = {name: min(took, best.get(name, took)) for name, took in found.items()}
    finally:
        driver.quit()
    return best


if __name__ == "__main__":
    main()
