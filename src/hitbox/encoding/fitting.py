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
MOST_PROBES, MOST_TRIED = 500, 50
"""Parts of an event that are looked at alone, and those that are then tried beside the rest."""

Check = Callable[[Any], object]
Path = tuple[Any, ...]


def check_on_error(given: object, known: tuple[str, ...] = FOR_ROWS) -> None:
    if not isinstance(given, str) or given not in known:
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
    probe = _Probe(check)
    found = probe.part(event, ())
    return {} if found is NOTHING or found is None else probe.with_rest(found)


class _Probe:
    """Asks of the parts of one event whether they fit, a bounded number of times."""

    def __init__(self, check: Check):
        self._check, self._left = check, MOST_PROBES
        self._refused: list[tuple[Path, Any]] = []
        """What does not fit alone, and is not part of what is left."""

    def part(self, value: Any, path: Path) -> Any:
        """What fits of the value at this path: of an object the fields that do, or null, or NOTHING."""
        if self._fits(value, path):
            return value
        refused = len(self._refused)
        inner = as_mapping(value) if len(path) < MAX_DEPTH else None
        if inner is not None:
            parts = self._halves(list(inner.items()), path) if inner else {}
            kept = {name: one for name, one in parts.items() if one is not NOTHING}
            if self._fits(kept, path):
                return kept
            del self._refused[refused:]
        if self._fits(None, path):
            return None
        self._refused.append((path, value))
        return NOTHING

    def _halves(self, fields: list[tuple[Any, Any]], path: Path) -> dict[Any, Any]:
        """What fits of some fields, of which not all fit. Few probes find a few that do not, among however many."""
        found: dict[Any, Any] = {}
        if len(fields) == 1:
            name, value = fields[0]
            found[name] = self.part(value, (*path, name))
            return found
        for half in (fields[: len(fields) // 2], fields[len(fields) // 2 :]):
            found |= dict(half) if len(half) > 1 and self._fits(dict(half), path) else self._halves(half, path)
        return found

    def with_rest(self, found: Any) -> Any:
        """What was refused may fit beside the rest, as names do that no attribute has: all of it, or one by one."""
        whole = reduce(lambda event, one: _with(event, *one), self._refused, found)
        if not misfit(self._check, whole):
            return whole
        for path, value in self._refused[:MOST_TRIED]:
            more = _with(found, path, value)
            found = found if misfit(self._check, more) else more
        return found

    def _fits(self, value: Any, path: Path) -> bool:
        self._left -= 1
        alone = reduce(lambda inner, name: {name: inner}, reversed(path), value)
        return self._left >= 0 and not misfit(self._check, alone)


def _with(event: Any, path: Path, value: Any) -> Any:
    """The event with this value, too."""
    name, *rest = path
    return {**event, name: _with(event[name], tuple(rest), value) if rest else value}
