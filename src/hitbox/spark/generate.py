"""generate: the synthetic workloads as DataFrames or Parquet tables, the same rows whatever the partitioning.

Row i of a workload depends on (seed, i) alone (hitbox.workloads), so each task makes its own rows and nothing is
shuffled. Attributes are called a0, a1, ...; those that subscriptions declare about themselves (symmetric) as well.

    subscriptions   wide:   id, priority, a0_low, a0_high, ...      where:  id, priority, where
    events          event_id, a0, a1, ...      or a0_low, a0_high, ... where events are intervals; `where` if symmetric
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from hitbox import workloads
from hitbox.encoding.arrays import HIGHEST, I64, LOWEST, MISSING, Boxes
from hitbox.encoding.schema import Attribute, Schema
from hitbox.errors import WorkloadError
from hitbox.spark import parquet_table, snapshot_files
from hitbox.spark.columns import require_whole
from hitbox.spark.parquet_table import NewTable
from hitbox.spark.session import session
from hitbox.spark.worker_check import require_hitbox
from hitbox.storage.addresses import join, resolve
from hitbox.workloads import Workload

LAYOUTS = ("wide", "where")


class Generated(NamedTuple):
    subscriptions: DataFrame
    events: DataFrame
    schema: Schema


def generate(
    workload: str,
    subscriptions: int = 1_000_000,
    events: int = 1_000_000,
    *,
    layout: str = "wide",
    path: str | None = None,
    partitions: int | None = None,
    first_subscription: int = 0,
    first_event: int = 0,
    spark: SparkSession | None = None,
    **parameters: Any,
) -> Generated:
    """Subscriptions and events of a workload (`hitbox.workloads.names()`), with its parameters by keyword.

    path: tasks also write the Parquet tables `subscriptions` and `events`, and schema.json, into this folder
    partitions: how many tasks make the rows (and files, if there is a path)
    first_subscription, first_event: the first row to make, for more of the same later
    """
    if layout not in LAYOUTS:
        raise WorkloadError(f"layout is one of {', '.join(LAYOUTS)}, not {layout!r}")
    require_whole(partitions, "partitions", 1)
    numbers = {"events": events, "first_subscription": first_subscription, "first_event": first_event}
    for name, number in {"subscriptions": subscriptions, **numbers}.items():
        require_whole(number, name, 0)
    made = workloads.get(workload, n=subscriptions, **parameters)
    spark = spark or session()
    require_hitbox(spark)

    def frame(first: int, count: int, make: Callable[[int, int], pa.Table], schema: T.StructType) -> DataFrame:
        def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                if batch.num_rows:
                    yield from make(batch.column(0)[0].as_py(), batch.num_rows).combine_chunks().to_batches()

        return spark.range(first, first + count, numPartitions=partitions).mapInArrow(rows, schema)

    tables = Tables(made, layout)
    if path is not None:
        home = resolve(path)
        made_subscriptions = NewTable(
            join(home, "subscriptions"), first_subscription, subscriptions, tables.subscriptions
        )
        made_events = NewTable(join(home, "events"), first_event, events, tables.events)
        parquet_table.write(spark, [made_subscriptions, made_events], partitions)
        snapshot_files.write_text(join(home, "schema.json"), json.dumps(tables.schema.to_json(), indent=1) + "\n")
    return Generated(
        frame(first_subscription, subscriptions, tables.subscriptions, tables.subscription_type),
        frame(first_event, events, tables.events, tables.event_type),
        tables.schema,
    )


class Tables:
    """A workload's rows as Arrow tables."""

    def __init__(self, workload: Workload, layout: str = "wide"):
        self.workload, self.layout = workload, layout
        stated = set(workload.space.information)
        roles = ["information" if n in stated else "criteria" for n in range(workload.space.attributes)]
        self.schema = Schema({f"a{n}": Attribute("int", role) for n, role in enumerate(roles)})
        self.intervals = workload.points(0, 1).intervals
        self.information = sorted(stated)
        self.carried = [n for n in range(len(roles)) if n not in stated]

    @property
    def subscription_type(self) -> T.StructType:
        found = T.StructType().add("id", T.LongType()).add("priority", T.IntegerType())
        if self.layout == "where":
            for n in self.information:
                found = found.add(f"a{n}_low", T.LongType()).add(f"a{n}_high", T.LongType())
            return found.add("where", T.StringType())
        for name in self.schema:
            found = found.add(f"{name}_low", T.LongType()).add(f"{name}_high", T.LongType())
        return found

    @property
    def event_type(self) -> T.StructType:
        found = T.StructType().add("event_id", T.LongType())
        for n in self.carried:
            for name in [f"a{n}_low", f"a{n}_high"] if self.intervals else [f"a{n}"]:
                found = found.add(name, T.LongType())
        return found.add("where", T.StringType()) if self.information else found

    def subscriptions(self, start: int, count: int) -> pa.Table:
        boxes = self.workload.boxes(start, count)
        columns: dict[str, Any] = {
            "id": pa.array(np.arange(start, start + count)),
            "priority": pa.array(boxes.priority.astype(np.int32)),
        }
        low, high = (np.ascontiguousarray(ends.T) for ends in boxes.dense(len(self.schema)))
        stated = self.information if self.layout == "where" else range(len(self.schema))
        for n in stated:
            columns[f"a{n}_low"] = _bound(low[n], unbounded=[MISSING, LOWEST])
            columns[f"a{n}_high"] = _bound(high[n], unbounded=[MISSING, HIGHEST])
        if self.layout == "where":
            columns["where"] = pa.array(self._texts(boxes), pa.string())
        return pa.table(columns)

    def events(self, start: int, count: int) -> pa.Table:
        points = self.workload.points(start, count)
        columns: dict[str, Any] = {"event_id": pa.array(np.arange(start, start + count))}
        for n in self.carried:
            if self.intervals:
                missing = points.low[:, n] == MISSING
                columns[f"a{n}_low"] = pa.array(points.low[:, n], mask=missing)
                columns[f"a{n}_high"] = pa.array(np.where(missing, 0, points.high[:, n]), mask=missing)
            else:
                columns[f"a{n}"] = _bound(points.low[:, n], unbounded=[MISSING])
        if self.information:
            chosen = self.information
            asked = zip(points.low[:, chosen].tolist(), points.high[:, chosen].tolist(), strict=True)
            columns["where"] = pa.array([_text(chosen, low, high) for low, high in asked], pa.string())
        return pa.table(columns)

    def _texts(self, boxes: Boxes) -> list[str]:
        stated = set(self.information)
        texts = []
        for number in range(len(boxes)):
            bounds = {n: ends for n, ends in boxes[number].items() if n not in stated}
            texts.append(_text(list(bounds), [lo for lo, _ in bounds.values()], [hi for _, hi in bounds.values()]))
        return texts


def _text(attributes: list[int], low: list[int], high: list[int]) -> str:
    """The conjunction of these bounds as a predicate."""
    said = []
    for n, first, last in zip(attributes, low, high, strict=True):
        if first == last:
            said.append(f"a{n} = {first}")
        elif first > LOWEST and last < HIGHEST:
            said.append(f"a{n} BETWEEN {first} AND {last}")
        elif first > LOWEST:
            said.append(f"a{n} >= {first}")
        elif last < HIGHEST:
            said.append(f"a{n} <= {last}")
        elif first == LOWEST:
            said.append(f"a{n} IS NOT NULL")
    return " AND ".join(said) or "TRUE"


def _bound(keys: I64, unbounded: list[int]) -> pa.Array:
    absent = keys == unbounded[0]
    for key in unbounded[1:]:  # np.isin sorts
        absent |= keys == key
    return pa.array(keys, mask=absent)
