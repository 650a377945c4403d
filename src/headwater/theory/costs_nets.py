"""Cost of the methods that work on the network itself."""

from __future__ import annotations

from headwater.theory.traffic import FLAT, NUMBER, Active, Formula, Link, Options, Payload, Traffic, flat, straight


def _generator(who: Active, sizes: Payload, options: Options) -> Traffic:
    """A model each way, label counts up, and a generator down except in the first round."""
    taught = who.clients if int(options.get("round", 2)) > 1 else 0
    further = Link(who.clients * sizes.label_counts, taught * sizes.generator, 0, taught)
    return straight(who, sizes, options) + Traffic(further, further)


def _matched(who: Active, sizes: Payload, options: Options) -> Traffic:
    """A model down and its layers up one by one; every layer but the last comes back matched, with a place a neuron.

    `layers` and `neurons` (hidden ones) are of the model; without them it has one hidden layer.
    """
    n, layers = who.clients, int(options.get("layers", 2))
    hidden = int(options.get("neurons", sizes.features // 4))
    last = sizes.classes * (sizes.features + 4)
    back = sizes.model - last + NUMBER * hidden if layers > 1 else 0
    link = Link(n * sizes.model, n * (sizes.model + back), 0, n, n * layers)
    return Traffic(link, link)


FORMULAS: dict[str, Formula] = {
    "moon": Formula(FLAT, flat),
    "fedalign": Formula(FLAT, flat),
    "fedma": Formula("N, N | N, N (up layer by layer; matched layers down once more)", _matched),
    "fedgen": Formula("N, N | N, N (label counts up; from round 2 the generator down)", _generator),
}
