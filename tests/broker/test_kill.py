"""A few of the kill -9 cycles of benchmarks/broker_kill.py."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from broker_kill import torture


@pytest.mark.slow
def test_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    counts = torture(tmp_path, cycles=6, seed=5)
    assert counts["acknowledged"] > 100
    assert counts["deliveries"] > 100
