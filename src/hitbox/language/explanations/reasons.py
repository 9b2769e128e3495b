"""What a condition saw in an event, in words, and the smallest change after which it would hold.

    LOWER(name) = 'alice'             LOWER(name) is 'bob' (name is 'Bob')         LOWER(name): 'bob' -> 'alice'
    ALL(scores) >= 3                  1 of 3 elements of scores does not fit ..    element 1 of scores: 1 -> at least 3
    INSIDE(lat, lon, 'POLYGON ..')    the place (48.8, 2.3) is outside ..          lat, lon: (48.8, 2.3) -> (48.8, 2.4)

A change is found for a condition and for its opposite at once, so the cost is linear however NOT and XOR nest. Of a
list, the element that comes nearest counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import Any, Self

import numpy as np

from hitbox.encoding.documents import ABSENT, lookup
from hitbox.encoding.values import is_missing
from hitbox.language.conditions.letters import lower
from hitbox.language.conditions.networks import address
from hitbox.language.conditions.patterns import Pattern
from hitbox.language.conditions.places import is_place
from hitbox.language.explanations.nearest_place import nearest_place
from hitbox.language.explanations.phrases import distance
from hitbox.language.explanations.trials import (
    MAX_TRIALS,
    Spot,
    Trial,
    Trials,
    examples,
    fitting,
    near,
    spot_of,
    spots,
    through,
    with_values,
)
from hitbox.language.syntax.expressions import (
    Call,
    Constant,
    Element,
    Expression,
    Field,
    Length,
    ListPath,
    Now,
    Result,
    Verdict,
    fold,
    literal,
)
from hitbox.language.syntax.tree import Branch, Leaf, Node, Quantifier, Test
from hitbox.language.truth import Scope, leaf_truth, node_truth, test_truth, truth, value_of

MAX_TEXT = 80
MAX_ELEMENTS = 1000
"""Of a longer list, only the first elements are compared."""
MAX_ELEMENTS_TRIED = 8
"""Elements for which the smallest change is tried, before none is known."""
NEAR = 10_000.0
"""Metres that count as half of a wrong attribute."""
TOLD = 20
"""Steps in which a change is put into words."""
MAX_COMPARED = 200
"""Letters of texts whose difference is measured,"""
LETTERS = 8
"""and pairs of their letters per step."""
Rank = tuple[int, float]
"""How many changes, and how far they are."""
NO_CHANGE: Rank = (0, 0.0)
ONE_CHANGE: Rank = (1, 1.0)
WORDS = {"=": "", "<": "less than ", "<=": "at most ", ">": "more than ", ">=": "at least ", "<>": "anything but "}
TURNED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "=", "<>": "<>"}
KINDS = {"number": "number", "string": "text", "bool": "bool", "timestamp": "timestamp"}


@dataclass(frozen=True, slots=True)
class Change:
    """A value that would have to be different: `wanted` in words, `nearest` as a value if there is one. `missing`: the
    event does not even have the attribute; `value` is None then, as for NULL.

    Before anybody is told, it is tried with `trials()`; without any, `condition` is taken to hold (trials.py).
    """

    attribute: str
    value: object
    wanted: str
    nearest: object = None
    missing: bool = False
    trials: Callable[[], tuple[Trial, ...]] = field(default=tuple, repr=False, compare=False)
    condition: Node | None = field(default=None, repr=False, compare=False)

    @classmethod
    def of(
        cls,
        attribute: str,
        found: Any,
        wanted: str,
        nearest: object = None,
        trials: Callable[[], tuple[Trial, ...]] = tuple,
        condition: Node | None = None,
    ) -> Self:
        """`found`: the value that the event has, or ABSENT."""
        return cls(attribute, _plain(found), wanted, nearest, found is ABSENT, trials, condition)

    def __str__(self) -> str:
        return f"{self.attribute}: {'missing' if self.missing else show(self.value)} -> {self.wanted}"


@dataclass(frozen=True, slots=True)
class Miss:
    """The changes after which a condition would hold, and how far they are: each counts from 0 to 1. `sure`: within the
    elements of lists they were tried."""

    changes: tuple[Change, ...] = ()
    far: float = 0.0
    sure: bool = True

    @property
    def rank(self) -> Rank:
        return len(self.changes), self.far


@dataclass(frozen=True, slots=True, repr=False)
class Reason:
    """One node of the predicate: an operator with its children, or a condition with what it saw (`note`)."""

    text: str
    truth: bool | None
    children: tuple[Reason, ...] = ()
    attribute: str | None = None
    value: object = None
    note: str = ""


def show(value: object) -> str:
    """An event's value in words."""
    if value is ABSENT:
        return "missing"
    if isinstance(value, Place):
        return str(value)
    if isinstance(value, tuple) and len(value) == 2:
        low, high = ("any" if end is None else show(end) for end in value)
        return f"{low} to {high}"
    if isinstance(value, list):
        return short(f"[{', '.join(map(show, value[:20]))}]")
    if isinstance(value, dict):
        return short(f"{{{', '.join(f'{name}: {show(one)}' for name, one in value.items())}}}")
    if is_missing(value):
        return "NULL"
    if isinstance(value, np.generic) and not isinstance(value, np.datetime64):
        value = value.item()
    try:
        return short(literal(value) if isinstance(value, (bool, str, datetime, timedelta)) else str(value))
    except OverflowError:  # a time in a zone, which is not one of the calendar in UTC
        return short(str(value))


def short(text: str) -> str:
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"


@dataclass(frozen=True, slots=True)
class Place:
    """A latitude and a longitude."""

    lat: float
    lon: float

    def __str__(self) -> str:
        return f"({self.lat:.7g}, {self.lon:.7g})"


def metres(length: float) -> str:
    """
    >>> metres(6656.49), metres(0.25)
    ('6,656 m', '0.25 m')
    """
    return f"{length:,.0f} m" if length >= 100 else f"{length:.3g} m"


class View:
    """An event as a predicate sees it; inside EXISTS, ANY and ALL also the elements that are looked at."""

    def __init__(self, scope: Scope, trials: Trials):
        self.scope = scope
        self.trials = trials
        self.frozen: frozenset[Spot] = frozenset()
        """What must not be changed any more: another operand of a test is."""
        self._elements: list[str] = []
        self._event = scope
        self._known_ranks: dict[int, tuple[Quantifier, list[tuple[Rank, Rank]]]] = {}
        """Of the elements of the event's lists, by the id of the condition, which is kept."""

    # ---- what a condition saw

    def reason(self, root: Node) -> Reason:
        """The tree of a condition, with the truth of every node and what it saw."""

        def visit(node: Node, done: Sequence[Reason]) -> Reason:
            held = truth(node, [one.truth for one in done], self.scope)
            self.scope.steps.spend(1)
            if isinstance(node, Branch):
                return Reason(node.op, held, tuple(done))
            if isinstance(node, Quantifier):
                return self._quantifier_reason(node, held)
            subject, value = self.subject(node)
            if isinstance(node, Test):
                note = self._test_note(node, held)
            else:
                note = f"{subject} is {show(value)}" + (
                    _absent(node.pattern, value) if held is False and node.op == "LIKE" else ""
                )
            return Reason(str(node), held, (), subject, _plain(value), note)

        return fold(root, visit)

    def subject(self, node: Node) -> tuple[str | None, Any]:
        """What a condition looks at first, and its value."""
        if isinstance(node, Leaf):
            return node.name, self.scope.attribute(node.name)
        if isinstance(node, Quantifier):
            return self._name(node.list), self._list(node.list)
        if not isinstance(node, Test):
            return None, None
        if node.op.endswith("INSIDE") or _circle(node):
            return self._place(_coordinates(node))
        one = next((one for one in node.operands if not isinstance(one, Constant)), None)
        return (None, None) if one is None else (self._name(one), self._value(one))

    def _value(self, of: Expression) -> Any:
        """A field as the event has it, even if it is of another type than the condition asks for."""
        if isinstance(of, ListPath):
            return self._list(of)
        return self.scope.field(of) if isinstance(of, Field) else value_of(of, self.scope)

    def _list(self, path: ListPath) -> Any:
        """The elements of a list, None if it is null, ABSENT if it is missing."""
        several = self.scope.several(path)
        if several is not None or path.level:
            return several
        found = lookup(self.scope.old if path.old else self.scope.values, path.steps[0])
        return ABSENT if found is ABSENT else None

    def _name(self, of: Expression) -> str:
        """An expression, and the element that it belongs to."""
        if isinstance(of, Element):
            return self._elements[of.level - 1]
        level = max((one.level for one in _inputs(of)), default=0)
        return f"{of} of {self._elements[level - 1]}" if level else str(of)

    def _place(self, coordinates: Sequence[Expression]) -> tuple[str, Any]:
        values = [value_of(one, self.scope) for one in coordinates]
        name = ", ".join(self._name(one) for one in coordinates)
        return name, None if None in values else Place(*map(float, values))

    def _test_note(self, test: Test, held: bool | None) -> str:
        if held is not None and test.op.endswith("INSIDE"):
            return self._area_note(test)
        if held is not None and _circle(test):
            return self._circle_note(test, held)
        parts = [self._saw(one) for one in test.operands if not isinstance(one, Constant)]
        return ", ".join(dict.fromkeys(parts)) + self._remark(test, held)

    def _saw(self, of: Expression) -> str:
        text = f"{of} is {show(self._value(of))}"
        if isinstance(of, Field):
            found = self.scope.field(of)
            if found is not ABSENT and found is not None and value_of(of, self.scope) is None:
                text += f", which is no {KINDS.get(of.type, of.type)}"
            return text
        inputs = [one for one in _inputs(of) if one is not of]
        inside = ", ".join(dict.fromkeys(f"{one} is {show(self._value(one))}" for one in inputs))
        return f"{text} ({inside})" if inside else text

    def _remark(self, test: Test, held: bool | None) -> str:
        """What is wrong with a value, if that is not plain to see."""
        op = test.op.removeprefix("NOT ")
        if op == "INSIDE" or _circle(test):
            place = self._place(_coordinates(test))[1]
            return ", which is no place" if place is not None and not is_place(place.lat, place.lon) else ""
        if op not in ("LIKE", "ILIKE", "IN NETWORK"):
            return ""
        value = value_of(test.operands[0], self.scope)
        if not isinstance(value, str):
            return ""
        if op == "IN NETWORK":
            return "" if address(value) is not None else ", which is no address"
        if held is not False or op != test.op:
            return ""
        return _absent(test.machine, lower(value) if op == "ILIKE" else value)

    def _circle_note(self, test: Test, held: bool) -> str:
        far, limit = (float(value_of(one, self.scope)) for one in test.operands)
        text = f"the place {self._place(_coordinates(test))[1]} is {metres(far)} away"
        if held or far == limit:
            return text
        return f"{text}: {metres(abs(far - limit))} too {'far' if far > limit else 'near'}"

    def _area_note(self, test: Test) -> str:
        place = self._place(test.operands)[1]
        found = nearest_place(test.machine, place.lat, place.lon)
        if found is None:
            return "the polygon is empty"
        far, lat, lon = found
        side = "inside" if test.machine.holds(place.lat, place.lon) else "outside"
        border = f"the nearest point of its border, {Place(lat, lon)}, is {metres(far)} away"
        return f"the place {place} is {side} the polygon; {border}"

    # ---- lists

    def _quantifier_reason(self, node: Quantifier, held: bool | None) -> Reason:
        name, several = self.subject(node)
        if several is None or several is ABSENT:
            return Reason(str(node), held, (), name, None, f"{name} is {show(several)}")
        if not several:
            return Reason(str(node), held, (), name, several, f"{name} is an empty list")
        truths = [
            self._at(node, n, one, partial(node_truth, node.condition, self.scope)) for n, one in enumerate(several)
        ]
        needs_all = node.op == "ALL"
        telling = [n for n, one in enumerate(truths) if (one is True) != needs_all]
        count = len(several)
        if count == 1:
            best, fits = 0, "does not fit" if (not telling) != needs_all else "fits"
            text = f"the only element of {name} {fits}: it is {show(several[0])}"
        elif telling:
            best = telling[0]
            fit = (
                ("do not fit" if needs_all else "fit") if len(telling) > 1 else "does not fit" if needs_all else "fits"
            )
            text = f"{len(telling)} of {count} elements of {name} {fit}: element {best + 1} is {show(several[best])}"
        elif needs_all:
            best, text = 0, f"all {count} elements of {name} fit"
        else:
            best = self._nearest(node, several)
            text = f"none of {count} elements of {name} fits; the nearest, element {best + 1}, is {show(several[best])}"
        if count > 1 and None in truths:
            text += f"; {truths.count(None)} of them unknown"
        children: tuple[Reason, ...] = ()
        if node.op.endswith("EXISTS"):
            children = (self._at(node, best, several[best], partial(self.reason, node.condition)),)
        return Reason(str(node), held, children, name, several, text)

    def _nearest(self, node: Quantifier, several: list[Any]) -> int:
        """The element that needs the smallest change."""
        ranks = [one for one, _ in self._ranks_of_elements(node, several)]
        return ranks.index(min(ranks))

    def _at(self, node: Quantifier, number: int, element: Any, look: Callable[[], Result]) -> Result:
        """What `look` returns while one element of the list is looked at."""
        scope, names, around = self.scope, self._elements, self.scope.elements
        self._elements = [*names[: node.level - 1], f"element {number + 1} of {self._name(node.list)}"]
        scope.elements = [*around[: node.level - 1], element]
        try:
            return look()
        finally:
            scope.elements, self._elements = around, names

    def _of_element(self, node: Quantifier, number: int, element: Any, holds: bool) -> Miss:
        """What makes the condition on an element hold, or not."""
        return self._at(node, number, element, partial(self._both, node.condition))[not holds]

    def _ranks_of_elements(self, node: Quantifier, several: Sequence[Any]) -> list[tuple[Rank, Rank]]:
        as_given = self.scope is self._event and not self._elements and not self.frozen
        if as_given and id(node) in self._known_ranks:
            return self._known_ranks[id(node)][1]
        some = enumerate(several[:MAX_ELEMENTS])
        found = [self._at(node, n, one, partial(self._ranks, node.condition)) for n, one in some]
        if as_given:
            self._known_ranks[id(node)] = node, found
        return found

    # ---- how far it is

    def _ranks(self, root: Node) -> tuple[Rank, Rank]:
        """The ranks of the misses that `_both` finds, without words for them. They tell which elements of a list are
        worth a closer look."""

        def visit(node: Node, done: Sequence[tuple[Rank, Rank]]) -> tuple[Rank, Rank]:
            if isinstance(node, Quantifier):
                return self._ranks_of_list(node)
            if not isinstance(node, Branch):
                held = truth(node, (), self.scope)
                yes = NO_CHANGE if held is True else (1, self._far(node))
                return yes, NO_CHANGE if held is False else (1, self._far(node.negated()))
            yeses, noes = [one for one, _ in done], [one for _, one in done]
            if node.op == "NOT":
                return noes[0], yeses[0]
            if node.op == "XOR":
                odd, even = done[0]
                for yes, no in done[1:]:
                    odd, even = min(_sum([odd, no]), _sum([even, yes])), min(_sum([even, no]), _sum([odd, yes]))
                return odd, even
            if not done:
                return (NO_CHANGE, ONE_CHANGE) if node.op == "TRUE" else (ONE_CHANGE, NO_CHANGE)
            return (_sum(yeses), min(noes)) if node.op == "AND" else (min(yeses), _sum(noes))

        return fold(root, visit)

    def _ranks_of_list(self, node: Quantifier) -> tuple[Rank, Rank]:
        several = self._list(node.list)
        telling = node.op != "ALL"
        if several is None or several is ABSENT or not several:
            least, most = ONE_CHANGE, NO_CHANGE if several == [] else ONE_CHANGE
        else:
            ranks = self._ranks_of_elements(node, several)
            least = min(one if telling else other for one, other in ranks)
            most = _sum([other if telling else one for one, other in ranks])
        return (least, most) if node.op in ("ANY", "EXISTS") else (most, least)

    def _far(self, node: Leaf | Test) -> float:
        """How far a condition is from what it asks for."""
        if isinstance(node, Leaf):
            value = self.scope.attribute(node.name)
            return (
                1.0
                if value is ABSENT or value is None
                else min((self._gap(value, end) for end in node.values), default=1.0)
            )
        test = self._turned(node)
        if test.op.endswith("INSIDE"):
            return self._wanted_place(test, self._place(_coordinates(test))[1])[2]
        values = [value_of(one, self.scope) for one in test.operands]
        if _circle(test):
            return 1.0 if values[0] is None else distance(values[0], float(values[1]))
        known = next(
            (value for one, value in zip(test.operands, values, strict=True) if not isinstance(one, Constant)), None
        )
        return min((1.0 if known is None or end is None else self._gap(known, end) for end in values[1:]), default=1.0)

    def _gap(self, one: Any, other: Any) -> float:
        """How far two values are apart, from 0 to 1; texts by what they have in common."""
        if isinstance(one, str) and isinstance(other, str):
            if max(len(one), len(other)) > MAX_COMPARED:
                return 1.0
            from difflib import SequenceMatcher  # not for everyone who imports hitbox

            self.scope.steps.spend(1 + len(one) * len(other) // LETTERS)
            return 1.0 - SequenceMatcher(None, one, other, autojunk=False).ratio() / 2
        return distance(one, float(other) if isinstance(other, Decimal) else other)

    # ---- what would have to be different

    def miss(self, node: Node) -> Miss:
        """The smallest change after which a condition would hold."""
        return self._both(node)[0]

    def _both(self, root: Node) -> tuple[Miss, Miss]:
        """What makes a condition true, and what makes it false."""

        def visit(node: Node, done: Sequence[tuple[Miss, Miss]]) -> tuple[Miss, Miss]:
            if isinstance(node, Quantifier):
                return self._of_list(node)
            if not isinstance(node, Branch):
                return self._of_condition(node), self._of_condition(node.negated())
            yes, no = [one for one, _ in done], [one for _, one in done]
            if node.op == "NOT":
                return no[0], yes[0]
            if node.op == "XOR":
                return _parity(done)
            if not done:
                never = Miss((Change(node.op, None, "a condition that can hold"),), 1.0)
                return (Miss(), never) if node.op == "TRUE" else (never, Miss())
            return (_all(yes), _least(no)) if node.op == "AND" else (_least(yes), _all(no))

        return fold(root, visit)

    def _of_condition(self, node: Leaf | Test | Quantifier) -> Miss:
        assert not isinstance(node, Quantifier)
        if isinstance(node, Leaf):
            if truth(node, (), self.scope):
                return Miss()
            value = self.scope.attribute(node.name)
            self.scope.steps.spend(TOLD)
            return Miss(
                (Change.of(node.name, value, leaf_words(node), None, partial(leaf_trials, node, value), node),),
                self._far(node),
            )
        if test_truth(node, self.scope):
            return Miss()
        return self._of_test(self._turned(node))

    def _turned(self, test: Test) -> Test:
        """A comparison whose left side must not be changed, the other way round."""
        if test.op not in TURNED or _circle(test):
            return test
        one, other = test.operands
        turned = isinstance(one, Constant) or (spot_of(one) in self.frozen and not isinstance(other, Constant))
        return Test(TURNED[test.op], (other, one), test.position) if turned else test

    def _of_test(self, test: Test) -> Miss:
        subject, value = self.subject(test)
        if subject is None:
            return Miss((Change(str(test), None, "true"),), 1.0)
        self.scope.steps.spend(TOLD)
        wanted, nearest = self._wanted(test, value)
        trials = partial(self._trials, test, nearest, self.scope.copied())
        return Miss((Change.of(subject, value, wanted, nearest, trials, test),), self._far(test))

    def _trials(self, test: Test, nearest: Any, scope: Scope) -> tuple[Trial, ...]:
        """New values of what a test looks at first, with which it holds; none if no such value is known."""
        found: list[Trial] = []
        for trial in self._values_to_try(test, nearest, scope):
            self.trials.left -= 1
            if test_truth(test, with_values(scope, trial)):
                found.append(trial)
            if len(found) == MAX_TRIALS or self.trials.left < 0:
                break
        return tuple(found)

    @staticmethod
    def _values_to_try(test: Test, nearest: Any, scope: Scope) -> Iterator[Trial]:
        if test.op.endswith("INSIDE") or _circle(test):
            one, other = (spot_of(each) for each in _coordinates(test))
            if one is not None and other is not None and isinstance(nearest, Place):
                yield {one: nearest.lat, other: nearest.lon}
            return
        subject = next(one for one in test.operands if not isinstance(one, Constant))
        inputs = {spot_of(one): one for one in _inputs(subject)}
        spot, source = next(iter(inputs.items()), (None, subject))
        if len(inputs) != 1 or spot is None:
            return
        current, known = value_of(source, scope), value_of(subject, scope)
        ends = [value_of(one, scope) for one in test.operands if one is not subject]
        values: list[Any] = [None, ABSENT] if test.op.startswith("IS") else []
        for end in ends:
            values += near(end)
            if subject is not source:
                values += through(known, end, current)
        if test.op.endswith("LIKE"):
            values += examples(test.machine, current)
        elif test.op.endswith("IN NETWORK"):
            values += [test.texts[0].partition("/")[0], "0.0.0.0", "255.255.255.255", "::"]
        values += ["", 0, 1, True, False, datetime(2000, 1, 1, tzinfo=UTC)]
        for value in fitting(source.type, values):
            yield {spot: value}

    def _wanted(self, test: Test, value: Any) -> tuple[str, object]:
        """What the subject of a test should be, in words; the nearest such value if it is known."""
        if test.op.endswith("INSIDE"):
            return self._wanted_place(test, value)[:2]
        if _circle(test):
            limit = value_of(test.operands[1], self.scope)
            phrase = f"{WORDS[test.op] or 'exactly '}{metres(float(limit))} away"
            centre = [one for one in test.operands[0].children if isinstance(one, Constant)]
            phrase += f" from {Place(*(float(one.plain) for one in centre))}" if len(centre) == 2 else ""
            return phrase, None
        others = test.operands[1:]
        ends = [value_of(one, self.scope) for one in others]
        texts = [
            literal(one.literal) if isinstance(one, Constant) else f"{one} ({show(end)})"
            for one, end in zip(others, ends, strict=True)
        ]
        exact = others[0].plain if test.op == "=" and isinstance(others[0], Constant) else None
        return _words(test.op, texts, test), exact

    def _wanted_place(self, test: Test, value: Any) -> tuple[str, object, float]:
        """Which place the subject should be, in words and as a value if it is known, and how far it is."""
        inside = test.op == "INSIDE"
        known = value is not None and is_place(value.lat, value.lon)
        found = nearest_place(test.machine, value.lat, value.lon) if known else None
        if found is None:
            return f"a place {'inside' if inside else 'outside'} the polygon", None, 1.0
        far, lat, lon = found
        fraction = far / (far + NEAR)
        if not inside:
            return f"beyond {Place(lat, lon)}, {metres(far)} away", None, fraction
        return f"{Place(lat, lon)}, {metres(far)} away", Place(lat, lon), fraction

    def _of_list(self, node: Quantifier) -> tuple[Miss, Miss]:
        name, several = self.subject(node)
        one_is_enough = node.op in ("ANY", "EXISTS")
        telling = node.op != "ALL"  # what one element decides alone: that it fits, or that it does not
        if several is None or several is ABSENT or not several:
            a_list = several is None or several is ABSENT
            least = Miss(
                (Change.of(str(name), several, "a list with such an element"),), 1.0, self._has_such(node, telling)
            )
            most = Miss((Change.of(str(name), several, "a list"),), 1.0) if a_list else Miss()
        else:
            ranks = self._ranks_of_elements(node, several)
            least = self._one_of(node, several, [one if telling else other for one, other in ranks], telling)
            most = self._all_of(node, several, [other if telling else one for one, other in ranks], not telling)
        yes, no = (least, most) if one_is_enough else (most, least)
        return _taken(yes, node), _taken(no, node.negated())

    def _has_such(self, node: Quantifier, telling: bool) -> bool:
        """Whether an element that decides alone can be made of nothing."""
        nothing: Any = {} if node.op.endswith("EXISTS") else None
        return self._tried(node, 0, nothing, self._of_element(node, 0, nothing, telling), telling).sure

    def _one_of(self, node: Quantifier, several: Sequence[Any], ranks: Sequence[Rank], holds: bool) -> Miss:
        """The nearest element for which the condition holds, or does not, after a change; a tried one, if any."""
        near = sorted(range(len(ranks)), key=ranks.__getitem__)[:MAX_ELEMENTS_TRIED]
        misses = [(self._of_element(node, n, several[n], holds), n) for n in near]
        misses.sort(key=lambda one: one[0].rank)
        for miss, n in misses:
            tried = self._tried(node, n, several[n], miss, holds)
            if tried.sure:
                return tried
        return replace(misses[0][0], sure=False)

    def _all_of(self, node: Quantifier, several: Sequence[Any], ranks: Sequence[Rank], holds: bool) -> Miss:
        misses = [
            Miss() if rank == NO_CHANGE else self._of_element(node, n, several[n], holds)
            for n, rank in enumerate(ranks)
        ]
        tried = [self._tried(node, n, several[n], one, holds) for n, one in enumerate(misses)]
        alone = sum(bool(one.changes) for one in tried) < 2 or not any(map(self._leads_outside, tried))
        found = _all(tried)
        return found if alone and len(misses) == len(several) else replace(found, sure=False)

    def _tried(self, node: Quantifier, number: int, element: Any, miss: Miss, holds: bool) -> Miss:
        """The miss, which is sure if the condition on this element holds, or does not, after its changes."""
        if not miss.changes:
            return miss
        if not isinstance(node.condition, Branch):
            return miss
        root = node.condition if holds else Branch("NOT", (node.condition,), node.position)
        changes = [(one.trials(), one.condition) for one in miss.changes]
        sure = (
            miss.sure
            and self._at(node, number, element, lambda: self.trials.succeed(root, self.scope, changes)) is not None
        )
        return replace(miss, sure=sure)

    def _leads_outside(self, miss: Miss) -> bool:
        """Whether a change is one of something that other elements see, too."""
        conditions = [one.condition for one in miss.changes if one.condition is not None]
        return any(level <= len(self.scope.elements) for one in conditions for level, _ in spots(one))


def leaf_trials(leaf: Leaf, current: Any) -> tuple[Trial, ...]:
    """Values with which a leaf holds; none if no such value is known."""
    if leaf.type.endswith("[]"):
        return ({(0, leaf.name): None if leaf.op == "IS NULL" else []},)
    values = [one for value in leaf.values for one in near(value)]
    if leaf.op.endswith("LIKE"):
        values = [*examples(leaf.pattern, current), *values]
    if leaf.op.startswith("IS"):
        values = [None, 0, True, "", datetime(2000, 1, 1, tzinfo=UTC)]
    found = [one for one in fitting(leaf.type, values) if leaf_truth(leaf, one)]
    return tuple({(0, leaf.name): one} for one in found[:MAX_TRIALS])


def _taken(miss: Miss, node: Quantifier) -> Miss:
    """Changes within a list, seen from outside: after them the condition on the list holds."""
    return replace(miss, changes=tuple(replace(one, trials=tuple, condition=node) for one in miss.changes))


def _all(several: Sequence[Miss]) -> Miss:
    changes = {(change.attribute, change.wanted): change for one in several for change in one.changes}
    return Miss(tuple(changes.values()), sum(one.far for one in several), all(one.sure for one in several))


def _sum(several: Sequence[Rank]) -> Rank:
    return sum(count for count, _ in several), sum(far for _, far in several)


def _least(several: Sequence[Miss]) -> Miss:
    return min(several, key=lambda one: one.rank)


def _parity(done: Sequence[tuple[Miss, Miss]]) -> tuple[Miss, Miss]:
    """What makes an odd number of conditions true, and what an even one; all of them must be known."""
    odd, even = done[0]
    for yes, no in done[1:]:
        odd, even = _least([_all([odd, no]), _all([even, yes])]), _least([_all([even, no]), _all([odd, yes])])
    return odd, even


def _plain(value: Any) -> Any:
    return None if value is ABSENT else value


def _circle(node: Node) -> bool:
    """Whether a test compares a distance with a literal."""
    if not isinstance(node, Test) or node.op not in WORDS:
        return False
    one, other = node.operands
    return isinstance(one, Call) and one.name == "DISTANCE" and isinstance(other, Constant)


def _coordinates(test: Test) -> Sequence[Expression]:
    """Where the place of a test comes from: the coordinates that are no literals."""
    if test.op.endswith("INSIDE"):
        return test.operands
    one, other = test.operands[0].children[:2], test.operands[0].children[2:]
    return other if all(isinstance(each, Constant) for each in one) else one


def _inputs(root: Any) -> Iterator[Any]:
    """What an expression takes from the event: fields, elements, lengths of lists, the time."""
    stack = [root]
    while stack:
        node = stack.pop()
        if isinstance(node, (Field, Element, ListPath)):
            yield node
        elif isinstance(node, Now):
            continue
        elif isinstance(node, Length):
            yield node.list
        elif isinstance(node, Verdict):
            stack.append(node.condition)
        elif isinstance(node, Test):
            stack.extend(reversed(node.operands))
        elif isinstance(node, Leaf):
            yield Field(node.name, node.number, node.type, node.position)
        elif isinstance(node, Quantifier):
            yield node.list
        else:
            stack.extend(reversed(node.children))


def _words(op: str, texts: Sequence[str], test: Test) -> str:
    """What the subject of a test should be."""
    if op in WORDS:
        return f"{WORDS[op] or ('' if isinstance(test.operands[-1], Constant) else 'equal to ')}{texts[0]}"
    if op == "BETWEEN":
        return f"between {texts[0]} and {texts[1]}"
    if op == "NOT BETWEEN":
        return f"less than {texts[0]} or more than {texts[1]}"
    if op.endswith("IN"):
        return f"{'none' if op.startswith('NOT') else 'one'} of {', '.join(texts)}"
    if op.startswith("IS"):
        return {"IS NULL": "NULL", "IS NOT NULL": "any value", "IS MISSING": "missing"}.get(op, "not missing")
    denial, plain = ("not ", op.removeprefix("NOT ")) if op.startswith("NOT") else ("", op)
    if plain == "IN NETWORK":
        return f"an address {'outside' if denial else 'in'} {test.texts[0]}"
    if plain == "REGEXP":
        return f"{denial}matching {literal(test.texts[0])}"
    return denial + pattern_words(test.machine, " ESCAPE ".join(map(literal, test.texts)), plain == "ILIKE")


def leaf_words(leaf: Leaf) -> str:
    """What the attribute of a leaf should be, where no interval of keys says it."""
    if leaf.op.endswith("LIKE"):
        denial = "not " if leaf.op.startswith("NOT") else ""
        return denial + pattern_words(leaf.pattern, " ESCAPE ".join(literal(value) for value in leaf.values))
    made = Test(leaf.op, (Field(leaf.name, 0, leaf.type, 0), *(Constant(one, "", 0) for one in leaf.values)), 0)
    return _words(leaf.op, [literal(value) for value in leaf.values], made)


def pattern_words(pattern: Pattern, text: str, any_case: bool = False) -> str:
    """
    >>> [pattern_words(Pattern(text), f"'{text}'") for text in ("ab%", "%ab", "%ab%", "a%b", "ab")]
    ["starting with 'ab'", "ending with 'ab'", "containing 'ab'", "like 'a%b'", "'ab'"]
    """
    if not pattern.shape:
        words = literal(pattern.prefix)
    elif pattern.shape == "%" and pattern.prefix:
        words = f"starting with {literal(pattern.prefix)}"
    elif pattern.ends and pattern.suffix:
        words = f"ending with {literal(pattern.suffix)}"
    elif pattern.is_fragment:
        words = f"containing {literal(pattern.fragments()[0])}"
    else:
        words = f"like {text}"
    return f"{words} in any case" if any_case else words


def _absent(pattern: Pattern, text: str) -> str:
    """What a text that is not like a pattern lacks."""
    if not pattern.shape:
        return ""
    if not text.startswith(pattern.prefix):
        return f", which does not start with {literal(pattern.prefix)}"
    if not text.endswith(pattern.suffix):
        return f", which does not end with {literal(pattern.suffix)}"
    lacking = [one for one in pattern.fragments() if one not in text]
    return f", which does not contain {literal(lacking[0])}" if lacking else ""
