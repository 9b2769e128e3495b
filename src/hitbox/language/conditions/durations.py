"""INTERVAL '5 minutes' <-> a length of time, and the time of day and day of the week in a zone."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

MICROSECOND = timedelta(microseconds=1)
UNITS = {
    "week": 604_800_000_000,
    "day": 86_400_000_000,
    "hour": 3_600_000_000,
    "minute": 60_000_000,
    "second": 1_000_000,
    "millisecond": 1000,
    "microsecond": 1,
}
_PART = re.compile(r"\s*([+-]?)\s*([0-9]{1,20}(?:\.[0-9]{1,20})?)\s+([A-Za-z]+)\s*")
_OFFSET = re.compile(r"([+-])(\d\d):(\d\d)", re.ASCII)


def duration(text: str) -> timedelta:
    """A length of time; a ValueError says why not.

    >>> duration("1 hour 30 minutes")
    datetime.timedelta(seconds=5400)
    """
    micros, at = Decimal(0), 0
    while at < len(text) or not at:
        part = _PART.match(text, at)
        if part is None:
            raise ValueError("write numbers and units, as in '5 minutes' or '1 hour 30 minutes'")
        sign, number, unit = part.groups()
        name = unit.lower().removesuffix("s")
        if name in ("month", "year"):
            raise ValueError(f"a {name} has no fixed length: write days")
        if name not in UNITS:
            raise ValueError(f"{unit!r:.40} is no unit (have: {', '.join(f'{one}s' for one in UNITS)})")
        micros += Decimal(sign + number) * UNITS[name]
        at = part.end()
    if micros != micros.to_integral_value():
        raise ValueError("it is finer than a microsecond")
    try:
        return timedelta(microseconds=int(micros))
    except OverflowError:
        raise ValueError("it is longer than a timedelta can be (2.7 million years)") from None


def written(length: timedelta) -> str:
    """The text of a length of time, in the largest unit that says it exactly.

    >>> written(timedelta(seconds=5400)), written(timedelta(0))
    ('90 minutes', '0 seconds')
    """
    micros = length // MICROSECOND
    unit = next((name for name, size in UNITS.items() if micros and micros % size == 0), "second")
    count = micros // UNITS[unit]
    return f"{count} {unit}{'' if count == 1 else 's'}"


@lru_cache(maxsize=1000)
def zone(name: str) -> tzinfo:
    """A zone by its name, such as Europe/Paris, or by its offset, such as +02:00; a ValueError if it is unknown."""
    if _OFFSET.fullmatch(name):
        ahead = offset(name)
        if ahead is None:
            raise ValueError(f"{name!r} is out of range")
        return ahead
    if name in ("UTC", "Z"):
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(
            f"{name!r:.60} is no time zone that this machine knows: write a name such as 'Europe/Paris', or '+02:00' "
            "(where no zone is known, install tzdata)"
        ) from None


def offset(text: str) -> timezone | None:
    """The zone of +hh:mm or -hh:mm; None if that is out of range."""
    hours, minutes = int(text[1:3]), int(text[4:6])
    ahead = timedelta(hours=hours, minutes=minutes)
    return None if hours > 23 or minutes > 59 else timezone(-ahead if text[0] == "-" else ahead)


def hour(at: datetime, where: str = "UTC") -> int | None:
    """0 to 23; None where the local time is outside the years 1 to 9999."""
    local = _local(at, where)
    return None if local is None else local.hour


def day_of_week(at: datetime, where: str = "UTC") -> int | None:
    """1 is Monday, 7 is Sunday, as in ISO 8601."""
    local = _local(at, where)
    return None if local is None else local.isoweekday()


def _local(at: datetime, where: str) -> datetime | None:
    try:
        return at.astimezone(zone(where))
    except OverflowError:
        return None
