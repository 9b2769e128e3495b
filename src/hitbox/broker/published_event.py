"""An event as publishers send it and as the store keeps it."""

from __future__ import annotations

from typing import Any

import msgspec


class PublishedEvent(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """An event, and optionally a predicate that the subscriptions must meet."""

    event: dict[str, Any]
    where: str | None = None
