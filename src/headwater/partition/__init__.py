"""The ways to spread a data set over clients. Nothing here needs torch."""

from __future__ import annotations

from headwater.registry import Entry, Registry

PARTITIONS = Registry(
    "partition",
    {
        "iid": Entry("headwater.partition.iid:Iid", "every client a fair sample of the whole, sizes within one"),
        "dirichlet": Entry(
            "headwater.partition.dirichlet:Dirichlet",
            "each class over the clients by Dirichlet shares; labels and sizes both unequal (alpha, drop_remainders)",
        ),
        "dirichlet-balanced": Entry(
            "headwater.partition.dirichlet:DirichletBalanced",
            "the same, but full clients get no more and none stays small (alpha, min_size)",
        ),
    },
)
