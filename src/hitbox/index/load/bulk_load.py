"""Subscription tables -> boxes, whole columns at a time where the layout allows.

    predicates   id, where[, priority][, a column for each information attribute, or its _low and _high]
    wide         id[, priority], {attribute}_low, {attribute}_high: closed bounds, null is unbounded, both null is
                 unconstrained; for an information attribute they are what the subscription says about itself

It goes in two steps, because strings must have labels before bounds can be cut: `read` checks the table and gathers the
strings, `Draft.encode` makes the boxes. Rows that do not fit are gathered with their numbers; good rows are not lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hitbox import language
from hitbox.concurrency.interruptible import interruptible
from hitbox.encoding import arrow_compute as pc
from hitbox.encoding.arrays import DEFAULT_PRIORITY, HIGHEST, I64, LEVELS, LOWEST, MISSING, Boxes
from hitbox.encoding.codecs import (
    Codec,
    GridCodec,
    IntCodec,
    decoded,
    is_text,
    plain_texts,
    plain_type,
    python_values,
    unsound,
)
from hitbox.encoding.events import attempt_keys, event_keys
from hitbox.encoding.keys import Derived, Keys
from hitbox.encoding.schema import Schema
from hitbox.encoding.values import ends_of, is_missing, text
from hitbox.errors import HitboxError, TableError, ValueProblem, nearest
from hitbox.index.anchors import PATTERN, may_have_anchors
from hitbox.index.catalog import Rows
from hitbox.index.load.predicate_column import Columns, PredicateColumn
from hitbox.language import Compiled, Limits, Predicate, Program, Programs

Box = dict[int, tuple[int, int]]
Strings = dict[int, set[str]]
PIECE = 100_000


@dataclass(frozen=True, slots=True)
class Encoded:
    """Subscriptions as columns: `count` boxes each, in order."""

    ids: pa.Array
    where: pa.Array | None
    priority: NDArray[np.uint8]
    count: I64
    exact: NDArray[np.bool_]
    boxes: Boxes
    programs: Programs = field(default_factory=dict)

    def rows(self) -> Rows:
        """The subscriptions as rows of the catalog, without their boxes."""
        return Rows(self.ids, self.where, self.priority, self.count, self.exact, programs=self.programs)


@dataclass(slots=True)
class Draft:
    """A table that was read but has no keys yet."""

    table: pa.Table
    ids: pa.Array
    priority: NDArray[np.uint8]
    errors: dict[int, str]
    where: pa.Array | None = None
    """The predicates, and the two ways in which they were read; None in the wide layout."""
    column: PredicateColumn | None = None
    others: dict[int, Predicate] = field(default_factory=dict)
    """By row, what `column` did not take and was parsed by itself."""
    information: list[str] = field(default_factory=list)
    """The attributes that these subscriptions say something about."""

    def derived(self) -> dict[str, Derived]:
        """The functions of attributes that the predicates would use, by their texts, the most used first."""
        several = {id(one): one for one in self.others.values()}.values()
        uses: Counter[str] = Counter()
        found: dict[str, Derived] = {}
        for one, count in (self.column.derived() if self.column is not None else {}).values():
            uses[one.text] += count
            found[one.text] = one
        for predicate in several:
            some = language.derived(predicate)
            uses.update(some.keys())
            found.update(some)
        return {name: found[name] for name, _ in uses.most_common()}

    def strings(self, keys: Keys) -> dict[int, pa.Array]:
        """The strings that need labels, by attribute number; rows whose `about` proves wrong join `errors`."""
        schema = keys.schema
        found: dict[int, list[pa.Array]] = {}
        if self.column is not None:
            for number, some in self._strings_one_by_one(keys).items():
                found.setdefault(number, []).append(pa.array(some, pa.large_string()))
            for number, texts in self.column.strings(keys).items():
                found.setdefault(number, []).append(texts)
        good = pa.array(self._good())
        wide = self.column is None
        for name in schema.names if wide else self.information:
            for column in _ends(self.table, schema, name, wide) if schema[name].type == "string" else ():
                if is_text(column.type):
                    texts = plain_texts(column).filter(good).drop_null()
                    found.setdefault(schema.number(name), []).append(texts)
        return {number: _distinct(parts) for number, parts in found.items()}

    def _strings_one_by_one(self, keys: Keys) -> Strings:
        schema, found = keys.schema, Strings()
        for predicate in {id(one): one for one in self.others.values()}.values():
            merge_strings(found, language.strings(predicate, keys))
        for row in np.flatnonzero(self._good() & self._nested(schema)).tolist():
            try:
                merge_strings(found, about_strings(schema, self._about(schema, row)))
            except HitboxError as problem:
                self.errors[row] = str(problem)
        return found

    def _about(self, schema: Schema, row: int) -> dict[str, Any]:
        """What a row says about itself."""
        about: dict[str, Any] = {}
        for name in self.information:
            values = [python_values(column.slice(row, 1))[0] for column in _ends(self.table, schema, name)]
            if len(values) == 1 and values[0] is not None:
                about[name] = values[0]
            elif len(values) == 2 and not all(map(is_missing, values)):
                about[name] = tuple(values)
        return about

    def _nested(self, schema: Schema) -> NDArray[np.bool_]:
        """Which rows say something about themselves that only Python's values can tell: intervals as structs, and
        strings in columns that are no texts."""
        found = np.zeros(self.table.num_rows, bool)
        for name in self.information:
            for column in _ends(self.table, schema, name):
                if pa.types.is_nested(column.type) or (schema[name].type == "string" and not is_text(column.type)):
                    found |= column.is_valid().to_numpy()
        return found

    def _about_keys(self, keys: Keys) -> tuple[I64, I64, NDArray[np.bool_]]:
        """The keys of what rows say about themselves, (rows, information attributes) of low and high; and which rows
        need a look of their own, because something is nested or does not fit."""
        schema, information = keys.schema, keys.space.information
        low = np.full((self.table.num_rows, len(information)), MISSING, np.int64)
        high = low.copy()
        strange = self._nested(schema)
        for at, number in enumerate(information):
            codec, columns = keys.codecs[number], _ends(self.table, schema, schema.names[number])
            if not columns or any(pa.types.is_nested(column.type) for column in columns):
                continue
            try:
                found = [codec.attempt(column) for column in columns]
            except ValueProblem:
                for column in columns:
                    strange |= column.is_valid().to_numpy()
                continue
            for _, bad in found:
                if bad is not None:
                    strange |= bad
            low[:, at], high[:, at] = found[0][0], found[-1][0]
            if len(columns) == 2:
                strange |= (low[:, at] == MISSING) != (high[:, at] == MISSING)
                strange |= codec.swapped(columns[0], columns[1], low[:, at], high[:, at])
        return low, high, strange

    def _good(self) -> NDArray[np.bool_]:
        good = np.ones(self.table.num_rows, bool)
        good[list(self.errors)] = False
        return good

    def encode(self, keys: Keys, limits: Limits) -> Encoded:
        """The boxes of the rows without an error; rows that prove wrong now join `errors`."""
        if self.column is None or self.where is None:
            return self._encode_wide(keys)
        low, high, strange = self._about_keys(keys)
        counts, exact, boxes, found = _joined(self.column.boxes(keys, low, high), self.table.num_rows)
        taken = self.column.read & self._good()
        sure = taken & (counts >= 0) & ~strange
        if not exact.all():
            sure &= ~_rows_to_anchor(self.where, boxes, exact, counts, keys)
        programs = {row: program for row, program in found.items() if sure[row]}
        left = np.flatnonzero(taken & ~sure)  # too many boxes, anchors, or `about` is one by one
        for row, where in zip(left.tolist(), self.where.take(pa.array(left)).to_pylist(), strict=True):
            self.others[row] = language.parse(where, keys.schema, role="criteria", limits=limits)
        rows, first, counts = np.flatnonzero(sure), (np.cumsum(np.maximum(counts, 0)) - counts)[sure], counts[sure]
        if self.others:
            other_rows, other_counts, other_exact, other_boxes, more = self._encode_others(keys, limits)
            programs |= more
            rows, order = _in_order(rows, other_rows)
            first = np.concatenate([first, len(boxes) + np.cumsum(other_counts) - other_counts])[order]
            counts = np.concatenate([counts, other_counts])[order]
            exact, boxes = np.concatenate([exact, other_exact]), Boxes.concat([boxes, other_boxes])
        if self.others or len(boxes) != counts.sum():
            chosen = _runs(first, counts)
            exact, boxes = exact[chosen], boxes.take(chosen)
        levels = self.priority[rows]
        whole = len(rows) == len(self.ids)
        return Encoded(
            self.ids if whole else self.ids.take(pa.array(rows)),
            self.where if whole else self.where.take(pa.array(rows)),
            levels,
            counts,
            exact,
            replace(boxes, priority=np.repeat(levels, counts)),
            _at_places(programs, rows),
        )

    def _encode_others(
        self, keys: Keys, limits: Limits
    ) -> tuple[I64, I64, NDArray[np.bool_], Boxes, dict[int, Program]]:
        """(rows, boxes per row, exact, boxes, programs by row) of the predicates that were parsed one by one, each
        compiled once."""
        rows: list[int] = []
        which: list[int] = []
        made: list[Compiled] = []
        known: dict[int, int | str] = {}
        for row, predicate in sorted(self.others.items()):
            if row in self.errors:
                continue
            about = self._about(keys.schema, row)
            place = None if about else known.get(id(predicate))
            if place is None:
                try:
                    made.append(subscription_boxes(keys, predicate, about, limits))
                    place = len(made) - 1
                except HitboxError as problem:
                    place = str(problem)
                if not about:
                    known[id(predicate)] = place
            if isinstance(place, str):
                self.errors[row] = place
            else:
                rows.append(row)
                which.append(place)
        size = np.array([len(one.boxes) for one in made], np.int64)
        counts = size[which] if which else np.zeros(0, np.int64)
        chosen = _runs((np.cumsum(size) - size)[which], counts) if which else np.zeros(0, np.int64)
        exact = np.array([sure for one in made for sure in one.exact], bool)
        anchors = [anchor for one in made for anchor in one.anchors or [b""] * len(one.boxes)]
        boxes = Boxes.of([box for one in made for box in one.boxes], anchors=anchors if any(anchors) else ())
        programs = ((row, made[at].program) for row, at in zip(rows, which, strict=True))
        return (
            np.array(rows, np.int64),
            counts,
            exact[chosen],
            boxes.take(chosen),
            {row: program for row, program in programs if program is not None},
        )

    def _encode_wide(self, keys: Keys) -> Encoded:
        """In pieces, so that the dense bounds of a wide schema never stand in memory all at once."""
        parts = [self.encode_piece(keys, start) for start in range(0, self.table.num_rows, PIECE)]
        good = np.ones(self.table.num_rows, bool)
        good[list(self.errors)] = False
        boxes = Boxes.concat([boxes for boxes, _ in parts])
        count = np.concatenate([np.zeros(0, np.int64), *(count for _, count in parts)])
        ids = self.ids.filter(pa.array(good))
        return Encoded(ids, None, self.priority[good], count, np.ones(len(boxes), bool), boxes)

    def encode_piece(self, keys: Keys, start: int) -> tuple[Boxes, I64]:
        """The boxes of the good rows of one piece, and how many each row has: one, or none if it can never match."""
        piece = self.table.slice(start, PIECE)
        low = np.full((piece.num_rows, len(keys.schema)), MISSING, np.int64)
        high = np.full((piece.num_rows, len(keys.schema)), HIGHEST, np.int64)
        for number, (name, attribute) in enumerate(keys.schema.items()):
            about = attribute.role == "information"
            if about:
                high[:, number] = MISSING
            if f"{name}_low" in piece.column_names or f"{name}_high" in piece.column_names:
                low[:, number], high[:, number] = self._bounds(keys, number, name, about, piece, start)
        good = np.ones(piece.num_rows, bool)
        good[[row - start for row in self.errors if start <= row < start + PIECE]] = False
        sound = good & ~(low > high).any(axis=1)
        priority = self.priority[start : start + PIECE]
        return Boxes.of_dense(low[sound], high[sound], priority[sound]), sound[good].astype(np.int64)

    def _bounds(self, keys: Keys, number: int, name: str, about: bool, piece: pa.Table, start: int) -> tuple[I64, I64]:
        """Closed bounds in keys; null is unbounded, both null unconstrained (or, in `about`, not said)."""
        low, high = (self._bound(keys.codecs[number], f"{name}_{end}", end, piece, start) for end in ("low", "high"))
        none = (low == MISSING) & (high == MISSING)
        low = np.where(low == MISSING, LOWEST, low)
        high = np.where(high == MISSING, HIGHEST, high)
        if about:  # a filter that nothing passes may be meant; a value with swapped ends may not
            self._blame(low > high, start, f"the ends of the interval on {name!r} are swapped: low comes first")
        return np.where(none, MISSING, low), np.where(none, MISSING if about else HIGHEST, high)

    def _bound(self, codec: Codec, column: str, end: str, piece: pa.Table, start: int) -> I64:
        """The keys of one column of bounds; null is MISSING."""
        values = decoded(piece[column])
        if pa.types.is_floating(values.type):
            values = values.cast(pa.float64())
            wrong = pc.fill_null(pc.invert(pc.is_finite(values)), False).to_numpy(zero_copy_only=False)
            self._blame(wrong, start, f"{column} is NaN or infinite; leave it null for no bound")
            values = pc.if_else(pc.is_finite(values), values, pa.scalar(None, values.type))
        if isinstance(codec, IntCodec) and (pa.types.is_floating(values.type) or pa.types.is_decimal(values.type)):
            values = pc.ceil(values) if end == "low" else pc.floor(values)  # 3.5 <= x and x <= 3.5 round inwards
        found, bad = attempt_keys(codec, column, values)
        for row in () if bad is None else np.flatnonzero(bad).tolist():
            self.errors.setdefault(start + row, f"{column}: {codec.problem(values, row)}")
        if isinstance(codec, GridCodec):
            first, last = codec.domain()
            off = (found != MISSING) & ((found % 2 != 0) | (found < first) | (found > last))
            self._blame(off, start, f"{column} does not fit; {codec.takes}")
        return found

    def _blame(self, wrong: NDArray[np.bool_], start: int, message: str) -> None:
        for row in np.flatnonzero(wrong).tolist():
            self.errors.setdefault(start + row, message)


def read(table: pa.Table, schema: Schema, limits: Limits) -> Draft:
    """Check a table's columns (a TableError if they do not fit) and parse its predicates (gathered by row)."""
    if not isinstance(table, pa.Table):
        raise TableError(f"load takes a pyarrow.Table, not {type(table).__name__}")
    if "id" not in table.column_names:
        raise TableError(f"no column 'id'; columns: {', '.join(table.column_names[:10])}")
    if len(set(table.column_names)) != len(table.column_names):
        raise TableError("two columns of the table have the same name")
    errors: dict[int, str] = {}
    table = _sound(table, schema, errors)
    ids = _ids(table["id"], errors)
    priority = _priorities(table, errors)
    draft = Draft(table, ids, priority, errors)
    if "where" in table.column_names:
        _check_columns_beside_where(table, schema)
        _parse(draft, schema, limits)
    else:
        _check_wide(table, schema)
    return draft


def last_of_each(encoded: Encoded) -> Encoded:
    """Of rows with one id the last counts."""
    ids = encoded.ids
    if interruptible(len(ids), pc.count_distinct, ids).as_py() == len(ids):
        return encoded
    codes = interruptible(len(ids), pc.dictionary_encode, ids).indices.to_numpy()
    last = np.zeros(int(codes.max()) + 1, np.int64)
    last[codes] = np.arange(len(ids))  # of equal places the last write stays
    keep = np.zeros(len(ids), bool)
    keep[last] = True
    rows = np.flatnonzero(keep)
    boxes = np.flatnonzero(np.repeat(keep, encoded.count))
    where = None if encoded.where is None else encoded.where.take(pa.array(rows))
    return Encoded(
        ids.take(pa.array(rows)),
        where,
        encoded.priority[rows],
        encoded.count[rows],
        encoded.exact[boxes],
        encoded.boxes.take(boxes),
        _at_places({row: program for row, program in encoded.programs.items() if keep[row]}, rows),
    )


def subscription_boxes(keys: Keys, predicate: Predicate, about: dict[str, Any], limits: Limits) -> Compiled:
    """The boxes of one subscription, what it says about itself included."""
    compiled = language.compile(predicate, keys, limits, anchored=True)
    information = about_box(keys, about)
    return compiled if not information else replace(compiled, boxes=[box | information for box in compiled.boxes])


def about_box(keys: Keys, about: dict[str, Any]) -> Box:
    """What a subscription says about itself; what it does not say is missing."""
    if not keys.space.information:
        return {}
    return dict.fromkeys(keys.space.information, (MISSING, MISSING)) | event_keys(keys, about, role="information")


def about_strings(schema: Schema, about: dict[str, Any]) -> Strings:
    found: Strings = {}
    for name, value in about.items():
        if schema[name].type == "string":
            try:
                plain = [text(one) for one in ends_of(value) or (value,)]
            except ValueProblem as problem:
                raise ValueProblem(f"attribute {name!r}: {problem}") from None
            found[schema.number(name)] = {one for one in plain if one is not None}
    return found


def merge_strings(into: Strings, more: dict[int, set[str]]) -> None:
    for number, texts in more.items():
        into.setdefault(number, set()).update(texts)


def _sound(table: pa.Table, schema: Schema, errors: dict[int, str]) -> pa.Table:
    """The table with its texts as plain columns; one that nothing can carry is an error of its row, and null here."""
    strings = [name for name, attribute in schema.items() if attribute.type == "string"]
    wanted = {"id", "where", *strings, *(f"{name}_{end}" for name in strings for end in ("low", "high"))}
    for column in sorted(wanted & set(table.column_names)):
        values = table[column]
        if not is_text(plain_type(values.type)):
            continue
        texts = plain_texts(values)
        bad = unsound(texts)
        if bad is not None:
            for row in np.flatnonzero(bad).tolist():
                errors.setdefault(row, f"{column} holds the character NUL, or is not UTF-8")
            texts = pc.if_else(pa.array(bad), pa.scalar(None, pa.large_string()), texts)
        table = table.set_column(table.column_names.index(column), column, texts)
    return table


def _parse(draft: Draft, schema: Schema, limits: Limits) -> None:
    if not is_text(draft.table["where"].type):
        raise TableError(f"column 'where' is a column of {draft.table['where'].type}, not of texts")
    draft.where = decoded(draft.table["where"])
    draft.information = [name for name in schema.with_role("information") if _ends(draft.table, schema, name)]
    good = draft._good()
    wanted = good & draft.where.is_valid().to_numpy(zero_copy_only=False)
    draft.column = PredicateColumn(draft.where, wanted, schema, limits)
    parsed: dict[str, Predicate | str] = {}
    rows = np.flatnonzero(good & ~draft.column.read)
    for row, where in zip(rows.tolist(), draft.where.take(pa.array(rows)).to_pylist(), strict=True):
        found = parsed.get(where)
        if found is None:
            try:
                found = language.parse(where or "", schema, role="criteria", limits=limits)
            except HitboxError as problem:
                found = str(problem)
            parsed[where] = found
        if isinstance(found, str):
            draft.errors[row] = found
        else:
            draft.others[row] = found


def _ends(table: pa.Table, schema: Schema, name: str, wide: bool = False) -> list[pa.ChunkedArray]:
    """The columns of an attribute: one of values (not in the wide layout), two of the ends of intervals, or none."""
    if name in table.column_names and not wide:
        return [table[name]]
    ends = (f"{name}_low", f"{name}_high") if wide else schema.end_columns(name)
    return [table[end] for end in ends] if all(end in table.column_names for end in ends) else []


def _joined(parts: Iterable[Columns], rows: int) -> tuple[I64, NDArray[np.bool_], Boxes, Programs]:
    """(boxes per row, exact, boxes, programs) of all pieces, which may be none; the priorities are not known here."""
    counts, exact, boxes = [np.zeros(0, np.int64)], [np.zeros(0, bool)], []
    programs: dict[int, Program] = {}
    for count, sure, offsets, attribute, low, high, some in parts:
        programs.update(some)
        counts.append(count)
        exact.append(sure.view(bool))
        boxes.append(Boxes(offsets, attribute, low, high, np.zeros(len(sure), np.uint8)))
    if not boxes:
        counts.append(np.zeros(rows, np.int64))
    return np.concatenate(counts), np.concatenate(exact), Boxes.concat(boxes), programs


def _rows_to_anchor(
    where: pa.Array | pa.ChunkedArray, boxes: Boxes, exact: NDArray[np.bool_], counts: I64, keys: Keys
) -> NDArray[np.bool_]:
    """Which rows have a pattern and a box that does not decide and tells little: `language` may know an anchor."""
    found = np.zeros(len(counts), bool)
    rows = np.repeat(np.arange(len(counts)), np.maximum(counts, 0))
    patterns = pc.fill_null(pc.match_substring(where, PATTERN, ignore_case=True), False).to_numpy(zero_copy_only=False)
    doubtful = np.flatnonzero(~exact & patterns[rows])
    found[rows[doubtful[may_have_anchors(boxes.take(doubtful), keys)]]] = True
    return found


def _in_order(one: I64, other: I64) -> tuple[I64, I64]:
    """Two sorted lists of rows as one, and where each of its rows stood in the two together."""
    rows = np.concatenate([one, other])
    order = np.argsort(rows, kind="stable")
    return rows[order], order


def _runs(first: I64, count: I64) -> I64:
    """All numbers of runs of consecutive ones."""
    ends = np.cumsum(count)
    numbers: I64 = np.arange(ends[-1] if len(ends) else 0) + np.repeat(first - (ends - count), count)
    return numbers


def _at_places(programs: Programs, rows: I64) -> Programs:
    """Programs of some rows, by the places of these rows in `rows`, which ascend."""
    places = np.searchsorted(rows, np.fromiter(programs, np.int64, len(programs))).tolist()
    return dict(zip(places, programs.values(), strict=True))


def _distinct(parts: Sequence[pa.Array]) -> pa.Array:
    texts = pa.concat_arrays(parts)
    return interruptible(len(texts), pc.unique, texts)


def _ids(column: pa.ChunkedArray, errors: dict[int, str]) -> pa.Array:
    kind = column.type
    if pa.types.is_integer(kind):
        to = pa.int64()
    elif is_text(kind):
        to = pa.large_string()
    else:
        raise TableError(f"column 'id' is a column of {kind}; ids are int64 or strings")
    try:
        ids = column.cast(to)
    except pa.ArrowInvalid as problem:
        raise TableError(f"column 'id' does not fit 64 bits: {problem}") from None
    ids = pa.concat_arrays([pa.array([], to), *ids.chunks])
    for row in np.flatnonzero(ids.is_null().to_numpy(zero_copy_only=False)).tolist():
        errors.setdefault(row, "id is null")
    return ids


def _priorities(table: pa.Table, errors: dict[int, str]) -> NDArray[np.uint8]:
    if "priority" not in table.column_names:
        return np.full(table.num_rows, DEFAULT_PRIORITY, np.uint8)
    column = table["priority"]
    if not (pa.types.is_integer(column.type) or pa.types.is_null(column.type)):
        raise TableError(f"column 'priority' is a column of {column.type}; priorities are whole numbers 0 to 9")
    levels = column.cast(pa.int64(), safe=False).fill_null(DEFAULT_PRIORITY).to_numpy()  # above 2^63 it is negative
    for row in np.flatnonzero((levels < 0) | (levels >= LEVELS)).tolist():
        errors.setdefault(row, f"priority {column[row]} is not in 0 to 9")
    clipped: NDArray[np.uint8] = np.clip(levels, 0, LEVELS - 1).astype(np.uint8)
    return clipped


def _check_columns_beside_where(table: pa.Table, schema: Schema) -> None:
    """Whatever would look like a part of a subscription and not count is an error; other columns are the caller's."""
    columns = table.column_names
    for name, attribute in schema.items():
        ends = [end for end in schema.end_columns(name) if end in columns]
        if ends and attribute.role == "criteria":
            raise TableError(
                f"the table has a column 'where' and the bounds {ends[0]!r}: say it in 'where', or drop one of the two"
            )
        if ends and name in columns:
            raise TableError(f"the table has the columns {name!r} and {ends[0]!r}: drop one of the two")
        if len(ends) == 1:
            raise TableError(f"column {ends[0]!r} is only one end of an interval: both {name}_low and {name}_high")
    if "priority" not in columns:
        for column in columns:
            if nearest(column, ["priority"]) and column not in schema:
                raise TableError(f"column {column!r} is not known; did you mean 'priority'? (rename or drop it)")


def _check_wide(table: pa.Table, schema: Schema) -> None:
    known = {f"{name}_{end}" for name in schema for end in ("low", "high")}
    strange = [c for c in table.column_names if c not in known and c not in ("id", "priority")]
    if strange:
        raise TableError(
            f"column {strange[0]!r} is neither 'where' nor a bound of an attribute{nearest(strange[0], known)} "
            "(rename or drop it)"
        )
    for column in known & set(table.column_names):
        name, _, end = column.rpartition("_")
        other = f"{name}_{'high' if end == 'low' else 'low'}"
        if other not in table.column_names:
            raise TableError(f"column {column!r} has no {other!r} beside it (all null means unbounded)")
    for name in (name for name, attribute in schema.items() if attribute.type == "string"):
        for column in {f"{name}_low", f"{name}_high"} & set(table.column_names):
            kind = table[column].type  # _sound has decoded texts
            if not (is_text(kind) or pa.types.is_null(kind)):
                raise TableError(f"column {column!r} is a column of {kind}, not of texts")
    if not known & set(table.column_names):
        raise TableError("the table has neither a column 'where' nor bounds like 'price_low' and 'price_high'")
