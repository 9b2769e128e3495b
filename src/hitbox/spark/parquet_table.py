"""Parquet tables that tasks read and write themselves: Spark schedules the tasks and sees no row.

table/part-00000.parquet      a file appears when it is whole; a task that runs twice writes the same file again
      part-00001.parquet
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyarrow import fs
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_type

from hitbox.errors import TableError
from hitbox.spark import snapshot_files
from hitbox.spark.task_errors import raised_again
from hitbox.storage.addresses import connect, is_remote, join, resolve, without_passwords

TASK_ROWS = 250_000
BATCH_ROWS = 50_000


@dataclass(frozen=True)
class ParquetTable:
    """A Parquet file or folder that exists."""

    schema: T.StructType
    arrow: pa.Schema
    pieces: tuple[Any, ...]
    """Some row groups of a file each: what one task reads."""
    read: tuple[tuple[str, ...], ...]
    """The columns to read: their names in the files, or the path of a field of a nested column."""

    @classmethod
    def open(cls, address: str) -> ParquetTable:
        path = resolve(address)
        system, base = connect(path) if is_remote(path) else (fs.LocalFileSystem(), path)
        kind = system.get_file_info(base).type
        if kind == fs.FileType.NotFound:
            raise TableError(f"there is no Parquet table at {without_passwords(path)}")
        if kind == fs.FileType.Directory:
            _refuse_other_formats(path)
        try:
            found = ds.dataset(base, format="parquet", filesystem=system, partitioning="hive")
            pieces = tuple(piece for fragment in found.get_fragments() for piece in _pieces(fragment))
        except (*snapshot_files.FAILURES, ValueError) as problem:
            reason = str(problem).partition("\n")[0]
            raise TableError(f"cannot read the Parquet table {without_passwords(path)}: {reason}") from None
        if not found.files:
            raise TableError(f"there is no Parquet table at {without_passwords(path)}: the folder has no files")
        fields = T.StructType([T.StructField(field.name, _spark_type(field.type)) for field in found.schema])
        paths = tuple(leaves(fields))
        flat = [T.StructField(".".join(path), kind) for path, kind in paths]
        return cls(T.StructType(flat), found.schema, pieces, tuple(path for path, _ in paths))

    @property
    def columns(self) -> list[str]:
        return list(self.schema.names)

    def renamed(self, names: Mapping[str, str]) -> ParquetTable:
        """Some of the columns, under new names."""
        fields = [T.StructField(new, self.schema[old].dataType) for old, new in names.items()]
        paths = dict(zip(self.columns, self.read, strict=True))
        return replace(self, schema=T.StructType(fields), read=tuple(paths[old] for old in names))

    def each(self, spark: SparkSession, work: Callable[[Iterator[pa.RecordBatch]], Any], result: str) -> DataFrame:
        """What `work` makes of the rows of each piece; it gets Arrow batches, as in mapInArrow."""

        def piece(numbers: Iterator[pa.RecordBatch]) -> Any:
            for batch in numbers:
                for number in batch.column(0).to_pylist():
                    yield from work(self._batches(self.pieces[number]))

        return spark.range(0, len(self.pieces), numPartitions=max(1, len(self.pieces))).mapInArrow(piece, result)

    def _batches(self, piece: Any) -> Iterator[pa.RecordBatch]:
        columns = {name: ds.field(*path) for name, path in zip(self.columns, self.read, strict=True)}
        batches = piece.to_batches(
            self.arrow, columns=columns, batch_size=BATCH_ROWS, batch_readahead=1, use_threads=False
        )
        while True:
            try:
                batch = next(batches, None)
            except (
                *snapshot_files.FAILURES,
                ValueError,
            ) as problem:  # of another type than in the first file, or damaged
                reason = str(problem).partition("\n")[0]
                raise TableError(f"cannot read the file {piece.path} of the Parquet table: {reason}") from None
            if batch is None:
                return
            yield batch


def leaves(columns: T.StructType, above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], T.DataType]]:
    """The path and the type of each column, with the fields of nested columns in their place."""
    for field in columns.fields:
        if nested(field.dataType):
            yield from leaves(field.dataType, (*above, field.name))
        else:
            yield (*above, field.name), field.dataType


def _spark_type(kind: pa.DataType) -> T.DataType:
    """The type of a column. If Spark has none, that is no harm: tasks read the files without Spark."""
    if pa.types.is_struct(kind):
        return T.StructType([T.StructField(field.name, _spark_type(field.type)) for field in kind])
    if pa.types.is_unsigned_integer(kind):
        return T.LongType()
    if pa.types.is_float16(kind):
        return T.FloatType()
    if pa.types.is_string_view(kind):
        return T.StringType()
    try:
        found = from_arrow_type(kind, prefer_timestamp_ntz=True)
        to_arrow_type(found)
        return found
    except Exception:  # there are several, of Spark and of Python
        return T.BinaryType()  # neither an id, nor a predicate, nor a value of an attribute


def nested(kind: T.DataType) -> bool:
    """Whether a column has fields of its own. An interval ({low, high}) is a value, not nested."""
    return isinstance(kind, T.StructType) and sorted(kind.names) != ["high", "low"]


@dataclass(frozen=True)
class NewTable:
    """A table to write: the rows that `make(start, count)` returns for all numbers from `first` on."""

    path: str
    first: int
    count: int
    make: Callable[[int, int], pa.Table]

    def files(self, files: int | None) -> list[tuple[str, int, int]]:
        """(address, start, end) of each file."""
        files = files or max(1, -(-self.count // TASK_ROWS))
        starts = [self.first + self.count * file // files for file in range(files + 1)]
        names = [join(self.path, f"part-{file:05d}.parquet") for file in range(files)]
        return list(zip(names, starts[:-1], starts[1:], strict=True))


def write(spark: SparkSession, tables: Sequence[NewTable], files: int | None) -> None:
    """Write tables, each in so many files (default: by its size); those of earlier tables there are removed."""
    for table in tables:
        remove_files(table.path)
        snapshot_files.make_folder(table.path)
    pieces = [(*file, table.make) for table in tables for file in table.files(files)]

    def task(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                address, start, end, make = pieces[number]
                with snapshot_files.new_file(address) as out:
                    _write_rows(out, start, end, make)
            yield batch

    with raised_again():
        spark.range(0, len(pieces), numPartitions=len(pieces)).mapInArrow(task, "id long").collect()


def remove_files(folder: str) -> None:
    """Remove the files of an earlier table, and nothing else."""
    for name in snapshot_files.names(folder):
        if name.startswith("part-") and name.endswith(".parquet"):
            snapshot_files.remove(join(folder, name))


def _write_rows(out: Any, start: int, end: int, make: Callable[[int, int], pa.Table]) -> None:
    table = make(start, min(BATCH_ROWS, end - start))
    with pq.ParquetWriter(out, table.schema, use_dictionary=False) as writer:
        while True:
            writer.write_table(table)
            start += table.num_rows
            if start >= end:
                return
            table = make(start, min(BATCH_ROWS, end - start))


def _refuse_other_formats(path: str) -> None:
    """The files of a Delta or Iceberg table hold deleted rows, too, so they must not be read as they are."""
    names = {name.rstrip("/") for name in snapshot_files.names(path)}
    if "_delta_log" in names:
        raise TableError(
            f"{without_passwords(path)} is a Delta table: give a DataFrame, spark.read.format('delta').load(PATH)"
        )
    if {"metadata", "data"} <= names:
        raise TableError(
            f"{without_passwords(path)} looks like an Iceberg table: give a DataFrame, "
            "spark.table('CATALOG.DATABASE.TABLE')"
        )


def _pieces(file: Any) -> Iterator[Any]:
    held: list[int] = []
    rows = 0
    for group in file.row_groups:
        held.append(group.id)
        rows += group.num_rows
        if rows >= TASK_ROWS:
            yield file.subset(row_group_ids=held)
            held, rows = [], 0
    if held:
        yield file.subset(row_group_ids=held)
