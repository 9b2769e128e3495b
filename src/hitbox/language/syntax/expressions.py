"""Values that a condition compares: literals, attributes, functions of them. Each has a type once it is parsed.

    price * 1.2 > OLD.price + 5

    Call * (float) -- Field price (float)         Call + (float) -- Field OLD.price (float)
                   `- Constant 1.2                              `- Constant 5

Types: int, float, string, bool, timestamp, and duration (INTERVAL); a decimal literal is a `decimal` until it meets a
float, where it means the nearest double. A function of NULL is NULL, and so is a result that does not fit.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, ClassVar, TypeVar

from hitbox.encoding.values import GREATEST, SMALLEST
from hitbox.language.conditions.durations import day_of_week, hour, written
from hitbox.language.conditions.letters import lower, upper
from hitbox.language.conditions.places import distance
from hitbox.language.syntax.lexer import is_plain

Literal = int | Decimal | str | bool | datetime | timedelta
Result = TypeVar("Result")
NUMBERS = ("int", "float", "decimal", "number")
"""An attribute that is not declared may be a `number`: its values say whether they are whole."""
LITERAL_TYPES: dict[type, str] = {
    bool: "bool",
    int: "int",
    Decimal: "decimal",
    str: "string",
    datetime: "timestamp",
    timedelta: "duration",
}


class Whole:
    """What `fold` does not look into."""

    __slots__ = ()
    children: ClassVar[tuple[Any, ...]] = ()


@dataclass(slots=True, eq=False)
class Constant(Whole):
    """A literal, or what a function of literals comes to. `plain` is what it means where it stands."""

    literal: Literal
    type: str
    position: int
    plain: Any = None

    def __post_init__(self) -> None:
        if self.plain is None:
            self.plain = self.literal

    def __str__(self) -> str:
        return literal(self.literal)


@dataclass(slots=True, eq=False)
class Field(Whole):
    """An attribute of an event, of its old image (`OLD.`), or of an element of a list.

    `level` is 0 for the event and counts the lists around: 1 in EXISTS(items WHERE ...). `image` is OLD, or NEW if that
    was said inside EXISTS, where a plain name may mean a field of the element.
    """

    name: str
    number: int
    type: str
    position: int
    level: int = 0
    image: str = ""

    @property
    def old(self) -> bool:
        return self.image == "OLD"

    def __str__(self) -> str:
        return f"{self.image}.{quoted(self.name)}" if self.image else quoted(self.name)


@dataclass(slots=True, eq=False)
class ListPath(Whole):
    """The values of a list: of scalars, of objects, or of one field of its objects (items.sku).

    `steps` are the attribute and the fields below it. `type` is that of a value, or object.
    """

    steps: tuple[str, ...]
    number: int
    type: str
    position: int
    level: int = 0
    image: str = ""
    fields: Any = field(default=None, repr=False)  # the schema of its objects

    @property
    def old(self) -> bool:
        return self.image == "OLD"

    def __str__(self) -> str:
        path = quoted(".".join(self.steps))
        return f"{self.image}.{path}" if self.image else path


@dataclass(slots=True, eq=False)
class Element(Whole):
    """The element of a list that ANY or ALL looks at."""

    quantifier: str
    list: ListPath
    level: int
    position: int

    @property
    def type(self) -> str:
        return self.list.type

    def __str__(self) -> str:
        return f"{self.quantifier}({self.list})"


@dataclass(slots=True, eq=False)
class Length(Whole):
    """How many elements a list has."""

    type: ClassVar[str] = "int"

    list: ListPath
    position: int

    def __str__(self) -> str:
        return f"LENGTH({self.list})"


@dataclass(slots=True, eq=False)
class Now(Whole):
    """The time at which events are matched: the same for all events of a batch."""

    type: ClassVar[str] = "timestamp"

    position: int

    def __str__(self) -> str:
        return "NOW()"


@dataclass(slots=True, eq=False)
class Call:
    """A function or an operator of other expressions; `apply` takes their plain values, none of which is NULL."""

    name: str
    children: tuple[Expression, ...]
    type: str
    position: int
    apply: Callable[..., Any] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.apply = _function(self.name, [child.type for child in self.children])

    def __reduce__(self) -> tuple[object, ...]:
        return (Call, (self.name, self.children, self.type, self.position))

    def __str__(self) -> str:
        return fold(self, _text)


@dataclass(slots=True, eq=False)
class Verdict(Whole):
    """A condition that stands where a value may: (a > 1) = b."""

    type: ClassVar[str] = "bool"

    condition: Any
    position: int

    def __str__(self) -> str:
        return f"({self.condition})"


Expression = Constant | Field | ListPath | Element | Length | Now | Call | Verdict

_INTEGER = re.compile(r"[+-]?[0-9]{1,40}")
LOOSE = {"+": 1, "-": 1, "*": 2, "/": 2, "%": 2}


def fold(root: Any, visit: Callable[[Any, Sequence[Result]], Result]) -> Result:
    """`visit(node, results of its children)`, children first, without recursion."""
    if not root.children:
        return visit(root, ())
    stack: list[tuple[Any, Iterable[Any], list[Result]]] = [(root, iter(root.children), [])]
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


def literal(value: Literal) -> str:
    """A value as the language writes it."""
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    if isinstance(value, datetime):
        utc = value.astimezone(UTC).replace(tzinfo=None) if value.tzinfo else value
        return f"TIMESTAMP '{utc.isoformat(sep=' ')}'"
    if isinstance(value, timedelta):
        return f"INTERVAL '{written(value)}'"
    text = str(value)
    # a decimal must not come back as an integer, which compares with floats in another way
    return f"{text}.0" if isinstance(value, Decimal) and text.lstrip("-").isdigit() else text


def _text(node: Any, done: Sequence[str]) -> str:
    if not isinstance(node, Call):
        return str(node)
    if node.name not in LOOSE:
        return f"{node.name}({', '.join(done)})"
    if len(done) == 1:
        inner = node.children[0]
        signed = (isinstance(inner, Call) and inner.name in LOOSE) or done[0].startswith("-")
        return f"-({done[0]})" if signed else f"-{done[0]}"
    strength = LOOSE[node.name]
    left, right = (_strength(child) for child in node.children)
    first = f"({done[0]})" if left < strength else done[0]
    second = f"({done[1]})" if right <= strength or done[1].startswith("-") else done[1]
    return f"{first} {node.name} {second}"


def _strength(node: Any) -> int:
    if not isinstance(node, Call) or node.name not in LOOSE:
        return 4
    return 3 if len(node.children) == 1 else LOOSE[node.name]


def quoted(name: str) -> str:
    """A name as the language writes it: a path where its parts are plain names.

    >>> quoted("order.city"), quoted("odd name"), quoted("a..b")
    ('order.city', '"odd name"', '"a..b"')
    """
    if is_plain(name):
        return name
    parts = name.split(".")
    if len(parts) > 1 and all(parts):
        return ".".join(part if is_plain(part) else '"' + part.replace('"', '""') + '"' for part in parts)
    return '"' + name.replace('"', '""') + '"'


# ---- what functions do


def whole(value: int) -> int | None:
    """A whole number, if it is one that an int attribute can hold."""
    return value if SMALLEST <= value <= GREATEST else None


def finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def divide(a: int, b: int) -> int | None:
    """Towards zero."""
    if not b:
        return None
    found = abs(a) // abs(b)
    return whole(found if (a < 0) == (b < 0) else -found)


def remainder(a: int, b: int) -> int | None:
    """It has the sign of `a`: a = b * (a / b) + a % b."""
    return (abs(a) % abs(b)) * (-1 if a < 0 else 1) if b else None


def _doubles(of: Callable[[float, float], float]) -> Callable[[Any, Any], float | None]:
    def apply(a: Any, b: Any) -> float | None:
        a, b = float(a), float(b)
        if not (math.isfinite(a) and math.isfinite(b)):
            return None
        try:
            return finite(of(a, b))
        except (ZeroDivisionError, OverflowError, ValueError):
            return None

    return apply


def _moved(of: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Sums and differences of moments and lengths of time; None beyond the years 1 to 9999."""

    def apply(a: Any, b: Any) -> Any:
        try:
            return of(a, b)
        except OverflowError:
            return None

    return apply


def _scaled(a: Any, b: Any) -> timedelta | None:
    length, factor = (a, b) if isinstance(a, timedelta) else (b, a)
    try:
        if factor != int(factor):
            return None  # of a number that is not declared to be whole
        return timedelta(microseconds=(length // timedelta(microseconds=1)) * int(factor))
    except OverflowError:  # an infinite factor, too
        return None


NEGATIVE: dict[str, Callable[[Any], Any]] = {
    "int": lambda a: whole(-a),
    "float": lambda a: finite(-a),
    "decimal": lambda a: finite(-float(a)),
    "duration": lambda a: _scaled(a, -1),
    "number": lambda a: whole(-a) if type(a) is int else finite(-a),
}
WHOLE: dict[str, Callable[[Any, Any], Any]] = {
    "+": lambda a, b: whole(a + b),
    "-": lambda a, b: whole(a - b),
    "*": lambda a, b: whole(a * b),
    "/": divide,
    "%": remainder,
}
DOUBLE: dict[str, Callable[[Any, Any], Any]] = {
    "+": _doubles(operator.add),
    "-": _doubles(operator.sub),
    "*": _doubles(operator.mul),
    "/": _doubles(operator.truediv),
    "%": _doubles(math.fmod),
}
TIMES: dict[tuple[str, str, str], str] = {
    ("+", "timestamp", "duration"): "timestamp",
    ("+", "duration", "timestamp"): "timestamp",
    ("-", "timestamp", "duration"): "timestamp",
    ("-", "timestamp", "timestamp"): "duration",
    ("+", "duration", "duration"): "duration",
    ("-", "duration", "duration"): "duration",
    ("*", "duration", "int"): "duration",
    ("*", "int", "duration"): "duration",
    ("*", "duration", "number"): "duration",
    ("*", "number", "duration"): "duration",
}


def _of_numbers(name: str) -> Callable[[Any, Any], Any]:
    """Exact if both are whole, in doubles otherwise."""
    exact, double = WHOLE[name], DOUBLE[name]
    return lambda a, b: exact(a, b) if type(a) is int and type(b) is int else double(a, b)


def _function(name: str, types: Sequence[str]) -> Callable[..., Any]:
    if name not in LOOSE:
        return FUNCTIONS[name][3]
    if len(types) == 1:
        return NEGATIVE[types[0]]
    if "number" in types and all(one in NUMBERS for one in types):
        return _of_numbers(name)
    if all(one in NUMBERS for one in types):
        return (WHOLE if list(types) == ["int", "int"] else DOUBLE)[name]
    return _scaled if name == "*" else _moved(operator.add if name == "+" else operator.sub)


def binary(op: str, left: Expression, right: Expression, position: int) -> Expression | None:
    """`left op right`; None where the types do not fit."""
    one, two = left.type, right.type
    if one in NUMBERS and two in NUMBERS:
        type_ = "int" if one == two == "int" else "number" if "number" in (one, two) else "float"
    elif (op, one, two) in TIMES:
        type_ = TIMES[op, one, two]
    else:
        return None
    return folded(Call(op, (left, right), type_, position))


def negative(of: Expression, position: int) -> Expression | None:
    if of.type not in NEGATIVE:
        return None
    return folded(Call("-", (of,), "float" if of.type == "decimal" else of.type, position))


def _rounded(value: float) -> float | None:
    """Halves go away from zero."""
    if not math.isfinite(value):
        return None
    near = math.floor(abs(value))
    return math.copysign(near + 1 if abs(value) - near >= 0.5 else near, value) + 0.0


def _to_int(value: Any) -> int | None:
    """Of a text that is a whole number its value, and NULL of any other."""
    if isinstance(value, str):
        return whole(int(value)) if _INTEGER.fullmatch(value) else None
    if isinstance(value, float):
        return whole(int(value)) if value.is_integer() else None
    return whole(int(value)) if isinstance(value, int) else None


def _to_bool(value: Any) -> bool | None:
    """0 is false, and any other number true; of texts, true and false in any case, and NULL for any other."""
    if isinstance(value, str):
        return {"true": True, "false": False}.get(value.lower())
    return bool(value) if isinstance(value, (int, float)) else None


def _to_string(value: Any) -> str | None:
    """true and false, digits, or 2026-01-31T12:00:00Z."""
    if isinstance(value, datetime):
        return f"{value.astimezone(UTC).replace(tzinfo=None).isoformat()}Z"
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, (int, str)) else None


CASTS = {"INT": "int", "BOOL": "bool", "STRING": "string"}
FUNCTIONS: dict[str, tuple[tuple[tuple[str, ...], ...], int, str, Callable[..., Any]]] = {
    "ABS": ((NUMBERS,), 1, "same", lambda a: abs(a) if type(a) is int else finite(abs(float(a)))),
    "ROUND": ((NUMBERS,), 1, "same", lambda a: a if type(a) is int else _rounded(float(a))),
    "FLOOR": ((NUMBERS,), 1, "same", lambda a: a if type(a) is int else _whole_double(math.floor, a)),
    "CEIL": ((NUMBERS,), 1, "same", lambda a: a if type(a) is int else _whole_double(math.ceil, a)),
    "LOWER": ((("string",),), 1, "string", lower),
    "UPPER": ((("string",),), 1, "string", upper),
    "LENGTH": ((("string", "any"),), 1, "int", lambda a: len(a) if isinstance(a, (str, list)) else None),
    # "number" and "any" are the types of attributes that no schema declares
    "INT": ((("string", "int", "bool", "number", "any"),), 1, "int", _to_int),
    "BOOL": ((("bool", "int", "string", "number", "any"),), 1, "bool", _to_bool),
    "STRING": ((("string", "int", "bool", "timestamp", "number", "any"),), 1, "string", _to_string),
    "HOUR": ((("timestamp",), ("string",)), 1, "int", hour),
    "DAY_OF_WEEK": ((("timestamp",), ("string",)), 1, "int", day_of_week),
    "DISTANCE": ((NUMBERS,) * 4, 4, "float", lambda *at: distance(*map(float, at))),
}
"""By name: the types that each argument may have, how many are needed, the type of the result, and the function."""


def _whole_double(of: Callable[[float], int], value: Any) -> float | None:
    return float(of(value)) if math.isfinite(value) else None


def call(name: str, arguments: tuple[Expression, ...], position: int) -> Expression:
    """A function of FUNCTIONS; its arguments have been checked."""
    type_ = FUNCTIONS[name][2]
    if CASTS.get(name) == arguments[0].type:
        return arguments[0]
    if type_ == "same":
        type_ = arguments[0].type if arguments[0].type in ("int", "number") else "float"
    return folded(Call(name, arguments, type_, position))


def folded(made: Call) -> Expression:
    """A function of literals is a literal, unless it is NULL."""
    if not all(isinstance(child, Constant) for child in made.children):
        return made
    found = made.apply(*(child.plain for child in made.children if isinstance(child, Constant)))
    if found is None:
        return made
    value: Literal = Decimal(repr(found)) if isinstance(found, float) else found
    if isinstance(value, Decimal) and not value:
        value = Decimal("0.0")
    return Constant(value, LITERAL_TYPES[type(value)], made.position)


def as_times(of: Expression) -> Expression:
    """`a - b` of attributes that are not declared is a length of time where it stands beside one."""
    if not (isinstance(of, Call) and of.name == "-" and of.type == "number" and len(of.children) == 2):
        return of
    if not all(isinstance(one, Field) and one.number < 0 for one in of.children):
        return of
    left, right = (replace(one, type="timestamp") for one in of.children if isinstance(one, Field))
    return Call("-", (left, right), "duration", of.position)
