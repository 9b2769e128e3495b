"""Is a predicate true, false or unknown for an event? SQL's three-valued logic, straight from the tree.

Values are normalised by values.py, so this compares the same values that the keys are made of. Numbers compare exactly:
Python compares int, float and Decimal without rounding. Against a float attribute a decimal literal means the double
nearest to it, as everywhere.

For an event with intervals the predicate is true if *some* point inside makes it true. That cannot be decided leaf by
leaf (`a < 2 AND a > 3` is true nowhere, though an interval may meet both sides), so such an event goes through the
normal form, as boxes do. A LIKE that no key set can express counts as true where its literal prefix may occur.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any

from hitbox.encoding.arrays import HIGHEST, LOWEST
from hitbox.encoding.codecs import Codec
from hitbox.encoding.keys import Keys
from hitbox.encoding.values import normal
from hitbox.language.normal import Term, strings, terms
from hitbox.language.sets import Set
from hitbox.language.tree import Leaf, Node, Predicate, fold

_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def evaluate(predicate: Predicate, values: Mapping[str, object]) -> bool | None:
    """True, False or None for unknown.

    >>> from hitbox.language import Schema, parse
    >>> tree = parse("price > 10 OR NOT qty = 1", Schema({"price": "float", "qty": "int"}))
    >>> [evaluate(tree, event) for event in ({"price": 10.5}, {"qty": 1}, {"price": 9, "qty": 1})]
    [True, None, False]
    """
    if any(isinstance(value, tuple) for value in values.values()):
        return Facts(predicate, values).holds()
    return fold(predicate.root, lambda node, done: truth(node, done, values))


def truth(node: Node, done: Sequence[bool | None], values: Mapping[str, object]) -> bool | None:
    """The truth of one node, given that of its children."""
    if isinstance(node, Leaf):
        return leaf_truth(node, values.get(node.name))
    if node.op == "AND":
        return False if False in done else None if None in done else True
    if node.op == "OR":
        return True if True in done else None if None in done else False
    if node.op == "NOT":
        return None if done[0] is None else not done[0]
    return node.op == "TRUE"


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


class Facts:
    """An event against the terms of a predicate, with temporary keys."""

    keys: Keys
    terms: list[Term]

    def __init__(self, predicate: Predicate, values: Mapping[str, object]):
        self.values, self.names = values, predicate.schema.names
        if predicate.own is None:
            keys = Keys(predicate.schema)
            keys.admit(strings(predicate))
            predicate.own = keys, terms(predicate, keys, predicate.limits)
        self.keys, self.terms = predicate.own

    def holds(self) -> bool:
        return any(not self.wrong(term) for term in self.terms)

    def wrong(self, term: Term) -> list[int]:
        """The attributes whose values make this term false."""
        outside = [number for number, one in term.sets.items() if not self.meets(number, one)]
        unlike = (leaf for leaf in term.rest if leaf.number not in outside and not self.like(leaf))
        return outside + list({leaf.number: None for leaf in unlike})

    def meets(self, number: int, one: Set) -> bool:
        low, high = self.interval(number)
        return any(low <= end and start <= high for start, end in one)

    def interval(self, number: int) -> tuple[int, int]:
        return key_interval(self.keys.codecs[number], self.values.get(self.names[number]))

    def like(self, leaf: Leaf) -> bool:
        value = self.values.get(leaf.name)
        if isinstance(value, tuple):
            if value[0] is None or value[0] != value[1]:
                return True
            value = value[0]
        return bool(leaf_truth(leaf, value))


def key_interval(codec: Codec, value: object) -> tuple[int, int]:
    """The keys of an event's value; an open end of an interval is None."""
    if not isinstance(value, tuple):
        key = codec.key(value)
        return key, key
    low, high = value
    return LOWEST if low is None else codec.key(low), HIGHEST if high is None else codec.key(high)
