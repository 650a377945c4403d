"""Memory follows what a round needs: an average takes models one at a time and lets each go."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

import toys
from headwater.core.params import Params
from headwater.engines.inline import Inline
from headwater.training.loop import train


def most_models_held(method: str, clients: int, **more: Any) -> int:
    """The largest number of different models that the inline engine held at the end of any task."""
    most = 0

    class Counting(Inline):
        def _execute(self, name: str) -> None:
            nonlocal most
            super()._execute(name)
            held = [each for v in self._values.values() for each in (v.values() if isinstance(v, dict) else [v])]
            models = {v.vector.data_ptr() for v in held if isinstance(v, Params)}
            most = max(most, len(models))

    engine = Counting()
    sections: dict[str, Any] = {"partition": {"clients": clients, "scheme": "iid"}, "rounds": 3} | more
    train(toys.tiny(method, **sections), engine=engine)
    engine.close()
    assert most > 0
    return most


@pytest.mark.parametrize(("method", "bound"), [("fedavg", 3), ("hfedavg", 4)])
def test_averaging_streams(method: str, bound: int) -> None:
    """The global model, the one just trained and, where sectors average, the other sector's mean."""
    assert most_models_held(method, 4, engine={"stack": "off"}) <= bound
    assert most_models_held(method, 16, engine={"stack": "off"}) <= bound


def test_of_clients_trained_together_one_stack_is_held() -> None:
    """A model of 960 000 numbers is stacked by four."""

    def wide() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 120_000), nn.ReLU(), nn.Linear(120_000, 3))

    assert toys.tiny("fedavg", model=wide).stacking.width == 4
    assert most_models_held("fedavg", 16, model=wide) <= 4 + 2


def test_teachers_are_held_for_as_long_as_they_teach() -> None:
    assert most_models_held("fedhead", 16) >= 8
