"""The configuration: what it accepts and refuses, how layers merge, and that TOML gives back what was written."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater import presets
from headwater.algorithms.fedhead import FedHead
from headwater.config import Config, method_from, spec_from
from headwater.errors import ConfigError
from headwater.specs import DistillSpec, LocalSpec
from headwater.training.experiment import prepare

CONTRACT = """
seed = 0
rounds = 20
eval_every = 1

[data]
name = "digits"
label = "label"
client = ""
sector = ""
fraction = 1.0
validation = 0.1
reference = "holdout"
reference_size = 5000

[partition]
scheme = "dirichlet"
alpha = 0.1
clients = 20
sectors = 2
assign = "random"
participation = 1.0
local_test = 0.0

[model]
name = "auto"

[algorithm]
name = "fedhead"

[local]
[sector]
[server]
[engine]
[privacy]
[faults]
"""


def refused(*sets: str, source: str | Path | None = None, **direct: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        Config.load(source, list(sets), **direct)
    return str(caught.value)


class TestDefaults:
    def test_nothing_given_is_the_documented_tree(self, tmp_path: Path) -> None:
        file = tmp_path / "whole.toml"
        file.write_text(CONTRACT)
        assert Config.load(file) == Config() == Config.load()

    def test_importing_it_imports_no_torch(self) -> None:
        code = "import sys, headwater.config; sys.exit('torch' in sys.modules)"
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

    def test_the_chosen_parts_bring_their_defaults(self) -> None:
        config = Config.load(None, ["model.name=cnn"])
        assert config.partition.options == {"alpha": 0.1, "drop_remainders": False}
        assert config.algorithm["leader"] == "random"
        assert config.model.options == {}  # what suits the method is known only once the run is prepared

    def test_what_is_not_set_in_a_stage_stays_unset(self) -> None:
        assert Config.load(None, ["local.lr=0.5"]).local == {"lr": 0.5}
        assert Config().sector == {}

    def test_it_is_frozen(self) -> None:
        with pytest.raises(ValueError, match="frozen"):
            Config().rounds = 3  # type: ignore[misc]


class TestToml:
    @pytest.mark.parametrize("name", presets.names())
    def test_every_preset_comes_back_equal(self, name: str) -> None:
        config = Config.load(name)
        assert Config.from_toml(config.to_toml()) == config

    @given(
        seed=st.integers(0, 2**63),
        rounds=st.integers(1, 10**6),
        lr=st.floats(1e-12, 1e6),
        alpha=st.floats(1e-6, 1e6),
        clients=st.integers(2, 50),
        validation=st.one_of(st.floats(0, 0.999), st.integers(0, 10**6)),
        patience=st.one_of(st.none(), st.integers(1, 50)),
        name=st.text("abcäß \"'\\#=[]/", min_size=1).map(lambda text: f"./{text}.npz"),
    )
    def test_any_values_come_back_equal(self, **v: Any) -> None:
        config = Config(
            seed=v["seed"],
            rounds=v["rounds"],
            data={"name": v["name"], "validation": v["validation"]},
            partition={"alpha": v["alpha"], "clients": v["clients"], "assign": [i % 2 for i in range(v["clients"])]},
            local={"lr": v["lr"]},
            sector={"patience": v["patience"]},
        )
        assert Config.from_toml(config.to_toml()) == config

    def test_none_is_kept_as_a_word(self) -> None:
        config = Config.load(None, ["sector.patience=none"])
        assert config.sector == {"patience": None}
        assert 'patience = "none"' in config.to_toml()

    def test_broken_text_is_one_sentence(self) -> None:
        with pytest.raises(ConfigError, match="not valid TOML"):
            Config.from_toml("rounds = ")


class TestLayers:
    def test_set_wins_over_the_file_and_direct_options_over_both(self, tmp_path: Path) -> None:
        file = tmp_path / "mine.toml"
        file.write_text('extends = "demo"\nrounds = 7\nseed = 1\n[local]\nlr = 0.3\n')
        config = Config.load(file, ["rounds=8", "local.batch=4"], rounds=9)
        assert (config.rounds, config.seed, config.local) == (9, 1, {"lr": 0.3, "batch": 4})

    def test_a_file_extends_its_neighbour(self, tmp_path: Path) -> None:
        (tmp_path / "below").mkdir()
        (tmp_path / "base.toml").write_text("rounds = 3\nseed = 5\n")
        (tmp_path / "below/leaf.toml").write_text('extends = "../base.toml"\nrounds = 4\n')
        config = Config.load(tmp_path / "below/leaf.toml")
        assert (config.rounds, config.seed) == (4, 5)

    @pytest.mark.parametrize(
        ("text", "value"),
        [("3", 3), ("fixed", "fixed"), ("'fixed'", "fixed"), ("fedhead+", "fedhead+"), ("", ""), ("[1, 0]", [1, 0])],
    )
    def test_set_values_are_toml_and_a_bare_word_is_text(self, text: str, value: Any) -> None:
        from headwater.config.load import pairs

        assert pairs([f"a.b={text}"]) == {"a": {"b": value}}

    def test_a_new_method_keeps_what_it_knows_and_drops_the_rest(self) -> None:
        plus = Config.load("fedhead/table7", ["algorithm.name=fedhead+"])
        assert plus.algorithm["leader"] == "fixed"
        assert plus.server["patience"] == 5
        flat = Config.load("fedhead/table7", ["algorithm.name=fedavg"])
        assert "leader" not in flat.algorithm
        assert flat.sector == flat.server == {}
        assert flat.local["epochs"] == 20

    def test_a_new_scheme_drops_the_options_of_the_old(self) -> None:
        assert Config.load("fedhead/table2", ["partition.scheme=iid"]).partition.options == {}

    def test_an_option_of_an_automatic_model_is_never_dropped(self) -> None:
        config = Config.load(None, ["model.shortcut=padding"])
        with pytest.raises(ConfigError, match=r"model\.shortcut"):
            config.merged({"model": {"name": "cnn"}})

    def test_steps_replace_epochs_of_an_earlier_layer(self) -> None:
        config = Config.load("fedhead/common", ["local.steps=9"])
        assert config.local["steps"] == 9
        assert "epochs" not in config.local

    def test_a_method_by_itself_is_a_source(self) -> None:
        assert Config.load("fedavg") == Config.load(None, ["algorithm.name=fedavg"])

    def test_python_values_are_taken_as_they_are_meant(self) -> None:
        config = Config.load(None, [], partition__alpha=np.float64(0.5), data__name=Path("a/b.npz"))
        assert (config.partition.options["alpha"], config.data.name) == (0.5, "a/b.npz")


class TestSeveralMethods:
    def test_a_setting_goes_to_those_that_have_it(self) -> None:
        sets = ["algorithm.leader=fixed", "sector.lr=0.5", "rounds=3"]
        flat, head = Config.load_each(["fedavg", "fedhead"], None, sets)
        assert (flat.rounds, head.rounds) == (3, 3)
        assert "leader" not in flat.algorithm
        assert flat.sector == {}
        assert (head.algorithm["leader"], head.sector) == ("fixed", {"lr": 0.5})

    def test_a_setting_that_nobody_has_is_refused(self) -> None:
        with pytest.raises(ConfigError, match=r"sector\.lr has no effect"):
            Config.load_each(["fedavg", "feddf"], None, ["sector.lr=0.5"])
        with pytest.raises(ConfigError, match=r"algorithm\.leader"):
            Config.load_each(["fedavg", "feddf"], None, ["algorithm.leader=fixed"])

    def test_a_preset_serves_them_all(self) -> None:
        head, flat, df = Config.load_each(["fedhead", "fedavg", "feddf"], "fedhead/table2")
        assert head.local == flat.local == df.local
        assert head.server == {}
        assert df.server["clip"] is None

    def test_a_misspelt_stage_key_in_a_file_is_refused_even_if_unused(self, tmp_path: Path) -> None:
        file = tmp_path / "mine.toml"
        file.write_text("[server]\nlearning = 3\n")
        assert "server.learning" in refused(source=file)


class TestChangeOfMethod:
    """What a preset has for other methods comes back with them."""

    def test_afterwards_is_as_before(self) -> None:
        asked = Config.load("fedhead/table4", ["algorithm.name=fedhead+"])
        changed = Config.load("fedhead/table4").merged({"algorithm": {"name": "fedhead+"}})
        assert changed == asked
        assert changed.server["patience"] == 5
        there_and_back = changed.merged({"algorithm": {"name": "fedavg"}}).merged({"algorithm": {"name": "fedhead+"}})
        assert there_and_back.server == asked.server

    def test_what_is_changed_with_it_takes_precedence(self) -> None:
        changes = {"algorithm": {"name": "fedhead+"}, "server": {"steps": 7}}
        server = Config.load("fedhead/table4").merged(changes).server
        assert (server["steps"], server.get("epochs"), server["weight_decay"]) == (7, None, 1e-4)

    def test_a_copy_gets_it_too(self) -> None:
        small = ["data.name=digits", "data.reference=holdout", "data.reference_size=50", "data.validation=50"]
        config = Config.load("fedhead/common", small)
        copied = config.model_copy(update={"algorithm": {"name": "fedhead+"}})
        server = prepare(copied).config.server
        assert (server["epochs"], server["batch"], server["restore"]) == (20, 128, "last")

    def test_a_copy_is_checked_too(self) -> None:
        copied = Config().model_copy(update={"seed": 3, "partition": {"clients": 7}})
        assert copied == Config(seed=3, partition={"clients": 7})
        assert Config().model_copy(update={"seed": 3}) == Config(seed=3)
        with pytest.raises(ConfigError, match=r"partition\.clients"):
            Config().model_copy(update={"partition": {"clients": 0}})
        with pytest.raises(ConfigError, match="rounds"):
            Config().model_copy(update={"rounds": 0})

    def test_it_is_no_part_of_the_configuration(self) -> None:
        config = Config.load("fedhead/table4")
        assert config.server == {}
        assert Config.from_toml(config.to_toml()) == config


class TestDifference:
    def test_where_it_is_computed_makes_no_other_run(self) -> None:
        mine = Config.load(None, ["engine.name=pool", "engine.workers=3"], data__dir="elsewhere")
        assert mine.difference(Config()) is None

    def test_the_first_differing_key_is_named(self) -> None:
        mine = Config.load(None, ["partition.alpha=1", "local.lr=0.5"])
        assert mine.difference(Config()) == ("partition.alpha", 1.0, 0.1)
        assert Config().difference(Config.load(None, ["local.lr=0.5"])) == ("local.lr", None, 0.5)


class TestRefusals:
    def test_the_sentence_names_key_value_and_what_is_accepted(self) -> None:
        assert refused("rounds=0") == "rounds must be a whole number of at least 1, got 0"
        assert refused("local.lr=-1") == "local.lr must be a number above 0, got -1"
        assert refused("partition.participation=1.5") == (
            "partition.participation must be a number above 0 and of at most 1, got 1.5"
        )
        assert refused("algorithm.leader=fixd") == (
            "algorithm.leader must be one of 'random', 'fixed', 'rotating', got 'fixd'; did you mean 'fixed'?"
        )

    def test_several_problems_are_counted(self) -> None:
        assert refused("rounds=0", "seed=x", "local.lr=z", "local.batch=0").endswith("(and 3 more problems)")
        assert refused("rounds=0", "seed=x").endswith("(and 1 more problem)")

    def test_a_key_in_the_wrong_section_is_sent_to_its_own(self) -> None:
        assert "did you mean 'partition.alpha'?" in refused("data.alpha=1")
        assert "did you mean 'local.lr' or 'sector.lr' or 'server.lr'?" in refused("lr=1")

    def test_an_option_of_another_choice_says_whose_are_accepted(self) -> None:
        assert "accepted in [partition] with 'iid'" in refused("partition.scheme=iid", "partition.min_size=3")

    def test_building_one_by_hand_is_refused_in_the_same_words(self) -> None:
        with pytest.raises(ConfigError, match="rounds must be a whole number of at least 1, got 0"):
            Config(rounds=0)


class TestMethods:
    def test_a_method_is_built_from_its_options_and_specs(self) -> None:
        local, sector = LocalSpec(epochs=1), DistillSpec(epochs=2)
        made = method_from(FedHead, {"name": "fedhead", "leader": "fixed"}, {"local": local, "sector": sector})
        assert (made.leader, made.local, made.sector) == ("fixed", local, sector)

    def test_a_stage_that_a_method_does_not_have_is_a_sentence(self) -> None:
        with pytest.raises(ConfigError, match=r"no setting called 'algorithm\.server'"):
            method_from(FedHead, {}, {"server": DistillSpec(epochs=1)})

    def test_a_clash_inside_a_stage_is_a_sentence(self) -> None:
        with pytest.raises(ConfigError, match=r"^local: give either epochs or steps"):
            spec_from("local", LocalSpec, {"epochs": 1, "steps": 1})
