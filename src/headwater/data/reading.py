"""How the inputs of a model were read, so that new data can be read in the same way.

A trained model has it in the metadata of its file, and a federation in federation.json: kind of data, columns, and the
means, words and vocabularies that all clients agreed on before round 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from headwater.data import DATASETS, PATHS, kind_of_path
from headwater.data.arrays import as_float
from headwater.data.preparation import Arrays, from_json, to_json
from headwater.data.table_columns import Encoded

if TYPE_CHECKING:
    from headwater.config.sections import DataConfig
    from headwater.data.preparation import Exchange
    from headwater.data.split import Split

TABLE, TEXT, IMAGES, ARRAYS = "table", "text", "images", "arrays"
SAMPLE = 256  # samples that are checked for whether inputs were bytes


@dataclass(frozen=True)
class Reading:
    """How inputs were read.

    Args:
        kind: "table", "text", "images" or "arrays".
        label: the column of labels.
        columns: the feature columns of a table, in the model's order.
        worded: those that hold words.
        text: the column of texts.
        test: the column that marks rows for tests, if there is one.
        resize: whether images of another size are resized instead of refused.
        tokenizer: folder of the pretrained model whose tokenizer made tokens of texts; empty for none.
        name: of the exchange in which clients agreed on `settled`.
        settled: its result, such as means and vocabularies.
    """

    kind: str = ARRAYS
    label: str = ""
    columns: tuple[str, ...] = ()
    worded: tuple[str, ...] = ()
    text: str = ""
    test: str = ""
    resize: bool = False
    tokenizer: str = ""
    name: str = ""
    settled: Arrays = ()

    @staticmethod
    def of(fields: Mapping[str, Any]) -> Reading:
        """The inverse of `describe`.

        Raises:
            TypeError, ValueError, AttributeError: the fields are not what `describe` returned.
        """
        known = dict(fields) | {key: tuple(fields.get(key, ())) for key in ("columns", "worded")}
        return Reading(**known | {"settled": from_json(fields.get("settled", ()))})


def describe(data: DataConfig, split: Split, exchange: Exchange | None) -> dict[str, Any]:
    """The fields of a `Reading` as JSON; empty for plain arrays.

    Args:
        data: the section [data] of the configuration.
        split: the data, as the model takes it.
        exchange: what clients agreed on before round 1.
    """
    options, kind = data.options, kind_of_path(data.name)
    way = None if exchange is None else exchange.way
    fields: dict[str, Any] = {}
    if isinstance(way, Encoded):
        names = way.columns.names
        worded = [names[at] for at in way.columns.worded]
        fields = {"kind": TABLE, "label": data.label, "columns": list(names), "worded": worded}
    elif split.words is not None and (data.name in DATASETS or (kind in PATHS[1:] and options.get("text"))):
        fields = {"kind": TEXT, "label": data.label, "text": options.get("text") or "text"}
        fields |= {"tokenizer": options["tokenizer"]} if options.get("tokenizer") else {}
    elif exchange is None and _were_bytes(split.train.x):
        fields = {"kind": IMAGES, "resize": bool(kind == PATHS[2] and options.get("pixels"))}
    elif exchange is not None:
        fields = {"kind": ARRAYS}
    test = options.get("test") if fields.get("label") and kind is not None else None
    if test and not Path(test).is_file():
        fields["test"] = test  # a column
    if exchange is not None:
        fields |= {"name": exchange.name, "settled": to_json(exchange.settled)}
    return fields


def _were_bytes(x: Tensor) -> bool:
    """Whether inputs are images that were scaled from bytes, so that image files may be used."""
    if x.dim() != 4 or x.shape[1] not in (1, 3) or x.dtype != torch.float32:
        return False
    first = x[:SAMPLE]
    if not bool((first.abs() <= 1).all()):
        return False
    return as_float(((first + 1) * 127.5).round().to(torch.uint8)).equal(first)
