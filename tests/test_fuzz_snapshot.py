"""A short run of benchmarks/fuzz_snapshot.py: forged snapshots are refused or can be used; nothing crashes."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

from fuzz_snapshot import fuzz


@pytest.mark.slow
def test_forged_snapshots_do_no_harm() -> None:
    counts, failures = fuzz(seconds=10, seed=int(time.time()))
    assert not failures, "\n".join(failures)
    assert counts["refused"]
    assert counts["used"]
