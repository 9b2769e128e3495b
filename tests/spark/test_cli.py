"""The commands of the pipeline, small, in this process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hitbox import Index
from hitbox.cli import app as whole_app
from hitbox.spark import demo
from hitbox.spark.cli import app
from support.tiers import only


def run(*words: str, fails: bool = False) -> str:
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == (2 if fails else 0), result.output
    return result.output


def summary(*words: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(*words, "--json").splitlines()[-1])
    return found


def test_from_generate_to_stream(spark: Any, tmp_path: Path) -> None:
    data, snapshot = str(tmp_path / "data"), str(tmp_path / "snapshot")
    sizes = ["--subscriptions", "1k", "--events", "200", "--width", "0.7", "--levels=3"]
    assert summary("generate", "w1", data, *sizes)["events"] == 200
    built = summary("build", f"{data}/subscriptions", snapshot, "--schema", f"{data}/schema.json")
    assert (built["version"], built["subscriptions"]) == (1, 1000)
    matched = summary("match", f"{data}/events", snapshot, str(tmp_path / "matches"), "--keep", "a0")
    assert matched["events"] == 200
    events = spark.read.parquet(f"{data}/events").toArrow()
    assert matched["matches"] == len(Index.open(snapshot).match_batch(events).ids)
    counted = summary("match", f"{data}/events", f"{data}/subscriptions", str(tmp_path / "counts"), "--form", "counts")
    assert counted["matches"] == matched["matches"]
    streamed = summary(
        "stream", snapshot, str(tmp_path / "out"), str(tmp_path / "cp"), "--batches", "2", "--rows-per-batch", "100"
    )
    assert streamed["versions"] == [1]
    assert "subscriptions per second" in run("build", f"{data}/subscriptions", snapshot)


def test_bad_input_is_status_two(spark: Any, tmp_path: Path) -> None:
    assert "unknown workload 'w9'" in run("generate", "w9", str(tmp_path), fails=True)
    assert "has no parameter 'widht'" in run("generate", "w1", str(tmp_path), "--widht", "1", fails=True)
    assert "there is no Parquet table at" in run("build", str(tmp_path / "none"), str(tmp_path / "s"), fails=True)
    assert "not a whole number" in run("generate", "w1", str(tmp_path), "--events", "many", fails=True)


def test_demo_in_small(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "SLICE", (50, 1000))
    monkeypatch.setattr(demo, "BATCHES", 2)
    monkeypatch.setattr(demo, "PER_BATCH", 200)
    facts = summary("demo", "--subscriptions", "3k", "--events", "500")
    assert facts["events"] == 500
    assert sum(batch["events"] for batch in facts["batches"]) == 400


@pytest.mark.parametrize(("form", "matches"), only([("arrays", 1)], [("arrays", 1), ("pairs", 1), ("counts", 1)]))
def test_events_that_do_not_fit(spark: Any, tmp_path: Path, form: str, matches: int) -> None:
    index = Index({"qty": "int"})
    index.subscribe("many", "qty > 2")
    index.save(tmp_path / "snapshot")
    rows = spark.createDataFrame([(1, 3.0), (2, 3.5)], "event_id int, qty double")
    rows.write.parquet(str(tmp_path / "events"))
    places = [str(tmp_path / name) for name in ("events", "snapshot", "matches")]
    assert "3.5 is a float" in run("match", *places, "--form", form, fails=True)
    found = summary("match", *places, "--form", form, "--on-error", "return")
    assert (found["events"], found["matches"], found["bad_events"]) == (2, matches, 1)
    words = ["match", places[0], "--snapshot", places[1], "-o", places[2], "--spark", "--master", "local[2]"]
    result = CliRunner().invoke(whole_app, [*words, "--form", form, "--on-error", "null", "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout.splitlines()[-1])["matches"] == matches
