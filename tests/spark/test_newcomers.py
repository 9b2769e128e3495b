"""What somebody meets in the first hour: other column names, case, nested columns, settings, messages, progress."""

from __future__ import annotations

import io
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from hitbox import Index
from hitbox import spark as hs
from hitbox.console import progress as console_progress
from hitbox.errors import HitboxError, HitboxWarning, TableError, ValueProblem
from hitbox.spark import task_progress, worker_check
from hitbox.spark.session import at_prompt

SCHEMA = {"price": "int", "city": "string"}


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "snapshot")


def test_columns_with_other_names(spark: Any, path: str) -> None:
    rows = [("a", "price > 3", 7, "x"), ("b", "city = 'Rome'", 2, "y")]
    frame = spark.createDataFrame(rows, "sub_id string, Condition string, priority int, id string")
    with pytest.raises(TableError, match=r"neither a column 'where' nor bounds.*such as where_column='sub_id'"):
        hs.build(frame, path, SCHEMA)
    with pytest.raises(TableError, match=r"no column 'id': .* such as id_column='sub_id'; columns: sub_id, Condition"):
        hs.build(frame.drop("id"), path, SCHEMA, where_column="Condition")
    with pytest.raises(TableError, match=r"id_column 'sub_ids' is not a column; did you mean 'sub_id'\?"):
        hs.build(frame, path, SCHEMA, id_column="sub_ids", where_column="Condition")
    made = hs.build(frame, path, SCHEMA, id_column="sub_id", where_column="Condition")
    assert made.ignored_columns == ()
    index = Index.open(path)
    assert index.match({"price": 4, "city": "Rome"}) == ["a", "b"], "the ids are those of sub_id, not of id"
    log = spark.createDataFrame([(1, "unsubscribe", "a", None)], "sequence long, op string, sub_id string, rule string")
    report = hs.apply_changes(log, path, id_column="sub_id", where_column="rule")
    assert isinstance(report, hs.ChangeReport)
    assert report.unsubscribed == 1
    events = spark.createDataFrame([(1, 5, "Rome")], "event_id long, price long, city string")
    with pytest.raises(TableError, match=r"no column 'id': .* such as id_column='sub_id'"):
        hs.match(events, frame.drop("id"))
    found = hs.match(events, frame.drop("id"), id_column="sub_id", where_column="Condition").collect()
    assert found[0].subscriptions == ["a", "b"]


def test_a_parquet_table_with_other_names(spark: Any, path: str, tmp_path: Path) -> None:
    table = str(tmp_path / "subscriptions")
    rows = [("a", "price > 3", 1, "x", "me"), ("b", "city = 'Rome'", 1, "y", "you"), ("b", "price < 0", 0, "y", "you")]
    names = "sub_id string, Condition string, updated int, id string, owner string"
    spark.createDataFrame(rows, names).write.parquet(table)
    with pytest.raises(TableError, match=r"neither a column 'where' nor bounds"):
        hs.build(table, path, SCHEMA)
    with pytest.raises(TableError, match=r"where_column 'Conditions' is not a column; did you mean 'Condition'\?"):
        hs.build(table, path, SCHEMA, id_column="sub_id", where_column="Conditions")
    with pytest.warns(HitboxWarning, match="the column 'owner' of the subscriptions is ignored"):
        made = hs.build(table, path, SCHEMA, id_column="sub_id", where_column="Condition", latest_by="updated")
    assert made.ignored_columns == ("owner",)
    assert made.subscriptions == 2
    assert Index.open(path).match({"price": 4, "city": "Rome"}) == ["a", "b"]


def test_ignored_columns_are_reported(spark: Any, path: str) -> None:
    frame = spark.createDataFrame([(1, "price > 3", "x", 5)], "id long, where string, owner string, updated long")
    says = "the column 'owner' of the subscriptions is ignored: drop it to silence"
    with pytest.warns(HitboxWarning, match=says) as warned:
        made = hs.build(frame, path, SCHEMA, latest_by="updated")
    events = spark.createDataFrame([(1, 5, "x")], "event_id long, price long, city string")
    with pytest.warns(HitboxWarning, match=says) as warned_too:
        hs.match(events, frame.drop("updated"))
    ours = [one for one in (*warned, *warned_too) if one.category is HitboxWarning]
    assert {one.filename for one in ours} == {__file__}, "the user's line, not one of hitbox"
    assert made.ignored_columns == ("owner",)
    log = frame.selectExpr("1L AS sequence", "'subscribe' AS op", "*")
    with pytest.warns(HitboxWarning, match="the columns 'owner', 'updated' of the changes are ignored"):
        hs.apply_changes(log, path)


def test_names_that_differ_only_in_case(spark: Any, path: str) -> None:
    good = spark.createDataFrame([(1, "price > 3")], "id long, where string")
    hs.build(good, path, SCHEMA)
    twice = good.selectExpr("id", "where", "where AS Where")
    with pytest.raises(TableError, match="the columns 'where' and 'Where', which differ only in case"):
        hs.build(twice, path, SCHEMA)
    events = spark.createDataFrame([(1, 5, "x")], "event_id long, Price long, city string")
    for allow in (False, True):
        with pytest.raises(TableError, match=r"have a column 'Price', and the snapshot's schema has 'price': .*rename"):
            hs.match(events, path, allow_missing=allow)


def test_nested_columns_are_paths(spark: Any, path: str) -> None:
    nested = spark.createDataFrame(
        [(1, ("Rome", (7, 8)), 2), (2, ("Oslo", (1, 2)), 9), (3, None, 9)],
        "event_id long, order struct<city: string, item: struct<price: int, qty: int>>, other long",
    )
    rows = [(1, "\"order.city\" = 'Rome'"), (2, '"order.item.price" < 5'), (3, '"order.city" IS NULL')]
    frame = spark.createDataFrame(rows, "id long, where string")
    hs.build(frame, path, {"order.city": "string", "order.item.price": "int"})
    expected = {1: [1], 2: [2], 3: [3]}
    found = hs.match(nested, path, keep=["order"])
    assert found.columns == ["event_id", "order", "subscriptions", "snapshot_version"]
    assert {row.event_id: row.subscriptions for row in found.collect()} == expected
    assert {row.event_id: row.subscriptions for row in hs.match(nested, frame).collect()} == expected
    by_part = hs.match(nested, path, keep=["order"], by_part=True)
    assert by_part.columns == found.columns
    assert {row.event_id: row.subscriptions for row in by_part.collect()} == expected


@pytest.mark.parametrize("source", ["frame", "table"])
def test_nested_columns_of_subscriptions(spark: Any, path: str, tmp_path: Path, source: str) -> None:
    rows = [(("a", 1), "price > 3", {"low": 2}), (("b", 2), "price > 9", {"low": 1})]
    columns = "sub struct<key: string, version: int>, where string, more struct<low: int>"
    table: Any = spark.createDataFrame(rows, columns)
    if source == "table":
        table.coalesce(1).write.parquet(str(tmp_path / "table"))
        table = str(tmp_path / "table")
    with pytest.raises(TableError, match=r"no column 'id': .* such as id_column='sub\.key'"):
        hs.build(table, path, SCHEMA)
    with pytest.warns(HitboxWarning, match=r"the column 'more\.low' of"):
        made = hs.build(table, path, SCHEMA, id_column="sub.key", latest_by="sub.version")
    assert made.subscriptions == 2
    assert Index.open(path).match({"price": 5}) == ["a"]


def test_bounds_of_nested_columns(spark: Any, path: str) -> None:
    names = "id long, `order.price_low` double, `order.price_high` double"
    hs.build(spark.createDataFrame([(1, 1.0, 2.0), (2, 5.0, 6.0)], names), path)
    assert Index.open(path).match({"order.price": 1.5}) == [1]


def test_on_error_has_the_same_values_everywhere(spark: Any, path: str) -> None:
    frame = spark.createDataFrame([(1, "price >")], "id long, where string")
    log = frame.selectExpr("1L AS sequence", "'subscribe' AS op", "*")
    Index(SCHEMA).save(path)
    says = "on_error is 'raise' or 'return', not 'report'"
    for call in (
        lambda: hs.build(frame, path, SCHEMA, on_error="report"),
        lambda: hs.apply_changes(log, path, on_error="report"),
        lambda: Index(SCHEMA).load(frame.toArrow(), on_error="report"),
    ):
        with pytest.raises(ValueProblem, match=says):
            call()
    with pytest.raises(TableError, match=r"^1 subscription does not fit; nothing was built \(on_error='return' with"):
        hs.build(frame, path, SCHEMA)
    with pytest.raises(TableError, match=r"^2 subscriptions do not fit"):
        hs.build(frame.union(frame.selectExpr("2L", "where")), path, SCHEMA)


def test_what_is_wrong_is_said_in_the_words_of_the_user(spark: Any, path: str, tmp_path: Path) -> None:
    events = spark.createDataFrame([(1, 5, "x")], "number long, x long, y string")
    Index(SCHEMA).save(path)
    for call, says in (
        (lambda: hs.match(events, path), "no column 'event_id': name the one that .*, such as event_id='number'"),
        (lambda: hs.match(events, path, "number"), r"no columns 'price', 'city', which .* \(allow_missing=True"),
        (lambda: hs.match(events.drop("x").withColumnRenamed("y", "city"), path, "number"), "no column 'price', which"),
        (lambda: hs.match(events.toPandas(), path), r"events are a DataFrame of Spark, not pandas\..*createDataFrame"),
        (
            lambda: hs.build([1], path),
            "subscriptions are a DataFrame of Spark or the path of a Parquet table, not list",
        ),
        (lambda: hs.build(tmp_path / "nowhere", path), "there is no Parquet table at .*/nowhere$"),
        (lambda: hs.apply_changes([1], path), "changes are a DataFrame of Spark, not list"),
        (lambda: hs.apply_changes(events, path), "the changes have no column 'id'"),
    ):
        with pytest.raises(TableError, match=says):
            call()


SMALLER = {
    "subscriptions=1_000_000, events=100_000": "subscriptions=500, events=50",
    '.format("kafka").option(...) ': '.format("noop").trigger(availableNow=True) ',
    'as_of="2026-01-31 12:00:00"': "as_of=now",
    "hs.diff(path, 3, 5)": "hs.diff(path, 1, 2)",
}
"""What the test replaces in the examples of docs/spark.md."""


def test_the_examples_of_the_page_run(spark: Any, tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "spark.md").read_text()
    examples = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    text = "\n# ----\n".join(examples)
    for shown, smaller in SMALLER.items():
        assert text.count(shown) == 1, shown
        text = text.replace(shown, smaller)
    text = re.sub(r'"(data|snapshots|matches|checkpoints|hits)(["/])', rf'"{tmp_path}/\1\2', text)
    first, bad_events, stream, files, versions = text.split("# ----")
    names: dict[str, Any] = {}
    exec(first, names)
    made = names["made"]
    assert spark.read.parquet(f"{tmp_path}/matches").count() == 50
    names["events_stream"] = spark.readStream.schema(made.events.schema).parquet(f"{tmp_path}/data/events")
    exec(bad_events, names)
    assert "error" in names["hits"].columns
    exec(stream, names)
    names["query"].awaitTermination()
    assert [one["events"] for one in hs.progress(names["query"])] == [50]
    columns = "sequence long, op string, id long, where string, priority int"
    names["log"] = spark.createDataFrame([(1, "subscribe", 900, "a0 >= 0", 5)], columns)
    exec(files, names)
    names["query"].processAllAvailable()
    names["query"].stop()
    assert spark.read.parquet(f"{tmp_path}/hits").count() == 50
    names |= {"path": f"{tmp_path}/snapshots/w1", "subscriptions": made.subscriptions, "events": made.events}
    names["now"] = datetime.now(UTC)
    exec(versions, names)
    assert [one.operation for one in hs.versions(f"{tmp_path}/snapshots/w1")] == ["build", "apply_changes", "build"]


def test_a_session_says_which_settings_it_ignores(spark: Any) -> None:
    says = r"so spark\.driver\.memory=9g, spark\.master=local\[7\] are ignored: stop .* or leave these settings out"
    with pytest.warns(HitboxWarning, match=says):
        assert hs.session("local[7]", spark_driver_memory="9g") is spark
    with pytest.warns(
        HitboxWarning, match=r"so spark\.app\.name=mine is ignored: .* or leave this setting out"
    ) as warned:
        assert hs.session(name="mine") is spark
    assert warned[0].filename == __file__
    with pytest.raises(
        ValueProblem, match="'driver_memory' is not a setting of Spark; did you mean 'spark_driver_memory'"
    ):
        hs.session(driver_memory="9g")
    assert hs.session() is spark
    assert hs.session(spark_sql_shuffle_partitions=2) is spark, "it has this setting"


def test_without_pyspark_python_the_error_names_it_first(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_check, "_asked", set())
    monkeypatch.setattr("hitbox.version.__version__", "9.9")
    with pytest.raises(HitboxError, match=r"cannot run hitbox 9\.9 \(they have .*\): install the same version"):
        worker_check.require_hitbox(spark)
    monkeypatch.delenv("PYSPARK_PYTHON")
    with pytest.raises(HitboxError) as error:
        worker_check.require_hitbox(spark)
    assert f"): set PYSPARK_PYTHON={sys.executable} before the session starts" in str(error.value)


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """A terminal, and a watcher of matches that ends with the test."""
    out = io.StringIO()
    monkeypatch.setattr(console_progress, "Console", lambda **_: Console(file=out, force_terminal=True, width=100))
    monkeypatch.setattr(task_progress, "POLL_SECONDS", 0.02)
    monkeypatch.setattr(task_progress, "_watcher", None)
    monkeypatch.setattr(task_progress, "_ended", threading.Event())
    yield out
    task_progress._end()


def slow(frame: Any) -> Any:
    """The same rows, from tasks that last long enough to be seen."""

    def wait(batches: Any) -> Any:
        for batch in batches:
            time.sleep(0.3)
            yield batch

    return frame.repartition(4).mapInArrow(wait, frame.schema)


def test_match_and_build_draw_a_line_by_themselves(spark: Any, path: str, screen: io.StringIO) -> None:
    hs.build(slow(spark.createDataFrame([(1, "price > 3")], "id long, where string")), path, SCHEMA)
    assert "building" in screen.getvalue()
    events = slow(spark.createDataFrame([(n, n, "x") for n in range(40)], "event_id long, price long, city string"))
    for by_part in (False, True):
        while console_progress._screen.locked():  # the line of the match before
            time.sleep(0.01)
        screen.seek(0)
        screen.truncate()
        found = hs.match(events, path, form="counts", by_part=by_part)
        slow(spark.range(40)).count()
        assert "matching" not in screen.getvalue(), "a query without a match"
        assert found.groupBy("matches").count().count() == 2
        assert "/4 Spark tasks" in screen.getvalue()
        assert "matching" in screen.getvalue()
    with hs.show_progress("counting"):
        found.count()
    assert "counting" in screen.getvalue()
    assert "building" not in screen.getvalue()


def test_no_line_for_streams(spark: Any, path: str, screen: io.StringIO, tmp_path: Path) -> None:
    index = Index({"value": "int"})
    index.subscribe(1, "value >= 0")
    index.save(path)
    hs.match(spark.createDataFrame([(1, 1)], "event_id long, value long"), path)  # starts the watcher
    stream = slow(spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 4).load().select("value"))
    writer = hs.match(stream, path, "value").writeStream.format("noop")
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    while query.isActive and not query.recentProgress:
        time.sleep(0.02)
    query.stop()
    assert query.exception() is None
    assert screen.getvalue() == ""


def test_no_second_line_where_spark_draws_its_own(screen: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    own: Any = SimpleNamespace(conf=SimpleNamespace(get=lambda *_: "true"), _jsparkSession=object())
    monkeypatch.setattr(sys, "stderr", SimpleNamespace(isatty=lambda: True))
    with hs.show_progress("counting", own):
        task_progress.show_matches(own)
    assert task_progress._watcher is None
    assert screen.getvalue() == ""


def test_at_the_prompt_of_a_terminal_spark_draws(spark: Any, path: str, screen: io.StringIO) -> None:
    """A line that a thread draws would erase the prompt."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "ps1", ">>> ", raising=False)
        patch.setattr(sys, "stderr", SimpleNamespace(isatty=lambda: True))
        assert at_prompt()
        task_progress.show_matches(spark)
    assert task_progress._watcher is None
    assert not at_prompt()


def test_a_connect_session_reports_its_tasks(screen: io.StringIO) -> None:
    handlers: list[Any] = []
    server: Any = SimpleNamespace(
        conf=SimpleNamespace(get=lambda *_: "false"),
        registerProgressHandler=handlers.append,
        removeProgressHandler=handlers.remove,
    )
    stages = [SimpleNamespace(num_tasks=8, num_completed_tasks=3), SimpleNamespace(num_tasks=2, num_completed_tasks=0)]
    with hs.show_progress("matching", server):
        handlers[0](stages=stages, inflight_tasks=2, operation_id="x", done=False)
        handlers[0](stages=None, inflight_tasks=0, operation_id="x", done=True)
    assert "3/10 Spark tasks" in screen.getvalue()
    assert not handlers


def test_nothing_is_drawn_into_a_log(monkeypatch: pytest.MonkeyPatch, spark: Any, path: str) -> None:
    out = io.StringIO()
    monkeypatch.setattr(console_progress, "Console", lambda **_: Console(file=out))
    monkeypatch.setattr(task_progress, "_watcher", None)
    with hs.show_progress("counting"):
        task_progress.show_matches(spark)
    assert out.getvalue() == ""
    assert task_progress._watcher is None


def test_arguments_of_the_wrong_kind(spark: Any, path: str, tmp_path: Path) -> None:
    """Each is an error that names the argument, before any job runs."""
    subscriptions = spark.createDataFrame([(1, "a > 3")], "id long, where string")
    schema = {"a": "int"}
    hs.build(subscriptions, path, schema)
    events = spark.createDataFrame([(1, 5)], "event_id long, a int")
    stream = spark.readStream.format("rate").load().selectExpr("value AS event_id", "int(value) AS a")
    log = subscriptions.selectExpr("id AS sequence", "'subscribe' AS op", "*")
    twice = subscriptions.select("id", "where", "where")
    wrong: list[tuple[str, Callable[[], Any]]] = [
        ("parts is a whole number of at least 1, not True", lambda: hs.build(subscriptions, path, schema, parts=True)),
        ("sequence is .* not '5'", lambda: hs.build(subscriptions, path, schema, sequence="5")),  # type: ignore[arg-type]
        ("sequence is .* at most", lambda: hs.build(subscriptions, path, schema, sequence=2**70)),
        ("the subscriptions have two columns 'where'", lambda: hs.build(twice, path, schema)),
        ("is a file, not a folder", lambda: hs.build(subscriptions, __file__, schema)),
        (r"event_id is the name of a column, not \['event_id'\]", lambda: hs.match(events, path, ["event_id"])),  # type: ignore[arg-type]
        ("where is the name of a column, not 5", lambda: hs.match(events, path, where=5)),  # type: ignore[arg-type]
        (r"keep is a list of columns, such as keep=\['user'\], not None", lambda: hs.match(events, path, keep=None)),  # type: ignore[arg-type]
        ("limit is .* not True", lambda: hs.match(events, path, limit=True)),
        ("limit is .* at most", lambda: hs.match(events, path, limit=2**70)),
        ("was current at 0001-01-01", lambda: hs.match(events, path, as_of="0001-01-01T00:00:00+12:00")),
        ("remember is .* not 'x'", lambda: hs.apply_changes(log, path, remember="x")),  # type: ignore[arg-type]
        ("progress takes the checkpoint", lambda: hs.progress(5)),  # type: ignore[arg-type]
        ("sink is a function", lambda: hs.match_stream(stream, path, sink=5, checkpoint=str(tmp_path / "c"))),  # type: ignore[arg-type]
        ("partitions is a whole number of at least 1, not 0", lambda: hs.generate("w1", partitions=0, spark=spark)),
        ("subscriptions is .* not '5'", lambda: hs.generate("w1", subscriptions="5", spark=spark)),  # type: ignore[arg-type]
        ("first_event is .* not -3", lambda: hs.generate("w1", first_event=-3, spark=spark)),
    ]
    for message, call in wrong:
        with pytest.raises(HitboxError, match=message):
            call()
    assert [one.version for one in hs.versions(path)] == [1]
    assert hs.match(events, path, as_of="9999-12-31T23:59:59-12:00").columns == [
        "event_id",
        "subscriptions",
        "snapshot_version",
    ]
