"""Values of each type <-> keys: one number line, int64, for every type, in the order of the values.

    int, timestamp   the number itself (microseconds since 1970, UTC)
    float            sortable bits: the bits read as an integer, negative ones mirrored; -0.0 is 0.0
    bool             0, 1
    list             how many elements it has
    string           an even label of an ordered dictionary (string_dictionary.py); unknown strings get odd keys between
    int/float with   twice the number of the step; a value between two steps lies on the odd key between them,
    a precision      one outside the domain keeps its place below or above all steps

The smallest int64 is the key of "missing"; the int value -2^63 is therefore the one value that cannot be stored.

A codec turns values into keys, one by one or as a whole Arrow column. Both ways go through the plain value that
values.py makes of what the caller passed, so a column and its single values have the same keys.

For predicates it answers one question: `cut(literal)` is the pair (greatest key whose value is below the literal,
smallest key whose value is above it), from which every comparison becomes closed intervals: `< v` is [LOWEST, last],
`= v` is [last + 1, first - 1], and so on.
"""

from __future__ import annotations

import itertools
import math
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hitbox.encoding import arrow_compute as pc
from hitbox.encoding import values
from hitbox.encoding.arrays import HIGHEST, I64, LOWEST, MISSING
from hitbox.encoding.documents import plain
from hitbox.encoding.schema import Attribute, Schema
from hitbox.encoding.string_dictionary import MAX_MEMO, Dictionary
from hitbox.encoding.values import EPOCH
from hitbox.errors import SchemaError, UnknownAttribute, ValueProblem

MICROSECOND = timedelta(microseconds=1)
FIRST_MOMENT = (datetime.min.replace(tzinfo=UTC) - EPOCH) // MICROSECOND
LAST_MOMENT = (datetime.max.replace(tzinfo=UTC) - EPOCH) // MICROSECOND
LONGEST = 2**62
"""More microseconds than lie between any two moments."""
UNITS = {"s": 10**6, "ms": 10**3, "us": 1, "day": 86_400 * 10**6}

DAY = 86_400 * 10**6
NOT_UTF8 = "the text is not UTF-8"
F64 = NDArray[np.float64]
Mask = NDArray[np.bool_]


class BadRow(ValueProblem):
    """A value of a column does not fit."""

    def __init__(self, row: int, message: str):
        self.row, self.message = row, message
        super().__init__(f"row {row}: {message}")


class Codec(ABC):
    """Values of one attribute <-> keys."""

    type: str
    """The attribute's type, which says how values.py reads its values."""

    takes: str
    """What a value may be, for error messages."""

    is_list: bool = False
    """Whether a value is a list, whose key is its length."""

    fields: Schema | None = None
    """Of a list of objects: what a table has besides is not read."""

    even: bool = False
    """Whether every value has an even key, as on a grid of whole numbers: nothing lies between its steps."""

    def key(self, value: object) -> int:
        """The key of one event value; MISSING if it is missing."""
        plain = self.normal(value)
        return MISSING if plain is None else self.place(plain)

    def normal(self, value: object) -> Any:
        """The plain Python value that is compared; None if it is missing."""
        return values.NORMAL[self.type](value)

    @abstractmethod
    def place(self, plain: Any) -> int:
        """The key of a plain value that is not missing."""

    @abstractmethod
    def value(self, key: int) -> object:
        """The value with this key: the inverse of `key`. A key without a value gives the nearest value below."""

    @abstractmethod
    def cut(self, literal: object) -> tuple[int, int]:
        """(greatest key whose value is < literal, smallest key whose value is > literal)."""

    def column(self, array: pa.Array) -> I64:
        """The keys of an Arrow array or chunked array; null is MISSING. A value that does not fit is an error."""
        keys, bad = self.attempt(array)
        if bad is not None and bad.any():
            row = int(np.argmax(bad))
            raise BadRow(row, self.problem(array, row))
        return keys

    @abstractmethod
    def attempt(self, array: pa.Array) -> tuple[I64, Mask | None]:
        """The keys of a column, and which rows do not fit (None: all do); an error if its type does not fit."""

    def problem(self, array: pa.Array, row: int) -> str:
        """Why the value in a row does not fit."""
        try:
            self.normal(python_values(array[row : row + 1], self.fields)[0])
        except (ValueProblem, UnknownAttribute) as problem:
            return str(problem)
        except UnicodeDecodeError:
            return NOT_UTF8
        return f"the value does not fit; {self.takes}"

    def native(self) -> tuple[Any, ...]:
        """How native code makes the keys of values of the plain Python types: the name of the way, and what it needs
        (src/engine/bindings/column.hpp). "other" leaves all values to `key`."""
        return (self.type,)

    def swapped(self, low: pa.Array, high: pa.Array, first: I64, last: I64) -> Mask:
        """In which rows of two columns, whose keys are `first` and `last`, the low end lies above the high one."""
        return first > last

    def domain(self) -> tuple[int, int]:
        """The declared domain in keys."""
        return LOWEST, HIGHEST

    def distances(self, keys: I64, others: I64) -> F64:
        """How far values are from others, from 0 to 1, by their keys; different values without a measure count as 1."""
        return np.ones(len(keys))


class IntCodec(Codec):
    type, takes = "int", values.TAKES["int"]

    def key(self, value: object) -> int:
        if type(value) is int and LOWEST <= value <= HIGHEST:
            return value
        plain = values.whole_number(value)
        return MISSING if plain is None else plain

    def place(self, plain: Any) -> int:
        return int(plain)

    def value(self, key: int) -> object:
        return key

    def cut(self, literal: object) -> tuple[int, int]:
        number = literal if type(literal) is int else _number(literal, self)
        floor = math.floor(number)
        last = floor - 1 if floor == number else floor
        return max(last, MISSING), min(max(floor + 1, LOWEST), HIGHEST + 1)

    def attempt(self, array: pa.Array) -> tuple[I64, Mask | None]:
        numbers, null, bad = _whole_numbers(array, self)
        return _masked(numbers, null), bad

    def distances(self, keys: I64, others: I64) -> F64:
        return relative(keys.astype(np.float64), others.astype(np.float64))


class FloatCodec(Codec):
    type, takes = "float", values.TAKES["float"]

    def key(self, value: object) -> int:
        if type(value) is float:
            return float_key(value) if value == value else MISSING
        plain = values.number(value)
        return MISSING if plain is None else float_key(plain)

    def place(self, plain: Any) -> int:
        return float_key(plain)

    def value(self, key: int) -> object:
        bits = key if key >= 0 else MISSING - key
        return FLOAT64.unpack(INT64.pack(bits))[0]

    def cut(self, literal: object) -> tuple[int, int]:
        number = literal if isinstance(literal, (float, Decimal)) else _number(literal, self)
        near = float(number)
        if not math.isfinite(near):
            raise ValueProblem(f"{literal} is out of range; {self.takes}")
        key = float_key(near)
        if isinstance(number, int) and near != number:  # the literal lies between two floats
            return (key, key + 1) if near < number else (key - 1, key)
        return key - 1, key + 1

    def attempt(self, array: pa.Array) -> tuple[I64, Mask | None]:
        numbers, null, bad = _floats(array, self)
        bits = numbers.view(np.int64)
        return _masked(np.where(bits >= 0, bits, MISSING - bits), null), bad

    def distances(self, keys: I64, others: I64) -> F64:
        numbers, wanted = (np.where(bits >= 0, bits, MISSING - bits).view(np.float64) for bits in (keys, others))
        return relative(numbers, wanted)


class GridCodec(Codec):
    """An int or float attribute with a declared domain and precision: numbers as steps of a grid."""

    def __init__(self, attribute: Attribute):
        if attribute.domain is None or attribute.precision is None:
            raise SchemaError("a grid needs a domain and a precision")
        self.type = attribute.type
        self.step, (self.low, self.high) = attribute.precision, attribute.domain
        self.first, self.last = int(self.low / self.step), int(self.high / self.step)
        self.even = self.type == "int" and self.step == 1
        self.takes = f"{values.TAKES[self.type]}, in [{self.low}, {self.high}] by steps of {self.step}"

    def place(self, plain: Any) -> int:
        below, above = 2 * (self.first - 1), 2 * (self.last + 1)
        over, under = self.step.numerator, self.step.denominator
        if self.type == "int":
            at, rest = divmod(plain, over)
            return int(min(max(2 * at + (rest != 0), below), above))
        scaled = plain * (under / over)
        if not below <= scaled <= above:
            return below if scaled < below else above
        at = round(scaled)
        grid = at * over / under  # exact integers divided once: the double nearest to the step
        return int(min(max(2 * at + (plain > grid) - (plain < grid), below), above))

    def native(self) -> tuple[Any, ...]:
        over, under = self.step.numerator, self.step.denominator
        if max(over, under) > 2**53:
            return ("other",)
        return f"{self.type} grid", over, float(under), under / over, 2 * (self.first - 1), 2 * (self.last + 1)

    def value(self, key: int) -> object:
        exact = self.step * Fraction(
            key, 2
        )  # an odd key: a value between two steps, and all values there compare alike
        return int(exact) if self.type == "int" else float(exact)

    def cut(self, literal: object) -> tuple[int, int]:
        exact = Fraction(_number(literal, self))
        if not self.low <= exact <= self.high:
            raise ValueProblem(f"{literal} is outside the declared domain [{float(self.low)}, {float(self.high)}]")
        if exact % self.step:
            raise ValueProblem(f"{literal} is finer than the declared precision {float(self.step)}")
        at = 2 * int(exact / self.step)
        return at - 1, at + 1

    def attempt(self, array: pa.Array) -> tuple[I64, Mask | None]:
        over, under = self.step.numerator, self.step.denominator
        numbers, null, bad = self._numbers(array)
        if self.type == "int":
            at, rest = np.divmod(numbers, over)
            keys = 2 * np.clip(at, self.first - 2, self.last + 1) + (rest != 0)
            return _masked(np.clip(keys, 2 * (self.first - 1), 2 * (self.last + 1)), null), bad
        if null is not None:
            numbers = np.where(null, 0, numbers)
        with np.errstate(over="ignore"):
            at = np.rint(numbers * (under / over))
        np.clip(at, self.first - 1, self.last + 1, out=at)
        grid = at * over / under  # exact integers divided once: the double nearest to the step
        keys = at.astype(np.int64) * 2 + (numbers > grid) - (numbers < grid)
        np.clip(keys, 2 * (self.first - 1), 2 * (self.last + 1), out=keys)
        return _masked(keys, null), bad

    def _numbers(self, array: pa.Array) -> tuple[Any, Mask | None, Mask | None]:
        return _whole_numbers(array, self) if self.type == "int" else _floats(array, self)

    def swapped(self, low: pa.Array, high: pa.Array, first: I64, last: I64) -> Mask:
        """Two values off the grid may share a key: the numbers themselves are compared."""
        there = (first != MISSING) & (last != MISSING)
        found: Mask = there & (self._numbers(low)[0] > self._numbers(high)[0])
        return found

    def domain(self) -> tuple[int, int]:
        return 2 * self.first, 2 * self.last

    def distances(self, keys: I64, others: I64) -> F64:
        return relative(keys.astype(np.float64), others.astype(np.float64))


class BoolCodec(Codec):
    type, takes = "bool", values.TAKES["bool"]

    def place(self, plain: Any) -> int:
        return int(plain)

    def value(self, key: int) -> object:
        return key >= 1

    def cut(self, literal: object) -> tuple[int, int]:
        key = self.key(literal)
        return key - 1, key + 1

    def attempt(self, array: pa.Array) -> tuple[I64, Mask | None]:
        array = decoded(array)
        if not (pa.types.is_boolean(array.type) or pa.types.is_null(array.type)):
            raise ValueProblem(f"a column of {array.type} is not a column of bools; {self.takes}")
        return _masked(*_plain(array.cast(pa.bool_()).cast(pa.int8()).cast(pa.int64()))), None

    def domain(self) -> tuple[int, int]:
        return 0, 1


class TimestampCodec(Codec):
    type, takes = "timestamp", values.TAKES["timestamp"]

    def distances(self, keys: I64, others: I64) -> F64:
        gap: F64 = np.abs(keys.astype(np.float64) - others.astype(np.float64))
        return gap / (gap + DAY)

    def place(self, plain: Any) -> int:
        return int((plain - EPOCH) // MICROSECOND)

    def value(self, key: int) -> object:
        return EPOCH + timedelta(microseconds=min(max(key, FIRST_MOMENT), LAST_MOMENT))

    def cut(self, literal: object) -> tuple[int, int]:
        key = self.key(literal)
        return key - 1, key + 1

    def attempt(self, array: pa.Array) -> tuple[I64, Mask | None]:
        array = decoded(array)
        kind = array.type
        if pa.types.is_null(kind):
            return np.full(len(array), MISSING, np.int64), None
        if is_text(kind):
            return _one_by_one(array, self.key)
        if pa.types.is_timestamp(kind):
            unit, counts = kind.unit, array.cast(pa.int64())
        elif pa.types.is_date32(kind):
            unit, counts = "day", array.cast(pa.int32()).cast(pa.int64())
        elif pa.types.is_date64(kind):
            unit, counts = "ms", array.cast(pa.int64())
        else:
            raise ValueProblem(f"a column of {kind} is not a column of timestamps; {self.takes}")
        numbers, null = _plain(counts)
        if unit == "ns":
            keys = numbers // 1000
            bad = keys * 1000 != numbers
            bad |= (keys < FIRST_MOMENT) | (keys > LAST_MOMENT)
        else:
            bad = (numbers < -(-FIRST_MOMENT // UNITS[unit])) | (numbers > LAST_MOMENT // UNITS[unit])
            keys = numbers if unit == "us" else np.where(bad, 0, numbers) * UNITS[unit]
        if null is not None:
            bad &= ~null
        return _masked(keys, null), bad


class NumberCodec(Codec):
    """Numbers of which nobody said whether they are whole: int and float on the line of doubles. An int that no double
    equals has the key of the nearest one, so keys decide only against literals below 2^53."""

    type, takes = "number", "numbers"

    def place(self, plain: Any) -> int:
        try:
            return float_key(float(plain))
        except OverflowError:
            return float_key(math.inf if plain > 0 else -math.inf)

    def value(self, key: int) -> object:
        return FloatCodec().value(key)

    def cut(self, literal: object) -> tuple[int, int]:
        key = self.place(literal)
        return key - 1, key + 1

    def attempt(self, array: pa.Array) -> tuple[I64, Mask | None]:
        raise ValueProblem("numbers without a declared type come one by one")

    def distances(self, keys: I64, others: I64) -> F64:
        return FloatCodec().distances(keys, others)


class AnyCodec(Codec):
    """Values of any type: all that is known of one is that it is there."""

    type, takes = "any", "values"

    def place(self, plain: Any) -> int:
        return 0

    def value(self, key: int) -> object:
        return None

    def cut(self, literal: object) -> tuple[int, int]:
        raise values.wrong(literal, self.takes)

    def attempt(self, array: pa.Array) -> tuple[I64, Mask | None]:
        raise ValueProblem("values without a declared type come one by one")


class DurationCodec(Codec):
    """Lengths of time between two moments, in microseconds: only derived attributes have this type."""

    type, takes = "duration", "a length of time"

    def place(self, plain: Any) -> int:
        return int(plain // MICROSECOND)

    def value(self, key: int) -> object:
        return timedelta(microseconds=key)

    def cut(self, literal: object) -> tuple[int, int]:
        if not isinstance(literal, timedelta):
            raise values.wrong(literal, self.takes)
        key = min(max(literal // MICROSECOND, -LONGEST), LONGEST)
        return key - 1, key + 1

    def attempt(self, array: pa.Array) -> tuple[I64, Mask | None]:
        raise ValueProblem("events carry no lengths of time")


class StringCodec(Codec):
    type, takes = "string", values.TAKES["string"]

    def __init__(self, dictionary: Dictionary | None = None):
        self.dictionary = dictionary or Dictionary()

    def key(self, value: object) -> int:
        if type(value) is str:
            return self.dictionary.key(value)  # it checks strings that it has not seen yet
        plain = values.text(value)
        return MISSING if plain is None else self.dictionary.key(plain)

    def place(self, plain: Any) -> int:
        return self.dictionary.key(plain)

    def native(self) -> tuple[Any, ...]:
        return self.type, self.dictionary.current, MAX_MEMO

    def value(self, key: int) -> object:
        return self.dictionary.string(key)

    def cut(self, literal: object) -> tuple[int, int]:
        key = self.key(literal)  # a string without a label has the odd key of its gap
        return key - 1, key + 1

    def attempt(self, array: pa.Array) -> tuple[I64, Mask | None]:
        array = decoded(array) if _is_uuid(array.type) else array
        kind = plain_type(array.type)
        if pa.types.is_null(kind):
            return np.full(len(array), MISSING, np.int64), None
        if not is_text(kind):
            raise ValueProblem(f"a column of {kind} is not a column of texts; {self.takes}")
        if pa.types.is_run_end_encoded(array.type):
            array = plain_texts(array)
        try:
            return self.dictionary.column(array), None
        except ValueProblem:
            bad = unsound(array)
            if bad is None:
                raise
            return self.dictionary.column(pc.if_else(pa.array(bad), None, plain_texts(array))), bad

    def swapped(self, low: pa.Array, high: pa.Array, first: I64, last: I64) -> Mask:
        """Two strings without labels may share a key: the strings themselves are compared."""
        found = first > last
        same = (first == last) & (first % 2 != 0)
        if same.any():
            few = pa.array(same)
            ends = (plain_texts(array).filter(few).cast(pa.large_binary()) for array in (low, high))
            found[same] = pc.greater(*ends).to_numpy(zero_copy_only=False)
        return found


class ListCodec(Codec):
    """A list has its length as its key; what its elements are is for the checks on candidates."""

    is_list = True

    def __init__(self, attribute: Attribute):
        self.type, self.takes = attribute.type, f"a {attribute.type} attribute takes lists"
        self._attribute, self.fields = attribute, attribute.fields

    def normal(self, value: object) -> Any:
        return plain(self._attribute, value)

    def place(self, plain: Any) -> int:
        return len(plain)

    def value(self, key: int) -> object:
        return key

    def cut(self, literal: object) -> tuple[int, int]:
        return IntCodec().cut(literal)

    def native(self) -> tuple[Any, ...]:
        element = self._attribute.element
        return ("list", element) if element in ("int", "float", "bool", "string") else ("other",)

    def attempt(self, array: pa.Array) -> tuple[I64, Mask | None]:
        array = decoded(array)
        kind = array.type
        if pa.types.is_null(kind):
            return np.full(len(array), MISSING, np.int64), None
        if not is_list_type(kind):
            raise ValueProblem(f"a column of {kind} is not a column of lists; {self.takes}")
        _check_elements(self._attribute, kind.value_type)
        bad = np.zeros(len(array), bool)
        for row, value in enumerate(_readable(array, self.fields)):
            try:
                self.normal(value)
            except (ValueProblem, UnknownAttribute):
                bad[row] = True
        lengths = pc.list_value_length(array)
        return _masked(*_plain(lengths.cast(pa.int64()))), bad


def _check_elements(attribute: Attribute, kind: pa.DataType) -> None:
    """Raise an error if the type of a list's elements does not fit, in whatever rows there are, or in none."""
    if attribute.fields is None:
        try:
            PLAIN[attribute.element]().attempt(pa.nulls(0, kind))
        except ValueProblem as problem:
            raise ValueProblem(f"the elements of its lists: {problem}") from None
    else:
        _check_object(attribute.fields, kind, "")


def _check_object(fields: Schema, kind: pa.DataType, above: str) -> None:
    """Raise an error if the type of the objects in a list does not fit; what is no field of them is not read."""
    if pa.types.is_null(kind):
        return
    hint = ""
    if pa.types.is_struct(kind):
        given = [(f"{above}{field.name}", field.type) for field in kind]
    elif pa.types.is_map(kind):
        hint = "; a map has one type for all fields: make a struct of it"
        if not is_text(plain_type(kind.key_type)):
            raise ValueProblem(f"the keys of a {kind} are no texts, and they are the names of fields")
        names = [name for name in (*fields, *fields.objects) if name.startswith(above)]
        given = [(name, kind.item_type) for name in names if "." not in name[len(above) :]]
    else:
        raise ValueProblem(f"a column of {kind} is not a column of structs; these are objects")
    for name, field in given:
        try:
            if name in fields.objects:
                _check_object(fields, field, f"{name}.")
            elif name not in fields:
                continue
            elif fields[name].is_list:
                ListCodec(fields[name]).attempt(pa.nulls(0, field))
            else:
                PLAIN[fields[name].type]().attempt(pa.nulls(0, field))
        except ValueProblem as problem:
            raise ValueProblem(f"field {name[len(above) :]!r}: {problem}{hint}") from None


PLAIN: dict[str, Callable[[], Codec]] = {
    "int": IntCodec,
    "float": FloatCodec,
    "bool": BoolCodec,
    "string": StringCodec,
    "timestamp": TimestampCodec,
}
"""The codecs of attributes without a grid."""

UNREADABLE = object()
FLOAT64, INT64 = struct.Struct("<d"), struct.Struct("<q")


def float_key(number: float) -> int:
    bits: int = INT64.unpack(FLOAT64.pack(number))[0]
    return bits if bits >= 0 else MISSING - bits


def relative(numbers: F64, others: F64) -> F64:
    """How far numbers are from others, in proportion to them, from 0 to 1."""
    with np.errstate(over="ignore", invalid="ignore"):
        gap = np.abs(numbers - others)
        return np.nan_to_num(np.where(np.isfinite(gap), gap / (gap + np.abs(numbers)), 1.0))


def _number(literal: object, codec: Codec) -> int | Fraction:
    """A literal as an exact number."""
    if isinstance(literal, bool) or not isinstance(literal, (int, float, Decimal, Fraction)):
        raise values.wrong(literal, codec.takes)
    if isinstance(literal, int):
        return literal
    if not math.isfinite(literal):
        raise ValueProblem(f"{literal} is no number to compare with")
    if isinstance(literal, float):
        return Fraction(repr(literal))  # as people write it: the float 0.3 is the decimal 0.3
    if isinstance(literal, Decimal) and abs(literal.adjusted()) > 400:  # keep Fraction from growing without bound
        raise ValueProblem(f"{literal} is out of range")
    exact = Fraction(literal)
    return int(exact) if exact.denominator == 1 else exact


# ---- columns


def is_list_type(kind: pa.DataType) -> bool:
    tests = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return any(test(kind) for test in (*tests, pa.types.is_list_view, pa.types.is_large_list_view))


def decoded(array: Any) -> pa.Array:
    """A column as one array of plain values: without chunks, dictionaries, run lengths or views, for which Arrow lacks
    many functions; UUIDs as texts."""
    kind = array.type
    if isinstance(array, pa.ChunkedArray):
        parts = [decoded(chunk) for chunk in array.chunks] or [decoded(pa.nulls(0, kind))]
        return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)
    if pa.types.is_run_end_encoded(kind):
        whole = pa.RunEndEncodedArray.from_arrays(array.run_ends, decoded(array.values))
        return pc.run_end_decode(whole.slice(array.offset, len(array)))
    if pa.types.is_dictionary(kind):
        return decoded(array.dictionary).take(array.indices)
    if pa.types.is_string_view(kind):
        return array.cast(pa.large_string())
    if pa.types.is_binary_view(kind):
        return array.cast(pa.large_binary())
    if _is_uuid(kind):
        return pa.array([None if one is None else str(one) for one in array.to_pylist()], pa.string())
    return array


def plain_texts(column: Any) -> pa.Array:
    """A column of texts, however they are encoded, as one plain array."""
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    parts = [decoded(chunk).cast(pa.large_string()) for chunk in chunks]  # before they are one, which may be over 2 GB
    return parts[0] if len(parts) == 1 else pa.concat_arrays([pa.array([], pa.large_string()), *parts])


def python_values(column: Any, fields: Schema | None = None, above: str = "") -> list[Any]:
    """The values of a column one by one, as values.py takes them; no precision is lost. `fields`: those that are wanted
    of the objects in it, which have the name `above`."""
    array = decoded(column)
    if pa.types.is_timestamp(array.type):  # Python's datetimes have neither nanoseconds nor all years
        return list(array.cast(pa.timestamp(array.type.unit)).to_numpy(zero_copy_only=False))
    if pa.types.is_date(array.type):
        unit, counts = ("D", pa.int32()) if pa.types.is_date32(array.type) else ("ms", pa.int64())
        numbers, null = _plain(array.cast(counts))
        return list(
            np.where(False if null is None else null, np.datetime64("NaT"), numbers.astype(f"datetime64[{unit}]"))
        )
    if pa.types.is_struct(array.type):
        found: dict[str, list[Any]] = {}
        for at, field in enumerate(array.type):
            name = f"{above}.{field.name}" if above else field.name
            if fields is None or name in fields.objects:
                found[field.name] = python_values(pc.struct_field(array, [at]), fields, name)
            elif name in fields:
                found[field.name] = python_values(pc.struct_field(array, [at]), fields[name].fields)
        rows = zip(*found.values(), strict=True) if found else itertools.repeat((), len(array))
        there = array.is_valid().to_pylist()
        return [dict(zip(found, row, strict=True)) if valid else None for row, valid in zip(rows, there, strict=True)]
    if pa.types.is_map(array.type):
        pairs = pa.list_(pa.struct([("key", array.type.key_type), ("value", array.type.item_type)]))
        maps = python_values(array.cast(pairs))
        return [None if one is None else {pair["key"]: pair["value"] for pair in one} for one in maps]
    if is_list_type(array.type):
        flat, lengths = python_values(array.flatten(), fields), pc.list_value_length(array).fill_null(0).to_pylist()
        ends_at = list(itertools.accumulate(lengths, initial=0))
        lists = [flat[start:end] for start, end in itertools.pairwise(ends_at)]
        return [one if there else None for one, there in zip(lists, array.is_valid().to_pylist(), strict=True)]
    plain_values: list[Any] = array.to_pylist()
    return plain_values


def _readable(array: pa.Array, fields: Schema | None = None) -> list[Any]:
    """The values of a column one by one; what is not UTF-8 is UNREADABLE, which fits nowhere."""
    try:
        return python_values(array, fields)
    except UnicodeDecodeError:
        if len(array) == 1:
            return [UNREADABLE]
        return [value for row in range(len(array)) for value in _readable(array.slice(row, 1), fields)]


def unsound(column: Any) -> Mask | None:
    """Which texts of a column are not UTF-8 or hold NUL; None where all are sound."""
    array = plain_texts(column)
    try:
        array.validate(full=True)
        data = array.buffers()[2]
        if data is None or not data.size or np.frombuffer(data, np.uint8).min():  # quicker than a search in each text
            return None
    except pa.ArrowInvalid:
        pass
    return np.array([raw is not None and not _is_sound(raw) for raw in array.cast(pa.large_binary()).to_pylist()], bool)


def _is_sound(raw: bytes) -> bool:
    try:
        return "\0" not in raw.decode()
    except UnicodeDecodeError:
        return False


def plain_type(kind: pa.DataType) -> pa.DataType:
    """The type of the values in a column, however they are encoded."""
    while pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        kind = kind.value_type
    return kind


def _is_uuid(kind: pa.DataType) -> bool:
    return isinstance(kind, pa.BaseExtensionType) and kind.extension_name == "arrow.uuid"


def is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _one_by_one(array: pa.Array, convert: Callable[[object], Any], empty: Any = MISSING) -> tuple[Any, Mask | None]:
    """The keys of a column, converted once per distinct value, and which rows do not fit."""
    coded = array.dictionary_encode()
    found, bad = [], []
    for value in _readable(coded.dictionary):
        try:
            found.append(convert(value))
            bad.append(False)
        except ValueProblem:
            found.append(empty)
            bad.append(True)
    at = coded.indices.fill_null(len(found)).to_numpy(zero_copy_only=False)
    return np.array([*found, empty])[at], np.array([*bad, False])[at]


def _whole_numbers(array: Any, codec: Codec) -> tuple[I64, Mask | None, Mask | None]:
    """A column of numbers as int64; which are missing, and which do not fit."""
    array = _numeric(array, codec)
    if pa.types.is_decimal(array.type):
        found, bad = _one_by_one(array, values.whole_number, 0)
        return found.astype(np.int64), _nulls(array), bad
    numbers, null = _plain(array)
    if numbers.dtype.kind == "f":
        nan = np.isnan(numbers)
        null = nan if null is None else nan | null
        with np.errstate(invalid="ignore"):
            bad = ~null & ~((np.trunc(numbers) == numbers) & (np.abs(numbers.astype(np.float64)) < 2.0**63))
        return np.where(bad | null, 0, numbers).astype(np.int64), null, bad
    if numbers.dtype == np.uint64:
        bad = numbers > np.uint64(HIGHEST)
        return np.where(bad, np.uint64(0), numbers).astype(np.int64), null, bad
    if numbers.dtype != np.int64:
        return numbers.astype(np.int64), null, None
    bad = numbers == MISSING
    return numbers, null, bad if null is None else bad & ~null


def _floats(array: Any, codec: Codec) -> tuple[NDArray[np.float64], Mask | None, Mask | None]:
    """A column of numbers as 64-bit floats; which are missing, and which do not fit."""
    array = _numeric(array, codec)
    if pa.types.is_decimal128(array.type) and array.type.precision <= 15 and 0 <= array.type.scale <= 22:
        words = np.frombuffer(array.buffers()[1] or b"", np.int64)[2 * array.offset :: 2][: len(array)]
        null = _nulls(array)  # two exact doubles divided once: the double nearest to the decimal
        return np.where(False if null is None else null, 0, words) / 10.0**array.type.scale, null, None
    if pa.types.is_decimal(array.type):
        found, bad = _one_by_one(array, values.number, 0.0)
        return found.astype(np.float64), _nulls(array), bad
    numbers, null = _plain(array)
    floats = numbers.astype(np.float64, copy=False)
    if numbers.dtype.kind == "f":
        nan = np.isnan(floats)
        return floats, nan if null is None else nan | null, None
    if numbers.dtype.itemsize < 8:
        return floats, null, None
    above = floats >= (2.0**64 if numbers.dtype == np.uint64 else 2.0**63)
    return floats, null, above | (np.where(above, 0, floats).astype(numbers.dtype) != numbers)


def _numeric(array: Any, codec: Codec) -> pa.Array:
    array = decoded(array)
    kind = array.type
    if pa.types.is_null(kind):
        return array.cast(pa.int64())
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
        raise ValueProblem(f"a column of {kind} is not a column of numbers; {codec.takes}")
    if pa.types.is_decimal(kind) and kind.bit_width < 128:
        return array.cast(pa.decimal128(kind.precision, kind.scale))
    return array


def _plain(array: pa.Array) -> tuple[Any, Mask | None]:
    """The values and, where there are nulls, their mask."""
    if not array.null_count:
        return array.to_numpy(zero_copy_only=False), None
    return array.fill_null(0).to_numpy(zero_copy_only=False), _nulls(array)


def _nulls(array: pa.Array) -> Mask | None:
    null: Mask | None = array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None
    return null


def _masked(keys: I64, null: Mask | None) -> I64:
    return keys if null is None else np.where(null, MISSING, keys)
