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
    any        Interval(low, high) of two such values; an attribute that is missing is absent
"""

from __future__ import annotations

import itertools
import math
import operator
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

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


Node = Constant | Compare | Between | In | Like | IsNull | Not | And | Or


def flat(node: Node) -> Node:
    """The same tree without an AND directly in an AND, or an OR in an OR."""
    if isinstance(node, Not):
        return Not(flat(node.part))
    if isinstance(node, And | Or):
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
    assert not isinstance(atom, Not | And | Or)
    if isinstance(atom, IsNull):
        return (atom.name not in event) != atom.negated
    if atom.name not in event:
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
        return {truth(node, types, event) is True}
    named = {atom.name for atom in atoms(node) if not isinstance(atom, Constant)}
    choices = {
        name: candidates(node, name, types[name], value)
        for name, value in event.items()
        if name in wide and name in named
    }
    fixed = {name: value for name, value in event.items() if name not in choices}
    really_wide = {name for name in choices if event[name].low != event[name].high}
    open_ = any(isinstance(atom, Like) and atom.name in really_wide and not is_range(atom) for atom in atoms(node))
    may_hold = False
    for chosen in itertools.product(*choices.values()):
        point = fixed | dict(zip(choices, chosen, strict=True))
        if truth(node, types, point) is True:
            return {True}
        may_hold = may_hold or (open_ and True in possible_truths(node, types, point, really_wide))
    return {True, False} if may_hold else {False}


def points_to_try(node: Node, types: Mapping[str, str], event: Mapping[str, Value]) -> int:
    """How many points `answers` looks at in the worst case."""
    named = {atom.name for atom in atoms(node) if not isinstance(atom, Constant)}
    wide = [name for name, value in event.items() if isinstance(value, Interval) and name in named]
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


# --- text -------------------------------------------------------------------------------------------------------------

KEYWORDS = {"AND", "OR", "NOT", "BETWEEN", "IN", "LIKE", "ESCAPE", "IS", "NULL", "TRUE", "FALSE"}
TOKEN = re.compile(
    r"""(?P<space>[ \t\r\n]+)
      | (?P<string>'(?:[^']|'')*')
      | (?P<quoted>"(?:[^"]|"")*")
      | (?P<number>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)(?![\w.])
      | (?P<name>[^\W\d]\w*)(?!\.)
      | (?P<sign><=|>=|<>|!=|=(?!=)|<|>)
      | (?P<mark>[(),+-])""",
    re.VERBOSE,
)
INT64 = range(-(2**63), 2**63)
LARGEST_INFINITE = Fraction(2) ** 1024 - Fraction(2) ** 970  # from here on the nearest double is an infinity


@dataclass
class Parser:
    types: Mapping[str, str]
    grids: Mapping[str, Grid]
    tokens: list[tuple[str, str]]
    at: int = 0

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

    def disjunction(self) -> Node:
        parts = [self.conjunction()]
        while self.take("OR"):
            parts.append(self.conjunction())
        return parts[0] if len(parts) == 1 else Or(tuple(parts))

    def conjunction(self) -> Node:
        parts = [self.negation()]
        while self.take("AND"):
            parts.append(self.negation())
        return parts[0] if len(parts) == 1 else And(tuple(parts))

    def negation(self) -> Node:
        if self.take("NOT"):
            return Not(self.negation())
        if self.take("("):
            node = self.disjunction()
            self.expect(")")
            return node
        return self.condition()

    def condition(self) -> Node:
        name = self.attribute()
        if name is None:
            return self.constant_or_mirrored()
        type_ = self.types[name]
        if self.take("IS"):
            negated = self.take("NOT")
            self.expect("NULL")
            return IsNull(name, negated)
        negated = self.take("NOT")
        if self.take("BETWEEN"):
            low = self.literal_for(name)
            self.expect("AND")
            return Between(name, low, self.literal_for(name), negated)
        if self.take("IN"):
            self.expect("(")
            listed = [self.literal_for(name)]
            while self.take(","):
                listed.append(self.literal_for(name))
            self.expect(")")
            return In(name, tuple(listed), negated)
        if self.take("LIKE"):
            return self.pattern(name, type_, negated)
        if negated:
            raise Rejected("NOT without BETWEEN, IN or LIKE")
        sign = self.sign()
        if sign:
            return Compare(name, sign, self.literal_for(name))
        if type_ != "bool":
            raise Rejected("an attribute alone")
        return Compare(name, "=", Literal("bool", True, "TRUE"))

    def pattern(self, name: str, type_: str, negated: bool) -> Node:
        if type_ != "string":
            raise Rejected("LIKE is for strings")
        pattern = self.string()
        escape = self.string() if self.take("ESCAPE") else None
        if escape is not None and len(escape) != 1:
            raise Rejected("the escape is one character")
        pattern_parts(pattern, escape)
        return Like(name, pattern, escape, negated)

    def constant_or_mirrored(self) -> Node:
        """TRUE, FALSE, or a literal on the left of a comparison."""
        literal = self.literal()
        sign = self.sign()
        if sign is None:
            if literal.kind == "bool":
                return Constant(literal.value)
            raise Rejected("a literal alone")
        name = self.attribute()
        if name is None:
            raise Rejected("two literals")
        self.check(name, literal)
        return Compare(name, MIRRORED[sign], literal)

    def sign(self) -> str | None:
        kind, text = self.tokens[self.at]
        if kind != "sign":
            return None
        self.at += 1
        return "<>" if text == "!=" else text

    def attribute(self) -> str | None:
        """The name that comes next; None where a literal or a keyword does."""
        kind, text = self.tokens[self.at]
        if kind == "quoted":
            name = text[1:-1].replace('""', '"')
        elif kind == "name" and text.upper() not in KEYWORDS and not self.is_timestamp():
            name = text
        else:
            return None
        if name not in self.types:
            raise Rejected(f"no attribute {name}")
        self.at += 1
        return name

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
        minus = self.peek("-")
        self.take("+", "-")
        kind, text = self.tokens[self.at]
        if kind != "number":
            raise Rejected(f"expected a literal, found {text}")
        self.at += 1
        return numeral(("-" if minus else "") + text)

    def literal_for(self, name: str) -> Literal:
        literal = self.literal()
        self.check(name, literal)
        return literal

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
    if any(one == ("mark", "-") == two for one, two in itertools.pairwise(tokens)):
        raise Rejected("comments are not part of the language")
    parser = Parser(types, grids or {}, [*tokens, ("end", ""), ("end", "")])
    node = parser.disjunction()
    if parser.tokens[parser.at][0] != "end":
        raise Rejected(f"{parser.tokens[parser.at]} is left over")
    return node
