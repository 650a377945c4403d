"""Use a trained model: from the run, from its folder, on a table with named columns.

    python examples/09_use_the_model.py

`headwater predict runs/flowers new.csv` does the same on the command line.
"""

from pathlib import Path

import numpy as np
from sklearn.datasets import load_iris

import headwater as hw

iris = load_iris(as_frame=True)
flowers = iris.data.assign(label=iris.target_names[iris.target])
flowers.to_csv("flowers.csv", index=False)

run = hw.run("fedavg", data="flowers.csv", clients=3, sectors=1, alpha=10.0, rounds=8, out="runs/flowers")
print(run)

# A table may have its columns in any order; they are found by name and scaled as in training.
model = hw.load("runs/flowers")
new = flowers.sample(frac=1.0, random_state=0)[["petal width (cm)", *iris.feature_names[:3], "label"]]
right = np.mean(model.predict(new) == new["label"])
print(f"{len(new)} rows, {right:.3f} of them right; classes: {', '.join(model.classes_)}")

# A column that is missing is named.
try:
    model.predict(new.drop(columns="petal width (cm)"))
except hw.DataError as error:
    print("refused:", error)

# The card beside the model says how it was made.
print(Path("runs/flowers/model.md").read_text(encoding="utf-8").splitlines()[0])
