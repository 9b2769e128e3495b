"""Is a predicate true, false or unknown for an event? SQL's three-valued logic, straight from the tree.

Values are normalised by values.py, so this compares the same values that the keys are made of. Numbers compare exactly:
Python compares int, float and Decimal without rounding. Against a float attribute a decimal literal means the double
nearest to it, as everywhere.

A function of NULL is NULL. ANY is the OR over the elements of a list, ALL the AND; EXISTS is the OR of a condition over
its objects; of a list that is null or missing all three are unknown.

For an event with intervals the predicate is true if *some* point inside makes it true. That cannot be decided leaf by
leaf (`a < 2 AND a > 3` is true nowhere, though an interval may meet both sides), so such an event goes through the
normal form, as boxes do. What no key set can express (a LIKE with a leading %, a Test) counts as true of an interval
where it may hold, whatever the value in the interval is: not if something else that it needs is NULL.

What is decided is not looked at any further: the other parts of an AND after a false one, the other elements after the
one that an EXISTS was looking for. Every condition, function and element costs steps (steps.py).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from datetime import UTC, datetime
from decimal import Decimal
from functools import reduce
from itertools import product
from types import SimpleNamespace
from typing import Any

from hitbox.encoding.arrays import HIGHEST, LOWEST
from hitbox.encoding.codecs import Codec
from hitbox.encoding.derived import without_intervals
from hitbox.encoding.documents import ABSENT, SOMETHING, Document, document, lookup, open_document, open_elements, plain
from hitbox.encoding.keys import Keys
from hitbox.encoding.open_values import CONVERT, comparable
from hitbox.encoding.schema import Schema
from hitbox.encoding.values import normal
from hitbox.language.boxes.normal import EXACT_BOXES, Term, strings, terms
from hitbox.language.boxes.sets import Set
from hitbox.language.conditions.letters import lower
from hitbox.language.conditions.networks import address
from hitbox.language.steps import COPIED, INSTRUCTIONS, ONE_BY_ONE, Steps
from hitbox.language.syntax.expressions import (
    Call,
    Constant,
    Element,
    Expression,
    Field,
    Length,
    ListPath,
    Now,
    Verdict,
    fold,
)
from hitbox.language.syntax.tree import Branch, Leaf, Node, Predicate, Quantifier, Test, names

Truth = bool | None
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_DECIDED: dict[str, Truth] = {"AND": False, "OR": True, "XOR": None}
"""The truth of one part that decides a branch, whatever the other parts say."""
_END: Any = object()
SET_ENDS = 16
"""Intervals of keys that are compared with an event's in one step."""


class Scope:
    """What the names of a predicate mean: an event, perhaps its old image, the time, and the elements looked at; and
    the steps that are left for it."""

    __slots__ = ("_lists", "_now", "_schema", "elements", "is_open", "old", "steps", "values")

    def __init__(
        self, schema: Schema, values: Mapping[str, object], now: datetime | None = None, steps: Steps | None = None
    ):
        self.steps = Steps() if steps is None else steps
        self._lists: dict[ListPath, list[Any] | None] = {}  # of the event: inner lists ask for them again and again
        self._schema, self.values, self._now = schema, values, now
        self.is_open = schema.is_open
        if not isinstance(values, Document):
            if self.is_open:
                self.values = open_document(values)
            elif "new" not in schema and isinstance(values.get("new"), Mapping):
                self.values = document(schema, values)
        old = self.values.old if isinstance(self.values, Document) else None
        self.old: Mapping[str, object] = {} if old is None else old
        self.elements: list[Any] = []

    def copied(self) -> Scope:
        """One of its own, for other values."""
        found = copy(self)
        found.elements, found._lists = list(self.elements), {}
        return found

    @property
    def now(self) -> datetime:
        if self._now is None:
            self._now = datetime.now(UTC)
        return self._now

    def attribute(self, name: str, old: bool = False) -> Any:
        """The plain value of an attribute, or ABSENT."""
        values = self.old if old else self.values
        found = lookup(values, name)
        if found is ABSENT or found is SOMETHING or isinstance(values, Document):
            return found
        if isinstance(found, list):
            self.steps.spend(len(found))
        return plain(self._schema[name], found)

    def field(self, of: Field) -> Any:
        if not of.level:
            return self.attribute(of.name, of.old)
        element = self.elements[of.level - 1]
        if self.is_open:
            return lookup(element, of.name) if isinstance(element, Mapping) else ABSENT
        return ABSENT if element is None else element.get(of.name, ABSENT)

    def several(self, path: ListPath) -> list[Any] | None:
        """The elements that a path leads to; None where its list is null or missing."""
        if path.level:
            return self._several(path)
        if path not in self._lists:
            self._lists[path] = self._several(path)
        return self._lists[path]

    def _several(self, path: ListPath) -> list[Any] | None:
        if self.is_open:
            origin = self.elements[path.level - 1] if path.level else self.old if path.old else self.values
            return open_elements(origin, path.steps, self.steps.spend)
        if path.level:
            element = self.elements[path.level - 1]
            found = None if element is None else element.get(path.steps[0])
        else:
            found = self.attribute(path.steps[0], path.old)
        if found is None or found is ABSENT:
            return None
        for step in path.steps[1:]:
            self.steps.spend(len(found))
            inner = [None if one is None else one.get(step) for one in found]
            found = [one for some in inner for one in (some if isinstance(some, list) else (some,))]
        return found if isinstance(found, list) else list(found)


def evaluate(
    predicate: Predicate, values: Mapping[str, object], now: datetime | None = None, steps: Steps | None = None
) -> Truth:
    """True, False or None for unknown. `values` are a document, nested or flat; `now` is what NOW() is. OutOfSteps is
    raised if it takes more than what is left of `steps`.

    >>> from hitbox.language import Schema, parse
    >>> tree = parse("price > 10 OR NOT qty = 1", Schema({"price": "float", "qty": "int"}))
    >>> [evaluate(tree, event) for event in ({"price": 10.5}, {"qty": 1}, {"price": 9, "qty": 1})]
    [True, None, False]
    """
    if has_intervals(predicate.schema, values):
        return Facts(predicate, values, now, steps).holds()
    return node_truth(predicate.root, Scope(predicate.schema, values, now, steps))


def has_intervals(schema: Schema, values: Mapping[str, object]) -> bool:
    """Whether an event has intervals. Without a schema a tuple is none, but a value that fits no condition."""
    return not schema.is_open and any(isinstance(value, tuple) for value in values.values())


def node_truth(root: Node, scope: Scope) -> Truth:
    """The truth of a tree, without recursion. Parts that decide nothing any more are left out."""
    branches: list[tuple[Branch, Iterator[Node], list[Truth]]] = []
    node: Node = root
    while True:
        if isinstance(node, Branch) and node.children:
            todo = iter(node.children)
            branches.append((node, todo, []))
            node = next(todo)
            continue
        found = truth(node, (), scope)
        while branches:
            branch, todo, done = branches[-1]
            done.append(found)
            if found is not _DECIDED.get(branch.op, _END):
                node = next(todo, _END)
                if node is not _END:
                    break
            branches.pop()
            found = truth(branch, done, scope)
        else:
            return found


def truth(node: Node, done: Sequence[Truth], scope: Scope) -> Truth:
    """The truth of one node, given that of its children, or of those that decide."""
    if isinstance(node, Leaf):
        scope.steps.spend(node.work)
        value = lookup(scope.values, node.name)
        if node.type.endswith("[]"):
            return (value is ABSENT or value is None) == (node.op == "IS NULL")
        if type(value) is str and node.op.endswith("LIKE"):
            scope.steps.spend(node.pattern.work(value))
        return leaf_truth(node, None if value is ABSENT else value)
    if isinstance(node, Test):
        return test_truth(node, scope)
    if isinstance(node, Quantifier):
        return quantified(node, scope)
    if node.op == "AND":
        return conjunction(done)
    if node.op == "OR":
        return disjunction(done)
    if node.op == "XOR":
        return None if None in done else sum(map(bool, done)) % 2 == 1
    if node.op == "NOT":
        return opposite(done[0])
    return node.op == "TRUE"


def conjunction(several: Iterable[Truth]) -> Truth:
    found = set(several)
    return False if False in found else None if None in found else True


def disjunction(several: Iterable[Truth]) -> Truth:
    found = set(several)
    return True if True in found else None if None in found else False


def opposite(one: Truth) -> Truth:
    return None if one is None else not one


def value_of(of: Expression, scope: Scope) -> Any:
    """The plain value of an expression; None for NULL."""
    if not of.children:
        return _simple_value(of, scope)

    def visit(node: Expression, done: Sequence[Any]) -> Any:
        if not isinstance(node, Call):
            return _simple_value(node, scope)
        if None in done:
            scope.steps.spend(1)
            return None
        text = done[0]
        is_long = type(text) is str and len(text) >= COPIED
        scope.steps.spend(1 + len(text) // (COPIED if text.isascii() else ONE_BY_ONE) if is_long else 1)
        return node.apply(*done)

    return fold(of, visit)


def _simple_value(of: Expression, scope: Scope) -> Any:
    if isinstance(of, Constant):
        return of.plain
    if isinstance(of, Field):
        found = scope.field(of)
        return None if found is ABSENT else _converted(of, found, scope) if of.number < 0 else found
    if isinstance(of, Element):
        found = scope.elements[of.level - 1]
        return _converted(of, found, scope) if scope.is_open else found
    if isinstance(of, Length):
        several = scope.several(of.list)
        return None if several is None else len(several)
    if isinstance(of, Now):
        return scope.now
    if isinstance(of, Verdict):
        return node_truth(of.condition, scope)
    raise TypeError(of)


def _converted(of: Field | Element, value: Any, scope: Scope) -> Any:
    """What no schema has checked, as a value of the type that is asked for."""
    if type(value) in (str, list):
        scope.steps.spend(len(value) // COPIED)
    return CONVERT[of.type](value)


def test_truth(test: Test, scope: Scope) -> Truth:
    op, operands = test.op, test.operands
    scope.steps.spend(len(operands))
    if op.endswith("MISSING"):
        assert isinstance(operands[0], Field)
        return (scope.field(operands[0]) is ABSENT) == (op == "IS MISSING")
    return _tested(test, [value_of(one, scope) for one in operands], scope.steps)


def _tested(test: Test, values: list[Any], steps: Steps) -> Truth:
    """The truth of a test of these values."""
    op, operands = test.op, test.operands
    if op.endswith("NULL"):
        return (values[0] is None) == (op == "IS NULL")
    if operands[0].type == "any":  # what is of another type cannot be compared
        values[1:] = [one if comparable(values[0], one) else None for one in values[1:]]
    steps.spend_on_text(values[0])
    if op.endswith("BETWEEN"):
        low, value, high = values[1], values[0], values[2]
        ends = [None if None in (a, b) else bool(a <= b) for a, b in ((low, value), (value, high))]
        inside = conjunction(ends)
        return inside if op == "BETWEEN" else opposite(inside)
    if None in values:
        return None
    if op in _COMPARE:
        return bool(_COMPARE[op](values[0], values[1]))
    if op.endswith("INSIDE"):
        steps.spend(test.machine.edges)
        held: Truth = test.machine.holds(*map(float, values))
        return held if op == "INSIDE" else opposite(held)
    found = _text_test(test, values, steps)
    return opposite(found) if op.startswith("NOT") else found


def _text_test(test: Test, values: Sequence[Any], steps: Steps) -> Truth:
    """A test without its NOT."""
    op = test.op.removeprefix("NOT ")
    if op == "IN":
        return values[0] in values[1:]
    if op == "LIKE":
        steps.spend(test.machine.work(values[0]))
        return bool(test.machine(values[0]))
    if op == "ILIKE":
        steps.spend(test.machine.work(values[0]) + (0 if values[0].isascii() else len(values[0]) // ONE_BY_ONE))
        return bool(test.machine(lower(values[0])))
    if op == "REGEXP":
        steps.spend(len(values[0]) * test.machine.programsize // INSTRUCTIONS)
        return test.machine.search(values[0]) is not None
    number = address(values[0])
    first, last = test.machine
    return None if number is None else first <= number <= last


def quantified(of: Quantifier, scope: Scope) -> Truth:
    several = scope.several(of.list)
    if several is None:
        return None
    decides = of.op != "ALL"
    found: Truth = not decides
    around = scope.elements
    scope.elements = inside = [*around[: of.level - 1], None]
    try:
        for element in several:
            scope.steps.spend(1)
            inside[-1] = element
            one = node_truth(of.condition, scope)
            if one is decides:
                found = one
                break
            if one is None:
                found = None
    finally:
        scope.elements = around
    return opposite(found) if of.op == "NOT EXISTS" else found


def constant_truth(test: Test) -> Truth:
    """The truth of a test of literals, which needs no scope."""
    return test_truth(test, SimpleNamespace(steps=Steps()))  # type: ignore[arg-type]


def leaf_truth(leaf: Leaf, value: object) -> bool | None:
    """The truth of a leaf for a single value."""
    plain = value if type(value) is str and leaf.type == "string" else normal(leaf.type, value)
    op = leaf.op
    if op == "IS NULL" or op == "IS NOT NULL":
        return (plain is None) == (op == "IS NULL")
    if plain is None:
        return None
    return _test(leaf, plain)


def _test(leaf: Leaf, value: Any) -> bool:
    op = leaf.op
    if op.endswith("LIKE"):
        return leaf.pattern(value) == (op == "LIKE")
    literals: Sequence[Any] = leaf.values
    if leaf.type == "float":
        literals = [float(one) if isinstance(one, Decimal) else one for one in literals]
    if op.endswith("IN"):
        return (value in literals) == (op == "IN")
    if op.endswith("BETWEEN"):
        return bool(literals[0] <= value <= literals[1]) == (op == "BETWEEN")
    return _COMPARE[op](value, literals[0])


# ---- events with intervals

Truths = frozenset[Truth]
ONE_OF_TWO: Truths = frozenset([True, False])
ONE_OF_THREE: Truths = frozenset([True, False, None])


def possible_truths(root: Node, scope: Scope) -> Truths:
    """What a condition may come to if SOMETHING in the event may be any value."""

    def visit(node: Node, done: Sequence[Truths]) -> Truths:
        if isinstance(node, Branch):
            scope.steps.spend(1)
            if len(done) < 2:
                return frozenset(truth(node, one, scope) for one in product(*done))
            return reduce(lambda one, other: frozenset(truth(node, two, scope) for two in product(one, other)), done)
        if isinstance(node, Leaf):
            known = lookup(scope.values, node.name) is not SOMETHING
            if known:
                return frozenset([truth(node, (), scope)])
            return ONE_OF_TWO if node.values else frozenset([node.op == "IS NOT NULL"])
        return _possible_of_list(node, scope) if isinstance(node, Quantifier) else _possible_of_test(node, scope)

    return fold(root, visit)


def _possible_of_test(test: Test, scope: Scope) -> Truths:
    op = test.op
    if op.endswith("MISSING"):
        return frozenset([test_truth(test, scope)])
    scope.steps.spend(len(test.operands))
    values = [_possible_value(one, scope) for one in test.operands]
    if SOMETHING not in values:
        return frozenset([_tested(test, values, scope.steps)])
    if op.endswith("NULL"):  # a function of something may be
        return ONE_OF_TWO
    if op.endswith("BETWEEN") and values[0] is not None:
        value, low, high = values
        inside = frozenset(map(conjunction, product(_possible_end(low, value), _possible_end(value, high))))
        if _possible_end(low, high) == {False}:
            inside -= {True}
        return inside if op == "BETWEEN" else frozenset(map(opposite, inside))
    return frozenset([None]) if None in values else ONE_OF_THREE


def _possible_end(low: Any, high: Any) -> Truths:
    """Whether one value is at most another."""
    if low is None or high is None:
        return frozenset([None])
    return ONE_OF_TWO if low is SOMETHING or high is SOMETHING else frozenset([bool(low <= high)])


def _possible_value(of: Expression, scope: Scope) -> Any:
    """The plain value of an expression, None for NULL, or SOMETHING."""

    def visit(node: Expression, done: Sequence[Any]) -> Any:
        scope.steps.spend(1)
        if isinstance(node, Call):
            return None if None in done else SOMETHING if SOMETHING in done else node.apply(*done)
        if isinstance(node, Verdict):
            found = possible_truths(node.condition, scope)
            return next(iter(found)) if len(found) == 1 else SOMETHING
        return _simple_value(node, scope)

    return fold(of, visit)


def _possible_of_list(of: Quantifier, scope: Scope) -> Truths:
    several = scope.several(of.list)
    if several is None:
        return frozenset([None])
    decides = of.op != "ALL"
    joined = disjunction if decides else conjunction
    found: Truths = frozenset([not decides])
    for element in several:
        scope.steps.spend(1)
        scope.elements.append(element)
        try:
            one = possible_truths(of.condition, scope)
        finally:
            scope.elements.pop()
        found = frozenset(map(joined, product(found, one)))
        if found == {decides}:
            break
    return frozenset(map(opposite, found)) if of.op == "NOT EXISTS" else found


class Facts:
    """An event against the terms of a predicate, with temporary keys."""

    keys: Keys
    terms: list[Term]

    def __init__(
        self,
        predicate: Predicate,
        values: Mapping[str, object],
        now: datetime | None = None,
        steps: Steps | None = None,
        most: int = EXACT_BOXES,
        paid: bool = False,
    ):
        """most: terms to which a conjunction is multiplied out; of points, conditions that are left say the rest
        paid: the steps for the terms were taken already"""
        self.names = predicate.schema.names
        self.scope = Scope(predicate.schema, values, now, steps)
        self.values = self.scope.values
        left = self.scope.steps.left
        if most not in predicate.own:
            keys = Keys(predicate.schema)
            keys.admit(strings(predicate))
            found = terms(predicate, keys, most, EXACT_BOXES, steps=self.scope.steps)
            predicate.own[most] = keys, found, left - self.scope.steps.left
        elif not paid:
            self.scope.steps.spend(predicate.own[most][2])  # the same whether somebody asked before
        self.keys, self.terms, _ = predicate.own[most]
        self._intervals: dict[int, tuple[int, int]] = {}
        self._points: Scope | None = None
        """The event with SOMETHING in place of its intervals."""
        self._held: dict[int, bool] = {}  # thousands of terms share their conditions

    def holds(self) -> bool:
        return self.hold(self.terms)

    def hold(self, several: Iterable[Term]) -> bool:
        """Whether one of some terms is true."""
        return any(not self.wrong(term) for term in several)

    def wrong(self, term: Term) -> list[int | Node]:
        """What makes this term false: attributes by number, and conditions that are none of one attribute."""
        self.scope.steps.spend(1 + len(term.sets) + len(term.rest))
        outside: list[int | Node] = [number for number, one in term.sets.items() if not self.meets(number, one)]
        unlike = (node for node in term.rest if not self.may_hold(node))
        found = (node.number if isinstance(node, Leaf) else node for node in unlike)
        return outside + [one for one in dict.fromkeys(found) if one not in outside]

    def meets(self, number: int, one: Set) -> bool:
        low, high = self.interval(number)
        self.scope.steps.spend(len(one) // SET_ENDS)
        return any(low <= end and start <= high for start, end in one)

    def interval(self, number: int) -> tuple[int, int]:
        found = self._intervals.get(number)
        if found is None:
            found = key_interval(self.keys.codecs[number], self.value(self.names[number]))
            self._intervals[number] = found
        return found

    def value(self, name: str) -> Any:
        found = lookup(self.values, name)
        return None if found is ABSENT else found

    def may_hold(self, node: Node) -> bool:
        """Whether a condition holds, or may hold somewhere in the intervals of the event."""
        found = self._held.get(id(node))
        if found is None:
            found = self._held[id(node)] = self._may_hold(node)
        return found

    def _may_hold(self, node: Node) -> bool:
        if self.scope.is_open:  # without intervals
            return node_truth(node, self.scope) is True
        outer = self.scope
        if self._points is None:
            outer.steps.spend(1 + len(self.values))
            points = without_intervals(self.values, self.values)
            values = points if isinstance(self.values, Document) else dict(points)
            self._points = Scope(outer._schema, values, outer.now, outer.steps)
        if any(lookup(self._points.values, name) is SOMETHING for name in names(node)):
            return True in possible_truths(node, self._points)
        return node_truth(node, self._points) is True


def key_interval(codec: Codec, value: object) -> tuple[int, int]:
    """The keys of an event's value; an open end of an interval is None."""
    if not isinstance(value, tuple):
        key = codec.key(value)
        return key, key
    low, high = value
    return LOWEST if low is None else codec.key(low), HIGHEST if high is None else codec.key(high)
