"""Settings of the broker, given at start, and options of a subscriber. Unknown names are refused."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from hitbox.broker.errors import BadRequest
from hitbox.errors import nearest

Way = Literal["serial", "alternate", "concurrent"]
Policy = Literal["spool", "drop_oldest", "disconnect"]
MOST = 2**53
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@~-]{0,99}")


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of the broker."""

    way: Way = "concurrent"
    """How priority levels are determined and sent: all determined first, in turns, or overlapped."""
    max_waiting: int = 20_000
    """Events that are being stored or wait to be matched; above this, publishers are refused."""
    max_waiting_bytes: int = 64 * 2**20
    max_event_bytes: int = 64 * 2**10
    max_body_bytes: int = 16 * 2**20
    max_batch: int = 10_000
    max_subscribers: int = 100_000
    max_subscriptions: int = 10_000_000
    max_connections: int = 10_000
    """WebSockets per principal."""
    max_sockets: int = 10_000
    """Connections of all kinds; limited by the number of files that the process may open."""
    max_address_sockets: int = 5_000
    """Connections of one address."""
    address_rate: float = 1_000.0
    """New connections per second of one address; 0 means no limit."""
    max_header_bytes: int = 64 * 2**10
    """All headers of a request together."""
    request_seconds: float = 10.0
    """Time for the head of a request, from opening the connection, or from the first byte on a kept connection."""
    body_seconds: float = 60.0
    """Time for the body of a request, from the end of its head."""
    hello_seconds: float = 10.0
    """Time for the first message on a WebSocket."""
    stall_seconds: float = 60.0
    """Time within which a client must read something of what is sent to it."""
    max_lookups: int = 20
    """Requests to try or explain an event that may be running or waiting; two run at a time."""
    publish_rate: float = 0.0
    """Events per second and principal; 0 means no limit."""
    keep_seconds: float = 7 * 86_400.0
    keep_bytes: int = 2**30
    max_store_bytes: int | None = None
    max_dead_letters: int = 100_000
    snapshot_changes: int = 100_000
    """Number of changes of subscriptions after which the index is saved."""


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of a subscriber. `limit`: number of pending deliveries above which the policy is applied."""

    policy: Policy = "spool"
    limit: int = 1_000_000
    visibility_seconds: float = 30.0
    max_tries: int = 5
    backoff_seconds: float = 1.0
    max_backoff_seconds: float = 60.0
    unmatched: bool = False
    """Also receive events that match no subscription of any subscriber: at level 0, with no subscription named."""


MAY_BE_ZERO = ("publish_rate", "address_rate", "keep_seconds", "keep_bytes", "max_dead_letters")


def read_settings(given: Iterable[str]) -> Settings:
    """Settings from texts like "max_batch=500"; unknown names and invalid values are refused.

    >>> read_settings(["max_batch=500"]).max_batch
    500
    """
    known = Settings.__struct_fields__
    values: dict[str, str] = {}
    for one in given:
        name, equals, value = (part.strip() for part in one.partition("="))
        if name not in known:
            raise BadRequest(f"there is no setting {name!r:.80}{nearest(name, known)} (settings: {', '.join(known)})")
        if not equals:
            raise BadRequest(f"the setting {name} needs a value: {name}=...")
        try:
            msgspec.convert({name: value}, Settings, strict=False)
        except msgspec.ValidationError as problem:
            raise BadRequest(f"the setting {name} cannot be {value!r:.80}: {problem}") from None
        values[name] = value
    return check_settings(msgspec.convert(values, Settings, strict=False))


def check_settings(settings: Settings) -> Settings:
    """Returns the settings; numbers out of range are refused."""
    for name in settings.__struct_fields__:
        value: Any = getattr(settings, name)
        if isinstance(value, (int, float)):
            zero = name in MAY_BE_ZERO
            if not 0 <= value <= MOST or (value == 0 and not zero):  # nan fails the first test
                least = "from 0" if zero else "above 0"
                raise BadRequest(f"the setting {name} must be a number {least}, up to {MOST}, not {value}")
    return settings


def check_name(name: object, what: str) -> str:
    """Check the name of a subscriber or subscription: no slash, nothing that needs escaping in a URL."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise BadRequest(f"the name of a {what} must be 1 to 100 letters, digits or . _ : @ ~ - (not {name!r:.60})")
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
    return options


def read_options(stored: Any) -> Options:
    """Decode stored options."""
    try:
        return check_options(msgspec.json.decode(stored, type=Options), False)
    except (msgspec.DecodeError, UnicodeDecodeError, TypeError) as problem:
        raise BadRequest(str(problem)) from None
