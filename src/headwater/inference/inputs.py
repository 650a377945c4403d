"""Converts new data (arrays, tables, files, texts) to the inputs of a trained model.

Tables are matched by column name and scaled with the statistics that the clients agreed on; images are scaled as in
training; texts get the same token numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headwater.data import TABLES
from headwater.data.arrays import as_float, inputs
from headwater.data.client_files import ClientTable, image_inputs, table_inputs, text_inputs
from headwater.data.files import read_npz
from headwater.data.folders import IMAGES as IMAGE_FILES
from headwater.data.folders import files_below
from headwater.data.reading import IMAGES, TABLE, TEXT, Reading
from headwater.errors import DataError
from headwater.models.base import ModelSpec
from headwater.registry import path_exists

Say = Callable[[str], None]
READER = "this model"  # in messages about tables
FILES = 256  # image files that are read at a time


@dataclass(frozen=True)
class InputReader:
    """Reads new data for one model.

    Args:
        spec: the model.
        reading: how its training data was read.
        words: how many token numbers the model knows, if its inputs are tokens.
        say: called with a sentence about values that are accepted but may be a mistake.
    """

    spec: ModelSpec
    reading: Reading
    words: int | None
    say: Say

    def batches(self, data: Any, size: int) -> Iterator[Tensor]:
        """Inputs in batches.

        Args:
            data: array, tensor, table, path, several image paths, or an iterable of batches such as a `DataLoader`.
            size: rows of a batch.

        Raises:
            DataError: the data does not fit the model; the message names the column, shape or file.
        """
        if isinstance(data, torch.utils.data.DataLoader):
            for batch in data:
                yield self._checked(self._tensor(batch[0] if isinstance(batch, tuple | list) else batch))
            return
        files = self._image_files(data)
        if files is not None:
            for at in range(0, len(files), FILES):
                yield from torch.split(self._rows(files[at : at + FILES]), size)
            return
        yield from torch.split(self._checked(self._tensor(data)), size)

    def names(self, data: Any) -> list[str] | None:
        """Names of the rows where they have some: the paths of image files."""
        files = self._image_files(data)
        return None if files is None else [str(file) for file in files]

    def _image_files(self, data: Any) -> list[Path] | None:
        paths = [data] if isinstance(data, str | Path) else data
        if not isinstance(paths, Sequence) or not paths or not all(isinstance(path, str | Path) for path in paths):
            return None
        if self.reading.kind == TEXT and not isinstance(data, str | Path):
            return None  # a list of texts
        found = [Path(path).expanduser() for path in paths]
        if len(found) == 1 and path_exists(found[0]) and found[0].is_dir():
            files = [file for file in files_below(found[0]) if file.suffix.lower() in IMAGE_FILES]
            if not files:
                raise DataError(f"the folder {found[0]} holds no images (.png, .jpg, …); name a folder that has some")
            return files
        if all(path.suffix.lower() in IMAGE_FILES for path in found):
            for path in found:
                if not path.is_file():
                    raise DataError(f"there is no file {path}; name an existing image")
            return found
        return None

    def _rows(self, files: Sequence[Path]) -> Tensor:
        if len(self.spec.shape) != 3 or self.spec.tokens:
            raise DataError(f"{files[0]} is an image, and this model takes {self._wanted()}; give these instead")
        resize = self.reading.resize or self.reading.kind != IMAGES
        return image_inputs(files, self.spec.shape, resize, str(files[0].parent))

    def _tensor(self, data: Any) -> Tensor:
        """All rows of data that is not image files."""
        if isinstance(data, str | Path):
            data = self._file(Path(data).expanduser())
        if isinstance(data, ClientTable):
            return self._table(data)
        if type(data).__module__.partition(".")[0] == "pandas":
            frame = data.to_frame() if data.ndim == 1 else data
            return self._table(ClientTable.of(frame, [*self.reading.worded, self.reading.text], READER))
        if self.reading.kind == TEXT and isinstance(data, Sequence) and all(isinstance(one, str) for one in data):
            assert self.words is not None
            return text_inputs(data, self.words, self.spec.shape[0], self.reading.settled)
        if self.reading.kind == TABLE:
            return self._unnamed(data)
        return as_float(inputs(data, "the data", tokens=self.spec.tokens))

    def _file(self, path: Path) -> Any:
        if not path_exists(path):
            raise DataError(
                f"there is no file {str(path)[:200]}; name a .csv, .parquet or .npz file, an image or a folder "
                "of images"
            )
        if path.name.lower().endswith(TABLES):
            return ClientTable.read(path, [*self.reading.worded, self.reading.text], READER)
        if path.suffix.lower() == ".npz":
            arrays = read_npz(path)
            for key in ("x", "x_test"):
                if key in arrays:
                    return arrays[key]
            raise DataError(f"{path} holds {', '.join(arrays) or 'nothing'}; the rows to classify must be named x")
        raise DataError(
            f"{path} is a file of a kind that is not read; name a .csv, .tsv, .parquet or .npz file, an image, or a "
            "folder of images"
        )

    def _table(self, table: ClientTable) -> Tensor:
        reading = self.reading
        if reading.kind == TABLE:
            return table_inputs(table, reading.columns, reading.worded, reading.settled, self.say)
        if reading.kind == TEXT:
            assert self.words is not None
            how = (self.words, self.spec.shape[0], reading.settled, reading.tokenizer)
            return text_inputs(table.texts(reading.text), *how)
        return self._checked(as_float(inputs(_numbers(table), table.name, tokens=self.spec.tokens)))

    def _unnamed(self, data: Any) -> Tensor:
        """Rows without column names, for a model of a table: columns in the order of training."""
        import pandas as pd

        columns = self.reading.columns
        try:
            rows = np.asarray(data)
        except ValueError as error:
            raise DataError(f"the data is not a regular array ({error}); every row needs the same length") from error
        if rows.ndim != 2 or rows.shape[1] != len(columns):
            raise DataError(
                f"the data has shape {rows.shape}, and this model takes rows of {len(columns)} columns "
                f"({', '.join(columns[:8])}{', …' if len(columns) > 8 else ''}); give these in this order, or a "
                "DataFrame, whose columns may have any order"
            )
        if (empty := pd.isna(rows).any(axis=1)).any():
            raise DataError(
                f"the data holds NaN, the first in row {int(empty.argmax()) + 1}; replace it, leave the row out, or "
                "give a DataFrame, in which empty cells count as missing values"
            )
        return self._table(
            ClientTable.of(pd.DataFrame(rows, columns=[*columns]).infer_objects(), self.reading.worded, READER)
        )

    def _checked(self, x: Tensor) -> Tensor:
        """Refuse inputs of another shape, and token numbers that the model does not know."""
        shape, wanted = tuple(x.shape[1:]), self.spec.shape
        flat = int(np.prod(shape)) if shape else 0
        if shape != wanted and len(wanted) == 3 and len(shape) == 1 and flat == int(np.prod(wanted)):
            return x.reshape(-1, *wanted)
        if shape != wanted:
            raise DataError(
                f"the data has rows of shape {shape}, and this model takes {self._wanted()}; give such rows"
            )
        if self.words is not None and len(x) and not 0 <= int(x.min()) <= int(x.max()) < self.words:
            raise DataError(
                f"the data has token numbers from {int(x.min())} to {int(x.max())}, and this model knows 0 to "
                f"{self.words - 1}; make them with the vocabulary of its training"
            )
        return x

    def _wanted(self) -> str:
        shape, reading = self.spec.shape, self.reading
        if reading.kind == TABLE:
            return (
                f"tables with the columns {', '.join(reading.columns[:8])}{', …' if len(reading.columns) > 8 else ''}"
            )
        if reading.kind == TEXT:
            return f"texts, or {shape[0]} token numbers per row"
        if len(shape) == 3:
            return f"images of {shape[2]} x {shape[1]} px with {shape[0]} channel{'s' if shape[0] > 1 else ''}"
        return f"rows of shape {shape}"


def _numbers(table: ClientTable) -> Any:
    frame = table.natural
    odd = next((str(column) for column in frame.columns if frame[column].dtype.kind not in "biuf"), None)
    if odd is not None:
        raise DataError(
            f"{table.name}: column {odd!r} does not hold numbers, and this model was trained on plain arrays; leave it "
            "out or turn it into numbers"
        )
    return frame.to_numpy(dtype=np.float64)
