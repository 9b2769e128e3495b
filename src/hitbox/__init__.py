"""hitbox: which of my millions of standing subscriptions want this event?"""

from __future__ import annotations

from hitbox.errors import HitboxError
from hitbox.matchers import matchers

__version__ = "0.1.0"
__all__ = ["HitboxError", "matchers"]
