"""An index while its segments are merged in the background: exact, and safe to interrupt, save, copy and fork."""

from __future__ import annotations

import copy
import os
import pickle
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hitbox import Index, Schema, language
from hitbox.engine.merge import Merge
from support import merges
from support.interrupts import every_place, interrupt_at
from support.merges import held

SCHEMA = Schema({"a": "int", "s": "string"})
EVENTS = [{"a": a, "s": s} for a in (-3, 5, 12, 60) for s in ("b", "mm", "x")]
Model = dict[int, str]


def where(rng: random.Random) -> str:
    low = rng.randrange(60)
    return rng.choice(
        [
            f"a BETWEEN {low} AND {low + rng.randrange(40)}",
            f"a > {low} AND s = '{rng.choice('bmxz')}'",
            f"a = {low} OR s LIKE '%{rng.choice('mx')}'",
            f"s IN ('b', 'x', 'w{low}') AND a <= {low}",
        ]
    )


def wanted(model: Model, event: dict[str, Any]) -> list[int]:
    return sorted(id for id, text in model.items() if language.evaluate(language.parse(text, SCHEMA), event) is True)


def check(index: Index, model: Model) -> None:
    assert sorted(index) == sorted(model)  # type: ignore[type-var]
    for event in EVENTS:
        assert sorted(index.match(event)) == wanted(model, event)  # type: ignore[type-var]


def settle(index: Index) -> None:
    assert index._state.engine is not None
    merges.settle(index._state.engine)


def filled(seed: int, count: int = 60) -> tuple[Index, Model, random.Random]:
    """An index that has a merge under way, if merges are held."""
    rng, index = random.Random(seed), Index(SCHEMA, tail=4)
    model: Model = {}
    for id in range(count):
        model[id] = where(rng)
        index.subscribe(id, model[id])
    return index, model, rng


def change(index: Index, model: Model, rng: random.Random, count: int = 30) -> None:
    for _ in range(count):
        change_one(index, model, rng, rng.randrange(100))


def change_one(index: Index, model: Model, rng: random.Random, id: int) -> None:
    if id in model and rng.random() < 0.5:
        del model[id]
        index.unsubscribe(id)
    else:
        model[id] = where(rng)
        index.subscribe(id, model[id])


@pytest.mark.parametrize("seed", range(3))
def test_changes_and_matches_of_several_threads_while_merging(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every writer has ids of its own and knows what must match at any moment; merges are slow, so that all overlap."""
    build = Merge.build

    def slow(merge: Merge, *args: Any) -> None:
        time.sleep(random.random() / 100)
        build(merge, *args)

    monkeypatch.setattr(Merge, "build", slow)
    index, problems, stop = Index(SCHEMA, tail=4), [], threading.Event()
    models: list[Model] = [{} for _ in range(3)]

    def write(number: int) -> None:
        rng, model = random.Random(10 * seed + number), models[number]
        for turn in range(300):
            change_one(index, model, rng, 1000 * number + rng.randrange(60))
            if turn % 10 == 0:
                event = rng.choice(EVENTS)
                mine = sorted(id for id in index.match(event) if id // 1000 == number)  # type: ignore[operator]
                if mine != wanted(model, event):
                    problems.append((number, turn))

    def read() -> None:
        while not stop.is_set():
            problems.extend(("twice", len(ids)) for ids in index.match_batch(EVENTS) if len(set(ids)) != len(ids))

    writers = [threading.Thread(target=write, args=(number,)) for number in range(3)]
    reader = threading.Thread(target=read)
    for thread in (*writers, reader):
        thread.start()
    for thread in writers:
        thread.join()
    stop.set()
    reader.join()
    assert not problems
    everything = {id: text for model in models for id, text in model.items()}
    check(index, everything)
    settle(index)
    check(index, everything)


WAYS: dict[str, Callable[[Index, Path], Index]] = {
    "save": lambda index, path: [index.save(path), Index.open(path)][1],  # type: ignore[list-item,return-value]
    "copy": lambda index, _: copy.copy(index),
    "pickle": lambda index, _: pickle.loads(pickle.dumps(index)),
}


@pytest.mark.parametrize("step", ["build", "locate"])
@pytest.mark.parametrize("way", WAYS)
def test_what_is_written_while_merging(way: str, step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with held(monkeypatch, step) as inside:
        index, model, rng = filled(1)
        assert inside.wait(20)
        change(index, model, rng)
        other, held_then = WAYS[way](index, tmp_path), dict(model)
        check(other, held_then)
        change(index, model, rng)
        check(index, model)
    settle(index)
    check(index, model)
    check(other, held_then)
    change(other, held_then, rng)
    check(other, held_then)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("step", ["build", "locate", "catch_up"])
def test_a_fork_while_merging(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The child has no thread that merges: it drops the merge, and merges by itself later."""
    index, model, rng = filled(2, 20)
    stop = threading.Event()

    def write() -> None:  # it waits for the merge if that is stopped where nobody else may change the index
        for id in range(1000, 1200):
            if not stop.is_set():
                index.subscribe(id, "a > 3")

    writer = threading.Thread(target=write)
    with held(monkeypatch, step) as inside:
        writer.start()
        assert inside.wait(20)
        stop.set()
        if step != "catch_up":
            writer.join(20)
        model |= {id: "a > 3" for id in index if id >= 1000}  # type: ignore[operator,misc]
        child = os.fork()
        if not child:
            code = 1
            try:
                monkeypatch.undo()
                monkeypatch.setattr(threading, "main_thread", threading.current_thread)
                change(index, model, rng, 100)
                check(index, model)
                settle(index)
                check(index, model)
                assert index._state.engine is not None
                code = 0 if len(index._state.engine.content.sealed.segments) < 16 else 2
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
    writer.join(20)
    settle(index)
    check(index, model | {id: "a > 3" for id in index if id >= 1000})  # type: ignore[operator,misc]


@pytest.mark.exhaustive  # `make test` interrupts changes, and merges while others change
def test_interrupts_while_merging(monkeypatch: pytest.MonkeyPatch) -> None:
    """A change is interrupted at every ninth place while a merge is under way; afterwards the merge ends."""
    for step in ("build", "locate"):
        for place in every_place(9):
            with held(monkeypatch, step) as inside:
                index, model, _ = filled(3, 20)
                assert inside.wait(20)
                text = "a > 7 AND s = 'x'"
                came_through = not interrupt_at(place, lambda: index.subscribe(3, text))  # noqa: B023
                if index.where(3) == text:
                    model[3] = text
                check(index, model)
            settle(index)
            check(index, model)
            if came_through:
                break
        assert place > 20


def test_a_relabelling_while_merging(monkeypatch: pytest.MonkeyPatch) -> None:
    """New strings may move the labels of others: then every box changes."""
    monkeypatch.setattr("hitbox.encoding.string_dictionary.LABEL_STRIDE", 4)
    with held(monkeypatch) as inside:
        index, model, rng = filled(4)
        assert inside.wait(20)
        for id in range(200, 230):
            model[id] = f"s = 'm{rng.random()}' OR a = {id}"
            index.subscribe(id, model[id])
    settle(index)
    check(index, model)
