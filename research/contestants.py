"""What a benchmark can compare: every matcher, and what a user would otherwise use.

`numpy` keeps a low and a high column per attribute and ANDs their comparisons; `duckdb` keeps the same columns in a
table and asks with WHERE (one query per event: its range join proved slower). Both are matchers like the others, so
that they are checked against the oracle and timed by the same code. `floor` (floor.py) is a yardstick, not a matcher.

A name may carry options: `rein:buckets=500`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hitbox.encoding.arrays import HIGHEST, I64, MISSING, Boxes, Hits, Points, Space
from hitbox.errors import MatcherError, nearest
from hitbox.matchers import Matcher, make, matchers
from research import floor
from research.errors import BenchError


class ColumnMasks(Matcher):
    """NumPy: one comparison per column end, all boxes at once. Unconstrained is [MISSING, HIGHEST]."""

    intervals = True

    def __init__(self, space: Space):
        self.space = space
        self.low = np.zeros((space.attributes, 0), np.int64)
        self.high = np.zeros((space.attributes, 0), np.int64)
        self.priority = np.zeros(0, np.uint8)
        self.living: NDArray[np.bool_] = np.zeros(0, np.bool_)

    def insert(self, numbers: I64, boxes: Boxes) -> None:
        needed = int(numbers.max(initial=-1)) + 1
        if needed > len(self.living):
            grow = max(needed, len(self.living) * 5 // 4) - len(self.living)
            self.low = np.pad(self.low, ((0, 0), (0, grow)))
            self.high = np.pad(self.high, ((0, 0), (0, grow)))
            self.priority = np.pad(self.priority, (0, grow))
            self.living = np.pad(self.living, (0, grow))
        self.low[:, numbers], self.high[:, numbers] = MISSING, HIGHEST
        number = np.repeat(numbers, np.diff(boxes.offsets))
        self.low[boxes.attribute, number], self.high[boxes.attribute, number] = boxes.low, boxes.high
        self.priority[numbers] = boxes.priority
        self.living[numbers] = True

    def delete(self, numbers: I64) -> None:
        self.living[numbers] = False

    def match(self, points: Points) -> Hits:
        rows = []
        for low, high in zip(points.low, points.high, strict=True):
            hit = self.living.copy()
            for a in range(self.space.attributes):
                hit &= self.low[a] <= high[a]
                hit &= self.high[a] >= low[a]
            rows.append(np.flatnonzero(hit))
        return Hits.of(rows)

    def boxes(self, numbers: I64) -> Boxes:
        return Boxes.of_dense(self.low[:, numbers].T, self.high[:, numbers].T, self.priority[numbers])

    def numbers(self) -> I64:
        return np.flatnonzero(self.living)

    def __len__(self) -> int:
        return int(self.living.sum())

    def nbytes(self) -> int:
        return self.low.nbytes + self.high.nbytes + self.living.nbytes + self.priority.nbytes


class DuckTable(Matcher):
    """DuckDB: a table of bounds in memory, one thread, a WHERE over all of them."""

    intervals = True

    def __init__(self, space: Space):
        import duckdb

        self.space = space
        self.database: Any = duckdb.connect(":memory:")
        self.database.execute("SET threads = 1; SET enable_progress_bar = false")
        self.columns = [name for a in range(space.attributes) for name in (f"l{a}", f"h{a}")]
        declared = ", ".join(f"{name} BIGINT" for name in self.columns)
        self.database.execute(f"CREATE TABLE boxes (number BIGINT, priority UTINYINT, {declared})")
        tests = " AND ".join(f"l{a} <= ? AND h{a} >= ?" for a in range(space.attributes))
        self.query = f"SELECT number FROM boxes WHERE {tests}"

    def insert(self, numbers: I64, boxes: Boxes) -> None:
        low, high = boxes.dense(self.space.attributes)
        ends = {f"l{a}": low[:, a].copy() for a in range(self.space.attributes)}
        ends |= {f"h{a}": high[:, a].copy() for a in range(self.space.attributes)}
        arrived = {"number": np.asarray(numbers), "priority": boxes.priority} | ends
        self.database.register("arrived", pa.table(arrived))
        self.database.execute("INSERT INTO boxes BY NAME SELECT * FROM arrived")
        self.database.unregister("arrived")

    def delete(self, numbers: I64) -> None:
        self.database.register("gone", pa.table({"number": np.asarray(numbers)}))
        self.database.execute("DELETE FROM boxes WHERE number IN (SELECT number FROM gone)")
        self.database.unregister("gone")

    def match(self, points: Points) -> Hits:
        rows = []
        for low, high in zip(points.low.tolist(), points.high.tolist(), strict=True):
            values = [value for pair in zip(high, low, strict=True) for value in pair]
            rows.append(self.database.execute(self.query, values).fetchnumpy()["number"])
        return Hits.of(rows)

    def boxes(self, numbers: I64) -> Boxes:
        rows = self.database.execute("SELECT * FROM boxes ORDER BY number").fetchnumpy()
        place = np.searchsorted(rows["number"], numbers)
        low = np.stack([rows[name][place] for name in self.columns[0::2]], axis=1)
        high = np.stack([rows[name][place] for name in self.columns[1::2]], axis=1)
        return Boxes.of_dense(low, high, rows["priority"][place])

    def numbers(self) -> I64:
        found: I64 = self.database.execute("SELECT number FROM boxes ORDER BY number").fetchnumpy()["number"]
        return found

    def __len__(self) -> int:
        return int(self.database.execute("SELECT count(*) FROM boxes").fetchall()[0][0])

    def nbytes(self) -> int:
        sizes = self.database.execute("SELECT sum(memory_usage_bytes) FROM duckdb_memory()").fetchall()
        return int(sizes[0][0])


OTHERS: dict[str, type[ColumnMasks] | type[DuckTable]] = {"numpy": ColumnMasks, "duckdb": DuckTable}


def contestants() -> list[str]:
    return [*matchers(), *OTHERS, floor.NAME]


def enter(text: str, space: Space) -> Matcher:
    """The contestant that `name` or `name:option=value,option=value` stands for."""
    name, _, tail = text.partition(":")
    options = dict(_option(text, part) for part in tail.split(",") if part)
    if name not in OTHERS:
        known = ["auto", *contestants()]
        if name not in known:
            raise BenchError(f"unknown matcher {name!r}{nearest(name, known)} (have: {', '.join(contestants())})")
        return make(name, space, **options)
    if options:
        raise MatcherError(f"contestant {name!r} takes no options, but {text!r} gives some")
    try:
        return OTHERS[name](space)
    except ModuleNotFoundError as problem:
        raise BenchError(f"contestant {name!r} needs the package {problem.name!r}: run `make setup`") from None


def _option(text: str, part: str) -> tuple[str, object]:
    key, equals, value = part.partition("=")
    if not equals:
        raise MatcherError(f"in {text!r}: {part!r} is not option=value")
    if value.lower() in ("true", "false"):
        return key, value.lower() == "true"
    for kind in (int, float):
        try:
            return key, kind(value)
        except ValueError:
            continue
    return key, value
