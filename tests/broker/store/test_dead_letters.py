"""Dead letters beyond a limit: those with the most lose first, in one step, however many subscribers there are."""

from __future__ import annotations

import random
from pathlib import Path

from hitbox.broker.store.store import Store

SUBSCRIBERS = 12


def expected(counts: dict[int, int], most: int) -> dict[int, int]:
    """One letter after the other goes, of a subscriber with the most."""
    counts = dict(counts)
    while sum(counts.values()) > most:
        counts[max(counts, key=lambda n: (counts[n], -n))] -= 1
    return counts


def test_the_largest_lose_first(tmp_path: Path) -> None:
    for seed in range(60):
        rng = random.Random(seed)
        store = Store(tmp_path / str(seed))
        counts = {number: rng.choice([1, 2, 5, rng.randrange(1, 40)]) for number in range(1, SUBSCRIBERS + 1)}
        store.begin()
        number = 0
        for subscriber, count in counts.items():
            rows = [(number + n, subscriber, 4, number + n, "s", 1, "why", 0, None) for n in range(1, count + 1)]
            store.letters.add(rows)
            number += count
        most = rng.randrange(0, number + 2)
        asked = rng.randrange(1, SUBSCRIBERS + 1)
        store.letters.limit(asked, 10**6, most)
        left = {subscriber: store.letters.counts.now(subscriber) for subscriber in counts}
        stored = dict(store.db.execute("SELECT subscriber, count(*) FROM dead GROUP BY subscriber"))
        assert {n: count for n, count in left.items() if count} == stored
        assert sorted(left.values()) == sorted(expected(counts, most).values()), (seed, counts, most)
        kept = store.db.execute("SELECT max(seq) - min(seq) + 1 = count(*) FROM dead GROUP BY subscriber")
        assert all(row[0] for row in kept), "the newest of each are left, without a gap"
        store.rollback()
        store.close()
