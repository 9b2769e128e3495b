"""Random documents as rows of an Arrow table, and back."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa

from support.random_documents import TYPES, nested

ARROW = pa.schema(
    [
        *((name, pa.int64()) for name in "ab"),
        *((name, pa.float64()) for name in "xy"),
        *((name, pa.string()) for name in ("s", "ip")),
        ("ok", pa.bool_()),
        *((name, pa.timestamp("us", "UTC")) for name in ("at", "until")),
        *((name, pa.float64()) for name in ("lat", "lon")),
        ("order", pa.struct({"city": pa.string(), "total": pa.struct({"net": pa.float64(), "odd name": pa.int64()})})),
        ("tags", pa.list_(pa.string())),
        ("scores", pa.large_list(pa.int64())),
        ("flags", pa.list_(pa.bool_())),
        (
            "items",
            pa.list_(
                pa.struct(
                    {
                        "sku": pa.string(),
                        "price": pa.float64(),
                        "size": pa.struct({"w": pa.int64()}),
                        "tags": pa.list_(pa.string()),
                    }
                )
            ),
        ),
        ("deep", pa.struct({"list": pa.list_(pa.float64())})),
    ]
)


def strictly_nested(values: Any) -> Any:
    return nested(random.Random(0), values) if values is None else _nest(values)


def _nest(values: dict[str, Any]) -> dict[str, Any]:
    class Never(random.Random):
        def random(self) -> float:
            return 1.0

    found: dict[str, Any] = nested(Never(), values)
    return found


def flat(row: dict[str, Any], above: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, dict):
            found |= flat(value, f"{above}{name}.")
        elif isinstance(value, list):
            found[above + name] = [flat(one) if isinstance(one, dict) else one for one in value]
        elif value is not None or above + name in TYPES:
            found[above + name] = value
    return found
