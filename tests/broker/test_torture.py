"""The simulator: the broker keeps its promises, a seed replays exactly, and known bugs are found."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from hitbox.broker.store.store import Store
from hitbox.simulator.torture import torture

COMMIT, BEGIN = Store.commit, Store.begin


def run(*words: str, hash_seed: int = 0) -> subprocess.CompletedProcess[str]:
    call = [sys.executable, "-m", "hitbox", "torture", *words]
    return subprocess.run(call, capture_output=True, text=True, env={**os.environ, "PYTHONHASHSEED": str(hash_seed)})


@pytest.mark.slow
def test_every_promise_is_kept() -> None:
    report = torture(1, schedules=50)
    assert [failure.problem for failure in report.failures] == []
    for fault in ("killed", "power cut", "disk full", "I/O error", "short write", "clock jump", "acks doubled"):
        assert report.faults[fault] > 0, fault
    assert report.counts["redeliveries"] > 100


@pytest.mark.slow
def test_a_seed_replays_exactly() -> None:
    """In another process too, where sets have another order."""
    first, second = (json.loads(run("--seed", "7", "--schedules", "4", "--json", hash_seed=n).stdout) for n in (1, 2))
    del first["seconds"], second["seconds"]
    assert first == second
    assert first["counts"]["deliveries"] > 0


def forgets_to_reload(store: Store) -> None:
    """As it was once: SQLite had rolled back by itself."""
    if store.db.in_transaction:
        store.db.execute("ROLLBACK")
        store.ledger.reload()


def beacon_before_commit(store: Store) -> None:
    assert store.beacon is not None
    store.beacon.write(store.ledger.look("commits").rows + 1)
    COMMIT(store)


def does_not_sync(store: Store) -> None:
    store.db.execute("PRAGMA synchronous=OFF")
    BEGIN(store)


def forgets_that_it_was_sent(store: Store, *key: Any) -> None:
    """A refused delivery looks new after the next start."""
    subscriber, level, seq, tries = key
    for *row, _ in list(
        store.deliveries.scan("subscriber = ? AND urgency = ? AND seq = ?", (subscriber, 9 - level, seq))
    ):
        store.deliveries.put([(*row[:4], 0, tries, row[6])])


def loses_a_delivery(store: Store, rows: Any, matched: int, failed: Any = ()) -> None:
    RECORD(store, rows[1:] if len(rows) > 3 else rows, matched, failed)


RECORD = Store.record
BUGS: dict[str, tuple[Callable[..., None], str]] = {
    "rollback": (forgets_to_reload, "ledger"),
    "commit": (beacon_before_commit, "the end is lost"),
    "begin": (does_not_sync, "does not open"),
    "retry": (forgets_that_it_was_sent, "is not marked"),
    "record": (loses_a_delivery, "is owed to|stays pending|but the broker says|never got"),
}


@pytest.mark.slow
@pytest.mark.parametrize("method", BUGS)
def test_a_bug_is_found(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bug, says = BUGS[method]
    monkeypatch.setattr(Store, method, bug)
    found: list[str] = []
    for seed in range(1, 80):
        found += [failure.problem for failure in torture(seed, schedules=1).failures]
        if any(re.search(says, problem) for problem in found):
            return
    pytest.fail(f"nobody noticed: {found}")


def test_a_failure_names_its_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Store, "begin", does_not_sync)
    report = torture(2, schedules=4)
    assert report.failures
    failure = report.failures[0]
    assert failure.replay == f"hitbox torture --seed {failure.seed} --schedules 1"
    (again,) = torture(failure.seed, schedules=1).failures
    assert again.problem == failure.problem


def test_the_command() -> None:
    done = run("--seed", "3", "--schedules", "1")
    assert done.returncode == 0, done.stderr
    assert "no failures" in done.stdout
