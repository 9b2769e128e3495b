"""Spark makes the same workloads, and comes to the same verdicts from the raw rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hitbox.matchers import make
from hitbox.workloads import get
from research import measurements, reproduce, runner
from research.errors import BenchError
from research.measure_unit import digest
from research.papers import PAPERS
from research.rules import CURRENT
from research.runner import Store

pytestmark = [pytest.mark.exhaustive, pytest.mark.spark]  # `make test` reproduces in this process


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Any]:
    pytest.importorskip("pyspark")
    from hitbox.spark.session import active, session

    started = active() is None
    yield reproduce.cluster(tmp_path)
    if started:
        session().stop()


def test_spark_makes_the_same_rows_and_knows_what_must_match(source: Any) -> None:
    for name, parameters in (
        ("index-count", {}),
        ("pri-rein", {"m": 8}),
        ("symmetric", {"m": 4, "information": 2, "used": 0.5}),
    ):
        given = {"n": 300, "seed": 3, **parameters}
        workload = get(name, **given)
        ours, theirs = workload.boxes(0, 300), source.boxes(name, given)
        for field in ("offsets", "attribute", "low", "high", "priority"):
            assert np.array_equal(getattr(ours, field), getattr(theirs, field)), (name, field)
        asked, made = workload.points(0, 40), source.points(name, given, 40)
        assert np.array_equal(asked.low, made.low), name
        assert np.array_equal(asked.high, made.high), name
        assert asked.intervals == made.intervals, name
    path = source.made("symmetric", given)
    assert source.made("symmetric", given | {"n": 200}) == path  # the first rows of the same
    few = source.boxes("symmetric", given | {"n": 200})
    assert len(few) == 200
    brute = make("brute", workload.space)
    brute.insert(np.arange(300), ours)
    hits = brute.match(asked)
    expected = [{"matches": len(hits[i]), "digest": digest(hits[i])} for i in range(40)]
    assert source.expected("symmetric", given, asked) == expected
    assert sum(one["matches"] for one in expected) > 0


def test_spark_and_one_process_come_to_the_same_verdicts(source: Any, tmp_path: Path) -> None:
    light = replace(PAPERS["index-count"].experiments[0], matchers=("counting", "index-count"))
    todo = [
        replace(task, experiment=light)
        for task in runner.tasks(PAPERS["index-count"], "smoke")
        if task.experiment.name == light.name
    ]
    store = Store(tmp_path)
    runner.run(todo, store, source, decide=False)
    here = reproduce.judge_here(runner.curves_from(todo, store), CURRENT)
    there = reproduce.judge_on(source, todo, store, "smoke", CURRENT)
    assert [row["verdict"] for row in here["verdicts"]] == [row["verdict"] for row in there["verdicts"]]
    assert [row["ours"] for row in here["verdicts"]] == [row["ours"] for row in there["verdicts"]]
    assert here["values"].equals(there["values"])
    assert there["oracle"] == {"checked": 2 * 3 * 4, "wrong": 0}  # points, contestants, events of the first seed
    points = {task.place: store.point(task) for task in todo}
    point = points[todo[0].place]
    table = point.rows.to_pylist()
    for row in table:
        if row["contestant"] == "counting" and row["seed"] == 1 and row["kind"] == "event":
            row["digest"] += 1
    point.rows = measurements.table_of(table)
    measurements.write(tmp_path / todo[0].file, points)
    with pytest.raises(BenchError, match="4 events have other matches"):
        reproduce.judge_on(source, todo, Store(tmp_path), "smoke", CURRENT)
