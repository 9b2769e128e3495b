"""hitbox reproduce: the checks on curves made by hand, the runner, bad input, and the whole at the smoke scale."""

from __future__ import annotations

import itertools
import json
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from hitbox.encoding.arrays import Hits
from hitbox.errors import BenchError
from hitbox.experiments import claims, report, reproduce, runner
from hitbox.experiments.claims import judge
from hitbox.experiments.curves import BESIDE, Curves, at_one_pace
from hitbox.experiments.experiment import MEASURES, SCALES, SETTINGS
from hitbox.experiments.measure import require_equal
from hitbox.experiments.measure_point import rank_correlation
from hitbox.experiments.papers import PAPERS
from hitbox.experiments.plots import COLOURS, LABELS
from hitbox.experiments.reproduce_cli import app
from hitbox.matchers import make
from hitbox.workloads import get


def curves(xs: list[Any], metric: str = "match", **lines: list[float | None]) -> Curves:
    points = [{name: {metric: line[i]} for name, line in lines.items() if line[i] is not None} for i in range(len(xs))]
    skipped = [{name: "does not fit" for name, line in lines.items() if line[i] is None} for i in range(len(xs))]
    return Curves(xs, points, skipped, [1000] * len(xs))  # type: ignore[arg-type]


GROWING = curves([1, 2, 4], fast=[1.0, 1.1, 1.2], slow=[10.0, 20.0, 40.0], gone=[5.0, None, None])


@pytest.mark.parametrize(
    ("check", "holds"),
    [
        (claims.faster("fast", "slow", 14), True),
        (claims.faster("slow", "fast", 14), False),
        (claims.faster("fast", "gone", 14), None),
        (claims.best("fast", ("fast", "slow", "gone")), True),
        (claims.best("slow", ("fast", "slow")), False),
        (claims.worst("slow", ("fast", "slow")), True),
        (claims.rises("slow"), True),
        (claims.rises_slightly("slow"), False),
        (claims.rises_slightly("fast"), True),
        (claims.rises("slow", "fast", by=2), False),
        (claims.falls("slow"), False),
        (claims.flat("fast"), True),
        (claims.flat("slow"), False),
        (claims.not_rising("fast", within=1.3), True),
        (claims.least_growth("fast", ("fast", "slow")), True),
        (claims.steeper("slow", "fast"), True),
        (claims.turns("slow"), False),
        (claims.doubling("slow", "match", 1.0, 0.6, 1.7), True),
        (claims.sublinear("fast"), True),
        (claims.superlinear("fast"), False),
        (claims.gap_opens("slow", "fast"), True),
        (claims.gap_closes("slow", "fast"), False),
        (claims.matched(0.01, 1, "fast"), None),
        (claims.nothing_matched(1, matcher="fast"), None),
        (claims.ratio("slow", "fast", 33, low=1), True),
        (claims.mean_ratio("fast", "slow", 0.2), True),
        (claims.does_not_fit("gone", 4, 1000, 32), True),
        (claims.absolute("fast", "match", "µs"), None),
        (claims.rises("gone"), None),
        (claims.against("fast"), None),
    ],
)
def test_checks(check: claims.Check, holds: bool | None) -> None:
    assert judge(check, GROWING).holds is holds


def test_two_workloads_are_compared_where_both_were_measured() -> None:
    lines: dict[str, list[float | None]] = {"a": [2.0, 4.0], "a beside": [1.0, 3.0], "b": [2.0, 1.0]}
    both = curves([1, 2], "match", **lines | {"b beside": [2.0, None]})
    assert judge(claims.against("a"), both).ours == "a x1.5"
    assert judge(claims.against("b"), both).holds is False
    assert judge(claims.least_against("b", ("a", "b")), both).holds


def test_a_factor_far_from_the_papers_is_told_apart() -> None:
    near, far = judge(claims.faster("fast", "slow", 30), GROWING), judge(claims.faster("fast", "slow", 5), GROWING)
    assert report.verdict_of(near.holds, near.close) == report.HOLDS
    assert report.verdict_of(far.holds, far.close) == report.OTHER_FACTOR


def test_a_share_needs_enough_matches_to_be_judged() -> None:
    seen = Curves([1], [{"hitbox": {"hits": 2.0, "asked": 100.0}}], [{}], [1000])
    assert judge(claims.matched(0.0021, 1), seen).holds
    assert judge(claims.matched(0.0005, 1), seen).holds is False
    assert judge(claims.matched(0.0001, 1), seen).holds is None
    assert judge(claims.nothing_matched(1), seen).holds is False


def test_a_curve_that_turns() -> None:
    assert judge(claims.turns("rein"), curves([1, 2, 3], rein=[3.0, 1.0, 2.0])).holds
    assert not judge(claims.turns("rein"), curves([1, 2, 3], rein=[3.0, 2.0, 1.0])).holds


def test_rank_correlation_shares_ties() -> None:
    assert rank_correlation(np.array([1.0, 1.0, 2.0]), np.array([5.0, 5.0, 9.0])) == 1.0
    assert rank_correlation(np.array([1.0, 2.0, 3.0]), np.array([3.0, 2.0, 1.0])) == -1.0
    assert rank_correlation(np.array([1.0, 1.0]), np.array([3.0, 2.0])) == 0.0


def test_declarations_are_sound() -> None:
    """Every experiment has points at every scale, legal workloads and contestants, and pictures with labelled axes."""
    for paper in PAPERS.values():
        names = [experiment.name for experiment in paper.experiments]
        assert len(set(names)) == len(names)
        for experiment in paper.experiments:
            assert experiment.claims
            assert set(experiment.measures) <= set(MEASURES)
            assert len(experiment.labels) <= len(COLOURS) + 1
            assert {plot.metric for plot in experiment.plots} <= set(LABELS)
            for scale in SCALES:
                assert experiment.values[scale]
                for x in experiment.values[scale]:
                    space = get(experiment.workload, **experiment.parameters(scale, x)).space
                    for spec in experiment.lanes(x).values():
                        name, _, option = spec.partition(":")
                        make(name, space, **dict([_typed(option)] if option else []))


def _typed(option: str) -> tuple[str, Any]:
    key, _, value = option.partition("=")
    return key, int(value) if value.isdigit() else {"true": True, "false": False}.get(value, value)


def test_every_figure_that_was_asked_for_is_there() -> None:
    wanted = {
        "rein": [*(f"figure {n}" for n in range(7, 15)), *(f"table {n}" for n in ("III", "IV", "V", "VI", "VII"))],
        "symmetric": [*(f"figure 3{c}" for c in "abcdef"), *(f"figure 4{c}" for c in "abc")],
        "index-count": ["figure 3"],
        "pri-rein": [*(f"figure {n}" for n in (4, 5, 6, 7, 11, 12, 13, 14)), *(f"table {n}" for n in range(2, 9))],
        "dexin": [f"figure {n}" for n in range(2, 18)],
    }
    for name, figures in wanted.items():
        assert set(figures) <= set(reproduce.figures([PAPERS[name]])), name


def test_a_finished_point_is_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    todo = list(runner.tasks(PAPERS["index-count"], "smoke"))[:1]
    runner.run(todo, tmp_path)
    monkeypatch.setattr(runner, "measure_point", None)
    runner.run(todo, tmp_path)
    point = runner.stored(todo[0], tmp_path)
    assert point is not None
    assert set(point["lanes"]) == {"simple", "counting", "index-count", "hitbox"}
    other = list(runner.tasks(PAPERS["index-count"], "smoke", seed=2))[:1]
    assert runner.stored(other[0], tmp_path) is None
    (tmp_path / todo[0].file).write_text("{")
    with pytest.raises(BenchError, match="delete it to measure"):
        runner.stored(todo[0], tmp_path)


def test_a_part_is_run_again_until_the_machine_was_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    from hitbox.experiments import measure_point as point

    slow, quick = [3, 3], [2, 2]
    paces = iter([*slow, *quick, 3, 2, *quick, *quick])  # two parts twice, then the first alone
    moments = itertools.count()  # each run takes a second
    yardstick = Mock(side_effect=paces, quickest=2)
    monkeypatch.setattr(point, "yardstick", yardstick)
    monkeypatch.setattr(point, "time", SimpleNamespace(perf_counter=lambda: next(moments)))
    data: Any = SimpleNamespace(settings=SimpleNamespace(repeats=2, budget=2))
    halves = [point.Part(slice(0, 5)), point.Part(slice(5, 9))]
    lane: Any = "lane"
    (parts,), pace = point._rounds([(lane, data)], 2, lambda lane, data: halves, lambda lane, data, some: some.start)
    assert [part.runs for part in parts] == [[0, 0, 0], [5, 5]]
    assert [part.yards for part in parts] == [[(3, 3), (3, 2), (2, 2)], [(2, 2), (2, 2)]]
    assert [part.factor for part in parts] == [1, 1]
    assert pace == 2
    parts[0].yards.pop()
    assert parts[0].pace == 3
    assert parts[0].factor == 2 / 2.5  # of the second time, which ended well
    assert next(paces, None) is None


def test_a_point_of_a_busy_minute_is_measured_once_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    todo = [task for name in ("index-count", "dexin") for task in runner.tasks(PAPERS[name], "small")][:8]
    attempts = ([10.0], [13.0, 11.0], [10.0], [14.0, 15.0], [10.0], [12.5], [12.6], [12.0])  # the slowest
    seconds = (1.0, 1.0, 3.0, 1.0, 1.0, 1.0, 2.0, 1.0)  # a fifth of them: no time for the one of 12.6
    paces, lasts = dict(zip(map(str, todo), attempts, strict=True)), dict(zip(map(str, todo), seconds, strict=True))

    def measured(task: runner.Task, source: object) -> dict[str, Any]:
        yard, lasted = paces[str(task)].pop(0), lasts[str(task)]
        return {"fingerprint": task.fingerprint, "yard": yard, "seconds": lasted, "cpu_seconds": lasted}

    monkeypatch.setattr(runner, "_measured", measured)
    for _ in range(2):  # and never a third time
        runner.run(todo, tmp_path)
        found = [point for task in todo if (point := runner.stored(task, tmp_path))]
        assert [point["yard"] for point in found] == [10, 11, 10, 14, 10, 12.5, 12.6, 12]
        assert [point["seconds"] for point in found] == [1, 2, 3, 2, 1, 1, 2, 1]
    assert not any(paces.values())


def test_no_point_is_measured_again_when_the_hour_is_nearly_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "REMEASURE_SHARE", 0.5)
    todo = list(runner.tasks(PAPERS["index-count"], "small"))[:3]
    for seconds, again in ((800.0, [15.0]), (900.0, [])):  # 1100 and 800 seconds are left
        for task, yard in zip(todo, (10.0, 14.0, 15.0), strict=True):
            point = {"fingerprint": task.fingerprint, "yard": yard, "seconds": seconds, "cpu_seconds": seconds}
            runner._write(tmp_path / task.file, point)
        assert [point["yard"] for _, point in runner.busy(todo, tmp_path)] == again


def test_who_matches_approximately_may_report_more_but_loses_nothing() -> None:
    found = [np.array([1, 2, 3])]
    require_equal("tama", Hits.of([[3, 1, 7, 2]]), found, "here", exact=False)
    with pytest.raises(BenchError, match="lost 1"):
        require_equal("tama", Hits.of([[3, 1, 7]]), found, "here", exact=False)
    with pytest.raises(BenchError, match="twice 1"):
        require_equal("tama", Hits.of([[1, 1, 2, 3]]), found, "here", exact=False)


def test_everybody_is_timed_on_the_workload_beside_too(tmp_path: Path) -> None:
    todo = [task for task in runner.tasks(PAPERS["dexin"], "smoke") if task.experiment.name == "zipf-widths"][:1]
    runner.run(todo, tmp_path)
    point = runner.stored(todo[0], tmp_path)
    assert point is not None
    labels = todo[0].experiment.labels
    assert set(point["lanes"]) == {*labels, *(label + BESIDE for label in labels)}
    assert all("match" in figures for figures in point["lanes"].values())


def test_what_does_not_fit_is_marked_and_the_others_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hitbox.experiments.measure_point.free_memory", lambda: 400_000)
    todo = [task for task in runner.tasks(PAPERS["rein"], "smoke") if task.experiment.name == "widths"][-1:]
    runner.run(todo, tmp_path)
    point = runner.stored(todo[0], tmp_path)
    assert point is not None
    assert "does not fit" in point["skipped"]["h-tree"]
    assert "siena" in point["lanes"]
    drawn = reproduce.write([PAPERS["rein"]], todo, tmp_path, "smoke", 1, False)
    assert {v["verdict"] for v in drawn["verdicts"]} <= set(report.SIGNS)
    assert "does not fit" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["rain"], "did you mean 'rein'"),
        (["rein", "--scale", "smaal"], "did you mean 'small'"),
        (["rein", "--figure", "figure 99"], "rein has no figure 'figure 99'"),
        (["rein", "--scale", "smoke", "--out", "FILE/out"], "cannot write to"),
    ],
)
def test_bad_input_is_said_at_once(words: list[str], message: str, tmp_path: Path) -> None:
    (tmp_path / "FILE").write_text("")
    words = [str(tmp_path / word) if word.startswith("FILE") else word for word in words]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2
    assert message in " ".join(done.stderr.split())


def test_too_little_memory_is_said_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(reproduce, "free_memory", lambda: 2e9)
    with pytest.raises(BenchError, match=r"scale 'paper' needs about 48 GB of free memory.*--scale small"):
        reproduce.reproduce("rein", "paper", tmp_path)


def test_the_readme_says_what_the_committed_report_says() -> None:
    root = Path(__file__).parents[2]
    verdicts = json.loads((root / "docs/reproduction/results.json").read_text())["verdicts"]
    found = Counter(v["verdict"] for v in verdicts)
    held, failed = found[report.HOLDS] + found[report.OTHER_FACTOR], found[report.FAILS]
    said = " ".join((root / "README.md").read_text().split())
    assert f"Of {len(verdicts)} claims, {held} hold in direction here (who wins, what rises), {failed} do not" in said
    said = " ".join((root / "docs/reproduction/README.md").read_text().split())
    assert f"{len(verdicts)} claims: the direction of {held} of the {held + failed} that can be judged holds" in said


def test_every_claim_that_does_not_hold_has_a_reason() -> None:
    root = Path(__file__).parents[2]
    verdicts = json.loads((root / "docs/reproduction/results.json").read_text())["verdicts"]
    assert [v["claim"] for v in verdicts if v["verdict"] == report.FAILS and not v["reason"].strip()] == []


def test_points_are_brought_to_one_pace() -> None:
    point = {"rein": {"match": 30.0, "gap_std": 3.0, "match_range": 2.0, "hits": 7.0, "memory": 90.0}}
    assert at_one_pace(point, 0.5)["rein"] == {
        "match": 15.0,
        "gap_std": 1.5,
        "match_range": 2.0,
        "hits": 7.0,
        "memory": 90.0,
    }


@pytest.mark.slow
def test_smoke(tmp_path: Path) -> None:
    """All five papers at the smoke scale: every artefact is there and well formed."""
    done = CliRunner().invoke(app, ["all", "--scale", "smoke", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    record = json.loads((tmp_path / "results.json").read_text())
    expected = sum(len(experiment.claims) for paper in PAPERS.values() for experiment in paper.experiments)
    assert len(record["verdicts"]) == expected
    assert {v["verdict"] for v in record["verdicts"]} <= set(report.SIGNS)
    assert record["settings"]["events"] == SETTINGS["smoke"].events
    assert record["machine"]["cpu"]
    html = (tmp_path / "report.html").read_text()
    assert "src='http" not in html
    assert html.index("Verdicts") < html.index("<figure>")
    table = pq.read_table(tmp_path / "results.parquet")
    assert set(table["paper"].to_pylist()) == set(PAPERS)
    assert pq.read_table(tmp_path / "summary.parquet").num_rows > 100
    for paper in PAPERS.values():
        for experiment in paper.experiments:
            for plot in experiment.plots:
                name = report.picture_name(paper, experiment, plot)
                assert ET.parse(tmp_path / "plots" / f"{name}.svg").getroot().tag.endswith("svg")
                assert (tmp_path / "plots" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
                assert f"{plot.figure}: " in html


@pytest.mark.slow
@pytest.mark.spark
def test_spark_makes_the_same_boxes_and_the_same_summary() -> None:
    pytest.importorskip("pyspark")
    from hitbox.experiments import spark_workloads as farm
    from hitbox.spark.session import active, session

    started = active() is None
    try:
        _compare_with_spark(farm)
    finally:
        if started:
            session().stop()


def _compare_with_spark(farm: Any) -> None:
    for name, parameters in (
        ("index-count", {}),
        ("pri-rein", {"m": 8}),
        ("symmetric", {"m": 4, "information": 2, "used": 0.5}),
    ):
        workload = get(name, n=300, seed=3, **parameters)
        ours, theirs = workload.boxes(0, 300), farm.boxes(name, {"n": 300, "seed": 3, **parameters})
        for field in ("offsets", "attribute", "low", "high", "priority"):
            assert np.array_equal(getattr(ours, field), getattr(theirs, field)), (name, field)
        asked, given = workload.points(0, 40), farm.points(name, {"n": 300, "seed": 3, **parameters}, 40)
        assert np.array_equal(asked.low, given.low), name
        assert np.array_equal(asked.high, given.high), name
        assert asked.intervals == given.intervals, name
    lanes = {"rein": {"match": 2.0, "hits": 1.0}}
    points = [{"paper": "rein", "experiment": "widths", "x": x, "n": 9, "lanes": lanes} for x in (0.1, 0.2)]
    table = reproduce.values(points)
    assert farm.summary(table).to_pylist() == reproduce.summary(table).to_pylist()
