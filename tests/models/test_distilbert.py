"""DistilBERT from a directory that the test writes."""

from __future__ import annotations

import builtins
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import headwater as hw
from headwater.errors import ConfigError, MissingExtra
from headwater.models.base import ModelSpec

SIZES: dict[str, Any] = {"vocab_size": 20, "dim": 8, "n_layers": 2, "n_heads": 2, "hidden_dim": 16}


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A configuration alone."""
    from transformers import DistilBertConfig

    folder = tmp_path_factory.mktemp("bare")
    DistilBertConfig(max_position_embeddings=12, **SIZES).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def whole(bare: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With weights."""
    folder = tmp_path_factory.mktemp("whole")
    torch.manual_seed(1)
    made(bare).get_submodule("features.0.body").save_pretrained(folder)
    return folder


def made(folder: Path, length: int = 6) -> torch.nn.Module:
    return ModelSpec("distilbert", (length,), 3, {"path": str(folder)}).build()


def test_count_by_formula(bare: Path) -> None:
    """Words, places and a norm; of each layer four maps, two of the feed-forward part and two norms; two more maps."""
    d, h = 8, 16
    layer = 4 * (d * d + d) + d * h + h + h * d + d + 2 * 2 * d
    total = 20 * d + 12 * d + 2 * d + 2 * layer + d * d + d + d * 3 + 3
    assert ModelSpec("distilbert", (6,), 3, {"path": str(bare)}).count() == total


def test_weights_are_drawn_where_there_are_none_and_read_where_there_are(bare: Path, whole: Path) -> None:
    torch.manual_seed(5)
    first, second = made(bare).state_dict(), made(bare).state_dict()
    read, again = made(whole).state_dict(), made(whole).state_dict()
    body = [name for name in read if name.startswith("features.0.")]
    assert any(not torch.equal(first[name], second[name]) for name in body)
    assert all(torch.equal(read[name], again[name]) for name in body)
    assert not torch.equal(read["classifier.weight"], again["classifier.weight"])


def test_padding_is_not_looked_at(whole: Path) -> None:
    """A text is the same however much padding follows it; one more word makes another."""
    reader = made(whole).eval().get_submodule("features.0")
    words = torch.tensor([[5, 6, 7, 0, 0, 0]])
    torch.testing.assert_close(reader(words[:, :3]), reader(words))
    assert not torch.allclose(reader(words), reader(torch.tensor([[5, 6, 7, 8, 0, 0]])))


def test_it_is_the_first_word_that_stands_for_the_text(whole: Path) -> None:
    reader = made(whole).eval().get_submodule("features.0")
    words = torch.tensor([[0, 0, 5, 6, 7, 0]])
    states: Tensor = reader.body(input_ids=words, attention_mask=(words != 0).long()).last_hidden_state
    assert torch.equal(reader(words), states[:, 2])


def test_a_text_without_words_gives_numbers(whole: Path) -> None:
    assert bool(torch.isfinite(made(whole).eval()(torch.zeros(2, 6, dtype=torch.int64))).all())


def test_a_run(whole: Path) -> None:
    x = torch.randint(1, 20, (40, 6), generator=torch.Generator().manual_seed(0))
    data = hw.Data(x, torch.arange(40) % 2, x[:20], torch.arange(20) % 2, tokens=True)
    settings: dict[str, Any] = {"clients": 2, "sectors": 1, "rounds": 1, "local__epochs": 1, "engine": "inline"}
    run = hw.run("fedproto", data=data, model="distilbert", model__path=str(whole), share_params=True, **settings)
    assert run.result["model"] == "distilbert"
    start = made(whole).state_dict()["features.0.body.embeddings.word_embeddings.weight"]
    trained = run.params[""].named()["features.0.body.embeddings.word_embeddings.weight"]
    assert 0 < float((trained - start).abs().max()) < 0.1, "it began with the weights of the directory"


def test_more_tokens_than_it_knows(bare: Path) -> None:
    x = torch.arange(40).reshape(10, 4)
    data = hw.Data(x, torch.arange(10) % 2, x, torch.arange(10) % 2, tokens=True)
    with pytest.raises(ConfigError, match="has 40 token numbers, and model 'distilbert' knows the first 20"):
        hw.run("fedavg", data=data, model="distilbert", model__path=str(bare), clients=2, sectors=1)


class TestRefuses:
    def test_texts_that_are_too_long(self, bare: Path) -> None:
        with pytest.raises(ConfigError, match="texts of up to 12 tokens, got 13"):
            ModelSpec("distilbert", (13,), 3, {"path": str(bare)}).outline()

    def test_a_directory_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"there is no directory '.*absent'; give in model\.path one that"):
            made(tmp_path / "absent")

    def test_a_directory_of_something_else(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"holds no config\.json"):
            made(tmp_path)
        (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
        with pytest.raises(ConfigError, match="holds a 'bert', not a 'distilbert'"):
            made(tmp_path)

    def test_damaged_files(self, bare: Path, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_text('{"model_type": ')
        with pytest.raises(ConfigError, match=r"could not be read as a distilbert \(.*JSON"):
            made(tmp_path)
        (tmp_path / "config.json").write_bytes((bare / "config.json").read_bytes())
        (tmp_path / "model.safetensors").write_bytes(b"no weights")
        with pytest.raises(ConfigError, match="could not be read as a distilbert"):
            made(tmp_path)

    def test_a_name_that_was_never_fetched(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("HEADWATER_FETCH", raising=False)
        with pytest.raises(
            ConfigError, match=r"no distilbert called 'nobody-has-this' on this machine; set HEADWATER_F"
        ):
            ModelSpec("distilbert", (6,), 3, {"path": "nobody-has-this"}).outline()

    def test_without_the_library(self, monkeypatch: pytest.MonkeyPatch) -> None:
        real = builtins.__import__

        def without(name: str, *rest: Any) -> Any:
            if name == "transformers":
                raise ImportError("No module named 'transformers'")
            return real(name, *rest)

        monkeypatch.setattr(builtins, "__import__", without)
        with pytest.raises(MissingExtra, match=r"pip install 'headwater\[text\]'"):
            ModelSpec("distilbert", (6,), 3).outline()
