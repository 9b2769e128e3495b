"""The tree of a predicate: conditions, and the branches that join them.

    price > 10 AND NOT (city = 'Paris' OR price > old_price)

    AND -- Leaf price > (10)
        `- NOT -- OR -- Leaf city = ('Paris')
                     `- Test > (Field price, Field old_price)

A **Leaf** compares one attribute with literals: a set of keys can say it, or nearly. Everything else is a **Test** of
expressions, or a **Quantifier** over a list. Every walk goes through `fold`, which keeps its own stack, so no tree is
too deep for Python. The text of a tree parses back to an equal tree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hitbox.encoding.schema import Schema
from hitbox.language.conditions.networks import network
from hitbox.language.conditions.patterns import Pattern
from hitbox.language.conditions.places import Area
from hitbox.language.conditions.regular_expressions import regular_expression
from hitbox.language.limits import DEFAULT_LIMITS, Limits
from hitbox.language.syntax.expressions import (
    Call,
    Constant,
    Element,
    Expression,
    Field,
    Length,
    ListPath,
    Literal,
    Verdict,
    Whole,
    fold,
    literal,
    quoted,
)

NEGATED = {
    "=": "<>",
    "<": ">=",
    "<=": ">",
    "BETWEEN": "NOT BETWEEN",
    "IN": "NOT IN",
    "LIKE": "NOT LIKE",
    "ILIKE": "NOT ILIKE",
    "REGEXP": "NOT REGEXP",
    "IN NETWORK": "NOT IN NETWORK",
    "INSIDE": "NOT INSIDE",
    "IS NULL": "IS NOT NULL",
    "IS MISSING": "IS NOT MISSING",
    "ANY": "ALL",
    "AND": "OR",
    "TRUE": "FALSE",
}
NEGATED |= {negated: op for op, negated in NEGATED.items()}
MIRRORED = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
"""Comparisons, and what they become when their sides change places."""


@dataclass(slots=True, eq=False)
class Leaf(Whole):
    """A test of one attribute: `values` are the literals of `op`; those of LIKE are the pattern and its escape."""

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
            text, *escape = (str(value) for value in self.values)
            self._pattern = Pattern(text, escape[0] if escape else None)
        return self._pattern

    machine = pattern

    @property
    def work(self) -> int:
        """The steps that it takes on a short value."""
        return 1 + len(self.values) // 4

    def negated(self) -> Leaf:
        op = NEGATED[self.op]
        return Leaf(self.name, self.number, self.type, op, self.values, self.position, self.places, self._pattern)

    def __str__(self) -> str:
        return _spelled(quoted(self.name), self.op, list(map(literal, self.values)))


MACHINES: dict[str, Callable[..., Any]] = {
    "LIKE": Pattern,
    "ILIKE": lambda text, escape=None: Pattern(text, escape, any_case=True),
    "REGEXP": regular_expression,
    "IN NETWORK": network,
    "INSIDE": Area,
}
"""What is made of the texts of a Test before it can be asked."""


@dataclass(slots=True, eq=False)
class Test(Whole):
    """A test of expressions. `texts` are the pattern and its escape, the network, or the polygon."""

    op: str
    operands: tuple[Expression, ...]
    position: int
    texts: tuple[str, ...] = ()
    _machine: Any = field(default=None, repr=False)
    derived: Any = field(default=None, repr=False)  # what it says of a derived attribute, cached by derived.condition

    @property
    def machine(self) -> Any:
        """The pattern, the regular expression, the ends of the network or the area."""
        if self._machine is None:
            self._machine = MACHINES[self.op.removeprefix("NOT ")](*self.texts)
        return self._machine

    @property
    def strict(self) -> tuple[Expression, ...]:
        """The operands without which it is unknown. An end of a BETWEEN may decide alone."""
        if self.op.startswith("IS"):
            return ()
        return self.operands[:1] if self.op.endswith("BETWEEN") else self.operands

    def negated(self) -> Test:
        return Test(NEGATED[self.op], self.operands, self.position, self.texts, self._machine)

    def __reduce__(self) -> tuple[object, ...]:
        return (Test, (self.op, self.operands, self.position, self.texts))

    def __str__(self) -> str:
        texts = [*map(str, self.operands), *map(literal, self.texts)]
        if self.op.endswith("INSIDE"):
            return f"{self.op}({', '.join(texts)})"
        return _spelled(texts[0], self.op, texts[1:])


def _spelled(subject: str, op: str, others: Sequence[str]) -> str:
    """The text of a condition, from those of its values."""
    if op.startswith("IS"):
        return f"{subject} {op}"
    if op.endswith("BETWEEN"):
        return f"{subject} {op} {others[0]} AND {others[1]}"
    if op.endswith("IN"):
        return f"{subject} {op} ({', '.join(others)})"
    return f"{subject} {op} {' ESCAPE '.join(others)}"


@dataclass(slots=True, eq=False)
class Quantifier(Whole):
    """`op` is ANY or ALL, with a test of one element, or EXISTS, with a condition on one object of the list. `level` is
    that of its element: 1 and the lists around it in the text. `ANY(a) = (ANY(b) = 'x')` compares the elements of `a`
    with a condition that stands beside them, not in them: both are of level 1."""

    op: str
    list: ListPath
    condition: Node
    position: int
    level: int

    def negated(self) -> Quantifier:
        """NOT ANY is ALL NOT, also where something is unknown."""
        if self.op.endswith("EXISTS"):
            op = "EXISTS" if self.op == "NOT EXISTS" else "NOT EXISTS"
            return Quantifier(op, self.list, self.condition, self.position, self.level)
        op = NEGATED[self.op]
        test = self.condition
        assert isinstance(test, Test)
        operands = tuple(replace(o, quantifier=op) if isinstance(o, Element) else o for o in test.operands)
        other = Test(NEGATED[test.op], operands, test.position, test.texts, test._machine)
        return Quantifier(op, self.list, other, self.position, self.level)

    def __str__(self) -> str:
        if self.op.endswith("EXISTS"):
            return f"{self.op}({self.list} WHERE {self.condition})"
        return str(self.condition)


@dataclass(slots=True, eq=False, repr=False)
class Branch:
    """`op` is AND, OR, XOR (two children or more), NOT (one), TRUE or FALSE (none). `opposites` are the negations of
    the children of an XOR, where there is no NOT."""

    op: str
    children: tuple[Node, ...]
    position: int
    opposites: tuple[Node, ...] = ()

    def __str__(self) -> str:
        return fold(self, _text)

    __repr__ = __str__


Node = Leaf | Test | Quantifier | Branch
NODES = (Leaf, Test, Quantifier, Branch)
Item = Expression | Node
"""What may stand between two operators: a value or a condition."""


@dataclass(slots=True, eq=False)
class Predicate:
    """A parsed predicate: its tree, the text that positions point into, and what it was checked against."""

    root: Node
    text: str = field(repr=False)
    schema: Schema = field(repr=False)
    limits: Limits = field(default=DEFAULT_LIMITS, repr=False)
    own: dict[int, Any] = field(default_factory=dict, repr=False)
    """Its normal forms with keys of their own, by the most terms of a conjunction, and the steps that each took; cached
    by truth.Facts."""

    def __str__(self) -> str:
        return str(self.root)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Predicate) and same(self.root, other.root)

    def __reduce__(self) -> tuple[object, ...]:
        return (Predicate, (self.root, self.text, self.schema, self.limits))

    def __hash__(self) -> int:
        return hash(tuple((leaf.name, leaf.op) for leaf in leaves(self.root)))


def as_value(item: Item) -> Expression:
    """An item as a value; a condition is a bool."""
    if isinstance(item, Branch) and item.op in ("TRUE", "FALSE"):
        return Constant(item.op == "TRUE", "bool", item.position)
    return Verdict(item, item.position) if isinstance(item, NODES) else item


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
    """The predicate with every NOT pushed into the leaves.

    Under three-valued logic this changes nothing: NOT of unknown is unknown, and so is each negated leaf of a
    missing value. A node and its negation are built side by side, so the cost is linear however NOTs nest.
    """

    def visit(node: Node, done: Sequence[tuple[Node, Node]]) -> tuple[Node, Node]:
        if not isinstance(node, Branch):
            return node, node.negated()
        if node.op == "NOT":
            return done[0][1], done[0][0]
        if node.op == "XOR":
            yes, no = zip(*done, strict=True)
            even = Branch("XOR", (no[0], *yes[1:]), node.position, (yes[0], *no[1:]))
            return Branch("XOR", yes, node.position, no), even
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
        elif not isinstance(a, Branch) and str(a) != str(b):
            return False
        stack.extend(zip(a.children, b.children, strict=True))
    return True


def names(root: Node) -> Iterator[str]:
    """The attributes of the event that a predicate speaks of."""
    stack: list[Any] = [root]
    while stack:
        node = stack.pop()
        if isinstance(node, Leaf) or (isinstance(node, Field) and not node.level and not node.old):
            yield node.name
        elif isinstance(node, ListPath) and not node.level and not node.old:
            yield node.steps[0] if node.number >= 0 else ".".join(node.steps)
        stack.extend(parts(node))


def needed(node: Node) -> set[int]:
    """The attributes without which a condition is unknown, whatever else the event holds."""

    def visit(node: Node, done: Sequence[set[int]]) -> set[int]:
        if isinstance(node, Leaf):
            return {node.number} if node.values else set()
        if isinstance(node, Test):
            return {n for one in node.strict for n in _strict(one)}
        if isinstance(node, Quantifier):
            return _strict(node.list)
        if node.op in ("NOT", "XOR"):
            return set().union(*done)
        return set.intersection(*done) if done else set()

    return fold(node, visit)


def _strict(root: Expression) -> set[int]:
    """The attributes without which an expression is NULL."""

    def visit(node: Expression, done: Sequence[set[int]]) -> set[int]:
        if isinstance(node, Call):
            return set().union(*done)
        if isinstance(node, Length):
            node = node.list
        if isinstance(node, (Field, ListPath)) and not node.level and not node.old and node.number >= 0:
            return {node.number}
        return set()

    return fold(root, visit)


def parts(node: Any) -> Sequence[Any]:
    """What a node or an expression is made of: its children, the values in a test, the condition in a value."""
    if isinstance(node, Test):
        return node.operands
    if isinstance(node, Quantifier):
        return node.list, node.condition
    if isinstance(node, Verdict):
        return (node.condition,)
    found: Sequence[Any] = (node.list,) if isinstance(node, Length) else node.children
    return found


LOOSER = {"AND": ("OR", "XOR"), "XOR": ("OR", "XOR"), "OR": (), "NOT": ("AND", "OR", "XOR")}
"""The branches that stand in parentheses inside another one."""


def _text(node: Node, done: Sequence[str]) -> str:
    if not done:
        return node.op if isinstance(node, Branch) else str(node)
    loose = LOOSER[node.op]
    parts = [f"({text})" if child.op in loose else text for child, text in zip(node.children, done, strict=True)]
    return f"NOT {parts[0]}" if node.op == "NOT" else f" {node.op} ".join(parts)
