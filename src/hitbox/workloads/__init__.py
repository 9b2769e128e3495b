"""Workloads: boxes and points to match, as the papers drew them, and rules from a file.

    w = get("w1", n=100_000, width=0.1, seed=7)
    w.space, w.boxes(0, w.n), w.points(0, 1000), w.parameters

    tables.schema(w), tables.subscriptions(w, 0, w.n), tables.events(w, 0, 1000)     as Arrow tables

Rows depend on (seed, row number) alone: see draws.py. Values may be given as text ("200k", "0.5", "true"), as a
command line does.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from hitbox.errors import WorkloadError, nearest
from hitbox.workloads import tables
from hitbox.workloads.advertising import Advertising
from hitbox.workloads.base import PRECISION, Workload
from hitbox.workloads.classbench import ClassBench
from hitbox.workloads.ranges import Ranges
from hitbox.workloads.symmetric import Symmetric


@dataclass(frozen=True)
class Preset:
    about: str
    kind: type[Workload]
    values: dict[str, Any]


_REIN = {"m": 20, "k": 10, "width": 0.5}
_DEXIN = {"m": 10, "k": 0, "width": 0.2, "width_max": 0.8, "equalities": 0.1, "cardinality": 10_000}
_PRI_REIN = {"n": 500_000, "m": 50, "k": 5, "width": 0.25, "levels": 10}

PRESETS: dict[str, Preset] = {
    "w1": Preset("REIN: 10 of 20 attributes, ranges of one width", Ranges, _REIN),
    "w2": Preset("DEXIN: all of 10 attributes, ranges 0.2-0.8, 10% equalities", Ranges, _DEXIN),
    "w3": Preset("Pri-REIN: 5 of 50 attributes, ten priorities", Ranges, _PRI_REIN),
    "w4": Preset("advertising: 3-8 of 200 attributes, 70% equalities on Zipf categories", Advertising, {}),
    "rein": Preset("the same as w1", Ranges, _REIN),
    "dexin": Preset("the same as w2", Ranges, _DEXIN),
    "pri-rein": Preset("the same as w3", Ranges, _PRI_REIN),
    "pri-rein-s": Preset(
        "Pri-REIN with both ends drawn: selectivities differ", Ranges, _PRI_REIN | {"free_ends": True}
    ),
    "index-count": Preset(
        "Index-Count: <=, >= and = on 4 of 10 attributes, constraints shared by many",
        Ranges,
        {"n": 100_000, "m": 10, "k": 4, "equalities": 0.3, "one_sided": 0.7, "cardinality": 1_000},
    ),
    "advertising": Preset("the same as w4", Advertising, {}),
    "symmetric": Preset("symmetric: both sides state criteria and information, 8 : 8", Symmetric, {}),
    "classbench": Preset("packet-classification rules from a file", ClassBench, {}),
}


def names() -> list[str]:
    return list(PRESETS)


def options(name: str) -> dict[str, Any]:
    """The parameters that workload `name` takes, with their values by default."""
    preset = _preset(name)
    defaults = {field.name: field.default for field in fields(preset.kind)}
    return defaults | preset.values


def get(name: str, **parameters: Any) -> Workload:
    """The workload called `name`, with parameters that differ from its own given by keyword.

    >>> get("w1", n="1k", width=0.1).boxes(0, 3).low.shape
    (30,)
    """
    preset, known = _preset(name), options(name)
    values = dict(preset.values)
    for key, value in parameters.items():
        if key not in known:
            raise WorkloadError(
                f"workload {name!r} has no parameter {key!r}{nearest(key, known)} (has: {', '.join(known)})"
            )
        values[key] = _convert(key, value, type(known[key]))
    return preset.kind(**values)


def count(text: str) -> int:
    """A whole number, `k` and `M` for thousands and millions.

    >>> count("200k"), count("1.5M"), count("12")
    (200000, 1500000, 12)
    """
    scale = {"k": 1_000, "m": 1_000_000}.get(text[-1:].lower(), 1)
    number = float(text[:-1]) * scale if scale > 1 else float(text)
    if number != int(number):
        raise ValueError(f"{text!r} is not a whole number")
    return int(number)


def _preset(name: str) -> Preset:
    if name not in PRESETS:
        raise WorkloadError(f"unknown workload {name!r}{nearest(name, PRESETS)} (have: {', '.join(PRESETS)})")
    return PRESETS[name]


def _convert(key: str, value: Any, kind: type) -> Any:
    try:
        if kind is bool and isinstance(value, str):
            return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}[value.lower()]
        if kind is int and isinstance(value, str):
            return count(value)
        if kind is int and (isinstance(value, bool) or value != int(value)):
            raise ValueError("not a whole number")
        return kind(value)
    except (ValueError, TypeError, KeyError, OverflowError):
        raise WorkloadError(f"workload parameter {key}={value!r} is not of type {kind.__name__}") from None


__all__ = ["PRECISION", "PRESETS", "Preset", "Workload", "count", "get", "names", "options", "tables"]
