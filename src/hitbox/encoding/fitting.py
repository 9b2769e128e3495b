"""What `on_error` means, wherever many rows or events come at once.

    raise    the first one that does not fit is an error that names it, and nothing is done
    null     of events only: what does not fit is null, or left out if its name does not fit; the rest counts
    return   what does not fit is left out as a whole, and comes back with the reason

An event fits if it can be matched: `check` of the functions here raises a HitboxError otherwise, so they need not know
what the rules are.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

from hitbox.encoding.inputs import MAX_DEPTH, as_mapping
from hitbox.encoding.values import brief
from hitbox.errors import HitboxError, ValueProblem

FOR_ROWS = ("raise", "return")
FOR_EVENTS = ("raise", "null", "return")
NOTHING = object()

Check = Callable[[Any], object]


def check_on_error(given: object, known: tuple[str, ...] = FOR_ROWS) -> None:
    if given not in known:
        *others, last = map(repr, known)
        raise ValueProblem(f"on_error is {', '.join(others)} or {last}, not {brief(given)}")


def misfit(check: Check, event: Any) -> str:
    """Why an event does not fit; empty if it does."""
    try:
        check(event)
    except HitboxError as problem:
        return str(problem)
    return ""


def fitted(check: Check, event: Any) -> Any:
    """An event that does not fit, without what does not fit in it. Nothing is left of one that is wrong as a whole, as
    it says an attribute twice."""
    found = _fitted(check, event, [])
    return {} if found is NOTHING or found is None else found


def _fitted(check: Check, value: Any, path: list[str]) -> Any:
    """What fits of the value at this path: of an object the fields that do, or null, or NOTHING."""

    def fits(one: Any) -> bool:
        return not misfit(check, reduce(lambda inner, name: {name: inner}, reversed(path), one))

    if fits(value):
        return value
    inner = as_mapping(value) if len(path) < MAX_DEPTH else None
    if inner is not None:
        kept = {name: one for name, old in inner.items() if (one := _fitted(check, old, [*path, name])) is not NOTHING}
        if fits(kept):
            return kept
    return None if fits(None) else NOTHING
