"""A change is prepared whole and then committed: an error or an interrupt before the commit leaves what was there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hitbox.encoding.arrays import Boxes, Space
from hitbox.engine import Engine, _kernels
from hitbox.engine.builder import SegmentBuilder
from hitbox.engine.content import Content
from hitbox.errors import MatcherError
from hitbox.matchers import make, matchers
from support.matcher_data import assert_equal
from support.random_boxes import random_boxes, random_points
from support.tiers import only

SMALL: dict[str, Any] = {"tail": 64, "block": 32, "lines": 4}
NONE = np.zeros(0, np.int64)
NO_BOXES = Boxes.of([])


def filled(name: str, count: int, **options: Any) -> tuple[Any, Boxes]:
    boxes = random_boxes(np.random.default_rng(count), count, 3)
    matcher = make(name, Space.of(3), **options)
    matcher.insert(np.arange(count), boxes)
    return matcher, boxes


def state(engine: Engine) -> dict[str, list[Any]]:
    return {name: array.tolist() for name, array in engine.arrays().items()}


@pytest.mark.parametrize("seed", range(4))
def test_changes_are_deletes_and_inserts(seed: int) -> None:
    rng = np.random.default_rng(seed)
    engine, oracle = Engine(Space.of(3), **SMALL), make("brute", Space.of(3))
    alive = NONE
    for _ in range(60):
        gone = rng.permutation(alive)[: rng.choice([0, 1, 30, len(alive)])]
        free = np.setdiff1d(np.arange(len(alive) + 400), np.setdiff1d(alive, gone))
        new = rng.permutation(free)[: rng.choice([0, 1, 20, 300])]
        boxes = random_boxes(rng, len(new), 3)
        points = random_points(rng, 5, 3)
        before = engine.match(points)
        commit = engine.change(gone, new, boxes)
        assert [sorted(row) for row in map(list, rows(before))] == [sorted(row) for row in rows(engine.match(points))]
        commit()
        oracle.change(gone, new, boxes)()
        alive = np.union1d(np.setdiff1d(alive, gone), new)
        np.testing.assert_array_equal(engine.numbers(), alive)
        assert len(engine) == len(oracle) == len(alive)
        assert_equal(engine, oracle, points)
        if rng.random() < 0.3 and (switch := engine.prepare()):
            switch()
    np.testing.assert_array_equal(engine.boxes(alive).low, oracle.boxes(alive).low)


def rows(hits: Any) -> list[list[int]]:
    return [hits[i].tolist() for i in range(len(hits))]


def failing(name: str) -> Callable[..., Any]:
    def fail(*_: Any) -> Any:
        raise MemoryError(name)

    return fail


@pytest.mark.parametrize("count", [1, 20, 63, 200])
@pytest.mark.parametrize(("owner", "step"), [(SegmentBuilder, "build"), (Content, "make_room"), (Engine, "_seal")])
def test_no_memory_for_a_change_leaves_the_old_state(
    monkeypatch: pytest.MonkeyPatch, count: int, owner: type, step: str
) -> None:
    engine, _ = filled("hitbox", 150, **SMALL)
    engine.insert(np.arange(150, 190), random_boxes(np.random.default_rng(1), 40, 3))
    before = state(engine)
    gone, boxes = np.array([3, 70, 155, 160]), random_boxes(np.random.default_rng(2), count, 3)
    numbers = np.concatenate([gone, np.arange(500, 500 + count)])[:count]
    with monkeypatch.context() as patch:
        patch.setattr(owner, step, failing(step))
        built = owner is Content or count + 40 >= 64
        if built:
            with pytest.raises(MemoryError):
                engine.change(gone, numbers, boxes)
    assert state(engine) == before
    engine.change(gone, numbers, boxes)()
    assert len(engine) == 190 - 4 + count


def test_numbers_that_are_deleted_may_come_again() -> None:
    engine, _ = filled("hitbox", 10)
    with pytest.raises(MatcherError, match="already in use"):
        engine.change(np.array([3]), np.array([4]), Boxes.of([{}]))
    with pytest.raises(MatcherError, match="not in use"):
        engine.change(np.array([10]), NONE, NO_BOXES)
    engine.change(np.array([3]), np.array([3]), Boxes.of([{0: (7, 7)}]))()
    assert engine.boxes(np.array([3]))[0] == {0: (7, 7)}
    assert len(engine) == 10


def test_a_tail_with_room_keeps_its_memory() -> None:
    tail = _kernels.Tail()
    roomy = tail.with_room(100, 300)
    assert roomy is not tail
    assert roomy.with_room(100, 300) is roomy
    boxes = random_boxes(np.random.default_rng(0), 100, 3)
    before = roomy.nbytes
    where = np.full(100, 2**32 - 1, np.uint32)
    columns = (boxes.offsets, boxes.attribute, boxes.low, boxes.high, boxes.priority)
    assert roomy.stage(where, NONE, np.arange(100), *columns, 3)
    assert len(roomy) == 0
    roomy.publish(where)
    assert roomy.nbytes == before
    assert len(roomy.with_room(5, 5)) == 100


NAMES = only(["hitbox", "brute", "rein"], matchers())
"""`make test` does this with some matchers, and compares all with the oracle in tests/matchers."""


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("broken", ["delete", "insert"])
def test_every_matcher_goes_back_where_a_commit_fails(name: str, broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    matcher, boxes = filled(name, 60)
    oracle, _ = filled("brute", 60)
    if isinstance(matcher, Engine):
        return  # its commit cannot fail
    whole = getattr(type(matcher), broken)
    failed = []

    def half(self: Any, numbers: Any, *rest: Any) -> None:
        if failed or not len(numbers):
            whole(self, numbers, *rest)
            return
        failed.append(True)
        whole(self, numbers[:3], *(some.take(np.arange(3)) for some in rest))
        raise MemoryError

    monkeypatch.setattr(type(matcher), broken, half)
    gone, numbers = np.arange(5, 25), np.arange(20, 25)
    commit = matcher.change(gone, np.concatenate([numbers, [90, 91]]), random_boxes(np.random.default_rng(7), 7, 3))
    with pytest.raises(MemoryError):
        commit()
    np.testing.assert_array_equal(matcher.numbers(), np.arange(60))
    assert_equal(matcher, oracle, random_points(np.random.default_rng(8), 30, 3))
    back = matcher.boxes(np.arange(60))
    np.testing.assert_array_equal(back.low, boxes.low)


def test_nothing_to_do_copies_nothing() -> None:
    engine, _ = filled("hitbox", 150, **SMALL)
    arrays = engine.arrays()
    for array in arrays.values():
        array.flags.writeable = False
    opened = Engine.from_arrays(Space.of(3), arrays, **SMALL)
    opened.change(NONE, NONE, NO_BOXES)()
    assert opened.content.sealed.where is arrays["where"]
    opened.change(np.array([4]), NONE, NO_BOXES)()
    assert len(opened) == 149
    assert len(engine) == 150
