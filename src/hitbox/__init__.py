"""hitbox: which of my millions of standing subscriptions want this event?

The public names are imported at first use: `import hitbox` is quick and does not load unused parts.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hitbox.matchers import matchers  # now, because the package `hitbox.matchers` has the same name
from hitbox.version import __version__

if TYPE_CHECKING:
    from hitbox.client import Client
    from hitbox.encoding.schema import Attribute, Schema
    from hitbox.errors import HitboxError, HitboxWarning
    from hitbox.index.changing import LoadReport
    from hitbox.index.exchange import Exchange
    from hitbox.index.index import Index
    from hitbox.index.matches import Matches, Transition
    from hitbox.index.unseen import Unseen
    from hitbox.language import Limits

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
    "Transition",
    "Unseen",
    "__version__",
    "matchers",
]

_MODULES = {
    "Attribute": "hitbox.encoding.schema",
    "Client": "hitbox.client",
    "Exchange": "hitbox.index.exchange",
    "HitboxError": "hitbox.errors",
    "HitboxWarning": "hitbox.errors",
    "Index": "hitbox.index.index",
    "Limits": "hitbox.language",
    "LoadReport": "hitbox.index.changing",
    "Matches": "hitbox.index.matches",
    "Schema": "hitbox.encoding.schema",
    "Transition": "hitbox.index.matches",
    "Unseen": "hitbox.index.unseen",
    "dialects": "hitbox.dialects",
    "spark": "hitbox.spark",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'hitbox' has no attribute {name!r}")
    module = import_module(_MODULES[name])
    found = globals()[name] = module if name.islower() else getattr(module, name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
