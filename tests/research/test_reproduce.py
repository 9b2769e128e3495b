"""hitbox reproduce: declarations, the harness, the plan, bad input, and the whole at the smoke scale."""

from __future__ import annotations

import itertools
import json
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from hitbox.encoding.arrays import Hits
from hitbox.matchers.sending import WAYS
from hitbox.workloads import get
from research import code_hash, figures, judging, measure_unit, measurements, plan, reproduce, runner
from research.contestants import enter
from research.curves import BESIDE
from research.errors import BenchError
from research.experiment import MEASURES, SCALES
from research.measure import require_equal
from research.papers import PAPERS
from research.plots import LABELS
from research.receivers import Receivers
from research.reproduce_cli import app, duration
from research.rules import CURRENT, VERDICTS
from research.runner import Store


def some(paper: str, experiment: str, points: int = 1) -> list[runner.Task]:
    return [task for task in runner.tasks(PAPERS[paper], "smoke") if task.experiment.name == experiment][:points]


def test_declarations_are_sound() -> None:
    """Every experiment has points at every scale, legal workloads and contestants, and pictures with labelled axes."""
    for paper in PAPERS.values():
        names = [experiment.name for experiment in paper.experiments]
        assert len(set(names)) == len(names)
        assert paper.events >= 400
        for experiment in paper.experiments:
            texts = [claim.text for claim in experiment.claims]
            assert texts
            assert len(set(texts)) == len(texts)
            assert set(experiment.measures) <= set(MEASURES)
            assert {plot.metric for plot in experiment.plots} <= set(LABELS)
            for scale in SCALES:
                assert experiment.values[scale]
                for x, series in experiment.places(scale):
                    space = get(experiment.workload, **experiment.parameters(scale, x, series)).space
                    for spec in experiment.lanes(x).values():
                        enter(spec, space)


def test_every_figure_that_was_asked_for_is_there() -> None:
    wanted = {
        "rein": [*(f"figure {n}" for n in range(7, 15)), *(f"table {n}" for n in ("III", "IV", "V", "VI", "VII"))],
        "symmetric": [*(f"figure 3{c}" for c in "abcdef"), *(f"figure 4{c}" for c in "abc")],
        "index-count": ["figure 3"],
        "pri-rein": [*(f"figure {n}" for n in (4, 5, 6, 7, 11, 12, 13, 14)), *(f"table {n}" for n in range(2, 9))],
        "dexin": [f"figure {n}" for n in range(2, 18)],
    }
    for name, asked in wanted.items():
        assert set(asked) <= set(reproduce.figures([PAPERS[name]])), name


@pytest.mark.exhaustive  # `make test` runs the smoke scale
def test_a_finished_unit_is_not_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    todo = some("index-count", "subscriptions")
    assert runner.run(todo, Store(tmp_path), decide=False) == []
    store = Store(tmp_path)
    assert {unit.contestant for unit in store.valid(todo[0])} == {"simple", "counting", "index-count", "hitbox"}
    assert {unit.seed for unit in store.valid(todo[0])} == {1, 2}
    rows = store.rows(todo[0])
    events = rows.filter(np.array([kind == "event" for kind in rows["kind"].to_pylist()]))
    assert events.num_rows == 4 * 2 * 4  # contestants, seeds, events
    assert min(events["ns"].to_pylist()) > 0
    assert runner.missing(todo, store) == []
    # other code of one contestant: only that one is measured again
    real = code_hash.code_hash
    monkeypatch.setattr(runner, "code_hash", lambda name, on: real(name, on) + ("!" if name == "counting" else ""))
    assert {(one.label, one.seed) for one in runner.missing(todo, Store(tmp_path))} == {
        ("counting", 1),
        ("counting", 2),
    }
    assert "counting" not in Store(tmp_path).rows(todo[0])["contestant"].to_pylist()
    (tmp_path / todo[0].file).write_text("{")
    with pytest.raises(BenchError, match="delete it to measure"):
        Store(tmp_path).point(todo[0])


@pytest.mark.exhaustive  # `make test` runs the smoke scale
def test_what_did_not_fit_is_tried_again_but_not_lacking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    todo = some("index-count", "subscriptions")
    runner.run(todo, Store(tmp_path), decide=False)
    store = Store(tmp_path)
    (first,) = [unit for unit in store.valid(todo[0]) if (unit.contestant, unit.seed) == ("counting", 1)]
    left_out = replace(first, skipped="does not fit: it needs about 5.0 GB and 1.0 GB are free", needs_gb=5.0)
    store.put(todo[0], left_out, measurements.SCHEMA.empty_table())
    for free, expected in ((4e9, set()), (1e12, {("counting", 1)})):
        monkeypatch.setattr(runner, "free_memory", lambda free=free: free)
        assert {(one.label, one.seed) for one in runner.missing(todo, Store(tmp_path))} == expected
        assert runner.absent(todo, Store(tmp_path)) == []


@pytest.mark.exhaustive  # `make test` runs the smoke scale
def test_what_did_not_fit_beside_its_other_workload_is_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A contestant that is built on two workloads at once has half of the memory for each."""
    todo = some("dexin", "zipf-dimensions", 1)
    assert todo[0].experiment.beside
    runner.run(todo, Store(tmp_path), decide=False)
    store = Store(tmp_path)
    (first,) = [unit for unit in store.valid(todo[0]) if (unit.contestant, unit.seed) == ("h-tree", 1)]
    store.put(todo[0], replace(first, skipped="does not fit", needs_gb=15.0), measurements.SCHEMA.empty_table())
    for free, expected in ((24e9, set()), (48e9, {("h-tree", 1)})):
        monkeypatch.setattr(runner, "free_memory", lambda free=free: free)
        assert {(one.label, one.seed) for one in runner.missing(todo, Store(tmp_path))} == expected


@pytest.mark.exhaustive  # `make test` runs the smoke scale
def test_an_experiment_is_measured_on_one_kind_of_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    todo = [*some("index-count", "subscriptions"), *some("index-count", "distinct")]
    monkeypatch.setattr(runner, "cpu_model", lambda: "old")
    runner.run(todo[:1], Store(tmp_path), decide=False)
    partly = Store(tmp_path)
    (first,) = [unit for unit in partly.valid(todo[0]) if (unit.contestant, unit.seed) == ("counting", 1)]
    partly.put(todo[1], replace(first, code=todo[1].code("counting")), measurements.SCHEMA.empty_table())
    monkeypatch.setattr(runner, "cpu_model", lambda: "new")
    asked = runner.missing(todo, Store(tmp_path))
    assert {one.task for one in asked} == {todo[1]}  # the first one is complete, on another machine
    assert ("counting", 1) in {(one.label, one.seed) for one in asked}
    lacking = {(one.label, one.seed) for one in runner.absent(todo, Store(tmp_path)) if one.task == todo[1]}
    assert lacking == {(one.label, one.seed) for one in asked} - {("counting", 1)}  # that one is there to be judged
    assert not [one for one in runner.absent(todo, Store(tmp_path)) if one.task == todo[0]]
    assert runner.undecided(todo[:1], Store(tmp_path)) == []
    runner.run(todo, Store(tmp_path), decide=False)
    assert {unit.cpu for unit in Store(tmp_path).valid(todo[0])} == {"old"}
    assert {unit.cpu for unit in Store(tmp_path).valid(todo[1])} == {"new"}


def test_a_run_stops_when_its_time_is_over_and_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    todo = some("index-count", "subscriptions", 2)
    clock = itertools.count()
    monkeypatch.setattr(runner, "time", SimpleNamespace(monotonic=lambda: next(clock)))

    def measured(spec: str, data: Any, requests: list[Any], *rest: Any) -> Any:
        rows = [{"kind": "event", "sample": 0, "ns": 1.0, "matches": 0, "pace": 1.0}]
        return {request.key: measure_unit.Result(rows, seconds=1.0) for request in requests}

    monkeypatch.setattr(runner, "measure_unit", measured)
    left = runner.run(todo, Store(tmp_path), seconds=4, decide=False)
    done = sum(len(Store(tmp_path).valid(task)) for task in todo)
    assert 0 < done < 16
    assert len(left) == 16 - done
    assert runner.run(todo, Store(tmp_path), decide=False) == []
    assert sum(len(Store(tmp_path).valid(task)) for task in todo) == 16


def test_points_on_the_same_boxes_share_a_build(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Only the events differ over the share of equalities."""
    built = []

    def measured(spec: str, data: Any, requests: list[Any], *rest: Any) -> Any:
        built.append((spec, data.workload.seed, len(requests)))
        return {request.key: measure_unit.Result() for request in requests}

    monkeypatch.setattr(runner, "measure_unit", measured)
    runner.run(some("symmetric", "equalities", 2), Store(tmp_path), decide=False)
    assert len(built) == 5 * 2  # contestants, seeds
    assert {points for _, _, points in built} == {2}


def test_a_claim_that_is_undecided_gets_one_more_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    todo = some("index-count", "subscriptions", 2)
    noise = np.random.default_rng(1)

    def measured(spec: str, data: Any, requests: list[Any], *rest: Any) -> Any:
        def rows(one: runner.Wanted) -> list[dict[str, Any]]:
            mean = {"simple": 100.0, "counting": 10.0, "index-count": 9.0, "hitbox": 1.0}[
                spec.partition(":")[0]
            ] * one.task.n
            spread = 0.9 if spec in ("counting", "index-count") else 0.001
            taken = mean * (1 + spread * noise.uniform(-1, 1, one.events))
            return [{"kind": "event", "sample": i, "ns": ns, "matches": 0, "pace": 1.0} for i, ns in enumerate(taken)]

        return {request.key: measure_unit.Result(rows(request.key), seconds=1.0) for request in requests}

    monkeypatch.setattr(runner, "measure_unit", measured)
    runner.run(todo, Store(tmp_path), decide=False)
    more = runner.undecided(todo, Store(tmp_path))
    assert {"counting", "index-count"} <= {one.label for one in more}
    assert {one.seed for one in more} == {3}
    assert {one.events for one in more} == {runner.MORE_EVENTS * 4}
    few = [replace(task, most_events=20) for task in todo]
    before = runner.seconds_of(few, Store(tmp_path))
    monkeypatch.setattr(runner, "_hours", lambda todo: 0.0)  # used up
    runner.run(few, Store(tmp_path))
    assert runner.seconds_of(few, Store(tmp_path)) == before
    runner.run(few, Store(tmp_path), seconds=60)  # asked for
    assert runner.seconds_of(few, Store(tmp_path)) > before
    for task in few:
        for label in task.lanes:
            events = sum(unit.events for unit in Store(tmp_path).valid(task) if unit.contestant == label)
            assert 8 <= events <= 20


def test_a_part_is_run_again_until_the_machine_was_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    slow, quick = [3, 3], [2, 2]
    paces = iter([*slow, *quick, 3, 2, *quick, *quick])  # two parts twice, then the first alone
    moments = itertools.count()  # each run takes a second
    monkeypatch.setattr(measure_unit, "yardstick", Mock(side_effect=paces, quickest=2))
    monkeypatch.setattr(measure_unit, "time", SimpleNamespace(perf_counter=lambda: next(moments)))
    monkeypatch.setattr(measure_unit, "PART_SECONDS", 5.0)
    built: Any = SimpleNamespace(lane=SimpleNamespace(estimate=1.0))
    points: Any = np.arange(9)
    effort = measure_unit.Effort(repeats=2, budget=4, build_budget=1, checked=1, deleted=1)
    monkeypatch.setattr(measure_unit, "WAIT_FACTOR", 1.2)
    (parts,) = measure_unit._rounds([(built, points)], lambda _, some: int(some[0]), effort)
    assert [part.runs for part in parts] == [[0, 0, 0], [5, 5]]
    assert [part.yards for part in parts] == [[(3, 3), (3, 2), (2, 2)], [(2, 2), (2, 2)]]
    assert [part.factor for part in parts] == [1, 1]
    parts[0].yards.pop()
    assert parts[0].pace == 3
    assert parts[0].factor == 2 / 2.5  # of the second time, which ended well


def test_the_code_of_a_point_is_what_it_measures(monkeypatch: pytest.MonkeyPatch) -> None:
    modules = code_hash.closure(("hitbox.matchers.dexin", *code_hash.HARNESS))
    assert {"hitbox.matchers.dexin", "hitbox.matchers.rein", "hitbox.matchers.kernels"} <= modules
    assert not {"hitbox.matchers.siena", "research.rules", "research.claims"} & modules
    assert code_hash.code_hash("rein", "rein") != code_hash.code_hash("siena", "rein")
    assert code_hash.code_hash("rein", "rein") != code_hash.code_hash("rein", "symmetric")
    source = code_hash._source("hitbox.matchers.simple")
    before = code_hash.meaning("hitbox.matchers.simple")
    for text, same in ((f"# a comment\n{source}", True), (f"{source}\nMORE = 1\n", False)):
        monkeypatch.setattr(code_hash, "_source", lambda name, text=text: text)
        code_hash.meaning.cache_clear()
        assert (code_hash.meaning("hitbox.matchers.simple") == before) is same
    code_hash.meaning.cache_clear()


@pytest.mark.parametrize(
    ("before", "after", "same"),
    [
        ("def f(a):\n b = a\n return b", "def f(a):\n c = a\n return c", True),
        ("def f(a):\n b = a\n return b", "def f(b):\n a = b\n return a", False),  # callers may name a parameter
        ("def f(a):\n b = a\n return b", "def f(a):\n b = a\n return a", False),
        ("def f(a):\n return [b for b in a]", "def f(a):\n return [c for c in a]", True),
        ("def f(b):\n return [b for b in b]", "def f(b):\n return [a for a in b]", True),
        ("def f(a):\n return [[b for b in c] for c in a]", "def f(a):\n return [[d for d in e] for e in a]", True),
        ("def f(a):\n return [[b for b in c] for c in a]", "def f(a):\n return [[c for b in c] for c in a]", False),
        ("x = 1\ndef f():\n return x", "y = 1\ndef f():\n return y", False),
        ("def f():\n global x\n x = 1", "def f():\n global y\n y = 1", False),
        ("f = lambda a: a.b", "f = lambda c: c.b", True),
        ("f = lambda a: a.b", "f = lambda a: a.c", False),
        ("def f(a):\n b = 1\n def g():\n  return b\n", "def f(a):\n c = 1\n def g():\n  return c\n", True),
        ("def f(a):\n for b, c in a: yield b", "def f(a):\n for c, b in a: yield c", True),
        ("def f(a):\n for b, c in a: yield b", "def f(a):\n for b, c in a: yield c", False),
        ("class C:\n a = 1\n def f(self):\n  b = 1", "class C:\n b = 1\n def f(self):\n  b = 1", False),
        ("try: pass\nexcept E as e: f(e)", "try: pass\nexcept E as d: f(d)", False),  # of a module
        ("def f():\n try: g()\n except E as e: g(e)", "def f():\n try: g()\n except E as d: g(d)", True),
    ],
)
def test_names_of_local_variables_are_not_what_is_measured(
    monkeypatch: pytest.MonkeyPatch, before: str, after: str, same: bool
) -> None:
    meanings = []
    for source in (before, after):
        monkeypatch.setattr(code_hash, "_source", lambda name, source=source: source)
        code_hash.meaning.cache_clear()
        meanings.append(code_hash.meaning("any"))
    code_hash.meaning.cache_clear()
    assert (meanings[0] == meanings[1]) is same


def test_an_estimate_and_its_interval_come_from_the_raw_rows() -> None:
    rows = [
        {"contestant": "rein", "seed": seed, "kind": "event", "sample": i, "x": "1", "series": "", "n": 10, "pace": 1.0}
        | {"ns": 1000.0 * (i + 1) + 100 * seed, "matches": i}
        for seed in (1, 2, 3)
        for i in range(40)
    ]
    columns = figures._columns(measurements.table_of(rows))
    found = figures.figures(columns, 10, CURRENT)
    taken = np.array([row["ns"] for row in rows])
    assert np.isclose(found["match"][0], taken.mean() / 1e3)
    assert np.isclose(found["match_std"][0], taken.std() / 1e3)
    assert np.isclose(found["match_max"][0], taken.max() / 1e3)
    assert found["time_vs_hits"][0] > 0.99
    assert found["linear_misfit"][0] < 1
    assert len(found["match"]) == 1 + CURRENT["resamples"]
    low, high = CURRENT.interval(found["match"])
    error = taken.std() / 1e3 / np.sqrt(len(taken))
    assert 1.5 * error < (high - low) / 2 < 3 * error
    again = figures.figures(columns, 10, CURRENT)
    assert np.array_equal(found["match"], again["match"])


def test_times_are_brought_to_one_pace() -> None:
    shared = {"contestant": "rein", "kind": "event", "sample": 0, "x": "1", "series": "", "matches": 1}
    rows = [shared | {"seed": 1, "ns": 30.0, "pace": 2.0}, shared | {"seed": 2, "ns": 15.0, "pace": 1.0}]
    columns = figures._at_one_pace(figures._columns(measurements.table_of(rows)))
    assert columns["ns"].tolist() == [15.0, 15.0]


def test_who_matches_approximately_may_report_more_but_loses_nothing() -> None:
    found = [np.array([1, 2, 3])]
    require_equal("tama", Hits.of([[3, 1, 7, 2]]), found, "here", exact=False)
    with pytest.raises(BenchError, match="lost 1"):
        require_equal("tama", Hits.of([[3, 1, 7]]), found, "here", exact=False)
    with pytest.raises(BenchError, match="twice 1"):
        require_equal("tama", Hits.of([[1, 1, 2, 3]]), found, "here", exact=False)


def test_everybody_is_timed_on_the_workload_beside_too(tmp_path: Path) -> None:
    todo = some("dexin", "zipf-widths")
    light = replace_lanes(todo[0], "rein", "hitbox")
    store = Store(tmp_path)
    runner.run([light], store, decide=False)
    rows = store.rows(light)
    assert set(rows["contestant"].to_pylist()) == {"rein", "hitbox", "rein" + BESIDE, "hitbox" + BESIDE}


def replace_lanes(task: runner.Task, *names: str) -> runner.Task:
    """The same point with few contestants: compiling all takes minutes."""
    return replace(task, experiment=replace(task.experiment, matchers=tuple(n for n in names if n != "hitbox")))


@pytest.mark.exhaustive  # `make test` sends in three ways in tests/matchers/test_sending.py
def test_the_three_ways_of_sending_go_over_real_sockets(tmp_path: Path) -> None:
    """Serial determines all before it sends the first; in every way a match is determined before it is sent."""
    todo, store = some("pri-rein", "sending"), Store(tmp_path)
    assert runner.run(todo, store, decide=False) == []
    curves = next(iter(runner.curves_from(todo, store).values()))
    assert set(curves.points[0]) == set(WAYS)
    for way in WAYS:
        assert 0 < curves.estimate(way, "determining", "first") < curves.estimate(way, "processing", "first")
        assert curves.estimate(way, "hits", "first") == curves.estimate("serial", "hits", "first") > 0


def test_a_message_that_was_lost_is_an_error() -> None:
    receivers = Receivers(2, b"12345678").__enter__()
    receivers.send(1, np.array([0, 1], np.int32))
    receivers.sent += 1
    with pytest.raises(BenchError, match="3 messages were sent, but the receivers read 16 bytes"):
        receivers.__exit__(None, None, None)
    assert receivers.process.returncode == 0


def test_who_is_asked_for_sending_must_say_how(tmp_path: Path) -> None:
    task = some("pri-rein", "sending")[0]
    task = replace(task, experiment=replace(task.experiment, matchers=("pri-rein",)))
    with pytest.raises(BenchError, match="must be called serial, alternate, concurrent"):
        runner.run([task], Store(tmp_path), decide=False)


@pytest.mark.exhaustive  # `make test` runs the smoke scale
def test_what_does_not_fit_is_marked_and_the_others_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure_unit, "free_memory", lambda: 400_000)
    task = replace_lanes(some("rein", "widths", 2)[-1], "h-tree", "siena")
    store = Store(tmp_path)
    runner.run([task], store, decide=False)
    left_out = {unit.contestant: unit.skipped for unit in store.valid(task)}
    assert "does not fit: it needs about" in left_out["h-tree"]
    assert left_out["siena"] == ""
    ((_, curves),) = runner.curves_from([task], store).items()
    assert "does not fit" in curves.skipped[-1]["h-tree"]
    assert "h-tree" in {one.label for one in runner.missing([task], store)}  # there is enough memory now
    monkeypatch.setattr(runner, "free_memory", lambda: 400_000)
    assert runner.missing([task], store) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["rain"], "did you mean 'rein'"),
        (["rein", "--scale", "smaal"], "did you mean 'small'"),
        (["rein", "--figure", "figure 99"], "rein has no figure 'figure 99'"),
        (["rein", "--scale", "smoke", "--budget", "soon"], "is not a time: give 30m"),
        (["rein", "--scale", "smoke", "--rules", "99"], "there are no rules 99"),
        (["rein", "--scale", "smoke", "--out", "FILE/out"], "cannot write to"),
    ],
)
def test_bad_input_is_said_at_once(words: list[str], message: str, tmp_path: Path) -> None:
    (tmp_path / "FILE").write_text("")
    words = [str(tmp_path / word) if word.startswith("FILE") else word for word in words]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2
    assert message in " ".join(done.stderr.split())


def test_a_duration() -> None:
    assert duration("2h") == 7200


@pytest.mark.exhaustive  # `make test` plans and runs the smoke scale
def test_the_plan_of_the_papers_scale_fits_a_night(tmp_path: Path) -> None:
    """Eight hours on 2 cores; and what was measured before is not planned again."""
    todo = [task for paper in PAPERS.values() for task in runner.tasks(paper, "paper")]
    lines = plan.plan(todo, Store(tmp_path))
    assert plan.total_hours(lines) < 8
    assert sum(line.points for line in lines) == len(todo)
    assert all(line.memory_gb < 30 for line in lines)
    done = CliRunner().invoke(app, ["all", "--scale", "paper", "--plan", "--out", str(tmp_path)])
    assert done.exit_code == 0
    assert f"{len(todo)} points, about" in done.output
    assert not (tmp_path / "points").exists()
    one = some("index-count", "subscriptions")[0]
    known = measurements.Unit("simple", 1, one.code("simple"), 4, 7.5)
    store = Store(tmp_path)
    store.put(one, known, measurements.SCHEMA.empty_table())
    assert plan.unit_seconds(runner.Wanted(one, "simple", 2, 4), store) == 7.5


def test_the_readme_says_what_the_committed_report_says() -> None:
    root = Path(__file__).parents[2]
    record = json.loads((root / "docs/reproduction/results.json").read_text())
    found = judging.headline(record["verdicts"])
    assert found == record["headline"]
    factor, direction, fails, undecided, incomparable = (found[name] for name in VERDICTS)
    sentence = (
        f"{factor} are reproduced with the paper's factor, {direction} in direction only, {fails} fail, "
        f"{undecided} are undecided and {incomparable} cannot be compared"
    )
    baseline = judging.baseline_text(record["shuffled"]).removesuffix(".").partition(", ")[2]
    for name in ("README.md", "docs/reproduction/README.md"):
        said = " ".join((root / name).read_text().split())
        assert sentence in said, name
        assert baseline in said, name
    for page in ("report", *PAPERS):
        assert (root / f"docs/reproduction/{page}.html").exists()


def test_smoke(tmp_path: Path) -> None:
    """A paper at the smoke scale: every artefact is there and well formed."""
    paper = PAPERS["index-count"]
    done = CliRunner().invoke(app, ["index-count", "--scale", "smoke", "--local", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    record = json.loads((tmp_path / "results.json").read_text())
    expected = sum(len(experiment.claims) for experiment in paper.experiments)
    assert len(record["verdicts"]) == expected
    assert {v["verdict"] for v in record["verdicts"]} <= set(VERDICTS)
    assert sum(record["headline"][name] for name in VERDICTS) <= expected
    assert record["shuffled"]["judged"] > 0
    assert record["missing"] == []
    assert record["machine"]["cpu"]
    assert "src='http" not in (tmp_path / "report.html").read_text()
    page = (tmp_path / "index-count.html").read_text()
    assert page.index("factor reproduced") < page.index("<figure>")
    table = pq.read_table(tmp_path / "results.parquet")
    assert set(table["paper"].to_pylist()) == {"index-count"}
    assert pq.read_table(tmp_path / "measurements.parquet").num_rows > 0
    drawn = {path.stem: ET.parse(path).getroot() for path in (tmp_path / "plots").glob("*.svg")}
    assert {"overview", "index-count-subscriptions-figure-3"} < set(drawn)
    assert all(root.tag.endswith("svg") for root in drawn.values())
