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
        "client-prior": Entry(
            "headwater.partition.prior:ClientPrior",
            "a Dirichlet class prior for each client, sizes within one; only labels are unequal (alpha)",
        ),
        "blocked": Entry(
            "headwater.partition.blocked:Blocked",
            "balanced Dirichlet shares inside blocks of clients that share nothing, as FedDF's code (alpha, block)",
        ),
        "two-level": Entry(
            "headwater.partition.two_level:TwoLevel",
            "sectors by a class prior, then their clients by another (setting, alpha, alpha_client)",
        ),
        "shards": Entry(
            "headwater.partition.shards:Shards",
            "sorted by label, cut and dealt: each client a few pieces of one class or two (shards)",
        ),
        "quantity": Entry(
            "headwater.partition.quantity:Quantity",
            "labels alike, sizes unequal: shuffled and cut by Dirichlet shares (alpha, min_size)",
        ),
        "drawn": Entry(
            "headwater.partition.drawn:Drawn",
            "any number of clients that draw from one pool: no split, they may share samples (size, alpha)",
        ),
        "natural": Entry(
            "headwater.partition.given:Natural",
            "as the data has it: a client column, or a folder or file for each client; chosen by itself for such data",
        ),
        "manifest": Entry(
            "headwater.partition.given:Manifest",
            "exactly the split of a partition.json, from `headwater partition` or a run's directory (manifest, sha256)",
        ),
    },
)
