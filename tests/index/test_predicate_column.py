"""Predicates that are read condition by condition, in a column or alone, are what `language` makes of each text."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import hitbox
from hitbox import language
from hitbox.encoding.keys import Keys
from hitbox.encoding.schema import OpenSchema
from hitbox.errors import HitboxError
from hitbox.index.load import bulk_load, predicate_column, predicate_text
from hitbox.index.load.condition_reader import MOST_ASKED, ConditionReader
from hitbox.index.load.predicate_text import ParsedPredicate, PredicateTexts, ReadPredicate
from hitbox.language import DEFAULT_LIMITS, Limits
from support.comparison import mangled
from support.predicates import SCHEMA, random_leaf, random_predicate
from support.random_cases import random_case, random_node, spell

NAMES = list(SCHEMA)
GRIDS = hitbox.Schema(
    {
        "step": hitbox.Attribute("float", domain=(0, 5), precision="0.5"),
        "even": hitbox.Attribute("int", domain=(-10, 40), precision=1),
        "five": hitbox.Attribute("int", domain=(-10, 40), precision=5),
        "third": hitbox.Attribute("float", domain=(0, 1), precision="1/3"),
        "größe": "float",
        "timestamp": "timestamp",
        "in": "int",
        "b": "bool",
        "s": "string",
    }
)


@pytest.fixture(autouse=True)
def read_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predicate_column, "MAX_PARSED_ROWS", 0)


def one_by_one(
    texts: Sequence[str | None], schema: hitbox.Schema, keys: Keys, limits: Limits
) -> Iterator[tuple[list[Any], list[bool], Any] | str]:
    """What each text comes to by itself: its boxes, whether they are exact, and its program, or the error."""
    for text in texts:
        try:
            predicate = language.parse(text or "", schema, role="criteria", limits=limits)
            keys.admit(language.strings(predicate, keys))
            made = language.compile(predicate, keys, limits, anchored=True)
            yield made.boxes, made.exact, made.program
        except HitboxError as problem:
            yield str(problem)


def alone(text: str, texts: PredicateTexts, keys: Keys) -> tuple[list[Any], list[bool], Any] | str:
    """The same as `subscribe` finds it."""
    try:
        predicate = texts.read(text)
        parsed = language.parse(text, keys.schema, limits=texts.limits)
        assert predicate.strings(keys) == language.strings(parsed, keys)
        if keys.schema.is_open:
            assert predicate.derived().keys() == language.derived(parsed).keys()
        boxes, exact, program = predicate.boxes(keys, {}, 4)
    except HitboxError as problem:
        return str(problem)
    return [boxes[at] for at in range(len(boxes))], exact, program


def check(texts: Sequence[str | None], schema: hitbox.Schema, limits: Limits = DEFAULT_LIMITS) -> float:
    """Compares row by row; the share of the rows that were read condition by condition."""
    table = pa.table({"id": np.arange(len(texts)), "where": pa.array(texts, pa.large_string())})
    draft = bulk_load.read(table, schema, limits)
    keys = Keys(schema)
    if schema.is_open:
        keys = keys.with_derived(dict(enumerate(draft.derived().values())))
    strings = draft.strings(keys)
    keys.admit(strings)
    parsed = dict(draft.errors)
    encoded = draft.encode(keys, limits)
    assert draft.column is not None
    share = float(draft.column.read.mean()) if len(texts) else 1.0
    # the same strings, and no others
    wanted: dict[int, set[str]] = {}
    for row, text in enumerate(texts):
        if row not in parsed:
            bulk_load.merge_strings(wanted, language.strings(language.parse(text or "", schema, limits=limits), keys))
    assert {number: set(some.to_pylist()) for number, some in strings.items()} == wanted
    at = box = 0
    single = PredicateTexts(schema, limits)
    for row, expected in enumerate(one_by_one(texts, schema, keys, limits)):
        assert alone(texts[row] or "", single, keys) == expected, texts[row]
        if isinstance(expected, str):
            assert draft.errors.get(row) == expected, texts[row]
            continue
        assert row not in draft.errors, (texts[row], draft.errors[row])
        assert encoded.ids[at].as_py() == row
        assert encoded.where is not None
        assert encoded.where[at].as_py() == texts[row]
        boxes, exact, program = expected
        assert encoded.programs.get(at) == program, texts[row]
        assert encoded.count[at] == len(boxes), texts[row]
        for one, sure in zip(boxes, exact, strict=True):
            assert encoded.boxes[box] == one, texts[row]
            assert encoded.exact[box] == sure, texts[row]
            box += 1
        at += 1
    assert (at, box) == (len(encoded.ids), len(encoded.boxes))
    return share


def conjunction(rng: random.Random, leaf: Any, most: int = 6) -> str:
    """Conditions joined by AND, some of them in parentheses, negated, or a disjunction."""
    parts = []
    for _ in range(rng.randint(1, most)):
        part = leaf()
        kind = rng.random()
        if kind < 0.1:
            part = f"({part} OR {leaf()})"
        elif kind < 0.2:
            part = f"({part} and {leaf()})"
        elif kind < 0.3:
            part = f"NOT {part}"
        elif kind < 0.35:
            part = f"nOt ({part} oR {leaf()})"
        elif kind < 0.4:
            part = f"(({part}))"
        elif kind < 0.43:
            part = rng.choice(["TRUE", "false", "NOT TRUE"])
        parts.append(part)
    return " AND ".join(parts)


@pytest.mark.parametrize("seed", range(4))
def test_conjunctions(seed: int) -> None:
    rng = random.Random(seed)
    names = NAMES if seed % 2 else rng.sample(NAMES, 2)  # few names: several conditions on one attribute
    texts = [conjunction(rng, lambda: random_leaf(rng, names)) for _ in range(800)]
    assert check(texts, SCHEMA) > 0.3


OPEN_LITERALS = {
    "number": [
        *("1", "0", "-0.0", "2.5", "1e3", "0.1", "1e300", "1e999", "1e-310", "+ 7", "9007199254740991"),
        *("9007199254740992", "-9007199254740993", "9007199254740993.0", "123456789012345678", "99999999999999999999"),
    ],
    "string": ["'x'", "''", "'a''b'", "'ab'", "'2026-05-01'", "'ä'"],
    "bool": ["TRUE", "false"],
    "timestamp": ["TIMESTAMP '2026-05-01'", "timestamp '2026-05-01T10:00:00+02:00'", "TIMESTAMP '2026-02-30'"],
}


def open_leaf(rng: random.Random) -> str:
    name = rng.choice(
        ["a", "a", "b", "o.c", '"a b"', "OLD.a", "NEW.b", "LOWER(a)", "LENGTH(b)", "a - b", "ANY(a)", "nan"]
    )
    if rng.random() < 0.5:
        name = "a"
    literals = OPEN_LITERALS[rng.choice(list(OPEN_LITERALS))]
    one, other, more = rng.choices(literals, k=3)
    kind = rng.random()
    if kind < 0.35:
        return f"{name} {rng.choice(['=', '<>', '<', '<=', '>', '>='])} {one}"
    if kind < 0.4:
        return f"{one} {rng.choice(['=', '<', '>='])} {name}"
    if kind < 0.5:
        return f"{name} {rng.choice(['', 'NOT '])}BETWEEN {one} AND {other}"
    if kind < 0.6:
        return f"{name} {rng.choice(['', 'NOT '])}IN ({one}, {other}, {more})"
    if kind < 0.65:
        return f"({name} {rng.choice(['=', '>'])} {one} OR {name} = {other})"
    if kind < 0.75:
        pattern = rng.choice(["x", "x%", "%x", "%xyz%", "a_%", "", "%"])
        return f"{name} {rng.choice(['', 'NOT '])}{rng.choice(['LIKE', 'ILIKE'])} '{pattern}'"
    return name + rng.choice(
        ["", " IS NULL", " IS NOT NULL", " IS MISSING", " = b", " IN NETWORK '10.0.0.0/8'", " = TRUE"]
    )


@pytest.mark.parametrize("seed", range(4))
def test_conjunctions_without_a_schema(seed: int) -> None:
    rng = random.Random(seed)
    texts = [conjunction(rng, lambda: open_leaf(rng), 1 + seed) for _ in range(500)]
    assert check(texts, OpenSchema()) > 0.15


@pytest.mark.parametrize("op", ["=", "<>", "<", "<=", ">", ">="])
def test_literals_without_a_schema(op: str) -> None:
    texts = [f"a {op} {literal}" for some in OPEN_LITERALS.values() for literal in some]
    assert check(texts, OpenSchema()) > 0.5


def test_plain_texts_without_a_schema_are_read_natively() -> None:
    texts = [
        "price BETWEEN 10 AND 20 AND city = 'Paris'",
        "order.price > 2.5 AND paid",
        "NOT paid AND seen IS NOT NULL",
        "at >= TIMESTAMP '2026-05-01'",
        "price = 3 OR price > 10",
        "city IN ('a', 'b') AND price NOT IN (1, 2)",
        "city LIKE 'ab%' AND LOWER(city) = 'abc'",
        "city LIKE '%ab'",
        "city ILIKE 'AB%'",
        "ip IN NETWORK '10.0.0.0/8'",
        "x = 1 AND x <> '1'",
    ]
    assert check(texts, OpenSchema()) == 1
    readers = PredicateTexts(OpenSchema(), DEFAULT_LIMITS)
    assert all(isinstance(readers.read(text), ReadPredicate) for text in texts)


def test_paths() -> None:
    plain = ["o.b = 1", "o.in > 3 AND o.p.c = 'x'", "timestamp.x = 2 AND n > 1", "NEW.o.b = 1 AND n.o.b = 2"]
    odd = [
        "in.b = 1",
        "o.b. = 1",
        "o..b = 1",
        "o .b = 1 AND n = 2",
        "o. b = 1",
        "o.5 = 1",
        "o.b.5 = 1",
        "NOT.b = 1",
        "n = 1 AND.b",
    ]
    odd += [
        'o."b" = 1',
        'o.b."c" = 1',
        "o.B = 1",
        "n = 1.b",
        "n.b = 1 OR n.b.c = 'x'",
        "OLD.o.b = 1",
        "o.b",
        "o.b.c.d = 1",
    ]
    schema = hitbox.Schema(
        {"o": {"b": "int", "in": "float", "p": {"c": "string"}}, "timestamp": {"x": "int"}, "n": "int", "n.o.b": "int"}
    )
    for one in (schema, OpenSchema()):
        assert check(plain, one) == 1
        check(plain + odd, one)


@pytest.mark.parametrize("seed", range(3))
def test_any_predicates(seed: int) -> None:
    rng = random.Random(seed)
    check([random_predicate(rng, NAMES) for _ in range(400)], SCHEMA)


@pytest.mark.parametrize("seed", range(25))
def test_random_schemas(seed: int) -> None:
    """Odd names, grids, and literals at the borders of every type."""
    rng = random.Random(seed)
    case = random_case(rng)
    schema = hitbox.Schema(case.schema())
    nodes = [random_node(rng, case, rng.randint(0, 3)) for _ in range(60)]
    texts = [spell(node, rng) for node in nodes]
    texts += [" AND ".join(spell(node, rng, "AND") for node in rng.sample(nodes, 3)) for _ in range(60)]
    check(texts, schema)


@pytest.mark.parametrize("seed", range(6))
def test_hostile_texts(seed: int) -> None:
    """What is wrong in a text is the same error, with the same place."""
    rng = random.Random(seed)
    pool = [conjunction(rng, lambda: random_leaf(rng, NAMES), 4) for _ in range(60)]
    check([mutated(rng, rng.choice(pool)) for _ in range(500)], SCHEMA)
    case = random_case(rng)
    pool = [spell(random_node(rng, case, 2), rng) for _ in range(40)]
    check([mangled(rng, rng.choice(pool)) for _ in range(200)], hitbox.Schema(case.schema()))


PIECES = [
    "'",
    "''",
    '"',
    "(",
    ")",
    ",",
    "AND",
    "or",
    " NOT ",
    "--",
    "/*",
    "*/",
    ";",
    "=",
    "==",
    "<",
    ">",
    "!",
    "!=",
    "<>",
]
PIECES += ["+", "-", ".", "e", "E5", "1e400", "-1e-401", "0x10", "1_000", "00012", "9" * 19, "9" * 40, "1" + "0" * 310]
PIECES += ["TRUE", "False", "NULL", "IS", "IN", "IN (", "LIKE '%a'", "ESCAPE '!'", "ESCAPE", "BETWEEN", "TIMESTAMP '"]
PIECES += ["TIMESTAMP '2026-02-30'", "TIMESTAMP '0001-01-01 00:00+23:59'", "TIMESTAMP '9999-12-31 23:59:59.999999Z'"]
PIECES += [
    "\u00a0",
    "\u2003",
    "\u0131n",
    "\u0131s",
    "FAL\u017fE",
    "\u017f",
    "é",
    "😀",
    "\u0663",
    "\ufeff",
    "\x0b",
    "\x0c",
    "\x1f",
    "\x7f",
]
PIECES += [
    "i",
    "x",
    "s",
    "b",
    "ts",
    '"odd name"',
    "timestamp",
    "TIMESTAMP",
    "zz",
    "nan",
    "inf",
    "?",
    ":a",
    "$1",
    "{",
    "[",
    "\\",
]


def mutated(rng: random.Random, text: str) -> str:
    """A text with a few changes that people, programs and attackers make."""
    for _ in range(rng.choice([1, 1, 2, 3])):
        at, kind = rng.randint(0, len(text)), rng.random()
        if kind < 0.4:
            text = text[:at] + rng.choice(PIECES) + text[at:]
        elif kind < 0.6:
            text = text[:at] + text[at + rng.randint(1, 4) :]
        elif kind < 0.7:
            text = text[:at]
        elif kind < 0.8:
            text = text[:at] + rng.choice([" ", "\t", "\n", "\r", "  "]) + text[at:]
        elif kind < 0.9:
            text = text.swapcase() if rng.random() < 0.3 else text[:at] + text[at:].swapcase()
        elif kind < 0.95:
            depth = rng.choice([1, 3, 99, 100, 101])
            text = "(" * depth + text + ")" * (depth - rng.choice([0, 0, 1]))
        else:
            words = text.split(" ")
            rng.shuffle(words)
            text = " ".join(words)
    return text


NUMBERS = [
    "0",
    "-0",
    "+0",
    "00",
    "1",
    "-1",
    "- 1",
    "+\t1",
    "5",
    "9007199254740992",
    "9007199254740993",
    "-9007199254740993",
]
NUMBERS += [
    "999999999999999999",
    "-999999999999999999",
    "1000000000000000000",
    "9223372036854775807",
    "9223372036854775808",
]
NUMBERS += [
    "-9223372036854775808",
    "-9223372036854775809",
    "1.",
    ".5",
    "-.5",
    "1.5",
    "-1.5",
    "0.0",
    "-0.0",
    "0e999999999",
]
NUMBERS += [
    "0.1",
    "0.30000000000000004",
    "3.5e0",
    "35e-1",
    "1e18",
    "1e19",
    "1e22",
    "1e23",
    "8.5e22",
    "123456789012345678",
]
NUMBERS += [
    "1234567890123456789.5",
    "0.1234567890123456789",
    "0.000000000000000000001",
    "1e-300",
    "1e-301",
    "4e-324",
    "2e-324",
]
NUMBERS += [
    "1e300",
    "1e301",
    "1.7976931348623157e308",
    "1.8e308",
    "1e309",
    "1e-400",
    "1e-401",
    "2.5",
    "2.50",
    "2.25",
    "1e1",
    "10.",
]
NUMBERS += [
    "9007199254740991.5",
    "9007199254740992.5",
    "72057594037927945",
    "7205759403792793199999e-5",
    "7205759403792793200001e-5",
]
NUMBERS += [
    "0" * 100 + "7",
    "0." + "0" * 30 + "7",
    "7" + "0" * 30 + ".",
    "0.333333333333333333",
    "1e",
    "1e+",
    "1.2.3",
    "1..",
    ".",
]
TIMES = [
    "2026-01-31",
    "2026-1-31",
    "2026-01-31 12:00",
    "2026-01-31T12:00:30",
    "2026-01-31 12:00:30.1",
    "2026-01-31 12:00:30.123456",
]
TIMES += [
    "2026-01-31 12:00:30.1234567",
    "2026-01-31 12:00Z",
    "2026-01-31 12:00 Z",
    "2026-01-31 12:00  Z",
    "2026-01-31 12:00 ",
]
TIMES += [
    "2026-01-31 12:00+05:45",
    "2026-01-31 12:00 -11:30",
    "2026-01-31Z",
    "2024-02-29",
    "2023-02-29",
    "1900-02-29",
    "2000-02-29",
]
TIMES += [
    "0001-01-01",
    "0000-01-01",
    "0002-01-01",
    "9999-12-31 23:59:59.999999",
    "9998-12-31 23:59+00:01",
    "9999-12-31 23:59-00:01",
]
TIMES += [
    "0001-01-01 00:00+00:01",
    "2026-13-01",
    "2026-00-01",
    "2026-01-00",
    "2026-04-31",
    "2026-01-01 24:00",
    "2026-01-01 23:60",
]
TIMES += [
    "2026-01-01 23:59:60",
    "2026-01-01 12:00+24:00",
    "2026-01-01 12:00+23:60",
    "2026-01-01 12:00z",
    "",
    "x",
    "2026-01-01t12:00",
]
TIMES += [
    "2026-01-01 12:00:00.",
    "2026-01-01 12:00.5",
    "1969-12-31 23:59:59.999999",
    "1600-03-01",
    "2026-01-01 12",
    "２０２６-01-01",
]


@pytest.mark.parametrize("op", ["=", "<>", "<", "<=", ">", ">="])
def test_literals(op: str) -> None:
    """Each literal against each type: the keys, or the error, that the codec says."""
    everything = NUMBERS + [f"TIMESTAMP '{time}'" for time in TIMES] + ["'a'", "TRUE", "false", "NULL", "i"]
    for schema in (SCHEMA, GRIDS):
        for name in schema:
            quoted = '"' + name + '"'
            check([f"{quoted} {op} {literal}" for literal in everything], schema)
            check([f"{literal} {op} {quoted}" for literal in everything], schema)


def test_lists_and_ranges() -> None:
    rng = random.Random(3)
    some = [str(n) for n in range(-12, 45)] + ["2.0", "-0.0", "0.5", "40.0", "41", "1.5", "2.25"]
    for name in GRIDS:
        texts = []
        for _ in range(150):
            values = [rng.choice(some) for _ in range(rng.randint(1, 6))]
            texts.append(f'"{name}" {rng.choice(["", "NOT "])}IN ({", ".join(values)})')
            texts.append(f'"{name}" {rng.choice(["", "NOT "])}BETWEEN {rng.choice(some)} AND {rng.choice(some)}')
            texts.append(" AND ".join(f'"{name}" <> {value}' for value in values))
            texts.append(" OR ".join(f'"{name}" >= {value} OR "{name}" IS NULL' for value in values))
            texts.append("NOT (" + " OR ".join(f'"{name}" > {value}' for value in values) + ")")
        check(texts, GRIDS)


@pytest.mark.parametrize(
    "limits", [Limits(text=40), Limits(depth=1), Limits(depth=2), Limits(boxes=2), Limits(values=2), Limits(pattern=2)]
)
def test_limits(limits: Limits) -> None:
    rng = random.Random(5)
    texts = [conjunction(rng, lambda: random_leaf(rng, NAMES), 4) for _ in range(400)]
    check([*texts, "é" * 30, "s = '" + "é" * 30 + "'", "i <> 1 AND j <> 1", "i <> 1", "i IN (1, 1, 1)"], SCHEMA, limits)


def test_many_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predicate_column, "PIECE_ROWS", 7)
    monkeypatch.setattr(predicate_column, "PIECE_BYTES", 200)
    rng = random.Random(1)
    texts: list[str | None] = [conjunction(rng, lambda: random_leaf(rng, NAMES)) for _ in range(300)]
    texts[17] = texts[18] = None
    texts[40] = ""
    check(texts, SCHEMA)
    check([], SCHEMA)


def test_few_rows_are_not_worth_a_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predicate_column, "MAX_PARSED_ROWS", 2)
    assert check(["i = 1", "s LIKE 'a%'"], SCHEMA) == 0
    assert check(["i = 1", "s LIKE 'a%'", "nonsense", ""], SCHEMA) == 0.5


def test_keywords_in_odd_letters() -> None:
    """Two letters beyond ASCII have the capitals I and S, so Python reads keywords that the reader takes for names."""
    texts = ["b = FAL\u017fE", "b <> FAL\u017fE", "b < FAL\u017fE", "b BETWEEN TRUE AND FAL\u017fE"]
    texts += [
        "b BETWEEN FAL\u017fE AND TRUE",
        "b IN (TRUE, FAL\u017fE)",
        "b IN (FAL\u017fE)",
        "FAL\u017fE",
        "NOT FAL\u017fE",
    ]
    texts += [
        "FAL\u017fE = b",
        "FAL\u017fE > b",
        "i \u0131N (1, 2)",
        "i NOT \u0131n (1)",
        "s L\u0131KE 'a%'",
        "s \u0131\u017f NULL",
    ]
    texts += [
        "s LIKE 'a!%' E\u017fCAPE '!'",
        "ts > T\u0131MEſTAMP '2026-01-31'",
        "i = 1 AND FAL\u017fE",
        "FAL\u017fE OR b",
    ]
    check(texts, SCHEMA)


def test_more_shapes_than_are_kept() -> None:
    """Names that nobody declared: each is a shape of its own, and none of them is kept for long."""
    check([f"unknown{i} = 1" for i in range(300)] + ["i = 1"], SCHEMA)
    check(["i = 1 OR " * 400 + "i = 2", "i = 1"], SCHEMA)


def test_most_texts_take_the_fast_way() -> None:
    rng = random.Random(8)
    texts = []
    for _ in range(500):
        low, high = rng.random(), rng.random()
        texts.append(f"x BETWEEN {low} AND {high} AND i >= {rng.randint(0, 10**9)} AND s = 'w{rng.randint(0, 99)}'")
        texts.append(f"(y > {low}) AND s IN ('a', 'it''s', 'é') AND b AND NOT i = 4 AND (j = 1 OR j > 7 OR j IS NULL)")
        texts.append(f"s LIKE '%{rng.randint(0, 99)}' AND \"odd name\" LIKE 'a!%%' ESCAPE '!' AND x < {high}")
        texts.append("ts >= TIMESTAMP '2026-01-31 12:00:00' AND 3 < i AND x IS NOT NULL")
    assert check(texts, SCHEMA) == 1.0


ABOUT = hitbox.Schema(
    {
        "i": "int",
        "age": hitbox.Attribute("int", role="information"),
        "step": hitbox.Attribute("int", role="information", domain=(0, 40), precision=5),
        "even": hitbox.Attribute("int", domain=(-10, 40), precision=1),
        "name": hitbox.Attribute("string", role="information"),
        "size": hitbox.Attribute("float", role="information"),
        "since": hitbox.Attribute("timestamp", role="information"),
        "on": hitbox.Attribute("bool", role="information"),
    }
)
MOMENT = np.datetime64("2026-01-31T12:00", "us")
COLUMNS: list[dict[str, Any]] = [
    {"age": pa.array([1, None, 3, 4, 5, 6, 7, 8])},
    {"age": pa.array([1.0, None, 3.5, float("nan"), 5, 1e30, 7, 8])},
    {"age": pa.array(["x"] * 8), "name": pa.array([1] * 8)},
    {"name": pa.array(["a", None, "b\0", "c", "", "é", "a", "a"])},
    {"name": pa.array(["a", None, "b", "c", "", "é", "a", "a"]).dictionary_encode()},
    {"age_low": pa.array([1, None, None, 4, 5, 6, 9, 8]), "age_high": pa.array([1, None, 3, None, 6, 6, 7, 8])},
    {"name_low": pa.array(list("abcdefgh")), "name_high": pa.array(list("abzdeegi"))},
    {"age": pa.array([{"low": 1, "high": 2}, None, {"low": 3, "high": 2}, {"low": None, "high": 2}] * 2)},
    {"name": pa.array([{"low": "a", "high": "b"}, None, {"low": "z", "high": "a"}, {"low": "a\0", "high": "b"}] * 2)},
    {"age": pa.array([{"from": 1, "to": 2}] * 8), "size": pa.array([[1, 2]] * 8)},
    {"size": pa.array([1, 2**53, 2**53 + 1, None, -1, 0, 5, 6]), "on": pa.array([True, None] * 4)},
    {"since": pa.array(np.array([MOMENT] * 8)), "on": pa.array([1] * 8)},
    {
        "since": pa.array(["2026-01-31", "x", None, "2026-01-31T12:00:00+02:00"] * 2),
        "step": pa.array([0, 3, 5, 7, 40, 41, -1, None]),
    },
    {"step_low": pa.array([0, 3, 5, 6, 7, None, None, 9]), "step_high": pa.array([5, 4, 5, 9, 6, 4, None, 40])},
]
ROWS = [
    "i > 1",
    "even = 50",
    "i = 1 OR even > 3",
    "nonsense",
    "even = 3 AND i <> 2",
    "TRUE",
    "i IN (1, 5)",
    "even = 99 OR i = 1",
]


@pytest.mark.parametrize("columns", COLUMNS)
def test_what_subscriptions_say_about_themselves(columns: dict[str, Any]) -> None:
    """Whole columns come to the same keys and errors as the values of each row by itself."""
    table = pa.table({"id": np.arange(8), "where": ROWS, **columns})
    draft = bulk_load.read(table, ABOUT, DEFAULT_LIMITS)
    keys = Keys(ABOUT)
    unsound = dict(draft.errors)
    keys.admit(draft.strings(keys))
    encoded = draft.encode(keys, DEFAULT_LIMITS)
    box = at = 0
    for row, text in enumerate(ROWS):
        about = {}
        for name in ABOUT.with_role("information"):
            if name in columns:
                value = columns[name][row].as_py()
                if value is not None:
                    about[name] = value
            elif f"{name}_low" in columns and f"{name}_high" in columns:
                ends = columns[f"{name}_low"][row].as_py(), columns[f"{name}_high"][row].as_py()
                if ends != (None, None):
                    about[name] = ends
        error = unsound[row] if "NUL" in unsound.get(row, "") else None
        try:
            predicate = language.parse(text, ABOUT, role="criteria")
            bulk_load.about_strings(ABOUT, about)
            made = bulk_load.subscription_boxes(keys, predicate, about, DEFAULT_LIMITS)
            boxes, exact = made.boxes, made.exact
        except HitboxError as problem:
            error = error or str(problem)
        assert draft.errors.get(row) == error
        if error:
            continue
        assert encoded.ids[at].as_py() == row
        assert encoded.count[at] == len(boxes)
        for one, sure in zip(boxes, exact, strict=True):
            assert encoded.boxes[box] == dict(sorted(one.items()))
            assert encoded.exact[box] == sure
            box += 1
        at += 1
    assert (at, box) == (len(encoded.ids), len(encoded.boxes))


def test_a_name_that_ends_like_a_bound() -> None:
    """In the wide layout `x_low` is the low end of `x`, also where another attribute has that name."""
    index = hitbox.Index({"x": "string", "x_low": "string"})
    columns = {"x_low": ["a"], "x_high": ["b"], "x_low_low": ["c"], "x_low_high": ["d"]}
    index.load(pa.table({"id": [1], **columns}))
    assert set(index._state.keys.dictionaries[index.schema.number("x_low")].arrays()["data"].tobytes().decode()) == {
        "c",
        "d",
    }
    assert index.match({"x": "aa", "x_low": "cc"}) == [1]
    assert index.match({"x": "aa", "x_low": "aa"}) == []


def test_plain_texts_are_read_natively_alone() -> None:
    texts = PredicateTexts(SCHEMA, DEFAULT_LIMITS)
    plain = "i BETWEEN 1 AND 2 AND s = 'Paris' AND s LIKE 'P%'"
    for text, kind in {plain: ReadPredicate, "i = 1 OR x = 2": ParsedPredicate}.items():
        for _ in range(3):
            assert type(texts.read(text)) is kind


@pytest.mark.parametrize("text", ["i = 1 AND s = 'a\0'", "s = '\ud800'", "", "i =", 7, None])
def test_texts_in_error_alone(text: Any) -> None:
    with pytest.raises(HitboxError) as alone:
        PredicateTexts(SCHEMA, DEFAULT_LIMITS).read(text)
    with pytest.raises(HitboxError) as parsed:
        language.parse(text, SCHEMA)
    assert str(alone.value) == str(parsed.value)


def test_a_text_with_many_new_conditions_is_not_read_again_for_each() -> None:
    """A text is read from its start after each question, which would take time that is quadratic in its length."""
    long = " AND ".join(f"a{number} = 1" for number in range(3 * MOST_ASKED))
    texts = PredicateTexts(OpenSchema(), DEFAULT_LIMITS)
    assert isinstance(texts.read(long), ParsedPredicate)
    assert texts._reader is not None
    assert texts._reader.defined == MOST_ASKED
    assert isinstance(texts.read("a0 = 5 AND a1 = 'x'"), ReadPredicate)  # the reader is as good as before

    rows = [f"b{number} > 3" for number in range(20)]
    rows[3] = rows[12] = long
    column = predicate_column.PredicateColumn(
        pa.array(rows, pa.large_string()), np.ones(len(rows), bool), OpenSchema(), DEFAULT_LIMITS
    )
    assert column._reader.defined == 20 - 2 + 2 * MOST_ASKED
    assert np.flatnonzero(~column.read).tolist() == [3, 12]

    index = hitbox.Index()
    index.load([{"id": row, "where": where} for row, where in enumerate(rows)])
    event = {f"a{number}": 1 for number in range(3 * MOST_ASKED)}
    assert index.match(event) == [3, 12]
    assert index.match(event | {"a299": 2, "b5": 4}) == [5]


def test_a_reader_does_not_grow_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predicate_text, "MOST_DEFINED", 20)
    texts, keys = PredicateTexts(SCHEMA, DEFAULT_LIMITS), Keys(SCHEMA)
    early = texts.read("i = 1 AND s LIKE 'first%'")
    known = set()
    for turn in range(100):
        read = texts.read(f"i = {turn} AND s LIKE 'w{turn}%'")
        assert texts._reader is not None
        known.add(id(texts._reader.native))
        assert texts._reader.defined <= 23
        assert read.strings(keys) == {NAMES.index("s"): {f"w{turn}", f"w{turn + 1}"}} or turn % 10 == 9
    assert len(known) > 1
    keys.admit(early.strings(keys))
    boxes, exact, _ = early.boxes(keys, {}, 4)  # of a reader that was replaced
    made = language.compile(language.parse("i = 1 AND s LIKE 'first%'", SCHEMA), keys, DEFAULT_LIMITS)
    assert ([boxes[0]], exact) == (list(made.boxes), list(made.exact))


def test_an_interrupt_does_not_leave_a_reader_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = PredicateTexts(SCHEMA, DEFAULT_LIMITS)

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ConditionReader, "answer", interrupted)
        with pytest.raises(KeyboardInterrupt):
            texts.read("i = 1")
    assert type(texts.read("i = 1")) is ReadPredicate
