"""What the store keeps of a subscriber beside its name: its options, and what is set apart from them."""

from __future__ import annotations

from typing import Any

import msgspec

from hitbox.broker.settings import Options, check_options
from hitbox.broker.subscribers.webhook import Webhook
from hitbox.protocol.errors import BadRequest

USE_SECONDS = 3_600.0
"""How often the use of a subscriber is stored, at most."""


class SubscriberRecord(Options, frozen=True, forbid_unknown_fields=True):
    """The options are replaced as a whole, by every client that connects with some; the rest is not."""

    webhook: Webhook | None = None
    paused: bool = False
    used: float = 0.0
    """When it was last used, in seconds since 1970; it may be up to USE_SECONDS later. 0: nobody knows."""

    @property
    def options(self) -> Options:
        return Options(**{name: getattr(self, name) for name in Options.__struct_fields__})


def record_of(options: Options, webhook: Webhook | None, paused: bool, used: float) -> bytes:
    """As it is stored. When it was used is stored if it can expire."""
    known = used if options.expires_seconds else 0.0
    return msgspec.json.encode(
        SubscriberRecord(**msgspec.structs.asdict(options), webhook=webhook, paused=paused, used=known)
    )


def with_use(stored: Any, used: float) -> bytes:
    """A stored record, with the time of its latest use."""
    return msgspec.json.encode(msgspec.structs.replace(read_record(stored), used=used))


def read_record(stored: Any) -> SubscriberRecord:
    try:
        found = msgspec.json.decode(stored, type=SubscriberRecord)
        check_options(found.options, False)
    except (msgspec.DecodeError, UnicodeDecodeError, TypeError) as problem:
        raise BadRequest(str(problem)) from None
    return found
