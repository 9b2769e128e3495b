"""The simulator: the broker keeps its promises, a seed replays exactly, and known bugs are found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hitbox.broker import admin, broker
from hitbox.broker.delivery.backlog import Backlog
from hitbox.broker.delivery.delivery import DeliveryTracker
from hitbox.broker.delivery.mailbox import Delivery, Mailbox
from hitbox.broker.store.commit_marker import CommitMarker
from hitbox.broker.store.deliveries import StoredDeliveries
from hitbox.broker.store.events import StoredEvents
from hitbox.broker.store.recent import RecentDeliveries, Removed
from hitbox.broker.store.retention import Retention, Trimmed
from hitbox.broker.store.space import Space
from hitbox.broker.store.store import Store
from hitbox.broker.store.subscribers import StoredSubscribers
from hitbox.broker.store.tables import NEVER, Meta
from hitbox.broker.subscribers.subscriber_record import SubscriberRecord
from hitbox.broker.subscribers.subscriptions import SubscriptionRegistry
from simulator.torture import torture

MOST_SEEDS = 200


def run(*words: str, hash_seed: int = 0) -> subprocess.CompletedProcess[str]:
    call = [sys.executable, "-m", "simulator", *words]
    tests = str(Path(__file__).parents[1])
    own = {"PYTHONPATH": tests, "PYTHONHASHSEED": str(hash_seed)}
    return subprocess.run(call, capture_output=True, text=True, env=os.environ | own)


def test_every_promise_is_kept() -> None:
    report = torture(900, schedules=80)
    assert [failure.problem for failure in report.failures] == []
    for fault in ("killed", "power cut", "disk full", "I/O error", "short write", "clock jump", "acks doubled"):
        assert report.faults[fault] > 0, fault
    for what in (
        "unmatched",
        "replayed",
        "revived",
        "dead letters",
        "schema changes",
        "ephemeral connections",
        "trimmed",
        "alice's deliveries",
        "alice's dead letters",
        "mallory's webhooks",
        "suspended",
    ):
        assert report.counts[what] > 0, what
    assert report.counts["redeliveries"] > 100


def test_a_seed_replays_exactly() -> None:
    """In another process too, where sets have another order."""
    first, second = (json.loads(run("--seed", "7", "--schedules", "8", "--json", hash_seed=n).stdout) for n in (1, 2))
    del first["seconds"], second["seconds"]
    assert first == second
    assert first["counts"]["deliveries"] > 0


# ---- planted bugs: each replaces one method, most of them by calling it in a wrong way

Bug = Callable[..., Any]
BUGS: dict[str, tuple[Any, str, Callable[[Any], Bug], int]] = {}


def bug(owner: Any, method: str, seed: int) -> Callable[[Callable[[Any], Bug]], Callable[[Any], Bug]]:
    """`seed`: of a schedule that found it once; it is tried first."""

    def add(make: Callable[[Any], Bug]) -> Callable[[Any], Bug]:
        BUGS[make.__name__] = (owner, method, make, seed)
        return make

    return add


# the store's word


@bug(Store, "rollback", seed=3)
def rollback_forgets_to_reload(_: Any) -> Bug:
    def bad(store: Store) -> None:  # as it was once: SQLite had rolled back by itself
        if store.db.in_transaction:
            store.db.execute("ROLLBACK")
            store.ledger.reload()

    return bad


@bug(Store, "commit", seed=2)
def marker_before_the_commit(right: Any) -> Bug:
    def bad(store: Store) -> None:
        assert store.commit_marker is not None
        store.commit_marker.write(store.ledger.entry("commits").rows + 1)
        right(store)

    return bad


@bug(CommitMarker, "write", seed=1)
def marker_never_written(_: Any) -> Bug:
    return lambda *_, **__: None


@bug(Store, "begin", seed=2)
def commits_are_not_synced(right: Any) -> Bug:
    def bad(store: Store) -> None:
        store.db.execute("PRAGMA synchronous=OFF")
        right(store)

    return bad


@bug(StoredDeliveries, "record", seed=2)
def a_delivery_is_lost(right: Any) -> Bug:
    return lambda store, rows, *rest: right(store, rows[1:] if len(rows) > 3 else rows, *rest)


@bug(StoredDeliveries, "acknowledge", seed=2)
def acknowledgements_are_lost(_: Any) -> Bug:
    return lambda store, keys: len(list(keys))


# recent deliveries


@bug(RecentDeliveries, "rollback", seed=3)
def recent_deliveries_are_not_rolled_back(_: Any) -> Bug:
    return lambda recent: recent._clear()


@bug(RecentDeliveries, "_add_step", seed=3)
def acknowledgements_are_only_in_memory(right: Any) -> Bug:
    return lambda recent, step: None if isinstance(step, Removed) else right(recent, step)


@bug(RecentDeliveries, "mark_sent", seed=3)
def fetched_deliveries_are_not_marked(_: Any) -> Bug:
    return lambda recent, keys: None


@bug(RecentDeliveries, "settle", seed=2)
def settling_loses_a_delivery(right: Any) -> Bug:
    return lambda recent, *rest: right(recent, *rest)[1:]


@bug(RecentDeliveries, "settle", seed=2)
def settling_forgets_what_was_acknowledged(right: Any) -> Bug:
    def bad(recent: RecentDeliveries, *rest: Any) -> Any:
        removed, recent._log.delete_through = recent._log.delete_through, lambda last: 0  # type: ignore[method-assign]
        try:
            return right(recent, *rest)
        finally:
            recent._log.delete_through = removed  # type: ignore[method-assign]

    return bad


@bug(RecentDeliveries, "next_of", seed=3)
def recent_deliveries_are_not_fetched(_: Any) -> Bug:
    return lambda recent, *rest: []


# order, window


@bug(Mailbox, "take", seed=7)
def least_urgent_first_in_memory(right: Any) -> Bug:
    def bad(mailbox: Mailbox, *rest: Any) -> list[Delivery]:
        mailbox._ready.reverse()
        try:
            found: list[Delivery] = right(mailbox, *rest)
        finally:
            mailbox._ready.reverse()
        return found

    return bad


@bug(StoredDeliveries, "fetch", seed=20)
def oldest_first_on_the_disk(right: Any) -> Bug:
    def bad(deliveries: StoredDeliveries, subscriber: int, skip: set[int], limit: int) -> Any:
        found, _ = right(deliveries, subscriber, skip, 10**6)
        return sorted(found)[:limit], len(found) > limit

    return bad


@bug(SubscriptionRegistry, "match", seed=2)
def least_urgent_first(right: Any) -> Bug:
    def bad(registry: SubscriptionRegistry, *rest: Any) -> Any:
        return [{9 - level: ids for level, ids in found.items()} for found in right(registry, *rest)]

    return bad


@bug(SubscriptionRegistry, "match", seed=2)
def a_group_is_mixed_up(right: Any) -> Bug:
    return lambda registry, *rest: right(registry, *rest)[::-1]


@bug(Mailbox, "window_left", seed=7)
def window_ignored(_: Any) -> Bug:
    return lambda mailbox, connection: 1000


@bug(Mailbox, "connect", seed=10)
def a_new_connection_gets_what_others_hold(right: Any) -> Bug:
    def bad(mailbox: Mailbox, *rest: Any) -> None:
        right(mailbox, *rest)
        for delivery in [one for one in mailbox.in_flight.values() if one.holder is not None]:
            mailbox._remove_in_flight(delivery.seq)
            mailbox._return(delivery)

    return bad


@bug(Mailbox, "_sent_now", seed=29)
def what_is_paused_is_sent_at_once(right: Any) -> Bug:
    def bad(mailbox: Mailbox) -> Any:
        before, mailbox.subscriber.paused = mailbox.subscriber.paused, False
        try:
            return right(mailbox)
        finally:
            mailbox.subscriber.paused = before

    return bad


@bug(broker, "record_of", seed=7)
def a_pause_is_not_stored(right: Any) -> Bug:
    return lambda options, webhook, paused, used: right(options, webhook, False, used)


# failures and tries


@bug(DeliveryTracker, "refuse", seed=2)
def refusals_are_lost(_: Any) -> Bug:
    return lambda post, mailbox, seqs, *rest: None


@bug(StoredDeliveries, "retry", seed=2)
def retries_are_lost(_: Any) -> Bug:
    return lambda store, *key: None


@bug(StoredDeliveries, "retry", seed=2)
def retries_look_new(_: Any) -> Bug:
    def bad(deliveries: StoredDeliveries, subscriber: int, level: int, seq: int, tries: int) -> None:
        row = deliveries.settled(subscriber, level, seq)
        if row is not None:
            deliveries.table.put([(*row[:4], 0, tries, row[6])])

    return bad


@bug(Mailbox, "fill", seed=2)
def tries_are_reset(right: Any) -> Bug:
    return lambda mailbox, stored: right(mailbox, [one._replace(tries=0) for one in stored])


def with_tries(right: Any, change: Callable[[int], int]) -> Bug:
    def bad(mailbox: Mailbox, delivery: Delivery, now: float) -> Any:
        before = mailbox.subscriber.options
        mailbox.subscriber.options = msgspec.structs.replace(before, max_tries=change(before.max_tries))
        try:
            return right(mailbox, delivery, now)
        finally:
            mailbox.subscriber.options = before

    return bad


@bug(Mailbox, "try_failed", seed=3)
def max_tries_ignored(right: Any) -> Bug:
    return with_tries(right, lambda most: most + 100)


@bug(Mailbox, "try_failed", seed=17)
def dead_letters_too_early(right: Any) -> Bug:
    return with_tries(right, lambda most: max(most - 1, 1))


@bug(Mailbox, "timed_out", seed=2)
def time_outs_never_act(right: Any) -> Bug:
    def bad(mailbox: Mailbox, now: float) -> list[Delivery]:
        right(mailbox, now)
        return []

    return bad


@bug(Mailbox, "timed_out", seed=2)
def pauses_never_end(right: Any) -> Bug:
    def bad(mailbox: Mailbox, now: float) -> Any:
        mailbox._retry_heap.clear()
        return right(mailbox, now)

    return bad


@bug(Mailbox, "timed_out", seed=2)
def pauses_are_skipped(right: Any) -> Bug:
    def bad(mailbox: Mailbox, now: float) -> Any:
        mailbox._retry_heap[:] = [(0.0, seq) for _, seq in mailbox._retry_heap]
        return right(mailbox, now)

    return bad


@bug(StoredDeliveries, "revive", seed=30)
def revived_letters_are_lost(right: Any) -> Bug:
    def bad(deliveries: StoredDeliveries, numbers: Any) -> Any:
        revived = right(deliveries, numbers)
        for _, subscriber, seq in revived:
            deliveries.table.delete_where("subscriber = ? AND seq = ?", (subscriber, seq))
        return revived

    return bad


# options, schema


@bug(SubscriptionRegistry, "_record", seed=3)
def options_lost_at_a_start(_: Any) -> Bug:
    return lambda registry, name, stored: SubscriberRecord()


@bug(StoredSubscribers, "put", seed=3)
def changed_options_not_stored(right: Any) -> Bug:
    return lambda stored, number, *rest: None if stored.existing([number]) else right(stored, number, *rest)


@bug(Meta, "put", seed=7)
def changed_schema_not_stored(right: Any) -> Bug:
    return lambda meta, key, value: None if key == "schema" and meta.get(key) else right(meta, key, value)


# retention, replay, unmatched, ephemeral


@bug(Retention, "trim", seed=14)
def trimmed_too_early(right: Any) -> Bug:
    return lambda store, before, *rest: right(store, before + 30 * 86_400_000_000, *rest)


@bug(Retention, "trim", seed=2)
def trimmed_never(_: Any) -> Bug:
    return lambda store, *rest: Trimmed(0, False)


@bug(SubscriptionRegistry, "add", seed=8)
def unmatched_never_sent(right: Any) -> Bug:
    def bad(registry: SubscriptionRegistry, subscriber: Any) -> None:
        right(registry, subscriber)
        registry.takes_unmatched.clear()

    return bad


@bug(SubscriptionRegistry, "add", seed=2)
def unmatched_sent_to_all(right: Any) -> Bug:
    def bad(registry: SubscriptionRegistry, subscriber: Any) -> None:
        right(registry, subscriber)
        registry.takes_unmatched[subscriber.number] = subscriber

    return bad


@bug(SubscriptionRegistry, "takers_of_unmatched", seed=7)
def matched_sent_as_unmatched(_: Any) -> Bug:
    return lambda registry, event, matched, *_: [one for one in registry.takes_unmatched.values() if one not in matched]


@bug(StoredDeliveries, "add_replayed", seed=10)
def replay_brings_nothing(_: Any) -> Bug:
    return lambda store, subscriber, rows: 0


@bug(StoredDeliveries, "add_replayed", seed=10)
def replay_misses_the_first(right: Any) -> Bug:
    return lambda store, subscriber, rows: right(store, subscriber, list(rows)[1:])


@bug(admin, "_wants", seed=7)
def replay_brings_what_nobody_wants(right: Any) -> Bug:
    return lambda broker, subscriber, own, seq, body: right(broker, subscriber, own, seq, body) or (4, seq, "w0")


@bug(admin, "_wants", seed=10)
def replay_at_the_wrong_level(right: Any) -> Bug:
    def bad(*args: Any) -> Any:
        found = right(*args)
        return found and (5, *found[1:])

    return bad


@bug(SubscriptionRegistry, "match", seed=10)
def ephemeral_gets_nothing(right: Any) -> Bug:
    def bad(registry: SubscriptionRegistry, *rest: Any) -> Any:
        live, registry.ephemeral_index = registry.ephemeral_index, registry.event_checker
        try:
            return right(registry, *rest)
        finally:
            registry.ephemeral_index = live

    return bad


# two tenants


@bug(Retention, "remove_through", seed=9)
def a_pending_delivery_pins_the_log(right: Any) -> Bug:
    def bad(retention: Retention, first: int, last: int) -> Any:
        deliveries = retention.deliveries
        pending = [row[2] for row in (*deliveries.recent.all(), *deliveries.table.scan())]
        last = min([last, *(seq - 1 for seq in pending)])
        return right(retention, first, last) if first <= last else (last, 0)

    return bad


@bug(StoredDeliveries, "bury", seed=3)
def dead_letters_push_out_those_of_others(right: Any) -> Bug:
    def bad(deliveries: Any, subscriber: int, keys: Any, tries: int, reason: str, most: int, *_: Any) -> Any:
        made = right(deliveries, subscriber, keys, tries, reason, 10**9)
        oldest = "number IN (SELECT number FROM dead ORDER BY number LIMIT ?)"
        dead = deliveries.letters.table
        dead.delete_where(oldest, (max(dead.rows() - most, 0),))
        return made

    return bad


@bug(Space, "most_on_disk", seed=6)
def retention_looks_only_at_the_settings(_: Any) -> Bug:
    return lambda store: NEVER


@bug(broker, "key_of", seed=15)
def ids_of_messages_belong_to_nobody(right: Any) -> Bug:
    return lambda item, principal: right(item, "")


@bug(Backlog, "_share_bytes", seed=3)
def nobody_has_too_much_pending(_: Any) -> Bug:
    return lambda backlog: None


@bug(StoredEvents, "drop_unneeded", seed=6)
def what_nobody_needs_is_kept(_: Any) -> Bug:
    return lambda store, seqs: None


@pytest.mark.exhaustive  # it tests the simulator, not the broker; `make test` runs 80 schedules
@pytest.mark.parametrize("name", BUGS)
def test_a_bug_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, method, make, first = BUGS[name]
    monkeypatch.setattr(owner, method, make(getattr(owner, method)))
    for seed in (first, *range(1, MOST_SEEDS + 1)):
        if torture(seed, schedules=1).failures:
            return
    pytest.fail(f"nobody noticed within {MOST_SEEDS} seeds")


def test_a_failure_names_its_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Store, "begin", commits_are_not_synced(Store.begin))
    report = torture(2, schedules=4)
    assert report.failures
    failure = report.failures[0]
    assert failure.replay == f"make torture ARGS='--seed {failure.seed} --schedules 1'"
    (again,) = torture(failure.seed, schedules=1).failures
    assert again.problem == failure.problem


def test_the_command() -> None:
    done = run("--seed", "3", "--schedules", "1")
    assert done.returncode == 0, done.stderr
    assert "no failures" in done.stdout
