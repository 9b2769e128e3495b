"""Conditions that need more of an event than its keys -> tests that native code runs on the candidates that are left.

    ANY(scores) > 3, ALL(...), EXISTS(items WHERE ...)    the keys of the elements of a list, one by one
    name LIKE '%a%b', name NOT ILIKE '%x%'                the text itself
    at < NOW() - INTERVAL '1 day'                         the time

Elements and texts are derived attributes (derived.py) that have no key in a point. They are made only for events that
leave a candidate in doubt. The first look, at keys alone, takes these conditions as open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

from hitbox.encoding.codecs import DurationCodec, TimestampCodec
from hitbox.encoding.keys import Keys
from hitbox.encoding.schema import Schema
from hitbox.language.boxes.anchors import covering
from hitbox.language.boxes.derived import (
    EXACT,
    TYPES,
    Condition,
    DerivedAttribute,
    each,
    open_attribute,
    starts_with,
    text_attribute,
)
from hitbox.language.boxes.sets import Set
from hitbox.language.programs.programs import (
    AND,
    FALSE,
    OR,
    TEST_ELEMENT,
    TRUE,
    UNKNOWN,
    EachTest,
    KeyTest,
    LikeTest,
    Open,
    Part,
    SinceTest,
    key_test,
    part_of,
)
from hitbox.language.syntax.expressions import Call, Constant, Element, Expression, Field, ListPath, Now
from hitbox.language.syntax.tree import MIRRORED, Branch, Leaf, Node, Quantifier, Test, without_not

FARTHEST = timedelta(days=365_000)
"""So far from NOW() is every moment one of the calendar."""
ConditionSet = Callable[[Condition, Any], Set]
"""The keys for which a condition holds, with a codec."""


def conditions(root: Node, schema: Schema) -> Iterator[Condition]:
    """The conditions on elements and texts in a tree. Their operators may be those of the opposite."""
    stack: list[Node] = [root]
    while stack:
        node = stack.pop()
        if isinstance(node, Quantifier):
            yield from _element_conditions(node, schema)
        elif isinstance(node, (Leaf, Test)):
            since = _since(node.op, node.operands) if schema.is_open and isinstance(node, Test) else None
            moment = None if since is None else open_attribute(since[0])
            if moment is not None:
                yield Condition(moment, "IS NOT NULL", exact=False)
            of = text_attribute(node, schema)
            anchors = covering(node) if of is not None and node is root else None
            if of is not None and (anchors is None or not anchors.exact):
                yield Condition(of, node.op)
        else:
            stack.extend(reversed(node.children))


def second_test(node: Node, keys: Keys, condition_set: ConditionSet) -> EachTest | LikeTest | SinceTest | None:
    """The test of a condition; None of one that is none of these, or whose values have no keys here."""
    if isinstance(node, Quantifier):
        return _each_test(node, keys, condition_set)
    if not isinstance(node, (Leaf, Test)):
        return None
    of = text_attribute(node, keys.schema)
    number = None if of is None else keys.number_of(of)
    if number is not None:
        return LikeTest(number, node.machine.code(), node.op.startswith("NOT"))
    return _since_test(node, keys, condition_set) if isinstance(node, Test) else None


# ---- lists


def _element_conditions(of: Quantifier, schema: Schema) -> Iterator[Condition]:
    stack: list[Node] = [of.condition]
    while stack:
        node = stack.pop()
        found = _element_condition(node, of.list, schema) if isinstance(node, Test) else None
        if found is not None:
            yield found
        if isinstance(node, Branch):
            stack.extend(reversed(node.children))


def _element_condition(test: Test, path: ListPath, schema: Schema) -> Condition | None:
    """What a test says of the elements of a list; None where no set of keys can say it."""
    of = test.operands[0]
    if not isinstance(of, (Element, Field)) or of.level != 1 or of.type not in TYPES:
        return None
    elements = each(path, of if isinstance(of, Field) else None, schema)
    if elements is None:
        return None
    if test.op.endswith("LIKE"):
        return None if test.op.endswith("ILIKE") else _like_condition(elements, test)
    others = [one.plain for one in test.operands[1:] if isinstance(one, Constant)]
    if test.texts or test.op.endswith("MISSING") or len(others) < len(test.operands) - 1 or None in others:
        return None
    if of.type == "number" and any(abs(value) >= EXACT for value in others):
        return None
    return Condition(elements, test.op, tuple(others))


def _like_condition(of: DerivedAttribute, test: Test) -> Condition | None:
    pattern, negated = test.machine, test.op.startswith("NOT")
    if not pattern.shape:
        return Condition(of, "<>" if negated else "=", (pattern.prefix,))
    return starts_with(of, pattern.prefix, negated) if pattern.shape == "%" and pattern.prefix else None


def _each_test(of: Quantifier, keys: Keys, condition_set: ConditionSet) -> EachTest | None:
    numbers: list[int] = []

    def part(node: Node) -> Part:
        found = _element_condition(node, of.list, keys.schema) if isinstance(node, Test) else None
        number = None if found is None else keys.number_of(found.of)
        if found is None or number is None:
            return Open(TRUE | FALSE | UNKNOWN)
        numbers.append(number)
        return key_test(number, condition_set(found, keys.codecs[number]), found.op, TEST_ELEMENT)

    condition = part_of(without_not(of.condition), part)
    if not numbers:
        return None
    op = AND if of.op == "ALL" else OR
    return EachTest(numbers[0], op, condition, of.op == "NOT EXISTS", condition.is_open)


# ---- time


def _since_test(test: Test, keys: Keys, condition_set: ConditionSet) -> SinceTest | None:
    found = _since(test.op, test.operands)
    if found is None:
        return None
    of, op, lengths = found
    attribute = open_attribute(of)
    number = of.number if attribute is None else keys.number_of(attribute)
    if number is None or number < 0 or of.level or of.old or type(keys.codecs[number]) is not TimestampCodec:
        return None
    wanted = condition_set(Condition(SINCE_NOW, op, lengths), DurationCodec())
    return SinceTest(KeyTest(number, wanted, UNKNOWN, size=len(wanted)))


def _since(op: str, operands: Sequence[Expression]) -> tuple[Field, str, tuple[timedelta, ...]] | None:
    """A test of a timestamp and NOW(), as one of the time from NOW() to the timestamp."""
    of, *others = operands
    if op not in (*MIRRORED, "BETWEEN", "NOT BETWEEN", "IN", "NOT IN"):
        return None
    if isinstance(others[0], Field) and op in MIRRORED:
        of, others, op = others[0], [of], MIRRORED[op]
    if isinstance(of, Field):
        offsets = [_from_now(one) for one in others]
        found = tuple(one for one in offsets if one is not None)
        return (of, op, found) if len(found) == len(others) else None
    lengths = tuple(one.plain for one in others if isinstance(one, Constant) and isinstance(one.plain, timedelta))
    if len(lengths) < len(others) or not isinstance(of, Call) or of.name != "-":
        return None
    first, second = of.children
    if isinstance(first, Field) and isinstance(second, Now):
        return first, op, lengths
    if isinstance(first, Now) and isinstance(second, Field):
        return second, MIRRORED.get(op, op), tuple(-one for one in reversed(lengths))
    return None


def _from_now(of: Expression) -> timedelta | None:
    """How far a moment is from NOW(); None of any other."""
    if isinstance(of, Now):
        return timedelta()
    if not isinstance(of, Call) or of.name not in ("+", "-") or len(of.children) != 2:
        return None
    first, second = of.children
    if isinstance(second, Now) and of.name == "+":
        first, second = second, first
    if not isinstance(first, Now) or not isinstance(second, Constant) or not isinstance(second.plain, timedelta):
        return None
    found = second.plain if of.name == "+" else -second.plain
    return found if abs(found) <= FARTHEST else None


SINCE_NOW: Any = None
"""What has no keys of its own."""
