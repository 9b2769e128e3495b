"""The exchange on Spark: equal to the library's Exchange and to a nested loop, also when batches are repeated."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hitbox
from hitbox import Attribute, Exchange, Index
from hitbox import spark as hs
from hitbox.errors import SchemaError, TableError, ValueProblem
from hitbox.spark import snapshot_files
from support import second_evaluator
from support.tiers import only

JOBS = {
    "salary": "int",
    "city": "string",
    "age": Attribute("int", role="information"),
    "degree": Attribute("bool", role="information"),
}
EVENTS = "event_id string, salary_low long, salary_high long, city string, asks string, note int"
SUBSCRIPTIONS = "id long, where string, age int, degree boolean"
CITIES = ["Paris", "Rome", "Oslo"]

Offer = tuple[int, int, str | None, str | None]
"""What an event says (salary from and to, city) and asks."""
Person = tuple[str | None, int | None, bool | None]
"""What a subscription asks, and says (age, degree)."""


def offer(rng: random.Random) -> Offer:
    low = rng.randrange(30, 60)
    asks = rng.choice([None, f"age > {rng.randrange(20, 50)}", "degree", f"age IS NULL OR age < {rng.randrange(60)}"])
    return low, low + rng.randrange(10), rng.choice([*CITIES, None]), asks


def person(rng: random.Random) -> Person:
    asks = rng.choice([None, f"salary >= {rng.randrange(30, 70)}", f"city = '{rng.choice(CITIES)}'", "city IS NULL"])
    return asks, rng.choice([None, rng.randrange(18, 65)]), rng.choice([None, True, False])


class Model:
    """Both sides as dicts; a batch gives the pairs with at least one newcomer, by a loop over all pairs."""

    def __init__(self) -> None:
        self.offers: dict[str, Offer] = {}
        self.people: dict[int, Person] = {}

    def batch(self, offers: dict[str, Offer | None], people: dict[int, Person | None]) -> set[tuple[str, int]]:
        for stored, new in ((self.offers, offers), (self.people, people)):
            for id, row in new.items():
                stored.pop(id, None)  # type: ignore[call-overload]
                if row is not None:
                    stored[id] = row  # type: ignore[index]
        return {
            (event, subscription)
            for event, said in self.offers.items()
            for subscription, wants in self.people.items()
            if (event in offers or subscription in people) and suits(said, wants)
        }


def suits(said: Offer, wants: Person) -> bool:
    """Both predicates, by the evaluator that shares no code with hitbox."""
    low, high, city, asks = said
    where, age, degree = wants
    offered = {"salary": second_evaluator.Interval(low, high), "city": city}
    return true(where, {"salary": "int", "city": "string"}, offered) and true(
        asks, {"age": "int", "degree": "bool"}, {"age": age, "degree": degree}
    )


def true(predicate: str | None, types: dict[str, str], values: dict[str, Any]) -> bool:
    if predicate is None:
        return True
    present = {name: value for name, value in values.items() if value is not None}
    (answer,) = second_evaluator.answers(second_evaluator.parse(predicate, types), types, present)
    return answer


def tables(spark: Any, offers: dict[str, Offer | None], people: dict[int, Person | None]) -> tuple[Any, Any]:
    events = [(id, *(row or (None,) * 4), 7, "publish" if row else "withdraw") for id, row in offers.items()]
    subscriptions = [(id, *(row or (None,) * 3), "subscribe" if row else "unsubscribe") for id, row in people.items()]
    return (
        spark.createDataFrame(events, f"{EVENTS}, op string"),
        spark.createDataFrame(subscriptions, f"{SUBSCRIPTIONS}, op string"),
    )


def pairs(frame: Any) -> list[tuple[Any, Any]]:
    assert frame.columns == ["event_id", "subscription"]
    return sorted(tuple(row) for row in frame.collect())


def random_batches(rng: random.Random, count: int) -> list[tuple[dict[str, Offer | None], dict[int, Person | None]]]:
    """Newcomers, replacements and departures; some batches have one side only."""
    batches = []
    for number in range(count):
        offers = {f"e{rng.randrange(20)}": offer(rng) if rng.random() < 0.8 else None for _ in range(8)}
        people = {rng.randrange(20): person(rng) if rng.random() < 0.8 else None for _ in range(8)}
        batches.append(({} if number % 4 == 1 else offers, {} if number % 4 == 2 else people))
    return batches


def test_random_batches_equal_a_nested_loop(spark: Any, tmp_path: Path) -> None:
    path, model = str(tmp_path / "jobs"), Model()
    for offers, people in random_batches(random.Random(5), 6):
        events, subscriptions = tables(spark, offers, people)
        found = hs.exchange(events, subscriptions, path, JOBS, where="asks")
        expected = sorted(model.batch(offers, people))
        assert pairs(found) == expected
        again = hs.exchange(events, subscriptions, path, where="asks")
        assert pairs(again) == expected, "the same batch once more gives the same pairs"
    assert set(Index.open(f"{path}/events")) == set(model.offers)
    assert set(Index.open(f"{path}/subscriptions")) == set(model.people)


@pytest.mark.exhaustive  # `make test` compares random batches with a nested loop
def test_the_papers_workload_equals_the_librarys_exchange(spark: Any, tmp_path: Path) -> None:
    """Symmetric publish/subscribe with 16 attributes, 8 on each side; both sides arrive in turns."""
    made = hs.generate("symmetric", 300, 200, layout="where", selectivity=0.05, spark=spark)
    people, offers = made.subscriptions.collect(), made.events.collect()
    exchange = Exchange(made.schema)

    def said(row: Any, role: str) -> dict[str, tuple[int, int]]:
        ends = {name: (row[f"{name}_low"], row[f"{name}_high"]) for name in made.schema.with_role(role)}
        return {name: pair for name, pair in ends.items() if pair[0] is not None}

    path, total = str(tmp_path / "exchange"), 0
    for number in range(3):
        some_people, some_offers = people[number * 100 : (number + 1) * 100], offers[number * 70 : (number + 1) * 70]
        expected = []
        for row in some_offers:
            hits = exchange.publish(row.event_id, said(row, "criteria"), where=row["where"])
            expected += [(row.event_id, hit) for hit in hits]
        for row in some_people:
            hits = exchange.subscribe(row.id, row["where"], about=said(row, "information"))
            expected += [(hit, row.id) for hit in hits]
        found = hs.exchange(
            spark.createDataFrame(some_offers, made.events.schema),
            spark.createDataFrame(some_people, made.subscriptions.schema),
            path,
            made.schema,
        )
        assert pairs(found) == sorted(expected)
        total += len(expected)
    assert total > 1000


def test_one_side_at_a_time_as_the_documentation_shows(spark: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "jobs")
    people = spark.createDataFrame([(1, "salary > 500 AND city = 'Paris'", 25)], "id long, where string, age int")
    schema = {"salary": "int", "city": "string", "age": Attribute("int", role="information")}
    assert pairs(hs.exchange(None, people, path, schema)) == []
    offers = spark.createDataFrame(
        [("E1", 400, 600, "Paris", "age > 30"), ("E2", 400, 600, "Paris", "age > 18")],
        "event_id string, salary_low int, salary_high int, city string, where string",
    )
    assert pairs(hs.exchange(offers, None, path)) == [("E2", 1)]
    later = spark.createDataFrame([(2, "salary > 550", 31)], "id long, where string, age int")
    assert pairs(hs.exchange(None, later, path)) == [("E1", 2), ("E2", 2)]
    assert pairs(hs.exchange(offers.limit(0), later.limit(0), path)) == []
    assert pairs(hs.exchange(offers.where("event_id = 'E1'"), None, path)) == [("E1", 2)], "published again"


# ---- streams


def source(spark: Any, folder: Path, schema: str) -> Any:
    folder.mkdir(exist_ok=True)
    return spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).json(str(folder))


def arrive(frame: Any, folder: Path, number: int) -> None:
    """One file, which is one micro-batch of its stream."""
    rows = [json.dumps(row.asDict()) for row in frame.collect()]
    (folder / f"{number:03d}.json").write_text("\n".join(rows) + "\n")
    time.sleep(0.02)  # files are taken in the order of their times


class Pipeline:
    """Two streams of files through one exchange, a micro-batch at a time."""

    def __init__(self, spark: Any, folder: Path):
        self.spark, self.folder = spark, folder
        self.path, self.out = str(folder / "jobs"), str(folder / "out")
        self.events = source(spark, folder / "events", f"{EVENTS}, op string")
        self.subscriptions = source(spark, folder / "subscriptions", f"{SUBSCRIPTIONS}, op string")

    def give(self, number: int, offers: dict[str, Offer | None], people: dict[int, Person | None]) -> None:
        events, subscriptions = tables(self.spark, offers, people)
        arrive(events, self.folder / "events", number)
        arrive(subscriptions, self.folder / "subscriptions", number)

    def run(self, **options: Any) -> None:
        options = {"out": self.out, "schema": JOBS, "where": "asks", "trigger": {"availableNow": True}} | options
        query = hs.exchange(
            self.events, self.subscriptions, self.path, checkpoint=str(self.folder / "checkpoint"), **options
        )
        query.awaitTermination(120)  # type: ignore[union-attr]
        problem = query.exception()  # type: ignore[union-attr]
        if problem is not None:
            raise problem

    def written(self, batch: int) -> list[tuple[Any, Any]]:
        return pairs(self.spark.read.parquet(f"{self.out}/batch_id={batch}"))


def test_two_streams_in_one_pipeline(spark: Any, tmp_path: Path) -> None:
    pipeline, model = Pipeline(spark, tmp_path), Model()
    batches = random_batches(random.Random(6), 4)
    for number, (offers, people) in enumerate(batches):
        pipeline.give(number, offers, people)
    pipeline.run()
    for number, (offers, people) in enumerate(batches):
        assert pipeline.written(number) == sorted(model.batch(offers, people))
    noted = hs.progress(str(tmp_path / "checkpoint"))
    assert [(one["batch"], one["events"], one["subscriptions"]) for one in noted] == [
        (number, len(offers), len(people)) for number, (offers, people) in enumerate(batches)
    ]


@pytest.mark.parametrize("place", only(["written"], ["events stored", "both stored", "noted", "written"]))
def test_a_batch_that_stops_halfway_is_repeated_with_the_same_pairs(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    import importlib

    module = importlib.import_module("hitbox.spark.exchange")
    stream = importlib.import_module("hitbox.spark.stream")
    pipeline, model = Pipeline(spark, tmp_path), Model()
    batches = random_batches(random.Random(7), 3)
    expected = [sorted(model.batch(*batch)) for batch in batches]
    pipeline.give(0, *batches[0])
    pipeline.run()
    pipeline.give(1, *batches[2])
    expected[2] = sorted(rebuilt(batches[0]).batch(*batches[2]))

    def stopping(function: Callable[..., Any], before: bool) -> Callable[..., Any]:
        def stop(*arguments: Any, **options: Any) -> Any:
            if not before:
                function(*arguments, **options)
            raise RuntimeError("the driver stops here")

        return stop

    with monkeypatch.context() as patch:
        if place == "events stored":
            patch.setattr(module.Change, "publish", stopping(module.Change.publish, before=False))
        elif place == "both stored":
            patch.setattr(module.Exchange, "store", stopping(module.Exchange.store, before=False))
        elif place == "noted":
            patch.setattr(module.Exchange, "pairs", stopping(module.Exchange.pairs, before=True))
        else:
            patch.setattr(stream.Output, "note", stopping(stream.Output.note, before=True))
        with pytest.raises(Exception, match="the driver stops here"):
            pipeline.run()
    if place in ("noted", "written"):  # then not even a stranger who comes in between changes the batch
        people = dict.fromkeys(range(100, 110), (None, 40, True))
        hs.exchange(None, tables(spark, {}, people)[1], pipeline.path)
    pipeline.run()
    assert pipeline.written(1) == expected[2]


def rebuilt(*batches: Any) -> Model:
    model = Model()
    for batch in batches:
        model.batch(*batch)
    return model


KILLED = """
import os, signal, sys
from hitbox import Attribute, spark as hs
from hitbox.spark import snapshot_files
spark = hs.session("local[2]", spark_ui_enabled="false", spark_sql_shuffle_partitions=2)
folder, events, subscriptions = sys.argv[1:]
read = lambda name, schema: spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).json(f"{folder}/{name}")
build = sys.modules["hitbox.spark.exchange"].build

def kill(rows, place, *rest, **options):
    if place.endswith("subscriptions"):
        os.kill(os.getpid(), signal.SIGKILL)
    return build(rows, place, *rest, **options)

sys.modules["hitbox.spark.exchange"].build = kill
schema = {"salary": "int", "city": "string", "age": Attribute("int", role="information"),
          "degree": Attribute("bool", role="information")}
hs.exchange(read("events", events), read("subscriptions", subscriptions), f"{folder}/jobs", schema, f"{folder}/out",
            f"{folder}/checkpoint", where="asks", trigger={"availableNow": True}).awaitTermination()
"""


@pytest.mark.exhaustive  # `make test` stops batches at each step, without kills
def test_a_driver_that_is_killed_between_the_two_sides(spark: Any, tmp_path: Path) -> None:
    pipeline, model = Pipeline(spark, tmp_path), Model()
    batches = random_batches(random.Random(9), 1)
    pipeline.give(0, *batches[0])
    arguments = [str(tmp_path), f"{EVENTS}, op string", f"{SUBSCRIPTIONS}, op string"]
    done = subprocess.run([sys.executable, "-c", KILLED, *arguments], capture_output=True, text=True, timeout=600)
    assert done.returncode == -signal.SIGKILL, done.stderr[-3000:]
    assert Index.open(f"{pipeline.path}/events")
    assert not (tmp_path / "jobs" / "subscriptions" / "CURRENT").exists()
    pipeline.run()
    assert pipeline.written(0) == sorted(model.batch(*batches[0]))


def test_a_sink_gets_the_pairs(spark: Any, tmp_path: Path) -> None:
    pipeline, model, found = Pipeline(spark, tmp_path), Model(), {}
    batch = random_batches(random.Random(8), 1)[0]
    pipeline.give(0, *batch)
    pipeline.run(out=None, sink=lambda frame, number: found.update({number: pairs(frame)}))
    assert found == {0: sorted(model.batch(*batch))}


# ---- what is wrong


def test_rows_that_do_not_fit_are_named_and_nothing_is_stored(spark: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "jobs")
    good = tables(spark, {"e": (1, 2, "Rome", None)}, {1: (None, 30, True)})
    for offers, people, message in [
        ({"e": (1, 2, "Rome", "size > 3")}, {1: (None, 30, True)}, "event 'e': unknown attribute 'size'"),
        ({"e": (1, 2, "Rome", None)}, {1: ("salary >", 30, True)}, "1 subscription does not fit.*\nsubscription 1:"),
        ({"e": (5, 2, "Rome", None)}, {1: (None, 30, True)}, "event 'e'"),
        ({"e": (1, 2, "Rome", "salary > 3")}, {1: (None, 30, True)}, "event 'e'.*salary"),
    ]:
        with pytest.raises(TableError, match=message):
            hs.exchange(*tables(spark, offers, people), path, JOBS, where="asks")
    assert not snapshot_files.names(f"{path}/events")
    assert not snapshot_files.names(f"{path}/subscriptions")
    events, subscriptions = good
    for column, message in [("NULL", "id is null"), ("'hire'", "op 'hire' is neither publish nor withdraw")]:
        name = "event_id" if column == "NULL" else "op"
        wrong = events.selectExpr("*").withColumn(name, hs_expr(column))
        with pytest.raises(TableError, match=message):
            hs.exchange(wrong, subscriptions, path, JOBS, where="asks")
    twice = events.unionByName(events.selectExpr("*").withColumn("salary_high", hs_expr("99L")))
    with pytest.raises(TableError, match="'e': this id occurs more than once in one batch"):
        hs.exchange(twice, subscriptions, path, JOBS, where="asks")
    same = events.unionByName(events)
    assert pairs(hs.exchange(same, subscriptions, path, JOBS, where="asks")) == [("e", 1)]


def with_error(frame: Any) -> list[tuple[Any, Any, str]]:
    """The rows of a result with the column `error`; of an error only its beginning."""
    assert frame.columns == ["event_id", "subscription", "error"]
    rows = [(row.event_id, row.subscription, (row.error or "")[:20]) for row in frame.collect()]
    return sorted(rows, key=str)


def with_misfits(spark: Any, turn: int) -> tuple[Any, Any]:
    """Offers and people of whom some do not fit; the ids of later turns are others."""
    offers = [
        (f"a{turn}", 40.0, 50.0, "Rome", None, "publish"),
        (f"b{turn}", 5.0, 2.0, "Rome", None, "publish"),
        (f"c{turn}", 40.0, 50.0, "Rome", "size > 3", "publish"),
        (f"d{turn}", 40.5, 50.0, "Rome", None, "publish"),
        (f"e{turn}", 40.0, 50.0, "Rome", None, "hire"),
    ]
    people = [
        (10 * turn + 1, "salary >= 45", 30.0),
        (10 * turn + 2, "salary >", 30.0),
        (10 * turn + 3, "city = 'Rome'", 30.5),
    ]
    events = spark.createDataFrame(
        offers, "event_id string, salary_low double, salary_high double, city string, asks string, op string"
    )
    return events, spark.createDataFrame(people, "id long, where string, age double")


SMALL = {"salary": "int", "city": "string", "age": Attribute("int", role="information")}


def test_rows_that_do_not_fit_come_back(spark: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "jobs")
    for turn in range(2):  # the first call builds, the second changes
        found = hs.exchange(*with_misfits(spark, turn), path, SMALL, where="asks", on_error="return")
        offer_, person_ = f"a{turn}", 10 * turn + 1
        expected = [(offer_, person_, "")] + ([("a0", 11, ""), ("a1", 1, "")] if turn else [])
        expected += [
            (f"b{turn}", None, "attribute 'salary': "),
            (f"c{turn}", None, "unknown attribute 's"),
            (f"d{turn}", None, "attribute 'salary': "),
            (f"e{turn}", None, "op 'hire' is neither"),
            (None, person_ + 1, "expected a v"),
            (None, person_ + 2, "attribute 'age': 30."),
        ]
        assert [(e, s, text[:12]) for e, s, text in with_error(found)] == sorted(
            [(e, s, text[:12]) for e, s, text in expected], key=str
        )
    assert set(Index.open(f"{path}/events")) == {"a0", "a1"}
    assert set(Index.open(f"{path}/subscriptions")) == {1, 11}
    wrong = with_misfits(spark, 5)[0].where("asks = 'size > 3'")
    nothing = hs.exchange(wrong, None, path, where="asks", on_error="return")
    assert [row[0] for row in with_error(nothing)] == ["c5"]
    none = hs.exchange(with_misfits(spark, 5)[0].limit(0), None, path, where="asks", on_error="return")
    assert with_error(none) == []


@pytest.mark.exhaustive  # `make test` gives back rows that do not fit
def test_values_that_do_not_fit_are_null(spark: Any, tmp_path: Path) -> None:
    path, stored = str(tmp_path / "jobs"), set()
    for turn in range(2):
        found = hs.exchange(*with_misfits(spark, turn), path, SMALL, where="asks", on_error="null")
        events = {id: f"{id}{turn}" for id in "abd"}
        new = {(events["a"], 10 * turn + 1)} | {(event, 10 * turn + 3) for event in events.values()}
        others = {("a0", 11), ("a1", 1)} | {(f"{id}0", 13) for id in "abd"} | {(f"{id}1", 3) for id in "abd"}
        assert pairs(found) == sorted(new | (others if turn else set()))
        stored |= set(events.values())
    assert set(Index.open(f"{path}/events")) == stored
    subscriptions = Index.open(f"{path}/subscriptions")
    assert {id: subscriptions.about(id) for id in subscriptions} == {1: {"age": 30}, 3: {}, 11: {"age": 30}, 13: {}}


def test_a_stored_row_that_is_too_expensive(spark: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "jobs")
    rows = [(1, "name REGEXP '^a+$'"), (2, "name LIKE 'aaa%'")]
    people = spark.createDataFrame(rows, "id long, where string")
    hs.exchange(None, people, path, {"name": "string"})
    events = spark.createDataFrame([("e", "a" * 1000)], "event_id string, name string")
    few: dict[str, Any] = {"where": None, "match_steps": 5}
    assert pairs(hs.exchange(events, None, path, where=None)) == [("e", 1), ("e", 2)]
    with pytest.raises(Exception, match=r"subscription 1 is too expensive: 5 steps"):
        hs.exchange(events, None, path, **few).collect()
    assert pairs(hs.exchange(events, None, path, **few, on_error="null")) == [("e", 2)]
    assert with_error(hs.exchange(events, None, path, **few, on_error="return")) == [
        ("e", None, "subscription 1 is to")
    ]


def test_a_stream_leaves_out_what_does_not_fit_and_counts(spark: Any, tmp_path: Path) -> None:
    """A row that ended the stream on every restart does so no more with another `on_error`."""
    schema = "event_id string, salary double, city string, op string"
    events = source(spark, tmp_path / "events", schema)
    people = source(spark, tmp_path / "people", "id long, where string, age double")
    path, out, checkpoint = str(tmp_path / "jobs"), str(tmp_path / "out"), str(tmp_path / "checkpoint")
    for number, (offers, seekers) in enumerate(
        [
            ([("a", 40.0, "Rome"), ("b", 5.5, "Rome")], [(1, "salary > 3", 30.0), (2, "salary >", 3.0)]),
            ([("c", 7.0, "Rome"), ("d", 1.5, "Oslo")], [(3, "city REGEXP '^R.*e$'", 2.5)]),
        ]
    ):
        arrive(spark.createDataFrame([(*one, "publish") for one in offers], schema), tmp_path / "events", number)
        arrive(spark.createDataFrame(seekers, "id long, where string, age double"), tmp_path / "people", number)

    def run(**options: Any) -> None:
        query = hs.exchange(
            events, people, path, SMALL, out, checkpoint, where=None, trigger={"availableNow": True}, **options
        )
        query.awaitTermination(120)  # type: ignore[union-attr]

    for _ in range(2):
        with pytest.raises(Exception, match=r"event 'b': attribute 'salary': 5\.5"):
            run()
    assert not snapshot_files.names(f"{path}/events")
    run(on_error="return")
    found = [with_error(spark.read.parquet(f"{out}/batch_id={batch}")) for batch in range(2)]
    assert [(e, s, text[:12]) for e, s, text in found[0]] == [
        ("a", 1, ""),
        ("b", None, "attribute 's"),
        (None, 2, "expected a v"),
    ]
    assert [(e, s, text[:12]) for e, s, text in found[1]] == [
        ("c", 1, ""),
        ("d", None, "attribute 's"),
        (None, 3, "attribute 'a"),
    ]
    noted = hs.progress(checkpoint)
    names = "events", "subscriptions", "bad_events", "bad_subscriptions"
    assert [tuple(one[name] for name in names) for one in noted] == [(2, 2, 1, 1), (2, 1, 1, 1)]


@pytest.mark.exhaustive  # `make test` counts what does not fit
def test_a_stream_counts_what_is_too_expensive(spark: Any, tmp_path: Path) -> None:
    hs.exchange(
        None,
        spark.createDataFrame([(1, "city REGEXP '^R.*e$'")], "id long, where string"),
        str(tmp_path / "jobs"),
        {"city": "string"},
    )
    schema = "event_id string, city string"
    events = source(spark, tmp_path / "events", schema)
    arrive(spark.createDataFrame([("a", "Ro" * 500 + "me"), ("b", "Ro" * 600 + "me")], schema), tmp_path / "events", 0)
    found: list[Any] = []
    query = hs.exchange(
        events,
        None,
        str(tmp_path / "jobs"),
        checkpoint=str(tmp_path / "checkpoint"),
        where=None,
        match_steps=5,
        on_error="null",
        trigger={"availableNow": True},
        sink=lambda frame, number: found.extend(frame.collect()),
    )
    query.awaitTermination(120)  # type: ignore[union-attr]
    assert found == []
    (noted,) = hs.progress(str(tmp_path / "checkpoint"))
    assert (noted["events"], noted["bad_events"], noted["bad_subscriptions"]) == (2, 2, 0)


def test_ids_of_another_type_leave_both_sides_as_they_are(spark: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "jobs")
    hs.exchange(*tables(spark, {"e": (1, 2, "Rome", None)}, {1: (None, 30, True)}), path, JOBS, where="asks")
    events, people = tables(spark, {"f": (1, 2, "Rome", None)}, {2: (None, 30, True)})
    with pytest.raises(TableError, match="has subscriptions with ids of type int, these have string"):
        hs.exchange(events, people.withColumn("id", people.id.cast("string")), path, where="asks")
    assert list(Index.open(f"{path}/events")) == ["e"]


def hs_expr(text: str) -> Any:
    from pyspark.sql import functions as F

    return F.expr(text).cast("string") if "L" not in text.replace("NULL", "") else F.expr(text)


def test_the_latest_row_of_an_id_counts(spark: Any, tmp_path: Path) -> None:
    rows = [("e", 1, "Rome", 2), ("e", 9, "Oslo", 3), ("e", 5, "Rome", 1)]
    events = spark.createDataFrame(rows, "event_id string, salary int, city string, at int")
    people = spark.createDataFrame([(1, "city = 'Rome'", 2), (1, "salary = 9", 5)], "id int, where string, at int")
    schema = {"salary": "int", "city": "string"}
    found = hs.exchange(events, people, str(tmp_path / "x"), schema, where=None, latest_by="at")
    assert pairs(found) == [("e", 1)]


def test_what_is_wrong_is_said_before_anything_starts(spark: Any, tmp_path: Path) -> None:
    events, subscriptions = tables(spark, {"e": (1, 2, "Rome", None)}, {1: (None, 30, True)})
    path = str(tmp_path / "jobs")
    for call, error, message in [
        (lambda: hs.exchange(None, None, path), ValueProblem, "give events, subscriptions or both"),
        (lambda: hs.exchange(events, None, path, where="asks"), SchemaError, "give its schema"),
        (lambda: hs.exchange(events, None, path, JOBS), TableError, "no column 'where'.*where='asks'"),
        (lambda: hs.exchange(events.drop("city"), None, path, JOBS, where="asks"), TableError, "events have no column"),
        (lambda: hs.exchange(None, subscriptions.drop("age"), path, JOBS), TableError, "subscriptions have no column"),
        (
            lambda: hs.exchange(None, subscriptions.drop("age", "degree"), path, JOBS, allow_missing=True),
            TableError,
            "subscriptions have no column 'age', 'degree'",
        ),
        (
            lambda: hs.exchange(events.drop("salary_low"), None, path, JOBS, where="asks"),
            TableError,
            "the events: column 'salary_high' is only one end",
        ),
        (
            lambda: hs.exchange(events.withColumn("city", events.note), None, path, JOBS, where="asks"),
            TableError,
            "the events: .*city",
        ),
        (lambda: hs.exchange(None, subscriptions, path, {"op": "int"}), SchemaError, "cannot be called 'op'"),
        (lambda: hs.exchange(None, subscriptions, path, JOBS, out="x"), ValueProblem, "out, sink and checkpoint"),
        (
            lambda: hs.exchange(
                events.withColumnRenamed("event_id", "subscription"), None, path, JOBS, event_id="subscription"
            ),
            TableError,
            "rename it",
        ),
        (
            lambda: hs.exchange(source(spark, tmp_path / "s", EVENTS), subscriptions, path, JOBS, where="asks"),
            TableError,
            "one side is a stream and the other a table",
        ),
        (lambda: hs.exchange(None, subscriptions, path, JOBS, on_error="skip"), ValueProblem, "'null' or 'return'"),
        (lambda: hs.exchange(None, subscriptions, path, JOBS, match_steps=0), ValueProblem, "match_steps is a whole"),
        (
            lambda: hs.exchange(
                events.withColumnRenamed("event_id", "error"), None, path, JOBS, event_id="error", on_error="return"
            ),
            TableError,
            "a column 'error', which is the name of a result",
        ),
        (
            lambda: hs.exchange(source(spark, tmp_path / "s", EVENTS), None, path, JOBS, "out", where="asks"),
            ValueProblem,
            "give checkpoint=",
        ),
    ]:
        with pytest.raises(error, match=message):
            call()
    hs.exchange(events, subscriptions, path, JOBS, where="asks")
    with pytest.raises(SchemaError, match="has another schema"):
        hs.exchange(events, subscriptions, path, {**JOBS, "size": "int"}, where="asks")
    assert hitbox.Schema(JOBS).swapped().swapped() == hitbox.Schema(JOBS)


@pytest.mark.parametrize("name", only(["count"], ["count", "doubtful", "a.b `c` 'd' \"e\""]))
def test_attributes_may_have_any_other_name(spark: Any, tmp_path: Path, name: str) -> None:
    schema = {"price": "int", name: Attribute("int", role="information")}
    escaped, quoted = name.replace("`", "``"), name.replace('"', '""')
    for turn, expected in enumerate([[("e0", 0)], [("e0", 1), ("e1", 0), ("e1", 1)]]):
        asks = [(f"e{turn}", 5, f'"{quoted}" > 3')]
        events = spark.createDataFrame(asks, "event_id string, price int, where string")
        rows = [(turn, "price > 1", 4), (turn + 10, "price > 1", 3)]
        people = spark.createDataFrame(rows, f"id long, where string, `{escaped}` int")
        assert pairs(hs.exchange(events, people, str(tmp_path / "x"), schema)) == expected


def test_a_side_that_says_nothing(spark: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "x")
    events = spark.createDataFrame([("e", 5)], "event_id string, price int")
    people = spark.createDataFrame([(1, "price > 1"), (2, "price > 7")], "id long, where string")
    assert pairs(hs.exchange(events, people, path, {"price": "int"}, where=None)) == [("e", 1)]
    assert pairs(hs.exchange(None, people.selectExpr("id + 2 AS id", "where"), path)) == [("e", 3)]


def test_times_without_a_zone_in_a_session_with_one(spark: Any, tmp_path: Path) -> None:
    """They are UTC, as in match; not of the zone of the session."""
    schema = {"at": "timestamp", "born": Attribute("timestamp", role="information")}
    offers = [("e", "2026-01-01 12:00", "born = TIMESTAMP '2000-01-01 06:00:00'")]
    events = spark.createDataFrame(offers, "event_id string, at string, where string")
    seekers = [(1, "at = TIMESTAMP '2026-01-01 12:00:00'", "2000-01-01 06:00")]
    people = spark.createDataFrame(seekers, "id int, where string, born string")
    events = events.selectExpr("event_id", "cast(at AS timestamp_ntz) AS at", "where")
    people = people.selectExpr("id", "where", "cast(born AS timestamp_ntz) AS born")
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        for _ in range(2):  # the first call builds, the second changes
            assert pairs(hs.exchange(events, people, str(tmp_path / "x"), schema)) == [("e", 1)]
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
