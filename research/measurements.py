"""The raw measurements: one Parquet file per paper and scale, a row per event and contestant, and how it was made.

    OUT/points/paper/rein.parquet

Rows that are no events have another `kind`: a build, a subscription inserted or deleted, matches counted over many
events, and the times at which the matches of one event and priority were determined, or had been sent. Times are
nanoseconds, scaled by the yardstick beside them (measure.py) to the quickest that the process had seen, which is in
`pace`.

The file's metadata says which points it holds, and which units of each, a unit being one contestant and one seed: the
hash of the code that was measured, its declaration, how long it took, and why it was left out where it was.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from research.errors import BenchError

FORMAT = 1
ORACLE = "brute"
"""The contestant whose rows say what every event must meet."""
KINDS = ("event", "build", "insert one", "delete one", "insert many", "delete many", "count", "level", "sent")
COUNTED_EVENTS = 50
"""Events per row of the kind `count`."""
SCHEMA = pa.schema(
    [
        ("paper", pa.string()),
        ("experiment", pa.string()),
        ("x", pa.string()),
        ("series", pa.string()),
        ("n", pa.int64()),
        ("contestant", pa.string()),
        ("seed", pa.int32()),
        ("kind", pa.string()),
        ("sample", pa.int32()),
        ("ns", pa.float64()),
        ("matches", pa.int64()),
        ("digest", pa.int64()),
        ("preparing", pa.float64()),
        ("gap", pa.float64()),
        ("interval", pa.float64()),
        ("ending", pa.float64()),
        ("urgency", pa.float64()),
        ("intermediate", pa.float64()),
        ("plan_ns", pa.float64()),
        ("plan_cost", pa.float64()),
        ("level", pa.int32()),
        ("square", pa.float64()),
        ("bytes", pa.int64()),
        ("pace", pa.float64()),
    ]
)
"""`urgency`: rank correlation of priority and determining time; `square`: sum of squares of the determining times of a
level, whose sum is `ns` and whose number is `matches`; `digest`: of the matches of an event, whatever their order."""


UNITS = pa.schema(
    [(name, pa.string()) for name in ("paper", "experiment", "x", "series", "contestant")] + [("seed", pa.int32())]
)
"""What names the rows of a unit."""


@dataclass(frozen=True)
class Unit:
    """One contestant on one seed at a point."""

    contestant: str
    seed: int
    code: str
    """Hash of the code that was measured, and of the declaration."""
    events: int
    seconds: float
    skipped: str = ""
    """Why it was left out."""
    commit: str = ""
    when: str = ""
    cpu: str = ""
    needs_gb: float = 0.0
    """Free memory that it would have needed, where it was left out for lack of it."""
    making: float = 0.0
    """Seconds of making its workload, where it was the first one measured on it."""


@dataclass
class Point:
    """What is stored of a point."""

    units: list[Unit] = field(default_factory=list)
    rows: pa.Table = field(default_factory=lambda: SCHEMA.empty_table())

    def unit(self, contestant: str, seed: int) -> Unit | None:
        return next((u for u in self.units if (u.contestant, u.seed) == (contestant, seed)), None)

    def put(self, unit: Unit, rows: pa.Table) -> None:
        """Replaces an older measurement of the same unit."""
        self.units = [u for u in self.units if (u.contestant, u.seed) != (unit.contestant, unit.seed)] + [unit]
        names = [unit.contestant, *set(rows["contestant"].unique().to_pylist())]
        own = pc.and_(pc.is_in(self.rows["contestant"], pa.array(names)), pc.equal(self.rows["seed"], unit.seed))
        self.rows = pa.concat_tables([self.rows.filter(pc.invert(own)), rows])


Place = tuple[str, str, str]
"""What names a point of a paper: experiment, x, series."""


def read(path: Path) -> dict[Place, Point]:
    """The points of a file, none where there is no such file."""
    if not path.exists():
        return {}
    try:
        table = pq.read_table(path)
        made = json.loads((table.schema.metadata or {})[b"hitbox"])
    except (OSError, ValueError, KeyError, pa.ArrowException) as problem:
        raise BenchError(f"cannot read {path}: {problem}; delete it to measure its points again") from None
    if made.get("format") != FORMAT:
        return {}
    rows, first, points = table.replace_schema_metadata(None).cast(SCHEMA), 0, {}
    for entry in made["points"]:
        units = [Unit(**unit) for unit in entry["units"]]
        points[tuple(entry["place"])] = Point(units, rows.slice(first, entry["rows"]))
        first += entry["rows"]
    return points


def write(path: Path, points: Mapping[Place, Point]) -> None:
    """Whole or not at all: a run may be stopped at any moment."""
    measured = [(place, point) for place, point in sorted(points.items()) if point.units]
    entries = [
        {"place": place, "rows": point.rows.num_rows, "units": [asdict(unit) for unit in point.units]}
        for place, point in measured
    ]
    made = json.dumps({"format": FORMAT, "points": entries})
    part = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = [point.rows for _, point in measured] or [SCHEMA.empty_table()]
        table = pa.concat_tables(rows).replace_schema_metadata({"hitbox": made})
        pq.write_table(table, part, compression="zstd", write_statistics=False)
        os.replace(part, path)
    except OSError as problem:
        raise BenchError(f"cannot write {path}: {problem.strerror or problem}; the file of before is kept") from None


def table_of(rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=SCHEMA)
