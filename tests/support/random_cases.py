"""Random schemas, predicates, events and tables for the second evaluator, biased to the borders where mistakes live.

Every value is made twice: as the object that a caller hands to hitbox (a Decimal, a numpy scalar, a zoned datetime),
and as the plain value that it means. Nothing here imports hitbox.
"""

from __future__ import annotations

import datetime as dt
import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Context, Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from support.second_evaluator import (
    FIRST_MOMENT,
    KEYWORDS,
    LAST_MOMENT,
    MIRRORED,
    And,
    Between,
    Compare,
    Constant,
    Grid,
    In,
    Interval,
    IsNull,
    Like,
    Literal,
    Node,
    Not,
    Or,
    Value,
    atoms,
    literals,
    number,
    numeral,
    pattern_parts,
)

NAMES = [
    "a",
    "b",
    "price",
    "größe",
    "odd name",
    'say "hi"',
    "Or",
    "timestamp",
    "in",
    "x_low",
    "Ünï",
    "a.b",
    "NULL",
    "_",
]
TYPES = ["int", "float", "string", "bool", "timestamp"]
WHOLE = [0, 1, 2, 3, 7, 2**31, 2**53 - 1, 2**53, 2**53 + 1, 2**53 + 2, 2**62, 2**63 - 2, 2**63 - 1]
DOUBLES = [
    *(0.0, 0.1, 0.5, 1.0, 1.5, 3.0, 1 / 3, 1e-3, 1e22, 1e23, 5e-324, 1e-323, 2.2250738585072014e-308),
    *(2.225073858507201e-308, 1.7976931348623157e308, 2.0**53, 2.0**53 + 2, 2.0**63, 2.0**64, 1e300, 123456789.123),
]
LETTERS = "aabb%_'\"!\\ \n\tZé\u0301ß\ud7ff\ue000\uffff😀\U0010ffff"
HOUR = 3_600_000_000
MOMENTS = [0, -1, 1, 999_999, 1_769_860_800_000_000, FIRST_MOMENT, FIRST_MOMENT + 1, LAST_MOMENT - 1, LAST_MOMENT]
ZONES = [
    dt.UTC,
    dt.timezone(dt.timedelta(hours=5, minutes=45)),
    dt.timezone(dt.timedelta(hours=-11, minutes=-30)),
    dt.timezone(dt.timedelta(hours=1, seconds=30, microseconds=5)),
]
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


class Float(float):
    """A caller's own number."""


class Text(str):
    """A caller's own text."""

    __slots__ = ()


@dataclass(frozen=True)
class Given:
    """What the caller hands over, and what it means. `may_refuse`: an error is right as well."""

    given: Any
    means: Value = None
    missing: bool = False
    absent: bool = False
    may_refuse: bool = False


Event = dict[str, Given]


@dataclass(frozen=True)
class Case:
    """A schema: types by name, and the declared grids."""

    types: dict[str, str]
    grids: dict[str, Grid] = field(default_factory=dict)

    def schema(self) -> dict[str, Any]:
        """As hitbox takes it."""
        return {
            name: {"type": type_, "domain": [str(of.low), str(of.high)], "precision": str(of.step)}
            if (of := self.grids.get(name))
            else type_
            for name, type_ in self.types.items()
        }


def random_case(rng: random.Random) -> Case:
    names = rng.sample(NAMES, rng.randint(1, 5))
    types = {name: rng.choice(TYPES) for name in names}
    grids = {}
    for name, type_ in types.items():
        if type_ == "int" and rng.random() < 0.25:
            grids[name] = Grid(Fraction(-10), Fraction(40), Fraction(rng.choice([1, 2, 5])))
        elif type_ == "float" and rng.random() < 0.15:
            grids[name] = Grid(Fraction(-2), Fraction(6), Fraction(1, rng.choice([1, 2, 8, 10])))
    return Case(types, grids)


# --- literals and predicates ------------------------------------------------------------------------------------------


def text_of_moment(rng: random.Random, micros: int) -> str:
    """A timestamp literal that means this, perhaps in another zone."""
    zone = rng.choice(["", "", "Z", *(f"{sign}{h:02}:{m:02}" for sign in "+-" for h, m in ((1, 30), (23, 59), (0, 0)))])
    shown = micros
    if zone not in ("", "Z"):
        shift = (int(zone[1:3]) * 60 + int(zone[4:6])) * 60_000_000
        shown = micros + (shift if zone[0] == "+" else -shift)
    if not FIRST_MOMENT <= shown <= LAST_MOMENT:
        shown, zone = micros, ""
    moment = EPOCH + dt.timedelta(microseconds=shown)
    day = f"{moment.year:04}-{moment.month:02}-{moment.day:02}"
    clock = f"{moment.hour:02}:{moment.minute:02}"
    if moment.microsecond:
        digits = f"{moment.microsecond:06}"
        clock += f":{moment.second:02}." + (digits.rstrip("0") if rng.random() < 0.5 else digits)
    elif moment.second or rng.random() < 0.5:
        clock += f":{moment.second:02}"
    elif clock == "00:00" and not zone and rng.random() < 0.5:
        return day
    return day + rng.choice(" T") + clock + zone


def random_moment(rng: random.Random) -> int:
    if rng.random() < 0.5:
        return min(max(rng.choice(MOMENTS) + rng.randint(-2, 2), FIRST_MOMENT), LAST_MOMENT)
    if rng.random() < 0.5:
        return rng.randint(-3, 3) * HOUR
    return rng.randint(FIRST_MOMENT, LAST_MOMENT)


def random_text(rng: random.Random, longest: int = 4) -> str:
    return "".join(rng.choice(LETTERS) for _ in range(rng.randint(0, longest)))


def exact_text(value: Fraction) -> str:
    """All digits of a number whose denominator is a power of two."""
    shift = value.denominator.bit_length() - 1
    digits = str(abs(value.numerator) * 5**shift).rjust(shift + 1, "0")
    whole, fraction = digits[: len(digits) - shift], digits[len(digits) - shift :]
    return ("-" if value < 0 else "") + whole + "." + fraction


def random_numeral(rng: random.Random, type_: str) -> str:
    """Integers and decimals at borders; decimals next to an integer, between two doubles, or with many digits."""
    sign = rng.choice(["", "", "-"])
    kind = rng.random()
    if kind < 0.35:
        return sign + str(rng.choice(WHOLE))
    if kind < 0.45:
        return str(rng.choice([-(2**63), -(2**63) + 1, 2**63 - 1, -(2**53) - 1]))
    if kind < 0.6:
        tail = rng.choice([".0", ".", ".5", ".25", ".0000000000000000001", ".9999999999999999999", "e0", ".5e1", "E+3"])
        return sign + str(rng.choice(WHOLE)) + tail
    if kind < 0.7:
        return sign + rng.choice(
            [".5", "0.1", "0.30000000000000004", "1e-5", "0.0", "0e5", "3e-324", "2e-324", "1e-390"]
        )
    if kind < 0.75:
        return sign + rng.choice(["123456789012345678901234567890.5", "1e19", "9223372036854775808.", "1e300", "1e18"])
    double = rng.choice(DOUBLES)
    if kind < 0.85:
        return sign + repr(double)
    above = math.nextafter(double, math.inf)
    if math.isinf(above):
        return sign + repr(double)
    middle = (Fraction(double) + Fraction(above)) / 2
    return sign + exact_text(middle) + rng.choice(["", "", "0000001"])


def random_literal(rng: random.Random, case: Case, name: str) -> Literal:
    type_ = case.types[name]
    if type_ == "bool":
        value = rng.random() < 0.5
        return Literal("bool", value, "TRUE" if value else "FALSE")
    if type_ == "string":
        text = random_text(rng)
        return Literal("string", text, "'" + text.replace("'", "''") + "'")
    if type_ == "timestamp":
        micros = random_moment(rng)
        return Literal("timestamp", micros, f"TIMESTAMP '{text_of_moment(rng, micros)}'")
    grid = case.grids.get(name)
    if grid:
        value = grid.low + grid.step * rng.randint(0, int((grid.high - grid.low) / grid.step))
        whole = value.denominator == 1 and rng.random() < 0.7
        return numeral(
            str(value)
            if whole
            else f"{Decimal(value.numerator) / value.denominator:f}" + "." * (value.denominator == 1)
        )
    return numeral(random_numeral(rng, type_))


def random_pattern(rng: random.Random) -> tuple[str, str | None]:
    escape = rng.choice([None, None, "!", "\\", "%", "_", "'", "a", "😀"])
    pieces = [rng.choice([*LETTERS, "%", "%", "_", "a"]) for _ in range(rng.randint(0, 6))]
    if escape:
        pieces = [piece if piece != escape else escape + rng.choice(["%", "_", "a", escape]) for piece in pieces]
    return "".join(pieces), escape


def random_atom(rng: random.Random, case: Case) -> Node:
    name = rng.choice(list(case.types))
    kind = rng.random()
    if kind < 0.03:
        return Constant(rng.random() < 0.6)
    if kind < 0.12:
        return IsNull(name, rng.random() < 0.5)
    if case.types[name] == "string" and kind < 0.45:
        pattern, escape = random_pattern(rng)
        return Like(name, pattern, escape, rng.random() < 0.3)
    if kind < 0.6:
        low, high = random_literal(rng, case, name), random_literal(rng, case, name)
        if low.value > high.value and rng.random() < 0.8:
            low, high = high, low
        return Between(name, low, high, rng.random() < 0.3)
    if kind < 0.75:
        listed = [random_literal(rng, case, name) for _ in range(rng.randint(1, 5))]
        if case.types[name] in ("int", "float") and name not in case.grids and rng.random() < 0.5:
            listed += twins(rng, listed)
        rng.shuffle(listed)
        return In(name, tuple(listed), rng.random() < 0.3)
    return Compare(name, rng.choice(list(MIRRORED)), random_literal(rng, case, name))


def twins(rng: random.Random, listed: Sequence[Literal]) -> list[Literal]:
    """Literals that equal one of the list, or nearly, and are written in another way."""
    return [numeral(one.text + rng.choice([".0", ".", "e0"])) for one in listed if one.kind == "integer"] + [
        numeral(repr(float(one.value))) for one in listed if one.kind == "decimal"
    ]


def random_gap(rng: random.Random, case: Case) -> Node:
    """What lies between two literals that are as near to each other as they can be."""
    name = rng.choice([name for name, type_ in case.types.items() if type_ != "bool"] or list(case.types))
    low = random_literal(rng, case, name)
    high = low
    type_, grid = case.types[name], case.grids.get(name)
    if grid and low.value < grid.high:
        value = low.value + grid.step
        high = numeral(f"{Decimal(value.numerator) / value.denominator:f}")
    elif type_ == "int" and not grid and abs(low.value) < 2**62:
        high = numeral(str(math.floor(low.value) + 1))
    elif type_ == "float" and not grid and abs(low.value) < 2**62:
        high = numeral(repr(math.nextafter(float(low.value), math.inf)))
    elif type_ == "string":
        text = low.value + "a"
        high = Literal("string", text, "'" + text.replace("'", "''") + "'")
    elif type_ == "timestamp" and low.value < LAST_MOMENT:
        high = Literal("timestamp", low.value + 1, f"TIMESTAMP '{text_of_moment(rng, low.value + 1)}'")
    signs = rng.choice([(">", "<"), (">", "<"), (">=", "<"), (">", "<=")])
    return And((Compare(name, signs[0], low), Compare(name, signs[1], high)))


def random_node(rng: random.Random, case: Case, depth: int = 3) -> Node:
    kind = rng.random()
    if kind < 0.04:
        return random_gap(rng, case)
    if depth == 0 or kind < 0.35:
        return random_atom(rng, case)
    if kind < 0.5:
        return Not(random_node(rng, case, depth - 1))
    parts = tuple(random_node(rng, case, depth - 1) for _ in range(rng.randint(2, 3)))
    return And(parts) if kind < 0.75 else Or(parts)


def spell(node: Node, rng: random.Random | None = None, inside: str = "") -> str:
    """The text of a tree; with a generator, in one of the many ways to write it."""

    def word(text: str) -> str:
        return rng.choice([text, text.lower(), text.title()]) if rng else text

    def gap() -> str:
        return rng.choice([" ", " ", "  ", "\n", "\t"]) if rng else " "

    def name(text: str) -> str:
        plain = text.isidentifier() and text.upper() not in KEYWORDS and not (rng and rng.random() < 0.2)
        return text if plain else '"' + text.replace('"', '""') + '"'

    def text_of(literal: Literal) -> str:
        if rng and literal.kind in ("bool", "timestamp"):
            head, quote, tail = literal.text.partition("'")
            return word(head) + quote + tail
        if rng and literal.kind in ("integer", "decimal") and rng.random() < 0.1:
            return "- " + literal.text[1:] if literal.text.startswith("-") else "+" + literal.text
        return literal.text

    def joined(*parts: str) -> str:
        return gap().join(part for part in parts if part)

    if isinstance(node, Constant):
        text = word("TRUE" if node.value else "FALSE")
    elif isinstance(node, IsNull):
        text = joined(name(node.name), word("IS"), word("NOT") if node.negated else "", word("NULL"))
    elif isinstance(node, Compare):
        sign = rng.choice(["<>", "!="]) if rng and node.sign == "<>" else node.sign
        if rng and node.sign == "=" and node.literal == Literal("bool", True, "") and rng.random() < 0.5:
            text = name(node.name)
        elif rng and rng.random() < 0.2:
            mirrored = MIRRORED[node.sign]
            text = joined(text_of(node.literal), mirrored, name(node.name))
        else:
            text = joined(name(node.name), sign, text_of(node.literal))
    elif isinstance(node, Not):
        text = joined(word("NOT"), spell(node.part, rng, "NOT"))
    elif isinstance(node, And | Or):
        between = "AND" if isinstance(node, And) else "OR"
        text = spell(node.parts[0], rng, between)
        for part in node.parts[1:]:
            text = joined(text, word(between), spell(part, rng, between))
    else:
        head = joined(name(node.name), word("NOT") if node.negated else "")
        if isinstance(node, Between):
            text = joined(head, word("BETWEEN"), text_of(node.low), word("AND"), text_of(node.high))
        elif isinstance(node, In):
            text = joined(head, word("IN"), "(" + ", ".join(text_of(one) for one in node.literals) + ")")
        else:
            quoted = ["'" + part.replace("'", "''") + "'" for part in (node.pattern, node.escape or "")]
            text = joined(head, word("LIKE"), quoted[0], *([word("ESCAPE"), quoted[1]] if node.escape else []))
    needed = inside and isinstance(node, And | Or)
    return f"({text})" if needed or (rng and rng.random() < 0.05) else text


# --- values -----------------------------------------------------------------------------------------------------------


def random_value(rng: random.Random, case: Case, name: str, nodes: Iterable[Node]) -> Value:
    """A plain value, often at or next to a literal that the predicates name."""
    type_ = case.types[name]
    near = [literal.against(type_) for node in nodes for of, literal in literals(node) if of == name]
    if type_ == "bool":
        return rng.random() < 0.5
    if type_ == "string":
        return random_string(rng, name, near, nodes)
    if type_ == "timestamp":
        value = rng.choice(near) + rng.randint(-1, 1) if near and rng.random() < 0.7 else random_moment(rng)
        if rng.random() < 0.03:
            return value + rng.choice([-1, 1]) * (LAST_MOMENT - FIRST_MOMENT)  # years that numpy knows and SQL does not
        return min(max(value, FIRST_MOMENT), LAST_MOMENT)
    if type_ == "int":
        value = rng.choice(near) if near and rng.random() < 0.7 else rng.choice(WHOLE) * rng.choice([1, -1])
        return min(max(rng.choice([math.floor, math.ceil])(value) + rng.randint(-1, 1), -(2**63) + 1), 2**63 - 1)
    if rng.random() < 0.05:
        return rng.choice([math.inf, -math.inf])
    double = float(rng.choice(near)) if near and rng.random() < 0.7 else rng.choice(DOUBLES) * rng.choice([1, -1])
    return number(rng.choice([double, math.nextafter(double, math.inf), math.nextafter(double, -math.inf)]))


def random_string(rng: random.Random, name: str, near: Sequence[str], nodes: Iterable[Node]) -> str:
    patterns = [atom for node in nodes for atom in atoms(node) if isinstance(atom, Like) and atom.name == name]
    kind = rng.random()
    if patterns and kind < 0.4:
        like = rng.choice(patterns)
        fill = {"many": random_text(rng), "one": rng.choice(LETTERS)}
        return "".join(fill.get(part, letter) for part, letter in pattern_parts(like.pattern, like.escape))
    if near and kind < 0.8:
        text = rng.choice(near)
        return rng.choice([text, text + rng.choice(LETTERS), text[:-1]])
    return random_text(rng)


def dress(rng: random.Random, type_: str, value: Value) -> Given:
    """One of the objects that mean this value."""
    if type_ == "bool":
        return Given(rng.choice([bool, np.bool_])(value), value)
    if type_ == "string":
        return Given(rng.choice([str, str, np.str_, Text])(value), value)
    if type_ == "int":
        return dress_int(rng, value)
    if type_ == "float":
        return dress_float(rng, value)
    return dress_moment(rng, value)


def undressed(type_: str, value: Value) -> Given:
    """The plainest object that means this value, which may be an interval."""

    def plain(end: Value) -> Any:
        if type_ == "timestamp":
            return np.datetime64(end, "us")
        return float(end) if type_ == "float" else end

    wide = isinstance(value, Interval)
    return Given((plain(value.low), plain(value.high)) if wide else plain(value), value)


def dress_int(rng: random.Random, value: int) -> Given:
    choices: list[Given] = [Given(value, value)] * 3 + [
        Given(np.int64(value), value),
        Given(Decimal(value), value, may_refuse=True),
    ]
    choices += [Given(kind(value), value) for kind in (np.int8, np.int32, np.uint64) if within(kind, value)]
    if float(value) == value:
        choices += [Given(kind(value), value, may_refuse=True) for kind in (float, np.float64, Float)]
    return rng.choice(choices)


def within(kind: type[np.integer[Any]], value: int) -> bool:
    return int(np.iinfo(kind).min) <= value <= int(np.iinfo(kind).max)


def dress_float(rng: random.Random, value: Value) -> Given:
    double = float(value)
    choices = [Given(double, value), Given(np.float64(double), value), Given(Float(double), value)]
    if double == 0.0:
        choices += [Given(-0.0, value), Given(np.float64(-0.0), value), Given(Decimal("-0"), value), Given(0, value)]
    if math.isinf(double):
        return rng.choice([*choices, Given(np.float32(double), value), Given(Decimal(double), value, may_refuse=True)])
    choices += [Given(Decimal(double), value), Given(Decimal(repr(double)), value)]
    choices.append(
        rng.choice([Given(Decimal("1e-500"), Fraction(0)), Given(Decimal("-1e400"), -math.inf, may_refuse=True)])
    )
    with np.errstate(over="ignore"):
        if float(np.float32(double)) == double:
            choices.append(Given(np.float32(double), value))
    if value == int(value):
        choices.append(Given(int(value), value, may_refuse=abs(value) > 2**53))
    above = math.nextafter(double, math.inf)
    if math.isfinite(above) and rng.random() < 0.5:  # a decimal beside it, with more digits than a double has
        beside = (Fraction(double) * 3 + Fraction(above)) / 4
        exact = Decimal(exact_text(beside))
        choices.append(Given(exact, number(float(exact))))
    return rng.choice(choices)


def dress_moment(rng: random.Random, value: int) -> Given:
    if not FIRST_MOMENT <= value <= LAST_MOMENT:
        return Given(np.datetime64(value, "us"), value, may_refuse=True)
    utc = EPOCH + dt.timedelta(microseconds=value)
    choices = [Given(utc, value), Given(utc.replace(tzinfo=None), value), Given(np.datetime64(value, "us"), value)]
    for zone in ZONES[1:]:
        try:
            choices.append(Given(utc.astimezone(zone), value))
        except OverflowError:
            continue
    choices += [Given(text, value, may_refuse=True) for text in (utc.isoformat(), utc.replace(tzinfo=None).isoformat())]
    if abs(value) < 2**62 // 1000:
        zoned = pd.Timestamp(value * 1000, unit="ns", tz="UTC")
        choices += [Given(zoned, value), Given(zoned.tz_convert("America/New_York"), value)]
        choices += [Given(zoned.tz_localize(None), value), Given(np.datetime64(value * 1000, "ns"), value)]
        choices.append(Given(np.datetime64(value * 1000, "ns"), value))
    if value % 1000 == 0:
        choices.append(Given(np.datetime64(value // 1000, "ms"), value))
    if value % (24 * HOUR) == 0:
        choices += [Given(utc.date(), value), Given(np.datetime64(value // (24 * HOUR), "D"), value)] * 2
    return rng.choice(choices)


def random_missing(rng: random.Random) -> Given:
    kinds = [None, math.nan, np.float64("nan"), np.float32("nan"), Float("nan"), pd.NA, pd.NaT, np.datetime64("NaT")]
    if rng.random() < 0.4:
        return Given(None, missing=True, absent=True)
    return Given(rng.choice(kinds), missing=True)


def random_event(rng: random.Random, case: Case, nodes: Sequence[Node], intervals: bool = False) -> Event:
    """Values by name; with `intervals` some of them are (low, high), as a tuple or as a mapping."""
    event = {}
    some = rng.sample(list(nodes), min(len(nodes), 6))
    for name, type_ in case.types.items():
        if rng.random() < 0.15:
            event[name] = random_missing(rng)
        elif intervals and rng.random() < 0.6:
            ends = [dress(rng, type_, random_value(rng, case, name, some)) for _ in range(2)]
            event[name] = interval_of(rng, *sorted(ends, key=lambda end: end.means))
        else:
            event[name] = dress(rng, type_, random_value(rng, case, name, some))
    return event


def interval_of(rng: random.Random, low: Given, high: Given) -> Given:
    ends = (low.given, high.given) if rng.random() < 0.6 else {"low": low.given, "high": high.given}
    return Given(ends, Interval(low.means, high.means), may_refuse=low.may_refuse or high.may_refuse)


def handed_over(event: Event) -> dict[str, Any]:
    """The mapping that the caller passes."""
    return {name: value.given for name, value in event.items() if not value.absent}


def meaning(event: Event) -> dict[str, Value]:
    """What the evaluator looks at."""
    return {name: value.means for name, value in event.items() if not value.missing}


def may_refuse(event: Event) -> bool:
    return any(value.may_refuse for value in event.values())


def refused_values(type_: str) -> list[Any]:
    """Values that must be refused, whatever the subscriptions are."""
    always: list[Any] = [[], ["a", "z"], [1, 2], [None], (1,), (1, 2, 3), {"low": 1}, object(), {1}, b"a"]
    texts = ["\0", "a\0b", "\ud800", "a\udfff", "\ud83d", ("a", "\ud800"), ("\0", "a"), ("b", "a"), 3, True, (1, 2)]
    by_type: dict[str, list[Any]] = {
        "int": [
            2**63,
            -(2**63),
            10**400,
            np.uint64(2**63),
            3.5,
            Decimal("3.5"),
            math.inf,
            "3",
            True,
            (5, 3),
            (1, 2**63),
        ],
        "float": [10**400, 2**53 + 1, "3", True, (5.0, 3.0), ("a", "b"), 1j],
        "string": texts,
        "bool": [1, 0, 2, "true", 1.0, (True, False)],
        "timestamp": [
            *(5, 5.0, True, "yesterday", "2026-02-30", "\ud800", dt.time(12), dt.timedelta(1)),
            *(pd.Timestamp("2026-01-31 00:00:00.000000001"), np.datetime64("2026-01-31T00:00:00.000000001", "ns")),
            *(np.datetime64(1, "ps"), (dt.datetime(2026, 1, 2), dt.datetime(2026, 1, 1))),
            *((pd.Timestamp(1), pd.Timestamp(2000)), "2026-01-31T00:00:00.0000001"),
        ],
    }
    return always + by_type[type_]


# --- tables -----------------------------------------------------------------------------------------------------------


def random_table(
    rng: random.Random, case: Case, nodes: Sequence[Node], rows: int, intervals: bool = False
) -> tuple[pa.Table, list[dict[str, Value]]]:
    """Events as an Arrow table with columns of many types, and what each row means."""
    columns: dict[str, pa.ChunkedArray] = {}
    events: list[dict[str, Value]] = [{} for _ in range(rows)]
    some = rng.sample(list(nodes), min(len(nodes), 10))
    for name, type_ in case.types.items():
        if rng.random() < 0.05 and columns:
            continue  # a column that is not there is missing everywhere
        wide = intervals and rng.random() < 0.5
        values = [
            None if rng.random() < 0.15 else random_value(rng, case, name, some) for _ in range(rows * (1 + wide))
        ]
        if wide:
            ends = [
                sorted(pair) if None not in pair else pair for pair in zip(values[:rows], values[rows:], strict=True)
            ]
            ends = [pair if None not in pair else (None, None) for pair in ends]
            column, means = random_column(rng, type_, [low for low, _ in ends] + [high for _, high in ends])
            low_ends, high_ends = column.slice(0, rows), column.slice(rows)
            if rng.random() < 0.5:
                columns[f"{name}_low"], columns[f"{name}_high"] = low_ends, high_ends
            else:
                absent = pa.array([low is None for low in means[:rows]])
                both = [ends.combine_chunks() for ends in (low_ends, high_ends)]
                columns[name] = pa.chunked_array([pa.StructArray.from_arrays(both, ["low", "high"], mask=absent)])
            found = [
                None if low is None else Interval(low, high)
                for low, high in zip(means[:rows], means[rows:], strict=True)
            ]
        else:
            columns[name], found = random_column(rng, type_, values)
        for event, value in zip(events, found, strict=True):
            if value is not None:
                event[name] = value
    if rng.random() < 0.3:
        columns["a column that nobody asks for"] = pa.chunked_array([pa.nulls(rows)])
    return pa.table(columns), events


def random_column(rng: random.Random, type_: str, values: Sequence[Value]) -> tuple[pa.ChunkedArray, list[Value]]:
    """A column that holds these values, in one of the types that can; and what it holds."""
    known = [value for value in values if value is not None]
    means = list(values)
    if not known and rng.random() < 0.5:
        return pa.chunked_array([pa.nulls(len(values))]), means
    if type_ == "bool":
        array = pa.array(values, pa.bool_())
    elif type_ == "string":
        array = pa.array(values, rng.choice([pa.string(), pa.large_string()]))
        if rng.random() < 0.3:
            array = pa.array(values, pa.string()).dictionary_encode()
    elif type_ == "int":
        fitting = [pa.int64()] + [
            kind
            for kind, of in (
                (pa.int8(), np.int8),
                (pa.int32(), np.int32),
                (pa.uint32(), np.uint32),
                (pa.uint64(), np.uint64),
            )
            if all(within(of, value) for value in known)
        ]
        array = pa.array(values, rng.choice(fitting))
    elif type_ == "float":
        array, means = float_array(rng, values)
    else:
        means = [None if value is None else min(max(value, FIRST_MOMENT), LAST_MOMENT) for value in values]
        array = moment_array(rng, means, [value for value in means if value is not None])
    cut = rng.randint(0, len(values))
    chunks = [array.slice(0, cut), array.slice(cut)] if rng.random() < 0.5 else [array]
    return pa.chunked_array(chunks), means


def float_array(rng: random.Random, values: Sequence[Value]) -> tuple[pa.Array, list[Value]]:
    doubles = [None if value is None else float(value) for value in values]
    kind = rng.random()
    if kind < 0.2:
        with np.errstate(over="ignore"):
            singles = [None if value is None else np.float32(value) for value in doubles]
        return pa.array(singles, pa.float32()), [None if one is None else number(float(one)) for one in singles]
    if kind < 0.45:
        digits, scale = Context(prec=38), 18
        decimals = [
            None
            if value is None
            else Decimal(min(max(value, -9e18), 9e18)).quantize(Decimal(1).scaleb(-scale), context=digits)
            for value in doubles
        ]
        return pa.array(decimals, pa.decimal128(38, scale)), [
            None if one is None else number(float(one)) for one in decimals
        ]
    if kind < 0.55 and all(value is None or (abs(value) <= 2**53 and value == int(value)) for value in doubles):
        return pa.array([None if value is None else int(value) for value in doubles], pa.int64()), list(values)
    if rng.random() < 0.3:
        doubles = [math.nan if value is None else value for value in doubles]
    return pa.array(doubles, pa.float64(), from_pandas=False), list(values)


def moment_array(rng: random.Random, values: Sequence[Value], known: Sequence[int]) -> pa.Array:
    zone = rng.choice([None, "UTC", "Europe/Berlin", "+05:45"])
    if all(value % 1_000_000 == 0 for value in known) and rng.random() < 0.5:
        return pa.array([None if value is None else value // 1_000_000 for value in values], pa.timestamp("s", zone))
    if all(value % 1000 == 0 for value in known) and rng.random() < 0.5:
        return pa.array([None if value is None else value // 1000 for value in values], pa.timestamp("ms", zone))
    if all(abs(value) < 2**62 // 1000 for value in known) and rng.random() < 0.5:
        return pa.array([None if value is None else value * 1000 for value in values], pa.timestamp("ns", zone))
    return pa.array(values, pa.timestamp("us", zone))


def refused_columns(type_: str) -> list[pa.Array]:
    """Columns of events that must be refused."""
    always = [pa.array([["a", "z"]]), pa.array([b"\xff"]), pa.array([dt.time(1)])]
    texts = [
        pa.array(["a\0b"]),
        pa.array(["\0"], pa.large_string()),
        pa.array(["a\0"]).dictionary_encode(),
        pa.array([3]),
    ]
    by_type: dict[str, list[pa.Array]] = {
        "int": [
            *(pa.array([2**63], pa.uint64()), pa.array([-(2**63)], pa.int64()), pa.array([1.5]), pa.array(["1"])),
            *(pa.array([True]), pa.array([Decimal("1.5")]), pa.array([Decimal(2**63)]), pa.array([math.inf])),
        ],
        "float": [pa.array(["1"]), pa.array([True]), pa.array([2**53 + 1]), pa.array([dt.date(2026, 1, 31)])],
        "string": texts,
        "bool": [pa.array([1]), pa.array(["true"]), pa.array([1.0])],
        "timestamp": [
            *(pa.array([1], pa.timestamp("ns")), pa.array([5]), pa.array(["yesterday"]), pa.array([True])),
            *(pa.array([LAST_MOMENT + 1], pa.timestamp("us")), pa.array([FIRST_MOMENT - 1], pa.timestamp("us", "UTC"))),
        ],
    }
    return always + by_type[type_]


def random_bounds(rng: random.Random, case: Case, ids: Sequence[Any]) -> tuple[pa.Table, list[tuple[Node, int]]]:
    """Subscriptions in the wide layout (closed bounds, null is unbounded), and the predicate of each row."""
    columns: dict[str, Any] = {"id": ids}
    nodes: list[list[Node]] = [[] for _ in ids]
    arrow = {"int": pa.int64(), "float": pa.float64(), "string": pa.string(), "bool": pa.bool_()}
    for name in rng.sample(list(case.types), rng.randint(1, len(case.types))):
        type_ = case.types[name]
        lows, highs = [], []
        for row in nodes:
            ends = [bound_literal(rng, case, name), bound_literal(rng, case, name)]
            ends.sort(key=lambda literal: literal.value)
            low, high = (end if rng.random() < 0.7 else None for end in ends)
            lows.append(None if low is None else column_value(type_, low.value))
            highs.append(None if high is None else column_value(type_, high.value))
            row += [Compare(name, sign, end) for sign, end in ((">=", low), ("<=", high)) if end is not None]
        kind = arrow.get(type_, pa.timestamp("us", rng.choice([None, "UTC"])))
        columns[f"{name}_low"], columns[f"{name}_high"] = pa.array(lows, kind), pa.array(highs, kind)
    priorities = [rng.randint(0, 9) for _ in ids]
    if rng.random() < 0.7:
        columns["priority"] = pa.array(priorities, pa.int32())
    else:
        priorities = [4] * len(ids)
    trees: list[Node] = [And((Constant(True), *row)) for row in nodes]
    return pa.table(columns), list(zip(trees, priorities, strict=True))


def bound_literal(rng: random.Random, case: Case, name: str) -> Literal:
    """A literal whose value a column of the attribute's type can hold."""
    literal = random_literal(rng, case, name)
    type_ = case.types[name]
    if type_ == "int":
        value = min(max(math.floor(literal.value), -(2**63) + 1), 2**63 - 1)
        return Literal("integer", value, str(value)) if name not in case.grids else literal
    if type_ == "float":
        return Literal("decimal", Fraction(float(literal.value)), literal.text)
    return literal


def column_value(type_: str, value: Value) -> Any:
    return float(value) if type_ == "float" else int(value) if type_ == "int" else value


def table_of(rows: Mapping[Any, tuple[str, int]], rng: random.Random) -> pa.Table:
    """Subscriptions in the layout with texts."""
    columns: dict[str, Any] = {"id": list(rows), "where": [text for text, _ in rows.values()]}
    columns["priority"] = [priority for _, priority in rows.values()]
    return pa.table(columns)
