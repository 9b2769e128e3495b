"""The tables of the store, and what their rows are.

    meta           key                                    value
    subscribers    number                                 name, settings
    subscriptions  subscriber, name                       where, priority, about
    changes        seq                                    subscriber's name, name: changed since the last snapshot
    events         seq                                    time, principal, body
    delayed        number                                 due, principal, body: becomes an event when it is due
    losses         subscriber                             dropped, expired, dead: how many of its deliveries, ever
    log            seq                                    steps: what happened to recent deliveries (see recent.py)
    kept           event                                  time, body: retention has passed it, but it is still needed
    deliveries     subscriber, urgency (9-level), seq     ids, sent, tries, kept (whether its event is in that table)
    dead           number                                 subscriber, level, seq, ids, tries, reason, time, body
    principals     name                                   settings: roles, names, predicates
    tokens         id                                     principal, hash of the secret, settings: roles, expiry
    owners         subscriber                             principal
    suspended      subscriber, name                       time, reason: this subscription is set aside

An event is stored first and matched afterwards. `matched` in meta is the number of the last matched event; it is
written together with the deliveries, so after a crash the rest is matched again. Deliveries are written to the log
first. Those that are not acknowledged soon become rows of their table. An acknowledgement is written to the log, or
deletes the row. Deliveries are read in order: the most urgent first, then by age.

Retention removes the oldest events, so that `events` never has a gap. One that is still pending for somebody moves to
`kept`: once, however many wait for it. It is deleted there with the last of its deliveries.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from hitbox.broker.store.checked_table import CheckedTable, Columns, Name, Number
from hitbox.encoding.arrays import LEVELS
from hitbox.encoding.schema import Schema
from hitbox.errors import HitboxError

FORMAT = 4
NEVER = 2**62
TOP = LEVELS - 1
Level = Annotated[int, msgspec.Meta(ge=0, le=TOP)]
Flag = Literal[0, 1]
Text = bytes | None
Jumps = list[tuple[Number, Number]]
"""Where numbers of events were left out: (the last before, the next one)."""
TABLES = {  # Any: if it is wrong, only one subscriber or subscription is set aside
    "meta": Columns({"key": str, "value": bytes}),
    "subscribers": Columns({"number": Number, "name": Name, "settings": Any}),
    "subscriptions": Columns({
        "subscriber": Number, "name": Name, "wanted": Any, "priority": Any, "about": Any,
    }, keys=2),
    "changes": Columns({"seq": Number, "owner": str, "name": str}),
    "events": Columns({"seq": Number, "time": Number, "principal": str, "body": bytes}, bulk=True),
    "deliveries": Columns({
        "subscriber": Number, "urgency": Level, "seq": Number,
        "ids": str, "sent": Flag, "tries": Number, "kept": Flag,
    }, keys=3, bulk=True),
    "dead": Columns({
        "number": Number, "subscriber": Number, "level": Level, "seq": Number,
        "ids": str, "tries": Number, "reason": str, "time": Number, "body": Text,
    }),
    "principals": Columns({"name": Name, "settings": bytes}),
    "tokens": Columns({"id": Name, "principal": Name, "hash": str, "settings": bytes}),
    "owners": Columns({"subscriber": Number, "principal": Name}),
    "log": Columns({"seq": Number, "steps": bytes}),
    "delayed": Columns({"number": Number, "due": Number, "principal": str, "body": bytes}, bulk=True),
    "losses": Columns({"subscriber": Number, "dropped": Number, "expired": Number, "dead": Number}),
    "kept": Columns({"event": Number, "time": Number, "body": bytes}, bulk=True),
    "suspended": Columns({"subscriber": Number, "name": Name, "time": Number, "reason": str}, keys=2),
}  # fmt: skip
READABLE = f"""typeof(wanted) = 'text' AND typeof(about) = 'text'
               AND typeof(priority) = 'integer' AND priority BETWEEN 0 AND {TOP}"""
"""SQL condition: the columns of the subscription have valid types."""
META_TYPES: dict[str, Any] = {
    "format": int, "incarnation": Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{16}\Z")], "copied": bool,
    "clock": tuple[str, int, int], "jumps": Jumps, "matched": Number, "failed": list[Number], "protected": bool,
    "ahead": tuple[Number, Number, Number], "snapshot": dict[str, Number] | None, "schema": list[dict[str, Any]],
}  # fmt: skip
"""Types of the values in table `meta`, by key."""
WITH_EVENTS = """deliveries d LEFT JOIN events e ON e.seq = d.seq
                  LEFT JOIN kept k ON d.kept = 1 AND k.event = d.seq"""
HAS_EVENT = "(e.seq IS NOT NULL OR k.event IS NOT NULL)"
TIME_OF, BODY_OF = "ifnull(e.time, k.time)", "ifnull(e.body, k.body)"
UNUSED = "NOT EXISTS (SELECT 1 FROM deliveries WHERE seq = event AND kept = 1)"
LEVELS_TABLE = f"level(u) AS (VALUES {', '.join(f'({urgency})' for urgency in range(LEVELS))})"


class StoredChange(NamedTuple):
    """A change of the subscriptions of one subscriber: `put` adds or replaces (name, where, priority, about). With
    `settings` the subscriber itself is stored, too, and belongs to the principal `claimed`, unless that is empty."""

    subscriber: int
    owner: str
    put: Sequence[tuple[str, str, int, str]]
    remove: Sequence[str]
    settings: bytes | None = None
    claimed: str = ""


class StoredDelivery(NamedTuple):
    """A delivery as it comes back from the store."""

    seq: int
    level: int
    ids: list[str]
    sent: bool
    tries: int
    time: int
    body: bytes


class Meta:
    """Table `meta`: values by key."""

    def __init__(self, table: CheckedTable):
        self.table = table

    def get(self, key: str, default: Any = None) -> Any:
        for _, value, _ in self.table.scan("key = ?", (key,)):
            return msgspec.json.decode(value)
        return default

    def put(self, key: str, value: Any) -> None:
        self.table.put([(key, msgspec.json.encode(value))])


def meta_fault(key: str, value: bytes) -> str:
    """Why a value of table `meta` is invalid for its key; empty if it is valid."""
    try:
        found = msgspec.json.decode(value, type=META_TYPES.get(key, Any))
        if key == "schema":
            Schema.from_json(found)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, TypeError, HitboxError) as problem:
        return str(problem)
    return ""
