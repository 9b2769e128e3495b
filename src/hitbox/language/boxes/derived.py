"""Conditions on a function of attributes -> conditions on a derived attribute, whose keys a box can say.

    LOWER(name) = 'ab'             LOWER(name)             =        'ab'
    name ILIKE 'Ab%'               LOWER(name)             WITHIN   from 'ab' to below 'ac'
    name LIKE '%ab'                REVERSE(name)           WITHIN   from 'ba' to below 'bb'
    a > b, b < a                   COMPARE(a, b)           >        0           -1, 0 or 1
    ip IN NETWORK '10.0.0.0/8'     ADDRESS(ip)             WITHIN   two addresses, written so that they sort
    HOUR(ts, 'Europe/Paris') < 6   HOUR(ts, ...)           <        6
    x IS MISSING                   ABSENT(x)               =        TRUE

A derived attribute is an expression, or one of a few functions that the language has no names for. Not derived is what
depends on more than the event (NOW), on an element of a list, or on what subscriptions say about themselves; and a
distance, for which boxes of latitude and longitude are better.

Two functions are **details**, which have no key in a point: EACH(list) are the elements of a list, or with a field that
of its objects, each of which has a key; TEXT(name) is the text itself. They are for the second look (second_look.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from hitbox.encoding.documents import ABSENT, SOMETHING, Document, lookup, open_elements
from hitbox.encoding.keys import NOTHING, Derived
from hitbox.encoding.open_values import CONVERT, comparable
from hitbox.encoding.schema import Schema
from hitbox.errors import SchemaError
from hitbox.language.conditions.networks import address
from hitbox.language.conditions.patterns import Pattern, successor
from hitbox.language.syntax.expressions import (
    LOOSE,
    Call,
    Constant,
    Element,
    Expression,
    Field,
    Length,
    ListPath,
    Literal,
    as_times,
    fold,
)
from hitbox.language.syntax.tree import MIRRORED, Leaf, Node, Quantifier, Test

TYPES = ("int", "float", "string", "bool", "timestamp", "number")
COVERING = {"<": "<=", ">": ">=", "<>": "IS NOT NULL", "NOT IN": "IS NOT NULL", "NOT BETWEEN": "IS NOT NULL"}
"""What is true wherever the key of a number equals that of the literal, or another test holds."""
EXACT = 2**53
"""Numbers below it have keys of their own (codecs.NumberCodec)."""
MAX_TEXT = 1000
"""Characters of the longest expression that is derived."""
MAX_NESTED = 90
"""Parentheses inside each other in it. It must be within the default limits: snapshots hold its text."""
MAX_TEXT_CALLS = 2
"""Calls of LOWER and UPPER in it. Each goes through a whole text, for every event, and that is not counted in steps."""


def _written(number: int) -> str:
    """An address as a text that sorts as the number does."""
    return f"{number:032x}"


def _address(text: str) -> str | None:
    number = address(text)
    return None if number is None else _written(number)


FUNCTIONS: dict[str, tuple[str, Callable[..., Any]]] = {
    "REVERSE": ("string", lambda text: text[::-1]),
    "ADDRESS": ("string", _address),
    "COMPARE": ("int", lambda a, b: (a > b) - (a < b)),
    "TEXT": ("int", lambda text: text),
}
"""What no expression says: the type of the keys, and the function of plain values."""
EACH, TEXT, ABSENCE = "EACH", "TEXT", "ABSENT"


@dataclass(frozen=True, slots=True, eq=False)
class DerivedAttribute:
    """A function of expressions, or with the name "" the only expression itself. See `Derived` in encoding/keys.py."""

    name: str
    operands: tuple[Expression, ...]
    text: str = field(init=False)
    type: str = field(init=False)
    attributes: Mapping[str, int] = field(init=False)
    value: Callable[[Document], Any] = field(init=False)

    def __post_init__(self) -> None:
        text = ", ".join(map(_text, self.operands))
        object.__setattr__(self, "text", f"{self.name}({text})" if self.name else text)
        attributes = {name: number for operand in self.operands for name, number in _attributes(operand)}
        object.__setattr__(self, "attributes", attributes)
        if self.name in (EACH, ABSENCE):
            value = _elements(*self.operands) if self.name == EACH else _absence(*self.operands)
            object.__setattr__(self, "type", self.operands[-1].type if self.name == EACH else "bool")
            object.__setattr__(self, "value", value)
            return
        object.__setattr__(self, "type", FUNCTIONS[self.name][0] if self.name else self.operands[0].type)
        values = [_value(operand) for operand in self.operands]
        function = FUNCTIONS[self.name][1] if self.name else None
        if self.name == "COMPARE" and any(operand.type == "any" for operand in self.operands):
            function = _compared
        object.__setattr__(self, "value", values[0] if function is None else _applied(function, values))

    @property
    def is_attribute(self) -> bool:
        return not self.name and isinstance(self.operands[0], Field) and self.operands[0].number < 0

    @property
    def is_detail(self) -> bool:
        return self.name in (EACH, TEXT)

    @property
    def native(self) -> tuple[Any, ...] | None:
        first = self.operands[0]
        if any(_reads_old(operand) for operand in self.operands):  # no event with an old image is read natively
            return ("always", 1) if self.name == ABSENCE else ("nothing",)
        if self.name == ABSENCE:
            return ("absent", first.name) if isinstance(first, Field) and _is_of_event(first) else None
        if self.name == EACH:
            return _native_list(*self.operands)
        sources = [_native_source(one) for one in self.operands]
        if None in sources:
            return None
        if self.name in ("", "REVERSE"):
            name, type_, functions = sources[0]  # type: ignore[misc]
            return "field", (name, type_, functions + "r" * (self.name == "REVERSE"))
        return (self.name.lower(), *sources) if self.name in (TEXT, "COMPARE") else None

    def to_json(self) -> Any:
        operands = [str(operand) for operand in self.operands]
        return {"function": self.name, "of": operands, "types": [operand.type for operand in self.operands]}


def _is_open(of: Field) -> bool:
    """Whether it is an attribute of the event that is not declared."""
    return of.number < 0 and _is_of_event(of)


def _is_of_event(of: Field) -> bool:
    return not of.level and not of.old


def _reads_old(root: Expression) -> bool:
    def visit(node: Any, done: Sequence[bool]) -> bool:
        path = node.list if isinstance(node, Length) else node
        return any(done) or (isinstance(path, (Field, ListPath)) and path.old)

    return fold(root, visit)


def _native_source(of: Expression) -> tuple[str, str, str] | None:
    """(attribute, type, functions of texts) of an attribute of the event: l is LOWER, and u UPPER."""
    functions = ""
    while isinstance(of, Call) and of.name in ("LOWER", "UPPER"):
        functions = of.name[0].lower() + functions
        of = of.children[0]
    return (of.name, of.type, functions) if isinstance(of, Field) and _is_of_event(of) else None


def _native_list(path: Expression, of: Expression | None = None) -> tuple[Any, ...] | None:
    assert isinstance(path, ListPath)
    steps = path.steps if path.number >= 0 else (".".join(path.steps),)
    return "each", steps, of.name if isinstance(of, Field) else "", path.type if of is None else of.type


def _derived(name: str, of: Expression) -> DerivedAttribute:
    """A function of one expression; of the same attribute the same object, because many predicates ask for it."""
    if isinstance(of, Field) and not of.level:
        return _of_field(name, of.name, of.number, of.type, of.image)
    return DerivedAttribute(name, (of,))


@lru_cache(maxsize=4096)
def _of_field(name: str, field_name: str, number: int, type_: str, image: str) -> DerivedAttribute:
    return DerivedAttribute(name, (Field(field_name, number, type_, 0, image=image),))


def text_attribute(node: Leaf | Test, schema: Schema) -> DerivedAttribute | None:
    """The text that a pattern is compared with, if keys do not decide it; None of any other condition."""
    if not node.op.endswith("LIKE"):
        return None
    if isinstance(node, Leaf):
        if node.pattern.shape != "*":
            return None
        of: Expression = Field(node.name, node.number, node.type, node.position)
    else:
        of = _folded(node.operands[0], node.op)
    found = condition(node, schema)
    if (found is not None and found.exact) or of.type != "string" or not _is_derivable(of, schema):
        return None
    return _derived(TEXT, of)


def each(path: ListPath, of: Field | None, schema: Schema) -> DerivedAttribute | None:
    """The elements of a list, or a field of its objects; None of a list that has no place in the event itself."""
    if path.level or (path.number >= 0 and schema[path.steps[0]].role != "criteria"):
        return None
    field_of = ("", 0, "") if of is None else (of.name, of.number, of.type)
    return _each(path.steps, path.number, path.type, path.image, *field_of)


@lru_cache(maxsize=4096)
def _each(
    steps: tuple[str, ...], number: int, type_: str, image: str, name: str, field_number: int, field_type: str
) -> DerivedAttribute:
    path = ListPath(steps, number, type_, 0, image=image)
    return DerivedAttribute(EACH, (path, Field(name, field_number, field_type, 0, level=1)) if name else (path,))


@dataclass(frozen=True, slots=True)
class Condition:
    """A test of one derived attribute with literals, as of a Leaf; WITHIN: from one string to below another, or to the
    end. If it is not `exact`, it is only necessary."""

    of: DerivedAttribute
    op: str
    values: tuple[Literal, ...] = ()
    exact: bool = True

    def strings(self) -> list[str]:
        """The strings that must have labels."""
        return list(map(str, self.values)) if self.of.type == "string" else []

    def ends(self) -> tuple[str, str | None]:
        """The strings of WITHIN."""
        return str(self.values[0]), str(self.values[1]) if self.values[1:] else None


def conditions(root: Node, schema: Schema) -> Iterator[Condition]:
    """The conditions of a tree that derived attributes can decide, or help to decide."""
    stack: list[tuple[Any, bool]] = [(root, False)]
    seen = set()
    while stack:
        node, negated = stack.pop()
        if (id(node), negated) in seen:  # below two XORs
            continue
        seen.add((id(node), negated))
        if isinstance(node, (Leaf, Test)):
            found = condition(node.negated() if negated else node, schema)
            if found is not None:
                yield found
            if schema.is_open and isinstance(node, Test):
                yield from (Condition(of, "IS NOT NULL", exact=False) for of in _coordinates(node))
        elif not isinstance(node, Quantifier):
            negated ^= node.op == "NOT"
            for child in reversed(node.children):
                stack += [(child, negated)] + [(child, not negated)] * (node.op == "XOR")


def condition(node: Leaf | Test, schema: Schema) -> Condition | None:
    """What a condition says of a derived attribute, if it can be said so; None of one that needs none."""
    if isinstance(node, Leaf):
        return _leaf_condition(node, schema)
    if node.derived is None:
        node.derived = (_derived_condition(node, schema),)  # of the schema that it was parsed with
    found: Condition | None = node.derived[0]
    return found


def _derived_condition(node: Test, schema: Schema) -> Condition | None:
    of, op = node.operands[0], node.op
    found = None
    if op.endswith("MISSING"):
        return Condition(_derived(ABSENCE, of), "=", (op == "IS MISSING",)) if _is_derivable(of, schema) else None
    operands = (_folded(of, op), *node.operands[1:])
    if not op.endswith(("INSIDE", "REGEXP")) and all(_is_derivable(one, schema) for one in operands):
        found = _test_condition(node, of, op)
    return _presence(node) if found is None and schema.is_open else found


def _coordinates(test: Test) -> list[DerivedAttribute]:
    """The latitude and the longitude of a test of places, where they are attributes that are not declared."""
    first = test.operands[0]
    if test.op.endswith("INSIDE"):
        place: tuple[Expression, ...] = test.operands
    elif isinstance(first, Call) and first.name == "DISTANCE":
        place = first.children
    else:
        return []
    found = [open_attribute(one) for one in place if isinstance(one, Field)]
    return [one for one in found if one is not None]


def open_attribute(of: Field) -> DerivedAttribute | None:
    """An attribute that is not declared as one that has keys; None of any other field."""
    return _derived("", of) if _is_open(of) else None


def _presence(test: Test) -> Condition | None:
    """What no test holds without: an attribute that is not declared is there."""
    for of in test.strict:
        if isinstance(of, Field) and not of.level and not of.old:
            return Condition(_derived("", of), "IS NOT NULL", exact=False)
    return None


def _test_condition(node: Test, of: Expression, op: str) -> Condition | None:
    others = [one for one in node.operands[1:] if isinstance(one, Constant)]
    if op.endswith("LIKE"):
        return _pattern_condition(of, op, node.machine)
    if op.endswith("NETWORK"):
        first, last = map(_written, node.machine)
        within = "WITHIN" if op == "IN NETWORK" else "NOT WITHIN"
        return Condition(_derived("ADDRESS", of), within, (first, f"{last}!"))  # no address lies between
    if len(others) == len(node.operands) - 1:
        if isinstance(of, (Constant, Length)) or not _has_codec(of):
            return None  # the key of a list is its length
        values, exact = tuple(one.plain for one in others), True
        if of.type == "number" and any(abs(value) >= EXACT for value in values):
            op, exact = COVERING.get(op, op), False
            values = () if op.startswith("IS") else values
        return Condition(_derived("", of), op, values, exact)
    if op not in MIRRORED:
        return None
    two = node.operands
    if str(two[1]) < str(two[0]):
        two, op = two[::-1], MIRRORED[op]
    return Condition(DerivedAttribute("COMPARE", two), op, (0,))


def _leaf_condition(leaf: Leaf, schema: Schema) -> Condition | None:
    """LIKE '%x': keys of the string itself say nothing about its end."""
    if not leaf.op.endswith("LIKE") or leaf.pattern.shape != "*" or leaf.pattern.prefix or not leaf.pattern.suffix:
        return None
    of = Field(leaf.name, leaf.number, leaf.type, leaf.position)
    return _suffix_condition(of, leaf.op, leaf.pattern) if _is_derivable(of, schema) else None


def _folded(of: Expression, op: str) -> Expression:
    """What a pattern is compared with."""
    if op.endswith("ILIKE") and not (isinstance(of, Call) and of.name == "LOWER"):
        return Call("LOWER", (of,), "string", of.position)
    return of


def _pattern_condition(of: Expression, op: str, pattern: Pattern) -> Condition | None:
    of = _folded(of, op)
    negated = op.startswith("NOT")
    if not pattern.shape:
        return Condition(_derived("", of), "<>" if negated else "=", (pattern.prefix,))
    if pattern.shape == "%" and not pattern.prefix:
        return None  # every text is like '%'
    if pattern.shape == "%" or (pattern.prefix and not negated):
        return starts_with(_derived("", of), pattern.prefix, negated, pattern.shape == "%")
    return None if pattern.prefix else _suffix_condition(of, op, pattern)


def _suffix_condition(of: Expression, op: str, pattern: Pattern) -> Condition | None:
    negated = op.startswith("NOT")
    if not pattern.suffix or (negated and not pattern.ends):
        return None
    return starts_with(_derived("REVERSE", of), pattern.suffix[::-1], negated, pattern.ends)


def starts_with(of: DerivedAttribute, prefix: str, negated: bool, exact: bool = True) -> Condition:
    above = successor(prefix)
    return Condition(of, "NOT WITHIN" if negated else "WITHIN", (prefix,) if above is None else (prefix, above), exact)


def _has_codec(of: Expression) -> bool:
    """Whether values of this type have keys. A length of time may be longer than keys can say."""
    if of.type != "duration":
        return of.type in TYPES or (of.type == "any" and isinstance(of, Field))
    return isinstance(of, Call) and of.name == "-" and all(one.type == "timestamp" for one in of.children)


def _is_derivable(root: Expression, schema: Schema) -> bool:
    def visit(node: Any, done: Sequence[bool]) -> bool:
        if isinstance(node, Field):
            if node.number < 0:
                return not node.level
            return not node.level and node.name in schema and schema[node.name].role == "criteria"
        if isinstance(node, Length):
            return not node.list.level and len(node.list.steps) == 1
        return isinstance(node, Constant) or (isinstance(node, Call) and node.name != "DISTANCE" and all(done))

    if not fold(root, visit):
        return False
    if isinstance(root, (Constant, Field)):
        return True
    return _text_calls(root) <= MAX_TEXT_CALLS and _nested(root) <= MAX_NESTED and len(str(root)) <= MAX_TEXT


def _nested(root: Expression) -> int:
    """The parentheses inside each other in its text, or some more."""

    def visit(node: Any, done: Sequence[int]) -> int:
        if not isinstance(node, Call):
            return 0
        if node.name not in LOOSE or len(done) == 1:
            return 1 + max(done)
        left, (first, second) = node.children[0], done
        alike = isinstance(left, Call) and LOOSE.get(left.name) == LOOSE[node.name]
        return max(first + (not alike), second + 1)

    return fold(root, visit)


def _text_calls(root: Expression) -> int:
    def visit(node: Any, done: Sequence[int]) -> int:
        return sum(done) + (isinstance(node, Call) and node.name in ("LOWER", "UPPER"))

    return fold(root, visit)


def _attributes(root: Expression) -> list[tuple[str, int]]:
    """(name, number) of what an expression takes from the event, but for its old image."""

    def visit(node: Any, done: Sequence[list[tuple[str, int]]]) -> list[tuple[str, int]]:
        path = node.list if isinstance(node, Length) else node
        if not isinstance(path, (Field, ListPath)):
            return [found for part in done for found in part]
        return [] if path.old else [(path.name if isinstance(path, Field) else path.steps[0], path.number)]

    return [] if isinstance(root, Field) and root.level else fold(root, visit)


Value = Callable[[Document], Any]


def _value(root: Expression) -> Value:
    """An expression as a function of the plain values of an event: what truth.value_of says, without its scope."""

    def visit(node: Any, done: Sequence[Value]) -> Value:
        if isinstance(node, Call):
            return _applied(node.apply, done)
        if isinstance(node, Constant):
            return lambda values: node.plain
        if isinstance(node, Field) and node.number < 0:
            return _open_field(node.name, node.old, CONVERT[node.type])
        name, old = (node.name, node.old) if isinstance(node, Field) else (node.list.steps[0], node.list.old)
        get = _old(name) if old else lambda values: values.get(name)
        return get if isinstance(node, Field) else _applied(len, [get])

    return fold(root, visit)


def _open_field(name: str, old: bool, convert: Callable[[object], Any]) -> Value:
    def field(values: Document) -> Any:
        image = values.old if old else values
        found = ABSENT if image is None else lookup(image, name)
        return None if found is ABSENT else convert(found)

    return field


def _absence(of: Expression) -> Value:
    assert isinstance(of, Field)
    name, old = of.name, of.old
    return lambda values: (image := values.old if old else values) is None or lookup(image, name) is ABSENT


def _elements(path: Expression, of: Expression | None = None) -> Value:
    """The plain elements of a list, or a field of its objects: what truth.Scope says. None where it has no list."""
    assert isinstance(path, ListPath)
    steps, old, is_open = path.steps, path.old, path.number < 0
    name = of.name if isinstance(of, Field) else ""
    convert = CONVERT[of.type if of is not None else path.type] if is_open else None

    def found(values: Document) -> list[Any] | None:
        image: Mapping[str, Any] | None = values.old if old else values
        if image is None:
            return None
        if convert is not None:
            several = open_elements(image, steps)
            if several is not None and name:
                several = [lookup(one, name) if isinstance(one, Mapping) else None for one in several]
            return several and [None if one is ABSENT else convert(one) for one in several]
        several = lookup(image, steps[0])
        if several is None or several is ABSENT:
            return None
        for step in (*steps[1:], *([name] if name else ())):
            inner = [None if one is None else one.get(step) for one in several]
            several = [one for some in inner for one in (some if isinstance(some, list) else (some,))]
        return list(several)

    return found


def _old(name: str) -> Value:
    return lambda values: None if values.old is None else values.old.get(name)


def _applied(function: Callable[..., Any], of: Sequence[Value]) -> Value:
    """A function of NULL is NULL."""
    if len(of) == 1:
        (only,) = of

        def one(values: Document) -> Any:
            value = only(values)
            return value if value is None or value is SOMETHING else function(value)

        return one

    def several(values: Document) -> Any:
        found = [one(values) for one in of]
        return None if None in found else SOMETHING if SOMETHING in found else function(*found)

    return several


def derived_from_json(rows: Any, schema: Schema, parse: Callable[[str, Schema], Any]) -> list[Derived]:
    """Derived attributes as `to_json` wrote them; an error if they are none of this schema."""
    found: list[Derived] = []
    for row in rows:
        if row is None:
            found.append(NOTHING)
            continue
        name, texts = row["function"], row["of"]
        known = not name or name in FUNCTIONS or name in (EACH, ABSENCE)
        if not known or not isinstance(texts, list) or not texts:
            raise SchemaError(f"{row!r:.200} is no derived attribute")
        if name == EACH:
            found.append(_each_from_json(row, schema, parse))
            continue
        operands = [_expression(parse(f"{text} IS NULL", schema).root) for text in texts]
        if schema.is_open:
            operands = [_typed(operand, type_) for operand, type_ in zip(operands, row["types"], strict=True)]
        if not all(_is_derivable(operand, schema) for operand in operands):
            raise SchemaError(f"{row!r:.200} cannot be derived")
        found.append(DerivedAttribute(name, tuple(operands)))
    return found


def _each_from_json(row: Any, schema: Schema, parse: Callable[[str, Schema], Any]) -> DerivedAttribute:
    path, *fields = row["of"]
    text = f"EXISTS({path} WHERE {fields[0]} IS NULL)" if fields else f"ANY({path}) IS NULL"
    root = parse(text, schema).root
    of = root.condition.operands[0] if isinstance(root, Quantifier) and isinstance(root.condition, Test) else None
    made = None
    if isinstance(root, Quantifier) and isinstance(of, (Field, Element)) and of.level == 1 and len(fields) < 2:
        types = row["types"] if schema.is_open else [root.list.type, of.type]
        if any(one not in CONVERT for one in types if schema.is_open):
            raise SchemaError(f"{types!r:.50} are no types of attributes")
        field_of = replace(of, type=types[-1]) if isinstance(of, Field) else None
        made = each(replace(root.list, type=types[0]), field_of, schema)
    if made is None:
        raise SchemaError(f"{row!r:.200} cannot be derived")
    return made


def _typed(of: Expression, type_: Any) -> Expression:
    """An attribute with its type, which its name does not say."""
    if not isinstance(of, Field):
        return as_times(of) if type_ == "duration" else of
    if type_ not in CONVERT:
        raise SchemaError(f"{type_!r:.50} is no type of an attribute")
    return replace(of, type=type_)


def _text(of: Expression) -> str:
    """An expression; with its type where its name does not say it."""
    unclear = isinstance(of, (Field, ListPath)) and of.number < 0
    return f"{of.type.upper()}({of})" if unclear or of.type == "duration" else str(of)


def _compared(a: Any, b: Any) -> int | None:
    return (a > b) - (a < b) if comparable(a, b) else None


def _expression(root: Node) -> Expression:
    if isinstance(root, Leaf) and root.op == "IS NULL":
        return Field(root.name, root.number, root.type, root.position)
    if isinstance(root, Test) and root.op == "IS NULL":
        return root.operands[0]
    raise SchemaError(f"{root!s:.200} is no expression")
