"""A delivery, as the client hands it out."""

from __future__ import annotations

from typing import Any

import msgspec

from hitbox.client.payload import received_payload


class Delivery(msgspec.Struct, frozen=True):
    """An event for this subscriber, with all its subscriptions that matched; `redelivered`: possibly sent before.

    `changes` is for subscribers with the option `changes`: {subscription: "enter", "leave" or "stay"} of an event with
    an old and a new image. `payload` is what was published with the event: JSON, or bytes with their `content_type`.
    `cloudevent` has the context attributes of an event that was published as a CloudEvent; if the subscriber asked for
    CloudEvents, it is the whole CloudEvent of every event, with its data, and `payload` is None. `traceparent` is the
    publisher's span, if it was published with one (W3C Trace Context). `key` is the same whenever this delivery comes,
    and no other delivery to this subscriber has it: who must not handle anything twice remembers it. `seq` alone is not
    enough: a broker that was restored from a backup may give the number of an event to another one.
    """

    seq: int
    level: int
    time: int
    subscriptions: list[str]
    event: dict[str, Any]
    where: str | None = None
    payload: Any = None
    content_type: str | None = None
    cloudevent: dict[str, Any] | None = None
    id: str | None = None
    traceparent: str | None = None
    ttl_seconds: float | None = None
    delay_seconds: float | None = None
    changes: dict[str, str] = {}
    attempt: int = 1
    redelivered: bool = False
    key: str = ""


def delivery_of(row: Any, incarnation: str) -> Delivery:
    """A delivery from a message of the broker, whose store has this incarnation."""
    row["key"] = f"{incarnation}-{row['seq']}"
    delivery = msgspec.convert(row, Delivery)
    if delivery.content_type is None:
        return delivery
    return msgspec.structs.replace(delivery, payload=received_payload(delivery.payload, delivery.content_type))
