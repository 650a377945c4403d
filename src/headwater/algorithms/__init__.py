"""The methods by name, each with its row of the stage table: one paper, one file."""

from __future__ import annotations

from headwater.registry import Entry, Registry


def _row(target: str, summary: str, local: str, teachers: str, consolidation: str) -> Entry:
    stages = (("local", local), ("teachers", teachers), ("consolidation", consolidation))
    return Entry(f"headwater.algorithms.{target}", summary, stages)


ALGORITHMS = Registry(
    "method",
    {
        "fedavg": _row(
            "fedavg:FedAvg", "average of clients", "train from the one model", "nobody", "average at the server"
        ),
        "hfedavg": _row(
            "hfedavg:HFedAvg",
            "average of sectors of clients, at two paces",
            "train from the sector's model",
            "nobody",
            "average at sectors several times, then at the server",
        ),
        "feddf": _row(
            "feddf:FedDf",
            "clients teach the server",
            "train from the one model",
            "clients → server",
            "average, then distil at the server",
        ),
        "fedhead": _row(
            "fedhead:FedHead",
            "sectors teach their leaders",
            "train from the one model",
            "sector members → their leader",
            "distil at leaders, average at the server",
        ),
        "fedhead+": _row(
            "fedhead:FedHeadPlus",
            "sectors teach their leaders, leaders teach the server",
            "train from the one model",
            "sector members → their leader, then leaders → server",
            "distil at leaders, average, distil at the server",
        ),
        "centralized": _row(
            "centralized:Centralized",
            "reference: all data pooled at the server (data leaves its clients)",
            "train on the pooled data",
            "nobody",
            "none",
        ),
        "local": _row(
            "local:Local",
            "reference: every client alone, nothing is shared",
            "train from its own model",
            "nobody",
            "none",
        ),
    },
    extendable=True,
)
