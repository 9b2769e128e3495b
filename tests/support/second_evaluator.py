"""A second evaluator of the predicate language, written from its description alone.

It shares no code and no idea with `hitbox.language`: no keys, boxes or dictionary. A predicate is a tree, an event is
a mapping of plain values, numbers are `Fraction`s, timestamps are whole microseconds, and LIKE is dynamic programming.
It is slow, and short enough to be checked by reading. It imports nothing from hitbox; a test holds that.

    node = parse("price > 3 AND city LIKE 'P%'", {"price": "float", "city": "string"})
    answers(node, {"price": "float", "city": "string"}, {"price": Fraction(4), "city": "Paris"})   # {True}

The value of an attribute is, by type:

    int        int                  timestamp  int, microseconds since 1970 in UTC
    float      Fraction, or a float infinity   (`number` makes it from a float)
    string     str                  bool       bool
    any        Interval(low, high) of two such values; an attribute that is missing is absent, one that is null is None
    list       a list of such values; of objects, a list of mappings. The type is string[], or {field: type}.

Conditions of one attribute and literals have a class each. All others are a `Judge` of expressions, an `Each` over a
list, or a `Xor`. Double arithmetic is done with fractions and rounded once.
"""

from __future__ import annotations

import itertools
import math
import operator
import re
import socket
import zoneinfo
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone
from fractions import Fraction
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

Value = Any
Truth = bool | None

COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
MIRRORED = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


class Rejected(Exception):
    """The text is not a predicate over this schema."""


@dataclass(frozen=True)
class Interval:
    low: Value
    high: Value


@dataclass(frozen=True)
class Grid:
    """A declared domain and precision: which literals may be written."""

    low: Fraction
    high: Fraction
    step: Fraction


# --- the tree ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Literal:
    """`kind` is integer, decimal, string, bool or timestamp. Numbers are exact; `text` is how it was written."""

    kind: str
    value: Value
    text: str = field(compare=False)

    def against(self, type_: str) -> Value:
        """What an attribute of this type is compared with."""
        if type_ == "float" and self.kind == "decimal":
            return Fraction(float(self.value))  # a decimal literal means its nearest double
        return self.value


@dataclass(frozen=True)
class Constant:
    value: bool


@dataclass(frozen=True)
class Compare:
    name: str
    sign: str
    literal: Literal


@dataclass(frozen=True)
class Between:
    name: str
    low: Literal
    high: Literal
    negated: bool = False


@dataclass(frozen=True)
class In:
    name: str
    literals: tuple[Literal, ...]
    negated: bool = False


@dataclass(frozen=True)
class Like:
    name: str
    pattern: str
    escape: str | None = None
    negated: bool = False


@dataclass(frozen=True)
class IsNull:
    name: str
    negated: bool = False


@dataclass(frozen=True)
class Not:
    part: Node


@dataclass(frozen=True)
class And:
    parts: tuple[Node, ...]


@dataclass(frozen=True)
class Or:
    parts: tuple[Node, ...]


@dataclass(frozen=True)
class Xor:
    parts: tuple[Node, ...]


@dataclass(frozen=True)
class Expr:
    """A value. `kind`: literal, attribute, old, field, element, length, now, condition, or a function or operator.
    Of names, `parts` are the name and, for fields and elements, how many lists are around."""

    type: Any
    kind: str
    parts: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Judge:
    """A test of values. `test` is a sign, BETWEEN, IN, LIKE, ILIKE, REGEXP, NETWORK, INSIDE, NULL or MISSING."""

    test: str
    parts: tuple[Expr, ...]
    words: tuple[str | None, ...] = ()
    negated: bool = False


@dataclass(frozen=True)
class Each:
    """`kind` is ANY, ALL or EXISTS; `path` leads to the list; `body` is asked of each of its elements."""

    kind: str
    path: tuple[str, ...]
    origin: str | int
    body: Node


Node = Constant | Compare | Between | In | Like | IsNull | Not | And | Or | Xor | Judge | Each


def flat(node: Node) -> Node:
    """The same tree without an AND directly in an AND, or an OR in an OR."""
    if isinstance(node, Not):
        return Not(flat(node.part))
    if isinstance(node, And | Or | Xor):
        kind = type(node)
        parts = [flat(part) for part in node.parts]
        return kind(tuple(one for part in parts for one in (part.parts if isinstance(part, kind) else (part,))))
    return node


def atoms(node: Node) -> Iterator[Node]:
    """The leaves of a tree."""
    if isinstance(node, Not):
        yield from atoms(node.part)
    elif isinstance(node, And | Or):
        for part in node.parts:
            yield from atoms(part)
    else:
        yield node


def named(node: Any) -> set[str]:
    """The attributes of the event that a tree names."""
    if isinstance(node, Each):
        own = {node.path[0]} if node.origin == "new" else set()
        return own | named(node.body)
    if isinstance(node, Expr) and node.kind in ("attribute", "length"):
        return {node.parts[0]} if node.kind == "attribute" else {node.parts[0][0]}
    if isinstance(node, Not):
        return named(node.part)
    if isinstance(node, And | Or | Xor | Judge | Expr):
        return {name for part in node.parts if isinstance(part, Expr | Node) for name in named(part)}
    return set() if isinstance(node, Constant | Literal) else {node.name}


def literals(node: Node) -> Iterator[tuple[str, Literal]]:
    """(attribute, literal) of every comparison."""
    for atom in atoms(node):
        if isinstance(atom, Compare):
            yield atom.name, atom.literal
        elif isinstance(atom, Between):
            yield from ((atom.name, atom.low), (atom.name, atom.high))
        elif isinstance(atom, In):
            yield from ((atom.name, literal) for literal in atom.literals)


# --- values -----------------------------------------------------------------------------------------------------------


def number(value: float) -> Value:
    """The exact number of a double; an infinity stays what it is. NaN has none: it is missing."""
    return value if math.isinf(value) else Fraction(value)


def days_from_1970(year: int, month: int, day: int) -> int:
    """Days in the Gregorian calendar, counted by hand."""
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    lengths = [31, 29 if leap else 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]
    if not (1 <= year <= 9999 and 1 <= month <= 12 and 1 <= day <= lengths[month - 1]):
        raise Rejected("no such day")
    before = year - 1
    return before * 365 + before // 4 - before // 100 + before // 400 + sum(lengths[: month - 1]) + day - 719163


FIRST_MOMENT = days_from_1970(1, 1, 1) * 86_400_000_000
LAST_MOMENT = days_from_1970(9999, 12, 31) * 86_400_000_000 + 86_399_999_999
MOMENT = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)(?:[ T](\d\d):(\d\d)(?::(\d\d)(?:\.(\d{1,6}))?)?(Z|[+-]\d\d:\d\d)?)?", re.ASCII
)


def moment(text: str) -> int:
    """The microseconds of a timestamp literal: UTC unless it names a zone; a date alone is midnight."""
    found = MOMENT.fullmatch(text)
    if not found:
        raise Rejected("no timestamp")
    year, month, day, hour, minute, second, fraction, zone = found.groups()
    days = days_from_1970(int(year), int(month), int(day))
    hours, minutes, seconds = int(hour or 0), int(minute or 0), int(second or 0)
    if hours > 23 or minutes > 59 or seconds > 59:
        raise Rejected("no such time of day")
    micros = (
        ((days * 24 + hours) * 60 + minutes) * 60_000_000 + seconds * 1_000_000 + int((fraction or "").ljust(6, "0"))
    )
    if zone and zone != "Z":
        ahead, past = int(zone[1:3]), int(zone[4:6])
        if ahead > 23 or past > 59:
            raise Rejected("no such zone")
        micros -= (ahead * 60 + past) * 60_000_000 * (-1 if zone[0] == "-" else 1)
    if not FIRST_MOMENT <= micros <= LAST_MOMENT:
        raise Rejected("outside the years 1 to 9999")
    return micros


# --- LIKE -------------------------------------------------------------------------------------------------------------


def pattern_parts(pattern: str, escape: str | None) -> list[tuple[str, str]]:
    """('many', '%'), ('one', '_') or ('literal', character), one after the other."""
    parts = []
    letters = iter(pattern)
    for letter in letters:
        if letter == escape:
            literal = next(letters, None)
            if literal is None:
                raise Rejected("the pattern ends with its escape character")
            parts.append(("literal", literal))
        else:
            parts.append(({"%": "many", "_": "one"}.get(letter, "literal"), letter))
    return parts


def like(text: str, pattern: str, escape: str | None) -> bool:
    """Which prefixes of the text the pattern read so far can be: `reached[i]` stands for the first i characters."""
    reached = [True] + [False] * len(text)
    for kind, letter in pattern_parts(pattern, escape):
        if kind == "many":
            reached = list(itertools.accumulate(reached, operator.or_))
        else:
            fits = (kind == "one" or letter == read for read in text)
            reached = [False, *(before and fit for before, fit in zip(reached, fits, strict=False))]
    return reached[-1]


def literal_prefix(like_: Like) -> str:
    """The characters before the first % or _."""
    parts = pattern_parts(like_.pattern, like_.escape)
    return "".join(letter for _, letter in itertools.takewhile(lambda part: part[0] == "literal", parts))


def is_range(like_: Like) -> bool:
    """Whether a range of strings says the same: no % or _, or one % at the end (any number of them)."""
    rest = pattern_parts(like_.pattern, like_.escape)[len(literal_prefix(like_)) :]
    return all(kind == "many" for kind, _ in rest)


# --- truth ------------------------------------------------------------------------------------------------------------


def atom_truth(atom: Node, types: Mapping[str, str], event: Mapping[str, Value]) -> Truth:
    """TRUE, FALSE or NULL of one leaf at one point."""
    if isinstance(atom, Constant):
        return atom.value
    if isinstance(atom, Judge):
        return judge_truth(atom, types, World(event))
    if isinstance(atom, Each):
        return each_truth(atom, types, World(event))
    assert not isinstance(atom, Not | And | Or | Xor)
    if isinstance(atom, IsNull):
        return (event.get(atom.name) is None) != atom.negated
    if event.get(atom.name) is None:
        return None
    value, type_ = event[atom.name], types[atom.name]
    if isinstance(atom, Compare):
        return COMPARISONS[atom.sign](value, atom.literal.against(type_))
    if isinstance(atom, Between):
        return (atom.low.against(type_) <= value <= atom.high.against(type_)) != atom.negated
    if isinstance(atom, In):
        return any(value == literal.against(type_) for literal in atom.literals) != atom.negated
    return like(value, atom.pattern, atom.escape) != atom.negated


def truth(node: Node, types: Mapping[str, str], event: Mapping[str, Value]) -> Truth:
    """Kleene's logic over a tree at one point: no value of the event is an interval."""
    if isinstance(node, Not):
        of_part = truth(node.part, types, event)
        return None if of_part is None else not of_part
    if isinstance(node, Judge):
        return judge_truth(node, types, event if isinstance(event, World) else World(event))
    if isinstance(node, Each):
        return each_truth(node, types, event if isinstance(event, World) else World(event))
    if isinstance(node, Xor):
        of_all = [truth(part, types, event) for part in node.parts]
        return None if None in of_all else of_all.count(True) % 2 == 1
    if isinstance(node, And | Or):
        decisive = isinstance(node, Or)  # one TRUE decides an OR, one FALSE an AND
        of_parts = [truth(part, types, event) for part in node.parts]
        if decisive in of_parts:
            return decisive
        return None if None in of_parts else not decisive
    return atom_truth(node, types, event)


def possible_truths(node: Node, types: Mapping[str, str], event: Mapping[str, Value], wide: set[str]) -> set[Truth]:
    """As `truth`, but a LIKE that no range can say may be either where the value is wide and its prefix occurs."""
    if isinstance(node, Not):
        return {None if t is None else not t for t in possible_truths(node.part, types, event, wide)}
    if isinstance(node, And | Or):
        decisive = isinstance(node, Or)
        of_parts = [possible_truths(part, types, event, wide) for part in node.parts]
        answers_: set[Truth] = set()
        if any(decisive in of_part for of_part in of_parts):
            answers_.add(decisive)
        if all((not decisive) in of_part for of_part in of_parts):
            answers_.add(not decisive)
        undecided = [of_part - {decisive} for of_part in of_parts]
        if all(undecided) and any(None in of_part for of_part in undecided):
            answers_.add(None)
        return answers_
    if isinstance(node, Judge | Each | Xor) and named(node) & wide:
        return {True, False, None}
    if isinstance(node, Xor):
        return {truth(node, types, event)}
    if isinstance(node, Like) and node.name in wide and not is_range(node):
        return {True, False} if event[node.name].startswith(literal_prefix(node)) else {node.negated}
    return {atom_truth(node, types, event)}


def answers(node: Node, types: Mapping[str, str], event: Mapping[str, Value]) -> set[bool]:
    """The answers that are right: one, or both where the description leaves it open.

    An event with intervals matches if some point of its box makes the predicate TRUE. Truth changes at literals only,
    so it is enough to look at the points next to them. The description lets a LIKE that no range can say hold of a wide
    string interval wherever its literal prefix may occur; whether more than that is checked is open.
    """
    wide = {name for name, value in event.items() if isinstance(value, Interval)}
    if not wide:
        try:
            return {truth(node, types, event) is True}
        except Unsure:
            return {True, False}
    mentioned = named(node)
    choices = {
        name: candidates(node, name, types[name], value)
        for name, value in event.items()
        if name in wide and name in mentioned
    }
    fixed = {name: value for name, value in event.items() if name not in choices}
    really_wide = {name for name in choices if event[name].low != event[name].high}
    open_ = any(isinstance(atom, Like) and atom.name in really_wide and not is_range(atom) for atom in atoms(node))
    open_ |= any(isinstance(atom, Judge | Each | Xor) and named(atom) & really_wide for atom in atoms(node))
    may_hold = False
    for chosen in itertools.product(*choices.values()):
        point = fixed | dict(zip(choices, chosen, strict=True))
        if truth(node, types, point) is True:
            return {True}
        may_hold = may_hold or (open_ and True in possible_truths(node, types, point, really_wide))
    return {True, False} if may_hold else {False}


def points_to_try(node: Node, types: Mapping[str, str], event: Mapping[str, Value]) -> int:
    """How many points `answers` looks at in the worst case."""
    mentioned = named(node)
    wide = [name for name, value in event.items() if isinstance(value, Interval) and name in mentioned]
    return math.prod(len(candidates(node, name, types[name], event[name])) for name in wide)


def candidates(node: Node, name: str, type_: str, interval: Interval) -> Collection[Value]:
    """Points of the interval such that every truth that the tree takes on it is taken at one of them."""
    borders = [literal.against(type_) for of, literal in literals(node) if of == name]
    if type_ == "string":
        return string_candidates(node, name, borders, interval)
    near: set[Value] = {interval.low, interval.high}
    for border in borders:
        if type_ in ("int", "timestamp"):
            near.update({math.floor(border) - 1, math.floor(border), math.ceil(border), math.ceil(border) + 1})
        elif type_ == "float":
            near.update(doubles_around(border))
        else:
            near.update({False, True})
    return {value for value in near if interval.low <= value <= interval.high}


def doubles_around(border: Value) -> Iterator[Value]:
    nearest = float(border)
    for value in (math.nextafter(nearest, -math.inf), nearest, math.nextafter(nearest, math.inf)):
        yield number(value)


def string_candidates(node: Node, name: str, borders: list[str], interval: Interval) -> Collection[str]:
    """The borders, and the string just above each: NUL is in no literal, so something lies between any two of them."""
    patterns = [atom for atom in atoms(node) if isinstance(atom, Like) and atom.name == name]
    near = {interval.low, interval.high, *borders}
    for atom in patterns:
        prefix = literal_prefix(atom)
        near.update({prefix, *([after_prefix(prefix)] if after_prefix(prefix) else [])})
        for many in ("", "a", interval.low[len(prefix) :]):
            fill = {"many": many, "one": "a"}
            near.add("".join(fill.get(kind, letter) for kind, letter in pattern_parts(atom.pattern, atom.escape)))
    return {
        value for border in near for value in (border, border + "\0") if interval.low <= value <= interval.high
    }  # fmt: skip


def after_prefix(prefix: str) -> str:
    """The smallest string above all that start with the prefix; empty if there is none."""
    stem = prefix.rstrip("\U0010ffff")
    return stem[:-1] + chr(ord(stem[-1]) + 1) if stem else ""


# --- expressions ------------------------------------------------------------------------------------------------------


class Unsure(Exception):
    """Two distances are too near to each other for two ways to compute them."""


class World(dict[str, Value]):
    """An event, its old image, the time, and the elements of the lists around."""

    def __init__(self, event: Mapping[str, Value], old: Mapping[str, Value] | None = None, now: int = 0):
        super().__init__(event)
        self.old: Mapping[str, Value] = old or {}
        self.now, self.around = now, ()

    def inside(self, element: Value) -> World:
        world = World(self, self.old, self.now)
        world.around = (*self.around, element)
        return world


GONE = object()


def look(expr: Expr, world: World) -> Value:
    """The value of a name: GONE where it is missing, None where it is null."""
    if expr.kind == "attribute":
        return world.get(expr.parts[0], GONE)
    if expr.kind == "old":
        return world.old.get(expr.parts[0], GONE)
    element = world.around[expr.parts[1] - 1]
    return GONE if element is None else element.get(expr.parts[0], GONE)


def elements(path: tuple[str, ...], origin: str | int, world: World) -> list[Value] | None:
    if isinstance(origin, int):
        source = world.around[origin - 1] or {}
    else:
        source = world.old if origin == "old" else world
    items = source.get(path[0])
    for step in path[1:]:
        below: list[Value] = []
        for item in items or []:
            value = item.get(step) if item is not None else None
            below.extend(value if isinstance(value, list) else [value])
        items = None if items is None else below
    return items


def each_truth(each: Each, types: Mapping[str, Any], world: World) -> Truth:
    items = elements(each.path, each.origin, world)
    if items is None:
        return None
    found = [truth(each.body, types, world.inside(item)) for item in items]
    decisive = each.kind != "ALL"
    return decisive if decisive in found else None if None in found else not decisive


def double(exact: Value) -> Value:
    """The double nearest to a number, as a fraction; None where there is none."""
    if isinstance(exact, float):
        return None
    try:
        return Fraction(float(exact))
    except OverflowError:
        return None


def compute(expr: Expr, types: Mapping[str, Any], world: World) -> Value:
    kind, parts = expr.kind, expr.parts
    if kind == "literal":
        return parts[0].value if expr.type != "float" else Fraction(float(parts[0].value))
    if kind in ("attribute", "old", "field"):
        found = look(expr, world)
        return None if found is GONE else found
    if kind == "element":
        return world.around[parts[1] - 1]
    if kind == "length":
        items = elements(*parts, world)
        return None if items is None else len(items)
    if kind == "now":
        return world.now
    if kind == "condition":
        return truth(parts[0], types, world)
    values = [compute(part, types, world) for part in parts]
    return None if None in values else function(kind, expr.type, [part.type for part in parts], values)


def function(name: str, type_: str, given: list[str], values: list[Value]) -> Value:
    if name in ("LOWER", "UPPER"):
        of = pc.utf8_lower if name == "LOWER" else pc.utf8_upper
        return "".join(of(pa.scalar(letter)).as_py() if letter != "ß" else letter for letter in values[0])
    if name == "LENGTH":
        return len(values[0])
    if name in ("INT", "BOOL", "STRING"):
        return cast(name, given[0], values[0])
    if name in ("HOUR", "DAY_OF_WEEK"):
        return calendar(name, *values)
    if name == "DISTANCE":
        return great_circle(*(double(value) for value in values))
    if type_ in ("timestamp", "interval"):
        made = values[0] * values[1] if name == "*" else values[0] + values[1] if name == "+" else None
        if made is None:
            made = values[0] - values[1] if len(values) == 2 else -values[0]
        low, high = (FIRST_MOMENT, LAST_MOMENT) if type_ == "timestamp" else (-(10**9) * DAY, 10**9 * DAY - 1)
        return made if low <= made <= high else None
    if type_ == "int":
        made = whole_function(name, values)
        return made if made is not None and -(2**63) < made < 2**63 else None
    values = [double(value) for value in values]
    if None in values:
        return None
    made = fraction_function(name, values)
    return None if made is None else double(made)


def cast(name: str, given: str, value: Value) -> Value:
    if name == "STRING":
        if given == "timestamp":
            at = datetime(1970, 1, 1) + timedelta(microseconds=value)
            return f"{at.year:04}-{at:%m-%dT%H:%M:%S}" + (f".{at:%f}Z" if at.microsecond else "Z")
        return ("false", "true")[value] if given == "bool" else f"{value:d}"
    if name == "BOOL":
        return value != 0 if given == "int" else {"true": True, "false": False}.get(value.lower())
    if given == "bool":
        return 1 if value else 0
    if not re.match(r"^[-+]?[0123456789]{1,40}\Z", value):
        return None
    return int(value) if -(2**63) < int(value) < 2**63 else None


def whole_function(name: str, values: list[int]) -> int | None:
    if len(values) == 1:
        return {"-": -values[0], "ABS": abs(values[0])}.get(name, values[0])
    a, b = values
    if name in "/%" and b == 0:
        return None
    quotient = math.trunc(Fraction(a, b)) if b else 0
    return {"+": a + b, "-": a - b, "*": a * b, "/": quotient, "%": a - b * quotient}[name]


def fraction_function(name: str, values: list[Fraction]) -> Fraction | None:
    if len(values) == 1:
        a = values[0]
        half = math.floor(abs(a) + Fraction(1, 2)) * (-1 if a < 0 else 1)
        return Fraction({"-": -a, "ABS": abs(a), "ROUND": half, "FLOOR": math.floor(a), "CEIL": math.ceil(a)}[name])
    a, b = values
    if name in "/%" and b == 0:
        return None
    if name == "/":
        return a / b
    if name == "%":
        return a - b * math.trunc(a / b)
    return {"+": a + b, "-": a - b, "*": a * b}[name]


DAY = 86_400_000_000


def calendar(name: str, micros: int, zone: str = "UTC") -> int | None:
    local = micros + offset_of(zone, micros)
    if not FIRST_MOMENT <= local <= LAST_MOMENT:
        return None
    days, rest = divmod(local, DAY)
    return rest // 3_600_000_000 if name == "HOUR" else (days + 3) % 7 + 1  # 1970 began on a Thursday


def offset_of(zone: str, micros: int) -> int:
    if re.fullmatch(r"[+-]\d\d:\d\d", zone):
        return (int(zone[1:3]) * 60 + int(zone[4:6])) * 60_000_000 * (-1 if zone[0] == "-" else 1)
    moment_ = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(
        microseconds=min(max(micros, FIRST_MOMENT + DAY), LAST_MOMENT - DAY)
    )
    ahead = moment_.astimezone(zoneinfo.ZoneInfo(zone)).utcoffset()
    return (ahead or timedelta()) // timedelta(microseconds=1)


def on_sphere(lat: Fraction, lon: Fraction) -> tuple[float, float, float]:
    a, b = math.radians(lat), math.radians(lon)
    return math.cos(a) * math.cos(b), math.cos(a) * math.sin(b), math.sin(a)


def great_circle(lat: Value, lon: Value, lat2: Value, lon2: Value) -> Value:
    if None in (lat, lon, lat2, lon2) or not all(is_place(*at) for at in ((lat, lon), (lat2, lon2))):
        return None
    a, b = on_sphere(lat, lon), on_sphere(lat2, lon2)
    cross = (a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0])
    angle = math.atan2(math.hypot(*cross), sum(x * y for x, y in zip(a, b, strict=True)))
    return Fraction(6371008.8 * angle)


def is_place(lat: Fraction, lon: Fraction) -> bool:
    return abs(lat) <= 90 and abs(lon) <= 180


# --- judging ----------------------------------------------------------------------------------------------------------


def judge_truth(judge: Judge, types: Mapping[str, Any], world: World) -> Truth:
    if judge.test == "MISSING":
        return (look(judge.parts[0], world) is GONE) != judge.negated
    values = [compute(part, types, world) for part in judge.parts]
    if judge.test == "NULL":
        return (values[0] is None) != judge.negated
    if judge.test == "BETWEEN":
        sides = [None if None in two else two[0] <= two[1] for two in ((values[1], values[0]), (values[0], values[2]))]
        plain = False if False in sides else None if None in sides else True
    elif None in values:
        plain = None
    else:
        plain = plain_truth(judge, values)
    return None if plain is None else plain != judge.negated


def plain_truth(judge: Judge, values: list[Value]) -> Truth:
    if judge.test in COMPARISONS:
        if any(has_distance(part) for part in judge.parts) and abs(values[0] - values[1]) < Fraction(1, 1000):
            raise Unsure
        return COMPARISONS[judge.test](values[0], values[1])
    if judge.test == "IN":
        return any(values[0] == other for other in values[1:])
    if judge.test == "LIKE":
        return like(values[0], judge.words[0] or "", judge.words[1])
    if judge.test == "ILIKE":
        return ilike(values[0], judge.words[0] or "", judge.words[1])
    if judge.test == "REGEXP":
        return re.search(judge.words[0] or "", values[0]) is not None
    if judge.test == "NETWORK":
        found = address_bits(values[0])
        network, size = network_bits(judge.words[0] or "")
        return None if found is None else found[:size] == network[:size]
    return polygon_holds(judge.words[0] or "", *values)


def has_distance(expr: Expr) -> bool:
    return expr.kind == "DISTANCE" or any(isinstance(part, Expr) and has_distance(part) for part in expr.parts)


def ilike(text: str, pattern: str, escape: str | None) -> bool:
    small = function("LOWER", "string", ["string"], [text])
    reached = [True] + [False] * len(small)
    for kind, letter in pattern_parts(pattern, escape):
        if kind == "many":
            reached = list(itertools.accumulate(reached, operator.or_))
        else:
            wanted = function("LOWER", "string", ["string"], [letter])
            fits = (kind == "one" or wanted == read for read in small)
            reached = [False, *(before and fit for before, fit in zip(reached, fits, strict=False))]
    return reached[-1]


def address_bits(text: str) -> str | None:
    """128 characters of 0 and 1."""
    try:
        if ":" in text:
            raw = socket.inet_pton(socket.AF_INET6, text)
        else:
            raw = bytes(10) + b"\xff\xff" + socket.inet_pton(socket.AF_INET, text)
    except (OSError, ValueError):
        return None
    return "".join(f"{byte:08b}" for byte in raw)


def network_bits(text: str) -> tuple[str, int]:
    address, slash, size = text.partition("/")
    bits = address_bits(address)
    most = 128 if ":" in address else 32
    if bits is None or (slash and not re.fullmatch(r"[0-9]{1,3}", size)) or int(size or most) > most:
        raise Rejected("no network")
    length = int(size or most) + 128 - most
    if "1" in bits[length:]:
        raise Rejected("bits beyond the network's")
    return bits, length


def rings_of(text: str) -> list[list[list[tuple[Fraction, Fraction]]]]:
    """The polygons of a WKT text: each a list of rings."""
    head = re.fullmatch(r"\s*(MULTIPOLYGON|POLYGON)\s*(EMPTY|\(.*\))\s*", text, re.IGNORECASE | re.DOTALL)
    if not head:
        raise Rejected("no polygon")
    if head[2].upper() == "EMPTY":
        return []
    body = head[2] if head[1].upper() == "MULTIPOLYGON" else f"({head[2]})"
    number = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
    point = rf"\s*{number}\s+{number}\s*"
    ring = rf"\s*\({point}(?:,{point})*\)\s*"
    polygon = rf"\s*\({ring}(?:,{ring})*\)\s*"
    if not re.fullmatch(rf"\s*\({polygon}(?:,{polygon})*\)\s*", body):
        raise Rejected("no polygon")
    found = []
    for one in re.findall(polygon, body[body.index("(") + 1 :]):
        rings = []
        for line in re.findall(ring, one[one.index("(") + 1 :]):
            points = [tuple(Fraction(float(n)) for n in pair.split()) for pair in line.strip().strip("()").split(",")]
            if len(points) < 4 or points[0] != points[-1]:
                raise Rejected("an open ring")
            if any(abs(y) > 90 or abs(x) > 540 for x, y in points):
                raise Rejected("a point nowhere")
            rings.append(points)
        found.append(rings)
    return found


def ring_place(ring: list[tuple[Fraction, Fraction]], x: Fraction, y: Fraction) -> str:
    crossings = 0
    for (ax, ay), (bx, by) in itertools.pairwise(ring):
        cross = (bx - ax) * (y - ay) - (by - ay) * (x - ax)
        if cross == 0 and min(ax, bx) <= x <= max(ax, bx) and min(ay, by) <= y <= max(ay, by):
            return "on"
        if min(ay, by) <= y < max(ay, by) and ax + (y - ay) * (bx - ax) / (by - ay) > x:
            crossings += 1
    return "in" if crossings % 2 else "out"


def polygon_holds(text: str, lat: Value, lon: Value) -> Truth:
    lat, lon = double(lat), double(lon)
    if lat is None or lon is None or not is_place(lat, lon):
        return None
    polygons = rings_of(text)
    beyond = any(abs(x) > 180 for rings in polygons for x, _ in rings[0])
    for shift in (0, 360, -360) if beyond else (0,):
        x = Fraction(float(lon) + shift)
        for shell, *holes in polygons:
            outer, inner = ring_place(shell, x, lat), [ring_place(hole, x, lat) for hole in holes]
            if (
                outer == "on"
                or (outer == "in" and "in" not in inner)
                or (outer == "in" and "on" in inner and "in" not in inner)
            ):
                return True
    return False


# --- text -------------------------------------------------------------------------------------------------------------

KEYWORDS = {"AND", "OR", "NOT", "BETWEEN", "IN", "LIKE", "ESCAPE", "IS", "NULL", "TRUE", "FALSE"}
TOKEN = re.compile(
    r"""(?P<space>[ \t\r\n]+)
      | (?P<string>'(?:[^']|'')*')
      | (?P<quoted>"(?:[^"]|"")*")
      | (?P<number>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)(?![\w.])
      | (?P<name>[^\W\d]\w*)
      | (?P<sign><=|>=|<>|!=|=(?!=)|<|>)
      | (?P<mark>[(),+*%]|\.(?![0-9])|-(?!-)|/(?!\*))""",
    re.VERBOSE,
)
INT64 = range(-(2**63), 2**63)
LARGEST_INFINITE = Fraction(2) ** 1024 - Fraction(2) ** 970  # from here on the nearest double is an infinity


NUMBERS = ("int", "float", "decimal")


class NoList(Rejected):
    """What comes next is no path to a list."""


def typed(of: Any) -> Any:
    return of if isinstance(of, str) else "object[]"


def check_zone(name: str) -> None:
    if re.fullmatch(r"[+-]\d\d:\d\d", name, re.ASCII):
        timezone(timedelta(hours=int(name[1:3]), minutes=int(name[4:6])))
        if int(name[4:6]) > 59:
            raise Rejected("no such offset")
    else:
        zoneinfo.ZoneInfo(name)


UNITS = {"week": 7 * 86_400_000_000, "day": 86_400_000_000, "hour": 3_600_000_000, "minute": 60_000_000}
UNITS |= {"second": 1_000_000, "millisecond": 1000, "microsecond": 1}


def length_of(text: str) -> int:
    """The microseconds of an INTERVAL."""
    part = r"\s*[+-]?\s*[0-9]{1,20}(?:\.[0-9]{1,20})?\s+[A-Za-z]+\s*"
    if not re.fullmatch(f"(?:{part})+", text):
        raise Rejected("no interval")
    total = Fraction(0)
    for sign, count, unit in re.findall(r"([+-]?)\s*([0-9.]+)\s+([A-Za-z]+)", text):
        if unit.lower().removesuffix("s") not in UNITS:
            raise Rejected("no unit")
        total += Fraction(sign + count) * UNITS[unit.lower().removesuffix("s")]
    if total.denominator != 1 or not -(10**9) * 86_400_000_000 <= total < 10**9 * 86_400_000_000:
        raise Rejected("too fine or too long")
    return int(total)


@dataclass
class Parser:
    types: Mapping[str, str]
    grids: Mapping[str, Grid]
    tokens: list[tuple[str, str]]
    at: int = 0
    scopes: list[Mapping[str, Any]] = field(default_factory=list)

    def peek(self, *texts: str) -> bool:
        """Whether one of these keywords or signs comes next."""
        kind, text = self.tokens[self.at]
        if kind == "name":
            return text.upper() in texts and text.upper() in KEYWORDS
        return kind in ("sign", "mark") and text in texts

    def take(self, *texts: str) -> bool:
        found = self.peek(*texts)
        self.at += found
        return found

    def expect(self, text: str) -> None:
        if not self.take(text):
            raise Rejected(f"expected {text}, found {self.tokens[self.at]}")

    def word(self, *texts: str) -> bool:
        """Whether one of these words, which are no keywords, comes next."""
        kind, text = self.tokens[self.at]
        found = kind == "name" and text.upper() in texts
        self.at += found
        return found

    # logic: each of these returns a node, or an Expr if there is one operand only

    def disjunction(self) -> Any:
        return self.joined(lambda: self.take("OR"), self.exclusive, Or)

    def exclusive(self) -> Any:
        return self.joined(lambda: self.word("XOR"), self.conjunction, Xor)

    def conjunction(self) -> Any:
        return self.joined(lambda: self.take("AND"), self.negation, And)

    def joined(self, more: Callable[[], bool], part: Callable[[], Any], kind: Any) -> Any:
        first = part()
        parts = [first]
        while more():
            parts.append(part())
        return first if len(parts) == 1 else kind(tuple(map(self.condition_of, parts)))

    def negation(self) -> Any:
        if self.take("NOT"):
            return Not(self.condition_of(self.negation()))
        return self.condition()

    def condition_of(self, found: Any) -> Node:
        if not isinstance(found, Expr):
            return found
        if found.kind == "condition":
            return found.parts[0]
        if found.kind == "literal" and found.type == "bool":
            return Constant(found.parts[0].value)
        if found.type != "bool":
            raise Rejected("a value alone")
        return self.judged("=", found, (Expr("bool", "literal", (Literal("bool", True, "TRUE"),)),))

    def condition(self) -> Any:
        left = self.sum()
        sign = self.sign()
        if sign:
            right = self.value_of(self.sum())
            left = self.value_of(left)
            if self.tokens[self.at][0] == "sign":
                raise Rejected("comparisons do not chain")
            if right.kind == "element" or (
                left.kind == "literal" and right.kind != "literal" and left.kind != "element"
            ):
                left, sign, right = right, MIRRORED[sign], left
            return self.judged(sign, left, (right,))
        if self.take("IS"):
            negated = self.take("NOT")
            left = self.value_of(left)
            if self.word("MISSING"):
                if left.kind not in ("attribute", "old", "field"):
                    raise Rejected("only an attribute can be missing")
                return Judge("MISSING", (left,), (), negated)
            self.expect("NULL")
            if left.kind == "attribute":
                return IsNull(left.parts[0], negated)
            return self.judged("NULL", left, (), (), negated)
        start, negated = self.at, self.take("NOT")
        for test in ("BETWEEN", "IN", "LIKE", "ILIKE", "REGEXP"):
            if self.take(test) if test in KEYWORDS else self.word(test):
                return self.tested(test, self.value_of(left), negated)
        if negated:
            raise Rejected(f"NOT without a test at {start}")
        return left

    def value_of(self, found: Any) -> Expr:
        if isinstance(found, Constant):
            return Expr("bool", "literal", (Literal("bool", found.value, ""),))
        return found if isinstance(found, Expr) else Expr("bool", "condition", (found,))

    def single(self, found: Any) -> Expr:
        """A value that is neither a list nor one of its elements."""
        expr = self.value_of(found)
        if expr.kind == "element" or not isinstance(expr.type, str) or expr.type.endswith("[]"):
            raise Rejected("a list is not one value")
        return expr

    def tested(self, test: str, left: Expr, negated: bool) -> Node:
        if test == "BETWEEN":
            low = self.single(self.sum())
            self.expect("AND")
            return self.judged(test, left, (low, self.single(self.sum())), (), negated)
        if test == "IN" and self.tokens[self.at + 1][0] == "string" and self.word("NETWORK"):
            self.needs(left, "string")
            text = self.string()
            network_bits(text)
            return self.judged("NETWORK", left, (), (text,), negated)
        if test == "IN":
            self.expect("(")
            listed = [self.single(self.sum())]
            while self.take(","):
                listed.append(self.single(self.sum()))
            self.expect(")")
            if any(one.kind != "literal" for one in listed):
                raise Rejected("IN takes literals")
            return self.judged(test, left, tuple(listed), (), negated)
        self.needs(left, "string")
        if test == "REGEXP":
            return self.judged(test, left, (), (self.string(),), negated)
        pattern = self.string()
        escape = self.string() if self.take("ESCAPE") else None
        if escape is not None and len(escape) != 1:
            raise Rejected("the escape is one character")
        pattern_parts(pattern, escape)
        return self.judged(test, left, (), (pattern, escape), negated)

    def needs(self, expr: Expr, *types: str) -> None:
        if expr.type not in types:
            raise Rejected(f"a {expr.type}, not {types}")

    def judged(
        self, test: str, left: Expr, others: tuple[Expr, ...], words: tuple[str | None, ...] = (), negated: bool = False
    ) -> Node:
        """The test in the class that it has."""
        if left.kind != "element" and test != "NULL":
            left = self.single(left)
        others = tuple(map(self.single, others))
        for other in others:
            if left.type != other.type and not {left.type, other.type} <= set(NUMBERS):
                raise Rejected(f"{left.type} against {other.type}")
        if left.kind == "attribute" and test in ("LIKE",):
            return Like(left.parts[0], words[0] or "", words[1], negated)
        literal = all(other.kind == "literal" for other in others)
        if left.kind == "attribute" and others and literal:
            written = [other.parts[0] for other in others]
            for one in written:
                self.check(left.parts[0], one)
            if test == "IN":
                return In(left.parts[0], tuple(written), negated)
            if test == "BETWEEN":
                return Between(left.parts[0], *written, negated)
            return Compare(left.parts[0], test, written[0])
        if "float" in {left.type, *(other.type for other in others)}:
            left, *others = (
                Expr("float", "literal", part.parts) if part.kind == "literal" and part.type == "decimal" else part
                for part in (left, *others)
            )
        judge = Judge(test, (left, *others), words, negated)
        if left.kind == "element":
            return Each(left.parts[0], left.parts[2], left.parts[3], judge)
        if left.kind == "literal" and literal:
            found = judge_truth(judge, self.types, World({}))
            if found is not None:
                return Constant(found)
        return judge

    # values

    def sum(self) -> Any:
        found = self.product()
        while self.peek("+", "-"):
            found = self.computed(self.tokens[self.at][1], found, self.product)
        return found

    def product(self) -> Any:
        found = self.operand()
        while self.peek("*", "/", "%"):
            found = self.computed(self.tokens[self.at][1], found, self.operand)
        return found

    def computed(self, op: str, left: Any, read: Callable[[], Any]) -> Expr:
        self.at += 1
        one, two = self.single(left), self.single(read())
        if {one.type, two.type} <= set(NUMBERS):
            return self.folded("int" if one.type == two.type == "int" else "float", op, (one, two))
        made = {
            ("+", "timestamp", "interval"): "timestamp",
            ("+", "interval", "timestamp"): "timestamp",
            ("-", "timestamp", "interval"): "timestamp",
            ("-", "timestamp", "timestamp"): "interval",
            ("+", "interval", "interval"): "interval",
            ("-", "interval", "interval"): "interval",
            ("*", "interval", "int"): "interval",
            ("*", "int", "interval"): "interval",
        }.get((op, one.type, two.type))
        if made is None:
            raise Rejected(f"{one.type} {op} {two.type}")
        return self.folded(made, op, (one, two))

    def folded(self, type_: str, kind: str, parts: tuple[Expr, ...]) -> Expr:
        """A function of literals is a literal, unless it is NULL."""
        expr = Expr(type_, kind, parts)
        if any(part.kind != "literal" for part in parts):
            return expr
        value = compute(expr, self.types, World({}))
        if value is None:
            return expr
        if type_ == "float":
            return Expr("decimal", "literal", (Literal("decimal", Fraction(repr(float(value))), ""),))
        kinds = {"int": "integer"}
        return Expr(type_, "literal", (Literal(kinds.get(type_, type_), value, ""),))

    def operand(self) -> Any:
        if self.take("("):
            found = self.disjunction()
            self.expect(")")
            return found
        if self.peek("+", "-"):
            return self.signed()
        kind, text = self.tokens[self.at]
        following = self.tokens[self.at + 1]
        if kind == "name" and text.upper() == "INTERVAL" and following[0] == "string":
            self.at += 1
            return Expr("interval", "literal", (Literal("interval", length_of(self.string()), ""),))
        if kind == "name" and following == ("mark", "(") and text.upper() not in KEYWORDS:
            self.at += 2
            return self.call(text.upper())
        if kind == "quoted" or (kind == "name" and text.upper() not in KEYWORDS and not self.is_timestamp()):
            return self.name()
        literal = self.literal()
        type_ = {"integer": "int"}.get(literal.kind, literal.kind)
        return Expr(type_, "literal", (literal,))

    def signed(self) -> Expr:
        minus = False
        while self.peek("+", "-"):
            minus ^= self.tokens[self.at][1] == "-"
            self.at += 1
        kind, text = self.tokens[self.at]
        if kind == "number":
            self.at += 1
            literal = numeral(("-" if minus else "") + text)
            return Expr({"integer": "int"}.get(literal.kind, literal.kind), "literal", (literal,))
        of = self.single(self.operand())
        self.needs(of, *NUMBERS, "interval")
        if not minus:
            return of
        return self.folded("float" if of.type == "decimal" else of.type, "-", (of,))

    def call(self, name: str) -> Any:
        if name == "NOW":
            self.expect(")")
            return Expr("timestamp", "now")
        if name in ("ANY", "ALL"):
            start = self.at
            try:
                path, origin, type_ = self.list_path()
            except NoList:
                self.at = start
                value = self.name()  # one value is a list of itself
                self.expect(")")
                return value
            self.expect(")")
            if not isinstance(type_, str):
                raise Rejected("objects have no single value")
            return Expr(type_, "element", (name, self.depth + 1, path, origin))
        if name == "EXISTS":
            path, origin, type_ = self.list_path()
            if isinstance(type_, str) or not self.word("WHERE"):
                raise Rejected("EXISTS takes objects and WHERE")
            inner = Parser(self.types, self.grids, self.tokens, self.at, [*self.scopes, type_])
            body = inner.condition_of(inner.disjunction())
            self.at = inner.at
            self.expect(")")
            return Each("EXISTS", path, origin, body)
        if name == "LENGTH":
            start = self.at
            try:
                path, origin, _ = self.list_path()
                if len(path) > 1:
                    raise Rejected("LENGTH of many lists")
                self.expect(")")
                return Expr("int", "length", (path, origin))
            except NoList:
                self.at = start
        arguments: list[Expr] = []
        if not self.peek(")"):
            arguments.append(self.single(self.disjunction()))
            while self.take(","):
                arguments.append(self.single(self.disjunction()))
        self.expect(")")
        return self.called(name, arguments)

    def called(self, name: str, arguments: list[Expr]) -> Any:
        shapes = {
            **dict.fromkeys(("ABS", "ROUND", "FLOOR", "CEIL"), (NUMBERS,)),
            **dict.fromkeys(("LOWER", "UPPER", "LENGTH"), (("string",),)),
            **dict.fromkeys(("HOUR", "DAY_OF_WEEK"), (("timestamp",), ("string",))),
            "INT": (("int", "string", "bool"),),
            "BOOL": (("int", "string", "bool"),),
            "STRING": (("int", "string", "bool", "timestamp"),),
            "DISTANCE": (NUMBERS,) * 4,
            "INSIDE": (NUMBERS, NUMBERS, ("string",)),
        }
        if name not in shapes or len(arguments) > len(shapes[name]):
            raise Rejected(f"no function {name} of {len(arguments)}")
        if len(arguments) < len(shapes[name]) and not (len(arguments) == 1 and shapes[name][0] == ("timestamp",)):
            raise Rejected("too few arguments")
        for argument, types in zip(arguments, shapes[name], strict=False):
            self.needs(argument, *types)
        if name in ("DISTANCE", "INSIDE"):
            for at, argument in enumerate(arguments[:4]):
                given = argument.kind == "literal" and argument.type in NUMBERS
                if given and abs(float(argument.parts[0].value)) > (90 if at % 2 == 0 else 180):
                    raise Rejected("nowhere")
        if name == "INSIDE":
            if arguments[2].kind != "literal":
                raise Rejected("the polygon is a literal")
            text = arguments[2].parts[0].value
            rings_of(text)
            judge = Judge("INSIDE", tuple(arguments[:2]), (text,))
            if all(argument.kind == "literal" for argument in arguments):
                return Constant(bool(judge_truth(judge, self.types, World({}))))
            return judge
        if name in ("HOUR", "DAY_OF_WEEK") and arguments[1:]:
            if arguments[1].kind != "literal":
                raise Rejected("the zone is a literal")
            try:
                check_zone(arguments[1].parts[0].value)
            except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
                raise Rejected("no zone") from None
        if name in ("INT", "BOOL", "STRING"):
            if arguments[0].type == name.lower():
                return arguments[0]
            return self.folded(name.lower(), name, tuple(arguments))
        result = "string" if name in ("LOWER", "UPPER") else "float" if name == "DISTANCE" else "int"
        if shapes[name] == (NUMBERS,):
            result = "int" if arguments[0].type == "int" else "float"
        return self.folded(result, name, tuple(arguments))

    # names

    @property
    def depth(self) -> int:
        return len(self.scopes)

    def path(self) -> tuple[list[str], bool]:
        def part() -> str:
            kind, text = self.tokens[self.at]
            self.at += 1
            if kind == "quoted":
                return text[1:-1].replace('""', '"')
            if kind != "name" or (text.upper() in KEYWORDS and not found):
                raise Rejected("expected a name")
            return text

        found: list[str] = []
        quoted = self.tokens[self.at][0] == "quoted"
        found.append(part())
        while self.take("."):
            found.append(part())
        return found, quoted

    def name(self) -> Expr:
        parts, quoted = self.path()
        whole = ".".join(parts)
        for level in range(self.depth, 0, -1):
            if whole in self.scopes[level - 1]:
                return Expr(typed(self.scopes[level - 1][whole]), "field", (whole, level))
        if whole in self.types:
            return Expr(typed(self.types[whole]), "attribute", (whole,))
        rest = ".".join(parts[1:])
        if not quoted and parts[0].upper() in ("OLD", "NEW") and rest in self.types:
            return Expr(typed(self.types[rest]), "old" if parts[0].upper() == "OLD" else "attribute", (rest,))
        raise Rejected(f"no attribute {whole}")

    def list_path(self) -> tuple[tuple[str, ...], str | int, Any]:
        """The steps to a list, where it begins (new, old, or the number of a list around), and the type of elements."""
        if self.tokens[self.at][0] not in ("name", "quoted") or self.tokens[self.at + 1] == ("mark", "("):
            raise NoList
        parts, quoted = self.path()
        tries: list[tuple[Any, str | int, list[str]]] = [
            (self.scopes[level - 1], level, parts) for level in range(self.depth, 0, -1)
        ]
        tries.append((self.types, "new", parts))
        if not quoted and parts[0].upper() in ("OLD", "NEW"):
            tries.append((self.types, parts[0].lower(), parts[1:]))
        for scope, origin, given in tries:
            steps: list[str] = []
            rest = ".".join(given).split(".")
            while rest:
                end = next((end for end in range(len(rest), 0, -1) if ".".join(rest[:end]) in scope), None)
                if end is None:
                    break
                of = scope[".".join(rest[:end])]
                if not steps and isinstance(of, str) and not of.endswith("[]"):
                    break
                steps.append(".".join(rest[:end]))
                rest = rest[end:]
                if not rest:
                    return tuple(steps), origin, of.removesuffix("[]") if isinstance(of, str) else of
                if isinstance(of, str):
                    break
                scope = of
        raise NoList

    def sign(self) -> str | None:
        kind, text = self.tokens[self.at]
        if kind != "sign":
            return None
        self.at += 1
        return "<>" if text == "!=" else text

    def is_timestamp(self) -> bool:
        (kind, text), (following, _) = self.tokens[self.at], self.tokens[self.at + 1]
        return kind == "name" and text.upper() == "TIMESTAMP" and following == "string"

    def string(self) -> str:
        kind, text = self.tokens[self.at]
        if kind != "string":
            raise Rejected("expected a string")
        self.at += 1
        return text[1:-1].replace("''", "'")

    def literal(self) -> Literal:
        kind, text = self.tokens[self.at]
        if kind == "string":
            return Literal("string", self.string(), text)
        if self.is_timestamp():
            self.at += 1
            written = self.string()
            return Literal("timestamp", moment(written), f"TIMESTAMP '{written}'")
        for word in ("TRUE", "FALSE"):
            if self.take(word):
                return Literal("bool", word == "TRUE", word)
        if kind != "number":
            raise Rejected(f"expected a literal, found {text}")
        self.at += 1
        return numeral(text)

    def check(self, name: str, literal: Literal) -> None:
        """A literal is not converted, and lies on the declared grid."""
        fitting = {"int": {"integer", "decimal"}, "float": {"integer", "decimal"}}
        if literal.kind not in fitting.get(self.types[name], {self.types[name]}):
            raise Rejected(f"a {literal.kind} for a {self.types[name]}")
        grid = self.grids.get(name)
        if grid and not (
            grid.low <= literal.value <= grid.high and ((literal.value - grid.low) / grid.step).denominator == 1
        ):
            raise Rejected("off the declared grid")


def numeral(text: str) -> Literal:
    """An integer of 64 bits, or an exact decimal within the range of a double."""
    if re.fullmatch(r"-?[0-9]+", text):
        value = int(text)
        if value not in INT64:
            raise Rejected("beyond 64 bits")
        return Literal("integer", value, text)
    digits, _, exponent = text.lower().partition("e")
    whole, _, fraction = digits.lstrip("-").partition(".")
    significant = int(whole + fraction)
    if significant == 0:
        return Literal("decimal", Fraction(0), text)
    power = int(exponent or 0) - len(fraction)
    if abs(power) > 5000:
        raise Rejected("beyond the range of a double")
    exact = significant * Fraction(10) ** power
    if exact >= LARGEST_INFINITE or exact < Fraction(10) ** -400:
        raise Rejected("beyond the range of a double")
    return Literal("decimal", -exact if text.startswith("-") else exact, text)


def parse(text: str, types: Mapping[str, str], grids: Mapping[str, Grid] | None = None) -> Node:
    """The tree of a text, or Rejected."""
    if any(letter == "\0" or "\ud800" <= letter <= "\udfff" for letter in text):
        raise Rejected("NUL or a lone surrogate")
    tokens = []
    at = 0
    while at < len(text):
        found = TOKEN.match(text, at)
        if not found:
            raise Rejected(f"unexpected character at {at}")
        at = found.end()
        if found.lastgroup != "space":
            tokens.append((str(found.lastgroup), found.group()))
    parser = Parser(types, grids or {}, [*tokens, ("end", ""), ("end", "")])
    node = parser.condition_of(parser.disjunction())
    if parser.tokens[parser.at][0] != "end":
        raise Rejected(f"{parser.tokens[parser.at]} is left over")
    return node
