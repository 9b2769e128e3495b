"""Values as callers pass them -> one plain Python value.

Engine, residual checks, `explain` and `where` all use this plain value, so they cannot disagree:

    int         int            whole floats and Decimals too; from -2^63 + 1 to 2^63 - 1
    float       float          an int must be exact; a Decimal becomes the nearest 64-bit float
    bool        bool
    timestamp   datetime, UTC  datetimes (no zone means UTC), dates (midnight), numpy.datetime64, pandas.Timestamp, ISO
                               texts; years 1 to 9999, and nothing finer than a microsecond: an error, never rounded
    string      str            no NUL and no lone surrogate: files and columns cannot store them; a UUID is its text

None, NaN, NaT and pandas.NA are missing and come out as None. NumPy scalars and subclasses count as what they extend,
an Enum as its value. An interval is a tuple (low, high) or {"low": .., "high": ..}.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from types import NoneType
from typing import Any
from uuid import UUID

import numpy as np

from hitbox.encoding.inputs import MAX_DEPTH, as_mapping, unwrapped
from hitbox.errors import ValueProblem

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SMALLEST, GREATEST = -(2**63) + 1, 2**63 - 1
TAKES = {
    "int": "an int attribute takes whole numbers from -2^63 + 1 to 2^63 - 1",
    "float": "a float attribute takes numbers that a 64-bit float holds",
    "bool": "a bool attribute takes true and false",
    "timestamp": "a timestamp attribute takes datetimes or ISO 8601 texts (UTC where no zone is given)",
    "string": "a string attribute takes texts",
}
TOO_FINE = "is finer than a microsecond, which is the resolution of a timestamp: round it, in pandas by .dt.floor('us')"
NO_YEAR = "is outside the years 1 to 9999, which a timestamp can hold"
INTERVAL = 'an interval is a tuple (low, high) or {"low": .., "high": ..}'
_NOT_JSON = (bytes, bytearray, memoryview, time, timedelta, np.timedelta64)
_POINTS = frozenset([int, float, str, bool, datetime, NoneType])
_FINE_UNITS = {"ns": 10**3, "ps": 10**6, "fs": 10**9, "as": 10**12}
_FINE_FRACTION = re.compile(r"[.,]\d{6}\d*[1-9]")


def is_missing(value: object) -> bool:
    """Whether a value is None, NaN or NaT, of Python, NumPy or pandas, or masked in NumPy."""
    if value is None:
        return True
    if isinstance(value, (float, np.floating)):
        return bool(value != value)
    if isinstance(value, Decimal):
        return value.is_nan()
    if isinstance(value, np.datetime64):
        return bool(np.isnat(value))
    kind = type(value)  # by name, because pandas is not a dependency, and numpy.ma takes time to import
    return kind.__name__ in ("NAType", "NaTType", "MaskedConstant") and kind.__module__.startswith(
        ("pandas.", "numpy.")
    )


def ends_of(value: object) -> tuple[Any, Any] | None:
    """The two ends of an interval; None for a single value."""
    if type(value) in _POINTS:
        return None
    if isinstance(value, tuple):
        if len(value) != 2:
            raise ValueProblem(f"{INTERVAL}, not a tuple of {len(value)}")
        return value[0], value[1]
    if isinstance(value, Mapping):
        if set(value) != {"low", "high"}:
            raise ValueProblem(f"{INTERVAL}, not {brief(value)}")
        return value["low"], value["high"]
    if isinstance(value, (list, set, frozenset, np.ndarray)) and not is_missing(value):
        raise ValueProblem(
            f"{brief(value)} is a {type(value).__name__}, and lists of values are not supported; {INTERVAL}"
        )
    return None


def normal(type_: str, value: object) -> Any:
    """The plain value of an attribute of this type; None where it is missing."""
    return NORMAL[type_](value)


def whole_number(value: object) -> int | None:
    if type(value) is int and SMALLEST <= value <= GREATEST:
        return value
    if is_missing(value):
        return None
    plain = plain_number(value)
    if isinstance(plain, Decimal) and plain.is_finite() and plain.adjusted() > 40:
        raise _out_of_range(value, "int")  # int() would spell out every digit
    if isinstance(plain, (float, Decimal)) and math.isfinite(plain) and plain == int(plain):
        plain = int(plain)
    if not isinstance(plain, int) or isinstance(plain, bool):
        raise wrong(value, TAKES["int"])
    if not SMALLEST <= plain <= GREATEST:
        raise _out_of_range(value, "int")
    return int(plain)


def number(value: object) -> float | None:
    if type(value) is float:
        return value if value == value else None
    if is_missing(value):
        return None
    plain = plain_number(value)
    if isinstance(plain, bool) or not isinstance(plain, (int, float, Decimal)):
        raise wrong(value, TAKES["float"])
    try:
        found = float(plain)
    except OverflowError:
        raise _out_of_range(value, "float") from None
    if isinstance(plain, int) and found != plain:
        raise ValueProblem(f"{brief(value)} has no exact 64-bit float; declare the attribute as int")
    if math.isinf(found) and isinstance(plain, Decimal) and plain.is_finite():
        raise _out_of_range(value, "float")
    return found


def plain_number(value: object) -> object:
    """A number without what NumPy or an Enum adds to it."""
    if isinstance(value, Enum):
        value = unwrapped(value)
    if isinstance(value, np.longdouble):  # its item() is itself
        return float(value)
    if isinstance(value, np.generic) and not isinstance(value, (np.datetime64, np.timedelta64)):
        return value.item()
    return value


def truth(value: object) -> bool | None:
    if value is True or value is False:
        return value
    if is_missing(value):
        return None
    if isinstance(value, Enum):
        return truth(unwrapped(value))
    if not isinstance(value, np.bool_):
        raise wrong(value, TAKES["bool"])
    return bool(value)


def moment(value: object) -> datetime | None:
    if type(value) is datetime and value.tzinfo is UTC:
        return value
    if is_missing(value):
        return None
    if isinstance(value, Enum):
        return moment(unwrapped(value))
    if isinstance(value, str):
        return _utc(_from_text(value))
    if hasattr(value, "to_datetime64"):  # pandas.Timestamp: a datetime that also has nanoseconds
        value = value.to_datetime64()
    if isinstance(value, np.datetime64):
        return _from_numpy(value)
    if isinstance(value, date) and not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day)
    if not isinstance(value, datetime):
        raise wrong(value, TAKES["timestamp"])
    return _utc(value)


def text(value: object) -> str | None:
    if type(value) is not str:
        if is_missing(value):
            return None
        if isinstance(value, (Enum, UUID)) and not isinstance(value, str):
            return text(unwrapped(value))
        if not isinstance(value, str):
            raise wrong(value, TAKES["string"])
        value = str.__str__(value)  # the text itself, also of an Enum
    check_text(value)
    return value


NORMAL: dict[str, Callable[[object], Any]] = {
    "int": whole_number,
    "float": number,
    "bool": truth,
    "timestamp": moment,
    "string": text,
}


def check_text(value: str, what: str = "") -> None:
    """Raise an error if a text contains a character that files and columns cannot store."""
    at = forbidden(value)
    if at is not None:
        raise ValueProblem(
            f"{what}{brief(value)} contains {forbidden_name(value[at])}, which hitbox cannot store: remove it"
        )


def forbidden(value: str) -> int | None:
    """The place of the first NUL or lone surrogate in a text."""
    at = value.find("\0")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as problem:
            at = problem.start if at < 0 else min(at, problem.start)
    return None if at < 0 else at


def forbidden_name(character: str) -> str:
    return "the character NUL" if character == "\0" else f"the lone surrogate U+{ord(character):04X}"


def with_named_ends(values: Mapping[str, Any]) -> dict[str, Any]:
    """Plain values with intervals as JSON objects: a tuple would become a list."""
    return {name: {"low": v[0], "high": v[1]} if isinstance(v, tuple) else v for name, v in values.items()}


def for_json(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values of any supported type as JSON values; an interval becomes {"low": .., "high": ..}."""
    mapping = as_mapping(values)
    if mapping is None:
        raise ValueProblem(f"values are a mapping of attribute to value, not {brief(values)}")
    return {name: _for_json(name, value) for name, value in mapping.items()}


def _for_json(name: str, value: Any, depth: int = 0) -> Any:
    if isinstance(value, tuple) and len(value) == 2:
        return {"low": _for_json(name, value[0], depth + 1), "high": _for_json(name, value[1], depth + 1)}
    if is_missing(value):
        return None
    value = unwrapped(value)
    if isinstance(value, np.ndarray) and not value.ndim:
        value = value[()]
    if isinstance(value, np.datetime64) or hasattr(value, "to_datetime64"):
        return moment(value)
    if isinstance(value, np.generic) and not isinstance(value, np.void):
        value = plain_number(value)
    if isinstance(value, (float, Decimal)) and math.isinf(value):
        raise ValueProblem(f"attribute {name!r}: JSON has no infinity")
    if isinstance(value, Decimal):
        return int(value) if value.adjusted() < 40 and value == value.to_integral_value() else float(value)
    if isinstance(value, (str, int, float, date)):
        return value
    if depth > MAX_DEPTH:
        raise ValueProblem(f"objects and lists are nested more than {MAX_DEPTH} deep, or one contains itself")
    if isinstance(value, (list, tuple, set, frozenset, np.ndarray)):
        return [_for_json(name, one, depth + 1) for one in value]
    if isinstance(value, _NOT_JSON):  # they would be sent as texts
        raise ValueProblem(f"attribute {name!r}: {brief(value)} is a {type(value).__name__}, which JSON cannot hold")
    fields = as_mapping(value)
    return value if fields is None else {key: _for_json(f"{name}.{key}", one, depth + 1) for key, one in fields.items()}


def brief(value: object) -> str:
    """A value as text for a message, shortened."""
    try:
        shown = repr(value)
    except Exception:  # an int of thousands of digits, or a class whose repr fails
        shown = f"an int of {value.bit_length()} bits" if isinstance(value, int) else f"this {type(value).__name__}"
    return shown if len(shown) <= 80 else shown[:79] + "…"


def wrong(value: object, takes: str) -> ValueProblem:
    return ValueProblem(f"{brief(value)} is a {type(value).__name__}; {takes}")


def _out_of_range(value: object, type_: str) -> ValueProblem:
    return ValueProblem(f"{brief(value)} is out of range; {TAKES[type_]}")


def _from_text(value: str) -> datetime:
    try:
        found = datetime.fromisoformat(value)
    except ValueError:
        raise ValueProblem(f"{brief(value)} is not an ISO 8601 date and time") from None
    if _FINE_FRACTION.search(value):  # datetime drops the digits
        raise ValueProblem(f"{brief(value)} {TOO_FINE}")
    return found


def _from_numpy(value: np.datetime64) -> datetime:
    unit, count = np.datetime_data(value.dtype)
    if unit in _FINE_UNITS:  # in Python's numbers: NumPy would round, and such units reach a few centuries only
        micros, rest = divmod(int(value.astype(np.int64)) * count, _FINE_UNITS[unit])
        if rest:
            raise ValueProblem(f"{brief(value)} {TOO_FINE}")
        return EPOCH + timedelta(microseconds=micros)
    year = int(value.astype("datetime64[Y]").astype(np.int64)) + 1970
    if not 1 <= year <= 9999:
        raise ValueProblem(f"{brief(value)} {NO_YEAR}")
    found: datetime = value.astype("datetime64[us]").item()
    return found.replace(tzinfo=UTC)


def _utc(value: datetime) -> datetime:
    try:
        return value.replace(tzinfo=UTC) if value.utcoffset() is None else value.astimezone(UTC)
    except OverflowError:
        raise ValueProblem(f"{brief(value)} {NO_YEAR}") from None
