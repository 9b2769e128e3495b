"""The HTTP interface, one function per route; the application and its OpenAPI description are made from ROUTES."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ParamSpec, TypeVar

import msgspec
from starlette.requests import Request

from hitbox.broker import admin
from hitbox.broker.access.principals import Principal, Role, Token, TokenSettings
from hitbox.broker.access.rights import (
    ANYONE,
    CANCEL,
    MANAGE_ALL,
    OBSERVE,
    OBSERVE_ALL,
    PUBLISH,
    READ,
    SUBSCRIBE,
    USE,
    Caller,
    Need,
)  # fmt: skip
from hitbox.broker.broker import OF_MATCHES, Broker
from hitbox.broker.delivery.mailbox import Mailbox
from hitbox.broker.events import cloudevents
from hitbox.broker.events.json_text import LARGE, decode
from hitbox.broker.events.published_event import PublishedEvent, answered, is_traceparent
from hitbox.broker.fair_threads import FairThreads
from hitbox.broker.http import request_bodies
from hitbox.broker.http.auth import RateLimiter
from hitbox.broker.http.body_memory import Account
from hitbox.broker.http.gate import declared
from hitbox.broker.http.websocket import check_count
from hitbox.broker.settings import Options, check_name
from hitbox.broker.subscribers.subscriptions import Subscription
from hitbox.broker.subscribers.webhook import WebhookSettings
from hitbox.broker.turns import in_turns
from hitbox.encoding.fitting import FOR_EVENTS, check_on_error
from hitbox.encoding.schema import Schema
from hitbox.errors import HitboxError
from hitbox.protocol.errors import Unknown

P = ParamSpec("P")
T = TypeVar("T")
Count = Annotated[int, msgspec.Meta(ge=0, le=1000)]
Number = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Priority = Annotated[int, msgspec.Meta(ge=0, le=9)]


@dataclass(slots=True)
class Call:
    """One request, and the objects that its handler may use."""

    broker: Broker
    rate_limiter: RateLimiter
    lookups: FairThreads
    request: Request
    caller: Caller
    need: Need
    account: Account
    body: Any = None
    query: Any = None

    async def look_up(self, look: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
        """The result of what may take long, in a thread."""
        return await self.lookups.run(self.caller.name, look, *args, **named)

    def path(self, name: str) -> str:
        return str(self.request.path_params[name])

    async def read(self, most: int) -> bytes:
        """The body. It may have taken long, so the caller is asked for its rights again."""
        data = await request_bodies.read(self.request, most, self.account)
        self.caller.check(self.need)
        return data

    async def read_batch(self) -> bytes:
        return await self.read(self.broker.settings.max_body_bytes)

    async def read_value(self, shape: type[T]) -> T:
        """The body of a route that takes no batch."""
        data = await self.read(self.broker.settings.single_bytes())
        return await asyncio.to_thread(decode, data, shape) if len(data) > LARGE else decode(data, shape)

    def shown_subscriber(self) -> str:
        """The subscriber in the path, which the caller may look at."""
        name = self.path("subscriber")
        self.caller.shown_subscriber(name)
        return name

    def received_subscriber(self) -> Mailbox:
        """The mailbox of the subscriber in the path, whose deliveries the caller may receive."""
        name = self.path("subscriber")
        self.caller.receiver(name)
        return self.broker.mailbox(name)

    def used_subscriber(self) -> tuple[str, str]:
        """The subscriber in the path, which the caller may use, and its owner."""
        name = self.path("subscriber")
        return name, self.caller.owner(name)


class NoQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes no parameters."""


class Search(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`offset`: how many of what is found are left out, from the first on."""

    q: Annotated[str, msgspec.Meta(max_length=1000)] = ""
    subscriber: Annotated[str, msgspec.Meta(max_length=1000)] = ""
    limit: Count = 100
    offset: Number = 0


class SubscriptionSearch(Search, frozen=True, forbid_unknown_fields=True):
    """`suspended`: only those that are suspended because they were too expensive."""

    suspended: bool = False


class From(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    first: Number = 1
    limit: Count = 100


class Publishing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`on_error`: of events that do not fit: "raise" refuses all of them, "null" makes values null that do not fit,
    "return" leaves such events out. With the last two the answer lists `errors`."""

    on_error: str = "raise"


class LiveQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of `/v1/live`: events for which the predicate holds."""

    where: str = ""


class First(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
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


class Owner(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    owner: Annotated[str, msgspec.Meta(max_length=100)] = ""


class Limit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    roles: list[Role] | None = None
    expires: float | None = None
    note: str = ""


class NewToken(Limit, frozen=True, kw_only=True, forbid_unknown_fields=True):
    principal: str


class Numbers(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    numbers: Annotated[list[Number], msgspec.Meta(max_length=10_000)]


class Seqs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    seqs: Annotated[list[Number], msgspec.Meta(max_length=10_000)]
    """Numbers of events. Those that are not with the subscriber are ignored."""


class Attributes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    attributes: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Route:
    method: str
    path: str
    need: Need
    run: Callable[[Call], Awaitable[Any]]
    says: str
    body: type[msgspec.Struct] | None = None
    query: type[msgspec.Struct] = NoQuery
    status: int = 200
    raw: bool = False
    """The handler reads the body itself, because it has several forms; `body` is the type of one value."""
    listing: bool = False
    """The answer has stored events, and may be large."""

    def __post_init__(self) -> None:
        declared(self.need, f"{self.method} {self.path}")


def shown_figures(found: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """Counters and sizes. What is set aside names subscribers, and some figures tell whether an event matched: only
    those who may know of all subscribers get them."""
    found = found if caller.shows_all() else {name: value for name, value in found.items() if name not in OF_MATCHES}
    return found if not caller.rights().is_limited or "set_aside" not in found else {**found, "set_aside": []}


async def get_schema(call: Call) -> Any:
    return {"attributes": call.broker.registry.schema.to_json()}


async def put_schema(call: Call) -> Any:
    await admin.put_schema(call.broker, Schema.from_json(call.body.attributes))
    return await get_schema(call)


async def stats(call: Call) -> Any:
    history = [shown_figures(line, call.caller) for line in call.broker.statistics.history]
    return {**shown_figures(dict(call.broker.describe()), call.caller), "history": history}


async def trace(call: Call) -> Any:
    all_shown = call.caller.shows_all()
    trace = [row for row in call.broker.statistics.trace() if row.seq >= call.query.first]
    rows = [row._asdict() for row in trace if all_shown or call.caller.shows_id(row.subscriber)]
    return {"rows": rows[: call.query.limit]}


async def publish(call: Call) -> Any:
    s, schema, on_error = call.broker.settings, call.broker.registry.schema, call.query.on_error
    check_on_error(on_error, FOR_EVENTS)
    data, kind, headers = await call.read_batch(), request_bodies.kind_of(call.request), call.request.headers.raw
    read: Callable[[], list[PublishedEvent]]
    if cloudevents.is_cloudevent(kind, headers):
        read = partial(cloudevents.from_request, data, kind, headers, schema, s)
    else:
        read = partial(request_bodies.items, data, kind, s, schema.names)
    try:
        items = await asyncio.to_thread(read) if len(data) > LARGE else read()
    except HitboxError:
        call.broker.statistics.counts["refused"] += 1  # nobody knows how many events it has
        raise
    parent = call.request.headers.get("traceparent")
    if parent is not None and is_traceparent(parent):  # one that is invalid is ignored, as W3C Trace Context says
        items = [one if one.traceparent else msgspec.structs.replace(one, traceparent=parent) for one in items]
    check_count(call.broker, call.rate_limiter, call.caller, len(items))
    if on_error == "raise":
        return answered(items, await call.broker.publish(items, call.caller, len(data)))
    kept, errors = await asyncio.to_thread(call.broker.fitting, items, on_error)
    found = answered(kept, await call.broker.publish(kept, call.caller, len(data)))
    call.broker.statistics.counts["refused"] += len(items) - len(kept)
    return found | {"errors": [{"event": number, "error": reason} for number, reason in errors.items()]}


async def list_delayed(call: Call) -> Any:
    count, found = await call.look_up(admin.delayed_events, call.broker, call.caller, call.query.limit)
    return {"count": count, "events": found}


async def cancel_delayed(call: Call) -> Any:
    numbers = await asyncio.to_thread(admin.cancellable, call.broker, call.caller, call.body.numbers)
    return {"count": await call.broker.delayed.cancel(numbers)}


async def list_events(call: Call) -> Any:
    """Some events may be hidden from the caller, so the answer says where the next request begins."""
    q = call.query
    found, following = await call.look_up(admin.events, call.broker, call.caller, q.first, q.limit)
    return {"events": found, "next": following}


async def list_subscribers(call: Call) -> Any:
    q, mailboxes = call.query, call.broker.mailboxes
    shows = call.caller.shows_now()
    search, count, found = q.q.casefold(), 0, []
    async for m in in_turns(mailboxes.values()):
        if shows(m.subscriber):
            count += 1
            if search in m.subscriber.name.casefold() and q.subscriber in ("", m.subscriber.name):
                found.append(m)
    first = heapq.nsmallest(q.offset + q.limit, found, key=lambda m: (-m.pending, m.subscriber.name))
    return {"count": count, "subscribers": [m.describe() for m in first[q.offset :]]}


async def get_subscriber(call: Call) -> Any:
    return call.broker.mailbox(call.shown_subscriber()).describe()


async def put_subscriber(call: Call) -> Any:
    name, owner = call.used_subscriber()
    check_name(name, "subscriber")
    given = call.query.owner
    if given:
        call.caller.check(MANAGE_ALL)
    await call.broker.put_subscriber(name, call.body, given or owner, hand_over=bool(given))
    return call.broker.mailbox(name).describe()


async def delete_subscriber(call: Call) -> Any:
    await call.broker.remove_subscriber(call.used_subscriber()[0])


async def list_subscriptions(call: Call) -> Any:
    q, shown = call.query, admin.shown_numbers(call.caller)
    found = await call.look_up(
        admin.subscriptions, call.broker, call.caller, shown, q.q, q.subscriber, q.limit, q.offset, q.suspended
    )
    numbers, known = call.caller.shown_numbers(), call.broker.registry.by_number
    if numbers is None:
        return {"count": call.broker.describe()["subscriptions"], "subscriptions": found}
    return {"count": sum(known[number].subscriptions for number in numbers), "subscriptions": found}


async def put_subscription(call: Call) -> Any:
    (subscriber, owner), wanted = call.used_subscriber(), call.body
    one = Subscription(call.path("name"), wanted.where, wanted.priority, wanted.about)
    return {"warnings": await call.broker.subscribe(subscriber, [one], owner=owner)}


async def post_subscriptions(call: Call) -> Any:
    s = call.broker.settings
    data = await call.read_batch()
    found = await asyncio.to_thread(request_bodies.subscriptions, data, request_bodies.kind_of(call.request), s)
    subscriber, owner = call.used_subscriber()
    warnings = await call.broker.subscribe(subscriber, found, owner=owner)
    return {"count": len(found), "warnings": warnings}


async def delete_subscription(call: Call) -> Any:
    subscriber, _ = call.used_subscriber()
    call.broker.subscriber(subscriber)
    await call.broker.subscribe(subscriber, [], [call.path("name")], strict=True)


async def resume_subscription(call: Call) -> Any:
    await call.broker.resume_subscription(call.used_subscriber()[0], call.path("name"))


async def post_replay(call: Call) -> Any:
    return {"count": await admin.replay(call.broker, call.used_subscriber()[0], call.body.first)}


async def acknowledge(call: Call) -> Any:
    mailbox = call.received_subscriber()
    asked = call.broker.tracker.acknowledge(mailbox, call.body.seqs)
    if asked is not None:
        await asked


async def refuse(call: Call) -> Any:
    mailbox = call.received_subscriber()
    call.broker.tracker.refuse(mailbox, call.body.seqs)


async def extend(call: Call) -> Any:
    call.received_subscriber().extend(call.body.seqs)


async def pause(call: Call) -> Any:
    await call.broker.pause(call.used_subscriber()[0], True)


async def resume(call: Call) -> Any:
    await call.broker.pause(call.used_subscriber()[0], False)


async def get_webhook(call: Call) -> Any:
    found = call.broker.mailbox(call.shown_subscriber()).describe()["webhook"]
    if found is None:
        raise Unknown(f"the subscriber {call.path('subscriber')!r:.100} has no webhook")
    return found


async def put_webhook(call: Call) -> Any:
    """Whoever sets it gets the deliveries, so the caller must be allowed to receive them."""
    name = call.received_subscriber().subscriber.name
    secret = await call.broker.put_webhook(name, call.body, call.caller.receiver(name))
    shown = call.broker.mailbox(name).describe()["webhook"]
    return {**shown, "secret": secret} if secret and isinstance(shown, dict) else shown


async def delete_webhook(call: Call) -> Any:
    await call.broker.remove_webhook(call.used_subscriber()[0])


async def check(call: Call) -> Any:
    """The predicate in normal form, or an error with its position."""
    predicate = await call.look_up(call.broker.registry.index.parse, call.body.where)
    return {"predicate": str(predicate)}


async def attempt(call: Call) -> Any:
    b = call.body
    item = PublishedEvent(b.event, b.where)
    return await call.look_up(admin.try_event, call.broker, call.caller, item, b.limit, b.misses)


async def explain(call: Call) -> Any:
    item = PublishedEvent(call.body.event, call.body.where)
    return await call.look_up(admin.explain, call.broker, call.caller, item, call.body.id)


async def unseen(call: Call) -> Any:
    count, found = await call.look_up(admin.unseen_since, call.broker, call.query.events)
    return {"events": count, "attributes": found}


async def dead(call: Call) -> Any:
    q, shown = call.query, admin.shown_numbers(call.caller)
    count, found = await call.look_up(
        admin.dead_letters, call.broker, call.caller, shown, q.subscriber, q.limit, q.q, q.offset
    )
    return {"count": count, "letters": found}


async def revive(call: Call) -> Any:
    numbers = await asyncio.to_thread(admin.usable_letters, call.broker, call.caller, call.body.numbers)
    return {"count": await admin.replay_dead_letters(call.broker, numbers)}


async def drop_dead(call: Call) -> Any:
    numbers = await asyncio.to_thread(admin.usable_letters, call.broker, call.caller, call.body.numbers)
    return {"count": await admin.drop_dead_letters(call.broker, numbers)}


async def snapshot(call: Call) -> Any:
    return await call.broker.snapshot()


async def accept_clock(call: Call) -> Any:
    return call.broker.accept_clock()


async def whoami(call: Call) -> Any:
    return {"name": call.caller.name, "token": call.caller.token, **msgspec.to_builtins(call.caller.rights())}


async def list_principals(call: Call) -> Any:
    return {"principals": call.broker.directory.describe_principals()}


async def put_principal(call: Call) -> Any:
    await call.broker.directory.put_principal(call.broker.writer, call.path("principal"), call.body)
    return msgspec.to_builtins(call.body)


async def delete_principal(call: Call) -> Any:
    await call.broker.remove_principal(call.path("principal"))
    call.rate_limiter.forget(call.path("principal"))


async def list_tokens(call: Call) -> Any:
    return {"tokens": call.broker.directory.describe_tokens()}


async def create_token(call: Call) -> Any:
    b = call.body
    settings = TokenSettings(b.roles, b.expires, b.note)
    directory = call.broker.directory
    warnings = directory.first_token_warnings()
    token, text = await directory.create_token(call.broker.writer, b.principal, settings)
    return {**_shown_token(call, token), "token": text, "warnings": warnings}


async def limit_token(call: Call) -> Any:
    b = call.body
    settings = TokenSettings(b.roles, b.expires, b.note)
    return _shown_token(call, await call.broker.directory.limit_token(call.broker.writer, call.path("token"), settings))


def _shown_token(call: Call, token: Token) -> dict[str, Any]:
    return token.describe(call.broker.directory.principals.get(token.principal))


async def revoke_token(call: Call) -> Any:
    await call.broker.directory.revoke_token(call.broker.writer, call.path("token"))


OWNER = "/v1/subscribers/{subscriber}"
PRINCIPAL, TOKEN = "/v1/principals/{principal}", "/v1/tokens/{token}"
ROUTES = [
    Route("GET", "/v1/schema", ANYONE, get_schema, "The attributes that events and subscriptions may use"),
    Route("PUT", "/v1/schema", MANAGE_ALL, put_schema, "Change the schema, if nothing contradicts it", Attributes),
    Route("GET", "/v1/stats", OBSERVE, stats, "Counters, sizes, and one line per second of rates and latencies"),
    Route("GET", "/v1/trace", OBSERVE, trace, "The latest deliveries: event, level, determined, sent", query=Tail),
    Route(
        "POST",
        "/v1/events",
        PUBLISH,
        publish,
        "Publish events; they are durable when the answer arrives",
        PublishedEvent,
        query=Publishing,
        status=201,
        raw=True,
    ),
    Route("GET", "/v1/events", OBSERVE, list_events, "Stored events", query=From, listing=True),
    Route(
        "GET",
        "/v1/delayed",
        OBSERVE,
        list_delayed,
        "Delayed events, those that are due first",
        query=First,
        listing=True,
    ),
    Route("POST", "/v1/delayed/cancel", CANCEL, cancel_delayed, "Delete delayed events that are not due yet", Numbers),
    Route(
        "GET",
        "/v1/subscribers",
        READ,
        list_subscribers,
        "Subscribers with their pending deliveries and options",
        query=Search,
    ),
    Route("GET", OWNER, READ, get_subscriber, "One subscriber"),
    Route(
        "PUT", OWNER, USE, put_subscriber, "Create a durable subscriber, or change its options", Options, query=Owner
    ),
    Route(
        "DELETE", OWNER, USE, delete_subscriber, "Remove a subscriber with its subscriptions and deliveries", status=204
    ),
    Route("GET", "/v1/subscriptions", READ, list_subscriptions, "Search subscriptions", query=SubscriptionSearch),
    Route("PUT", OWNER + "/subscriptions/{name}", USE, put_subscription, "Add or replace a subscription", Wanted),
    Route("DELETE", OWNER + "/subscriptions/{name}", USE, delete_subscription, "Remove a subscription", status=204),
    Route(
        "POST",
        OWNER + "/subscriptions/{name}/resume",
        USE,
        resume_subscription,
        "Match a subscription again that was suspended because it was too expensive",
        status=204,
    ),
    Route(
        "POST",
        OWNER + "/subscriptions",
        USE,
        post_subscriptions,
        "Add or replace many, all or none",
        Subscription,
        raw=True,
    ),
    Route("POST", OWNER + "/replay", USE, post_replay, "Deliver stored events again, starting at a number", Replay),
    Route(
        "POST", OWNER + "/ack", SUBSCRIBE, acknowledge, "Acknowledge deliveries of an event stream", Seqs, status=204
    ),
    Route("POST", OWNER + "/nack", SUBSCRIBE, refuse, "Deliveries failed: send them again later", Seqs, status=204),
    Route("POST", OWNER + "/extend", SUBSCRIBE, extend, "Restart the time-out of deliveries", Seqs, status=204),
    Route("POST", OWNER + "/pause", USE, pause, "Send nothing to a subscriber; its deliveries are kept", status=204),
    Route("POST", OWNER + "/resume", USE, resume, "Send its deliveries again", status=204),
    Route("GET", OWNER + "/webhook", READ, get_webhook, "The webhook of a subscriber, without its secrets"),
    Route(
        "PUT",
        OWNER + "/webhook",
        SUBSCRIBE,
        put_webhook,
        "Send the deliveries by POST; shows a new secret once",
        WebhookSettings,
    ),
    Route("DELETE", OWNER + "/webhook", USE, delete_webhook, "Remove the webhook", status=204),
    Route("POST", "/v1/check", ANYONE, check, "Check a predicate", Text),
    Route("POST", "/v1/try", READ, attempt, "Which subscriptions an event would match, without publishing it", Trial),
    Route("POST", "/v1/explain", READ, explain, "Why a subscription matches an event, or why not", Why),
    Route(
        "GET",
        "/v1/unseen",
        OBSERVE_ALL,
        unseen,
        "Attributes of subscriptions that none of the latest events had",
        query=Latest,
    ),
    Route("GET", "/v1/dead", READ, dead, "Dead letters of subscribers, newest first", query=Search, listing=True),
    Route("POST", "/v1/dead/replay", USE, revive, "Deliver dead letters again", Numbers),
    Route("POST", "/v1/dead/drop", USE, drop_dead, "Delete dead letters for good", Numbers),
    Route("POST", "/v1/snapshot", MANAGE_ALL, snapshot, "Save the index now"),
    Route(
        "POST", "/v1/clock/accept", MANAGE_ALL, accept_clock, "The system's clock has jumped, and is right: follow it"
    ),
    Route("GET", "/v1/whoami", ANYONE, whoami, "The principal of this token, and its rights"),
    Route("GET", "/v1/principals", MANAGE_ALL, list_principals, "All principals with their rights"),
    Route("PUT", PRINCIPAL, MANAGE_ALL, put_principal, "Create a principal, or change its rights", Principal),
    Route("DELETE", PRINCIPAL, MANAGE_ALL, delete_principal, "Remove a principal and its tokens", status=204),
    Route("GET", "/v1/tokens", MANAGE_ALL, list_tokens, "All tokens, without their secrets"),
    Route("POST", "/v1/tokens", MANAGE_ALL, create_token, "Create a token, and show it once", NewToken, status=201),
    Route("PUT", TOKEN, MANAGE_ALL, limit_token, "Give a token fewer roles or an earlier expiry", Limit),
    Route("DELETE", TOKEN, MANAGE_ALL, revoke_token, "Revoke a token, and close its connections", status=204),
]
