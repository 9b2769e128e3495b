"""Values of each type <-> keys: one number line, int64, for every type, in the order of the values.

    int, timestamp   the number itself (microseconds since 1970, UTC)
    float            sortable bits: the bits read as an integer, negative ones mirrored; -0.0 is 0.0
    bool             0, 1
    string           an even label of an ordered dictionary (dictionary.py); unknown strings lie on odd keys between
    int/float with   twice the number of the step; a value between two steps lies on the odd key between them,
    a precision      one outside the domain keeps its place below or above all steps

The smallest int64 is the key of "missing"; the int value -2^63 is therefore the one value that cannot be held.

A codec turns values into keys, one by one or a whole Arrow column, and answers one question for predicates:
`cut(literal)` is the pair (greatest key whose value is below the literal, smallest key whose value is above it), from
which every comparison becomes closed intervals: `< v` is [LOWEST, last], `= v` is [last + 1, first - 1], and so on.
"""

from __future__ import annotations

import math
import struct
from abc import ABC, abstractmethod
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hitbox.boxes import HIGHEST, I64, LOWEST, MISSING
from hitbox.dictionary import Dictionary
from hitbox.errors import SchemaError, ValueProblem
from hitbox.schema import Attribute

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)


class Codec(ABC):
    """Values of one attribute <-> keys."""

    takes: str
    """What a value may be, for error messages."""

    def key(self, value: object) -> int:
        """The key of one event value; None and NaN are MISSING."""
        if value is None or (isinstance(value, (float, np.floating, Decimal)) and value != value):
            return MISSING
        return self.present(value)

    @abstractmethod
    def present(self, value: object) -> int:
        """The key of a value that is there."""

    @abstractmethod
    def value(self, key: int) -> object:
        """The value whose key this is; the inverse of `key` (for keys that no value has, the nearest below)."""

    @abstractmethod
    def cut(self, literal: object) -> tuple[int, int]:
        """(greatest key whose value is < literal, smallest key whose value is > literal)."""

    @abstractmethod
    def column(self, array: pa.Array) -> I64:
        """The keys of an Arrow array or chunked array; null is MISSING."""

    def normal(self, value: object) -> object:
        """A value as the predicate language compares it: plain Python, None for missing."""
        plain = value.item() if isinstance(value, np.generic) else value
        return None if isinstance(plain, float) and plain != plain else plain

    def domain(self) -> tuple[int, int]:
        """The declared domain in keys."""
        return LOWEST, HIGHEST

    def wrong(self, value: object) -> ValueProblem:
        return ValueProblem(f"{value!r:.80} is a {type(value).__name__}; {self.takes}")


class IntCodec(Codec):
    takes = "an int attribute takes whole numbers from -2^63 + 1 to 2^63 - 1"

    def present(self, value: object) -> int:
        if type(value) is int and LOWEST <= value <= HIGHEST:
            return value
        if isinstance(value, np.generic):
            value = value.item()
        if isinstance(value, (float, Decimal)) and math.isfinite(value) and value == int(value):
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.wrong(value)
        if not LOWEST <= value <= HIGHEST:
            raise ValueProblem(f"{str(value)[:60]} is out of range; {self.takes}")
        return value

    def value(self, key: int) -> object:
        return key

    def cut(self, literal: object) -> tuple[int, int]:
        number = literal if type(literal) is int else _number(literal, self)
        floor = math.floor(number)
        last = floor - 1 if floor == number else floor
        return max(last, MISSING), min(max(floor + 1, LOWEST), HIGHEST + 1)

    def column(self, array: pa.Array) -> I64:
        keys, null = _numbers(array, pa.int64(), self)
        _refuse_smallest(keys, null)
        return _masked(keys, null)


class FloatCodec(Codec):
    takes = "a float attribute takes numbers that a 64-bit float holds"

    def present(self, value: object) -> int:
        if type(value) is float:
            return float_key(value)
        if isinstance(value, np.generic):
            value = value.item()
        if isinstance(value, bool) or not isinstance(value, (int, float, Decimal)):
            raise self.wrong(value)
        try:
            number = float(value)
        except OverflowError:
            raise ValueProblem(f"{str(value)[:60]} is out of range; {self.takes}") from None
        if isinstance(value, int) and number != value:
            raise ValueProblem(f"{value} has no exact 64-bit float; declare the attribute as int")
        return MISSING if number != number else float_key(number)

    def value(self, key: int) -> object:
        bits = key if key >= 0 else MISSING - key
        return DOUBLE.unpack(LONG.pack(bits))[0]

    def cut(self, literal: object) -> tuple[int, int]:
        number = literal if isinstance(literal, (float, Decimal)) else _number(literal, self)
        near = float(number)
        if not math.isfinite(near):
            raise ValueProblem(f"{literal} is out of range; {self.takes}")
        key = float_key(near)
        if isinstance(number, int) and near != number:  # the literal lies between two floats
            return (key, key + 1) if near < number else (key - 1, key)
        return key - 1, key + 1

    def column(self, array: pa.Array) -> I64:
        values, null = _numbers(array, pa.float64(), self)
        bits = values.view(np.int64)
        keys = np.where(bits >= 0, bits, MISSING - bits)
        nan = np.isnan(values)
        return _masked(keys, nan if null is None else nan | null)


class GridCodec(Codec):
    """An int or float attribute with a declared domain and precision: numbers as steps of a grid."""

    def __init__(self, attribute: Attribute):
        if attribute.domain is None or attribute.precision is None:
            raise SchemaError("a grid needs a domain and a precision")
        self.plain = IntCodec() if attribute.type == "int" else FloatCodec()
        self.type = pa.int64() if attribute.type == "int" else pa.float64()
        self.step, (self.low, self.high) = attribute.precision, attribute.domain
        self.first, self.last = int(self.low / self.step), int(self.high / self.step)
        self.takes = f"{self.plain.takes}, in [{self.low}, {self.high}] by steps of {self.step}"

    def present(self, value: object) -> int:
        below, above = 2 * (self.first - 1), 2 * (self.last + 1)
        over, under = self.step.numerator, self.step.denominator
        if self.type == pa.int64():
            at, rest = divmod(self.plain.present(value), over)
            return min(max(2 * at + (rest != 0), below), above)
        number = float(self.plain.value(self.plain.present(value)))  # type: ignore[arg-type]
        scaled = number * (under / over)
        if not below <= scaled <= above:
            return below if scaled < below else above
        at = round(scaled)
        grid = at * over / under  # exact integers divided once: the double nearest to the step
        return min(max(2 * at + (number > grid) - (number < grid), below), above)

    def value(self, key: int) -> object:
        exact = self.step * Fraction(key, 2)  # an odd key: a value between two steps, which compares as all there do
        return int(exact) if self.type == pa.int64() else float(exact)

    def cut(self, literal: object) -> tuple[int, int]:
        exact = Fraction(_number(literal, self))
        if not self.low <= exact <= self.high:
            raise ValueProblem(f"{literal} is outside the declared domain [{float(self.low)}, {float(self.high)}]")
        if exact % self.step:
            raise ValueProblem(f"{literal} is finer than the declared precision {float(self.step)}")
        at = 2 * int(exact / self.step)
        return at - 1, at + 1

    def column(self, array: pa.Array) -> I64:
        values, null = _numbers(array, self.type, self)
        if self.type == pa.int64():
            at, rest = np.divmod(values, int(self.step))
            keys = 2 * np.clip(at, self.first - 2, self.last + 1) + (rest != 0)
            return _masked(np.clip(keys, 2 * (self.first - 1), 2 * (self.last + 1)), null)
        nan = np.isnan(values)
        if nan.any():
            values = np.where(nan, 0, values)
        over, under = self.step.numerator, self.step.denominator
        with np.errstate(over="ignore"):
            at = np.rint(values * (under / over))
        np.clip(at, self.first - 1, self.last + 1, out=at)
        grid = at * over / under  # exact integers divided once: the double nearest to the step
        keys = at.astype(np.int64) * 2 + (values > grid) - (values < grid)
        np.clip(keys, 2 * (self.first - 1), 2 * (self.last + 1), out=keys)
        return _masked(keys, nan if null is None else nan | null)

    def domain(self) -> tuple[int, int]:
        return 2 * self.first, 2 * self.last


class BoolCodec(Codec):
    takes = "a bool attribute takes true and false"

    def present(self, value: object) -> int:
        if not isinstance(value, (bool, np.bool_)):
            raise self.wrong(value)
        return int(value)

    def value(self, key: int) -> object:
        return key >= 1

    def cut(self, literal: object) -> tuple[int, int]:
        key = self.present(literal)
        return key - 1, key + 1

    def column(self, array: pa.Array) -> I64:
        array = _cast(array, pa.bool_(), self)
        return _masked(*_plain(array.cast(pa.int8()).cast(pa.int64())))

    def domain(self) -> tuple[int, int]:
        return 0, 1


class TimestampCodec(Codec):
    takes = "a timestamp attribute takes datetimes or ISO 8601 texts (UTC where no zone is given)"

    def present(self, value: object) -> int:
        if isinstance(value, np.datetime64):
            return IntCodec().present(int(value.astype("datetime64[us]").astype(np.int64)))
        if isinstance(value, str):
            try:
                value = datetime.fromisoformat(value)
            except ValueError:
                raise ValueProblem(f"{value!r:.60} is not an ISO 8601 date and time") from None
        if isinstance(value, date) and not isinstance(value, datetime):
            value = datetime(value.year, value.month, value.day)
        if not isinstance(value, datetime):
            raise self.wrong(value)
        aware = value if value.tzinfo else value.replace(tzinfo=UTC)
        return (aware - EPOCH) // MICROSECOND

    def normal(self, value: object) -> object:
        return None if value is None else self.value(self.present(value))

    def value(self, key: int) -> object:
        try:
            return EPOCH + timedelta(microseconds=key)
        except OverflowError:
            return np.datetime64(key, "us")

    def cut(self, literal: object) -> tuple[int, int]:
        key = self.present(literal)
        return key - 1, key + 1

    def column(self, array: pa.Array) -> I64:
        if pa.types.is_integer(array.type):
            raise ValueProblem(f"a column of {array.type} is not a column of timestamps; {self.takes}")
        if not pa.types.is_timestamp(array.type) or array.type.tz is None:
            array = _cast(array, pa.timestamp("us"), self)
        keys, null = _plain(_cast(array, pa.timestamp("us", "UTC"), self).cast(pa.int64()))
        _refuse_smallest(keys, null)
        return _masked(keys, null)


class StringCodec(Codec):
    takes = "a string attribute takes texts"

    def __init__(self, dictionary: Dictionary | None = None):
        self.dictionary = dictionary or Dictionary()

    def present(self, value: object) -> int:
        if not isinstance(value, str):
            raise self.wrong(value)
        return self.dictionary.key(value)

    def value(self, key: int) -> object:
        return self.dictionary.string(key)

    def cut(self, literal: object) -> tuple[int, int]:
        key = self.present(literal)  # a string without a label cuts the gap where it would stand
        return key - 1, key + 1

    def column(self, array: pa.Array) -> I64:
        kind = array.type.value_type if pa.types.is_dictionary(array.type) else array.type
        if pa.types.is_null(kind):
            return np.full(len(array), MISSING, np.int64)
        if pa.types.is_string_view(kind):
            array = array.cast(pa.large_string())
        elif not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
            raise ValueProblem(f"a column of {kind} is not a column of texts; {self.takes}")
        return self.dictionary.column(array)


DOUBLE, LONG = struct.Struct("<d"), struct.Struct("<q")


def float_key(number: float) -> int:
    bits: int = LONG.unpack(DOUBLE.pack(number))[0]
    return bits if bits >= 0 else MISSING - bits


def _number(literal: object, codec: Codec) -> int | Fraction:
    """A literal as an exact number."""
    if isinstance(literal, bool) or not isinstance(literal, (int, float, Decimal, Fraction)):
        raise codec.wrong(literal)
    if isinstance(literal, int):
        return literal
    if not math.isfinite(literal):
        raise ValueProblem(f"{literal} is no number to compare with")
    if isinstance(literal, float):
        return _as_written(literal)
    if isinstance(literal, Decimal) and abs(literal.adjusted()) > 400:  # keep Fraction from growing without bound
        raise ValueProblem(f"{literal} is out of range")
    exact = Fraction(literal)
    return int(exact) if exact.denominator == 1 else exact


def _as_written(value: object) -> Fraction:
    """A number as people write it: the float 0.3 is the decimal 0.3."""
    if isinstance(value, np.generic):
        value = value.item()
    return Fraction(repr(value)) if isinstance(value, float) else Fraction(value)  # type: ignore[call-overload]


def _cast(array: pa.Array, to: pa.DataType, codec: Codec) -> pa.Array:
    if array.type == to:
        return array
    if pa.types.is_dictionary(array.type):
        array = array.cast(array.type.value_type)
    try:
        return array.cast(to)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as problem:
        raise ValueProblem(f"a column of {array.type} does not fit: {problem}; {codec.takes}") from None


def _numbers(array: pa.Array, to: pa.DataType, codec: Codec) -> tuple[Any, Any]:
    kind = array.type.value_type if pa.types.is_dictionary(array.type) else array.type
    if not (
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_null(kind) or pa.types.is_decimal(kind)
    ):
        raise ValueProblem(f"a column of {kind} is not a column of numbers; {codec.takes}")
    if pa.types.is_floating(kind) and to == pa.int64():  # NaN is missing, and has no integer
        nan = pc.is_nan(array)
        array = pc.if_else(pc.fill_null(nan, False), pa.scalar(None, array.type), array)
    return _plain(_cast(array, to, codec))


def _plain(array: pa.Array) -> tuple[Any, Any]:
    """The values and, where there are nulls, their mask."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks() if array.num_chunks != 1 else array.chunk(0)
        if isinstance(array, pa.ChunkedArray):
            return np.zeros(0, array.type.to_pandas_dtype()), None
    if not array.null_count:
        return array.to_numpy(), None
    null = array.is_null().to_numpy(zero_copy_only=False)
    return array.fill_null(0).to_numpy(), null


def _masked(keys: I64, null: Any) -> I64:
    return keys if null is None else np.where(null, MISSING, keys)


def _refuse_smallest(keys: I64, null: Any) -> None:
    smallest = keys == MISSING
    if null is not None:
        smallest &= ~null
    if smallest.any():
        row = int(np.argmax(smallest))
        raise ValueProblem(f"row {row}: -2^63 is out of range; {IntCodec.takes}")
