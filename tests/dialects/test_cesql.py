"""CESQL expressions: the public conformance cases, and random ones against their meaning."""

from __future__ import annotations

import os
import random
import re
import warnings
from pathlib import Path
from typing import Any

import pytest

from hitbox import Index
from hitbox.dialects import cesql
from hitbox.errors import DialectError, NeverMatches
from support.open_index import open_index

yaml = pytest.importorskip("yaml")

BESIDE = Path(__file__).parents[3] / "shared" / "data" / "cesql"
CASES = Path(os.environ.get("HITBOX_CESQL_CASES", BESIDE))
"""The files of cloudevents/spec, folder cesql/cesql_tck. They are read in place."""
WAYS = pytest.mark.parametrize("known", [True, False, None], ids=["schema", "no schema", "open"])
EVENT = {"specversion": "1.0", "id": "myId", "source": "localhost.localdomain", "type": "myType"}


def names(expression: str) -> set[str]:
    """The words of an expression outside of strings."""
    return {word.lower() for word in re.findall(r"[a-zA-Z]\w*", re.sub(r"'[^']*'|\"[^\"]*\"", "", expression))}


def matches(expression: str, event: dict[str, Any], known: bool | None, types: dict[str, str] | None = None) -> bool:
    """`known`: whether the expression is translated for the schema; None: whether there is one at all."""
    if types is None:
        types = dict.fromkeys((*names(expression), *event), "string")
        types |= {name: "bool" for name, value in event.items() if isinstance(value, bool)}
        types |= {name: "int" for name, value in event.items() if type(value) is int}
    index = open_index() if known is None else Index(types)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NeverMatches)
        index.subscribe(1, cesql.parse(expression, index.schema if known else None))
    return index.match(event) == [1]


def public_cases() -> list[Any]:
    found = []
    for file in sorted(CASES.glob("*.yaml")):
        cases = yaml.safe_load(file.read_text())["tests"]
        judged = [case for case in cases if isinstance(case.get("result"), bool) or case.get("error") == "parse"]
        found += [pytest.param(case, id=f"{file.stem}: {case['name']}") for case in judged]
    return found


@WAYS
@pytest.mark.parametrize("case", public_cases())
def test_public_cases(case: dict[str, Any], known: bool | None) -> None:
    event = case.get("event", EVENT) | case.get("eventOverrides", {})
    event = {name: value if isinstance(value, (bool, int)) else str(value) for name, value in event.items()}
    if case.get("error") in ("parse", "missingFunction"):
        with pytest.raises(DialectError):
            cesql.parse(str(case["expression"]))
        return
    expression = case["expression"]
    assert matches(str(expression), event, known) == case["result"]


def test_the_public_cases_are_there() -> None:
    if not public_cases():
        pytest.skip(f"NOT TESTED: no public CESQL cases at {CASES} (set HITBOX_CESQL_CASES)")
    assert len(public_cases()) > 100


@WAYS
def test_an_error_on_the_left_is_not_forgotten(known: bool | None) -> None:
    for expression, event, wanted in (
        ("missing = 'x' OR TRUE", {}, False),
        ("TRUE OR missing = 'x'", {}, True),
        ("a = 'x' OR b = 'y'", {"a": "x"}, True),
        ("a = 'x' OR b = 'y'", {"b": "y"}, False),
        ("a = 'x' OR b = 'y'", {"a": "z", "b": "y"}, True),
        ("NOT (a = 'x' AND b = 'y')", {"a": "z"}, True),
        ("NOT (a = 'x' AND b = 'y')", {"b": "z"}, False),
        ("NOT (a = 'x' OR b = 'y')", {"a": "z"}, False),
        ("a = 'x' XOR b = 'y'", {"a": "x"}, False),
        ("a IN (b, 'x')", {"a": "x"}, False),
        ("a IN ('x', b)", {"a": "x"}, True),
        ("a NOT IN ('x', b)", {"a": "y"}, False),
        ("a NOT IN ('x', 'z')", {"a": "y"}, True),
        ("a NOT LIKE 'x%'", {"a": "y"}, True),
        ("a NOT LIKE 'x%'", {}, False),
        ("1 / INT(a) = 0 OR TRUE", {"a": "0"}, False),
        ("id = 'x' OR type = 'myType'", EVENT, True),
    ):
        assert matches(expression, event, known) == wanted, expression


def test_precedence() -> None:
    assert cesql.parse("FALSE AND FALSE OR TRUE") == "FALSE"  # from the right
    assert cesql.parse("TRUE OR TRUE AND FALSE") == "TRUE"
    assert cesql.parse("NOT FALSE = FALSE") == "FALSE"  # NOT binds tighter
    assert cesql.parse("2 + 3 * 4 = 14") == "TRUE"
    assert cesql.parse("10 - 3 - 2 = 5") == "TRUE"
    assert cesql.parse("-7 / 2 = -3 AND -7 % 2 = -1") == "TRUE"
    assert cesql.parse("1 = 1 = TRUE") == "TRUE"


@WAYS
def test_functions_of_attributes(known: bool | None) -> None:
    event = {"a": "Abc", "n": "-5"}
    for expression in ("LOWER(a) = 'abc'", "UPPER(a) LIKE 'AB%'", "LENGTH(a) = 3", "ABS(n) = 5", "INT(n) + 1 < -3",
                       "-n = 5", "STRING(n) = '-5'", "a != 'x' AND n <> 3", "LENGTH(STRING(n)) IN (1, 2)"):  # fmt: skip
        assert matches(expression, event, known), expression


def test_the_types_of_a_schema() -> None:
    types = {"n": "int", "b": "bool", "at": "timestamp", "s": "string"}
    event = {"n": 5, "b": True, "at": "2018-04-26T12:48:09Z", "s": "true"}
    for expression, wanted in (
        ("n = 5", True),
        ("n = '5'", True),
        ("n LIKE '5%'", True),
        ("n IN ('5', 6)", True),
        ("b", True),
        ("b = 'true'", True),
        ("b = 'TRUE'", False),
        ("s AND b", True),
        ("s = b", True),
        ("b = s", True),
        ("n AND TRUE", True),
        ("NOT n", True),
        ("b + 1 = 2", True),
        ("at = '2018-04-26T12:48:09Z'", True),
        ("at LIKE '2018-%'", True),
        ("at > 5", False),
        ("EXISTS at AND NOT EXISTS id", False),
    ):
        assert matches(expression, event, True, {**types, "id": "string"}) == wanted, expression
    with pytest.raises(DialectError, match="float"):
        cesql.parse("x = 5", {"x": "float"})
    with pytest.raises(DialectError, match="did you mean 'subject'"):
        cesql.parse("subjct = 'x'", {"subject": "string"})


def test_names_are_in_small_letters() -> None:
    assert cesql.parse("MyExt = 'x' AND NULL = 'y'") == "myext = 'x' AND \"null\" = 'y'"
    assert cesql.parse("EXISTS 1abc") == '"1abc" IS NOT NULL'


BAD = [
    ("", "expected a value"),
    ("a =", "expected a value"),
    ("(a = 'x'", "an operator or '\\)'"),
    ("a = 'x')", "an operator or the end"),
    ("a b", "an operator or the end"),
    ("'abc'", "of type string, and a filter is a Boolean"),
    ("1 + 1", "of type int"),
    ("LENGTH(a)", "of type int"),
    ("a LIKE b", "a pattern"),
    ("a LIKE 123", "a pattern"),
    ("a IN ()", "expected a value"),
    ("a IN 'x'", "a set of values"),
    ("EXISTS 'x'", "name of an attribute"),
    ("EXISTS (a)", "name of an attribute"),
    ("ABC(a)", "unknown function"),
    ("LOWR(a) = 'x'", "did you mean 'LOWER'"),
    ("LOWER() = 'x'", "does not take 0"),
    ("LEFT(a, 1) = 'x'", "cannot be expressed"),
    ("CONCAT(a, 'x') = 'yx'", "cannot be expressed"),
    ("TRIM(a) = 'x'", "cannot be expressed"),
    ("SUBSTRING(a, 1, 2) = 'x'", "cannot be expressed"),
    ("(a = 'x') LIKE 't%'", "cannot be expressed"),
    ("a = 2147483648", "32 bits"),
    ("a = -2147483649", "32 bits"),
    ("a = 1.5", "numbers are whole"),
    ("data.x = 1", "not its data"),
    ("my_ext = 'x'", "letters and digits"),
    ("'abc", "no closing quote"),
    ("+a = 1", "a \\+ stands before"),
    ("a = 'x' \0", "NUL"),
    ("a = $1", "unexpected character"),
]


@pytest.mark.parametrize(("expression", "message"), BAD)
def test_errors_say_what_and_where(expression: str, message: str) -> None:
    with pytest.raises(DialectError, match=message) as caught:
        cesql.parse(expression)
    assert caught.value.position is not None


def test_hostile_expressions() -> None:
    assert cesql.parse("(" * 100 + "EXISTS a" + ")" * 100) == "a IS NOT NULL"
    for deep in ("(" * 101 + "EXISTS a" + ")" * 101, "(" * 100_000, "LOWER(" * 5000):
        with pytest.raises(DialectError, match="nested more than 100"):
            cesql.parse(deep)
    assert cesql.parse("NOT " * 50_000 + "EXISTS a") == "a IS NOT NULL"
    chain = " AND ".join(f"a = '{number}'" for number in range(10_000))
    assert cesql.parse(chain) == chain
    either = " OR ".join("EXISTS a" for _ in range(10_000))
    assert cesql.parse(either).count("a IS NOT NULL") == 10_000
    nested = "a = 'x'"
    for _ in range(60):
        nested = f"(({nested}) OR b = 'y') AND c = 'z' XOR d = 'w'"
    with pytest.raises(DialectError, match=r"characters|nested"):
        cesql.parse(nested)
    for wrong in (None, 5, b"TRUE", ["a"]):
        with pytest.raises(DialectError, match="is a text"):
            cesql.parse(wrong)  # type: ignore[arg-type]


# ---- random expressions against their meaning, computed beside them


class Failure(Exception):
    pass


TYPES = {"s": "string", "t": "string", "i": "int", "b": "bool"}


def cast(value: Any, kind: type) -> Any:
    if type(value) is kind:
        return value
    if kind is str:
        return str(value).lower() if isinstance(value, bool) else str(value)
    if kind is int:
        if isinstance(value, str) and not re.fullmatch("[+-]?[0-9]+", value):
            raise Failure
        return int(value)
    if isinstance(value, int):
        return value != 0
    if value.lower() not in ("true", "false"):
        raise Failure
    return value.lower() == "true"


def meaning(tree: Any, event: dict[str, Any]) -> Any:
    op, *parts = tree
    if op == "literal":
        return parts[0]
    if op == "name":
        if event.get(parts[0]) is None:
            raise Failure
        return event[parts[0]]
    if op == "EXISTS":
        return event.get(parts[0]) is not None
    left = meaning(parts[0], event)
    if op == "NOT":
        return True if type(left) is int else not cast(left, bool)
    if op in ("AND", "OR"):
        if cast(left, bool) == (op == "OR"):
            return op == "OR"
        return cast(meaning(parts[1], event), bool)
    if op == "LIKE":
        return re.fullmatch(parts[1].replace("%", ".*").replace("_", "."), cast(left, str)) is not None
    if op == "IN":
        return any(cast(meaning(one, event), type(left)) == left for one in parts[1])
    right = meaning(parts[1], event)
    if op == "XOR":
        return cast(left, bool) != cast(right, bool)
    if op in ("=", "!="):
        return (cast(left, type(right)) == right) == (op == "=")
    left, right = cast(left, int), cast(right, int)
    if op in "+-*":
        return {"+": left + right, "-": left - right, "*": left * right}[op]
    if op in "/%":
        if right == 0:
            raise Failure
        quotient = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)
        return quotient if op == "/" else left - right * quotient
    return {"<": left < right, "<=": left <= right, ">": left > right, ">=": left >= right}[op]


def written(tree: Any) -> str:
    op, *parts = tree
    if op == "literal":
        return f"'{parts[0]}'" if isinstance(parts[0], str) else str(parts[0])
    if op in ("name", "EXISTS"):
        return parts[0] if op == "name" else f"EXISTS {parts[0]}"
    if op == "NOT":
        return f"NOT ({written(parts[0])})"
    if op == "LIKE":
        return f"({written(parts[0])}) LIKE '{parts[1]}'"
    if op == "IN":
        return f"({written(parts[0])}) IN ({', '.join(map(written, parts[1]))})"
    return f"({written(parts[0])}) {op} ({written(parts[1])})"


def condition(rng: random.Random, depth: int) -> Any:
    kind = rng.random()
    if depth and kind < 0.6:
        op = rng.choice(["AND", "OR", "XOR", "NOT"])
        parts = [condition(rng, depth - 1) for _ in range(1 if op == "NOT" else 2)]
        return (op, *parts)
    if kind < 0.65:
        return ("EXISTS", rng.choice(list(TYPES)))
    if kind < 0.7:
        return rng.choice([("name", rng.choice(list(TYPES))), ("literal", rng.choice([True, False, "true", "x", 1]))])
    if kind < 0.78:
        return ("LIKE", value(rng, 1), rng.choice(["t%", "%e", "1%", "_", "%"]))
    if kind < 0.86:
        return ("IN", value(rng, 1), [value(rng, 0) for _ in range(rng.randint(1, 3))])
    return (rng.choice(["=", "!=", "<", "<=", ">", ">="]), value(rng, 2), value(rng, 1))


def value(rng: random.Random, depth: int) -> Any:
    if depth and rng.random() < 0.3:
        return (rng.choice(["+", "-", "*", "/", "%"]), value(rng, depth - 1), value(rng, depth - 1))
    if rng.random() < 0.6:
        return ("name", rng.choice(list(TYPES)))
    return ("literal", rng.choice([0, 1, 5, "1", "5", "true", "FALSE", "x", True, False]))


def test_random_expressions() -> None:
    rng, index = random.Random(5), Index(TYPES)
    trees: list[Any] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NeverMatches)
        while len(trees) < 500:
            tree = ("AND", ("literal", True), condition(rng, 3))
            index.subscribe(len(trees), cesql.parse(written(tree), TYPES))
            trees.append(tree)
    pools = {"string": ["1", "5", "true", "FALSE", "x", "05"], "int": [0, 1, 5, -1], "bool": [True, False]}
    for _ in range(150):
        event = {name: rng.choice([None, *pools[type_]]) for name, type_ in TYPES.items()}

        def holds(tree: Any, event: dict[str, Any] = event) -> bool:
            try:
                return cast(meaning(tree, event), bool)
            except Failure:
                return False

        wanted = [number for number, tree in enumerate(trees) if holds(tree)]
        found = sorted(index.match(event))
        assert found == wanted, [(written(trees[n]), index.where(n), event) for n in set(found) ^ set(wanted)][:2]
