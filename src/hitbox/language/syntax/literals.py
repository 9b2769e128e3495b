"""The text of one literal -> its value, and whether that value fits an attribute's type."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal, InvalidOperation

from hitbox.errors import PredicateError, SyntaxProblem, TypeProblem, printable
from hitbox.language.conditions.durations import offset
from hitbox.language.syntax.expressions import Constant, Expression, Literal, literal

MIN_INT64, MAX_INT64 = -(2**63), 2**63 - 1
MAX_NUMBER_LENGTH = 2000  # characters of one number: every double can be written with fewer
MIN_EXPONENT = -400  # decimal exponent: far below the smallest double, and still quick to handle exactly

_TIMESTAMP = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)(?:[ T](\d\d):(\d\d)(?::(\d\d)(?:\.(\d{1,6}))?)?(?: ?(Z|[+-]\d\d:\d\d))?)?", re.ASCII
)
_NEEDS = {
    "int": "a number, as in 10",
    "string": "a string in single quotes, as in 'text'",
    "bool": "TRUE or FALSE",
    "timestamp": "a timestamp, as in TIMESTAMP '2026-01-31 12:00:00'",
    "duration": "an interval, as in INTERVAL '5 minutes'",
} | dict.fromkeys(("float", "decimal", "number"), "a number, as in 10.5")
_KINDS: dict[type, tuple[str, ...]] = {
    bool: ("bool",),
    int: ("int", "float", "number"),
    Decimal: ("int", "float", "number"),
    str: ("string",),
    datetime: ("timestamp",),
    timedelta: ("duration",),
}


def number(token: str, text: str, position: int) -> int | Decimal:
    """An int, or a Decimal where there is a point or an exponent."""
    if not token.isdigit():
        token = "".join(token.split())
    if len(token) > MAX_NUMBER_LENGTH:
        raise SyntaxProblem(f"the number has more than {MAX_NUMBER_LENGTH} characters", text, position)
    if token.lstrip("+-").isdigit():
        value = int(token)
        if not MIN_INT64 <= value <= MAX_INT64:
            raise TypeProblem(
                f"the integer {short(token)} does not fit 64 bits: "
                "the range is -9223372036854775808 to 9223372036854775807; with a point or an exponent it is a decimal",
                text,
                position,
            )
        return value
    try:
        exact = Decimal(token)
    except InvalidOperation:
        raise _out_of_range(token, text, position) from None
    if not exact:  # 0e999999 is zero
        return Decimal("0.0")
    if exact.adjusted() < MIN_EXPONENT or exact.adjusted() > 308 or math.isinf(float(exact)):
        raise _out_of_range(token, text, position)
    return exact


def string(token: str) -> str:
    return token[1:-1].replace("''", "'")


def timestamp(value: str, text: str, position: int) -> datetime:
    """UTC where no zone is given.

    >>> timestamp("2026-01-31T12:00+02:00", "", 0)
    datetime.datetime(2026, 1, 31, 10, 0, tzinfo=datetime.timezone.utc)
    """
    match = _TIMESTAMP.fullmatch(value)
    if match is None:
        raise SyntaxProblem(
            f"{value!r:.60} is not a timestamp: write 'YYYY-MM-DD HH:MM:SS', with a fraction of up to six digits "
            "and a zone (Z or +hh:mm) where needed",
            text,
            position,
        )
    *fields, fraction, zone = match.groups(default="")
    year, month, day, hour, minute, second = (int(f or 0) for f in fields)
    try:
        local = datetime(year, month, day, hour, minute, second, int(fraction.ljust(6, "0")), tzinfo=_zone(zone))
        return local.astimezone(UTC)
    except (ValueError, OverflowError) as problem:
        raise SyntaxProblem(f"{value!r} is not a timestamp: {problem}", text, position) from None


def right_kind(value: Literal, name: str, type_: str, text: str, position: int) -> None:
    """Raise an error unless a literal may be compared with an attribute of this type."""
    if type_ not in _KINDS[type(value)]:
        shown = short(literal(value))
        raise TypeProblem(f"{name!r} is of type {type_}: write {_NEEDS[type_]}, not {shown}", text, position)


def as_double(of: Expression) -> Expression:
    """A decimal literal beside a float means the nearest double."""
    if isinstance(of, Constant) and of.type == "decimal":
        return Constant(of.literal, "float", of.position, float(of.literal))  # type: ignore[arg-type]
    return of


def _zone(text: str) -> timezone:
    zone = UTC if text in ("", "Z") else offset(text)
    if zone is None:
        raise ValueError(f"zone {text} is out of range")
    return zone


def _out_of_range(token: str, text: str, position: int) -> PredicateError:
    return TypeProblem(
        f"the number {short(token)} does not fit a 64-bit float: its magnitude is at most 1.797e308, "
        "and not below 1e-400",
        text,
        position,
    )


def short(text: str) -> str:
    """A piece of the predicate's text, shortened for a message."""
    return printable(text if len(text) <= 40 else text[:39] + "…")
