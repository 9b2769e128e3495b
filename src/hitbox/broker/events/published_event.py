"""An event as publishers send it and as the store keeps it.

    {"event": {"price": 12.5}, "where": "age > 30", "payload": {"any": ["JSON"]}}
    {"event": {"price": 12.5}, "payload": "aGVsbG8=", "content_type": "text/plain"}
    {"event": {"price": 12.5}, "ttl_seconds": 60}
    {"event": {"price": 12.5}, "delay_seconds": 3600}

The attributes in `event` are matched; the payload is stored and delivered with them as it is. With a content type it is
bytes, in JSON as base64.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import msgspec

from hitbox.broker.events.json_text import normalized
from hitbox.protocol.errors import BadRequest
from hitbox.protocol.payload import check_content_type, from_base64

SHOWN = 200
"""Characters of a payload that lists of events show."""
MAX_ID = 200
ID = re.compile(rf"[\x21-\x7e]{{1,{MAX_ID}}}")
TRACEPARENT = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
MAX_SECONDS = 366 * 86_400
"""Of a time to live and of a delay."""
TTL = re.compile(rb'"ttl_seconds":([0-9.e+-]+)}$')
"""The end of a stored text with a time to live. No other text ends like this: the names of its fields are fixed, and a
quote inside a string is escaped."""
TTL_BYTES = 40
"""So many bytes at the end of a stored text are enough to find the time to live."""


NO_PAYLOAD, NULL = msgspec.Raw(), msgspec.Raw(b"null")


class PublishedEvent(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """An event, optionally a predicate that the subscriptions must meet, and a payload that is not matched. With a
    `content_type` the payload is bytes in base64."""

    event: dict[str, Any]
    where: str | None = None
    payload: msgspec.Raw = NO_PAYLOAD
    """JSON that is not decoded: it may be much larger then. None: NO_PAYLOAD or null."""
    content_type: str | None = None
    cloudevent: dict[str, Any] | None = None
    """The context attributes, if it was published as a CloudEvent (see cloudevents.py)."""
    id: str | None = None
    """Chosen by the publisher: a publish with the same id is not stored again (see message_ids.py)."""
    traceparent: str | None = None
    """The publisher's span, as in the header of W3C Trace Context; it is delivered with the event."""
    delay_seconds: float | None = None
    """So long after it was accepted it is matched and delivered (see delivery/delayed.py)."""
    ttl_seconds: float | None = None
    """So long after it was accepted, or was due, the event is not delivered any more. The last field: see
    `expires_at`."""

    def content(self, body: bytes) -> bytes:
        """What must be the same if the event is published again. `body`: its text."""
        if self.traceparent is None:
            return body
        stored = msgspec.json.decode(body, type=PublishedEvent)
        return msgspec.json.encode(msgspec.structs.replace(stored, traceparent=None))  # a repetition has its own span

    def check_traceparent(self) -> None:
        if self.traceparent is not None and not is_traceparent(self.traceparent):
            raise BadRequest(
                f"{self.traceparent!r:.80} is no traceparent: it looks like "
                "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
            )

    def key(self) -> str | None:
        """What identifies the event if it is published again; None: nothing does."""
        if self.id is not None or self.cloudevent is None:
            return self.id
        key = f"{self.cloudevent.get('source')}\n{self.cloudevent.get('id')}"  # a publisher's id has no line break
        return key if len(key) <= MAX_ID else "\n" + blake2b(key.encode(), digest_size=16).hexdigest()

    def check_id(self) -> None:
        if self.id is not None and not ID.fullmatch(self.id):
            raise BadRequest(f"the id of an event is 1 to {MAX_ID} visible ASCII characters, not {self.id!r:.80}")

    def check_times(self) -> None:
        for name, value in (("ttl_seconds", self.ttl_seconds), ("delay_seconds", self.delay_seconds)):
            if value is not None and not 0 < value <= MAX_SECONDS:  # nan fails too
                raise BadRequest(f"{name} must be more than 0 and at most {MAX_SECONDS} (366 days), not {value}")

    def with_checked_payload(self) -> PublishedEvent:
        """The event with its payload as it is stored and delivered; it has one. Raises BadRequest if it cannot be."""
        if self.content_type is not None:
            check_content_type(self.content_type)
        elif self.payload == NULL:
            return msgspec.structs.replace(self, payload=NO_PAYLOAD)
        payload = normalized(self.payload or NULL, "the payload")
        if self.content_type is not None:
            if not bytes(payload).startswith(b'"'):
                raise BadRequest("a payload with a content_type is bytes, as a text in base64; without one it is JSON")
            from_base64(msgspec.json.decode(payload, type=str), "the payload")
        return msgspec.structs.replace(self, payload=payload)

    def shown_payload(self) -> str:
        """The payload as a short text for lists; empty if there is none."""
        text = bytes(self.payload)
        if self.content_type is not None:
            encoded = text[1:-1]  # without quotes; no letter of base64 is escaped
            return f"{len(encoded) * 3 // 4 - encoded[-2:].count(b'=')} bytes of {self.content_type:.80}"
        start = text[: 4 * SHOWN].decode("utf-8", "ignore")
        return start if len(start) <= SHOWN else start[: SHOWN - 1] + "…"


def answered(items: Sequence[PublishedEvent], number: int) -> dict[str, int]:
    """The answer to a publish. Delayed events have no numbers yet; `number` is that of the first among the delayed."""
    delayed = bool(items) and items[0].delay_seconds is not None
    return {"delayed" if delayed else "first": number, "count": len(items)}


def is_traceparent(text: str) -> bool:
    """Whether a text is a `traceparent` of version 00 of W3C Trace Context."""
    return TRACEPARENT.fullmatch(text) is not None


def expires_at(time: int, body: bytes) -> int:
    """When a stored event that was accepted at `time` is not delivered any more, in microseconds since 1970; 0: it has
    no time to live. Reads the end of the text only.

    >>> expires_at(1_000, b'{"event":{"ttl_seconds":2}}'), expires_at(1_000, b'{"event":{},"ttl_seconds":0.5}')
    (0, 501000)
    """
    if not b"0" <= body[-2:-1] <= b"9":  # it does not end in a number: nearly all of them
        return 0
    found = TTL.search(body, max(len(body) - TTL_BYTES, 0))
    return 0 if found is None else max(time + int(float(found[1]) * 1e6), 1)
