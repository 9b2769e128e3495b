"""What somebody meets in the first hour: other column names, case, nested columns, settings, messages, progress."""

from __future__ import annotations

import io
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from hitbox import Index
from hitbox import spark as hs
from hitbox.console import progress as console_progress
from hitbox.errors import HitboxError, HitboxWarning, TableError, ValueProblem
from hitbox.spark import task_progress, worker_check

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
    with pytest.warns(HitboxWarning, match="the column 'owner' of the subscriptions is ignored: drop it to silence"):
        made = hs.build(frame, path, SCHEMA, latest_by="updated")
    assert made.ignored_columns == ("owner",)
    log = frame.selectExpr("1L AS sequence", "'subscribe' AS op", "*")
    with pytest.warns(HitboxWarning, match="the columns 'owner', 'updated' of the subscriptions are ignored"):
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


def test_a_session_says_which_settings_it_ignores(spark: Any) -> None:
    says = r"running already, so spark\.driver\.memory=9g, spark\.master=local\[7\] are ignored: stop it first"
    with pytest.warns(HitboxWarning, match=says):
        assert hs.session("local[7]", spark_driver_memory="9g") is spark
    assert hs.session() is spark
    assert hs.session(spark_sql_shuffle_partitions=2) is spark, "it has this setting"


def test_without_pyspark_python_the_error_names_it_first(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_check, "_asked", set())
    monkeypatch.setattr("hitbox.__version__", "9.9")
    with pytest.raises(HitboxError, match=r"cannot run hitbox 9\.9 \(they have .*\): install the same version"):
        worker_check.require_hitbox(spark)
    monkeypatch.delenv("PYSPARK_PYTHON")
    with pytest.raises(HitboxError) as error:
        worker_check.require_hitbox(spark)
    assert f"): set PYSPARK_PYTHON={sys.executable} before the session starts" in str(error.value)


@pytest.mark.parametrize("where", ["terminal", "notebook", "log"])
def test_progress_is_shown_on_terminals_and_in_notebooks(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    monkeypatch.setattr(console_progress, "find_spec", lambda name: name == "ipywidgets")
    out = io.StringIO()
    console = Console(file=out, force_terminal=where == "terminal", force_jupyter=where == "notebook", width=100)
    monkeypatch.setattr(console_progress, "Console", lambda **_: console)
    steps = []
    original = console_progress.Step.__init__

    def noted(step: Any, *args: Any) -> None:
        original(step, *args)
        steps.append(step.visible)

    monkeypatch.setattr(console_progress.Step, "__init__", noted)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "install .ipywidgets")  # which are not installed here
        with hs.show_progress("matching"), hs.show_progress("building"):
            pass
    assert steps == [where != "log"], "one line, not one within the other"
    assert not task_progress._showing.now
