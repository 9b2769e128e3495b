"""With Spark: a workload's boxes and events made by the cluster, and the results summed up there.

The rows are those of the generator in this process, whatever the partitioning, so figures do not depend on who made
them. Timing itself stays in one process: a figure measured on a busy executor would mean nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from hitbox import workloads
from hitbox.encoding.arrays import HIGHEST, LOWEST, MISSING, Boxes, Points
from hitbox.encoding.keys import Keys
from hitbox.language import compile, parse
from hitbox.spark import generate
from hitbox.spark.session import session

KEYS = ["paper", "experiment", "matcher", "metric"]


def boxes(workload: str, parameters: dict[str, Any]) -> Boxes:
    """The subscriptions of a workload as `hitbox.spark.generate` makes them."""
    rest = {key: value for key, value in parameters.items() if key != "n"}
    made = generate(workload, int(parameters["n"]), 1, **rest)
    table = made.subscriptions.toArrow().sort_by("id")
    attributes = workloads.get(workload, **parameters).space.attributes
    low = np.full((table.num_rows, attributes), MISSING, np.int64)
    high = np.full((table.num_rows, attributes), HIGHEST, np.int64)
    for a in range(attributes):
        ends = [table.column(f"a{a}_{end}") for end in ("low", "high")]
        stated = np.asarray(ends[0].is_valid()) | np.asarray(ends[1].is_valid())
        low[stated, a] = np.asarray(ends[0].fill_null(LOWEST), np.int64)[stated]
        high[stated, a] = np.asarray(ends[1].fill_null(HIGHEST), np.int64)[stated]
    return Boxes.of_dense(low, high, np.asarray(table.column("priority"), np.uint8))


def points(workload: str, parameters: dict[str, Any], count: int) -> Points:
    """The first `count` events of a workload as `hitbox.spark.generate` makes them."""
    rest = {key: value for key, value in parameters.items() if key != "n"}
    made = generate(workload, 1, count, **rest)
    table = made.events.toArrow().sort_by("event_id")
    names, keys = list(made.schema), Keys(made.schema)
    if names[0] in table.column_names and "where" not in table.column_names:
        return Points.of(np.stack([np.asarray(table.column(name).fill_null(MISSING)) for name in names], axis=1))
    low = np.full((count, len(names)), MISSING, np.int64)
    high = np.full((count, len(names)), HIGHEST, np.int64)
    for a, name in enumerate(names):
        for bounds, end in ((low, "low"), (high, "high")):
            one = next((c for c in (f"{name}_{end}", name) if c in table.column_names), None)
            if one:
                bounds[:, a] = np.asarray(table.column(one).fill_null(MISSING))
    for event, text in enumerate(table.column("where").to_pylist() if "where" in table.column_names else []):
        (box,) = compile(parse(text, made.schema), keys).boxes
        for a, ends in box.items():
            low[event, a], high[event, a] = ends
    return Points(low, high)


def summary(table: pa.Table) -> pa.Table:
    """A row for each curve: how many places, and the smallest, mean and largest value."""
    session().createDataFrame(table).createOrReplaceTempView("hitbox_values")
    found = session().sql(
        f"SELECT {', '.join(KEYS)}, count(value) AS places, min(value) AS smallest, avg(value) AS mean, "
        f"max(value) AS largest FROM hitbox_values GROUP BY {', '.join(KEYS)} ORDER BY {', '.join(KEYS)}"
    )
    return found.toArrow()
