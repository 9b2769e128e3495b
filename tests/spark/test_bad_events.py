"""Events that do not fit, on Spark: an error, null values, or rows with the reason; one of them ends no stream."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from hitbox import Index, Limits
from hitbox import spark as hs
from hitbox.errors import HitboxError, TableError, TooExpensive, ValueProblem
from hitbox.index.sharded import Shards
from hitbox.spark import match_task, part_match, snapshot_files
from hitbox.spark.stream import stop
from support.tiers import only

SCHEMA: dict[str, Any] = {"qty": "int", "price": "float", "order": {"city": "string"}}
TEXTS = {"a": "qty > 2", "b": "price IS NULL", "c": "order.city = 'Rome'", "d": "qty > 1 OR price > 5"}
ROWS: list[Any] = [
    ("e0", 3.0, 1, ("Rome",)),
    ("e1", 3.5, 9, ("Rome",)),
    ("e2", 2.0, 2**53 + 1, None),
    ("e3", None, None, ("Rome",)),
    ("e4", 1e30, 2**53 + 1, ("a\0",)),
    ("e5", 2.0, 7, (None,)),
]
COLUMNS = "event_id string, qty double, price bigint, order struct<city:string>"
BAD = {"e1": "attribute 'qty': 3.5 is a float;", "e2": "has no exact 64-bit float", "e4": "attribute 'qty': 1e+30"}
FITS = {"e0": "acd", "e3": "bc", "e5": "d"}
NULLED = FITS | {"e1": "cd", "e2": "bd", "e4": "b"}


@pytest.fixture
def path(spark: Any, tmp_path: Path) -> str:
    table = spark.createDataFrame(list(TEXTS.items()), "id string, where string")
    hs.build(table, str(tmp_path / "snapshot"), SCHEMA, parts=2)
    return str(tmp_path / "snapshot")


def by_event(rows: list[Any], form: str) -> dict[str, Any]:
    """What each event matches, as a sorted text; or how many it matches; None without a result."""
    if form == "counts":
        return {row.event_id: row.matches for row in rows}
    if form == "arrays":
        return {r.event_id: None if r.subscriptions is None else "".join(sorted(r.subscriptions)) for r in rows}
    found: dict[str, Any] = {}
    for row in rows:
        found[row.event_id] = None if row.subscription is None else found.get(row.event_id, "") + row.subscription
    return {event: ids and "".join(sorted(ids)) for event, ids in found.items()}


@pytest.mark.parametrize("by_part", only([True], [False, True]))  # whole: the form "arrays" in the streams below
@pytest.mark.parametrize("form", only(["pairs"], ["arrays", "pairs", "counts"]))
def test_bad_events_of_a_table(spark: Any, path: str, form: str, by_part: bool) -> None:
    events = spark.createDataFrame(ROWS, COLUMNS)
    fits, nulled = ({e: len(ids) if form == "counts" else ids for e, ids in one.items()} for one in (FITS, NULLED))
    found = hs.match(events, path, form=form, by_part=by_part, on_error="null")
    assert "error" not in found.columns
    assert by_event(found.collect(), form) == nulled
    found = hs.match(events, path, form=form, by_part=by_part, on_error="return")
    assert found.columns[-2:] == ["error", "snapshot_version"]
    rows = found.collect()
    assert by_event(rows, form) == fits | dict.fromkeys(BAD)
    errors = {row.event_id: row.error for row in rows if row.error is not None}
    assert errors.keys() == BAD.keys()
    assert all(says in errors[event] for event, says in BAD.items())
    with pytest.raises(Exception, match=r"(?s)\(event_id = 'e[124]'\)"):
        hs.match(events, path, form=form, by_part=by_part).collect()


def test_the_predicates_of_events(spark: Any, tmp_path: Path) -> None:
    index = Index({"price": "float", "age": {"type": "int", "role": "information"}})
    index.subscribe("old", "price > 1", about={"age": 50})
    index.save(tmp_path / "snapshot")
    asked = ["'age > 30'", "'age >'", "null", "'age > 60'", "cast(X'ff61' as string)"]
    table = spark.sql(
        " UNION ALL ".join(f"SELECT {n} AS event_id, 2.0D AS price, {t} AS w" for n, t in enumerate(asked))
    )
    for on_error, bad in (("null", []), ("return", None)):
        rows = hs.match(table, str(tmp_path / "snapshot"), where="w", on_error=on_error).collect()
        found = {row.event_id: row.subscriptions for row in rows}
        assert found == {0: ["old"], 1: bad, 2: ["old"], 3: [], 4: bad}


def test_options_are_checked_before_the_job(spark: Any, path: str, tmp_path: Path) -> None:
    events = spark.createDataFrame(ROWS, COLUMNS).selectExpr("*", "1 AS error")
    with pytest.raises(ValueProblem, match="on_error is 'raise', 'null' or 'return', not 'ignore'"):
        hs.match(events, path, on_error="ignore")
    with pytest.raises(TableError, match="a column 'error', which is the name of a result: rename it"):
        hs.match(events, path, keep=["error"], on_error="return")
    assert hs.match(events, path, keep=["error"], on_error="null").count() == len(ROWS)


def stream(spark: Any, tmp_path: Path) -> Any:
    """A batch per file; the second one has bad events."""
    folder = str(tmp_path / "events")
    for first in (0, 1, 3):
        rows = ROWS[first : first + (1 if first == 0 else 2)]
        spark.createDataFrame(rows, COLUMNS).coalesce(1).write.mode("append").parquet(folder)
        time.sleep(0.05)  # files are read in the order of their times
    return spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1).parquet(folder)


@pytest.mark.parametrize("by_part", only([True], [False, True]))
@pytest.mark.parametrize(  # pairs: test_bad_events_of_a_table
    ("form", "on_error"),
    only([("arrays", "return"), ("counts", "null")], [("arrays", "return"), ("pairs", "return"), ("counts", "null")]),
)
def test_a_stream_goes_on_and_counts(
    spark: Any, path: str, tmp_path: Path, form: str, on_error: str, by_part: bool
) -> None:
    matches = hs.match(stream(spark, tmp_path), path, form=form, on_error=on_error, by_part=by_part)
    name = f"bad_{form}_{by_part}"
    writer = matches.writeStream.format("memory").queryName(name).option("checkpointLocation", str(tmp_path / "c"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination(240)
    assert query.exception() is None
    progress = hs.progress(query)
    assert [(batch["events"], batch["bad_events"]) for batch in progress] == [(1, 0), (2, 2), (2, 1)]
    rows = spark.table(name).collect()
    if on_error == "return":
        assert by_event(rows, form) == {event: FITS.get(event) for event in ("e0", "e1", "e2", "e3", "e4")}
        assert {row.event_id for row in rows if row.error is not None} == BAD.keys()
        assert sum(batch["matches"] for batch in progress) == len("acd" + "bc")
    else:
        assert by_event(rows, form) == {event: len(ids) for event, ids in NULLED.items() if event != "e5"}


def test_a_match_stream_that_failed_goes_on_with_another_on_error(spark: Any, path: str, tmp_path: Path) -> None:
    events, out, checkpoint = stream(spark, tmp_path), str(tmp_path / "out"), str(tmp_path / "checkpoint")
    now = {"availableNow": True}
    for _ in range(2):
        query = hs.match_stream(events, path, out, checkpoint, trigger=now)
        with pytest.raises(Exception, match="event_id = 'e1'"):
            query.awaitTermination(120)
        with pytest.raises(HitboxError, match=r"the stream failed: column 'qty', row 0: 3\.5"):
            stop(query)
    query = hs.match_stream(events, path, out, checkpoint, trigger=now, on_error="return")
    query.awaitTermination(120)
    stop(query)
    assert [(d["events"], d["bad_events"], d["matches"]) for d in hs.progress(checkpoint)] == [
        (1, 0, 3),
        (2, 2, 0),
        (2, 1, 2),
    ]
    rows = spark.read.option("mergeSchema", True).parquet(out).collect()
    assert by_event(rows, "arrays") == {event: FITS.get(event) for event in ("e0", "e1", "e2", "e3", "e4")}
    assert {row.event_id for row in rows if row.error is not None} == BAD.keys()


PAIRS = "EXISTS(a WHERE EXISTS(b WHERE y * x = -5))"
LISTS: dict[str, Any] = {"a": [{"x": "int"}], "b": [{"y": "int"}], "n": "int"}
LONG = {"a": [{"x": number} for number in range(500)], "b": [{"y": number} for number in range(500)]}
SHORT = {"a": [{"x": -5}], "b": [{"y": 1}]}


def test_the_error_of_an_expensive_subscription_leaves_the_task(spark: Any, tmp_path: Path) -> None:
    index = Index(LISTS)
    index.subscribe("pairs", PAIRS)
    index.save(tmp_path / "snapshot")
    lists = "transform(sequence(1, 500), i -> named_struct('{}', int(i)))"
    events = spark.range(7, 8).selectExpr("id AS event_id", *(f"{lists.format(f)} AS {n}" for n, f in ("ax", "by")))
    with pytest.raises(Exception, match=r"subscription 'pairs' is too expensive") as raised:
        hs.match(events, str(tmp_path / "snapshot"), allow_missing=True, match_steps=200_000).collect()
    first = str(raised.value).partition("\tat ")[0]
    assert "hitbox.errors.TooExpensive: subscription 'pairs' is too expensive: 200,000 steps did" in first
    assert "whether it matches the event with event_id = 7; simplify" in first
    assert "Traceback" not in first
    rows = hs.match(
        events, str(tmp_path / "snapshot"), allow_missing=True, match_steps=200_000, on_error="return"
    ).collect()
    assert [row.subscriptions for row in rows] == [None]
    assert rows[0].error.startswith("subscription 'pairs' is too expensive: 200,000 steps did not decide whether")


@pytest.mark.parametrize("by_part", only([True], [False, True]))  # whole: the test above
def test_the_steps_of_a_match_can_be_set(spark: Any, tmp_path: Path, by_part: bool) -> None:
    index = Index({"name": "string"})
    index.subscribe("search", "name REGEXP '^a+$'")
    index.subscribe("plain", "name LIKE 'aaa%'")
    index.save(tmp_path / "snapshot")
    events = spark.createDataFrame([("e", "a" * 1000)], "event_id string, name string")
    path = str(tmp_path / "snapshot")

    def found(**options: Any) -> Any:
        (row,) = hs.match(events, path, by_part=by_part, **options).collect()
        return row.subscriptions

    assert sorted(found()) == ["plain", "search"]
    assert sorted(found(match_steps=1000)) == ["plain", "search"]
    assert found(match_steps=5, on_error="null") == ["plain"]
    assert found(match_steps=5, on_error="return") is None
    with pytest.raises(Exception, match="subscription 'search' is too expensive: 5 steps"):
        found(match_steps=5)
    for wrong in (0, 1.5, True):
        with pytest.raises(ValueProblem, match="match_steps is a whole number of at least 1"):
            found(match_steps=wrong)


def test_the_steps_of_a_match_stream_can_be_set(spark: Any, path: str, tmp_path: Path) -> None:
    index = Index({"qty": "int", "name": "string"})
    index.subscribe("search", "name REGEXP '^e.*$'")
    index.save(tmp_path / "searches")
    events = stream(spark, tmp_path).selectExpr("event_id", "1 AS qty", "repeat(event_id, 500) AS name")
    checkpoint = str(tmp_path / "checkpoint")
    query = hs.match_stream(
        events,
        str(tmp_path / "searches"),
        checkpoint=checkpoint,
        trigger={"availableNow": True},
        on_error="null",
        match_steps=5,
        sink=lambda matches, batch: matches.collect(),
    )
    query.awaitTermination(120)
    stop(query)
    assert [(d["events"], d["bad_events"], d["matches"]) for d in hs.progress(checkpoint)] == [
        (1, 1, 0),
        (2, 2, 0),
        (2, 2, 0),
    ]


def parts_with_few_steps(path: str, version: int, identity: int, part: int = -1) -> Shards:
    found = Shards.open(path, version, None if part < 0 else [part])
    for one in found.parts:
        one.limits = Limits(match_steps=5_000)
    return found


@pytest.mark.parametrize("form", only(["arrays"], ["arrays", "pairs", "counts"]))
def test_an_event_on_which_a_subscription_is_too_expensive(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """The steps of tasks, without Spark. A subscription is too expensive in one of two parts."""
    path = str(tmp_path / "snapshot")
    texts = {"pairs": PAIRS} | {f"n{number}": "n > 0" for number in range(4)}
    hs.build(spark.createDataFrame(list(texts.items()), "id string, where string"), path, LISTS, parts=2)
    monkeypatch.setattr(match_task, "opened", parts_with_few_steps)
    monkeypatch.setattr(part_match, "opened", parts_with_few_steps)
    rows = [{"event_id": n} | lists | {"n": n} for n, lists in enumerate([SHORT, LONG, SHORT, LONG])]
    events = pa.Table.from_pylist(rows).to_batches()
    identity = snapshot_files.identity(snapshot_files.facts(path))
    for on_error in ("null", "return", "raise"):
        job = match_task.Job(path, 1, identity, ("a", "b", "n"), ("event_id",), form, on_error=on_error)
        work = part_match.PartMatch(job, 2, "string")
        if on_error == "raise":
            with pytest.raises(TooExpensive, match=r"'pairs' is too expensive: 5,000 .* the event with event_id = 1;"):
                list(job(iter(events)))
            continue
        whole = pa.Table.from_batches(list(job(iter(events)))).to_pylist()
        blocks = list(work.blocks(iter(events)))
        pieces = []
        for part in range(2):
            pieces += list(work.match(b.append_column("part", pa.array([part], pa.int32())) for b in blocks))
        assert sorted(pa.Table.from_batches(list(work.merge(iter(pieces)))).to_pylist(), key=str) == sorted(
            whole, key=str
        )
        numbers = [f"n{number}" for number in range(4)]
        expected: list[Any] = [["pairs"], numbers, [*numbers, "pairs"], numbers]
        if on_error == "return":
            expected[1] = expected[3] = None
            assert {row["event_id"] for row in whole if row["error"] is not None} == {1, 3}
        found: dict[int, Any] = {}
        for row in whole:
            if form == "counts":
                found[row["event_id"]] = row["matches"]
            elif form == "arrays":
                found[row["event_id"]] = row["subscriptions"] and sorted(row["subscriptions"])
            else:
                one = row["subscription"]
                found[row["event_id"]] = one and sorted([*found.get(row["event_id"], []), one])
        if form == "counts":
            expected = [ids and len(ids) for ids in expected]
        assert found == dict(enumerate(expected))
