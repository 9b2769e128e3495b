"""Snapshots of predicates without a schema, as in README's first lines, match as an index without one."""

from __future__ import annotations

import random
import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

import hitbox
from hitbox import spark as hs

README = Path(__file__).parent.parent.parent / "README.md"
CONDITIONS = [
    "price > {n}",
    "price BETWEEN {n} AND {m}",
    "price > qty",
    "city = 'c{n}' OR qty < {n}",
    "city LIKE 'c{n}%'",
    "LOWER(city) LIKE '%{n}'",
    "order.number = {n}",
    "ANY(list) = {n}",
    "flag",
    "price IS NULL",
    "a{n} = 1",
]
COLUMNS = "event_id long, price double, qty int, city string, flag boolean, order struct<number:int>, list array<int>"


def predicates(rng: random.Random, count: int) -> dict[int, str]:
    def condition() -> str:
        return rng.choice(CONDITIONS).format(n=rng.randint(0, 20), m=rng.randint(10, 30))

    return {id: " AND ".join(condition() for _ in range(rng.randint(1, 3))) for id in range(count)}


def random_event(rng: random.Random, number: int) -> dict[str, Any]:
    values: dict[str, Any] = {
        "price": rng.randint(0, 60) / 2,
        "qty": rng.randint(0, 20),
        "city": f"c{rng.randint(0, 20)}",
        "flag": rng.random() < 0.5,
        "order": {"number": rng.randint(0, 20)},
        "list": [rng.randint(0, 20) for _ in range(3)],
        **{f"a{n}": rng.randint(0, 1) for n in range(21)},
    }
    return {"event_id": number, **{name: None if rng.random() < 0.2 else value for name, value in values.items()}}


def test_build_match_and_change_as_the_library_does(spark: Any, tmp_path: Path) -> None:
    rng, path = random.Random(3), str(tmp_path / "snapshot")
    texts, rows = predicates(rng, 600), [random_event(rng, number) for number in range(60)]
    columns = COLUMNS + "".join(f", a{n} int" for n in range(21))
    events = spark.createDataFrame([tuple(row.values()) for row in rows], columns)
    index = hitbox.Index()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hitbox.HitboxWarning)
        for id, text in texts.items():
            index.subscribe(id, text)
    made = hs.build(spark.createDataFrame(list(texts.items()), "id long, where string"), path, parts=3)
    assert (made.subscriptions, made.rejected) == (600, 0)

    def check() -> int:
        wanted = {row["event_id"]: sorted(index.match(row)) for row in rows}
        for by_part in (False, True):
            found = hs.match(events, path, by_part=by_part).collect()
            assert {row.event_id: sorted(row.subscriptions) for row in found} == wanted
        return sum(map(len, wanted.values()))

    assert check() > 1000
    text = "a3 = 1 AND new IS NULL AND UPPER(city) <> 'C7'"  # an attribute and a function that the build has not seen
    log = [(1, "subscribe", 1000, text), (2, "unsubscribe", 0, None)]
    hs.apply_changes(spark.createDataFrame(log, "sequence long, op string, id long, where string"), path)
    index.subscribe(1000, text)
    index.unsubscribe(0)
    check()
    assert any(1000 in hitbox.Index.open(path).match(row) for row in rows)


def test_a_snapshot_that_begins_empty(spark: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "snapshot")
    assert hs.build(spark.createDataFrame([], "id string, where string"), path).subscriptions == 0
    events = spark.createDataFrame([(1, 5)], "event_id long, price long")
    assert hs.match(events, path).collect()[0].subscriptions == []
    log = spark.createDataFrame(
        [(1, "subscribe", "a", "price > 3")], "sequence long, op string, id string, where string"
    )
    hs.apply_changes(log, path)
    assert hs.match(events, path).collect()[0].subscriptions == ["a"]


def test_the_lines_of_the_readme(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = re.search(r"### Spark\n+```python\n(.*?)```", README.read_text(), re.S)
    assert lines is not None
    assert "schema" not in re.sub("#.*", "", lines[1])
    monkeypatch.chdir(tmp_path)
    stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    names: dict[str, Any] = {
        "subscriptions_df": spark.createDataFrame([("a", "price > 3 AND city = 'Paris'")], "id string, where string"),
        "events_df": spark.createDataFrame([("e1", 4.5, "Paris")], "event_id string, price double, city string"),
        "events_stream": stream.selectExpr("value AS event_id", "value AS price", "'Paris' AS city"),
        "changes_df": spark.createDataFrame(
            [(1, "subscribe", "b", "city = 'Paris'")], "sequence long, op string, id string, where string"
        ),
    }
    exec(lines[1], names)
    found = names["hs"].match(names["events_df"], "snapshots/alerts").collect()
    assert [(row.event_id, sorted(row.subscriptions)) for row in found] == [("e1", ["a", "b"])]


@pytest.mark.parametrize(
    "imports",
    [
        "from hitbox import spark; from pyspark.sql import SparkSession",
        "import pandas; from pyspark.sql import SparkSession; import hitbox.spark",
    ],
)
def test_the_warning_about_pandas_is_not_the_first_screen(imports: str) -> None:
    script = f"""{imports}
import pandas
pandas.__version__ = "3.1.0"
from pyspark.sql.pandas.utils import require_minimum_pandas_version
require_minimum_pandas_version()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
