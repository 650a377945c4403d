"""Published sets of labelled texts, from their authors' files or as packed tables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from headwater.data import DatasetInfo
from headwater.data.base import Data
from headwater.data.files import Array, Published, PublishedFile, absent, broken, root
from headwater.data.table_columns import parse
from headwater.data.text import Length, Vocabulary, Words, encode
from headwater.data.tokenizer import token_count
from headwater.errors import DataError

if TYPE_CHECKING:
    from pandas import DataFrame

NEWS = ("World", "Sports", "Business", "Sci/Tech")
Part = Literal["phrases", "sentences"]
Tested = Literal["sentences", "tenth"]
TENTH_SEED = 100  # by which FedHEAD's program draws its test phrases
PUBLISHED = {
    "ag_news": Published(
        "https://github.com/mhjabreel/CharCnn_Keras/tree/master/data/ag_news_csv",
        ("train.csv", "test.csv"),
        {
            "train.csv": PublishedFile("b1a00f826fdfbd249f79597b59e1dc12"),
            "test.csv": PublishedFile("d52ea96a97a2d943681189a97654912d"),
            "train_subset.csv.gz": PublishedFile("e897183178efd27dca40a30f4264d08092e09c054211b06453b55c69ab5c5b1b"),
            "test.csv.gz": PublishedFile("833bd98f12b2ccd132b6ab29e8b13424681271d44ace4b7db2e683db9e1d8d11"),
        },
    ),
    "sst2": Published(
        "https://dl.fbaipublicfiles.com/glue/data/SST-2.zip",
        ("SST-2.zip",),
        {
            "SST-2.zip": PublishedFile("9f81648d4199384278b86e315dac217c"),
            "glue_train_phrases.csv.gz": PublishedFile(
                "a1d7b403aea00c6acc13df0dd2fc8262ebb919c7bdf94f8f1ae3f036ce7e7df4"
            ),
            "train_sentences.csv.gz": PublishedFile("ae0a69cf46c6d2afe781de8a8e792e22c7958f27f2efe7f9216a8ecbbbff0c06"),
            "test.csv.gz": PublishedFile("29f7d65122ffe61dda12fb7c1285b352126a45002626262ac07cf5b2f13496be"),
        },
    ),
}


@DatasetInfo("ag_news", "news in a few lines, 4 classes (vocabulary, words, length, tokenizer)")
def ag_news(
    data_dir: Path | None = None,
    *,
    vocabulary: Vocabulary = "hashed",
    words: Words = 10_000,
    length: Length = 128,
    tokenizer: str = "",
) -> Data:
    """Headlines and leads of news, from train_subset.csv.gz and test.csv.gz or the authors' train.csv and test.csv.

    Args:
        data_dir: the data directory; None for the default one.
        vocabulary: "hashed" or "counted".
        words: how many token numbers there are.
        length: tokens per text.
        tokenizer: folder of a pretrained model, whose tokens replace `vocabulary` and `words`.
    """
    folder = root(data_dir) / "ag_news"
    packed, official = folder / "train_subset.csv.gz", folder / "train.csv"
    if packed.is_file():
        files = packed, folder / "test.csv.gz"
        columns = None
    elif official.is_file():
        files = official, folder / "test.csv"
        columns = ["label", "title", "description"]  # without a header, and classes count from 1
    else:
        raise absent("ag_news", packed, "http://groups.di.unipi.it/~gulli/AG_corpus_of_news_articles.html", "train.csv")
    frames = [_read(path, columns) for path in files]
    texts = [(frame["title"].astype(str) + " " + frame["description"].astype(str)).tolist() for frame in frames]
    first = 0 if columns is None else 1
    y = [_labels(frame, path, len(NEWS), first) for frame, path in zip(frames, files, strict=True)]
    return _data("ag_news", texts, y, NEWS, vocabulary, words, length, tokenizer)


@DatasetInfo("sst2", "sentences about films, liked or not (part, tested, vocabulary, words, length, tokenizer)")
def sst2(
    data_dir: Path | None = None,
    *,
    part: Part = "phrases",
    tested: Tested = "sentences",
    vocabulary: Vocabulary = "hashed",
    words: Words = 10_000,
    length: Length = 128,
    tokenizer: str = "",
) -> Data:
    """Sentences about films, liked or not: `phrases` trains on all of GLUE's phrases, `sentences` on whole ones.

    The test part is the labelled test sentences of the packed set. GLUE's own test file has no labels, so with GLUE's
    files dev.tsv is the test part.

    Args:
        data_dir: the data directory; None for the default one.
        part: "phrases" or "sentences".
        tested: the test part: "sentences", as above, or a "tenth" of the training part, which is then not trained
            on, as in FedHEAD. Phrases of one sentence are in both, so accuracy is higher than on sentences.
        vocabulary: "hashed" or "counted".
        words: how many token numbers there are.
        length: tokens per text.
        tokenizer: folder of a pretrained model, whose tokens replace `vocabulary` and `words`.
    """
    folder = root(data_dir) / "sst2"
    packed = folder / ("glue_train_phrases.csv.gz" if part == "phrases" else "train_sentences.csv.gz")
    official = next((p for p in (folder / "train.tsv", folder / "SST-2" / "train.tsv") if p.is_file()), None)
    if packed.is_file():
        files = packed, folder / "test.csv.gz"
        column = "text"
    elif official is not None and part == "phrases":
        files = official, official.with_name("dev.tsv")
        column = "sentence"
    else:
        source = "https://gluebenchmark.com/tasks" if part == "phrases" else "https://nlp.stanford.edu/sentiment"
        raise absent(f"sst2 ({part})", packed, source, "train.tsv of GLUE's SST-2")
    needed = files if tested == "sentences" else files[:1]
    frames = [_read(path) for path in needed]
    for path, frame in zip(needed, frames, strict=True):
        if column not in frame.columns:
            raise broken(path, f"it has no column {column!r}")
    texts = [frame[column].astype(str).tolist() for frame in frames]
    y = [_labels(frame, path, 2, 0) for frame, path in zip(frames, needed, strict=True)]
    if tested == "tenth":
        held, kept = _tenth(len(y[0]))
        texts, y = [[texts[0][i] for i in rows] for rows in (kept, held)], [y[0][kept], y[0][held]]
    return _data("sst2", texts, y, ("negative", "positive"), vocabulary, words, length, tokenizer)


def _tenth(rows: int) -> tuple[Array, Array]:
    """The rows that are tested and those that train, in the order of the file; drawn as scikit-learn draws them."""
    order = np.random.RandomState(TENTH_SEED).permutation(rows)
    held, kept = np.split(order, [math.ceil(0.1 * rows)])
    return np.sort(held), np.sort(kept)


def _read(path: Path, columns: Sequence[str] | None = None) -> DataFrame:
    if not path.is_file():
        raise DataError(f"{path.parent} has no {path.name}, which belongs to the set beside it; put it there")
    frame = parse(path, columns, text=True)
    if frame.isna().to_numpy().any() or (columns is not None and (frame == "").to_numpy().any()):
        raise broken(path, "a line has fewer columns than the others")
    return frame


def _labels(frame: DataFrame, path: Path, classes: int, first: int) -> Array:
    if "label" not in frame.columns:
        raise broken(path, "it has no column 'label'")
    try:
        y = frame["label"].to_numpy().astype(np.int64) - first
    except (ValueError, TypeError, OverflowError) as error:
        raise broken(path, f"a label is not a number ({error})") from error
    if not len(y) or y.min() < 0 or y.max() >= classes:
        raise broken(path, f"labels are to be {first} to {classes - 1 + first}")
    return y


def _data(
    name: str,
    texts: Sequence[Sequence[str]],
    y: Sequence[Array],
    names: Sequence[str],
    vocabulary: Vocabulary,
    words: int,
    length: int,
    tokenizer: str,
) -> Data:
    x, x_test, preparation = encode(texts[0], texts[1], vocabulary, words, length, tokenizer)
    words = token_count(tokenizer) if tokenizer else words
    return Data(x, y[0], x_test, y[1], name=name, class_names=names, tokens=True, words=words, preparation=preparation)
