"""Compare methods over several seeds: means, intervals and cost.

    python examples/06_compare_seeds.py

For each seed, all methods get the same data, the same split and the same initial weights.
"""

import headwater as hw

comparison = hw.compare(
    ["fedavg", "fedprox", "hfedavg"],
    seeds=[0, 1, 2],
    data="digits",
    model="mlp",
    clients=8,
    sectors=2,
    alpha=1.0,
    rounds=2,
    local__epochs=3,
)

# One dictionary per method: the mean over seeds, its 95 % interval, and the cost. `target` is an accuracy from 0 to 1.
for row in comparison.rows(target=0.5):
    interval = f"[{row['accuracy_low']:.3f}, {row['accuracy_high']:.3f}]"
    print(f"{row['method']}: accuracy {row['accuracy']:.3f} {interval}, rounds to 0.5: {row['rounds_to_target']}")

# A DataFrame of numbers, with the difference to the first method paired by seed.
print(comparison.table()[["accuracy", "difference", "difference low", "difference high", "star"]])

# The table of a paper: mean ± interval, the best value of each column in bold. `to_latex()` writes it for LaTeX.
print(comparison.to_markdown())

# All runs are still there, for other statistics: here the difference of two methods for each seed.
accuracy = {(run.result["algorithm"], run.result["seed"]): run.accuracy for run in comparison.runs}
for seed in (0, 1, 2):
    print(f"seed {seed}: fedprox - fedavg = {accuracy['fedprox', seed] - accuracy['fedavg', seed]:+.4f}")
