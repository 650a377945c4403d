"""Run a whole tree on Ray: server, sectors and clients, with the same result as in one process.

    pip install 'headwater[ray]'
    python examples/07_ray_tree.py

This starts Ray on this machine and stops it after the run. For an existing cluster, add `address="10.0.0.1:6379"` or
`address="auto"`; docs/ray.md shows how to keep the tasks of a sector on one node.
"""

import importlib.util
import sys

import headwater as hw

SETTINGS = {"model": "mlp", "clients": 4, "sectors": 2, "rounds": 2, "local__epochs": 1, "seed": 0}

if importlib.util.find_spec("ray") is None:
    print("skipped: ray is not installed; get it with: pip install 'headwater[ray]'")
    sys.exit()

here = hw.run("fedhead", **SETTINGS)  # sequentially, in this process
on_ray = hw.run("fedhead", engine="ray", workers=2, **SETTINGS)  # each task in one of two Ray actors

print(f"in this process: accuracy {here.accuracy:.3f}, model {here.result['model_sha256'][:16]}")
print(f"on Ray:          accuracy {on_ray.accuracy:.3f}, model {on_ray.result['model_sha256'][:16]}")
print("the same model, bit for bit:", here.result["model_sha256"] == on_ray.result["model_sha256"])

# The time line has every task: its round, its first node, how many nodes it covers, and the worker that ran it.
for span in on_ray.timeline:
    if span["round"] == 1:
        print(f"  {span['task']} at {span['node']} (nodes: {span.get('nodes', 1)}) on worker {span['worker']}")
