"""hitbox: which of my millions of standing subscriptions want this event?"""

from __future__ import annotations

from typing import Any

from hitbox.encoding.schema import Attribute, Schema
from hitbox.errors import HitboxError, HitboxWarning
from hitbox.index.exchange import Exchange
from hitbox.index.index import Index, LoadReport
from hitbox.index.matches import Matches
from hitbox.language import Limits
from hitbox.matchers import matchers

__version__ = "0.1.0"
__all__ = [
    "Attribute",
    "Client",
    "Exchange",
    "HitboxError",
    "HitboxWarning",
    "Index",
    "Limits",
    "LoadReport",
    "Matches",
    "Schema",
    "matchers",
]


def __getattr__(name: str) -> Any:
    if name == "Client":  # on demand: it imports a web client, which the extra `broker` installs
        from hitbox.broker.client import Client

        return Client
    raise AttributeError(f"module 'hitbox' has no attribute {name!r}")
