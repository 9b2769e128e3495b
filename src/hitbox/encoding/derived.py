"""Derived attributes: functions of an event's attributes with keys of their own, after those of the schema.

    schema    0 name    1 price    2 cost            derived    3 LOWER(name)    4 price - cost

`name ILIKE 'ab%'` is a range of LOWER(name), so a box can say it. The language decides which functions there are
(language/boxes/derived.py); here their values become keys, once per event, and only of those that some box constrains.
A function of NULL is missing. A function of an interval may have any value: it is [MISSING, HIGHEST], which meets every
box, unless something else that it needs is NULL, such as the old image in `price - OLD.price`.

In an open schema nothing is declared, and every attribute is derived: NUMBER(price) is what the field price holds if it
is a number (open_values.py).

Some have no key in a point, because they are lists or texts: `details` gives them, for the candidates that points
leave in doubt (language/programs/second_look.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from hitbox.encoding import events
from hitbox.encoding.arrays import HIGHEST, I64, MISSING, Points
from hitbox.encoding.codecs import NOT_UTF8, Codec
from hitbox.encoding.documents import ABSENT, SOMETHING, Document, Event, lookup
from hitbox.encoding.keys import Derived, Keys
from hitbox.errors import TableError, ValueProblem

ANY_VALUE = MISSING, HIGHEST
IMAGES = ("old", "new")


class Derivation:
    """Computes the derived attributes that are in use. `used` are their numbers; it may change between two calls."""

    def __init__(self, keys: Keys, used: Sequence[int]):
        self._keys, self._in_use = keys, used
        derived = enumerate(keys.derived, len(keys.schema))
        self._details = frozenset(number for number, one in derived if one.is_detail)

    @property
    def _used(self) -> Sequence[int]:
        if not self._details:
            return self._in_use
        return [number for number in self._in_use if number not in self._details]

    def of_event(self, event: Event) -> dict[int, tuple[int, int]]:
        """The keys for one event, whose values have been checked."""
        used, keys = self._used, self._keys
        if not used and not keys.schema.is_open:
            return {}
        values = self._plain(event, used)
        if values is None:
            values = events.normal(keys, event)
        first = len(keys.schema)
        if keys.schema.is_open:
            return {number: _key(keys.derived[number], keys.codecs[number], values) for number in used}
        return {number: _ends(keys.derived[number - first], keys.codecs[number], values) for number in used}

    def _plain(self, event: Event, used: Sequence[int]) -> Document | None:
        """The values that are needed, of an event without images; None of any other."""
        schema, codecs = self._keys.schema, self._keys.codecs
        if type(event) is not dict or schema.is_open or any(image in event for image in IMAGES):
            return None
        found = Document()
        first = len(schema)
        for number in used:
            for name, at in self._keys.derived[number - first].attributes.items():
                value = ABSENT if name in found else lookup(event, name)
                if value is not ABSENT:
                    if isinstance(value, (tuple, Mapping)):
                        return None
                    found[name] = codecs[at].normal(value)
        return found

    def of_table(self, table: Any, points: Points, first_row: int = 0) -> Points:
        """The points of a table, with the keys of what is derived; errors count rows from `first_row`."""
        used = list(self._used)
        if not used:
            return points
        keys, first = self._keys, len(self._keys.schema)
        columns = events.Columns(keys, table)
        wanted = [(number, keys.derived[number - first], keys.codecs[number]) for number in used]
        names = frozenset(name for _, one, _ in wanted for name in one.attributes)
        known: list[dict[Any, tuple[int, int]]] = [{} for _ in wanted]
        low, high, is_open = points.low, points.high, keys.schema.is_open
        for row in range(len(points)):
            try:
                values = events.normal_row(keys, columns, row, names)
                found = [
                    _key(one, codec, values) if is_open else _remembered(one, codec, values, memo)
                    for (_, one, codec), memo in zip(wanted, known, strict=True)
                ]
            except (ValueProblem, UnicodeDecodeError) as problem:
                says = NOT_UTF8 if isinstance(problem, UnicodeDecodeError) else str(problem)
                raise TableError(f"row {first_row + row}: {says}", [(first_row + row, says)]) from None
            for (number, _, _), ends in zip(wanted, found, strict=True):
                if ends[0] != ends[1] and high is low:
                    high = low.copy()
                low[row, number] = ends[0]
                if high is not low:
                    high[row, number] = ends[1]
        return Points(low, high)


def details(keys: Keys, used: Sequence[int], values: Document) -> tuple[dict[int, I64 | None], dict[int, bytes | None]]:
    """The lists of an event as the keys of their elements, and its texts, by the numbers of those in use; None for
    null. What has a bad value is left out: whoever needs it says what is wrong."""
    lists: dict[int, I64 | None] = {}
    texts: dict[int, bytes | None] = {}
    first = len(keys.schema)
    for number in used:
        one = keys.derived[number - first] if number >= first else None
        if one is None or not one.is_detail:
            continue
        try:
            value = one.value(values)
            if isinstance(value, str):
                texts[number] = value.encode(errors="surrogatepass")
            elif isinstance(value, list):
                place = keys.codecs[number].place
                lists[number] = np.array([MISSING if one is None else place(one) for one in value], np.int64)
            else:
                lists[number] = texts[number] = None
        except ValueProblem:
            continue
    return lists, texts


def _ends(one: Derived, codec: Codec, values: Document) -> tuple[int, int]:
    for name in one.attributes:
        if type(values.get(name)) is tuple:
            return _of_interval(one, codec, values)
    return _key(one, codec, values)


def _key(one: Derived, codec: Codec, values: Document) -> tuple[int, int]:
    value = one.value(values)
    key = MISSING if value is None else codec.place(value)
    return key, key


def _of_interval(one: Derived, codec: Codec, values: Document) -> tuple[int, int]:
    value = one.value(without_intervals(values, one.attributes))
    if value is SOMETHING:
        return ANY_VALUE
    key = MISSING if value is None else codec.place(value)
    return key, key


def without_intervals(values: Mapping[str, Any], names: Iterable[str]) -> Document:
    """These values of an event, with SOMETHING in place of each interval."""
    points = {}
    for name in names:
        value = lookup(values, name)
        if value is not ABSENT:
            points[name] = value if type(value) is not tuple else value[0] if _is_point(value) else SOMETHING
    return Document(points, values.old if isinstance(values, Document) else None)


def _is_point(interval: tuple[Any, Any]) -> bool:
    low, high = interval
    return low is not None and bool(low == high)  # an open end is None


def _remembered(one: Derived, codec: Codec, values: Document, memo: dict[Any, tuple[int, int]]) -> tuple[int, int]:
    """The keys of one derived attribute, computed once per value if it depends on one attribute only."""
    if len(one.attributes) != 1 or values.old is not None:
        return _ends(one, codec, values)
    value = values.get(next(iter(one.attributes)), ABSENT)
    if isinstance(value, list):
        return _ends(one, codec, values)
    found = memo.get(value)
    if found is None:
        found = memo[value] = _ends(one, codec, values)
    return found
