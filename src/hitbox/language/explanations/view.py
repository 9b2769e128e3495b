"""An event as a predicate sees it: what a condition looks at, by its name and value; inside EXISTS, ANY and ALL also
the elements that are looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from hitbox.encoding.documents import ABSENT, lookup
from hitbox.language.explanations.trials import Spot, spot_of
from hitbox.language.syntax.expressions import Call, Constant, Element, Expression, Field, ListPath, Result
from hitbox.language.syntax.tree import MIRRORED, Leaf, Node, Quantifier, Test, parts
from hitbox.language.truth import Scope, value_of


@dataclass(frozen=True, slots=True)
class Place:
    """A latitude and a longitude."""

    lat: float
    lon: float

    def __str__(self) -> str:
        return f"({self.lat:.7g}, {self.lon:.7g})"


class View:
    def __init__(self, scope: Scope):
        self.scope = scope
        self.frozen: frozenset[Spot] = frozenset()
        """What must not be changed any more: another operand of a test is."""
        self._elements: list[str] = []
        self._event = scope

    @property
    def is_whole_event(self) -> bool:
        """Whether the event is looked at as it was given, and no element."""
        return self.scope is self._event and not self._elements and not self.frozen

    def subject(self, node: Node) -> tuple[str | None, Any]:
        """What a condition looks at first, and its value."""
        if isinstance(node, Leaf):
            return node.name, self.scope.attribute(node.name)
        if isinstance(node, Quantifier):
            return self.name(node.list), self.elements(node.list)
        if not isinstance(node, Test):
            return None, None
        if is_of_place(node):
            return self.place(coordinates(node))
        first = next((operand for operand in node.operands if not isinstance(operand, Constant)), None)
        return (None, None) if first is None else (self.name(first), self.value(first))

    def value(self, expression: Expression) -> Any:
        """A field as the event has it, even if it is of another type than the condition asks for."""
        if isinstance(expression, ListPath):
            return self.elements(expression)
        return self.scope.field(expression) if isinstance(expression, Field) else value_of(expression, self.scope)

    def elements(self, path: ListPath) -> Any:
        """The elements of a list, None if it is null, ABSENT if it is missing."""
        elements = self.scope.several(path)
        if elements is not None or path.level:
            return elements
        value = lookup(self.scope.old if path.old else self.scope.values, path.steps[0])
        return ABSENT if value is ABSENT else None

    def name(self, expression: Expression) -> str:
        """An expression, and the element that it belongs to."""
        if isinstance(expression, Element):
            return self._elements[expression.level - 1]
        level = max((source.level for source in inputs(expression)), default=0)
        return f"{expression} of {self._elements[level - 1]}" if level else str(expression)

    def place(self, of: Sequence[Expression]) -> tuple[str, Any]:
        """The name and the value of two coordinates; None if one is NULL."""
        values = [value_of(coordinate, self.scope) for coordinate in of]
        return ", ".join(map(self.name, of)), None if None in values else Place(*map(float, values))

    def at(self, node: Quantifier, number: int, element: Any, look: Callable[[], Result]) -> Result:
        """What `look` returns while one element of the list is looked at."""
        scope, names, around = self.scope, self._elements, self.scope.elements
        self._elements = [*names[: node.level - 1], f"element {number + 1} of {self.name(node.list)}"]
        scope.elements = [*around[: node.level - 1], element]
        try:
            return look()
        finally:
            scope.elements, self._elements = around, names

    def turned(self, test: Test) -> Test:
        """A comparison whose left side must not be changed, the other way round."""
        if test.op not in MIRRORED or is_circle(test):
            return test
        left, right = test.operands
        turned = isinstance(left, Constant) or (spot_of(left) in self.frozen and not isinstance(right, Constant))
        return Test(MIRRORED[test.op], (right, left), test.position) if turned else test


def is_of_place(test: Test) -> bool:
    return test.op.endswith("INSIDE") or is_circle(test)


def is_circle(test: Test) -> bool:
    """Whether a test compares a distance with a literal."""
    if test.op not in MIRRORED:
        return False
    left, right = test.operands
    return isinstance(left, Call) and left.name == "DISTANCE" and isinstance(right, Constant)


def coordinates(test: Test) -> Sequence[Expression]:
    """Where the place of a test comes from: the coordinates that are no literals."""
    if test.op.endswith("INSIDE"):
        return test.operands
    first, second = test.operands[0].children[:2], test.operands[0].children[2:]
    return second if all(isinstance(coordinate, Constant) for coordinate in first) else first


def inputs(root: Any) -> Iterator[Any]:
    """What an expression takes from the event: fields, elements, lists; of a condition on a list, the list."""
    stack = [root]
    while stack:
        node = stack.pop()
        if isinstance(node, (Field, Element, ListPath)):
            yield node
        elif isinstance(node, Leaf):
            yield Field(node.name, node.number, node.type, node.position)
        elif isinstance(node, Quantifier):
            yield node.list
        else:
            stack.extend(reversed(parts(node)))
