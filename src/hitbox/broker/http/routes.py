"""The HTTP interface, one function per route; the application and its OpenAPI description are made from ROUTES."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from starlette.requests import Request

from hitbox.broker import admin
from hitbox.broker.broker import Broker
from hitbox.broker.http import request_bodies
from hitbox.broker.http.auth import AccessControl, RateLimiter
from hitbox.broker.http.lookups import Lookups
from hitbox.broker.published_event import PublishedEvent
from hitbox.broker.settings import Options, check_name
from hitbox.broker.subscriptions import Subscription
from hitbox.encoding.schema import Schema

LARGE = 64 * 1024
"""A body of more bytes than this is decoded in a thread, so that it does not delay the event loop."""
Count = Annotated[int, msgspec.Meta(ge=0, le=1000)]
Number = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Priority = Annotated[int, msgspec.Meta(ge=0, le=9)]


@dataclass(slots=True)
class Call:
    """One request, and the objects that its handler may use."""

    broker: Broker
    access: AccessControl
    rate_limiter: RateLimiter
    lookups: Lookups
    request: Request
    principal: str
    body: Any = None
    query: Any = None

    def path(self, name: str) -> str:
        return str(self.request.path_params[name])


class NoQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes no parameters."""


class Search(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    q: Annotated[str, msgspec.Meta(max_length=1000)] = ""
    subscriber: Annotated[str, msgspec.Meta(max_length=1000)] = ""
    limit: Count = 100


class From(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    first: Number = 1
    limit: Count = 100


class Tail(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    first: Number = 1
    limit: Annotated[int, msgspec.Meta(ge=0, le=10_000)] = 1_000


class Wanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    where: str
    priority: Priority = 4
    about: dict[str, Any] = {}


class Text(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    where: str


class Trial(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    event: dict[str, Any]
    where: str | None = None
    limit: Count = 100
    misses: Annotated[int, msgspec.Meta(ge=0, le=20)] = 0


class Why(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    event: dict[str, Any]
    id: str
    where: str | None = None


class Latest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    events: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 1_000


class Replay(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    first: Number


class Numbers(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    numbers: Annotated[list[Number], msgspec.Meta(max_length=10_000)]


class Attributes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    attributes: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Route:
    method: str
    path: str
    run: Callable[[Call], Awaitable[Any]]
    says: str
    body: type[msgspec.Struct] | None = None
    query: type[msgspec.Struct] = NoQuery
    status: int = 200
    raw: bool = False
    """The handler reads the body itself, because it has several forms; `body` is the type of one value."""


async def get_schema(call: Call) -> Any:
    return {"attributes": call.broker.registry.schema.to_json()}


async def put_schema(call: Call) -> Any:
    await admin.put_schema(call.broker, Schema.from_json(call.body.attributes))
    return await get_schema(call)


async def stats(call: Call) -> Any:
    return {**call.broker.describe(), "history": list(call.broker.statistics.history)}


async def trace(call: Call) -> Any:
    rows = [row._asdict() for row in call.broker.statistics.trace if row.seq >= call.query.first]
    return {"rows": rows[: call.query.limit]}


async def publish(call: Call) -> Any:
    s = call.broker.settings
    data = await request_bodies.read(call.request, s.max_body_bytes)
    given = data, request_bodies.kind_of(call.request), s, call.broker.registry.schema.names
    large = len(data) > LARGE
    items = await asyncio.to_thread(request_bodies.items, *given) if large else request_bodies.items(*given)
    call.rate_limiter.take(call.principal, len(items))
    first = await call.broker.publish(items)
    return {"first": first, "count": len(items)}


async def list_events(call: Call) -> Any:
    return {"events": await admin.events(call.broker, call.query.first, call.query.limit)}


async def list_subscribers(call: Call) -> Any:
    q, mailboxes = call.query, call.broker.mailboxes
    found = [m for m in mailboxes.values() if q.q in m.subscriber.name and q.subscriber in ("", m.subscriber.name)]
    first = heapq.nsmallest(q.limit, found, key=lambda m: (-m.pending, m.subscriber.name))
    return {"count": len(mailboxes), "subscribers": [m.describe() for m in first]}


async def get_subscriber(call: Call) -> Any:
    return call.broker.mailbox(call.path("subscriber")).describe()


async def put_subscriber(call: Call) -> Any:
    name = check_name(call.path("subscriber"), "subscriber")
    await call.broker.put_subscriber(name, call.body)
    return call.broker.mailbox(name).describe()


async def delete_subscriber(call: Call) -> Any:
    await call.broker.remove_subscriber(call.path("subscriber"))


async def list_subscriptions(call: Call) -> Any:
    q = call.query
    found = await admin.subscriptions(call.broker, q.q, q.subscriber, q.limit)
    return {"count": call.broker.describe()["subscriptions"], "subscriptions": found}


async def put_subscription(call: Call) -> Any:
    owner, name, wanted = call.path("subscriber"), call.path("name"), call.body
    one = Subscription(name, wanted.where, wanted.priority, wanted.about)
    return {"warnings": await call.broker.subscribe(owner, [one])}


async def post_subscriptions(call: Call) -> Any:
    s = call.broker.settings
    data = await request_bodies.read(call.request, s.max_body_bytes)
    found = await asyncio.to_thread(request_bodies.subscriptions, data, request_bodies.kind_of(call.request), s)
    warnings = await call.broker.subscribe(call.path("subscriber"), found)
    return {"count": len(found), "warnings": warnings}


async def delete_subscription(call: Call) -> Any:
    owner = call.path("subscriber")
    call.broker.subscriber(owner)
    await call.broker.subscribe(owner, [], [call.path("name")], strict=True)


async def post_replay(call: Call) -> Any:
    return {"count": await admin.replay(call.broker, call.path("subscriber"), call.body.first)}


async def check(call: Call) -> Any:
    """The predicate in normal form, or an error with its position."""
    predicate = await call.lookups.run(call.broker.registry.index.parse, call.body.where)
    return {"predicate": str(predicate)}


async def attempt(call: Call) -> Any:
    b = call.body
    return await call.lookups.run(admin.try_event, call.broker, PublishedEvent(b.event, b.where), b.limit, b.misses)


async def explain(call: Call) -> Any:
    return await call.lookups.run(
        admin.explain, call.broker, PublishedEvent(call.body.event, call.body.where), call.body.id
    )


async def unseen(call: Call) -> Any:
    latest = await admin.latest_events(call.broker, call.query.events)
    return {"events": len(latest), "attributes": await call.lookups.run(admin.unseen, call.broker, latest)}


async def dead(call: Call) -> Any:
    found = await admin.dead_letters(call.broker, call.query.subscriber, call.query.limit)
    return {"count": call.broker.store.dead.rows(), "letters": found}


async def revive(call: Call) -> Any:
    return {"count": await admin.replay_dead_letters(call.broker, call.body.numbers)}


async def drop_dead(call: Call) -> Any:
    return {"count": await admin.drop_dead_letters(call.broker, call.body.numbers)}


async def snapshot(call: Call) -> Any:
    return await call.broker.snapshot()


OWNER = "/v1/subscribers/{subscriber}"
ROUTES = [
    Route("GET", "/v1/schema", get_schema, "The attributes that events and subscriptions may use"),
    Route("PUT", "/v1/schema", put_schema, "Change the schema; refused if subscriptions contradict it", Attributes),
    Route("GET", "/v1/stats", stats, "Counters, sizes, and one line per second of rates and latencies"),
    Route("GET", "/v1/trace", trace, "The latest deliveries: event, level, determined, sent", query=Tail),
    Route(
        "POST",
        "/v1/events",
        publish,
        "Publish events; they are durable when the answer arrives",
        PublishedEvent,
        status=201,
        raw=True,
    ),
    Route("GET", "/v1/events", list_events, "Stored events", query=From),
    Route(
        "GET",
        "/v1/subscribers",
        list_subscribers,
        "Subscribers with their pending deliveries and options",
        query=Search,
    ),
    Route("GET", OWNER, get_subscriber, "One subscriber"),
    Route("PUT", OWNER, put_subscriber, "Create a durable subscriber, or change its options", Options),
    Route("DELETE", OWNER, delete_subscriber, "Remove a subscriber with its subscriptions and deliveries", status=204),
    Route("GET", "/v1/subscriptions", list_subscriptions, "Search subscriptions", query=Search),
    Route("PUT", OWNER + "/subscriptions/{name}", put_subscription, "Add or replace a subscription", Wanted),
    Route("DELETE", OWNER + "/subscriptions/{name}", delete_subscription, "Remove a subscription", status=204),
    Route(
        "POST", OWNER + "/subscriptions", post_subscriptions, "Add or replace many, all or none", Subscription, raw=True
    ),
    Route("POST", OWNER + "/replay", post_replay, "Deliver stored events again, starting at a number", Replay),
    Route("POST", "/v1/check", check, "Check a predicate", Text),
    Route("POST", "/v1/try", attempt, "Which subscriptions an event would match, without publishing it", Trial),
    Route("POST", "/v1/explain", explain, "Why a subscription matches an event, or why not", Why),
    Route("GET", "/v1/unseen", unseen, "Attributes of subscriptions that none of the latest events had", query=Latest),
    Route("GET", "/v1/dead", dead, "Dead letters, newest first", query=Search),
    Route("POST", "/v1/dead/replay", revive, "Deliver dead letters again", Numbers),
    Route("POST", "/v1/dead/drop", drop_dead, "Delete dead letters for good", Numbers),
    Route("POST", "/v1/snapshot", snapshot, "Save the index now"),
]
