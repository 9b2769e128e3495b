"""Values where no schema says their types: what an event holds -> a plain value of a wanted type, or None.

    number      int or float   no bool; a Decimal is the nearest double, or an int
    string      str
    bool        bool
    timestamp   datetime, UTC  datetimes and dates, and texts in ISO 8601: JSON has no other way to write them
    any         whatever of these it is; a list, or an object

A value of another type is None, which is NULL. Intervals are for declared attributes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from datetime import date
from decimal import Decimal
from typing import Any

import numpy as np

from hitbox.encoding import values
from hitbox.encoding.inputs import MAX_DEPTH
from hitbox.errors import ValueProblem

LISTS = (list, set, frozenset, np.ndarray)
SEEN_TOGETHER = 32
"""Elements whose types are looked at in the time that one of them takes otherwise."""


def number(value: object) -> int | float | None:
    kind = type(value)
    if kind is int:
        return _whole(value)  # type: ignore[arg-type]
    if kind is float:
        return value if value == value else None  # type: ignore[return-value]
    if isinstance(value, tuple):
        raise _interval()
    if kind is bool or isinstance(value, np.bool_) or values.is_missing(value):
        return None
    value = values.plain_number(value)
    if isinstance(value, Decimal):
        whole = value.is_finite() and value.adjusted() < 40 and value == value.to_integral_value()
        return _whole(int(value)) if whole else float(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return _whole(int(value))
    return float(value) if isinstance(value, float) else None


def _whole(value: int) -> int | float:
    """An int of 64 bits; of a larger one the nearest double, which may be infinite."""
    if values.SMALLEST <= value <= values.GREATEST:
        return value
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def string(value: object) -> str | None:
    if type(value) is str:
        values.check_text(value)
        return value
    if isinstance(value, tuple):
        raise _interval()
    return values.text(value) if isinstance(value, str) else None


def truth(value: object) -> bool | None:
    if isinstance(value, tuple):
        raise _interval()
    return bool(value) if isinstance(value, (bool, np.bool_)) else None


def timestamp(value: object) -> Any:
    if isinstance(value, tuple):
        raise _interval()
    if not (isinstance(value, (str, date, np.datetime64)) or hasattr(value, "to_datetime64")):
        return None
    try:
        return values.moment(value)
    except ValueProblem:
        return None


def whatever(value: object) -> Any:
    kind = type(value)
    if kind is bool or value is None:
        return value
    if isinstance(value, LISTS):
        return elements(value)
    if isinstance(value, Mapping):
        return value
    for convert in (number, truth, string, timestamp):
        found = convert(value)
        if found is not None:
            return found
    return None


def elements(several: Collection[Any], visited: Callable[[int], None] | None = None) -> list[Any]:
    """The elements of a list, and of the lists in it. A list without lists is returned as it is: conditions inside
    EXISTS ask for the same one again and again. `visited` is told what this costs, in elements."""
    found, cost = (several, len(several) // SEEN_TOGETHER) if type(several) is list else (list(several), len(several))
    for _ in range(MAX_DEPTH):
        if visited is not None and cost:
            visited(cost)
        if not any(issubclass(kind, LISTS) for kind in set(map(type, found))):
            break
        found = [value for one in found for value in (one if isinstance(one, LISTS) else (one,))]
        cost = len(found)
    return found


def comparable(one: Any, two: Any) -> bool:
    """Whether two plain values are of one type, so that they can be compared."""
    return _kind(one) == _kind(two) != ""


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, (int, float)):
        return "number"
    return "string" if isinstance(value, str) else "timestamp" if isinstance(value, date) else ""


def _interval() -> ValueProblem:
    return ValueProblem("an interval is for a declared attribute: make the index with a schema")


CONVERT: dict[str, Callable[[object], Any]] = {
    "number": number,
    "string": string,
    "bool": truth,
    "timestamp": timestamp,
    "any": whatever,
}
