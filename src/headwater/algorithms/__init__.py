"""The methods by name, each with its row of the stage table and what it needs: one paper, one file."""

from __future__ import annotations

from headwater.registry import Entry, Registry

TRAIN = "train from the one model"
NOBODY = "nobody"
AVERAGE = "average at the server"
STATE = "client state"
REFERENCE = "reference data"


def _row(target: str, summary: str, local: str, teachers: str, consolidation: str, *needs: str) -> Entry:
    stages = (("local", local), ("teachers", teachers), ("consolidation", consolidation))
    return Entry(f"headwater.algorithms.{target}", summary, (*stages, ("needs", ", ".join(needs) or "nothing")))


ALGORITHMS = Registry(
    "method",
    {
        "fedavg": _row("fedavg:FedAvg", "average of clients", TRAIN, NOBODY, AVERAGE),
        "hfedavg": _row(
            "hfedavg:HFedAvg",
            "average of sectors of clients, at two paces",
            "train from the sector's model",
            NOBODY,
            "average at sectors several times, then at the server",
        ),
        "fedprox": _row(
            "fedprox:FedProx",
            "clients are pulled to the received model",
            f"{TRAIN}, pulled to it",
            NOBODY,
            AVERAGE,
        ),
        "scaffold": _row(
            "scaffold:Scaffold", "control variates against client drift", f"{TRAIN}, corrected", NOBODY, AVERAGE, STATE
        ),
        "feddyn": _row(
            "feddyn:FedDyn",
            "dynamic regularisation aligns client optima",
            f"{TRAIN}, regularised",
            NOBODY,
            "average and shift at the server",
            STATE,
        ),
        "fedavgm": _row(
            "fedavgm:FedAvgM",
            "average with momentum at the server",
            TRAIN,
            NOBODY,
            "average, then step with momentum",
        ),
        "mtgc": _row(
            "mtgc:Mtgc",
            "two corrections at two timescales",
            "train from the sector's model, corrected twice",
            NOBODY,
            "average at sectors several times, then at the server",
            STATE,
        ),
        "hfedprox": _row(
            "hfedprox:HFedProx",
            "two paces, clients pulled towards their sector's model",
            "train from the sector's model, pulled to it",
            NOBODY,
            "average at sectors several times, then at the server",
        ),
        "hfeddyn": _row(
            "hfeddyn:HFedDyn",
            "two paces with dynamic regularisation",
            "train from the sector's model, regularised",
            NOBODY,
            "average and shift at sectors several times, then average at the server",
            STATE,
        ),
        "hscaffold": _row(
            "hscaffold:HScaffold",
            "two paces with control variates inside sectors",
            "train from the sector's model, corrected",
            NOBODY,
            "average at sectors several times, then at the server",
            STATE,
        ),
        "fedmd": _row(
            "fedmd:FedMd",
            "personal models agree on public data",
            "digest the consensus, then train the own model",
            "clients → every client",
            "none",
            REFERENCE,
            "labels of it",
            STATE,
        ),
        "feddf": _row(
            "feddf:FedDf",
            "clients teach the server",
            TRAIN,
            "clients → server",
            "average, then distil at the server",
            REFERENCE,
        ),
        "fedbe": _row(
            "fedbe:FedBe",
            "clients and models sampled around them teach the server",
            TRAIN,
            "clients, their mean and samples → server",
            "average, then distil at the server with averaged weights",
            REFERENCE,
        ),
        "fed-ensemble": _row(
            "fed_ensemble:FedEnsemble",
            "several models, each trained by every client in turn",
            "train from the model whose turn it is",
            "all models together predict",
            "average by model",
        ),
        "fedeed": _row(
            "fedeed:FedEed",
            "several averaged models teach the designated one",
            "train from the cohort's model",
            "averaged models of the last rounds → server",
            "average by cohort, distil the designated model",
            REFERENCE,
        ),
        "fedhkd": _row(
            "fedhkd:FedHkd",
            "class-wise knowledge is shared beside the model, with noise",
            f"{TRAIN}, guided by knowledge",
            "class means of all clients → every client",
            AVERAGE,
        ),
        "fedhkd-star": _row(
            "fedhkd:FedHkdStar",
            "the same without pulling representations",
            f"{TRAIN}, guided by soft predictions",
            "class means of all clients → every client",
            AVERAGE,
        ),
        "fedhead": _row(
            "fedhead:FedHead",
            "sectors teach their leaders",
            TRAIN,
            "sector members → their leader",
            "distil at leaders, average at the server",
        ),
        "fedhead+": _row(
            "fedhead:FedHeadPlus",
            "sectors teach their leaders, leaders teach the server",
            TRAIN,
            "sector members → their leader, then leaders → server",
            "distil at leaders, average, distil at the server",
            REFERENCE,
        ),
        "moon": _row(
            "moon:Moon",
            "representations kept near the global and away from the last local model",
            f"{TRAIN}, contrasted",
            NOBODY,
            AVERAGE,
            STATE,
        ),
        "fedproto": _row(
            "fedproto:FedProto",
            "personal models share class prototypes",
            "train the own model towards prototypes",
            "class means of all clients → every client",
            "none",
            STATE,
        ),
        "fedgen": _row(
            "fedgen:FedGen",
            "a generator learnt from clients regularises them",
            f"{TRAIN}, with generated features",
            "clients → generator at the server",
            AVERAGE,
            "label counts",
        ),
        "fedalign": _row(
            "fedalign:FedAlign",
            "the last block is aligned with a thinner copy of itself",
            f"{TRAIN}, with aligned Lipschitz constants",
            NOBODY,
            AVERAGE,
        ),
        "fedma": _row(
            "fedma:FedMa",
            "neurons are matched layer by layer before averaging",
            "train the layers that are not frozen yet",
            NOBODY,
            "match and average layer by layer",
        ),
        "frame": _row(
            "frame:Frame",
            "the three stages as slots: any trainer, any teacher, any consolidation",
            "as the local slot says",
            "as the ensemble slot says",
            "as the consolidate slot says",
        ),
        "centralized": _row(
            "centralized:Centralized",
            "reference: all data pooled at the server (data leaves its clients)",
            "train on the pooled data",
            NOBODY,
            "none",
        ),
        "local": _row(
            "local:Local",
            "reference: every client alone, nothing is shared",
            "train from its own model",
            NOBODY,
            "none",
            STATE,
        ),
    },
    extendable=True,
)
