"""Operations on a running broker: search, try and explain events, replay, change the schema."""

from __future__ import annotations

import asyncio
import contextlib
import json
import string
from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec

from hitbox.broker.access.rights import Caller
from hitbox.broker.broker import Broker
from hitbox.broker.changes import parted
from hitbox.broker.clock import time as clock
from hitbox.broker.delivery.delayed import describe
from hitbox.broker.errors import BadRequest, Conflict, Unknown
from hitbox.broker.published_event import PublishedEvent, expires_at
from hitbox.broker.store.checked_table import Row
from hitbox.broker.subscriptions import Subscriber, stored_values
from hitbox.encoding.schema import Schema
from hitbox.encoding.values import with_named_ends
from hitbox.errors import HitboxError, UnknownSubscription
from hitbox.index.index import Index

CHUNK = 500
ASCII_LOWER = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)


async def subscriptions(broker: Broker, caller: Caller, search: str, owner: str, limit: int) -> list[dict[str, Any]]:
    """Subscriptions whose name or predicate contains `search`, whatever the case, of one subscriber or of all that the
    caller may see."""
    query = """SELECT b.name, s.name, wanted, priority, about FROM subscriptions s
               JOIN subscribers b ON b.number = s.subscriber
               WHERE (:owner = '' OR b.name = :owner)
               AND (:shown IS NULL OR b.number IN (SELECT value FROM json_each(:shown)))
               AND (:text = '' OR instr(lower(s.name), :text) OR instr(lower(wanted), :text)
                      OR instr(lower(b.name), :text)) LIMIT :limit"""
    search = _lower(search)
    values = {"owner": owner, "text": search, "limit": limit, "shown": _shown(caller)}
    rows = await asyncio.to_thread(broker.store.read, query, values)
    found = [_subscription(row[0], row[1], row[2], row[3], _about(row[4])) for row in rows]
    live = broker.registry.ephemeral_index
    for id in [id for id in live if caller.shows_id(str(id))] if len(live) else ():
        if len(found) >= limit:
            break
        subscriber, _, name = str(id).partition("/")
        where = live.where(id)
        if owner in ("", subscriber) and (search in _lower(str(id)) or search in _lower(where)):
            found.append(_subscription(subscriber, name, where, live.priority(id), with_named_ends(live.about(id))))
    return found


def _lower(text: str) -> str:
    """As SQLite's lower: ASCII letters only."""
    return text.translate(ASCII_LOWER)


def _shown(caller: Caller) -> str | None:
    """The numbers of the subscribers that the caller may see, for a query; None: all."""
    numbers = caller.shown_numbers()
    return None if numbers is None else msgspec.json.encode(numbers).decode()


def _about(stored: Any) -> Any:
    """The decoded value; the stored text if it cannot be decoded (the subscription is set aside then)."""
    try:
        return json.loads(stored)
    except (ValueError, TypeError, RecursionError):
        return str(stored)


def _subscription(subscriber: str, name: str, where: str, priority: int, about: Any) -> dict[str, Any]:
    return {"subscriber": subscriber, "name": name, "where": where, "priority": priority, "about": about}


async def events(broker: Broker, first: int, limit: int) -> list[dict[str, Any]]:
    rows = await asyncio.to_thread(broker.store.events_from, first, limit)
    return [{"seq": seq, "time": when, **msgspec.json.decode(body)} for seq, when, body in rows]


async def latest_events(broker: Broker, count: int) -> list[Any]:
    """The latest stored events, `count` at most."""
    stored = broker.store.events
    return [one["event"] for one in await events(broker, max(stored.next() - count, stored.first()), count)]


async def delayed_events(broker: Broker, caller: Caller, limit: int) -> tuple[int, list[dict[str, Any]]]:
    """How many delayed events there are, and those that are due first, of those that the caller may see."""
    query = "SELECT number, due, principal, body FROM delayed ORDER BY due, number LIMIT ?"
    rows = await asyncio.to_thread(broker.store.read, query, (limit if caller.sees_all() else -1,))
    if caller.sees_all():
        return broker.store.delayed.rows(), describe(rows)
    shown = await asyncio.to_thread(lambda: [row for row in rows if caller.sees_body(row[3])])
    return len(shown), describe(shown[:limit])


async def cancellable(broker: Broker, caller: Caller, numbers: Sequence[int]) -> list[int]:
    """Those of the delayed events that the caller published, or may manage."""
    query = "SELECT number, principal, body FROM delayed WHERE number IN (SELECT value FROM json_each(?))"
    rows = await asyncio.to_thread(broker.store.read, query, (msgspec.json.encode(numbers).decode(),))
    manages = caller.manages()
    return [number for number, who, body in rows if who == caller.name or (manages and caller.sees_body(body))]


def unseen(broker: Broker, latest: Sequence[Any]) -> list[dict[str, Any]]:
    """The attributes that subscriptions speak of and none of these events has, which may be misspelt.

    It looks at every subscription, so run it in a thread.
    """
    found: dict[str, tuple[int, list[Any]]] = {}
    for index in (broker.registry.index, broker.registry.ephemeral_index):
        for one in index.check(latest) if len(index) else ():
            count, ids = found.get(one.attribute, (0, []))
            found[one.attribute] = count + one.subscriptions, ids + one.ids
    most = sorted(found.items(), key=lambda item: (-item[1][0], item[0]))
    return [{"attribute": name, "subscriptions": count, "ids": ids} for name, (count, ids) in most]


async def dead_letters(broker: Broker, caller: Caller, owner: str, limit: int) -> tuple[int, list[dict[str, Any]]]:
    """How many dead letters there are, and the newest of them, of those that the caller may see."""
    query = """SELECT d.number, b.name, level, seq, ids, tries, reason, time, body FROM dead d
               JOIN subscribers b ON b.number = d.subscriber
               WHERE (:owner = '' OR b.name = :owner)
               AND (:shown IS NULL OR b.number IN (SELECT value FROM json_each(:shown)))
               ORDER BY d.number DESC LIMIT :limit"""
    shown, count = _shown(caller), broker.store.dead.rows()
    everything = shown is None and caller.sees_all()
    values = {"owner": owner, "shown": shown, "limit": limit if everything else -1}
    rows = await asyncio.to_thread(broker.store.read, query, values)
    if not everything:
        rows = await asyncio.to_thread(lambda: [row for row in rows if caller.sees_body(row[8])])
        count, rows = len(rows), rows[:limit]
    names = ("number", "subscriber", "level", "seq", "subscriptions", "tries", "reason", "time")
    found = []
    for row in rows:
        subscriptions, changes = parted(row[4].splitlines())
        letter = dict(zip(names, (*row[:4], subscriptions, *row[5:8]), strict=True))
        found.append(letter | ({"changes": changes} if changes else {}) | msgspec.json.decode(row[8] or b"{}"))
    return count, found


async def usable_letters(broker: Broker, caller: Caller, numbers: Sequence[int]) -> list[int]:
    """Those of the dead letters that the caller may see and whose subscriber it may use."""
    query = """SELECT d.number, b.name, body FROM dead d JOIN subscribers b ON b.number = d.subscriber
               WHERE d.number IN (SELECT value FROM json_each(?))"""
    wanted = msgspec.json.encode(numbers).decode()
    rows = await asyncio.to_thread(broker.store.read, query, (wanted,))
    return [number for number, name, body in rows if caller.uses(name) and caller.sees_body(body)]


async def replay_dead_letters(broker: Broker, numbers: Sequence[int]) -> int:
    """Deliver dead letters again."""
    replayed = await broker.writer.submit(lambda: broker.store.replay_dead_letters(numbers))
    for _, subscriber, _ in replayed:
        mailbox = broker.mailboxes.get(subscriber)
        if mailbox is not None:
            mailbox.rows_added(1)
    if replayed:
        broker.expiry.expect(0)
    return len(replayed)


async def drop_dead_letters(broker: Broker, numbers: Sequence[int]) -> int:
    """Delete dead letters for good; returns how many there were."""
    done = broker.writer.submit(lambda: broker.store.drop_dead_letters(numbers), mandatory=True, frees_space=True)
    dropped: int = await done
    return dropped


async def replay(broker: Broker, name: str, first: int) -> int:
    """Deliver stored events again, from number `first` on, if the subscriber's current subscriptions match them."""
    subscriber = broker.subscriber(name)
    if subscriber.ephemeral:
        raise BadRequest("an ephemeral subscriber is live only; replay is for durable ones")
    if first < broker.store.events.first():
        raise Unknown(f"events before {broker.store.events.first()} are gone (retention)")
    last, total = broker.store.events.next() - 1, 0
    while first <= last:
        query = "SELECT seq, time, body FROM events WHERE seq BETWEEN ? AND ? ORDER BY seq LIMIT ?"
        rows = await asyncio.to_thread(broker.store.read, query, (first, last, CHUNK))
        if not rows:
            break
        found = await asyncio.to_thread(_wanted, broker, subscriber, rows)
        first = rows[-1][0] + 1
        async with broker.change_barrier.exclusive():  # by then all deliveries to this subscriber are recorded
            stored = broker.writer.submit(partial(broker.store.add_replayed, subscriber.number, found))
        count: int = await stored
        if subscriber.number not in broker.mailboxes:
            raise Unknown(f"subscriber {name!r} was removed meanwhile")
        broker.mailboxes[subscriber.number].rows_added(count)
        if count:
            broker.expiry.expect(0)
        total += count
    return total


def _wanted(broker: Broker, subscriber: Subscriber, rows: Sequence[Row]) -> list[tuple[int, int, str]]:
    """(level, seq, ids) of those of the events (seq, time, body) that match the subscriber's current subscriptions and
    have not expired."""
    now = clock.time_ns() // 1000
    alive = [(seq, body) for seq, when, body in rows if not 0 < expires_at(when, body) <= now]
    return [found for seq, body in alive if (found := _wants(broker, subscriber, seq, body))]


def _wants(broker: Broker, subscriber: Subscriber, seq: int, body: bytes) -> tuple[int, int, str] | None:
    item = msgspec.json.decode(body, type=PublishedEvent)
    names: list[str] = []
    highest, unmatched = 0, True
    event = stored_values(item.event, broker.registry.schema)
    try:
        if subscriber.owner in broker.directory.hidden_from(event):
            return None
        for level, ids in sorted(broker.registry.match([event], [item.where])[0].items(), reverse=True):
            unmatched = False
            mine = [id.partition("/")[2] for id in ids if id.startswith(f"{subscriber.name}/")]
            highest = highest if names else level
            names += mine
    except HitboxError:  # an event from before a change of the schema
        return None
    return (highest, seq, "\n".join(names)) if names or (unmatched and subscriber.options.unmatched) else None


async def put_schema(broker: Broker, schema: Schema) -> None:
    """Change the schema, unless a subscription contradicts the new one."""
    registry = broker.registry
    if schema == registry.schema:
        return
    async with broker.change_barrier.exclusive():
        await broker.wait_for_stored_changes()
        if len(registry.ephemeral_index):
            raise Conflict("ephemeral subscribers are connected; the schema changes when they have left")
        predicates = broker.directory.for_schema(schema)
        index = await asyncio.to_thread(registry.with_schema, schema)

        def keep() -> None:
            broker.store.put_meta("schema", schema.to_json())
            broker.store.put_meta("snapshot", None)

        await broker.writer.submit(keep)
        registry.adopt(schema, index)
        broker.directory.adopt(predicates)


def try_event(broker: Broker, caller: Caller, item: PublishedEvent, limit: int, misses: int) -> dict[str, Any]:
    """Which subscriptions an event would match, most urgent first, without publishing it; and the nearest misses. Of
    both, those that the caller may see.

    It may look at every subscription, so run it in a thread.
    """
    broker.check([item])
    caller.check_sees(item.event)
    registry = broker.registry
    everything = caller.shown_numbers() is None
    found: list[dict[str, Any]] = []
    count = 0
    for level, matched in registry.levels(item.event, item.where):
        ids = matched if everything else [id for id in matched if caller.shows_id(id)]
        count += len(ids)
        for id in ids[: max(limit - len(found), 0)]:
            owner, _, name = id.partition("/")
            with contextlib.suppress(UnknownSubscription):  # removed meanwhile
                found.append(_subscription(owner, name, _index_of(broker, id).where(id), level, {}))
    near = []
    if misses and len(registry.index):
        explanation: Any = registry.index.explain(item.event, where=item.where, misses=misses)
        near = [
            {"id": id, **reason.to_dict(), "text": str(reason)}
            for id, reason in explanation.misses.items()
            if caller.shows_id(id)
        ]
    return {"count": count, "matches": found, "misses": near}


def explain(broker: Broker, caller: Caller, item: PublishedEvent, id: str) -> dict[str, Any]:
    """Why a subscription ("subscriber/name") matches an event, or why not."""
    broker.check([item])
    name = id.partition("/")[0]
    caller.shown_subscriber(name)
    caller.check_sees(item.event)
    verdict: Any = _index_of(broker, id).explain(item.event, id, item.where)
    found = {"id": id, "text": str(verdict), **verdict.to_dict()}
    subscriber = broker.registry.by_name.get(name)
    if subscriber is not None and subscriber.owner in broker.directory.hidden_from(item.event):
        found |= {"matched": False, "text": f"the owner of {name} may not see this event; otherwise:\n{found['text']}"}
    return found


def _index_of(broker: Broker, id: str) -> Index:
    return broker.registry.ephemeral_index if id in broker.registry.ephemeral_index else broker.registry.index
