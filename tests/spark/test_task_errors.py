"""What is wrong with columns is said before the job; what is wrong with rows is said first, before any stack trace."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hitbox import Index
from hitbox import spark as hs
from hitbox.errors import HitboxError, TableError

SCHEMA = {
    "price": "int",
    "tags": "string[]",
    "order": {"city": "string"},
    "items": [{"sku": "string", "size": {"w": "float"}}],
}
FITS = {
    "price": "int",
    "tags": "array<string>",
    "order": "struct<city:string>",
    "items": "array<struct<sku:string,size:struct<w:int>>>",
}


@pytest.fixture
def path(tmp_path: Path) -> str:
    index = Index(SCHEMA)
    index.subscribe("a", "price > 3")
    index.save(tmp_path / "snapshot")
    return str(tmp_path / "snapshot")


@pytest.mark.parametrize(
    "column",
    [
        "price array<int>",
        "price map<string,int>",
        "price binary",
        "price struct<low:int,high:string>",
        "tags string",
        "tags array<int>",
        "tags array<array<string>>",
        "order string",
        "order struct<city:array<string>>",
        "items array<string>",
        "items array<struct<sku:int>>",
        "items array<map<string,string>>",
        "items array<map<int,string>>",
        "items map<string,string>",
        "items array<struct<size:map<string,string>>>",
        "order map<string,string>",
        "tags map<string,string>",
        "items array<struct<size:int>>",
        "items array<struct<size:struct<w:string>>>",
        "old struct<tags:array<int>>",
    ],
)
def test_types_are_checked_before_the_job(spark: Any, path: str, column: str) -> None:
    name, kind = column.split(" ", 1)
    columns = FITS | {name: kind}
    if name == "old":
        columns = {"new": f"struct<{','.join(f'{name}:{kind}' for name, kind in FITS.items())}>", name: kind}
    events = spark.createDataFrame([], ", ".join(f"{name} {kind}" for name, kind in columns.items()))
    for by_part in (False, True):
        with pytest.raises(TableError, match=r"events: column '(old\.|order\.)?\w+'"):
            hs.match(events, path, None, by_part=by_part, allow_missing=True)


def test_columns_that_fit(spark: Any, path: str) -> None:
    events = spark.createDataFrame([], ", ".join(f"{name} {kind}" for name, kind in FITS.items()))
    assert hs.match(events, path, None).columns == ["subscriptions", "snapshot_version"]


def broken(batches: Iterator[Any]) -> Iterator[Any]:
    yield from batches
    raise ValueError("mine")


def said_first(text: str) -> bool:
    before = text.partition("hitbox.errors.TableError: column 'price', row 0: 3.5 is a float")
    return bool(before[1]) and "Traceback" not in before[0] and "\tat " not in before[0]


# whole: the match stream below. Tasks import this module, which may not import what they do not find.
@pytest.mark.parametrize("by_part", [True, pytest.param(False, marks=pytest.mark.exhaustive)])
def test_the_error_of_a_row_comes_before_stack_traces(spark: Any, path: str, by_part: bool) -> None:
    events = spark.createDataFrame([("e1", 3.5)], "event_id string, price double")
    with pytest.raises(Exception, match=r"3.5 is a float") as raised:
        hs.match(events, path, allow_missing=True, by_part=by_part).collect()
    assert said_first(str(raised.value))
    with pytest.raises(Exception, match="mine") as raised:
        events.mapInArrow(broken, events.schema).collect()
    assert "Traceback" in str(raised.value), "the errors of others keep their traces"


def test_the_error_of_a_row_of_a_stream_comes_first(spark: Any, path: str, tmp_path: Path) -> None:
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
    events = source.selectExpr("value", "3.5D AS price")
    query = (
        hs.match(events, path, "value", allow_missing=True)
        .writeStream.format("noop")
        .start(checkpointLocation=str(tmp_path / "checkpoint"))
    )
    with pytest.raises(Exception, match=r"3.5 is a float") as raised:
        query.awaitTermination(120)
    assert said_first(str(raised.value))


def test_the_error_of_a_row_of_a_match_stream(spark: Any, path: str, tmp_path: Path) -> None:
    from hitbox.spark.stream import stop

    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
    query = hs.match_stream(
        source.selectExpr("value", "3.5D AS price"),
        path,
        str(tmp_path / "out"),
        str(tmp_path / "checkpoint"),
        "value",
        allow_missing=True,
    )
    with pytest.raises(Exception, match=r"3.5 is a float"):
        query.awaitTermination(120)
    with pytest.raises(HitboxError, match=r"the stream failed: column 'price', row 0: 3.5 is a f"):
        stop(query)
