"""Real tables of Delta and Iceberg: builds of them, and their change feeds into apply_changes."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from hitbox import Index
from hitbox import spark as hs
from hitbox.errors import TableError
from support import lake_tables

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "delta-and-iceberg.md"
SCHEMA = {"price": "float"}

pytestmark = [
    pytest.mark.oldest,
    pytest.mark.skipif(
        not lake_tables.right_spark(), reason=f"for Spark {lake_tables.LINE}: make test-spark-oldest runs them"
    ),
    pytest.mark.skipif(
        lake_tables.right_spark() and not lake_tables.available(),
        reason="NO DELTA AND ICEBERG: run tools/need tables",
    ),
]


def subscriptions(path: str) -> dict[Any, str]:
    index = Index.open(path)
    return {id: index.where(id) for id in index}


class DeltaTable:
    """A table, and what changed in it since the last call of `apply`."""

    def __init__(self, spark: Any, folder: Path, path: str):
        self.spark, self.path, self.folder = spark, path, folder / "alerts"
        self.name = f"delta.`{self.folder}`"
        feed = "TBLPROPERTIES (delta.enableChangeDataFeed = true)"
        spark.sql(f"CREATE TABLE {self.name} (id INT, where STRING) USING delta {feed}")
        self.seen = 0

    def newest(self) -> int:
        return int(self.spark.sql(f"DESCRIBE HISTORY {self.name}").agg({"version": "max"}).first()[0])

    def build(self) -> None:
        hs.build(self.spark.read.format("delta").load(str(self.folder)), self.path, SCHEMA, sequence=self.newest())
        self.seen = self.newest()

    def feed(self, start: int, end: int) -> Any:
        reader = self.spark.read.format("delta").option("readChangeFeed", "true")
        return reader.option("startingVersion", start + 1).option("endingVersion", end).load(str(self.folder))

    def apply(self, start: int, end: int) -> Any:
        return hs.apply_changes(self.feed(start, end), self.path)


class IcebergTable:
    def __init__(self, spark: Any, folder: Path, path: str):
        self.spark, self.path = spark, path
        self.name = f"lake.db.{re.sub(r'[^a-z]', '', folder.name.lower())}"
        spark.sql(f"CREATE TABLE {self.name} (id INT, where STRING) USING iceberg")
        self.seen = 0

    def newest(self) -> int:
        return int(self.spark.sql(f"SELECT snapshot_id FROM {self.name}.refs WHERE name = 'main'").first()[0])

    def build(self) -> None:
        hs.build(self.spark.table(self.name), self.path, SCHEMA)
        self.seen = self.newest()

    def feed(self, start: int, end: int) -> Any:
        options = f"map('start-snapshot-id', '{start}', 'end-snapshot-id', '{end}')"
        name = f"{self.name.rpartition('.')[2]}_changes"
        self.spark.sql(
            f"CALL lake.system.create_changelog_view(table => '{self.name.removeprefix('lake.')}', "
            f"changelog_view => '{name}', options => {options})"
        )
        return self.spark.table(name)

    def apply(self, start: int, end: int) -> Any:
        return hs.apply_changes(self.feed(start, end), self.path, commits=self.spark.table(f"{self.name}.snapshots"))


Table = Callable[[Any, Path, str], Any]


@pytest.mark.parametrize("table", [DeltaTable, IcebergTable])
def test_a_snapshot_follows_a_table(spark: Any, tmp_path: Path, table: Table) -> None:
    """Whatever is done to the table; feeds overlap, one has several commits, and all are applied again at the end."""
    lake = table(spark, tmp_path, str(tmp_path / "snapshot"))
    rows = ", ".join(f"({n}, 'price = {n}')" for n in range(20))
    spark.sql(f"INSERT INTO {lake.name} VALUES {rows}")
    spark.sql(f"DELETE FROM {lake.name} WHERE id = 7")
    lake.build()
    rng, versions = Random(1), [lake.seen]
    for turn in range(2):
        a, b, c, d = rng.sample(range(25), 4)
        spark.sql(f"UPDATE {lake.name} SET where = 'price > {turn}' WHERE id IN ({a}, {b})")
        spark.sql(f"DELETE FROM {lake.name} WHERE id IN ({b}, {c})")
        if turn == 1:
            frame = (
                spark.table(lake.name) if table is IcebergTable else spark.read.format("delta").load(str(lake.folder))
            )
            kept = spark.createDataFrame(
                frame.filter("id % 3 > 0").collect(), frame.schema
            )  # not lazily: it is replaced
            kept.createOrReplaceTempView("kept")
            spark.sql(f"INSERT OVERWRITE {lake.name} SELECT id, concat(where, ' OR price = -1') FROM kept")
        source = f"SELECT {d} AS id, 'price < {turn}' AS where UNION ALL SELECT {a}, 'FALSE'"
        spark.sql(
            f"MERGE INTO {lake.name} t USING ({source}) s ON t.id = s.id "
            "WHEN MATCHED AND s.where = 'FALSE' THEN DELETE "
            "WHEN MATCHED THEN UPDATE SET where = s.where "
            "WHEN NOT MATCHED THEN INSERT *"
        )
        versions.append(lake.newest())
        lake.apply(versions[max(0, turn - 1)], versions[-1])
        now = spark.sql(f"SELECT id, where FROM {lake.name}").collect()
        assert subscriptions(lake.path) == {row.id: row.where for row in now}
    before, version = subscriptions(lake.path), hs.versions(lake.path)[-1].version
    for start, end in [(0, 2), (0, 1)]:
        assert lake.apply(versions[start], versions[end]).version == version
    assert subscriptions(lake.path) == before


def test_an_update_of_ids(spark: Any, tmp_path: Path) -> None:
    lake = DeltaTable(spark, tmp_path, str(tmp_path / "snapshot"))
    spark.sql(f"INSERT INTO {lake.name} VALUES (1, 'price = 1'), (2, 'price = 2')")
    lake.build()
    spark.sql(f"UPDATE {lake.name} SET id = id + 1")  # 2 is an old and a new id
    lake.apply(lake.seen, lake.newest())
    assert subscriptions(lake.path) == {2: "price = 1", 3: "price = 2"}


def test_the_path_of_a_table_is_refused(spark: Any, tmp_path: Path) -> None:
    lake = DeltaTable(spark, tmp_path, str(tmp_path / "snapshot"))
    with pytest.raises(TableError, match=r"is a Delta table: give a DataFrame"):
        hs.build(str(lake.folder), lake.path, SCHEMA)


def test_the_page(spark: Any, tmp_path: Path) -> None:
    """The code of the how-to runs as it is written, but for the session and the folder."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    names: dict[str, Any] = {"spark": spark, "hs": hs, "schema": SCHEMA}
    done = [block for block in blocks if "hs.session(" not in block]
    assert len(done) == len(blocks) - 1
    for block in done:
        exec(block.replace("/data/", f"{tmp_path}/"), names)
    query = names["query"]
    query.processAllAvailable()
    spark.sql(f"INSERT INTO delta.`{tmp_path}/alerts` VALUES ('cy', 'price > 100', 4)")
    query.processAllAvailable()
    query.stop()
    assert subscriptions(f"{tmp_path}/snapshot") == {"ann": "price < 20", "cy": "price > 100"}
    assert subscriptions(f"{tmp_path}/iceberg-snapshot") == {"ann": "price < 20"}
