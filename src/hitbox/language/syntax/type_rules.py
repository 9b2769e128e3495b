"""What may be compared or computed with what, and the node that a test of values becomes.

    price > 10          a Leaf: one attribute and literals
    price > old_price   a Test of two expressions
    ANY(tags) = 'x'     a Quantifier over a Test
    1 < 2               TRUE

An attribute that is not declared takes the type of what it is compared with. `text` is always the whole predicate:
errors point into it.
"""

from __future__ import annotations

from dataclasses import replace

from hitbox.errors import TypeProblem
from hitbox.language.syntax.expressions import NUMBERS, Constant, Element, Expression, Field, ListPath, as_times
from hitbox.language.syntax.literals import as_double, right_kind, short
from hitbox.language.syntax.tree import MIRRORED, Branch, Item, Leaf, Node, Quantifier, Test, as_value
from hitbox.language.truth import constant_truth

OPEN_TYPES = ("number", "string", "bool", "timestamp")
"""The types that an attribute may have if it is not declared."""


def scalar(item: Item, text: str) -> Expression:
    """An item as a value of a type that can be compared and computed with."""
    value = as_value(item)
    if isinstance(value, (Field, ListPath)) and value.type.endswith("[]"):
        name = str(value)
        ways = f"EXISTS({name} WHERE ...)" if value.type == "object[]" else f"ANY({name}), ALL({name})"
        raise TypeProblem(f"{name} is a list: write {ways} or LENGTH({name})", text, value.position)
    if isinstance(value, Element):
        raise TypeProblem(
            f"{value} stands alone on one side of a test, as in {value} = ...: it is not one value",
            text,
            value.position,
        )
    return value


def is_attribute(value: Expression) -> bool:
    """Whether a value is a plain attribute of the event: compared with literals, it is a Leaf."""
    return isinstance(value, Field) and not value.level and not value.image and value.number >= 0


def shown(value: Expression) -> str:
    return value.name if isinstance(value, Field) and not value.old else str(value)


# ---- types


def typed(value: Expression, type_: str, text: str) -> Expression:
    """An attribute that is not declared, as one of this type; everything else stays as it is."""
    if value.type != "any" or not isinstance(value, (Field, Element)):
        return value
    if type_ in NUMBERS:
        type_ = "number"
    if type_ not in OPEN_TYPES:
        raise TypeProblem(f"no value of an event is of type {type_}: {short(str(value))}", text, value.position)
    if isinstance(value, Element):
        return replace(value, list=replace(value.list, type=type_))
    return replace(value, type=type_)


def alike(left: Expression, right: Expression, text: str) -> tuple[Expression, Expression]:
    """Two values that are compared: one says the type of the other. Two attributes may both be of any type."""
    if right.type == "duration":
        left = as_times(left)
    elif left.type == "duration":
        right = as_times(right)
    if right.type != "any":
        left = typed(left, right.type, text)
    if left.type != "any":
        right = typed(right, left.type, text)
    return left, right


def operands(left: Expression, op: str, right: Expression, text: str) -> tuple[Expression, Expression]:
    """Two values of arithmetic: an attribute is a number, unless it stands beside a time."""
    if op in "+-":
        left = as_times(left) if right.type == "duration" else left
        right = as_times(right) if left.type == "duration" else right
    times = ("timestamp", "duration")
    types = ["timestamp" if other.type in times and op in "+-" else "number" for other in (right, left)]
    return typed(left, types[0], text), typed(right, types[1], text)


def comparable(left: Expression, right: Expression, text: str) -> Expression:
    """`right`, if it may be compared with `left`."""
    type_, other = left.type, right.type
    if type_ != other and not (type_ in NUMBERS and other in NUMBERS):
        if isinstance(right, Constant):
            right_kind(right.literal, shown(left), type_, text, right.position)
        raise TypeProblem(
            f"{short(str(left))} is of type {type_}: it cannot be compared with {short(str(right))}, "
            f"which is of type {other}",
            text,
            right.position,
        )
    return as_double(right) if type_ in ("float", "number") and not is_attribute(left) else right


# ---- tests


def compare(left: Expression, op: str, right: Expression, position: int, text: str) -> Node:
    """`left op right`, of which the value that varies comes first."""
    if isinstance(right, Element):
        left, op, right = right, MIRRORED[op], left
    if isinstance(left, Element):
        left, right = alike(left, scalar(right, text), text)
    else:
        left, right = alike(scalar(left, text), scalar(right, text), text)
        if isinstance(left, Constant) and not isinstance(right, Constant):
            left, op, right = right, MIRRORED[op], left
    return test_node(op, left, (comparable(left, right, text),), position, ())


def test_node(op: str, left: Expression, others: tuple[Expression, ...], position: int, texts: tuple[str, ...]) -> Node:
    """The test of some values: a Leaf, a quantifier, a constant, or a Test."""
    constant = all(isinstance(other, Constant) for other in others)
    if others and constant and isinstance(left, Field) and is_attribute(left):
        values = tuple(other.literal for other in others if isinstance(other, Constant))
        places = tuple(other.position for other in others)
        return Leaf(left.name, left.number, left.type, op, values, position, places)
    if left.type in ("float", "number") or any(other.type in ("float", "number") for other in others):
        left, others = as_double(left), tuple(map(as_double, others))
    node = Test(op, (left, *others), position, texts)
    if isinstance(left, Element):
        return Quantifier(left.quantifier, left.list, node, position, left.level)
    return decided(node) if constant and isinstance(left, Constant) else node


def decided(node: Test) -> Node:
    """A test of literals as TRUE or FALSE, unless it is unknown."""
    truth = constant_truth(node)
    return node if truth is None else Branch("TRUE" if truth else "FALSE", (), node.position)
