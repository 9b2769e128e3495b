"""A streaming source of synthetic events, so that a stream needs nothing but Spark: format "hitbox".

    register(spark)
    spark.readStream.format("hitbox").option("workload", "w1").option("rows_per_batch", 10_000).load()

Options: workload; rows (0: no end); rows_per_batch; partitions; and the workload's own parameters. An offset is a row
number, and row i is always the same event, so a replay reads what was read before.

Spark 4.2 and newer pass a source its last offset and a limit. Older ones do not, so the source remembers where it is,
and a trigger `availableNow` is a single batch there.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import types as T
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition

from hitbox import workloads
from hitbox.errors import WorkloadError
from hitbox.spark.generate import Tables

CHUNK = 10_000


def register(spark: SparkSession) -> None:
    """Make the format "hitbox" known to a session."""
    spark.dataSource.register(SyntheticEvents)


class Rows(InputPartition):  # type: ignore[misc]
    def __init__(self, start: int, end: int):
        super().__init__((start, end))
        self.start, self.end = start, end


class SyntheticEvents(DataSource):  # type: ignore[misc]
    """Events of a workload of hitbox.workloads."""

    @classmethod
    def name(cls) -> str:
        return "hitbox"

    def schema(self) -> T.StructType:
        return Settings(self.options).tables.event_type

    def reader(self, schema: T.StructType) -> DataSourceReader:
        return Reader(Settings(self.options))

    def streamReader(self, schema: T.StructType) -> DataSourceStreamReader:
        return StreamReader(Settings(self.options))


class Settings:
    """The options, read once."""

    def __init__(self, options: Any):
        given = {key: value for key, value in dict(options).items() if key != "path"}
        values = {key: _number(key, given.pop(key, default)) for key, default in _DEFAULTS.items()}
        self.rows, self.per_batch, self.partitions = values["rows"], values["rows_per_batch"], values["partitions"]
        self.tables = Tables(workloads.get(str(given.pop("workload", "w1")), **_named(given)))

    def read(self, partition: Rows) -> Iterator[pa.RecordBatch]:
        for start in range(partition.start, partition.end, CHUNK):
            yield from self.tables.events(start, min(CHUNK, partition.end - start)).combine_chunks().to_batches()

    def split(self, start: int, end: int) -> list[Rows]:
        edges = [start + (end - start) * n // self.partitions for n in range(self.partitions + 1)]
        return [Rows(a, b) for a, b in itertools.pairwise(edges) if a < b]


_DEFAULTS = {"rows": "0", "rows_per_batch": "10000", "partitions": "2"}


class Reader(DataSourceReader):  # type: ignore[misc]
    def __init__(self, settings: Settings):
        self.settings = settings

    def partitions(self) -> Sequence[InputPartition]:
        return self.settings.split(0, self.settings.rows)

    def read(self, partition: Rows) -> Iterator[pa.RecordBatch]:
        return self.settings.read(partition)


class StreamReader(DataSourceStreamReader):  # type: ignore[misc]
    def __init__(self, settings: Settings):
        self.settings = settings
        self.position = 0

    def initialOffset(self) -> dict[str, int]:
        return {"row": 0}

    def getDefaultReadLimit(self) -> Any:
        from pyspark.sql.streaming.datasource import ReadMaxRows  # only Spark 4.2 and newer have it, and ask

        return ReadMaxRows(self.settings.per_batch)

    def latestOffset(self, start: dict[str, int] | None = None, limit: Any = None) -> dict[str, int]:
        rows = self.settings.rows
        if type(limit).__name__ == "ReadAllAvailable" and rows:
            return {"row": rows}
        row = self.position if start is None else start["row"]
        end = row + getattr(limit, "max_rows", self.settings.per_batch)
        return {"row": min(end, rows) if rows else end}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """Called for each batch, and with the last offset of the checkpoint where a query starts again."""
        self.position = end["row"]
        return self.settings.split(start["row"], end["row"])

    def read(self, partition: Rows) -> Iterator[pa.RecordBatch]:
        return self.settings.read(partition)


def _number(key: str, text: Any) -> int:
    try:
        return workloads.count(str(text))
    except ValueError:
        raise WorkloadError(f"option {key}={text!r} is not a whole number") from None


def _named(given: dict[str, Any]) -> dict[str, Any]:
    """Spark's options have no upper case; neither do the parameters of workloads."""
    return {key.lower(): value for key, value in given.items()}
