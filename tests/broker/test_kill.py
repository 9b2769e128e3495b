"""A few of the kill -9 cycles of tests/support/broker_kill.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.broker_kill import torture


@pytest.mark.exhaustive  # `make test` has crashes of the simulator
def test_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    counts = torture(tmp_path, cycles=6, seed=5)
    assert counts["acknowledged"] > 100
    assert counts["deliveries"] > 100
