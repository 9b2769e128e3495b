"""The tree of a predicate: leaves that test one attribute, branches that join them.

    price > 10 AND NOT (city = 'Paris' OR qty IS NULL)

    AND -- Leaf price > (10)
        `- NOT -- OR -- Leaf city = ('Paris')
                     `- Leaf qty IS NULL ()

Every walk goes through `fold`, which keeps its own stack, so no tree is too deep for Python. The text of a tree parses
back to an equal tree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, ClassVar, TypeVar

from hitbox.encoding.schema import Schema
from hitbox.language.lexer import is_plain
from hitbox.language.limits import DEFAULT_LIMITS, Limits
from hitbox.language.patterns import Pattern

Literal = int | Decimal | str | bool | datetime
Result = TypeVar("Result")

NEGATED = {
    "=": "<>",
    "<": ">=",
    "<=": ">",
    "BETWEEN": "NOT BETWEEN",
    "IN": "NOT IN",
    "LIKE": "NOT LIKE",
    "IS NULL": "IS NOT NULL",
    "AND": "OR",
    "TRUE": "FALSE",
}
NEGATED |= {negated: op for op, negated in NEGATED.items()}


@dataclass(slots=True, eq=False)
class Leaf:
    """A test of one attribute: `values` are the literals of `op`; those of LIKE are the pattern and its escape."""

    children: ClassVar[tuple[Node, ...]] = ()

    name: str
    number: int
    type: str
    op: str
    values: tuple[Literal, ...]
    position: int
    places: tuple[int, ...] = ()  # where each literal stands in the text
    _pattern: Pattern | None = None

    @property
    def pattern(self) -> Pattern:
        """The compiled pattern of a LIKE."""
        if self._pattern is None:
            self._pattern = Pattern(*(str(value) for value in self.values))
        return self._pattern

    def negated(self) -> Leaf:
        op = NEGATED[self.op]
        return Leaf(self.name, self.number, self.type, op, self.values, self.position, self.places, self._pattern)

    def __str__(self) -> str:
        name, op = quoted(self.name), self.op
        if op.startswith("IS"):
            return f"{name} {op}"
        texts = [literal(value) for value in self.values]
        if op.endswith("BETWEEN"):
            return f"{name} {op} {texts[0]} AND {texts[1]}"
        if op.endswith("IN"):
            return f"{name} {op} ({', '.join(texts)})"
        return f"{name} {op} {' ESCAPE '.join(texts)}"


@dataclass(slots=True, eq=False, repr=False)
class Branch:
    """`op` is AND, OR (two children or more), NOT (one), TRUE or FALSE (none)."""

    op: str
    children: tuple[Node, ...]
    position: int

    def __str__(self) -> str:
        return fold(self, _text)

    __repr__ = __str__


Node = Leaf | Branch


@dataclass(slots=True, eq=False)
class Predicate:
    """A parsed predicate: its tree, the text that positions point into, and what it was checked against."""

    root: Node
    text: str = field(repr=False)
    schema: Schema = field(repr=False)
    limits: Limits = field(default=DEFAULT_LIMITS, repr=False)
    own: Any = field(default=None, repr=False)  # the normal form with keys of its own, cached by truth.Facts

    def __str__(self) -> str:
        return str(self.root)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Predicate) and same(self.root, other.root)

    def __reduce__(self) -> tuple[object, ...]:
        return (Predicate, (self.root, self.text, self.schema, self.limits))

    def __hash__(self) -> int:
        return hash(tuple((leaf.name, leaf.op) for leaf in leaves(self.root)))


def fold(root: Node, visit: Callable[[Node, Sequence[Result]], Result]) -> Result:
    """`visit(node, results of its children)`, children first, without recursion."""
    if not root.children:
        return visit(root, ())
    stack: list[tuple[Node, Iterable[Node], list[Result]]] = [(root, iter(root.children), [])]
    while True:
        node, todo, done = stack[-1]
        for child in todo:
            if child.children:
                stack.append((child, iter(child.children), []))
                break
            done.append(visit(child, ()))
        else:
            stack.pop()
            result = visit(node, done)
            if not stack:
                return result
            stack[-1][2].append(result)


def join(op: str, nodes: Sequence[Node], position: int) -> Node:
    """AND or OR over `nodes`, spliced into one flat branch; a single node stays itself."""
    if len(nodes) == 1:
        return nodes[0]
    if not any(node.op == op for node in nodes):
        return Branch(op, tuple(nodes), position)
    flat = [part for node in nodes for part in (node.children if node.op == op else (node,))]
    return Branch(op, tuple(flat), position)


def leaves(root: Node) -> list[Leaf]:
    """Every leaf, from left to right."""
    found: list[Leaf] = []
    stack: list[Node] = [root]
    while stack:
        node = stack.pop()
        if isinstance(node, Leaf):
            found.append(node)
        else:
            stack.extend(reversed(node.children))
    return found


def without_not(root: Node) -> Node:
    """The same predicate with every NOT pushed into the leaves.

    Under three-valued logic this changes nothing: NOT of unknown is unknown, and so is each negated leaf of a
    missing value. A node and its negation are built side by side, so the cost is linear however NOTs nest.
    """

    def visit(node: Node, done: Sequence[tuple[Node, Node]]) -> tuple[Node, Node]:
        if isinstance(node, Leaf):
            return node, node.negated()
        if node.op == "NOT":
            return done[0][1], done[0][0]
        if not done:
            return node, Branch(NEGATED[node.op], (), node.position)
        plain = join(node.op, [yes for yes, _ in done], node.position)
        return plain, join(NEGATED[node.op], [no for _, no in done], node.position)

    return fold(root, visit)[0]


def same(one: Node, other: Node) -> bool:
    """Whether two trees are equal apart from positions."""
    stack = [(one, other)]
    while stack:
        a, b = stack.pop()
        if a.op != b.op or len(a.children) != len(b.children):
            return False
        if isinstance(a, Leaf) and isinstance(b, Leaf):
            if a.name != b.name or a.values != b.values:
                return False
            if any(type(v) is not type(w) for v, w in zip(a.values, b.values, strict=True)):
                return False  # 1 and 1.0 are equal numbers, but a decimal and an integer compare in different ways
        stack.extend(zip(a.children, b.children, strict=True))
    return True


def quoted(name: str) -> str:
    """A name as the language writes it."""
    if is_plain(name):
        return name
    return '"' + name.replace('"', '""') + '"'


def literal(value: Literal) -> str:
    """A value as the language writes it."""
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    if isinstance(value, datetime):
        utc = value.astimezone(UTC).replace(tzinfo=None) if value.tzinfo else value
        return f"TIMESTAMP '{utc.isoformat(sep=' ')}'"
    text = str(value)
    # a decimal must not come back as an integer, which compares with floats in another way
    return f"{text}.0" if isinstance(value, Decimal) and text.lstrip("-").isdigit() else text


def _text(node: Node, done: Sequence[str]) -> str:
    if isinstance(node, Leaf) or not done:
        return str(node) if isinstance(node, Leaf) else node.op
    loose = {"AND": ("OR",), "OR": (), "NOT": ("AND", "OR")}[node.op]
    parts = [f"({text})" if child.op in loose else text for child, text in zip(node.children, done, strict=True)]
    return f"NOT {parts[0]}" if node.op == "NOT" else f" {node.op} ".join(parts)
