"""Programs: what boxes leave open is decided natively, as the tree would decide it.

Most predicates of the tests are small, so that boxes decide them alone. Here every predicate may have one box only
(`one_box`), so that almost all of them need their program.
"""

from __future__ import annotations

import copy
import pickle
import random
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import hitbox
from hitbox import Index, language
from hitbox.encoding import string_dictionary
from hitbox.encoding.keys import Keys
from hitbox.encoding.schema import Schema
from hitbox.errors import DamagedArray, SnapshotError
from hitbox.index import changing, program_columns, sharded, state
from hitbox.index.load import bulk_load, predicate_column
from hitbox.index.load.predicate_text import PredicateTexts
from hitbox.index.program_columns import ProgramColumns
from hitbox.language import DEFAULT_LIMITS, evaluate
from hitbox.language.boxes import normal
from hitbox.language.programs import programs
from support.comparison import run
from support.random_documents import SCHEMA, TYPES, Writer, meaning, nested, random_image
from support.second_evaluator import Unsure, World, parse, truth

MIXED = {"a": "int", "b": "int", "c": "int", "s": "string"}


@pytest.fixture
def one_box(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No predicate has more than one box."""
    for module in (normal, predicate_column):
        monkeypatch.setattr(module, "LITERAL_LENGTH", 10**9)
    object.__setattr__(DEFAULT_LIMITS, "boxes", 1)
    yield
    object.__setattr__(DEFAULT_LIMITS, "boxes", 16)


def truth_of(of: Index, text: str, event: dict[str, Any]) -> bool:
    return evaluate(of.parse(text), event) is True


@pytest.mark.usefixtures("one_box")
@pytest.mark.parametrize("matcher", ["hitbox", "brute"])
@pytest.mark.parametrize("kind", ["predicates", "history", "many", "both", "exchange"])
def test_the_second_evaluator_agrees(kind: str, matcher: str) -> None:
    for seed in range(4 if matcher == "hitbox" else 2):
        run(kind, seed, matcher)


@pytest.mark.usefixtures("one_box")
def test_changes_in_another_thread() -> None:
    for seed in range(4):
        run("threads", seed, "hitbox")


@pytest.mark.usefixtures("one_box")
@pytest.mark.parametrize("seed", range(4))
def test_random_documents(seed: int, tmp_path: Path) -> None:
    """The whole language: natively, by the tree and by the second evaluator, before and after a snapshot."""
    rng = random.Random(1000 + seed)
    texts = {id: Writer(rng).predicate(rng.randint(1, 3)) for id in range(150)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hitbox.HitboxWarning)
        made = Index(SCHEMA)
        for id, text in texts.items():
            made.subscribe(id, text)
    made.save(tmp_path)
    again = Index.open(tmp_path)
    for _ in range(25):
        image = random_image(rng)
        event = nested(rng, image)
        ids = set(made.match(event))
        assert set(again.match(event)) == ids
        for id, text in texts.items():
            assert (id in ids) == truth_of(made, text, event), f"{text} of {event}"
            try:
                right = truth(parse(text, TYPES), TYPES, World(meaning(image) or {}, None, 0))
            except Unsure:
                continue
            assert "NOW" in text or (id in ids) == (right is True), f"{text} of {event}"


def random_sets(rng: random.Random, names: list[str], depth: int) -> str:
    """A predicate that programs decide without the tree."""
    if depth and rng.random() < 0.8:
        op = rng.choice([" AND ", " OR ", " XOR "])
        parts = [random_sets(rng, names, depth - 1) for _ in range(rng.randint(2, 4))]
        found = op.join(f"({part})" for part in parts)
        return found if rng.random() < 0.7 else f"NOT ({found})"
    name = rng.choice(names)
    value = (lambda: f"'{rng.choice('uvwxyz')}'") if name == "s" else (lambda: str(rng.randint(0, 9)))
    low, high = sorted([value(), value()])
    tests = [f"= {low}", f"<> {low}", f"< {low}", f">= {low}", f"BETWEEN {low} AND {high}", "IS NULL", "IS NOT NULL"]
    tests += [
        f"NOT BETWEEN {low} AND {high}",
        f"IN ({low}, {high}, {value()})",
        f"NOT IN ({low}, {value()}, {value()})",
    ]
    tests += ["LIKE 'x%'", "NOT LIKE 'w%'"] if name == "s" else []
    return f"{name} {rng.choice(tests)}"


def random_event(rng: random.Random) -> dict[str, Any]:
    event: dict[str, Any] = {name: rng.choice([*range(10), None]) for name in "abc" if rng.random() < 0.8}
    return event | ({"s": rng.choice(["u", "v", "w", "x", "xy", "wz", "", None])} if rng.random() < 0.8 else {})


@pytest.mark.usefixtures("one_box")
def test_sets_of_keys_are_decided_without_the_tree(asked: list[str]) -> None:
    rng = random.Random(3)
    made = Index(MIXED)
    texts = {id: random_sets(rng, list(MIXED), 3) for id in range(300)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hitbox.HitboxWarning)
        made.load(pa.table({"id": list(texts), "where": list(texts.values())}))
    events = [random_event(rng) for _ in range(60)]
    batch = made.match_batch(events)
    found = [made.match(event) for event in events]
    limited = [made.match(event, limit=7) for event in events]
    assert not asked
    assert len(made._state.catalog.programs._place) > 200  # they did have programs
    for number, event in enumerate(events):
        right = {id for id, text in texts.items() if truth_of(made, text, event)}
        assert set(batch[number]) == set(found[number]) == right
        assert limited[number] == found[number][:7]


@pytest.mark.usefixtures("one_box")
def test_the_tree_is_asked_only_where_keys_do_not_decide(asked: list[str]) -> None:
    made = Index(MIXED, limits=hitbox.Limits(boxes=1, derived=1))
    made.subscribe("other", "ABS(a) = 99")  # no other function has keys
    made.subscribe("like", "(a = 1 OR s LIKE '%x') AND (b = 1 OR c = 1)")
    made.subscribe("sum", "a + b > 5 OR c = 1")
    assert made.match({"a": 1, "b": 1, "s": "ax"}) == ["like"]
    assert made.match({"a": 2, "b": 2, "s": "ax"}) == []
    assert made.match({"a": 2, "b": 1}) == []  # s is missing: no LIKE is true
    assert asked == ["a + b > 5 OR c = 1"] * 3
    assert made.match({"a": 2, "c": 1}) == ["sum"]  # without b there is no sum
    assert asked == ["a + b > 5 OR c = 1"] * 3
    assert sorted(made.match({"a": 2, "b": 1, "c": 1, "s": "ax"})) == ["like", "sum"]
    assert asked[3:] == [made.where("like")]


@pytest.mark.usefixtures("one_box")
def test_programs_test_derived_attributes(asked: list[str]) -> None:
    """No box constrains them, so the programs alone say that they must be computed, as long as they live."""
    made = Index(MIXED)
    made.subscribe("like", "(a = 1 OR s LIKE '%x') AND (b = 1 OR c = 1)")
    made.subscribe("sum", "a + b > 5 OR c = 1")
    made.subscribe("odd", "LOWER(s) = 'ax' XOR a > b")
    derived = {one.text: number for number, one in enumerate(made._state.keys.derived, len(MIXED))}
    assert set(derived) == {"REVERSE(s)", "a + b", "LOWER(s)", "COMPARE(a, b)"}
    numbers = made._state.catalog.boxes_of(made._state.catalog.living_slots())
    assert not np.isin(made._state.boxes(numbers).attribute, list(derived.values())).any()
    assert made._state.use.used == sorted(derived.values())
    for of in (made, copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        assert sorted(of.match({"a": 2, "b": 1, "s": "AX"})) == []
        assert sorted(of.match({"a": 2, "b": 1, "c": 1, "s": "ax"})) == ["like", "sum"]
        assert sorted(of.match({"a": 4, "b": 4, "s": "AX"})) == ["odd", "sum"]
        assert of.match({"a": 4, "s": "ax"}) == []
    made.subscribe("more", "LOWER(s) = 'ab' OR s LIKE '%w'")
    made._changing.forget_words()
    assert made.match({"a": 4, "b": 0, "c": 0, "s": "AX"}) == []
    assert sorted(made.match({"a": 4, "b": 4, "c": 1, "s": "Ax"})) == ["like", "odd", "sum"]
    assert not asked
    made.unsubscribe("sum")
    made.unsubscribe("like")
    assert made._state.use.used == sorted(number for text, number in derived.items() if text != "a + b")
    made.load(pa.table({"id": ["odd", "more"], "where": ["a = 1", "b = 1"]}))
    assert made._state.use.used == []


def test_what_boxes_leave_to_the_tree_has_no_program() -> None:
    made = Index(MIXED)
    made.subscribe(1, "a > 3 AND s LIKE '%x'")
    made.subscribe(2, "(a > 3 AND s LIKE '%x') OR b = 2")
    made.subscribe(3, "a = 1 AND b <> 3")
    assert not made._state.catalog.programs
    assert made.nbytes()["catalog"] < 10_000
    made.subscribe(4, either(random.Random(0)))
    assert made._state.catalog.programs


def test_one_shape_for_all_that_differ_in_literals() -> None:
    made = Index(MIXED)
    for n in range(50):
        made.subscribe(n, f"a NOT IN ({', '.join(str(n + 2 * i) for i in range(20))}) AND s <> 'x{n}'")
    assert len(made._state.catalog.programs._shapes) == 2
    right = [n for n in range(50) if n != 3 and 30 - n not in range(0, 40, 2)]
    assert sorted(made.match({"a": 30, "s": "x3"})) == right


@pytest.mark.parametrize("boxes", [1, 3, 16])
def test_programs_of_plain_texts_are_made_natively(boxes: int) -> None:
    """The native reader and `language` make the same boxes and the same programs of a conjunction."""
    rng = random.Random(31)
    schema = Schema(MIXED | {"f": "float", "ok": "bool", "g": {"type": "int", "domain": [0, 9]}})
    limits = hitbox.Limits(boxes=boxes)
    texts = []
    for _ in range(400):
        parts = [random_sets(rng, list(MIXED), 0) for _ in range(rng.randint(1, 5))]
        parts += [f"f NOT IN ({', '.join(f'{n}.5' for n in range(rng.randint(1, 30)))})"] * rng.randint(0, 1)
        parts += rng.sample(
            ["ok <> TRUE", "g NOT IN (1, 3, 5, 7)", "g <> 4", "ok IS NULL", "f <> 2"], rng.randint(0, 3)
        )
        words = ", ".join(f"'w{n}'" for n in range(rng.randint(1, 20)))
        functions = [f"LOWER(s) NOT IN ({words})", "LENGTH(s) <> 3", "s LIKE '%x'", "s NOT ILIKE 'W1%'"]
        parts += rng.sample(functions, rng.randint(0, 2))
        texts.append(" AND ".join(parts))
    keys = Keys(schema)
    draft = bulk_load.read(pa.table({"id": list(range(400)), "where": texts}), schema, limits)
    keys = keys.with_derived(dict(enumerate(draft.derived().values(), len(schema))))
    assert len(keys.derived) == 3
    keys.admit(draft.strings(keys))
    encoded = draft.encode(keys, limits)
    assert not [row for row in draft.others if "LIKE" not in texts[row]]  # a pattern may have an anchor
    first = np.cumsum(encoded.count) - encoded.count
    single = PredicateTexts(schema, limits)
    for row, text in enumerate(texts):
        found = language.compile(language.parse(text, schema, limits=limits), keys, limits)
        numbers = range(first[row], first[row] + encoded.count[row])
        assert [encoded.boxes[number] for number in numbers] == found.boxes, text
        assert [bool(encoded.exact[number]) for number in numbers] == found.exact, text
        assert encoded.programs.get(row) == found.program, text
        assert single.read(text).boxes(keys, {}, 4).program == found.program, text
    assert len(encoded.programs) > 50


def labelled(monkeypatch: pytest.MonkeyPatch) -> Index:
    """An index whose labels move soon: the gaps between strings are small."""
    monkeypatch.setattr(string_dictionary, "LABEL_STRIDE", 8)
    monkeypatch.setattr(string_dictionary, "RUN_STEP", 2)
    return Index({"s": "string", "t": "string", "a": "int"})


@pytest.mark.usefixtures("one_box")
def test_programs_move_with_labels(monkeypatch: pytest.MonkeyPatch, asked: list[str], tmp_path: Path) -> None:
    made = labelled(monkeypatch)
    moved: list[int] = []
    relabelled = ProgramColumns.relabelled

    def noted(self: ProgramColumns, *arguments: Any) -> ProgramColumns:
        moved.append(1)
        return relabelled(self, *arguments)

    monkeypatch.setattr(ProgramColumns, "relabelled", noted)
    rng = random.Random(5)
    words = ["".join(rng.choices("abc", k=rng.randint(1, 5))) for _ in range(300)]
    texts: dict[int, str] = {}
    for id in range(300):
        one, two, three = rng.sample(words, 3)
        tests = [f"s > '{one}'", f"t <= '{two}'", f"s LIKE '{three[:2]}%'", f"t NOT IN ('{one}', '{two}')", "a = 1"]
        tests += [f"LOWER(t) < '{two}'", f"s LIKE '%{three[:2]}'", f"t ILIKE '{one[:1]}%'"]  # derived
        tests += [f"s = '{two}'", f"t < '{three}'", f"s BETWEEN '{min(one, two)}' AND '{max(one, two)}'"]
        some = rng.sample(tests, 4)
        texts[id] = f"({some[0]} OR {some[1]}) AND ({some[2]} OR NOT {some[3]})"
        made.subscribe(id, texts[id])
    made.unsubscribe_many(list(range(0, 300, 3)))
    assert moved
    made.save(tmp_path)
    for of in (made, Index.open(tmp_path), copy.copy(made), pickle.loads(pickle.dumps(made))):
        for _ in range(30):
            event = {"s": rng.choice([*words, "", "zz"]), "t": rng.choice([*words, None]), "a": rng.randint(0, 2)}
            right = {id for id, text in texts.items() if id % 3 and truth_of(of, text, event)}
            assert set(of.match(event)) == right
    assert not asked


@pytest.mark.usefixtures("one_box")
def test_strings_of_programs_are_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changing, "MANY_WORDS", 50)
    made = Index({"s": "string", "a": "int"})
    made.subscribe("kept", "(s = 'm' OR a = 1) AND (s <> 'p' OR a = 2)")
    for n in range(300):  # strings come and go
        made.subscribe("other", f"s = 'n{n:03}'")
    assert len(made._state.keys.dictionaries[0]) < 200
    assert made._state.keys.knows({0: {"m", "p"}})
    assert made.match({"s": "m"}) == ["kept"]
    assert made.match({"s": "ma"}) == []
    assert made.match({"s": "p", "a": 1}) == []
    assert made.match({"s": "pa", "a": 1}) == ["kept"]


def either(rng: random.Random) -> str:
    """A predicate that has a program."""
    unlike = ", ".join(map(str, rng.sample(range(0, 80, 2), 20)))
    return f"a NOT IN ({unlike}) AND (b <> {rng.randint(0, 3)} OR c = {rng.randint(0, 3)})"


def some_event(rng: random.Random) -> dict[str, Any]:
    return {"a": rng.randint(0, 79), "b": rng.randint(0, 3), "c": rng.randint(0, 3)}


def right_ids(of: Index, texts: dict[int, str], event: dict[str, Any]) -> set[int]:
    return {id for id, text in texts.items() if truth_of(of, text, event)}


def test_slots_that_come_and_go(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Replaced, removed, squeezed out, loaded in the order of the engine, and saved."""
    monkeypatch.setattr(program_columns, "MANY_WASTED", 500)
    rng = random.Random(9)
    made = Index(MIXED)
    texts: dict[int, str] = {}

    def check(of: Index) -> None:
        for _ in range(10):
            event = some_event(rng)
            assert set(of.match(event)) == right_ids(made, texts, event)

    for _ in range(3):
        some = {
            rng.randint(0, 3000): either(rng) if rng.random() < 0.6 else f"a = {rng.randint(0, 3)}" for _ in range(1500)
        }
        made.load(pa.table({"id": list(some), "where": list(some.values())}))
        texts |= some
        check(made)
        for id in rng.sample(sorted(texts), 300):
            texts[id] = either(rng)
            made.subscribe(id, texts[id])
        for id in rng.sample(sorted(texts), 200):
            made.unsubscribe(id)
            del texts[id]
        check(made)
        columns = made._state.catalog.programs
        assert 2 * columns._wasted <= len(columns._words) or columns._wasted <= 500
        made.save(tmp_path)
        made = Index.open(tmp_path)
        check(made)


def test_parts_joined_and_matched_as_one(tmp_path: Path) -> None:
    rng = random.Random(11)
    keys = Keys(Schema(MIXED))
    texts = {id: either(rng) + f" AND s <> 'w{id}'" for id in range(200)}
    draft = bulk_load.read(pa.table({"id": list(texts), "where": list(texts.values())}), keys.schema, DEFAULT_LIMITS)
    keys.admit(draft.strings(keys))
    made = sharded.index_of(keys, draft.encode(keys, DEFAULT_LIMITS))
    event = some_event(rng) | {"s": "w7"}
    right = right_ids(made, texts, event)
    assert right
    assert set(made.match(event)) == right
    renamed = state.IndexState.renamed(made._state, pa.array([f"id {id}" for id in made]))
    assert set(Index.of(renamed).match(event)) == {f"id {id}" for id in right}
    assert len(renamed.catalog.programs._place) == 200


def test_a_change_that_fails_leaves_programs_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Index(MIXED)
    rng = random.Random(13)
    texts = {id: either(rng) for id in range(20)}
    for id, text in texts.items():
        made.subscribe(id, text)
    before = {name: array.copy() for name, array in made._state.catalog.programs.arrays().items()}

    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(made._state.matcher, "change", fail)
    for change in (
        lambda: made.subscribe(3, either(rng)),
        lambda: made.unsubscribe(4),
        lambda: made.load(pa.table({"id": [5, 50], "where": [either(rng), either(rng)]})),
    ):
        with pytest.raises(MemoryError):
            change()
    after = made._state.catalog.programs.arrays()
    assert all(np.array_equal(after[name], array) for name, array in before.items())
    for _ in range(10):
        event = some_event(rng)
        assert set(made.match(event)) == right_ids(made, texts, event)


def test_threads_match_while_programs_change() -> None:
    rng = random.Random(17)
    made = Index(MIXED)
    for id in range(200):
        made.subscribe(id, either(rng))
    fixed = {1000 + id: either(rng) for id in range(100)}
    made.load(pa.table({"id": list(fixed), "where": list(fixed.values())}))
    events = [some_event(rng) for _ in range(20)]
    right = [right_ids(made, fixed, event) for event in events]
    wrong: list[Any] = []
    stop = threading.Event()

    def match() -> None:
        while not stop.is_set():
            for event, ids in zip(events, right, strict=True):
                found = {id for id in made.match(event) if id >= 1000}
                if found != ids:
                    wrong.append((event, found, ids))

    threads = [threading.Thread(target=match) for _ in range(2)]
    for thread in threads:
        thread.start()
    for n in range(300):
        made.subscribe(n % 200, either(rng))
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong


def test_intervals_are_left_to_the_tree(asked: list[str]) -> None:
    made = Index(MIXED)
    made.subscribe("either", either(random.Random(0)))
    assert made.match({"a": (1, 3), "b": 3, "c": 5}) == ["either"]
    assert asked == [made.where("either")]
    assert made.match({"a": 1, "b": 9, "c": 5}) == ["either"]
    assert len(asked) == 1


def test_events_that_ask_for_something(asked: list[str]) -> None:
    age = {"type": "int", "role": "information"}
    made = Index({"a": "int", "b": "int", "c": "int", "age": age})
    rng = random.Random(19)
    texts = {id: either(rng) for id in range(100)}
    for id, text in texts.items():
        made.subscribe(id, text, about={"age": id})
    for _ in range(10):
        event = some_event(rng)
        right = right_ids(made, texts, event)
        asked.clear()
        assert set(made.match(event)) == right
        assert not asked
        assert set(made.match(event, "age > 30 AND age <> 40")) == {id for id in right if id > 30 and id != 40}
        assert set(made.match(event, "age + 1 > 30")) == {id for id in right if id > 29}


# ---- snapshots


FORGED = {
    "more slots": ("programs", lambda array: np.append(array, 1), "more programs than slots"),
    "place": ("programs", lambda array: array + 10**6, "out of range"),
    "negative place": ("programs", lambda array: -array, "out of range"),
    "shape": ("program_words", lambda array: np.where(np.arange(len(array)) == 0, array + 1000, array), "shape"),
    "size": ("program_words", lambda array: np.where(np.arange(len(array)) == 0, array + (1 << 60), array), "too long"),
    "short": ("program_words", lambda array: array[:3], "too long"),
    "code": ("program_code", lambda array: array | 63, "unknown"),
    "attribute": ("program_code", lambda array: array | (3 | 1 << 31), "out of range|unknown"),
    "type": ("program_code", lambda array: array.astype(np.int64), "uint32"),
    "no shapes": ("program_shapes", lambda array: array[:0], "empty"),
    "shapes": ("program_shapes", lambda array: array * 2, "go with the code"),
}


@pytest.mark.parametrize("forged", FORGED)
def test_forged_programs_are_refused(forged: str, tmp_path: Path) -> None:
    made = Index(MIXED)
    rng = random.Random(29)
    for id in range(5):
        made.subscribe(id, either(rng) + " AND s NOT IN ('a', 'b', 'c') AND s <> 'd'")
    contents = made.compacted()
    name, change, says = FORGED[forged]
    arrays = contents.arrays()
    arrays[f"catalog.{name}"] = np.ascontiguousarray(change(arrays[f"catalog.{name}"]))
    hitbox.storage.snapshot.write(tmp_path, contents.facts(), arrays | contents.keys.arrays())
    with pytest.raises(SnapshotError, match=says):
        Index.open(tmp_path)
    with pytest.raises(DamagedArray):
        ProgramColumns.from_arrays({n.partition(".")[2]: a for n, a in arrays.items()}, 5, 4)


# ---- how programs are written


def decided(text: str, event: dict[str, Any]) -> int:
    """The truths that the program of a predicate leaves open."""
    schema = Schema(MIXED)
    predicate = language.parse(text, schema)
    keys = Keys(schema)
    keys.admit(language.strings(predicate))
    root = normal._without_not(predicate.root)
    conditions: dict[int, Any] = {}
    normal.terms(predicate, keys, 1, 1, root, conditions)
    made = programs.program(root, lambda node: normal._covers_of(conditions[id(node)], keys), lambda node: None)
    columns = ProgramColumns.of({0: made})
    assert columns.native is not None
    columns.native.check(len(schema))
    low = np.array([[keys.codecs[n].key(event.get(name)) for n, name in enumerate(schema)]])
    zero = np.zeros(1, np.int64)
    owners = hitbox.engine._kernels.Owners(
        zero, np.zeros(1, np.uint8), np.ones(1, np.int32), False, False, columns.native
    )
    _, slots, doubtful = owners.settle(np.array([0, 1]), np.zeros(1, np.int32), None, low, low, [])
    return 3 if len(doubtful) else 1 if len(slots) else 2


def test_deep_trees_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "a = 1"
    for n in range(90):
        text = f"({text} AND b <> {n})" if n % 2 else f"({text} OR b = {n})"
    assert decided(text, {"a": 1, "b": 200}) == 3
    assert decided(text, {"a": 1, "b": 89}) == 2
    assert decided(f"{text} OR c = 3", {"c": 3}) == 1


@pytest.mark.parametrize(
    ("text", "event", "right"),
    [
        ("a = 1 XOR b = 2", {"a": 1}, 2),  # unknown
        ("a = 1 XOR b = 2", {"a": 1, "b": 3}, 1),
        ("NOT (a = 1 XOR b = 2)", {"a": 1, "b": 3}, 2),
        ("NOT (a = 1 XOR b = 2)", {"a": 1, "b": 2}, 1),
        ("a IS NULL XOR b IS NULL", {"a": 1}, 1),
        ("(a = 1 XOR s LIKE '%x') OR c = 1", {"c": 1}, 1),
        ("(a = 1 XOR s LIKE '%x') OR c = 1", {"s": "x"}, 2),
        ("(a = 1 XOR s LIKE '%x') OR c = 1", {"a": 1, "s": "x"}, 3),
        ("a > 3 OR TRUE", {}, 1),
        ("NOT (a > 3 AND FALSE)", {}, 1),
        ("a = 1 OR a = 2 OR a = 7 OR a IS NULL", {}, 1),
        ("a = 1 OR a = 2 OR a = 7 OR a IS NULL", {"a": 3}, 2),
        ("s LIKE 'ab%c'", {"s": "b"}, 2),
        ("s LIKE 'ab%c'", {"s": "abx"}, 3),
        ("s = 'x' AND (s > 'y' OR a = 1)", {"s": "x", "a": 1}, 1),
    ],
)
def test_truths(text: str, event: dict[str, Any], right: int) -> None:
    assert decided(text, event) == right
