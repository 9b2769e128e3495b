"""Derived attributes: functions of attributes that boxes constrain, and that come and go with the subscriptions."""

from __future__ import annotations

import copy
import pickle
import random
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import hitbox
from hitbox import Index, Limits, Schema
from hitbox.encoding.keys import Keys
from hitbox.errors import HitboxError
from hitbox.index import state
from hitbox.index.load.predicate_text import PredicateTexts, ReadPredicate
from support import second_evaluator as second
from support.random_documents import SCHEMA, TYPES, meaning, nested, random_image
from support.tiers import only

PLAIN = {
    "s": "string",
    "ip": "string",
    "a": "int",
    "b": "int",
    "x": "float",
    "at": "timestamp",
    "until": "timestamp",
    "tags": "string[]",
}
EXACT = {
    "s LIKE '%ab'": "REVERSE(s)",
    "s NOT LIKE '%ab'": "REVERSE(s)",
    "NOT s LIKE '%ab'": "REVERSE(s)",
    "s ILIKE 'Ab'": "LOWER(s)",
    "s ILIKE 'Ab%'": "LOWER(s)",
    "s NOT ILIKE 'Ab%'": "LOWER(s)",
    "s ILIKE '%Ab'": "REVERSE(LOWER(s))",
    "LOWER(s) = 'ab'": "LOWER(s)",
    "'ab' < LOWER(s)": "LOWER(s)",
    "LOWER(s) IN ('ab', 'b')": "LOWER(s)",
    "LOWER(s) BETWEEN 'a' AND 'b'": "LOWER(s)",
    "LOWER(s) LIKE 'a%'": "LOWER(s)",
    "LOWER(s) NOT LIKE '%b'": "REVERSE(LOWER(s))",
    "LOWER(s) IS NULL": "LOWER(s)",
    "UPPER(s) <> 'AB'": "UPPER(s)",
    "LENGTH(s) > 1.5": "LENGTH(s)",
    "ip IN NETWORK '10.0.0.0/8'": "ADDRESS(ip)",
    "ip IN NETWORK '2001:db8::/32'": "ADDRESS(ip)",
    "ip NOT IN NETWORK '::/0'": "ADDRESS(ip)",
    "HOUR(at) < 6": "HOUR(at)",
    "HOUR(at, 'Europe/Paris') IN (1, 2)": "HOUR(at, 'Europe/Paris')",
    "DAY_OF_WEEK(at) NOT BETWEEN 2 AND 6": "DAY_OF_WEEK(at)",
    "a - b > 2.5": "a - b",
    "ABS(a) = 2": "ABS(a)",
    "a * 2 <= 3": "a * 2",
    "x / a > 0.1": "x / a",
    "a > b": "COMPARE(a, b)",
    "b > a": "COMPARE(a, b)",
    "x <> a": "COMPARE(a, x)",
    "x = a + b": "COMPARE(a + b, x)",
    "until - at > INTERVAL '36 hours'": "DURATION(until - at)",
    "at + INTERVAL '1 day' <= TIMESTAMP '1970-01-03 00:00:00'": "at + INTERVAL '1 day'",
    "OLD.a < a": "COMPARE(OLD.a, a)",
    "OLD.s = 'ab'": "OLD.s",
    "LENGTH(tags) = a": "COMPARE(LENGTH(tags), a)",
}
"""Predicates that boxes decide, and the attribute that they need for it."""
COVERED = {
    "s ILIKE 'a%b'": "LOWER(s)",
    "s LIKE '%a%b'": "REVERSE(s)",
    "s LIKE '_b'": "REVERSE(s)",
}
NOT_DERIVED = [
    "LOWER(UPPER(LOWER(s))) = 'x'",  # for every event it goes through the text three times
    "s LIKE '%a%'",
    "s REGEXP 'a'",
    "at > NOW() - INTERVAL '1 day'",
    "ANY(tags) ILIKE 'a'",
    "(a > 1) = (b > 1)",
    "a BETWEEN b AND 3",
    "DISTANCE(x, x, 1, 2) > 5",
]


def derived(index: Index) -> list[str]:
    return [one.text for one in index._state.keys.derived]


def used(index: Index) -> list[str]:
    return [index._state.keys.derived[number - len(index.schema)].text for number in index._state.use.used]


def check(index: Index, texts: Sequence[str], rng: random.Random, events: int = 25) -> None:
    """Whether the answers are those of the second evaluator; the id of a subscription is the number of its text."""
    trees = [second.parse(text, TYPES) for text in texts]
    given, wanted = [], []
    for _ in range(events):
        new, old = random_image(rng), random_image(rng) if rng.random() < 0.5 else None
        given.append(nested(rng, new) if old is None else {"old": nested(rng, old), "new": nested(rng, new)})
        world = second.World(meaning(new) or {}, meaning(old), 0)
        wanted.append([n for n, tree in enumerate(trees) if second.truth(tree, TYPES, world) is True])
    for event, ids in zip(given, wanted, strict=True):
        assert sorted(index.match(event)) == ids, event
    assert [sorted(ids) for ids in index.match_batch(given).to_lists()] == wanted


SEVERAL = ["hitbox", "brute", "counting", "opindex", "r-tree", "be-tree"]


@pytest.mark.parametrize("matcher", only(SEVERAL[:3], SEVERAL))  # tests/matchers compares them all on boxes
def test_boxes_decide(matcher: str) -> None:
    index = Index(SCHEMA, matcher)
    texts = list(EXACT)
    for number, (text, needed) in enumerate(EXACT.items()):
        index.subscribe(number, text)
        assert needed in derived(index), text
        assert index._state.catalog.plain or set(index._state.catalog.exact.tolist()) == {True}, text
    assert set(derived(index)) == set(EXACT.values()) == set(used(index))
    check(index, texts, random.Random(1))
    for number, (text, needed) in enumerate(COVERED.items(), len(texts)):
        index.subscribe(number, text)
        assert needed in derived(index), text
    check(index, [*texts, *COVERED], random.Random(2))


def test_programs_need_them_below_xor() -> None:
    index = Index(PLAIN)
    index.subscribe(1, "a > b XOR LOWER(s) = 'a'")
    assert derived(index) == used(index) == ["COMPARE(a, b)", "LOWER(s)"]
    assert index.match({"a": 2, "b": 1, "s": "b"}) == index.match({"a": 1, "b": 1, "s": "A"}) == [1]
    assert index.match({"a": 2, "b": 1, "s": "A"}) == index.match({"a": 2, "b": 1}) == []
    index.subscribe(1, "NOT (LOWER(s) IS NOT NULL XOR a + b = 3)")
    assert index.match({"a": 2, "b": 1, "s": "b"}) == index.match({"a": 1, "b": 1}) == [1]
    assert index.match({"s": "b"}) == index.match({"a": 2, "b": 1}) == []


READ = [
    "s LIKE '%ab'",
    "s NOT LIKE '%ab' AND a > 3",
    "s LIKE '%a!%b' ESCAPE '!'",
    "s ILIKE 'Ab' AND a IN (1, 2)",
    "s ILIKE '%Ab'",
    "s NOT ILIKE 'aB%'",
    "LOWER(s) = 'it''s' AND a < 3",
    "LOWER(s) IN ('a', 'b') AND LOWER(s) <> 'a'",
    "LOWER(s) LIKE 'a%'",
    "ABS(b) BETWEEN -2.5 AND 3",
    "LENGTH(s) NOT IN (1, 3)",
    "ip IN NETWORK '10.0.0.0/8' AND a = 1",
    "ip NOT IN NETWORK '2001:db8::/32'",
    "HOUR(at) >= 6 AND HOUR(at) < 9",
    "ABS(a) = 7",
]
"""Predicates that the native reader takes."""


def test_texts_are_read_natively_and_parsed_alike() -> None:
    schema = Schema(PLAIN)
    texts = PredicateTexts(schema, Limits())
    for text in READ:
        read, parsed = texts.read(text), texts.parse(text)
        assert isinstance(read, ReadPredicate), text
        assert list(read.derived()) == list(parsed.derived()), text
        keys = Keys(schema).with_derived(dict(enumerate(read.derived().values(), len(schema))))
        assert read.strings(keys) == parsed.strings(keys), text
        keys.admit(read.strings(keys))
        (one, sure, program), (two, certain, other) = read.boxes(keys, {}, 4), parsed.boxes(keys, {}, 4)
        assert program == other, text
        assert (sure, certain) == ([True] * len(one), [True] * len(one)), text
        assert [one[n] for n in range(len(one))] == [two[n] for n in range(len(two))], text
        without = Keys(schema)
        without.admit(read.strings(without))
        assert read.boxes(without, {}, 4)[1] == parsed.boxes(without, {}, 4)[1] != [], text
    index = Index(PLAIN)
    index.load(pa.table({"id": list(range(len(READ))), "where": READ}))
    one_by_one = Index(PLAIN, "brute")
    for number, text in enumerate(READ):
        one_by_one.subscribe(number, text)
    for event in ({"s": "Ab", "a": 1, "b": 2, "ip": "10.1.1.1"}, {"s": "it's", "a": 2}, {"s": "a%b", "ip": "::1"}):
        assert sorted(index.match(event)) == sorted(one_by_one.match(event))


@pytest.mark.parametrize("text", NOT_DERIVED)
def test_what_is_not_derived(text: str) -> None:
    index = Index(PLAIN)
    index.subscribe(1, text)
    assert derived(index) == []


def test_an_index_without_them_takes_the_native_path_alone() -> None:
    index = Index({"s": "string", "a": "int"})
    index.subscribe(1, "s LIKE 'a%' AND a > 3")
    assert index._state.keys.derived == []
    assert index._state.matcher.space.attributes == 2


def test_only_what_is_used_is_computed() -> None:
    index = Index(PLAIN)
    index.subscribe(1, "LOWER(s) = 'a'")
    index.subscribe(2, "LOWER(s) = 'b' AND a > b")
    index.subscribe(3, "a - b > 3")
    assert used(index) == derived(index) == ["LOWER(s)", "COMPARE(a, b)", "a - b"]
    index.unsubscribe(1)
    assert used(index) == derived(index)
    index.subscribe(2, "a > b")
    assert used(index) == ["COMPARE(a, b)", "a - b"]
    index.unsubscribe_many([2, 3])
    assert used(index) == []
    index.subscribe(4, "s = 'x'")
    assert index.match({"s": "x"}) == [4]
    index.load(pa.table({"id": [5, 6], "where": ["LOWER(s) = 'x'", "s LIKE '%x'"]}))
    assert used(index) == ["LOWER(s)", "REVERSE(s)"]
    assert sorted(index.match({"s": "x"})) == [4, 5, 6]
    index.load(pa.table({"id": [5, 6], "where": ["s = 'x'", "s = 'x'"]}))
    assert used(index) == []


def test_numbers_are_used_again() -> None:
    index = Index(PLAIN, limits=Limits(derived=3))
    for turn in range(20):
        for at in range(3):
            index.subscribe(at, f"a * {3 * turn + at} > 5")
        assert len(derived(index)) == 3 or turn == 0
        assert len(used(index)) <= 3
        assert sorted(index.match({"a": 1})) == [at for at in range(3) if 3 * turn + at > 5]
    index.unsubscribe(0)
    index.subscribe(7, "LOWER(s) = 'a'")
    assert "LOWER(s)" in derived(index)
    assert index.match({"s": "A"}) == [7]


def test_beyond_the_limit_the_rest_is_checked_on_candidates() -> None:
    few, many = Index(SCHEMA, limits=Limits(derived=4)), Index(SCHEMA)
    for number, text in enumerate(EXACT):
        few.subscribe(number, text)
        many.subscribe(number, text)
    assert len(derived(few)) == 4 < len(derived(many))
    check(few, list(EXACT), random.Random(3))
    loaded = Index(SCHEMA, limits=Limits(derived=2))
    texts = [*EXACT, "LOWER(s) = 'q'", "LOWER(s) = 'r'", "s ILIKE 'q%'"]
    loaded.load(pa.table({"id": list(range(len(texts))), "where": texts}))
    assert derived(loaded)[0] == "LOWER(s)"  # the most used
    check(loaded, texts, random.Random(4))


@pytest.mark.parametrize("matcher", ["hitbox", "brute", "rein"])
def test_they_come_while_the_index_lives(matcher: str, tmp_path: Path) -> None:
    """Segments that were built before an attribute came, and after it; snapshots, copies and pickles in between."""
    rng = random.Random(5)
    index = Index(SCHEMA, matcher, **({"tail": 16} if matcher == "hitbox" else {}))
    texts: list[str] = []
    plain = ["a > 1", "b = 2 AND s = 'a'", "x BETWEEN -1 AND 2", "s LIKE 'a%'", "ok", "order.city <> 'b'"]
    for turn in range(6):
        for _ in range(60):
            texts.append(rng.choice([*plain, *plain, *list(EXACT)[: 6 * turn]]))
            index.subscribe(len(texts) - 1, texts[-1], priority=rng.randint(0, 9))
        if turn == 1:
            index = copy.deepcopy(index)
        if turn == 2:
            index = pickle.loads(pickle.dumps(index))
        if turn == 3:
            index.save(tmp_path / "saved")
            before = derived(index), used(index)
            index = Index.open(tmp_path / "saved")
            assert (derived(index), used(index)) == before
        check(index, texts, rng, 12)
        for gone in rng.sample(range(len(texts)), 15):
            if gone in index:
                index.unsubscribe(gone)
        for number in range(len(texts)):
            if number not in index:
                texts[number] = "FALSE"
    index.save(tmp_path / "end")
    check(Index.open(tmp_path / "end", matcher="brute"), texts, rng)


def test_many_events_meet_segments_of_several_widths() -> None:
    """Batches are matched by other kernels than single events."""
    rng = random.Random(6)
    index = Index({"a": "int", "b": "int", "s": "string"}, tail=32, kind="bitmap")
    for number in range(300):
        low = rng.randrange(100)
        index.subscribe(number, f"a BETWEEN {low} AND {low + 20} AND b > {rng.randrange(100)}")
    for number in range(300, 600):
        low = rng.randrange(100)
        index.subscribe(number, f"a - b BETWEEN {low - 50} AND {low} AND LENGTH(s) < {rng.randrange(5)}")
    events = [{"a": rng.randrange(120), "b": rng.randrange(120), "s": "x" * rng.randrange(5)} for _ in range(400)]
    single = [sorted(index.match(event)) for event in events]
    assert [sorted(ids) for ids in index.match_batch(events).to_lists()] == single
    table = pa.Table.from_pylist(events)
    assert [sorted(ids) for ids in index.match_batch(table, threads=2).to_lists()] == single
    oracle = Index(index.schema, "brute")
    for number in index:
        oracle.subscribe(number, index.where(number))
    assert [sorted(ids) for ids in oracle.match_batch(events).to_lists()] == single


def test_intervals_may_have_any_value() -> None:
    index = Index({"a": "int", "b": "int", "s": "string"})
    index.subscribe(1, "a > b")
    index.subscribe(2, "a > b AND b > 5")
    index.subscribe(3, "s LIKE '%x' AND a > 3")
    assert sorted(index.match({"a": (1, 5), "b": 3})) == [1]
    assert sorted(index.match({"a": (1, 5)})) == []
    assert sorted(index.match({"a": (2, 2), "b": 3})) == []
    assert sorted(index.match({"a": (4, 4), "b": 3})) == [1]
    assert index.match({"a": 4, "s": ("a", "b")}) == [3]
    table = pa.table({"a_low": [1, 2, 4], "a_high": [5, 2, 4], "b": [3, 3, 3]})
    assert index.match_batch(table).to_lists() == [[1], [], [1]]


def test_both_sides() -> None:
    """What subscriptions say about themselves is not derived; what events carry is."""
    schema = {"salary": "int", "city": "string", "age": hitbox.Attribute("int", role="information")}
    index = Index(schema)
    index.subscribe("a", "city ILIKE 'paris'", about={"age": 25})
    index.subscribe("b", "city LIKE '%s'", about={"age": 40})
    assert index.match({"city": "PARIS"}, "age + 1 > 30") == []
    assert sorted(index.match({"city": "Paris"}, "age > 20")) == ["a", "b"]
    assert index.match({"city": "Paris"}, "age * 2 > 60") == ["b"]
    exchange = hitbox.Exchange(schema)
    exchange.subscribe("S", "LOWER(city) = 'paris'", about={"age": 25})
    assert exchange.publish("E", {"salary": (1, 2), "city": "PARIS"}, "age - 1 = 24") == ["S"]
    assert exchange.subscribe("T", "salary * 2 = 3 OR TRUE", about={"age": 25}) == ["E"]


def test_patterns_are_tried_on_the_strings_that_are_left() -> None:
    index = Index(PLAIN)
    with pytest.warns(hitbox.HitboxWarning, match="never match"):
        index.subscribe(1, "s = 'ab' AND s LIKE '%x'")
    index.subscribe(2, "s IN ('ab', 'cd') AND s LIKE '%b'")
    assert index.match({"s": "ab"}) == [2]
    with pytest.warns(hitbox.HitboxWarning, match="never match"):
        index.subscribe(3, "LENGTH(s) BETWEEN 5 AND 3")


def test_a_failed_change_changes_nothing() -> None:
    index = Index({"s": "string", "a": "int"}, limits=Limits(boxes=1))
    index.subscribe(1, "LOWER(s) = 'a'")
    with pytest.raises(HitboxError):
        index.subscribe(2, "UPPER(s) = 'A' AND nothing = 3")
    with pytest.raises(HitboxError):
        index.subscribe("2", "UPPER(s) = 'A'")
    assert used(index) == ["LOWER(s)"]
    assert index.match({"s": "A"}) == [1]


def test_matching_goes_on_while_they_come_and_go() -> None:
    index = Index({"a": "int", "s": "string"}, tail=8)
    index.subscribe(0, "a > 3")
    stop = threading.Event()
    wrong: list[Any] = []

    def look() -> None:
        while not stop.is_set():
            ids = index.match({"a": 4, "s": "aB"})
            many = index.match_batch([{"a": 4, "s": "aB"}] * 3).to_lists()
            wrong.extend(some for some in (ids, *many) if 0 not in some)

    threads = [threading.Thread(target=look) for _ in range(2)]
    for thread in threads:
        thread.start()
    for turn in range(150):
        index.subscribe(1 + turn % 40, f"LENGTH(s) + {turn % 50} > {turn} OR LOWER(s) = 'ab'")
        if turn % 3 == 0:
            index.unsubscribe(1 + turn % 40)
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong
    left = sorted(index)
    assert sorted(index.match({"a": 4, "s": "aB"})) == left


def test_damaged_manifests_are_refused(tmp_path: Path) -> None:
    index = Index({"s": "string", "a": "int"})
    index.subscribe(1, "LOWER(s) = 'a'")
    facts, arrays, _, _ = index._written()
    for bad in ([{"function": "", "of": ["LOWER(t)"]}], [{"function": "X", "of": ["s"]}], [{}], 3, [{"of": []}]):
        with pytest.raises(HitboxError):
            state.keys_of(facts | {"derived": bad}, arrays, tmp_path)
    keys = state.keys_of(facts, arrays, tmp_path)
    del arrays["derived.uses"]
    with pytest.raises(HitboxError):
        state.part(facts, keys, arrays, "")


@pytest.mark.parametrize("schema", [PLAIN, None])
@pytest.mark.parametrize("nested", [85, 90, 98, 99])
@pytest.mark.parametrize("length", [600, 985, 990, 995, 1000])
def test_what_is_derived_can_be_read_again(nested: int, length: int, schema: Any, tmp_path: Path) -> None:
    """ILIKE puts LOWER around an expression, which may be as long and as deep as one can be."""
    inner = "ABS(" * (nested - 1) + "a" + ")" * (nested - 1)
    expression = f"STRING({inner} + {'0' * 15}"
    while len(expression) < length - 20:
        expression += f" + {'0' * 15}"
    expression += f" + {'0' * max(1, length - len(expression) - 4)})"
    limits = Limits(depth=120)
    index = Index(schema, limits=limits)
    index.subscribe(1, f"{expression} ILIKE '3%'")
    index.subscribe(2, f"NOT {expression} NOT LIKE '%3'")
    index.subscribe(3, f"ABS({expression.replace('STRING', 'ABS')}) = 3")
    index.subscribe(4, "UPPER(LOWER(s)) ILIKE 'a%'")
    index.save(tmp_path)
    for again in (Index.open(tmp_path), Index.open(tmp_path, limits=limits)):
        assert sorted(again.match({"a": -3, "s": "Ab"})) == [1, 2, 3, 4]
