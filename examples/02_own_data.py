"""Train on your own data: from arrays, and from a table in a .csv file.

    python examples/02_own_data.py

docs/data.md lists the other sources: .parquet and .npz files, image folders, one file per client, texts, functions.
"""

import csv

import numpy as np

import headwater as hw

SMALL = {"rounds": 4, "sectors": 2, "local__epochs": 4, "seed": 0}

# Two classes in four dimensions: class 1 is shifted by 2 along every axis. Half of the rows are for testing.
rng = np.random.default_rng(0)
y = np.arange(600) % 2
x = rng.normal(size=(600, 4)) + 2 * y[:, None]

# 1. Arrays. Headwater splits the training rows over the clients, as [partition] says.
data = hw.Data(x[:300], y[:300], x[300:], y[300:], class_names=["benign", "malignant"])
run = hw.run("fedavg", data=data, clients=6, alpha=1.0, **SMALL)
print(f"arrays, split by Headwater: {run.accuracy:.3f} with {run.result['clients']} clients")

# 2. Arrays that are already split: `client` names the owner of each training row, `sector` the owner's sector.
hospital = [f"hospital {row // 75}" for row in range(300)]
region = ["north" if row < 150 else "south" for row in range(300)]
data = hw.Data(x[:300], y[:300], x[300:], y[300:], client=hospital, sector=region)
run = hw.run("fedhead", data=data, **SMALL)
print(f"arrays, already split: {run.accuracy:.3f} with {run.result['clients']} clients")

# 3. A table. Each row names its client; numbers are standardised and words become indicator columns. Clients send
#    only counts, sums and sums of squares for this, before the first round; the ledger has these bytes under `setup`.
with open("visits.csv", "w", newline="", encoding="utf-8") as file:
    table = csv.writer(file)
    table.writerow(["age", "pressure", "ward", "hospital", "outcome"])
    for row in range(600):
        ward, outcome = "surgery" if x[row, 2] > 1 else "medicine", "ill" if y[row] else "well"
        table.writerow([f"{x[row, 0]:.3f}", f"{x[row, 1]:.3f}", ward, f"hospital {row // 150}", outcome])

run = hw.run("fedavg", data="visits.csv", label="outcome", client="hospital", **SMALL)
print(f"table, split by its column: {run.accuracy:.3f} with {run.result['clients']} clients")
setup = run.result["ledger"]["setup"]["sector_client"]
print(f"preparing the columns moved {setup['up_bytes']} bytes up and {setup['down_bytes']} bytes down")
