"""Settings of the broker, given at start, and options of a subscriber. Unknown names are refused."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

import msgspec

from hitbox.encoding.schema import Schema
from hitbox.protocol.errors import BadRequest

Way = Literal["serial", "alternate", "concurrent"]
Policy = Literal["spool", "drop_oldest", "disconnect"]
MOST = 2**53
SINGLE_BYTES = 2**20
LEAST_EXPIRY, MOST_EXPIRY = 60, 3660 * 86_400
"""Seconds after which an unused subscriber may expire."""
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@~-]{0,99}")


def _about(help: str, **limits: Any) -> msgspec.Meta:
    made: msgspec.Meta = msgspec.Meta(description=help, **limits)
    return made


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of the broker. Flags, environment, configuration file, --help and the docs are made from these lines."""

    way: Annotated[Way, _about("how priority levels are matched and sent: all matched first, in turns, overlapped")] = (
        "concurrent"
    )
    max_waiting: Annotated[
        int, _about("events that are being stored or wait to be matched; beyond: 429", ge=1, le=MOST)
    ] = 20_000
    max_waiting_bytes: Annotated[int, _about("bytes of these events; beyond: 429", ge=1, le=MOST)] = 64 * 2**20
    max_delayed: Annotated[int, _about("events that wait for their delay to pass; beyond: 429", ge=0, le=MOST)] = (
        1_000_000
    )
    max_principal_delayed: Annotated[int, _about("the same of one principal; beyond: 429", ge=0, le=MOST)] = 250_000
    max_event_bytes: Annotated[int, _about("bytes of one event; beyond: 413", ge=1, le=MOST)] = 64 * 2**10
    max_body_bytes: Annotated[int, _about("bytes of one request; beyond: 413", ge=1, le=MOST)] = 16 * 2**20
    max_batch: Annotated[int, _about("events or subscriptions in one request; beyond: 413", ge=1, le=MOST)] = 10_000
    max_subscribers: Annotated[int, _about("subscribers, ephemeral ones too; beyond: 429", ge=1, le=MOST)] = 100_000
    max_principal_subscribers: Annotated[
        int, _about("subscribers of one principal, ephemeral ones too; beyond: 429", ge=1, le=MOST)
    ] = 25_000
    max_subscriptions: Annotated[int, _about("subscriptions; beyond: 429", ge=1, le=MOST)] = 10_000_000
    match_steps: Annotated[
        int,
        _about(
            "steps, of about a microsecond, that one subscription may take on an event; beyond: it fails on this event",
            ge=1,
            le=MOST,
        ),
    ] = 20_000
    principal_steps: Annotated[
        int,
        _about(
            "steps that all subscriptions of one principal, or of a subscriber of nobody, may take on an event; "
            "beyond: those that took the most fail",
            ge=1,
            le=MOST,
        ),
    ] = 50_000
    suspend_after: Annotated[
        int, _about("failures within an hour after which a subscription is suspended; 0: it never is", ge=0, le=MOST)
    ] = 3
    max_connections: Annotated[int, _about("WebSockets and streams of events per principal", ge=1, le=MOST)] = 10_000
    max_sockets: Annotated[
        int, _about("connections of all kinds, if the process may open so many files; beyond: 503", ge=1, le=MOST)
    ] = 10_000
    max_address_sockets: Annotated[
        int, _about("connections of one address; beyond: closed at once, before TLS", ge=1, le=MOST)
    ] = 5_000
    address_rate: Annotated[
        float, _about("new connections per second of one address; 0: no limit; beyond: closed at once", ge=0, le=MOST)
    ] = 1_000.0
    max_header_bytes: Annotated[int, _about("the head of a request; beyond: 400", ge=1, le=MOST)] = 64 * 2**10
    request_seconds: Annotated[
        float,
        _about("time for the head of a request, from its first byte; beyond: 408, or it is closed", gt=0, le=MOST),
    ] = 10.0
    body_seconds: Annotated[
        float, _about("time for the body of a request, from the end of its head; beyond: 408", gt=0, le=MOST)
    ] = 60.0
    hello_seconds: Annotated[float, _about("time for the first message of a WebSocket", gt=0, le=MOST)] = 10.0
    stall_seconds: Annotated[
        float, _about("time within which a client must read something of what is sent to it", gt=0, le=MOST)
    ] = 60.0
    max_lookups: Annotated[
        int,
        _about(
            "requests of a principal to check, try, explain or list that wait; one of them runs at a time, two of all; "
            "beyond: 429",
            ge=1,
            le=MOST,
        ),
    ] = 20
    max_webhook_requests: Annotated[
        int, _about("requests to webhooks at a time, half of them of one principal; beyond: they wait", ge=1, le=10_000)
    ] = 100
    allow_private_webhooks: Annotated[
        bool, _about("webhooks may be plain http, and lead to loopback, private and link-local addresses")
    ] = False
    publish_rate: Annotated[
        float, _about("events per second and principal; 0: no limit; beyond: 429", ge=0, le=MOST)
    ] = 0.0
    keep_seconds: Annotated[float, _about("how long events are kept", ge=0, le=MOST)] = 7 * 86_400.0
    keep_bytes: Annotated[
        int, _about("what all stored events may take; beyond: the oldest are removed", ge=0, le=MOST)
    ] = 2**30
    max_store_bytes: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=MOST)] | None,
        _about("size of the store; beyond: 507; retention keeps it under three quarters if possible"),
    ] = None
    max_pending_bytes: Annotated[
        int,
        _about(
            "bytes of the events pending for one subscriber; beyond: the oldest become dead letters, or are dropped if "
            "its policy is drop_oldest",
            ge=0,
            le=MOST,
        ),
    ] = 2**30
    max_pending_seconds: Annotated[
        float, _about("age of an event pending for a subscriber; beyond: the same", gt=0, le=MOST)
    ] = 30 * 86_400.0
    max_principal_pending_bytes: Annotated[
        int,
        _about(
            "bytes pending for all subscribers of one principal; beyond: the same, of the subscriber with the most",
            ge=0,
            le=MOST,
        ),
    ] = 4 * 2**30
    max_dead_letters: Annotated[
        int, _about("dead letters of one subscriber; beyond: its oldest are removed", ge=0, le=MOST)
    ] = 100_000
    max_principal_dead_letters: Annotated[
        int,
        _about(
            "dead letters of all subscribers of one principal, or of nobody; beyond: the oldest of the subscriber with "
            "the most are removed",
            ge=0,
            le=MOST,
        ),
    ] = 200_000
    clock_jump_seconds: Annotated[
        float, _about("how far the system's clock may jump; beyond: the broker goes on without it", gt=0, le=MOST)
    ] = 60.0
    clock_hold_seconds: Annotated[
        float, _about("how long it does so; then it follows, and what is too old by that time goes", ge=0, le=MOST)
    ] = 86_400.0
    message_ids: Annotated[
        int, _about("latest events whose ids are known: a repeated publish is not stored again; 0: none", ge=0, le=MOST)
    ] = 100_000
    snapshot_changes: Annotated[
        int, _about("changes of subscriptions after which the index is saved; also at a normal exit", ge=1, le=MOST)
    ] = 100_000

    def sent_event_bytes(self) -> int:
        """Of an event as it is sent, with spaces and escapes that are not stored. Checked before it is decoded."""
        return min(4 * self.max_event_bytes, self.max_body_bytes)

    def single_bytes(self) -> int:
        """Of a body or a message without what may come in batches, and of each subscription of a batch."""
        return min(max(SINGLE_BYTES, self.sent_event_bytes()), self.max_body_bytes)


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of a subscriber. `limit`: number of pending deliveries above which the policy is applied."""

    policy: Policy = "spool"
    limit: int = 1_000_000
    visibility_seconds: float = 30.0
    max_tries: int = 5
    backoff_seconds: float = 1.0
    max_backoff_seconds: float = 60.0
    shared: bool = False
    """Several connections share the deliveries. Otherwise a new connection replaces the one before."""
    unmatched: bool = False
    """Also receive events that match no subscription of any subscriber: at level 0, with no subscription named."""
    changes: bool = False
    """Of events with an old and a new image, be told whether they enter, leave or stay, for each subscription."""
    expires_seconds: float = 0.0
    """It is removed after so long without a connection, a webhook or a change of its subscriptions; 0: never."""


def check_settings(settings: Settings) -> Settings:
    """Returns the settings; values out of range are refused."""
    try:
        return msgspec.convert(msgspec.structs.asdict(settings), Settings)
    except msgspec.ValidationError as problem:
        wrong, _, place = str(problem).partition(" - at `$.")
        raise BadRequest(f"the setting {place.rstrip('`')} is invalid: {wrong.lower()}") from None


def check_schema(schema: Schema) -> Schema:
    """Returns a schema that a broker can have: one that declares its attributes, and says nothing about others."""
    if schema.is_open:
        raise BadRequest(
            "a broker needs a schema that declares its attributes, and this one is open: it is that of an index "
            "without a schema. Make the index with one, e.g. hitbox.Index({'price': 'float', 'city': 'string'})"
        )
    if schema.extra is not None:
        raise BadRequest(
            f"a broker cannot have a schema with extra={schema.extra!r}: leave `extra` out (fields that are not "
            "declared are ignored, unless one looks like a misspelt attribute)"
        )
    return schema


def check_name(name: object, what: str) -> str:
    """Check the name of a subscriber or subscription: no slash, nothing that needs escaping in a URL."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise BadRequest(
            f"the name of a {what} must be 1 to 100 letters (a-z, A-Z), digits or . _ : @ ~ -, and begin with a "
            f"letter, a digit or _ (not {name!r:.60})"
        )
    return name


def check_options(options: Options, ephemeral: bool) -> Options:
    if ephemeral and options.policy == "spool":
        raise BadRequest("an ephemeral subscriber has no spool: its policy must be drop_oldest or disconnect")
    if not 1 <= options.limit <= MOST or not 1 <= options.max_tries <= MOST:
        raise BadRequest(f"limit and max_tries must be 1 to {MOST}")
    if not 0.01 <= options.visibility_seconds <= 86_400:
        raise BadRequest("visibility_seconds must be 0.01 to 86400")
    if not 0 <= options.backoff_seconds <= 86_400 or not 0 <= options.max_backoff_seconds <= 86_400:
        raise BadRequest("backoff_seconds and max_backoff_seconds must be 0 to 86400")
    if options.expires_seconds and ephemeral:
        raise BadRequest("an ephemeral subscriber ends with its connection: expires_seconds is for durable ones")
    if options.expires_seconds != 0 and not LEAST_EXPIRY <= options.expires_seconds <= MOST_EXPIRY:  # nan fails too
        raise BadRequest(f"expires_seconds must be {LEAST_EXPIRY} to {MOST_EXPIRY} (ten years), or 0 for never")
    return options
