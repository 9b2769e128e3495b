"""Pending deliveries move between the log and their table: whatever happens to them, the store agrees with a model."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from hitbox.broker.store import recent
from hitbox.broker.store.store import Store

SUBSCRIBERS = (1, 2, 3)
Model = dict[tuple[int, int], tuple[int, bool, int]]
"""{(subscriber, event): (level, sent, tries)}"""


def opened(folder: Path) -> Store:
    store = Store(folder)
    with store.transaction():
        for number in SUBSCRIBERS:
            store.subscribers.put(number, f"n{number}", b"{}")
    return store


def stored(store: Store) -> Model:
    rows = [row for number in SUBSCRIBERS for row in store.deliveries.of(number)]
    found = {(row[0], row[2]): (9 - row[1], bool(row[4]), row[5]) for row in rows}
    assert len(found) == len(rows), "a delivery is there twice"
    return found


def after_a_kill(folder: Path, copy: Path) -> Model:
    """What a broker would find that starts on the files of now."""
    shutil.copytree(folder, copy)
    again = Store(copy)
    assert not again.problems
    found = stored(again)
    again.close()
    return found


class Walk:
    """Random changes of a store and of its model."""

    def __init__(self, store: Store, rng: random.Random):
        self.store, self.rng = store, rng
        self.model: Model = {}
        self.levels = rng.choice([1, 3, 10])

    def some(self, share: float) -> list[tuple[int, int]]:
        return [key for key in self.model if self.rng.random() < share]

    def record(self) -> None:
        for _ in range(self.rng.randint(1, 3)):
            seqs = range(self.store.events.table.next(), self.store.events.table.next() + self.rng.randint(1, 20))
            self.store.events.append([b'{"event":{}}'] * len(seqs), 0)
            rows = [
                (number, self.rng.randrange(self.levels), seq, "s", int(self.rng.random() < 0.3))
                for number in SUBSCRIBERS
                for seq in seqs
                if self.rng.random() < 0.6
            ]
            self.rng.shuffle(rows)
            self.store.deliveries.record(rows, seqs[-1])
            self.model |= {(row[0], row[2]): (row[1], bool(row[4]), 0) for row in rows}

    def acknowledge(self) -> None:
        gone = self.some(0.4)
        keys = [(number, self.model[number, seq][0], seq) for number, seq in gone]
        assert sum(self.store.deliveries.acknowledge([*keys, *keys[:2], (1, 0, 10**6)]).values()) == len(keys)
        for key in gone:
            del self.model[key]

    def fetch(self) -> None:
        number, limit = self.rng.choice(SUBSCRIBERS), self.rng.randint(1, 25)
        skip = {seq for owner, seq in self.some(0.1) if owner == number}
        mine = [(-one[0], seq, one) for (owner, seq), one in self.model.items() if owner == number and seq not in skip]
        expected = [(seq, *one) for _, seq, one in sorted(mine)]
        found, more = self.store.deliveries.fetch(number, skip, limit)
        assert [(one.seq, one.level, one.sent, one.tries) for one in found] == expected[:limit]
        assert more == (len(expected) > limit)
        for seq, level, _, tries in expected[:limit]:
            self.model[number, seq] = (level, True, tries)

    def settle(self) -> None:
        self.store.deliveries.settle(self.rng.choice([1, 10, 1000]))

    def compact(self) -> None:
        self.store.recent.compact()

    def retry(self) -> None:
        for number, seq in self.some(0.02):
            level, _, tries = self.model[number, seq]
            self.store.deliveries.retry(number, level, seq, tries + 1)
            self.model[number, seq] = (level, True, tries + 1)

    def replay(self) -> None:
        """Events that were acknowledged, perhaps a moment ago, come again."""
        number, events = self.rng.choice(SUBSCRIBERS), self.store.events.table.next()
        old = [seq for seq in range(1, events) if (number, seq) not in self.model and self.rng.random() < 0.1]
        assert self.store.deliveries.add_replayed(number, [(0, seq, "s") for seq in old]) == len(old)
        self.model |= {(number, seq): (0, True, 0) for seq in old}

    def forget(self) -> None:
        if self.rng.random() < 0.1:
            number = self.rng.choice(SUBSCRIBERS)
            self.store.remove_subscriber(number, f"n{number}")
            self.store.subscribers.put(number, f"n{number}", b"{}")
            self.model = {key: one for key, one in self.model.items() if key[0] != number}

    def step(self) -> None:
        steps = (
            self.record,
            self.acknowledge,
            self.fetch,
            self.fetch,
            self.settle,
            self.compact,
            self.retry,
            self.replay,
            self.forget,
        )
        self.rng.choice(steps)()

    def transaction(self) -> None:
        """A few steps, one in five times rolled back."""
        before = dict(self.model)
        self.store.begin()
        for _ in range(self.rng.randint(1, 6)):
            self.step()
        if self.rng.random() < 0.2:
            self.store.rollback()
            self.model = before
        else:
            self.store.commit()
        assert stored(self.store) == self.model
        assert self.store.deliveries.unacknowledged() == len(self.model)


@pytest.mark.parametrize("seed", range(12))
def test_the_store_agrees_with_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    rng = random.Random(seed)
    monkeypatch.setattr(recent, "MOST_RECENT", rng.choice([20, 100, 50_000]))
    monkeypatch.setattr(recent, "RECORD_BYTES", rng.choice([100, 16 * 2**20]))
    walk = Walk(opened(tmp_path / "a"), rng)
    for n in range(60):
        walk.transaction()
        if n % 10 == 9:
            assert after_a_kill(tmp_path / "a", tmp_path / f"killed-{n}") == walk.model
    walk.store.close()


def test_a_delivery_that_returned_to_the_log_is_settled_once(tmp_path: Path) -> None:
    """It is in two records: acknowledged after the first, replayed, and sent again. The first is settled alone."""
    store = opened(tmp_path / "a")
    with store.transaction():
        seq = store.events.append([b'{"event":{}}'], 0)
        store.deliveries.record([(1, 4, seq, "s", 1)], seq)
    with store.transaction():
        store.deliveries.acknowledge([(1, 4, seq)])
        store.deliveries.add_replayed(1, [(4, seq, "s")])
    with store.transaction():
        assert [one.seq for one in store.deliveries.fetch(1, set(), 10)[0]] == [seq]
    assert (store.deliveries.table.rows(), store.recent.count) == (0, 1)
    with store.transaction():
        assert store.deliveries.settle(1) == 1
    assert (store.deliveries.table.rows(), store.recent.count) == (1, 0)
    assert after_a_kill(tmp_path / "a", tmp_path / "killed") == {(1, seq): (4, True, 0)}
    store.close()


def test_a_row_that_was_sent_is_acknowledged_in_the_log(tmp_path: Path) -> None:
    """Rows with a text or with tries stay rows."""
    store = opened(tmp_path)
    with store.transaction():
        first = store.events.append([b'{"event":{}}'] * 4, 0)
        store.deliveries.record([(1, 4, seq, "s", 0) for seq in range(first, first + 4)], first + 3)
    with store.transaction():
        store.deliveries.settle()
        store.deliveries.retry(1, 4, first, 1)
    with store.transaction():
        assert [(one.seq, one.sent, one.tries) for one in store.deliveries.fetch(1, set(), 3)[0]] == [
            (first, True, 1),
            (first + 1, False, 0),
            (first + 2, False, 0),
        ]
    assert (store.deliveries.table.rows(), store.recent.count) == (2, 2)
    with store.transaction():
        assert store.deliveries.acknowledge([(1, 4, first + 1), (1, 4, first + 2)]) == {1: 2}
    assert (store.deliveries.table.rows(), store.recent.count) == (2, 0)
    store.close()
    again = Store(tmp_path)
    assert not again.problems
    assert stored(again) == {(1, first): (4, True, 1), (1, first + 3): (4, False, 0)}
    again.close()


def test_a_compact_log_has_only_what_is_pending(tmp_path: Path) -> None:
    store = opened(tmp_path / "a")
    for number in range(50):
        with store.transaction():
            seq = store.events.append([b'{"event":{}}'], 0)
            rows = [(2, 4, seq, "s", 0)] if number % 10 == 0 else []
            store.deliveries.record([(1, 4, seq, "s", 1), *rows], seq)
    with store.transaction():
        store.recent.compact()
    assert store.log.rows() == 50  # all are pending
    with store.transaction():
        store.deliveries.acknowledge([(1, 4, seq) for seq in range(1, 51)])
        store.recent.compact()
    assert store.log.rows() == 1
    expected = {(2, seq): (4, False, 0) for seq in range(1, 51, 10)}
    assert stored(store) == expected
    assert after_a_kill(tmp_path / "a", tmp_path / "killed") == expected
    with store.transaction():
        assert store.deliveries.settle() == 5
        store.recent.compact()
    assert (store.log.rows(), store.deliveries.table.rows()) == (0, 5)
    store.close()


@pytest.mark.parametrize("why", ["old", "refused"])
def test_a_search_for_what_expires_knows_what_became_a_row_behind_it(tmp_path: Path, why: str) -> None:
    store = opened(tmp_path)
    with store.transaction():
        first = store.events.append([b'{"event":{}}'] * 4, 100)
        store.deliveries.record([(2, 4, seq, "s", 0) for seq in range(first, first + 4)], first + 3)
        store.events.append([b'{"event":{},"ttl_seconds":5}', b'{"event":{},"ttl_seconds":9}'], 100)
    with store.transaction():
        store.deliveries.settle()
        store.deliveries.record([(1, 4, first + 4, "s", 0), (1, 4, first + 5, "s", 0)], first + 5)
    late, soonest, after = store.deliveries.expired((-1, 0, 0), 2, 10_000_000)
    assert (late, soonest) == ([], 0)
    assert after is not None
    with store.transaction():
        if why == "old":
            store.deliveries.settle()
        else:
            store.deliveries.retry(1, 4, first + 4, 1)
            store.deliveries.retry(1, 4, first + 5, 1)
    assert store.recent.count == 0
    while after is not None:
        store.begin()
        once = store.deliveries.expired(after, 2, 10_000_000)
        store.rollback()  # another operation of the group failed: it runs again
        with store.transaction():
            assert store.deliveries.expired(after, 2, 10_000_000) == once
        late, soonest, after = once
        assert late == []
    assert soonest == 5_000_100  # so it begins again
    late, soonest, after = store.deliveries.expired((-1, 0, 0), 20, 6_000_000)
    assert (late, soonest, after) == ([(1, 4, first + 4)], 9_000_100, None)
    with store.transaction():
        store.deliveries.record([], first + 5)
        store.deliveries.settle()
    assert store.deliveries.expired((-1, 0, 0), 20, 1)[1] == 5_000_100
    store.close()
