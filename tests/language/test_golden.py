"""The language on fixed cases: golden files, limits, depth, names and roles."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime

import pytest

from hitbox import language
from hitbox.encoding.arrays import HIGHEST, LOWEST, MISSING
from hitbox.encoding.codecs import GridCodec, StringCodec
from hitbox.encoding.keys import Keys
from hitbox.encoding.schema import Attribute, Schema
from hitbox.errors import HitboxError, LimitExceeded, PredicateError, SyntaxProblem, UnknownAttribute
from hitbox.language import Limits
from support import golden_files

SCHEMA = Schema(
    {
        "price": "float",
        "qty": "int",
        "city": "string",
        "ok": "bool",
        "at": "timestamp",
        "timestamp": "timestamp",
        "odd name": "string",
        "Or": "int",
        'say "hi"': "int",
        "größe": "int",
        "step": Attribute("float", domain=(0, 5), precision="0.5"),
        "age": Attribute("int", role="information"),
    }
)


def compiled(text: str, limits: Limits = language.DEFAULT_LIMITS) -> tuple[language.Compiled, Keys]:
    keys = Keys(SCHEMA)
    predicate = language.parse(text, SCHEMA, "criteria", limits)
    keys.admit(language.strings(predicate))
    return language.compile(predicate, keys, limits), keys


def test_round_trips() -> None:
    def answer(text: str) -> str:
        predicate = language.parse(text, SCHEMA)
        again = language.parse(str(predicate), SCHEMA)
        assert again == predicate
        assert str(again) == str(predicate)
        return str(predicate)

    golden_files.check("round_trips.txt", answer)


def test_boxes() -> None:
    def answer(text: str) -> str:
        found, keys = compiled(text)
        assert language.never(found) == (not found.boxes)
        lines = [
            (" AND ".join(shown(keys, *item) for item in box.items()) or "everything") + ("" if exact else "   (check)")
            for box, exact in zip(found.boxes, found.exact, strict=True)
        ]
        return "\n".join(lines) or "nothing"

    golden_files.check("boxes.txt", answer)


def shown(keys: Keys, number: int, interval: tuple[int, int]) -> str:
    """A box's interval with values for keys."""
    name, codec = SCHEMA.names[number], keys.codecs[number]

    def end(key: int, way: int) -> str:
        if key in (LOWEST, HIGHEST):
            return "lowest" if key == LOWEST else "highest"
        if isinstance(codec, (StringCodec, GridCodec)) and key % 2:
            return f"{'above' if way > 0 else 'below'} {codec.value(key - way)!r}"
        return repr(codec.value(key))

    low, high = interval
    if low == MISSING:
        return f"{name} missing" + ("" if high == MISSING else f" or up to {end(high, -1)}")
    return f"{name} [{end(low, 1)}, {end(high, -1)}]"


def test_errors() -> None:
    def answer(text: str) -> str:
        with pytest.raises(HitboxError) as caught:
            compiled(text)
        assert pickle.loads(pickle.dumps(caught.value)).args == caught.value.args
        str(caught.value).encode()
        return f"{type(caught.value).__name__}: {caught.value}"

    golden_files.check("errors.txt", answer)


@pytest.mark.parametrize("thing", [None, 3, b"price > 3", ["price > 3"]])
def test_what_is_no_text_is_refused(thing: object) -> None:
    with pytest.raises(SyntaxProblem, match="a predicate is a text"):
        language.parse(thing, SCHEMA)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text",
    [
        "(" * 10_000,
        "(" * 10_000 + "ok" + ")" * 10_000,
        "NOT " * 10_000 + "ok",
        "NOT (" * 10_000 + "ok" + ")" * 10_000,
        "(ok AND " * 10_000 + "ok" + ")" * 10_000,
        "(ok OR NOT (" * 5_000,
    ],
)
def test_deep_nesting_is_an_error(text: str) -> None:
    with pytest.raises(LimitExceeded, match="nested more than 100 deep"):
        language.parse(text, SCHEMA)
    with pytest.raises(PredicateError):  # a limit that Python's stack cannot honour
        language.parse(text + " >", SCHEMA, limits=Limits(depth=1_000_000))


def test_nesting_up_to_the_limit_works_in_every_pass() -> None:
    text = "ok"
    for level in range(100):
        text = f"NOT {text}" if level % 2 else f"({text} {'AND' if level % 4 else 'OR'} qty > {level})"
    predicate = language.parse(text, SCHEMA)
    assert language.parse(str(predicate), SCHEMA) == predicate
    assert repr(predicate)
    explanation = language.explain(predicate, {"ok": True, "qty": 5})
    assert explanation.truth is language.evaluate(predicate, {"ok": True, "qty": 5})
    assert str(explanation)
    assert explanation.to_dict()
    compiled(text)


def test_long_chains_do_not_recurse() -> None:
    numbers = range(0, 20_000, 2)
    chain = " AND ".join(f"qty <> {n}" for n in numbers)
    assert compiled(chain)[0].boxes == [{1: (LOWEST, HIGHEST)}]  # what is left out is for the program
    assert len(compiled(chain, Limits(boxes=10_001))[0].boxes) == 10_001
    assert len(compiled(" OR ".join(f"qty = {n}" for n in numbers))[0].boxes) == 10_000
    assert len(compiled(" OR ".join(f"qty = {n}" for n in range(10_000)))[0].boxes) == 1
    predicate = language.parse(chain, SCHEMA)
    assert language.evaluate(predicate, {"qty": 5}) is True
    assert language.parse(str(predicate), SCHEMA) == predicate


def test_unequal_terms_and_in_lists_stay_small() -> None:
    terms = " AND ".join(f"qty <> {n} AND price <> {n}.5" for n in range(0, 100, 2))
    assert len(compiled(f"({terms}) AND ok")[0].boxes) == 1
    assert len(compiled(f"({terms}) AND ok", Limits(boxes=51 * 51))[0].boxes) == 51 * 51
    assert len(compiled(f"city IN ({', '.join(repr(str(n)) for n in range(5000))})")[0].boxes) == 5000
    assert len(compiled(f"qty IN ({', '.join(map(str, range(9000)))}) AND ok")[0].boxes) == 1
    assert len(compiled(f"NOT (qty IN ({', '.join(map(str, range(9000)))}))")[0].boxes) == 2


def test_limits() -> None:
    with pytest.raises(LimitExceeded, match=r"has 9 characters; the limit is 8.*Limits\(text"):
        language.parse("price > 3", SCHEMA, limits=Limits(text=8))
    with pytest.raises(LimitExceeded, match=r"more than 2 values.*Limits\(values") as caught:
        language.parse("qty IN (1, 2, 3)", SCHEMA, limits=Limits(values=2))
    assert caught.value.position == 14
    with pytest.raises(LimitExceeded, match=r"pattern has 3 characters; the limit is 2.*Limits\(pattern"):
        language.parse("city LIKE 'ab%'", SCHEMA, limits=Limits(pattern=2))
    for wrong in (0, -1, 2.5, True, "many"):
        with pytest.raises(HitboxError, match="limit boxes is a whole number"):
            Limits(boxes=wrong)  # type: ignore[arg-type]


def test_little_is_multiplied_out() -> None:
    """What would need many boxes is covered by few, which are checked."""
    either = " AND ".join(f"(qty = {n} OR price = {n} OR ok IS NULL)" for n in range(2))
    found = compiled(either, Limits(boxes=4))[0]
    assert (len(found.boxes), found.exact) == (3, [True] * 3)  # terms that say nothing are gone before counting
    schema = Schema({f"{letter}{n}": "int" for letter in "xy" for n in range(20)})
    many = " AND ".join(f"(x{n} = 1 OR y{n} = 1)" for n in range(20))
    found = language.compile(language.parse(many, schema), Keys(schema))
    assert len(found.boxes) == 16
    assert not any(found.exact)
    unequal = " AND ".join(f"x{n} <> 1" for n in range(14))
    found = language.compile(language.parse(unequal, schema), Keys(schema))
    assert found.boxes == [dict.fromkeys(range(14), (LOWEST, HIGHEST))]
    assert found.program is not None
    listed = f"y0 IN ({', '.join(map(str, range(0, 60, 2)))}) AND {unequal}"
    found = language.compile(language.parse(listed, schema), Keys(schema))
    assert [box[20] for box in found.boxes] == [(n, n) for n in range(0, 60, 2)]  # a list of literals stays
    assert {box[0] for box in found.boxes} == {(LOWEST, HIGHEST)}
    assert not any(found.exact)


def test_roles() -> None:
    assert str(language.parse("age > 30", SCHEMA, "information")) == "age > 30"
    assert str(language.parse("age > 30 AND price > 3", SCHEMA)) == "age > 30 AND price > 3"
    with pytest.raises(UnknownAttribute, match=r"'price' has the role 'criteria'; here only 'information'.*have: age"):
        language.parse("price > 3", SCHEMA, "information")


def test_equality_and_hash() -> None:
    def parse(text: str) -> language.Predicate:
        return language.parse(text, SCHEMA)

    same = [parse("price > 1 AND (ok OR qty = 2)"), parse("1 < price and (ok = true or qty=2)")]
    assert same[0] == same[1]
    assert hash(same[0]) == hash(same[1])
    others = ["price > 1 AND ok OR qty = 2", "price > 1 AND (ok OR qty = 3)", "price > 1", "price >= 1", "qty > 1"]
    assert len({same[0], *map(parse, others)}) == 6
    assert parse("ok") != "ok"


def test_predicates_travel_between_processes() -> None:
    predicate = language.parse("city LIKE '%a_b%' AND NOT (qty > 3 OR at < TIMESTAMP '2026-01-31')", SCHEMA)
    language.evaluate(predicate, {"city": ("a", "b")})  # what it keeps for itself stays behind
    again = pickle.loads(pickle.dumps(predicate))
    assert again == predicate
    assert language.evaluate(again, {"city": "xa-bx", "qty": 2, "at": datetime(2027, 1, 1, tzinfo=UTC)}) is True


def test_strings_that_need_labels() -> None:
    predicate = language.parse(
        "city IN ('b', 'a') OR city LIKE 'Pa%' OR city LIKE '%x' OR city LIKE 'plain' OR \"odd name\" LIKE '%'", SCHEMA
    )
    assert language.strings(predicate) == {2: {"a", "b", "Pa", "Pb", "plain"}}
