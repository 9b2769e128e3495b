"""Events as JSON texts: `match_json` says of a text what `match` says of `json.loads(text)`, however it is read."""

from __future__ import annotations

import json
import random
import threading
import warnings
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import hitbox
from hitbox import Index, Limits
from hitbox.engine import _kernels
from hitbox.errors import HitboxError, TableError, TooExpensive, ValueProblem
from hitbox.index.match_budget import MatchBudget
from support.random_documents import SCHEMA, Writer, nested, random_image
from support.tiers import only

WHERE = [
    "a = 1",
    "a > 0.5 AND a <= 9007199254740993",
    "name = 'x'",
    "name LIKE '%myapp%' AND a >= 0",
    "name LIKE 'a%b%c'",
    "name ILIKE '%ÄB%'",
    "LOWER(name) = 'äb'",
    "UPPER(name) >= 'B'",
    "name LIKE '%z'",
    "ok",
    "NOT ok OR a = 2",
    "at > TIMESTAMP '2026-01-01'",
    "at < NOW()",
    "x IS NULL AND a IS NOT NULL",
    "x IS MISSING",
    "a > b",
    "name < other",
    "ANY(tags) = 'x'",
    "ANY(tags) = 1",
    "ANY(tags) = 0.5",
    "ANY(tags) = TRUE",
    "ALL(tags) > 0",
    "ANY(tags) LIKE '%my%'",
    "EXISTS(items WHERE sku = 'A' AND q > 2)",
    "EXISTS(items WHERE sku = 'A')",
    "NOT EXISTS(items WHERE q = 1)",
    "ANY(items.sku) = 'B'",
    "ANY(order.items.sku) = 'A'",
    "EXISTS(order.items WHERE size.w > 1)",
    "order.city = 'Paris'",
    "order.total.net > 1 OR order.city = 'Rome'",
    "EXISTS(items WHERE EXISTS(parts WHERE n = 1))",
    "ANY(matrix) = 3",
    "LENGTH(name) = 3",
    "a + b = 3",
    "ip IN NETWORK '10.0.0.0/8'",
    "name REGEXP '^x[0-9]+$'",
]
NAMES = [
    "a",
    "b",
    "name",
    "other",
    "ok",
    "at",
    "x",
    "tags",
    "items",
    "order",
    "order.city",
    "order.items",
    "matrix",
    "ip",
]
NAMES += ["order.total", "order.total.net", "unasked", "old", "new", "", ".", "a.", "items.sku", "näme"]
FIELDS = ["sku", "q", "size", "size.w", "parts", "n", "w", "city", "total", "net", "items", "extra"]
SCALARS = [
    "x",
    "x12",
    "A",
    "B",
    "Paris",
    "Rome",
    "äb",
    "ÄB",
    "amyappz",
    "abc",
    "10.1.2.3",
    "2026-11-19T10:00:00Z",
    "",
    "1",
]
SCALARS += [
    "2026-01-01",
    "0001-01-01T00:00:00",
    "9999-12-31T23:59:59.999999+00:00",
    "2026-02-30",
    "12345",
    "\U0001f600",
]
NUMBERS = [0, 1, 2, 3, -1, 0.5, -0.0, 1.0, 2.5, 1e300, 2**53 + 1, 2**63 - 1, -(2**63), 2**64, 10**30, 1e-7, 123456.789]


def random_value(rng: random.Random, depth: int = 0) -> Any:
    kind = rng.random()
    if depth < 3 and kind < 0.2:
        return [random_value(rng, depth + 1) for _ in range(rng.randint(0, 3))]
    if depth < 3 and kind < 0.4:
        names = FIELDS if rng.random() < 0.9 else NAMES
        return {rng.choice(names): random_value(rng, depth + 1) for _ in range(rng.randint(0, 4))}
    return rng.choice([rng.choice(SCALARS), rng.choice(NUMBERS), rng.choice([True, False, None])])


def random_event(rng: random.Random) -> dict[str, Any]:
    return {rng.choice(NAMES): random_value(rng) for _ in range(rng.randint(0, 8))}


def filled(index: Index) -> Index:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hitbox.HitboxWarning)
        for id, where in enumerate(WHERE):
            index.subscribe(id, where, priority=id % 10)
    return index


def outcome(match: Any, *event: Any) -> Any:
    """The ids in order of their number, or the error."""
    try:
        return sorted(match(*event))
    except HitboxError as problem:
        return type(problem)


@pytest.mark.parametrize("seed", only([0, 1], range(30)))
def test_a_text_means_what_python_reads_of_it(seed: int) -> None:
    rng = random.Random(4200 + seed)
    index, oracle = filled(Index()), filled(Index(matcher="brute"))
    for round in range(3):
        events = [random_event(rng) for _ in range(80)]
        wanted = [outcome(oracle.match, event) for event in events]
        for event, ids in zip(events, wanted, strict=True):
            text = json.dumps(event, ensure_ascii=rng.random() < 0.5, indent=rng.choice([None, 1]))
            forms: list[Any] = [text, text.encode(), bytearray(text.encode()), memoryview(text.encode())]
            assert outcome(index.match_json, rng.choice(forms)) == ids, event
            assert outcome(index.match, event) == ids, event
        good = [(event, ids) for event, ids in zip(events, wanted, strict=True) if isinstance(ids, list)]
        texts = [json.dumps(event).encode() for event, _ in good]
        lines = b"\n".join(texts) + b"\n" * (round % 2)
        for batch in (
            index.match_json_batch(texts),
            index.match_json_batch(pa.array(texts, pa.binary())[:]),
            index.match_json_batch(pa.chunked_array([pa.array([t.decode() for t in texts])])),
            index.match_json_batch(lines),
            index.match_batch([event for event, _ in good]),
        ):
            assert [sorted(ids) for ids in batch] == [ids for _, ids in good]
        for id in rng.sample(range(len(WHERE)), 5):
            if id in index:
                index.unsubscribe(id)
                oracle.unsubscribe(id)


def write(rng: random.Random, count: int, native: bool, index: Index, oracle: Index, **about: Any) -> None:
    """Random subscriptions. With `native`, none that asks for what native code does not compute."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hitbox.HitboxWarning)
        while len(index) < count:
            id, text = len(index), Writer(rng).predicate(rng.randint(0, 2))
            about = {"about": {"lead": id}} if about else {}
            index.subscribe(id, text, priority=id % 10, **about)
            keys, used = index._state.keys, index._state.use.used
            if native and any(keys.derived[number - len(keys.schema)].native is None for number in used):
                index.unsubscribe(id)
            else:
                oracle.subscribe(id, text, priority=id % 10, **about)


def share_left(index: Index, texts: list[str]) -> float:
    """Of the events that native code leaves to Python."""
    plan = index._state.document_plan()
    return 1.0 if plan is None else len(_kernels.DocumentBatch(plan, texts, True).left) / len(texts)


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("seed", only([0], range(15)))
def test_the_whole_language(seed: int, native: bool) -> None:
    rng = random.Random(7700 + seed)
    index, oracle = Index(), Index(matcher="brute")
    write(rng, 120, native, index, oracle)
    events = [nested(rng, random_image(rng)) for _ in range(40)]
    texts = [json.dumps(event, default=lambda moment: moment.isoformat()) for event in events]
    assert not native or share_left(index, texts) < 0.8
    wanted = [outcome(oracle.match, json.loads(text)) for text in texts]
    assert [outcome(index.match_json, text) for text in texts] == wanted
    assert [outcome(index.match, event) for event in events] == [outcome(oracle.match, event) for event in events]


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("extra", [None, "ignore", "error"])
@pytest.mark.parametrize("seed", only([0], range(15)))
def test_the_whole_language_with_a_schema(seed: int, extra: str | None, native: bool) -> None:
    rng = random.Random(8800 + seed)
    schema = hitbox.Schema({**SCHEMA, "lead": {"type": "int", "role": "information"}}, extra=extra)
    index, oracle = Index(schema), Index(schema, matcher="brute")
    write(rng, 80, native, index, oracle, about=True)
    events = [spoilt(rng, nested(rng, random_image(rng))) for _ in range(60)]
    texts = [json.dumps(event, default=lambda moment: moment.isoformat()) for event in events]
    assert not native or share_left(index, texts) < 0.8
    wanted = [outcome(oracle.match, json.loads(text)) for text in texts]
    assert [outcome(index.match_json, text) for text in texts] == wanted
    assert [outcome(index.match, event) for event in events] == [outcome(oracle.match, event) for event in events]
    good = [(text, ids) for text, ids in zip(texts, wanted, strict=True) if isinstance(ids, list)]
    assert good
    batches = [index.match_json_batch([text for text, _ in good])]
    batches.append(index.match_batch([json.loads(text) for text, _ in good]))
    for batch in batches:
        assert [sorted(ids) for ids in batch] == [ids for _, ids in good]
    asked = "lead >= 40"
    for text, ids in good[:10]:
        assert sorted(index.match_json(text, asked)) == [id for id in ids if id >= 40]


def spoilt(rng: random.Random, event: dict[str, Any]) -> dict[str, Any]:
    """An event with fields that nobody declared, or with a value that does not fit, here and there."""
    objects: list[Any] = [event, event.get("order"), *(event.get("items") or [])]
    for place in objects:
        if isinstance(place, dict) and rng.random() < 0.3:
            names = [*list(place), "unknown", "pricee", "x_low", "size.w", "city", "old", "lead", "w", "zip"]
            values = [*SCALARS, *NUMBERS, None, True, [1], ["x"], {}, {"low": 1, "high": 2}, [{"sku": "A"}], [[1]]]
            place[rng.choice(names)] = rng.choice(values)
    return event


def test_fields_that_nobody_declared() -> None:
    index = Index({"price": "float", "order": {"city": "string"}, "items": [{"sku": "string"}]})
    index.subscribe("s", "price > 3 OR order.city = 'Paris' OR ANY(items.sku) = 'A'")
    for text in (
        '{"price": 4, "zzz": 1}',
        '{"order": {"city": "Paris", "zzz": 1}}',
        '{"items": [{"sku": "A", "zzz": []}]}',
    ):
        for _ in range(2):
            assert index.match_json(text) == ["s"]
            assert index.match_json_batch([text]).to_lists() == [["s"]]
    cases = {
        '{"zzz": 1}': "none of the attributes price, order.city, items is in the event",
        '{"prise": 4}': "did you mean 'price'",
        '{"price_low": 4}': "write an interval as 'price'",
        '{"order": {"zzz": 1}}': "none of the attributes",
        '{"price": 4, "order": {"citi": "Paris"}}': "did you mean 'order.city'",
        '{"price": 4, "order": 7}': "'order' is an object",
        '{"price": 4, "items": [{"skuu": "A"}]}': "did you mean 'sku'",
        '{"price": 4, "items": {"sku": "A"}}': "takes lists",
        '{"price": "4"}': "a float attribute takes numbers",
        '{"price": 9007199254740993}': "has no exact 64-bit float",
        '{"price": 4, "order.city": "a", "order": {"city": "b"}}': "is given twice",
    }
    for text, says in cases.items():
        with pytest.raises(HitboxError, match=says):
            index.match_json(text)
        with pytest.raises(HitboxError, match=says):
            index.match(json.loads(text))


TEXTS: list[Any] = [
    # what JSON has, and what it has not
    b"{}",
    b" \t\n\r{ } \n",
    b"",
    b" ",
    b"[]",
    b"[1]",
    b"1",
    b'"a"',
    b"null",
    b"{",
    b"}",
    b'{"a"}',
    b'{"a":}',
    b'{"a":1,}',
    b'{,"a":1}',
    b'{"a":1 "b":2}',
    b'{"a" 1}',
    b"{'a':1}",
    b"{a:1}",
    b'{"a":1}}',
    b'{"a":1} x',
    b'{"a":1}\x00',
    b'{"a":[1,]}',
    b'{"a":[1 2]}',
    b'{"a":[1}',
    b'{"a":tru}',
    b'{"a":True}',
    b'{"a":nul}',
    b'{"x":/**/1}',
    b'{"a":1}//',
    b'{"a":\x0c1}',
    # numbers
    b'{"a":01}',
    b'{"a":-}',
    b'{"a":+1}',
    b'{"a":.5}',
    b'{"a":1.}',
    b'{"a":1e}',
    b'{"a":1e+}',
    b'{"a":-0}',
    b'{"a":-0.0}',
    b'{"a":1E0}',
    b'{"a":1e-400}',
    b'{"a":1e400}',
    b'{"a":-1e400}',
    b'{"a":0x1}',
    b'{"a":1_0}',
    b'{"a":NaN}',
    b'{"a":Infinity}',
    b'{"a":-Infinity}',
    b'{"x":NaN,"a":1}',
    b'{"a":9007199254740993}',
    b'{"a":9223372036854775807}',
    b'{"a":9223372036854775808}',
    b'{"a":-9223372036854775808}',
    b'{"a":' + b"9" * 400 + b"}",
    b'{"u":' + b"9" * 5000 + b"}",
    b'{"a":1.00000000000000000000000000000000001}',
    b'{"a":0.1e1}',
    b'{"a":10000000000000000000000e-22}',
    b'{"a":1e22}',
    b'{"a":123456789012345678901234567890e-29}',
    b'{"a":0.000000000000000000000000001e27}',
    # texts
    b'{"name":"\\u0078"}',
    b'{"name":"\\u00e4b"}',
    b'{"name":"\\u00E4b"}',
    b'{"name":"\xc3\xa4b"}',
    b'{"name":"\\ud83d\\ude00"}',
    b'{"name":"\\ud83d"}',
    b'{"name":"\\ude00"}',
    b'{"name":"\\ud83d\\u0041"}',
    b'{"u":"\\ud83d","a":1}',
    b'{"name":"\\u0000"}',
    b'{"u":"\\u0000","a":1}',
    b'{"name":"\\x41"}',
    b'{"name":"\\u12"}',
    b'{"name":"\\u12G4"}',
    b'{"name":"\\',
    b'{"name":"a',
    b'{"name":"a\nb"}',
    b'{"name":"a\x1fb"}',
    b'{"name":"a\x7fb"}',
    b'{"name":"\xff"}',
    b'{"name":"\xc0\x80"}',
    b'{"u":"\xed\xa0\x80"}',
    b'{"name":"\xed\xa0\x80"}',
    b'{"name":"\xf4\x90\x80\x80"}',
    b'{"name":"\xf0\x9f\x98\x80"}',
    b'{"name":"\xe2\x82"}',
    b'{"\xff":1}',
    b'{"name":"\\"\\\\\\/\\b\\f\\n\\r\\t"}',
    b'{"n\\u0061me":"x"}',
    b'{"\\ud800":1,"a":1}',
    b'{"name":"xyz12345678\\n"}',
    # a name that comes twice, and dots
    b'{"a":1,"a":2}',
    b'{"a":2,"a":1}',
    b'{"order":{"city":"Paris"},"order":{"total":1}}',
    b'{"order.city":"Paris"}',
    b'{"order":{"city":"Rome"},"order.city":"Paris"}',
    b'{"order.city":"Paris","order":{"city":"Rome"}}',
    b'{"order.":{"city":"Paris"}}',
    b'{"order":{"city":"Paris","city":"Oslo"}}',
    b'{"items":[{"sku":"A","sku":"B","q":3}]}',
    b'{"items":[{"size.w":2}]}',
    b'{"order":{"items":[{"size.w":2},{"size":{"w":0}}]}}',
    b'{"order":{"items":[{"size.w":2,"size":{"w":0}}]}}',
    b'{"order":[{"items":[{"sku":"A"}]}]}',
    b'{"order.items":[{"sku":"A"}]}',
    b'{"order":{"items":{"sku":"A"}}}',
    b'{"tags":"x"}',
    b'{"tags":[["x"]]}',
    b'{"tags":[[["x"],1],0.5]}',
    b'{"tags":null}',
    b'{"tags":[]}',
    b'{"tags":[null]}',
    b'{"items":{}}',
    b'{"items":7}',
    # images, marks of the order of bytes, other encodings
    b'{"old":{"a":1},"new":{"a":2}}',
    b'{"old":null,"new":null}',
    b'{"new":{"a":1}}',
    b'{"old":1,"a":1}',
    b'{"old":{"a":1},"a":1}',
    b'\xef\xbb\xbf{"a":1}',
    '\ufeff{"a":1}',
    '{"a":1}'.encode("utf-16"),
    '{"a":1}'.encode("utf-32-le"),
    '{"name":"äb"}',
    '{"name":"\ud800"}',
    # depth
    b'{"u":' + b"[" * 190 + b"]" * 190 + b',"a":1}',
    b'{"u":' + b"[" * 230 + b"]" * 230 + b',"a":1}',
    b'{"tags":' + b"[" * 180 + b'"x"' + b"]" * 180 + b"}",
    b'{"u":' + b'{"u":' * 220 + b"1" + b"}" * 220 + b',"a":1}',
    b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
]


@pytest.mark.parametrize("number", range(len(TEXTS)))
def test_texts_of_all_kinds(number: int) -> None:
    check(filled(Index()), filled(Index(matcher="brute")), TEXTS[number])


def check(index: Index, oracle: Index, text: Any) -> None:
    try:
        event = json.loads(text)
        wanted = outcome(oracle.match, event) if isinstance(event, dict) else ValueProblem
    except (ValueError, RecursionError):
        wanted = ValueProblem
    assert outcome(index.match_json, text) == wanted, text
    if isinstance(wanted, list):
        assert sorted(index.match_json_batch([text, b"{}"])[0]) == wanted, text
        assert outcome(index.match, event) == wanted, text
    else:
        with pytest.raises(TableError, match=r"^event 1: "):
            index.match_json_batch([b"{}", text])


@pytest.mark.parametrize("seed", only([0], range(40)))
def test_texts_with_bytes_that_were_changed(seed: int) -> None:
    rng = random.Random(9900 + seed)
    index, oracle = filled(Index()), filled(Index(matcher="brute"))
    parts = [
        b"{",
        b"}",
        b"[",
        b"]",
        b",",
        b":",
        b'"',
        b"\\",
        b"\\u",
        b"d8",
        b"\x00",
        b"\x80",
        b"\xc3",
        b"\xed",
        b"1",
        b"-",
        b"e9",
        b".",
        b"null",
    ]
    for _ in range(300):
        text = bytearray(json.dumps(random_event(rng), ensure_ascii=rng.random() < 0.5).encode())
        for _ in range(rng.randint(1, 3)):
            at = rng.randrange(len(text) + 1)
            text[at : at + rng.randint(0, 2)] = rng.choice(parts)
        check(index, oracle, bytes(text))


def test_what_is_wrong_with_a_text() -> None:
    index = filled(Index())
    cases: list[tuple[Any, str]] = [
        (b'{"a": 1, "b" 2}', "the event is no JSON: Expecting ':' delimiter at byte 13, near '{\"a\": 1, \"b\" 2}'"),
        ('{"ä": 1, "b" 2}', "at byte 14"),
        (b'{"a": "\xff"}', "the event is not UTF-8: invalid start byte at byte 7"),
        (b"[1]", r"an event is an object of JSON, not \[1\]"),
        (b"[" * 100_000, "the event is no JSON"),
        (7, "a JSON event is a text or bytes, not 7"),
        ({"a": 1}, "a JSON event is a text or bytes"),
        (None, "a JSON event is a text or bytes, not None"),
    ]
    for text, says in cases:
        with pytest.raises(ValueProblem, match=says):
            index.match_json(text)
    for texts, says in [
        (7, "JSON events are a list"),
        (["{}", b"{"], "event 1: the event is no JSON"),
        (pa.array([1]), "holds no JSON texts"),
        (pa.array(["{}", None]), "event 1: it is null"),
        ([{}], "event 0: a JSON event is a text"),
    ]:
        with pytest.raises((ValueProblem, TableError), match=says):
            index.match_json_batch(texts)


def test_many_texts_of_which_some_are_wrong() -> None:
    index = filled(Index())
    texts = [b'{"a":1}', b"{", b'{"a":1}', b'{"name":"\\u0000"}', b'{"a":1}']
    wanted = sorted(index.match({"a": 1}))
    for on_error, of_bad in (("return", []), ("null", sorted(index.match({})))):
        found = index.match_json_batch(texts, on_error=on_error)
        assert [sorted(ids) for ids in found][::2] == [wanted] * 3
        assert list(found[1]) == []
        assert sorted(found[3]) == of_bad
        assert [number for number, _ in found.errors] == [1, 3]
    assert "no JSON" in found.errors[0][1]
    assert "NUL" in found.errors[1][1]


def test_options_are_those_of_match() -> None:
    index = filled(Index())
    event = {"a": 1, "name": "amyappz", "tags": ["x", 1, 0.5, True]}
    text = json.dumps(event)
    for limit in range(8):
        assert index.match_json(text, limit=limit) == index.match(event, limit=limit)
    declared = Index({"a": "int", "tags": "string[]", "lead": {"type": "float", "role": "information"}})
    declared.subscribe("s", "a = 1 AND ANY(tags) = 'x'", about={"lead": 3})
    assert declared.match_json('{"a": 1, "tags": ["x"]}', "lead > 2") == ["s"]
    assert declared.match_json('{"a": 1, "tags": ["x"]}', "lead > 3") == []
    assert declared.match_json_batch(['{"a": 1, "tags": ["x"]}'] * 2, ["lead > 2", "lead > 3"]).to_lists() == [
        ["s"],
        [],
    ]
    with pytest.raises(ValueProblem, match="limit is a whole number"):
        index.match_json(text, limit=-1)
    assert index.match_json_batch([]).to_lists() == []
    assert index.match_json_batch(b"").to_lists() == []
    assert Index().match_json(text) == []


def test_steps_are_bounded() -> None:
    index = Index(limits=Limits(match_steps=50))
    index.subscribe("long", "EXISTS(items WHERE EXISTS(parts WHERE n * m = 7))")
    index.subscribe("scan", "ALL(tags) > 0")
    index.subscribe("plain", "a = 1")
    items = [{"parts": [{"n": n, "m": n} for n in range(30)]} for _ in range(30)]
    text = json.dumps({"a": 1, "items": items, "tags": list(range(1, 5000))})
    with pytest.raises(TooExpensive):
        index.match_json(text)
    reports: list[TooExpensive] = []
    assert index.match_json(text, on_expensive=reports.append) == ["plain"]
    assert sorted(report.id for report in reports) == ["long", "scan"]  # type: ignore[type-var]
    assert index.match_json_batch([text], on_expensive=reports.append).to_lists() == [["plain"]]
    assert len(reports) == 4


class Account(MatchBudget):
    """Counts all steps, and lets native code look together."""

    counts, together = True, 10_000

    def __init__(self) -> None:
        super().__init__(100_000)
        self.taken: dict[Any, int] = {}

    def took(self, id: Any, event: int | None, steps: int) -> None:
        self.taken[id] = self.taken.get(id, 0) + steps


def test_steps_are_counted_where_they_are_asked_for() -> None:
    index = Index()
    index.subscribe("tags", "ALL(tags) > 0")
    index.subscribe("plain", "a = 1")
    account = Account()
    assert index.match_json(json.dumps({"a": 1, "tags": [1] * 20_000}), budget=account) == ["tags", "plain"]
    assert account.spent > 100
    assert not account.taken  # together they took little: nobody is told
    account = Account()
    assert index.match_json(json.dumps({"a": 1, "tags": [1] * 2_000_000}), budget=account) == ["tags", "plain"]
    assert set(account.taken) == {"tags"}


def test_threads_read_and_change() -> None:
    """Buffers are given back, and readers do not share what they read."""
    index = filled(Index())
    event = {"a": 1, "name": "amyappz", "tags": ["x"], "items": [{"sku": "A", "q": 3}]}
    text, wanted = json.dumps(event).encode(), sorted(index.match(event))
    wrong: list[Any] = []
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            buffer = bytearray(text)
            found = sorted(id for id in index.match_json(buffer) if isinstance(id, int) and id < 1000)
            buffer.clear()
            if (
                found != wanted
                or [sorted(i for i in ids if i < 1000) for ids in index.match_json_batch([text] * 3)] != [wanted] * 3
            ):
                wrong.append(found)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for number in range(300):
        index.subscribe(1000 + number, f"name = 'n{number}' OR ANY(tags) = 't{number}' OR f{number % 7} = 1")
        if number > 5:
            index.unsubscribe(1000 + number - 5)
    stop.set()
    for reader in readers:
        reader.join()
    assert not wrong


def test_a_dictionary_that_changes() -> None:
    index = Index()
    for number in range(50):
        index.subscribe(number, f"city >= '{chr(97 + number % 26)}{number}'")
        text = '{"city": "m5"}'
        assert sorted(index.match_json(text)) == [n for n in range(number + 1) if f"{chr(97 + n % 26)}{n}" <= "m5"]
        assert np.array_equal(sorted(index.match_json_batch([text])[0]), sorted(index.match({"city": "m5"})))


def test_lists_and_names_of_unusual_kinds() -> None:
    index = Index({"scores": "int[]", "items": [{"sku": "string"}], "order": {"lines": "int[]"}})
    index.subscribe("s", "ANY(scores) = 2 OR ANY(items.sku) = 'A' OR ANY(order.lines) = 1")
    for event in ({"scores": [[1], 2]}, {"items": [[{"sku": "A"}]]}, {"scores": [[1, 2], []]}, {"order": [{"zzz": 1}]}):
        for ask in (index.match, lambda event: index.match_json(json.dumps(event))):
            with pytest.raises(HitboxError):
                ask(event)
    odd = Index()
    odd.subscribe("empty", '"" = 1')
    odd.subscribe("plain", "a = 1")
    assert odd.match_json('{"": 1, "a": 1}') == ["empty", "plain"]
    named = Index({"x[]": "int[]", "a[]": {"b": "int"}})
    named.subscribe("s", '"x[]" IS NULL')
    assert named.match_json('{"x[]": [1]}') == []
    with pytest.raises(HitboxError):
        named.match_json('{"a[]": 7}')
    deep = Index()
    text = "n = 1"
    for level in range(20):
        text = f"EXISTS(l{level} WHERE {text})"
    deep.subscribe("deep", text)
    deep.subscribe("plain", "a = 1")
    assert deep.match_json('{"a": 1}') == ["plain"]


def test_two_fields_of_an_element_of_which_one_is_unusual() -> None:
    index = Index()
    index.subscribe("s", "EXISTS(items WHERE sku = 'A' AND at > TIMESTAMP '2026-01-01')")
    for moment in ("2026-11-19T10:00:00Z", "2026-11-19T10:00", "20261119T100000Z"):
        event = {"items": [{"sku": "A", "at": moment}]}
        assert index.match_json(json.dumps(event)) == index.match(event) == ["s"]


def test_fields_that_nobody_declared_cost_little() -> None:
    index = Index({"price": "float", "city": "string"})
    index.subscribe("s", "price > 3")
    assert share_left(index, ['{"price": 4, "zzz": 1}'] * 100) == 0
    event = {"price": 4, **{f"zz{number:04}": number for number in range(3000)}}
    assert index.match_json(json.dumps(event)) == ["s"]


def test_objects_that_are_in_many_places() -> None:
    index = Index()
    index.subscribe("s", "a = 1")
    shared: Any = [1]
    for _ in range(60):
        shared = [shared, shared]
    assert index.match({"a": 1, "unasked": shared}) == ["s"]


def test_views_of_memory() -> None:
    index = Index()
    index.subscribe("s", "a = 1")
    assert index.match_json(memoryview(b'{_"_a_"_:_1_}_')[::2]) == ["s"]
    for _ in range(3):
        with pytest.raises(ValueProblem, match="is a text or bytes"):
            index.match_json(np.frombuffer(b'{"a":1}', np.uint8))


@pytest.mark.parametrize("schema", [None, {"tags": "int[]", "a": "int"}])
def test_limits_that_are_set_later_hold(schema: Any) -> None:
    index = Index(schema)
    index.subscribe("s", "ALL(tags) > 0")
    event = {"tags": list(range(1, 20_000))}
    for _ in range(2):
        assert index.match(event) == index.match_json(json.dumps(event)) == ["s"]
        index.limits = Limits(match_steps=10)
        for ask in (lambda: index.match(event), lambda: index.match_json(json.dumps(event))):
            with pytest.raises(TooExpensive):
                ask()
        index.limits = Limits()
