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


def test_only_subscribers_of_the_same_owner_are_looked_at(tmp_path: Path) -> None:
    """Whoever they belong to meanwhile, also after what was undone."""
    rng, store, number, owners = random.Random(7), Store(tmp_path), 0, dict.fromkeys(range(1, SUBSCRIBERS + 1), "")
    letters: dict[int, int] = dict.fromkeys(owners, 0)
    with store.transaction():
        for subscriber in owners:
            store.subscribers.put(subscriber, f"s{subscriber}", b"{}")
    for _ in range(400):
        before = dict(owners), dict(letters)
        store.begin()
        for _ in range(rng.randrange(1, 4)):
            subscriber = rng.randrange(1, SUBSCRIBERS + 1)
            if rng.random() < 0.2:
                owners[subscriber] = rng.choice(["ann", "bob", "eve"])
                store.subscribers.put(subscriber, f"s{subscriber}", b"{}", owners[subscriber])
                continue
            number += 1
            store.letters.add([(number, subscriber, 4, number, "s", 1, "why", 0, None)])
            letters[subscriber] += 1
            store.letters.limit(subscriber, 5, 12)
            same = {n: letters[n] for n in owners if owners[n] == owners[subscriber]}
            same[subscriber] = min(same[subscriber], 5)
            letters |= expected(same, 12)
            now = {n: store.letters.counts.now(n) for n in owners}
            of_owner = [now[n] for n in same], [letters[n] for n in same]
            assert sorted(of_owner[0]) == sorted(of_owner[1])
            letters = now
        if rng.random() < 0.2:
            store.rollback()
            owners, letters = before
        else:
            store.commit()
    store.close()


def test_a_letter_costs_the_same_however_many_belong_to_others(tmp_path: Path) -> None:
    store, asked = Store(tmp_path), list[int]()
    with store.transaction():
        store.subscribers.put(1, "mine", b"{}", "ann")
        for subscriber in range(2, 300):
            store.subscribers.put(subscriber, f"s{subscriber}", b"{}", "bob" if subscriber % 2 else "")
        store.letters.add([(n, n, 4, n, "s", 1, "why", 0, None) for n in range(1, 300)])
    store.begin()
    store.letters.limit(1, 100, 1)
    now = store.letters.counts.now
    store.letters.counts.now = lambda n: (asked.append(n), now(n))[1]  # type: ignore[method-assign]
    for number in range(300, 310):
        store.letters.add([(number, 1, 4, number, "s", 1, "why", 0, None)])
        store.letters.limit(1, 100, 1)
    assert set(asked) == {1}
    store.rollback()
    store.close()
