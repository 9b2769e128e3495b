"""The matchers: one algorithm per file, one line here, one row in docs/matchers.md.

Modules are imported when first used, so that importing hitbox costs neither numba nor the native engine.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from numpy.typing import NDArray

from hitbox.encoding.arrays import Space
from hitbox.errors import MatcherError, nearest
from hitbox.matchers.base import Matcher

REGISTRY: dict[str, str] = {
    "brute": "hitbox.matchers.brute:Brute",
    "hitbox": "hitbox.engine:Engine",
    "simple": "hitbox.matchers.simple:Simple",
    "counting": "hitbox.matchers.counting:Counting",
    "index-count": "hitbox.matchers.index_count:IndexCount",
    "siena": "hitbox.matchers.siena:Siena",
    "rein": "hitbox.matchers.rein:Rein",
    "pri-rein": "hitbox.matchers.pri_rein:PriRein",
    "pri-rein-s": "hitbox.matchers.pri_rein:PriReinS",
    "dexin": "hitbox.matchers.dexin:Dexin",
    "opindex": "hitbox.matchers.opindex:OpIndex",
    "tama": "hitbox.matchers.tama:Tama",
    "h-tree": "hitbox.matchers.h_tree:HTree",
    "be-tree": "hitbox.matchers.be_tree:BeTree",
    "mlgf": "hitbox.matchers.mlgf:Mlgf",
    "r-tree": "hitbox.matchers.r_tree:RTree",
    "compound": "hitbox.matchers.compound:Compound",
    "ub-tree": "hitbox.matchers.ub_tree:UbTree",
}

AUTO = "hitbox"


def matchers() -> list[str]:
    """The names of every matcher installed.

    >>> "brute" in matchers()
    True
    """
    return list(REGISTRY)


def resolve_name(name: str) -> str:
    """A matcher's own name, checked; `auto` picks the engine."""
    if name == "auto":
        return AUTO
    if not isinstance(name, str) or name not in REGISTRY:
        raise MatcherError(f"unknown matcher {name!r}{nearest(str(name), REGISTRY)} (have: {', '.join(REGISTRY)})")
    return name


def make(name: str, space: Space, **options: object) -> Matcher:
    """The matcher called `name`, empty."""
    return _class(name, options)(space, **options)  # type: ignore[call-arg]


def restore(
    stored: str, arrays: Mapping[str, NDArray[Any]], wanted: str, space: Space, options: Mapping[str, object]
) -> Matcher:
    """The matcher `wanted` with the boxes of the matcher `stored`, whose arrays a snapshot holds."""
    if wanted == stored:
        return _class(wanted, options).from_arrays(space, arrays, **options)
    source = _class(stored, {}).from_arrays(space, arrays)
    matcher = make(wanted, space, **options)
    numbers = source.numbers()
    matcher.insert(numbers, source.boxes(numbers))
    return matcher


def _class(name: str, options: Mapping[str, object]) -> type[Matcher]:
    name = resolve_name(name)
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
    return cls


__all__ = ["AUTO", "REGISTRY", "Matcher", "make", "matchers", "resolve_name", "restore"]
