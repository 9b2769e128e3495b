"""A short run of tests/support/fuzz_snapshot.py: forged snapshots are refused or can be used; nothing crashes."""

from __future__ import annotations

import time
from collections import Counter

import pytest

from support.fuzz_snapshot import fuzz


@pytest.mark.exhaustive  # `make test` forges each array once, in test_damage.py
def test_forged_snapshots_do_no_harm() -> None:
    counts: Counter[str] = Counter()
    for attempt in range(10):  # one is enough, unless the machine is busy
        found, failures = fuzz(seconds=10, seed=int(time.time()) + 1_000_000 * attempt)
        assert not failures, "\n".join(failures)
        counts += found
        if counts["refused"] and counts["used"]:
            return
    pytest.fail(f"100 seconds were not enough for one of each: {counts}")
