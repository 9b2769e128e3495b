"""Operations on a running broker: search, try and explain events, replay, change the schema."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

import msgspec

from hitbox.broker.access.principals import LOCAL
from hitbox.broker.access.rights import Caller
from hitbox.broker.broker import Broker
from hitbox.broker.clock import clock, time
from hitbox.broker.events.changes import parted
from hitbox.broker.events.published_event import PublishedEvent, expires_at
from hitbox.broker.fair_threads import held
from hitbox.broker.settings import check_schema
from hitbox.broker.store.checked_table import Row
from hitbox.broker.subscribers.subscriptions import Subscriber
from hitbox.encoding.schema import Schema
from hitbox.encoding.values import with_named_ends
from hitbox.errors import HitboxError, UnknownSubscription
from hitbox.index.index import Index
from hitbox.protocol.errors import BadRequest, Conflict, Overloaded, Unknown

CHUNK = 500
REPLAY_SECONDS = 0.5
"""That a replay takes of its thread at once."""
MOST_REPLAYS = 10
"""Of one principal at a time."""
ROWS = 50
"""Rows with the bodies of events that are read at once."""
ANSWER_BYTES = 4 * 2**20
"""An answer gets no more events when it has this size."""
LOOKED_BYTES = 16 * 2**20
"""Bytes of events in which attributes are looked for."""
MOST = 2**53


def subscriptions(
    broker: Broker,
    caller: Caller,
    shown: str | None,
    search: str,
    owner: str,
    limit: int,
    offset: int = 0,
    suspended: bool = False,
) -> list[dict[str, Any]]:
    """Subscriptions whose name or predicate contains `search`, whatever the case, of one subscriber or of all that the
    caller may see, or those of them that are suspended: `limit`, after the first `offset` ones. `shown`: see
    `shown_numbers`. In a thread."""
    query = """FROM subscriptions s JOIN subscribers b ON b.number = s.subscriber
               WHERE (:owner = '' OR b.name = :owner)
               AND (:shown IS NULL OR b.number IN (SELECT value FROM json_each(:shown)))
               AND (NOT :suspended OR (s.subscriber, s.name) IN (SELECT subscriber, name FROM suspended))
               AND (:text = '' OR instr(casefold(b.name, '/', s.name, char(10), wanted), :text))"""
    search = search.casefold()
    values = {"owner": owner, "text": search, "limit": limit, "offset": offset, "shown": shown, "suspended": suspended}
    columns = f"SELECT b.name, s.name, wanted, priority, about {query} LIMIT :limit OFFSET :offset"
    rows = broker.store.reader.search(columns, values)
    found = [_subscription(broker, row[0], row[1], row[2], row[3], _about(row[4])) for row in rows]
    if len(found) < limit and len(broker.registry.ephemeral_index):
        if offset:
            ((stored,),) = broker.store.reader.search(f"SELECT count(*) {query}", values)
            offset = max(offset - stored, 0)
        matching = _ephemeral_subscriptions(broker, caller, search, owner)
        matching = (one for one in matching if one["suspended"] or not suspended)
        found += islice(matching, offset, offset + limit - len(found))
    return found


def _ephemeral_subscriptions(broker: Broker, caller: Caller, search: str, owner: str) -> Iterator[dict[str, Any]]:
    index, known, shows = broker.registry.ephemeral_index, broker.registry.by_name, caller.shows_now()
    for id in index:
        subscriber, _, name = str(id).partition("/")
        one = known.get(subscriber)
        if owner not in ("", subscriber) or one is None or not shows(one):
            continue
        with contextlib.suppress(UnknownSubscription):  # removed meanwhile
            where = index.where(id)
            if search in f"{id}\n{where}".casefold():
                yield _subscription(
                    broker, subscriber, name, where, index.priority(id), with_named_ends(index.about(id))
                )


def _about(stored: Any) -> Any:
    """The decoded value; the stored text if it cannot be decoded (the subscription is set aside then)."""
    try:
        return json.loads(stored)
    except (ValueError, TypeError, RecursionError):
        return str(stored)


def _subscription(broker: Broker, subscriber: str, name: str, where: str, priority: int, about: Any) -> dict[str, Any]:
    suspension = broker.registry.suspensions.get(f"{subscriber}/{name}")
    found = {"subscriber": subscriber, "name": name, "where": where, "priority": priority, "about": about}
    return {**found, "suspended": suspension.reason if suspension else ""}


class Listed:
    """The rows of an answer: at most `limit`, and about ANSWER_BYTES. Stored texts become a part of it as they are."""

    def __init__(self, limit: int):
        self.rows: list[msgspec.Raw] = []
        self._limit, self._bytes = limit, 0

    def is_full(self) -> bool:
        return len(self.rows) >= self._limit or self._bytes >= ANSWER_BYTES

    def add(self, fields: dict[str, Any], body: bytes | None) -> None:
        text = msgspec.json.encode(fields)
        if body is not None:
            text = text[:-1] + b"," + body[1:]
        self._bytes += len(text)
        self.rows.append(msgspec.Raw(text))


def events(broker: Broker, caller: Caller, first: int, limit: int) -> tuple[list[msgspec.Raw], int]:
    """Stored events from number `first` on that the caller may see, and the number with which the next request begins:
    `limit` are looked at, or fewer if they are large. In a thread, as all that reads bodies here."""
    found = Listed(limit)
    while limit > 0 and (rows := broker.store.events.from_number(first, min(limit, ROWS))):
        limit -= len(rows)
        for seq, when, _, body in rows:
            if found.is_full():
                return found.rows, seq
            if caller.sees_body(body):
                found.add({"seq": seq, "time": when}, body)
            first = seq + 1
    return found.rows, first


def delayed_events(broker: Broker, caller: Caller, limit: int) -> tuple[int, list[msgspec.Raw]]:
    """How many delayed events there are, and those that are due first, of those that the caller may see."""
    query = "SELECT due, number, principal, body FROM delayed WHERE (due, number) > (?, ?) ORDER BY due, number LIMIT ?"
    found, count, at, sees_all, manages = Listed(limit), 0, (0, 0), caller.sees_all(), caller.manages()
    while not (sees_all and found.is_full()) and (rows := broker.store.reader.read(query, (*at, ROWS))):
        for due, number, name, body in rows:
            if caller.sees_body(body):
                count += 1
                if not found.is_full():
                    found.add({"number": number, "due": due} | ({"principal": name} if manages else {}), body)
        at = rows[-1][:2]
    return broker.store.delayed.table.rows() if sees_all else count, found.rows


def cancellable(broker: Broker, caller: Caller, numbers: Sequence[int]) -> list[int]:
    """Those of the delayed events that the caller published, or may manage."""
    query = "SELECT number, principal, body FROM delayed WHERE number IN (SELECT value FROM json_each(?))"
    manages = caller.manages()
    rows = _named(broker, query, numbers)
    return [number for number, who, body in rows if who == caller.name or (manages and caller.sees_body(body))]


def _named(broker: Broker, query: str, numbers: Sequence[int]) -> Iterator[Row]:
    """The rows with these numbers, a few bodies at a time."""
    for some in (numbers[at : at + ROWS] for at in range(0, len(numbers), ROWS)):
        yield from broker.store.reader.read(query, (msgspec.json.encode(some).decode(),))


def unseen_since(broker: Broker, count: int) -> tuple[int, list[dict[str, Any]]]:
    """How many of the latest stored events were looked at, `count` at most, and what `unseen` says of them."""
    query = "SELECT seq, body FROM events WHERE seq < ? ORDER BY seq DESC LIMIT ?"
    latest, at, size = list[Any](), broker.store.events.table.next(), 0
    while size < LOOKED_BYTES and (rows := broker.store.reader.read(query, (at, min(count - len(latest), ROWS)))):
        latest += [msgspec.json.decode(body, type=PublishedEvent).event for _, body in rows]
        size += sum(len(body) for _, body in rows)
        at = rows[-1][0]
    return len(latest), unseen(broker, latest)


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


def shown_numbers(caller: Caller) -> str | None:
    """The numbers of the subscribers that the caller may see, for a query; None: all."""
    numbers = caller.shown_numbers()
    return None if numbers is None else msgspec.json.encode(numbers).decode()


def dead_letters(
    broker: Broker, caller: Caller, shown: str | None, owner: str, limit: int, search: str = "", offset: int = 0
) -> tuple[int, list[msgspec.Raw]]:
    """How many dead letters there are of one subscriber, or of those whose name contains `search`, and the newest of
    them after the first `offset` ones, of those that the caller may see. `shown`: see `shown_numbers`."""
    which = """FROM dead d JOIN subscribers b ON b.number = d.subscriber
               WHERE (:owner = '' OR b.name = :owner)
               AND (:text = '' OR instr(casefold(b.name), :text))
               AND (:shown IS NULL OR b.number IN (SELECT value FROM json_each(:shown)))"""
    query = f"""SELECT d.number, b.name, level, seq, ids, tries, reason, time, body {which}
                AND d.number < :before ORDER BY d.number DESC LIMIT :limit OFFSET :offset"""
    names = ("number", "subscriber", "level", "seq", "subscriptions", "tries", "reason", "time")
    found, count, sees_all = Listed(limit), 0, caller.sees_all()
    values: dict[str, Any] = {"owner": owner, "text": search.casefold(), "shown": shown, "before": MOST, "limit": ROWS}
    values["offset"] = offset if sees_all else 0  # otherwise only reading shows which ones count
    skip = 0 if sees_all else offset
    while not (sees_all and found.is_full()) and (rows := broker.store.reader.search(query, values)):
        for *about, body in rows:
            if not caller.sees_body(body):
                continue
            count += 1
            if count > skip and not found.is_full():
                about[4], changes = parted(about[4].splitlines())
                letter = dict(zip(names, about, strict=True))
                found.add(letter | ({"changes": changes} if changes else {}), body)
        values |= {"before": rows[-1][0], "offset": 0}
    if not sees_all:
        return count, found.rows
    if shown is None and not owner and not search:
        return broker.store.letters.table.rows(), found.rows
    ((count,),) = broker.store.reader.search(f"SELECT count(*) {which}", values)
    return count, found.rows


def usable_letters(broker: Broker, caller: Caller, numbers: Sequence[int]) -> list[int]:
    """Those of the dead letters that the caller may see and whose subscriber it may use."""
    query = """SELECT d.number, b.name, body FROM dead d JOIN subscribers b ON b.number = d.subscriber
               WHERE d.number IN (SELECT value FROM json_each(?))"""
    rows = _named(broker, query, numbers)
    return [number for number, name, body in rows if caller.uses(name) and caller.sees_body(body)]


async def replay_dead_letters(broker: Broker, numbers: Sequence[int]) -> int:
    """Deliver dead letters again."""
    replayed = await broker.writer.submit(lambda: broker.store.deliveries.revive(numbers))
    for _, subscriber, _ in replayed:
        mailbox = broker.mailboxes.get(subscriber)
        if mailbox is not None:
            mailbox.rows_added(1)
    if replayed:
        broker.expiry.expect(0)
    return len(replayed)


async def drop_dead_letters(broker: Broker, numbers: Sequence[int]) -> int:
    """Delete dead letters for good; returns how many there were."""
    done = broker.writer.submit(lambda: broker.store.letters.drop(numbers), mandatory=True, frees_space=True)
    dropped: int = await done
    return dropped


async def replay(broker: Broker, name: str, first: int) -> int:
    """Deliver stored events again, from number `first` on, if the subscriber's current subscriptions match them."""
    subscriber = broker.subscriber(name)
    if subscriber.ephemeral:
        raise BadRequest("an ephemeral subscriber is live only; replay is for durable ones")
    if first < broker.store.events.table.first():
        raise Unknown(f"events before {broker.store.events.table.first()} are gone (retention)")
    with held(broker.replaying, subscriber.owner):
        if broker.replaying[subscriber.owner] > MOST_REPLAYS:
            raise Overloaded(f"{MOST_REPLAYS} replays of one principal are under way, and more wait for these", 10)
        return await _replay(broker, subscriber, first)


async def _replay(broker: Broker, subscriber: Subscriber, first: int) -> int:
    payer = subscriber.owner or LOCAL
    last, total = broker.store.events.table.next() - 1, 0
    own, revision = None, subscriber.revision
    while first <= last:
        if own is None or subscriber.revision != revision or own.schema != broker.registry.schema:
            own, revision = await _own_index(broker, subscriber)
        query = "SELECT seq, time, body FROM events WHERE seq BETWEEN ? AND ? ORDER BY seq LIMIT ?"
        rows = await broker.replays.run(payer, broker.store.reader.read, query, (first, last, CHUNK))
        if not rows:
            break
        found, first = await broker.replays.run(payer, _wanted, broker, subscriber, own, rows)
        async with broker.change_barrier.exclusive():  # by then all deliveries to this subscriber are recorded
            stored = broker.writer.submit(partial(broker.store.deliveries.add_replayed, subscriber.number, found))
        count: int = await stored
        if subscriber.number not in broker.mailboxes:
            raise Unknown(f"subscriber {subscriber.name!r} was removed meanwhile")
        broker.mailboxes[subscriber.number].rows_added(count)
        if count:
            broker.expiry.expect(0)
        total += count
    return total


async def _own_index(broker: Broker, subscriber: Subscriber) -> tuple[Index, int]:
    """The subscriber's subscriptions of this revision, or later ones."""
    async with broker.change_barrier.exclusive():
        await broker.wait_for_stored_changes()
        revision = subscriber.revision
    payer = subscriber.owner or LOCAL
    return await broker.replays.run(payer, broker.registry.own_index, subscriber), revision


def _wanted(
    broker: Broker, subscriber: Subscriber, own: Index, rows: Sequence[Row]
) -> tuple[list[tuple[int, int, str]], int]:
    """(level, seq, ids) of those of the events (seq, time, body) that match the subscriber's current subscriptions and
    have not expired; and the number to go on with: after REPLAY_SECONDS others have their turn."""
    now, ends = clock.now(), time.monotonic() + REPLAY_SECONDS
    found: list[tuple[int, int, str]] = []
    for seq, when, body in rows:
        if not 0 < expires_at(when, body) <= now and (one := _wants(broker, subscriber, own, seq, body)):
            found.append(one)
        if time.monotonic() >= ends:
            return found, seq + 1
    return found, rows[-1][0] + 1


def _wants(broker: Broker, subscriber: Subscriber, own: Index, seq: int, body: bytes) -> tuple[int, int, str] | None:
    item = msgspec.json.decode(body, type=PublishedEvent)
    registry, names, highest = broker.registry, list[str](), 0
    event = item.event
    try:
        if broker.directory.hides(subscriber.owner, event):
            return None
        for level, ids in sorted(registry.match_in(own, event, item.where).items(), reverse=True):
            mine = [id.partition("/")[2] for id in ids if id.startswith(f"{subscriber.name}/")]
            highest = highest if names else level
            names += mine
        if not names and not (subscriber.options.unmatched and _is_unmatched(broker, subscriber, event, item.where)):
            return None
    except HitboxError:  # an event from before a change of the schema
        return None
    return highest if names else 0, seq, "\n".join(names)


def _is_unmatched(broker: Broker, subscriber: Subscriber, event: Mapping[str, Any], where: str | None) -> bool:
    """Whether the owner of a subscriber may not know of anybody who wants an event."""
    by_name = broker.registry.by_name
    wanted = [id for ids in broker.registry.match([event], [where])[0].values() for id in ids]
    matched = {one for id in wanted if (one := by_name.get(id.partition("/")[0])) is not None}
    return bool(broker.directory.unaware([subscriber.owner], matched))


async def put_schema(broker: Broker, schema: Schema) -> None:
    """Change the schema, unless a subscription or a delayed event contradicts the new one. A change that has begun goes
    on if the request is cancelled."""
    if check_schema(schema) != broker.registry.schema:
        await asyncio.shield(broker.start_change(_change_schema(broker, schema)))


async def _change_schema(broker: Broker, schema: Schema) -> None:
    registry = broker.registry
    async with broker.change_barrier.exclusive():
        await broker.wait_for_stored_changes()
        if len(registry.ephemeral_index):
            raise Conflict("ephemeral subscribers are connected; the schema changes when they have left")
        broker.directory.for_schema(schema)  # raises where one contradicts it
        index = await registry.in_thread(registry.with_schema, schema)

        def keep() -> None:
            broker.store.meta.put("schema", schema.to_json())
            broker.store.meta.put("snapshot", None)

        async with broker.delayed.unchanged():
            await registry.in_thread(broker.delayed.check_schema, schema)
            await broker.writer.submit(keep)
            registry.adopt(schema, index)
            broker.directory.adopt(broker.directory.compile(schema))  # rights may have changed meanwhile
        await broker.check_arrived()


def try_event(broker: Broker, caller: Caller, item: PublishedEvent, limit: int, misses: int) -> dict[str, Any]:
    """Which subscriptions an event would match, most urgent first, without publishing it; and the nearest misses. Of
    both, those that the caller may see.

    It may look at every subscription, so run it in a thread.
    """
    broker.check([item])
    caller.check_sees(item.event)
    registry = broker.registry
    shown = None if caller.shows_all() else caller.shows_ids_now()
    found: list[dict[str, Any]] = []
    count = 0
    costs = registry.costs()
    for level, matched in registry.levels(item.event, item.where, costs):
        ids = matched if shown is None else list(filter(shown, matched))
        count += len(ids)
        for id in ids[: max(limit - len(found), 0)]:
            owner, _, name = id.partition("/")
            with contextlib.suppress(UnknownSubscription):  # removed meanwhile
                found.append(_subscription(broker, owner, name, _index_of(broker, id).where(id), level, {}))
    near = []
    if misses and len(registry.index):
        explanation: Any = registry.index.explain(item.event, where=item.where, misses=misses, among=shown)
        near = [{"id": id, **reason.to_dict(), "text": str(reason)} for id, reason in explanation.misses.items()]
    expensive = dict.fromkeys(id for id, _ in costs.ran_out if shown is None or shown(id))
    return {"count": count, "matches": found, "misses": near, "too_expensive": list(expensive)[:limit]}


def explain(broker: Broker, caller: Caller, item: PublishedEvent, id: str) -> dict[str, Any]:
    """Why a subscription ("subscriber/name") matches an event, or why not."""
    broker.check([item])
    name = id.partition("/")[0]
    caller.shown_subscriber(name)
    caller.check_sees(item.event)
    verdict: Any = _index_of(broker, id).explain(item.event, id, item.where)
    found = {"id": id, "text": str(verdict), **verdict.to_dict()}
    subscriber = broker.registry.by_name.get(name)
    if subscriber is not None and broker.directory.hides(subscriber.owner, item.event):
        found |= {"matched": False, "text": f"the owner of {name} may not see this event; otherwise:\n{found['text']}"}
    suspension = broker.registry.suspensions.get(id)
    if suspension is not None:
        found |= {"matched": False, "text": f"{id} is {suspension.text()}; otherwise:\n{found['text']}"}
    return found


def _index_of(broker: Broker, id: str) -> Index:
    return broker.registry.ephemeral_index if id in broker.registry.ephemeral_index else broker.registry.index
