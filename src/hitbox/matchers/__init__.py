"""The matchers: one algorithm a file, one line here, one row in the README.

Modules are imported when first used, so that importing hitbox costs neither numba nor the native engine.
"""

from __future__ import annotations

import inspect
from importlib import import_module

from hitbox.boxes import Space
from hitbox.errors import MatcherError, nearest
from hitbox.matchers.base import BoxStore, Matcher

REGISTRY: dict[str, str] = {
    "brute": "hitbox.matchers.brute:Brute",
    "simple": "hitbox.matchers.simple:Simple",
    "rein": "hitbox.matchers.rein:Rein",
    "pri-rein": "hitbox.matchers.pri_rein:PriRein",
    "pri-rein-s": "hitbox.matchers.pri_rein:PriReinS",
    "dexin": "hitbox.matchers.dexin:Dexin",
    "opindex": "hitbox.matchers.opindex:OpIndex",
    "tama": "hitbox.matchers.tama:Tama",
    "h-tree": "hitbox.matchers.h_tree:HTree",
}

AUTO = "brute"


def matchers() -> list[str]:
    """The names of every matcher installed.

    >>> "brute" in matchers()
    True
    """
    return list(REGISTRY)


def make(name: str, space: Space, **options: object) -> Matcher:
    """The matcher called `name`; `auto` picks the engine."""
    name = AUTO if name == "auto" else name
    if name not in REGISTRY:
        raise MatcherError(f"unknown matcher {name!r}{nearest(name, REGISTRY)} (have: {', '.join(REGISTRY)})")
    module, _, cls_name = REGISTRY[name].partition(":")
    try:
        cls: type[Matcher] = getattr(import_module(module), cls_name)
    except ModuleNotFoundError as problem:
        if problem.name and problem.name.split(".")[0] == "hitbox":
            raise
        raise MatcherError(
            f"matcher {name!r} needs the package {problem.name!r}: pip install 'hitbox[papers]'"
        ) from problem
    known = [p for p in inspect.signature(cls).parameters if p != "space"]
    for option in options:
        if option not in known:
            raise MatcherError(
                f"matcher {name!r} has no option {option!r}{nearest(option, known)} (has: {', '.join(known) or 'none'})"
            )
    return cls(space, **options)  # type: ignore[call-arg]


__all__ = ["AUTO", "REGISTRY", "BoxStore", "Matcher", "make", "matchers"]
