"""Selectors mean what the specification of JMS says, whichever way they are translated."""

from __future__ import annotations

import random
import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from hitbox import Index
from hitbox.dialects import jms
from hitbox.errors import DialectError, NeverMatches
from support.open_index import open_index

SCHEMA = {
    "JMSType": "string",
    "JMSPriority": "int",
    "JMSDeliveryMode": "string",
    "JMSXGroupID": "string",
    "colour": "string",
    "weight": "float",
    "age": "int",
    "Country": "string",
    "phone": "string",
    "word": "string",
    "underscored": "string",
    "flag": "bool",
    "$amount": "int",
    "größe": "int",
    "limit": "float",
}


def matches(selector: str, event: dict[str, Any], known: bool | None = True, schema: Any = SCHEMA) -> bool:
    """`known`: whether the selector is translated for the schema; None: whether there is one at all."""
    index = open_index() if known is None else Index(schema)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NeverMatches)
        index.subscribe(1, jms.parse(selector, index.schema if known else None))
    return index.match(event) == [1]


WAYS = pytest.mark.parametrize("known", [True, False, None], ids=["schema", "no schema", "open"])
DOCUMENTED: list[tuple[str, dict[str, Any], bool]] = [
    ("", {}, True),
    ("  \t\n", {"age": 1}, True),
    (
        "JMSType = 'car' AND colour = 'blue' AND weight > 2500",
        {"JMSType": "car", "colour": "blue", "weight": 2501},
        True,
    ),
    (
        "JMSType = 'car' AND colour = 'blue' AND weight > 2500",
        {"JMSType": "car", "colour": "blue", "weight": 2500},
        False,
    ),
    ("age BETWEEN 15 AND 19", {"age": 15}, True),
    ("age BETWEEN 15 AND 19", {"age": 19}, True),
    ("age between 15 and 19", {"age": 20}, False),
    ("age NOT BETWEEN 15 AND 19", {"age": 14}, True),
    ("age NOT BETWEEN 15 AND 19", {"age": 17}, False),
    ("age NOT BETWEEN 15 AND 19", {}, False),
    ("Country IN (' UK', 'US', 'France')", {"Country": "France"}, True),
    ("Country IN ('UK', 'US', 'France')", {"Country": "Peru"}, False),
    ("Country NOT IN ('UK', 'US', 'France')", {"Country": "Peru"}, True),
    ("Country NOT IN ('UK', 'US', 'France')", {}, False),
    ("phone LIKE '12%3'", {"phone": "123"}, True),
    ("phone LIKE '12%3'", {"phone": "12993"}, True),
    ("phone LIKE '12%3'", {"phone": "1234"}, False),
    ("word LIKE 'l_se'", {"word": "lose"}, True),
    ("word LIKE 'l_se'", {"word": "loose"}, False),
    ("underscored LIKE '\\_%' ESCAPE '\\'", {"underscored": "_foo"}, True),
    ("underscored LIKE '\\_%' ESCAPE '\\'", {"underscored": "bar"}, False),
    ("phone NOT LIKE '12%3'", {"phone": "123"}, False),
    ("phone NOT LIKE '12%3'", {"phone": "1234"}, True),
    ("phone NOT LIKE '12%3'", {}, False),
    ("word IS NULL", {}, True),
    ("word IS NULL", {"word": None}, True),
    ("word IS NOT NULL", {"word": "x"}, True),
    ("word = 'it''s'", {"word": "it's"}, True),
    ("flag", {"flag": True}, True),
    ("flag", {"flag": False}, False),
    ("NOT flag", {"flag": False}, True),
    ("NOT flag", {}, False),
    ("flag = TRUE AND age > 1", {"flag": True, "age": 2}, True),
    ("flag <> false", {"flag": True}, True),
    ("(age > 3) = TRUE", {"age": 4}, True),
    ("TRUE", {}, True),
    ("FALSE OR 1 = 1", {}, True),
    ("1 <> 1.0", {}, False),
    ("'a' = 1", {}, False),
    ("NOT ('a' = 1)", {}, True),
    ("5 < age", {"age": 6}, True),
    ("age = 0x1F", {"age": 31}, True),
    ("age = 0X1fL", {"age": 31}, True),
    ("age = 017", {"age": 15}, True),
    ("age = 0b101", {"age": 5}, True),
    ("age = 1_000", {"age": 1000}, True),
    ("age = 62L", {"age": 62}, True),
    ("age = +62", {"age": 62}, True),
    ("age = -957", {"age": -957}, True),
    ("weight = 7E3", {"weight": 7000}, True),
    ("weight = -57.9E2", {"weight": -5790}, True),
    ("weight = 7.", {"weight": 7}, True),
    ("weight = .5", {"weight": 0.5}, True),
    ("weight = 2.5F", {"weight": 2.5}, True),
    ("weight = 0.1F", {"weight": 0.10000000149011612}, True),
    ("weight = 0.1F", {"weight": 0.1}, False),
    ("weight = 0.1d", {"weight": 0.1}, True),
    ("weight = 0x1.8p1", {"weight": 3}, True),
    ("weight = 1e400 OR TRUE", {}, True),
    ("age + 2 * 3 = 10", {"age": 4}, True),
    ("(age + 2) * 3 = 18", {"age": 4}, True),
    ("age - -2 = 6", {"age": 4}, True),
    ("-age = -4", {"age": 4}, True),
    ("- -age = 4", {"age": 4}, True),
    ("-(-age) = 4", {"age": 4}, True),
    ("age / 2 = 3", {"age": 7}, True),
    ("weight / 2 = 3.5", {"weight": 7.0}, True),
    ("age / 2 = 61", {"age": 123}, True),
    ("age / 2 = 61.5", {"age": 123}, False),
    ("age / 2.0 = 61.5", {"age": 123}, True),
    ("age / 2 = -3", {"age": -7}, True),
    ("123 / 2 = 61", {}, True),
    ("123 / 2 = 61.5", {}, False),
    ("123 / 2. = 61.5", {}, True),
    ("+age = 62", {"age": 62}, True),
    ("+age + +weight = 64.5", {"age": 62, "weight": 2.5}, True),
    ("+(-age) = -62", {"age": 62}, True),
    ("+age BETWEEN 61 AND +age", {"age": 62}, True),
    ("age / 0 = 1", {"age": 7}, False),
    ("NOT (age / 0 = 1)", {"age": 7}, False),
    ("weight > limit", {"weight": 7, "limit": 6}, True),
    ("weight > limit", {"weight": 7}, False),
    ("weight + 1 BETWEEN limit - 1 AND limit + 1", {"weight": 7, "limit": 8}, True),
    ("JMSPriority >= 5 AND JMSXGroupID = 'g'", {"JMSPriority": 5, "JMSXGroupID": "g"}, True),
    ("JMSDeliveryMode = 'PERSISTENT'", {"JMSDeliveryMode": "PERSISTENT"}, True),
    ("$amount > 1 AND größe = 2", {"$amount": 2, "größe": 2}, True),
    ("age > 5 OR colour = 'red'", {"colour": "red"}, True),
    ("age > 5 AND colour = 'red'", {"colour": "red"}, False),
    ("NOT (age > 5 AND colour = 'red')", {"colour": "blue"}, True),
    ("NOT (age > 5 OR colour = 'red')", {"colour": "blue"}, False),
    ("age > 5 OR age < 3 AND colour = 'red'", {"age": 6}, True),
    ("NOT age > 5", {"age": 5}, True),
    ("NOT age = 5 AND colour = 'red'", {"age": 4, "colour": "red"}, True),
    ("Colour = 'red' OR age = 1", {"age": 1}, False),
]


@WAYS
@pytest.mark.parametrize(("selector", "event", "wanted"), DOCUMENTED)
def test_documented_selectors(selector: str, event: dict[str, Any], wanted: bool, known: bool | None) -> None:
    if "1e400" in selector:
        with pytest.raises(DialectError, match="beyond the range"):
            jms.parse(selector)
        return
    if "Colour" in selector:  # names are case-sensitive
        with pytest.raises(DialectError, match="did you mean 'colour'"):
            jms.parse(selector, SCHEMA)
        return
    assert matches(selector, event, known) == wanted


def test_a_comparison_of_unlike_types_is_false() -> None:
    for selector, event, wanted in (
        ("age = '5'", {"age": 5}, False),
        ("NOT (age = '5')", {"age": 5}, True),
        ("NOT (age = '5')", {}, False),
        ("age <> '5'", {"age": 5}, False),
        ("NOT (age <> '5')", {"age": 5}, True),
        ("colour = 5 OR flag = 1", {"colour": "5", "flag": True}, False),
        ("colour = flag", {"colour": "x", "flag": True}, False),
        ("colour > age", {"colour": "x", "age": 1}, None),
        ("age LIKE '5%'", {"age": 5}, False),
        ("age IN ('5', 6)", {"age": 6}, True),
        ("age IN ('5')", {"age": 5}, False),
        ("age NOT IN ('5')", {"age": 5}, True),
    ):
        if wanted is None:
            with pytest.raises(DialectError, match="= and <> only"):
                jms.parse(selector, SCHEMA)
        else:
            assert matches(selector, event) == wanted, selector


def test_unlike_types_without_a_schema() -> None:
    for selector, event, wanted in (
        ("age = '5'", {"age": 5}, False),
        ("NOT (age = '5')", {"age": 5}, True),
        ("NOT (age = '5')", {}, False),
        ("age <> '5'", {"age": 5}, False),
        ("NOT (age <> 5)", {"age": "x"}, True),
        ("age > 5", {"age": "9"}, False),
        ("NOT age > 5", {"age": "9"}, True),
        ("age = 5 OR age = 'x'", {"age": "x"}, True),
        ("age IN ('5', 6)", {"age": 6}, True),
        ("age NOT IN ('5', 6)", {"age": 5}, True),
        ("age NOT IN ('5', 6)", {"age": "5"}, False),
        ("flag = TRUE", {"flag": "true"}, False),
        ("a = b", {"a": 1, "b": "1"}, False),
        ("a = b", {"a": 1, "b": 1.0}, True),
        ("NOT (a = b)", {"a": 1, "b": "1"}, True),
        ("a < b", {"a": 1, "b": 2}, True),
        ("a < b", {"a": "x", "b": "y"}, False),
        ("a < b", {"a": False, "b": True}, False),
        ("NOT (a < b)", {"a": "x", "b": "y"}, True),
        ("NOT (a < b)", {"a": "x", "b": 2}, True),
        ("NOT (a < b)", {"a": "x"}, False),
        ("a BETWEEN b AND c", {"a": "y", "b": "x", "c": "z"}, False),
        ("a BETWEEN b AND c", {"a": 2, "b": 1, "c": 3.5}, True),
        ("a NOT BETWEEN b AND 5", {"a": "y", "b": "z"}, False),
        ("+a = +b", {"a": "x", "b": "x"}, False),
        ("+a = b", {"a": "x", "b": "x"}, False),
        ("+a = b", {"a": 1, "b": 1}, True),
        ("+a = 1", {"a": "1"}, False),
    ):
        assert matches(selector, event, None) == wanted, selector


def test_a_negation_without_a_schema_says_what_other_types_mean() -> None:
    text = jms.parse("NOT (age = 5)")
    assert text == "age <> 5 OR age IS NOT NULL AND (age = 5) IS NULL"
    assert [matches("NOT (age = 5)", event, known=False) for event in ({"age": 5}, {"age": 6}, {})] == [
        False,
        True,
        False,
    ]


SIGNED = ["+city = 'London'", "'London' <> +city", "-city = 'London'", "+(city) = 'London'", "city + 1 = 'London'"]


@pytest.mark.parametrize(
    "selector", [*SIGNED, "+city = TRUE", "+city", "NOT +city", "+city LIKE 'L%'", "+city IS NULL"]
)
@pytest.mark.parametrize("type_", [None, "string", "int", "bool"])
def test_arithmetic_is_of_numbers(selector: str, type_: str | None) -> None:
    with pytest.raises(DialectError, match=r"arithmetic|a name alone") as caught:
        jms.parse(selector, type_ and {"city": type_})
    assert caught.value.position is not None


BAD = [
    ("age >", "expected a name, a literal"),
    ("age > 5 AND", "expected a name, a literal"),
    ("(age > 5", "AND, OR or '\\)'"),
    ("age > 5)", "AND, OR or the end"),
    ("age 5", "AND, OR or the end"),
    ("age = NULL", "IS NULL"),
    ("age != 5", "JMS writes <>"),
    ("age % 5 = 0", "no remainder"),
    ("age = 5;", "one condition"),
    ("age = ?", "no parameters"),
    ("'a", "no closing quote"),
    ('age = "x"', "single quotes"),
    ("a.b = 5", "no dots"),
    ("5", "no condition"),
    ("'x' AND TRUE", "no condition"),
    ("age + 1", "no condition"),
    ("colour < 'x'", "= and <> only"),
    ("flag >= TRUE", "= and <> only"),
    ("(age > 1) > TRUE", "= and <> only"),
    ("age BETWEEN 'a' AND 'b'", "arithmetic takes numbers"),
    ("age BETWEEN 1", "AND and the upper bound"),
    ("age + 'x' = 1", "arithmetic takes numbers"),
    ("age + TRUE = 1", "arithmetic takes numbers"),
    ("age = 1 = 1", "do not chain"),
    ("age + 1 IN ('x')", "name alone"),
    ("'x' LIKE 'x'", "name alone"),
    ("5 IS NULL", "name alone"),
    ("age IS 5", "NULL or NOT NULL"),
    ("age IS TRUE", "NULL or NOT NULL"),
    ("age IN ()", "expected a name, a literal"),
    ("age IN (age)", "holds literals"),
    ("age IN 'x'", "list of strings"),
    ("colour LIKE 5", "a pattern"),
    ("colour LIKE age", "a pattern"),
    ("colour LIKE 'x' ESCAPE 'ab'", "exactly one character"),
    ("colour LIKE 'x!' ESCAPE '!'", "write it twice"),
    ("age = 08", "not one of Java's"),
    ("age = 1.2.3", "not one of Java's"),
    ("age = 5x", "not one of Java's"),
    ("age = 0x", "not one of Java's"),
    ("age = 1__", "underscore"),
    ("age = 9223372036854775808", "does not fit a long"),
    ("age = 1e999", "beyond the range"),
    ("age = 1e39f", "beyond the range"),
    ("ABS(age) = 1", "no functions"),
    ("JMSDestination = 'x'", "cannot be used in a selector"),
    ("JMSRedelivered", "cannot be used in a selector"),
    ("a = NOT b", "in parentheses"),
    ("age = 5 \0", "NUL"),
    ("age = 5 \ud800", "surrogate"),
    ("^", "unexpected character"),
]


@pytest.mark.parametrize(("selector", "message"), BAD)
def test_errors_say_what_and_where(selector: str, message: str) -> None:
    with pytest.raises(DialectError, match=message) as caught:
        jms.parse(selector)
    assert caught.value.position is not None


def test_hostile_selectors() -> None:
    assert jms.parse("(" * 100 + "age = 1" + ")" * 100) == "age = 1"
    for deep in ("(" * 101 + "age = 1" + ")" * 101, "(" * 100_000, "NOT (" * 101 + "a = 1" + ")" * 101):
        with pytest.raises(DialectError, match="nested more than 100"):
            jms.parse(deep)
    assert jms.parse("NOT " * 50_000 + "flag") == "flag = TRUE"
    assert jms.parse("-" * 50_001 + "a = 1") == "-a = 1"
    with pytest.raises(DialectError, match="characters"):
        jms.parse("a" * 600_000)
    with pytest.raises(DialectError, match="1,000 digits"):
        jms.parse("a = " + "1" * 2000)
    chain = " OR ".join(f"a = {number}" for number in range(20_000))
    assert jms.parse(chain) == chain
    chain = " AND ".join(["(a = 1 OR b = 2)"] * 5000)
    assert jms.parse(chain) == chain
    for wrong in (None, 5, b"a = 1", ["a"]):
        with pytest.raises(DialectError, match="is a text"):
            jms.parse(wrong)  # type: ignore[arg-type]


def test_keywords_of_ours_are_names_there() -> None:
    schema = dict.fromkeys(("XOR", "ANY", "old", "Timestamp", "missing"), "int")
    assert matches(
        "XOR = 1 AND ANY = 2 AND old = 3 AND Timestamp = 4 AND missing = 5",
        {"XOR": 1, "ANY": 2, "old": 3, "Timestamp": 4, "missing": 5},
        schema=schema,
    )


def test_types_that_jms_does_not_have() -> None:
    with pytest.raises(DialectError, match="timestamp"):
        jms.parse("at = 5", {"at": "timestamp"})
    with pytest.raises(DialectError, match=re.escape("string[]")):
        jms.parse("tags = 'x'", {"tags": "string[]"})


# ---- random selectors against their meaning, computed beside them

TYPES = {"i": "int", "j": "int", "f": "float", "s": "string", "t": "string", "b": "bool"}
Meaning = Callable[[dict[str, Any]], Any]


def divided(a: float, b: float) -> float | None:
    """As in Java, but for a division by zero."""
    if b == 0:
        return None
    if isinstance(a, int) and isinstance(b, int):
        return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
    return a / b


class Maker:
    """Texts, and functions that say what they mean: True, False or None for unknown."""

    def __init__(self, seed: int, alike: bool):
        self.rng, self.alike = random.Random(seed), alike

    def condition(self, depth: int) -> tuple[str, Meaning]:
        rng = self.rng
        kind = rng.random()
        if depth and kind < 0.55:
            op = rng.choice(["AND", "OR", "and", "NOT"])
            one, of_one = self.condition(depth - 1)
            if op == "NOT":
                return f"NOT ({one})", lambda e: None if of_one(e) is None else not of_one(e)
            two, of_two = self.condition(depth - 1)
            decides = op == "OR"

            def joined(event: dict[str, Any]) -> Any:
                both = [of_one(event), of_two(event)]
                return decides if decides in both else None if None in both else not decides

            return f"({one}) {op} ({two})", joined
        if kind < 0.62:
            return "b", lambda e: e.get("b")
        if kind < 0.7:
            name, negated = rng.choice(list(TYPES)), rng.random() < 0.5
            return f"{name} IS {'NOT ' if negated else ''}NULL", lambda e: (e.get(name) is None) != negated
        if kind < 0.78:
            (of, value), (low, first), (high, last) = self.number(1), self.number(0), self.number(0)
            negated = rng.random() < 0.4

            def between(event: dict[str, Any]) -> Any:
                v, a, b = value(event), first(event), last(event)
                ends = [None if v is None or a is None else a <= v, None if v is None or b is None else v <= b]
                inside = False if False in ends else None if None in ends else True
                return None if inside is None else inside != negated

            return f"{of} {'NOT ' if negated else ''}BETWEEN {low} AND {high}", between
        if kind < 0.86:
            name, negated = rng.choice("st"), rng.random() < 0.4
            if rng.random() < 0.5:
                some = rng.sample(["a", "b", "ab", "it's"], 2)
                listed = ", ".join("'" + one.replace("'", "''") + "'" for one in some)
                text, holds = f"IN ({listed})", lambda v: v in some
            else:
                pattern = rng.choice(["a%", "_b", "%", "!%%", "a"])
                text = f"LIKE '{pattern}' ESCAPE '!'"
                expression = {"a%": "a.*", "_b": ".b", "%": ".*", "!%%": "%.*", "a": "a"}[pattern]
                holds = lambda v: re.fullmatch(expression, v) is not None  # noqa: E731
            text = f"{name} {'NOT ' if negated else ''}{text}"
            return text, lambda e: None if e.get(name) is None else holds(e[name]) != negated
        op = rng.choice(["=", "<>", "<", "<=", ">", ">="])
        if rng.random() < 0.5:
            (one, left), (two, right) = self.number(2), self.number(1)
        else:
            op = rng.choice(["=", "<>"])
            kinds = [rng.choice([self.text, self.boolean, lambda: self.number(0)]) for _ in range(2)]
            (one, left), (two, right) = kinds[0](), kinds[0 if self.alike else 1]()

        def compared(event: dict[str, Any]) -> Any:
            a, b = left(event), right(event)
            if a is None or b is None:
                return None
            if isinstance(a, str) != isinstance(b, str) or isinstance(a, bool) != isinstance(b, bool):
                return False
            return {"=": a == b, "<>": a != b}[op] if op in ("=", "<>") else eval(f"a {op} b")

        return f"{one} {op} {two}", compared

    def text(self) -> tuple[str, Meaning]:
        if self.rng.random() < 0.5:
            name = self.rng.choice("st")
            return name, lambda e: e.get(name)
        value = self.rng.choice(["a", "b", "ab"])
        return f"'{value}'", lambda e: value

    def boolean(self) -> tuple[str, Meaning]:
        if self.rng.random() < 0.5:
            return "b", lambda e: e.get("b")
        value = self.rng.random() < 0.5
        return str(value), lambda e: value

    def number(self, depth: int) -> tuple[str, Meaning]:
        rng = self.rng
        if depth and rng.random() < 0.4:
            (one, left), (two, right) = self.number(depth - 1), self.number(depth - 1)
            op = rng.choice("+-*/")

            def calculated(event: dict[str, Any]) -> Any:
                a, b = left(event), right(event)
                if a is None or b is None:
                    return None
                return divided(a, b) if op == "/" else {"+": a + b, "-": a - b, "*": a * b}[op]

            return f"({one}) {op} ({two})", calculated
        if rng.random() < 0.6:
            name = rng.choice("ijf")
            return name, lambda e: e.get(name)
        text, value = rng.choice(
            [("1", 1), ("0x2", 2), ("-3", -3), ("2.5", 2.5), ("+1e1", 10.0), ("5L", 5), (".5f", 0.5)]
        )
        return text, lambda e: value


@WAYS
def test_random_selectors(known: bool | None) -> None:
    index: Any = open_index() if known is None else Index(TYPES)
    maker = Maker(3, alike=known is False)
    meanings: list[tuple[str, Meaning]] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NeverMatches)
        while len(meanings) < 400:
            text, meaning = maker.condition(3)
            index.subscribe(len(meanings), jms.parse(text, TYPES if known else None))
            meanings.append((text, meaning))
    pools = {
        "int": [-3, 0, 1, 2, 5],
        "float": [0.5, 2.5, 1.0, -3.0],
        "string": ["a", "b", "ab", "%a", "it's"],
        "bool": [True, False],
    }
    for _ in range(150):
        event = {name: maker.rng.choice([None, *pools[type_]]) for name, type_ in TYPES.items()}
        wanted = [number for number, (_, meaning) in enumerate(meanings) if meaning(event) is True]
        found = sorted(index.match(event))
        assert found == wanted, [(meanings[n][0], index.where(n), event) for n in set(found) ^ set(wanted)][:2]
