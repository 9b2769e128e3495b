"""hitbox: which of my millions of standing subscriptions want this event?"""

from __future__ import annotations

from hitbox.errors import HitboxError, HitboxWarning
from hitbox.index import Index, LoadReport
from hitbox.language import Limits
from hitbox.matchers import matchers
from hitbox.matches import Matches
from hitbox.schema import Attribute, Schema
from hitbox.symmetric import Exchange

__version__ = "0.1.0"
__all__ = [
    "Attribute",
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
