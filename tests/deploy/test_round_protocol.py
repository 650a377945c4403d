"""The round protocol between real parties, whose messages are lost, doubled, delayed and reordered."""

from __future__ import annotations

import pytest

from machines import run
from round_machine import RoundProtocol


def test_messages_lost_doubled_and_reordered() -> None:
    run(RoundProtocol, examples=3, steps=12)


@pytest.mark.thorough
def test_many_messages_lost_doubled_and_reordered() -> None:
    run(RoundProtocol, examples=12, steps=30)
