"""Does a change lead to a match? It is tried on a copy of the event before anybody is told.

A trial gives places of the event new values: "price: 5 -> at least 10" is tried with 10. For some changes no value is
known: a text that fits a regular expression, a function of two attributes. Then the condition is taken to hold, and
whatever else looks at the same attributes counts as unknown; so what is still true is true with any such value.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from itertools import islice, product
from math import inf, isfinite, nextafter
from typing import Any

from hitbox.encoding.documents import ABSENT, Document
from hitbox.encoding.values import GREATEST, SMALLEST
from hitbox.language.conditions.patterns import Pattern
from hitbox.language.syntax.expressions import Element, Expression, Field, ListPath, fold
from hitbox.language.syntax.tree import Branch, Leaf, Node, Quantifier, parts
from hitbox.language.truth import Scope, Truth, truth

Spot = tuple[int, str]
"""Where a value stands: how many lists are around it, and its name; an element that is no object has none."""
Trial = Mapping[Spot, Any]
MAX_TRIALS = 3
"""Values that are tried for one change."""
MAX_COMBINED = 32
"""Trials of several changes together."""
MAX_CONDITIONS = 50_000
"""Conditions that are evaluated for one explanation, before no nearer change is looked for."""
QUANTIFIER = 20
"""An evaluated condition on a list counts as so many, and as one more for each of its elements."""
LONGEST_TEXT = 10_000
MICROSECOND = timedelta(microseconds=1)


@dataclass(slots=True)
class Trials:
    """Tries changes, within a bound for all of them."""

    left: int = MAX_CONDITIONS

    def succeed(self, root: Node, scope: Scope, several: Sequence[tuple[Sequence[Trial], Node | None]]) -> Trial | None:
        """The new values with which a condition holds after several changes, each of which has trials or is a condition
        that is taken to hold; None if it may not hold."""
        taken: dict[tuple[int, str], Truth] = {}
        dark: set[Spot] = set()
        for trials, condition in several:
            if trials:
                continue
            if condition is None:
                return None
            seen = set(spots(condition))
            if _key(condition) not in taken and dark & seen:
                return None
            taken |= {_key(condition): True, _key(condition.negated()): False}  # type: ignore[union-attr]
            dark |= seen
        known = [trials for trials, _ in several if trials]
        for some in islice(product(*known), MAX_COMBINED):
            for order in (some, some[::-1])[: len(some)]:  # two changes of one value: either may suit both
                trial = {spot: value for one in order for spot, value in one.items()}
                if not dark & {_whole(spot) for spot in trial} and self._holds(
                    root, with_values(scope, trial), taken, dark
                ):
                    return trial
            if not known:
                return {} if self._holds(root, scope, taken, dark) else None
        return None

    def _holds(self, root: Node, scope: Scope, taken: Mapping[tuple[int, str], Truth], dark: set[Spot]) -> bool:
        def visit(node: Node, done: Sequence[Truth]) -> Truth:
            if isinstance(node, Branch):
                return truth(node, done, scope)
            self.left -= 1
            if dark and not dark.isdisjoint(spots(node)):
                return taken.get(_key(node))
            if isinstance(node, Quantifier):
                self.left -= QUANTIFIER + len(scope.several(node.list) or ())
            return truth(node, (), scope) if self.left >= 0 else None

        return self.left > 0 and fold(root, visit) is True


def _key(node: Any) -> tuple[int, str]:
    return node.position, str(node)


def _whole(spot: Spot) -> Spot:
    return spot[0], spot[1].partition(".")[0]


def spots(root: Any) -> Iterator[Spot]:
    """What a condition or an expression looks at; of a path, the whole object or list at its start."""
    stack = [root]
    while stack:
        of = stack.pop()
        if isinstance(of, Leaf):
            yield _whole((0, of.name))
        elif isinstance(of, Field):
            yield _whole((of.level, of.name))
        elif isinstance(of, ListPath):
            yield _whole((of.level, of.steps[0]))
        elif isinstance(of, Element):
            yield of.level, ""
        stack.extend(parts(of))


def spot_of(of: Expression) -> Spot | None:
    """The place of a value that an expression is; None of a function, and of the old image."""
    if isinstance(of, Field) and not of.old:
        return of.level, of.name
    return (of.level, "") if isinstance(of, Element) else None


def with_values(scope: Scope, trial: Trial) -> Scope:
    """A scope in which some places have other values."""
    if not trial:
        return scope
    found = scope.copied()
    for (level, name), value in trial.items():
        if not level:
            old = found.values.old if isinstance(found.values, Document) else None
            changed = _changed(found.values, name, value)
            found.values = Document(changed, old) if isinstance(found.values, Document) else changed
        elif not name:
            found.elements[level - 1] = value
        elif isinstance(found.elements[level - 1], Mapping):
            found.elements[level - 1] = _changed(found.elements[level - 1], name, value)
    return found


def _changed(values: Mapping[str, Any], name: str, value: Any) -> dict[str, Any]:
    """A path that is in the event as nested objects is one name in the copy, which is looked up first."""
    found = dict(values)
    if value is not ABSENT:
        return found | {name: value}
    found.pop(name, None)
    found.pop(name.partition(".")[0], None)
    return found


# ---- which values to try


def fitting(of: str, values: Iterable[Any]) -> Iterator[Any]:
    """The values that an attribute may have."""
    for value in values:
        if value is None or value is ABSENT:
            yield value
        elif of in ("number", "any"):
            yield float(value) if isinstance(value, Decimal) else value
        elif of in ("int", "float") and isinstance(value, (int, float, Decimal)) and not isinstance(value, bool):
            number: Any = value
            if of == "float" and isfinite(number):
                yield float(number)
            elif isfinite(number) and number == int(number) and SMALLEST <= number <= GREATEST:
                yield int(number)
        elif of == {str: "string", bool: "bool", datetime: "timestamp"}.get(_class(value)):
            yield value


def _class(value: Any) -> Any:
    return datetime if isinstance(value, datetime) else bool if isinstance(value, bool) else value.__class__


def near(value: Any) -> Iterator[Any]:
    """A value, and its neighbours on both sides."""
    yield value
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, (int, Decimal)):
        yield from (int(value) + 1, int(value) - 1)
        if -(2**60) < value < 2**60:
            yield from (nextafter(float(value), inf), nextafter(float(value), -inf))
    elif isinstance(value, float):
        yield from (nextafter(value, inf), nextafter(value, -inf))
    elif isinstance(value, str):
        yield from (value + "!", value[:-1], value.lower(), value.upper())
    elif isinstance(value, datetime) and value.year in range(2, 9999):
        yield from (value + MICROSECOND, value - MICROSECOND)


def through(known: Any, wanted: Any, current: Any) -> Iterator[Any]:
    """For a function that is `known` at `current`, values at which it may be `wanted`: if it adds, subtracts, scales or
    measures a text."""
    numbers = (int, float, Decimal)
    if isinstance(current, str) and isinstance(wanted, int):
        for length in (wanted, wanted + 1, wanted - 1):
            if 0 <= length <= LONGEST_TEXT:
                yield current[:length].ljust(length, "x")
    elif isinstance(current, numbers) and isinstance(known, numbers) and isinstance(wanted, numbers):
        start, here, goal = float(current), float(known), float(wanted)
        found = [start + goal - here, start - goal + here, goal, -goal]
        found += [start * goal / here] if here else []
        found += [start * here / goal] if goal else []
        for one in found:
            if isfinite(one) and abs(one) < 2**60:
                yield from (one, round(one), round(one) + 1, round(one) - 1, nextafter(one, inf), nextafter(one, -inf))


def examples(pattern: Pattern, current: Any) -> Iterator[str]:
    """Texts that fit a pattern, or that most patterns do not fit."""
    parts = [
        part.decode(errors="surrogatepass").replace("\x00", "x")
        for part in pattern.code().replace(b"\xfe", b"\0").split(b"\xff")
    ]
    yield "".join(parts)
    text = current if isinstance(current, str) else ""
    yield parts[0] + text + "".join(parts[1:])
    yield "x".join(parts)
    yield from ("", "x", text + "x", "x" + text)
