"""The starter project of `headwater new`: own data, own model, own method, and a configuration that uses them."""

from __future__ import annotations

import json
import random
from importlib.resources import files
from pathlib import Path

FILES = ("README.md", "experiment.toml", "my_method.py", "my_model.py")
DATA, SCHEMA, IGNORE = "measurements.csv", "headwater.schema.json", ".gitignore"
HEADER = "region,site,temperature,pressure,vibration,load,state"
STATES = {"normal": (60.0, 2.0, 0.3, 0.5), "wear": (68.0, 1.8, 0.9, 0.6), "leak": (62.0, 1.2, 0.4, 0.7)}
SITES, ROWS = {"north": ("n1", "n2", "n3"), "south": ("s1", "s2", "s3")}, 60


def write(folder: Path) -> list[Path]:
    """Write the project into an existing folder and return its files."""
    source = files(__name__)
    texts = {name: (source / name).read_text(encoding="utf-8") for name in FILES}
    texts |= {DATA: _measurements(), SCHEMA: _schema(), IGNORE: "runs/\n__pycache__/\n"}
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in texts]


def _measurements() -> str:
    """A table of machines at six sites in two regions, which differ in how often each state occurs."""
    draw = random.Random(0)
    lines = [HEADER]
    for region, sites in SITES.items():
        for number, site in enumerate(sites):
            weights = [4 if number == at else 1 for at in range(len(STATES))]
            for state in draw.choices([*STATES], weights, k=ROWS):
                temperature, pressure, vibration, load = STATES[state]
                values = (
                    draw.gauss(temperature, 3),
                    draw.gauss(pressure, 0.2),
                    draw.gauss(vibration, 0.15),
                    min(1.0, max(0.0, draw.gauss(load, 0.2))),
                )
                lines.append(",".join([region, site, *(f"{value:.3f}" for value in values), state]))
    return "\n".join(lines) + "\n"


def _schema() -> str:
    from headwater.config.json_schema import schema

    return json.dumps(schema(), indent=1, ensure_ascii=False) + "\n"
