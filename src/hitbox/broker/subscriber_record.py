"""What the store keeps of a subscriber beside its name: its options, and what is set apart from them."""

from __future__ import annotations

from typing import Any

import msgspec

from hitbox.broker.errors import BadRequest
from hitbox.broker.settings import Options, check_options
from hitbox.broker.webhook import Webhook


class SubscriberRecord(Options, frozen=True, forbid_unknown_fields=True):
    """The options are replaced as a whole, by every client that connects with some; the rest is not."""

    webhook: Webhook | None = None
    paused: bool = False

    @property
    def options(self) -> Options:
        return Options(**{name: getattr(self, name) for name in Options.__struct_fields__})


def record_of(options: Options, webhook: Webhook | None, paused: bool) -> bytes:
    """As it is stored."""
    return msgspec.json.encode(SubscriberRecord(**msgspec.structs.asdict(options), webhook=webhook, paused=paused))


def read_record(stored: Any) -> SubscriberRecord:
    try:
        found = msgspec.json.decode(stored, type=SubscriberRecord)
        check_options(found.options, False)
    except (msgspec.DecodeError, UnicodeDecodeError, TypeError) as problem:
        raise BadRequest(str(problem)) from None
    return found
