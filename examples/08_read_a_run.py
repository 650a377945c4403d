"""Read the files that a run leaves: rounds.jsonl, result.json and the model.

    python examples/08_read_a_run.py

`headwater run fedavg --out runs/mine` leaves the same files; `headwater report runs/mine` makes a page of them.
"""

import json
from pathlib import Path

from safetensors.torch import load_file

import headwater as hw

folder = Path("runs/mine")
run = hw.run("fedavg", model="mlp", clients=4, sectors=2, rounds=3, local__epochs=1, out=folder)

# config.toml is the complete configuration, with every default: `headwater run config.toml` repeats the run.
print("files:", *sorted(path.name for path in folder.iterdir()))

# rounds.jsonl has one JSON object per round, written when the round ends.
for line in (folder / "rounds.jsonl").read_text(encoding="utf-8").splitlines():
    row = json.loads(line)
    sent = row["bytes"]["sector_client"]
    print(f"round {row['round']}: accuracy {row['accuracy']:.3f}, {sent['up']} bytes up, {sent['down']} bytes down")

# result.json has the final numbers, the ledger, the confusion matrix and the hashes of split and model.
result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
low, high = result["accuracy_ci95"]
print(f"accuracy {result['accuracy']:.3f}, 95 % interval from {low:.3f} to {high:.3f}")
for move in result["ledger"]["moves"]:  # what was sent, from whom to whom, how often
    print(f"  {move['purpose']}: {move['from']} -> {move['to']}, {move['count']} x {move['kind']}")

# model.safetensors has the tensors by name: load them into the same architecture, here or in another program.
tensors = load_file(folder / "model.safetensors")
model = run.model  # in another program: build the architecture yourself
model.load_state_dict(tensors)
print(f"{sum(tensor.numel() for tensor in tensors.values())} numbers in {len(tensors)} tensors: {', '.join(tensors)}")
