"""A workload's rows as Arrow tables, in the wide layout that `Index.load`, `match_batch` and Spark read.

    subscriptions   id, priority, a0_low, a0_high, a1_low, ...      closed bounds, null = unbounded
    events          event_id, a0, a1, ...                           null = missing
    or              event_id, a0_low, a0_high, ...                  where events are intervals

Ids are row numbers, so that any partition of the rows makes its own part of the table.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from hitbox.encoding.arrays import HIGHEST, I64, LOWEST, MISSING
from hitbox.encoding.schema import Attribute, Schema
from hitbox.errors import WorkloadError
from hitbox.workloads.base import Workload


def schema(workload: Workload) -> Schema:
    """Integers with the workload's domain; information attributes have that role."""
    space = workload.space
    return Schema(
        {
            name: Attribute(
                "int",
                role="information" if number in space.information else "criteria",
                domain=(int(space.low[number]), int(space.high[number])),
            )
            for number, name in enumerate(workload.attributes)
        }
    )


def subscriptions(workload: Workload, start: int, count: int) -> pa.Table:
    _require_one_side(workload)
    boxes = workload.boxes(start, count)
    low, high = boxes.dense(workload.space.attributes)
    columns = {"id": _ids(start, count), "priority": pa.array(boxes.priority)}
    for number, name in enumerate(workload.attributes):
        columns[f"{name}_low"] = _nulls(low[:, number], low[:, number] <= LOWEST)
        columns[f"{name}_high"] = _nulls(high[:, number], high[:, number] == HIGHEST)
    return pa.table(columns)


def events(workload: Workload, start: int, count: int) -> pa.Table:
    _require_one_side(workload)
    points = workload.points(start, count)
    columns = {"event_id": _ids(start, count)}
    for number, name in enumerate(workload.attributes):
        missing = points.low[:, number] == MISSING
        if points.intervals:
            columns[f"{name}_low"] = _nulls(points.low[:, number], missing)
            columns[f"{name}_high"] = _nulls(points.high[:, number], missing)
        else:
            columns[name] = _nulls(points.low[:, number], missing)
    return pa.table(columns)


def _ids(start: int, count: int) -> pa.Array:
    return pa.array(np.arange(start, start + count, dtype=np.int64))


def _nulls(values: I64, where: np.ndarray) -> pa.Array:
    return pa.array(np.ascontiguousarray(values), mask=where)


def _require_one_side(workload: Workload) -> None:
    if workload.space.information:
        raise WorkloadError(
            "a symmetric workload states criteria on both sides, which the wide layout cannot say; "
            "use its boxes() and points(), or information=0"
        )
