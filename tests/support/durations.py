"""How long each test takes: a table that is measured (`make durations`), and what follows from it.

A test that takes at least SLOW seconds is marked `slow`: `make check` leaves it out. A test that the table does not
have is quick until it is measured.
"""

from __future__ import annotations

from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import NamedTuple

TABLE = Path(__file__).parents[1] / "durations.txt"
SLOW = 0.1
TITLE = """\
# Seconds of each test that takes at least {slow}, set-up and clean-up included (`make durations`, {workers} workers).
# Each line below has a tier, its tests, and their seconds: quick ones run in `make check`, slow ones only in
# `make test`, exhaustive ones only in `make test-all`.
"""


class Tier(NamedTuple):
    tests: int
    seconds: float


@cache
def slow_tests() -> dict[str, float]:
    """Their seconds, by name."""
    lines = [line for line in TABLE.read_text().splitlines() if not line.startswith("#")]
    return {name: float(seconds) for seconds, name in (line.strip().split(maxsplit=1) for line in lines)}


def tiers() -> dict[str, Tier]:
    """What the table says in all."""
    rows = [line.split() for line in TABLE.read_text().splitlines() if line.startswith("#   ")]
    return {name: Tier(int(tests), float(seconds)) for _, name, tests, seconds in rows}


def write(seconds: dict[str, float], exhaustive: set[str], workers: int) -> None:
    counts: dict[str, int] = defaultdict(int)
    sums: dict[str, float] = defaultdict(float)
    for name, duration in seconds.items():
        tier = "exhaustive" if name in exhaustive else "slow" if duration >= SLOW else "quick"
        counts[tier] += 1
        sums[tier] += duration
    lines = [f"#   {tier:10} {counts[tier]:6} {sums[tier]:9.1f}\n" for tier in ("quick", "slow", "exhaustive")]
    slow = sorted((name, round(duration, 1)) for name, duration in seconds.items() if duration >= SLOW)
    lines += [f"{duration:7.1f}  {name}\n" for name, duration in slow]
    TABLE.write_text(TITLE.format(slow=SLOW, workers=workers) + "".join(lines))
