"""The benchmark harness on tiny sizes: right before fast, complete records, clear refusals."""

from __future__ import annotations

import inspect
import json
import sys

import numpy as np
import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from hitbox import workloads
from hitbox.encoding.arrays import Hits, Points, Space
from hitbox.engine import Engine, _kernels
from hitbox.errors import HitboxError, MatcherError
from hitbox.matchers import REGISTRY
from hitbox.matchers.brute import Brute
from research import bench, bench_report, constructs, documents, goal_cases, goals
from research.bench_cli import app, split_matchers, workload_options
from research.contestants import OTHERS, contestants, enter
from research.errors import BenchError
from research.floor import Floor
from research.measure import Lane
from support.random_boxes import random_boxes, random_points
from support.tiers import only

COMPACT = "compact" in inspect.signature(Engine).parameters
TINY = bench.Settings(events=5, batches=(1, 4, 16), repeats=2, updates=20, check=4, budget=0.2)


class Forgetful(Brute):
    """Loses the last match of every event."""

    def match(self, points: Points) -> Hits:
        hits = super().match(points)
        return Hits.of([hits[i][:-1] for i in range(len(hits))])


class Haunted(Brute):
    """Right until something is deleted from a large set; then a ghost stays."""

    def delete(self, numbers: np.ndarray) -> None:
        if len(self) > 250:
            self.ghost = True
        super().delete(numbers)

    def match(self, points: Points) -> Hits:
        hits = super().match(points)
        extra = [self.store.capacity] if getattr(self, "ghost", False) else []
        return Hits.of([np.concatenate([hits[i], np.array(extra, np.int64)]) for i in range(len(hits))])


class PointsOnly(Brute):
    intervals = False


@pytest.fixture(autouse=True)
def _extra_matchers(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("Forgetful", "Haunted", "PointsOnly", "Threaded"):
        monkeypatch.setitem(REGISTRY, name.lower(), f"{__name__}:{name}")


@pytest.mark.parametrize("name", list(OTHERS))
@pytest.mark.parametrize("intervals", [False, True])
def test_other_contestants_equal_brute(name, intervals):
    rng = np.random.default_rng(5)
    space, boxes = Space.of(4), random_boxes(rng, 300, 4)
    one, two = enter(name, space), enter("brute", space)
    points = random_points(rng, 30, 4, intervals=intervals)
    for matcher in (one, two):
        matcher.insert(np.arange(200), boxes.take(np.arange(200)))
        matcher.delete(np.arange(0, 200, 3))
        matcher.insert(np.arange(0, 100, 3), boxes.take(np.arange(200, 234)))
    got, want = one.match(points), two.match(points)
    for i in range(len(points)):
        np.testing.assert_array_equal(np.sort(got[i]), np.sort(want[i]))
    assert len(one) == len(two)
    some = np.array([30, 1, 0])
    for i in range(3):
        assert one.boxes(some)[i] == two.boxes(some)[i]
    np.testing.assert_array_equal(one.boxes(some).priority, two.boxes(some).priority)
    assert one.nbytes() > 0


def test_record_is_complete_and_is_json():
    told: list[str] = []
    record = bench.run("w1", ["numpy", "brute"], {"n": 300, "width": 0.8, "seed": 5}, TINY, told.append)
    again = json.loads(json.dumps(record))
    assert again["workload"] == "w1"
    assert again["seed"] == 5
    assert again["parameters"]["width"] == 0.8
    assert again["hits_per_event"] > 0
    assert again["checked_events"] == 4
    assert again["clock"] == "cpu"
    assert {"cpu", "cores", "python", "hitbox", "packages", "commit", "when", "load"} <= set(again["machine"])
    assert "numpy" in again["machine"]["packages"]
    assert [m["name"] for m in again["matchers"]] == ["numpy", "brute"]
    for m in again["matchers"]:
        assert set(m["single"]) == {"mean_us", "median_us", "p99_us", "std_us", "spread_us", "events", "repeats"}
        assert set(m["batches"]) == {"1", "4", "16"}
        for batch in m["batches"].values():
            assert set(batch) == {"us", "spread_us", "events", "repeats"}
        for key in ("build_per_s", "insert_per_s", "delete_per_s", "bytes_per_subscription", "insert_one_us"):
            assert m[key] > 0
        assert set(m["ratio"]) == {"single", "1", "4", "16"}
    assert set(again["matchers"][0]["ratio"].values()) == {1.0}
    assert len(told) == bench.steps(["numpy", "brute"], TINY) - 2 * TINY.repeats  # neither counts


@pytest.mark.parametrize(("workload", "options"), [("w1", {"width": 0.9}), ("w4", {}), ("w1", {"intervals": 0.1})])
def test_the_floor_writes_as_many_numbers_as_match(workload, options):
    """It is checked as every matcher is, and has no figures for changes."""
    record = bench.run(workload, ["hitbox", "floor"], {"n": 3000, **options}, TINY)
    assert [m["name"] for m in record["matchers"]] == ["hitbox", "floor"]
    for m in record["matchers"]:
        assert m["counting"]["single"]["us"] > 0
        assert m["counting"]["batch"]["events"] == 16
    assert record["matchers"][1]["insert_one_us"] is None
    console = Console(width=120, record=True)
    bench_report.show(record, console)
    text = console.export_text()
    assert "one cold bitmap of n bits" in text
    assert "counting only" in text


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 1.0])
@pytest.mark.parametrize("simd", _kernels.simd_levels())
def test_the_floor_at_every_level(simd, share):
    rng = np.random.default_rng(3)
    space, points = Space.of(3), Points.of(rng.integers(0, 99, (7, 3)))
    rows = [np.flatnonzero(rng.random(70_000) < share) for _ in range(len(points))]
    floor = Floor(space, 70_000, np.arange(3), points, Hits.of(rows))
    floor.simd = simd
    hits = floor.match(points)
    for i, row in enumerate(rows):
        np.testing.assert_array_equal(hits[i], row)
        np.testing.assert_array_equal(floor.match(points[i : i + 1])[0], row)
    assert floor.count(points).tolist() == [len(row) for row in rows]


def test_a_wrong_matcher_is_caught_before_any_timing(monkeypatch):
    monkeypatch.setattr(Lane, "time_single", lambda *_: pytest.fail("timed"))
    with pytest.raises(BenchError, match=r"'forgetful' is wrong on a sample: event 0 meets .*\(lost 1"):
        bench.run("w1", ["brute", "forgetful"], {"n": 300, "width": 0.9}, TINY)


def test_ghosts_are_caught():
    with pytest.raises(BenchError, match="'haunted' is wrong"):
        bench.run("w1", ["haunted"], {"n": 300, "width": 0.9}, TINY)


def test_interval_events_leave_out_who_cannot():
    record = bench.run("w1", ["brute", "pointsonly"], {"n": 100, "intervals": 0.1}, TINY)
    assert [m["name"] for m in record["matchers"]] == ["brute"]
    assert record["skipped"][0]["name"] == "pointsonly"
    assert record["intervals"]


@pytest.mark.parametrize("workload", only(["w2", "symmetric"], ["w2", "w3", "w4", "symmetric", "index-count"]))
def test_every_workload_runs(workload):
    record = bench.run(workload, ["brute", "numpy"], {"n": 200}, TINY)
    assert len(record["matchers"]) == 2


@pytest.mark.exhaustive  # `make test` runs the harness with one workload
def test_growth_and_report(tmp_path):
    record = bench.grow("w1", [100, 200], ["brute", "numpy"], {"width": 0.7}, TINY)
    assert [run["subscriptions"] for run in record["growth"]] == [100, 200]
    console = Console(width=120, record=True)
    bench_report.show(record, console)
    bench_report.show(record["growth"][0], console)
    text = console.export_text()
    for word in ("growth of w1", "brute", "upkeep", "p99", "ratio"):
        assert word in text
    for number, part in enumerate((record, record["growth"][0])):
        bench_report.plot(part, tmp_path / f"{number}.svg")
        assert (tmp_path / f"{number}.svg").stat().st_size > 1000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"workload": "w9"}, "unknown workload 'w9'"),
        ({"matchers": ["brut"]}, "unknown matcher 'brut'; did you mean 'brute'"),
        ({"matchers": ["brute", "brute"]}, "named twice"),
        ({"matchers": ["floor"]}, "is a yardstick: name a matcher beside it"),
        ({"matchers": ["brute:speed=9"]}, "has no option 'speed'"),
        ({"matchers": ["numpy:speed=9"]}, "takes no options"),
        ({"parameters": {"n": 0}}, "at least one subscription"),
        ({"settings": bench.Settings(memory=1e5)}, "needs about .* GB"),
    ],
)
def test_refusals(arguments, message):
    with pytest.raises(HitboxError, match=message):
        bench.run(**({"workload": "w1", "matchers": ["brute"], "parameters": {"n": 1000}} | arguments))


def test_bad_settings():
    for wrong in ({"repeats": 0}, {"budget": 0.0}, {"batches": ()}, {"batches": (0,)}):
        with pytest.raises(BenchError):
            bench.Settings(**wrong)
    with pytest.raises(MatcherError, match="not option=value"):
        enter("brute:speed", Space.of(1))


def test_slow_builders_are_left_out(monkeypatch):
    strict = bench.Settings(build_budget=1e-6, events=2, batches=(1,))
    record = bench.run("w1", ["brute"], {"n": 100}, strict)
    assert record["matchers"] == []
    assert "building would take" in record["skipped"][0]["why"]


def test_words_of_the_command_line():
    own = {option.name for option in typer.main.get_command(app).params}
    assert not own & {key for name in workloads.names() for key in workloads.options(name)}
    assert workload_options(["w2", "--width-max=0.5", "--n", "1k"]) == ("w2", {"width_max": "0.5", "n": "1k"})
    assert workload_options(["classbench", "--path", "a-b--c=d.gz"]) == ("classbench", {"path": "a-b--c=d.gz"})
    assert workload_options(["classbench", "--path=a-b=c.gz"]) == ("classbench", {"path": "a-b=c.gz"})
    for words in (["w1", "w2"], ["w1", "--n"]):
        with pytest.raises(BenchError):
            workload_options(words)
    assert split_matchers("") == []
    assert set(bench.favourites("w1")) <= set(contestants())


def test_command(tmp_path):
    runner = CliRunner()
    tiny = ["--events", "3", "--repeats", "1", "--batches", "1,4", "--updates", "5", "--check", "2", "--budget", "0.1"]
    out = tmp_path / "record.json"
    done = runner.invoke(app, ["w1", "--n", "100", *tiny, "--matchers", "brute,numpy", "--out", str(out), "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout) == json.loads(out.read_text())
    done = runner.invoke(app, ["--list"])
    assert "symmetric" in done.stdout
    for words, message in (
        (["w1", "--widht", "0.1"], "did you mean 'width'"),
        (["w1", "--matchers", "brut"], "did you mean 'brute'"),
        (["w1", "--growth", "many"], "whole numbers"),
        (["w1", "--out", str(tmp_path / "no" / "x.json")], "is not a directory"),
    ):
        done = runner.invoke(app, words)
        assert done.exit_code == 2
        assert message in done.stderr


@pytest.mark.exhaustive  # `make test` runs the harness with one workload
def test_goals(tmp_path):
    """Everything is measured in small, by this checkout and by the same one as if it were the version before."""
    checkout = tmp_path / "checkout"
    (checkout / ".venv" / "bin").mkdir(parents=True)
    (checkout / ".venv" / "bin" / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (checkout / ".venv" / "bin" / "python").chmod(0o755)
    out = tmp_path / "goals.json"
    words = ["goals", "--quick", "--repeats", "1", "--before", str(checkout), "--out", str(out)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    record = json.loads(out.read_text())
    assert {"seed", "machine", "simd", "before", "rounds"} <= set(record)
    waiting = {goal.what for goal in goals.GOALS if "compact" in goal.what} if not COMPACT else set()
    for line in record["goals"]:
        assert (line["now"] is None) == (line["what"] in waiting), line
        assert line["reached"] is None or line["goal"] is not None
        assert line["what"] in done.stdout
    assert len(goals.markdown(record).splitlines()) == len(goals.GOALS) + 2


SOME = ("sku = 'w'", "text REGEXP 'w[a-m]+ v', 1 KB", "zone = z AND OLD.price > NEW.price")


def test_constructs(tmp_path, monkeypatch):
    """Every figure is there; a wrong answer is an error. The whole list runs in the test below."""
    some = [one for one in constructs.CONSTRUCTS if one.what in SOME]
    monkeypatch.setattr(constructs, "CONSTRUCTS", some)
    out = tmp_path / "constructs.json"
    done = CliRunner().invoke(app, ["constructs", "--quick", "--repeats", "1", "--out", str(out)])
    assert done.exit_code == 0, done.stderr
    assert "[a-m]" in done.stdout
    record = json.loads(out.read_text())
    assert [line["what"] for line in record["constructs"]] == list(SOME)
    table = constructs.markdown(record).splitlines()
    assert len(table) == 5
    assert all(line.count("|") == table[0].count("|") for line in table)
    wrong = constructs.Construct("wrong", "qty", lambda draw: (f"qty >= {draw.whole(0, 5)}", "False"))
    monkeypatch.setattr(constructs, "CONSTRUCTS", [wrong])
    done = CliRunner().invoke(app, ["constructs", "--quick"])
    assert done.exit_code == 2
    assert "wrong answers: wrong" in done.stderr


@pytest.mark.exhaustive  # `make test` runs three of them
def test_all_constructs_agree_with_the_loop():
    record = constructs.run(True, 1, lambda _: None)
    assert len(record["constructs"]) == len(constructs.CONSTRUCTS)


@pytest.mark.exhaustive  # `make test` runs three constructs through the same harness
def test_documents(tmp_path):
    """Every case in small; the answers are compared with a loop of Python predicates first."""
    out = tmp_path / "documents.json"
    done = CliRunner().invoke(app, ["documents", "--quick", "--repeats", "1", "--out", str(out)])
    assert done.exit_code == 0, done.output
    record = json.loads(out.read_text())
    assert len(record["documents"]) == 4 * len(documents.CASES) + 4
    for line in record["documents"]:
        assert line["now"] >= 0, line
    assert "one event" in done.stdout
    done = CliRunner().invoke(app, ["documents", "--n", "5"])
    assert done.exit_code == 2
    assert "documents have no parameters" in done.stderr


def test_goals_without_the_version_before():
    found = {"now": {"single": [0.5, 0.7, 0.6]}}
    compared = goals.Goal("a / before", "w1", goals.plain("single"), 0.55, "ms", compared=goals.of_before("single"))
    line = goals.measured(compared, found)
    assert line["reached"] is None
    assert line["now"] == {"median": 0.6, "least": 0.5, "most": 0.7}
    assert goals.rows({"goals": [line]})[0][1:] == [
        "not measured",
        "<= 0.55x",
        "0.6 ms",
        "0.5 to 0.7 ms",
        "not measured",
    ]
    line = goals.measured(compared, found | {"before": {"single": [1.0, 1.4, 1.2]}})
    assert line["reached"] is True
    rising = goals.Goal("b", "w1", goals.plain("single"), 0.65, rising=True)
    assert goals.measured(rising, found)["reached"] is False


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--n", "5"], "goals have no parameters"),
        (["--before", "/nowhere"], "must be a checkout of hitbox after `make setup`"),
    ],
)
def test_goals_refusals(words, message):
    done = CliRunner().invoke(app, ["goals", *words])
    assert done.exit_code == 2
    assert message in done.stderr


def test_wrong_answers_yield_no_goals(monkeypatch, capsys):
    monkeypatch.setattr(goal_cases.Index, "match", lambda *_: [])
    with pytest.raises(SystemExit, match="match differs from the oracle"):
        goal_cases.build("small 3", 0.01)


class Threaded(Brute):
    """Takes threads, as the engine does."""

    def match(self, points: Points, threads: int = 1) -> Hits:
        assert threads == 2
        return super().match(points)


def test_threads_reach_those_who_take_them():
    settings = bench.Settings(events=2, batches=(4,), repeats=1, updates=5, check=2, budget=0.1, threads=2)
    record = bench.run("w1", ["threaded", "brute"], {"n": 100}, settings)
    assert [m["threads"] for m in record["matchers"]] == [2, 1]
    assert record["clock"] == "wall"
