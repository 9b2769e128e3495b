"""The engine's arrays as files: mapped without reading, shared by processes, open for changes."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from hitbox.encoding.arrays import Points, Space
from hitbox.engine import Engine
from hitbox.matchers import make
from support.matcher_data import assert_equal
from support.random_boxes import random_boxes, random_points

SMALL = {"tail": 64, "block": 32, "lines": 4}


def filled(attributes: int, seed: int) -> tuple[Engine, object]:
    rng = np.random.default_rng(seed)
    space = Space.of(attributes)
    engine, oracle = Engine(space, **SMALL), make("brute", space)  # type: ignore[arg-type]
    for start, count in ((0, 900), (900, 40), (940, 300)):
        boxes = random_boxes(rng, count, attributes)
        for one in (engine, oracle):
            one.insert(np.arange(start, start + count), boxes)
    for one in (engine, oracle):
        one.delete(np.arange(5, 1100, 7))
    return engine, oracle


def save(engine: Engine, folder: Path) -> None:
    for name, array in engine.arrays().items():
        np.save(folder / f"{name}.npy", array)


def opened(folder: Path, attributes: int) -> Engine:
    arrays = {path.stem: np.load(path, mmap_mode="r") for path in folder.glob("*.npy")}
    return Engine.from_arrays(Space.of(attributes), arrays, **SMALL)


def test_an_opened_snapshot_matches_and_takes_changes(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    engine, oracle = filled(4, 0)
    save(engine, tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    again = opened(tmp_path, 4)
    assert len(again) == len(engine)
    assert sorted(again.numbers().tolist()) == sorted(engine.numbers().tolist())
    for intervals in (False, True):
        assert_equal(again, oracle, random_points(rng, 20, 4, intervals=intervals))  # type: ignore[arg-type]
    boxes = random_boxes(rng, 100, 4)
    gone = np.intersect1d(np.arange(0, 600, 9), again.numbers())
    for one in (again, oracle):
        one.delete(gone)  # type: ignore[attr-defined]
        one.insert(np.arange(2000, 2100), boxes)  # type: ignore[attr-defined]
    assert_equal(again, oracle, random_points(rng, 20, 4))  # type: ignore[arg-type]
    if commit := again.prepare():
        commit()
    assert_equal(again, oracle, random_points(rng, 20, 4))  # type: ignore[arg-type]
    assert before == {path.name: path.read_bytes() for path in tmp_path.iterdir()}


def test_empty_engine_round_trip(tmp_path: Path) -> None:
    save(Engine(Space.of(2)), tmp_path)
    again = opened(tmp_path, 2)
    assert len(again) == 0
    assert again.match(Points.of([[1, 2]])).numbers.tolist() == []


READER = """
import sys
from pathlib import Path
import numpy as np
from hitbox.encoding.arrays import Points, Space
from hitbox.engine import Engine
folder = Path(sys.argv[1])
arrays = {path.stem: np.load(path, mmap_mode="r") for path in folder.glob("*.npy")}
engine = Engine.from_arrays(Space.of(4), arrays)
hits = engine.match(Points.of(np.load(folder.parent / "points.npy")))
print(int(hits.offsets[-1]), int(hits.numbers.sum()))
"""


def test_several_processes_open_one_snapshot(tmp_path: Path) -> None:
    engine, _ = filled(4, 2)
    folder = tmp_path / "arrays"
    folder.mkdir()
    save(engine, folder)
    points = random_points(np.random.default_rng(3), 50, 4)
    np.save(tmp_path / "points.npy", points.low)
    want = engine.match(points)
    readers = [
        subprocess.Popen([sys.executable, "-c", READER, str(folder)], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    for reader in readers:
        out, _ = reader.communicate(timeout=120)
        assert out.split() == [str(int(want.offsets[-1])), str(int(want.numbers.sum()))]


@pytest.mark.parametrize("intervals", [False, True])
def test_threads_match_while_a_compaction_is_prepared(intervals: bool) -> None:
    engine, oracle = filled(4, 4)
    points = random_points(np.random.default_rng(5), 30, 4, intervals=intervals)
    want = [sorted(row.tolist()) for row in map(oracle.match(points).__getitem__, range(30))]  # type: ignore[attr-defined]
    wrong: list[int] = []
    stop = threading.Event()

    def reader() -> None:
        while not stop.is_set():
            hits = engine.match(points, threads=2)
            wrong.extend(i for i in range(30) if sorted(hits[i].tolist()) != want[i])

    readers = [threading.Thread(target=reader) for _ in range(3)]
    for thread in readers:
        thread.start()
    for _ in range(5):
        commit = engine.prepare()
    stop.set()
    for thread in readers:
        thread.join()
    assert not wrong
    assert commit is not None
    commit()
    assert_equal(engine, oracle, points)  # type: ignore[arg-type]
