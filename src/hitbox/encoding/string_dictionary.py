"""An ordered dictionary with gaps: strings as int64 keys that keep their order while strings come and go.

Labels are even. A string that is not in the dictionary gets the odd key just above its predecessor, so it lies between
its neighbours and equals neither: REIN's doubling of the domain, generalised.

    "Berlin"   "Paris"            "Rome"
       -4 ......  0 ................ 6         labels, even
            -3          1                      keys of unknown strings: "Oslo" -> -3, "Quito" -> 1

A new string takes a label inside the gap between its neighbours; the gaps are some 2^40 wide, and runs of strings that
arrive in order take small steps, so a gap seldom runs out. When one does, all labels are spread again and the
caller gets a `Relabel` that moves its keys.

Layout: a frozen base (UTF-8 bytes, offsets, labels; flat arrays that may be memory-mapped) and a small sorted overlay
of strings that came later, merged into the base when it has grown. UTF-8 bytes compare as code points do.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hitbox.concurrency.interruptible import interruptible
from hitbox.encoding import arrow_compute as pc
from hitbox.encoding.array_checks import ascending, bounds, column, require, texts
from hitbox.encoding.arrays import HIGHEST, I64, LOWEST, MISSING
from hitbox.encoding.values import check_text
from hitbox.errors import ValueProblem

LABEL_STRIDE = 2**40
RUN_STEP = 2**20
MAX_LABEL = 2**62
MAX_OVERLAY = 20_000
MAX_MEMO = 100_000
MAX_GAP_SEARCHES = 64
"""Up to this many new strings each look for a gap; more are merged into the base."""
NO_TEXTS = pa.nulls(0, pa.large_binary())  # pa.array would import pandas

Texts: TypeAlias = Collection[str] | pa.Array
"""Strings, or an Arrow array of them without nulls."""


@dataclass(frozen=True, slots=True)
class Relabel:
    """Moves keys from old labels to new ones. A bound is a label, or one above it (low), or one below it (high)."""

    old: I64
    new: I64

    def lows(self, keys: I64) -> I64:
        at = np.searchsorted(self.old, keys, side="right") - 1
        known = (at >= 0) & ~self._fixed(keys)
        label = at[known]
        moved = keys.copy()
        moved[known] = self.new[label] + (keys[known] - self.old[label])
        return moved

    def highs(self, keys: I64) -> I64:
        at = np.searchsorted(self.old, keys, side="left")
        known = (at < len(self.old)) & ~self._fixed(keys)
        label = at[known]
        moved = keys.copy()
        moved[known] = self.new[label] - (self.old[label] - keys[known])
        return moved

    @staticmethod
    def _fixed(keys: I64) -> NDArray[np.bool_]:
        return np.isin(keys, [MISSING, LOWEST, HIGHEST])


class Dictionary:
    """Strings in order, each with an even label."""

    def __init__(self, data: bytes | memoryview = b"", offsets: I64 | None = None, labels: I64 | None = None):
        offsets = np.zeros(1, np.int64) if offsets is None else offsets
        self.current: list[Any] = [None]
        """What native code needs to do what `key` does (src/engine/bindings/labels.hpp): one tuple, another one after
        each change."""
        self._hold(memoryview(data), offsets, np.zeros(0, np.int64) if labels is None else labels)
        self.memo: dict[str, int] = {}
        """The keys of strings that were asked for."""

    def _hold(self, data: memoryview, offsets: I64, labels: I64) -> None:
        """Make this the base, without an overlay."""
        self._data, self._offsets, self._base = data, offsets, labels
        self._overlay: dict[bytes, int] = {}
        self._spelt: dict[int, bytes] = {}  # the overlay, by label
        self._sorted: list[bytes] = []
        self._last = self._way = 0
        self._show()

    def _show(self) -> None:
        self.current[0] = self._data, self._offsets, self._base, self._sorted, self._overlay

    def __len__(self) -> int:
        return len(self._base) + len(self._overlay)

    def nbytes(self) -> int:
        return self._data.nbytes + self._offsets.nbytes + self._base.nbytes + 100 * len(self._overlay)

    def key(self, text: str) -> int:
        """The label of a known string, or the odd key in the gap where it would stand."""
        key = self.memo.get(text)
        if key is None:
            below, label, _ = self._place(utf8(text))
            key = label if label is not None else (LOWEST if below is None else below + 1)
            if len(self.memo) >= MAX_MEMO:
                self.memo.clear()
            self.memo[text] = key
        return key

    def string(self, key: int) -> str | None:
        """The string whose label is `key`, if there is one."""
        at = int(np.searchsorted(self._base, key))
        if at < len(self._base) and self._base[at] == key:
            return str(self._text(at), "utf-8")
        late = self._spelt.get(key)
        return None if late is None else str(late, "utf-8")

    def admit(self, texts: Texts) -> Relabel | None:
        """Make sure that all of `texts` have labels; a Relabel where labels had to move."""
        relabel, commit = self.admitting(texts)
        commit()
        return relabel

    def admitting(self, texts: Texts) -> tuple[Relabel | None, Callable[[], None]]:
        """Prepare labels for all of `texts`: a Relabel where labels have to move, and the commit, which is short and
        must be alone; before it nothing changes."""
        new = self._unknown(texts)
        if not len(new):
            return None, lambda: None
        found = (
            self._in_gaps(sorted(new.to_pylist()))
            if len(new) <= MAX_GAP_SEARCHES and len(self._sorted) <= MAX_OVERLAY
            else None
        )
        if found is None:
            known, labels, relabel = self._merged(new)
            return relabel, self._frozen(known, labels)
        places, last, way = found
        spelt = {label: raw for raw, label in places.items()}

        def commit() -> None:
            self.memo.clear()
            self._overlay.update(places)
            self._spelt.update(spelt)
            for raw in places:
                insort(self._sorted, raw)
            self._last, self._way = last, way
            self._show()

        return None, commit

    def retaining(self, labels: I64) -> Callable[[], None]:
        """Prepare to forget the strings whose labels are not among `labels`; the labels of the others stay as they
        are."""
        texts, known, _ = self._merged(NO_TEXTS)
        kept = np.flatnonzero(np.isin(known, labels))
        return self._frozen(texts.take(pa.array(kept)), known[kept])

    def column(self, array: pa.Array) -> I64:
        """Keys of an Arrow string array; null becomes MISSING."""
        if isinstance(array, pa.ChunkedArray):
            parts = [self.column(chunk) for chunk in array.chunks]
            return np.concatenate(parts) if parts else np.zeros(0, np.int64)
        if pa.types.is_dictionary(array.type):
            return _spell_out(self.column(array.dictionary), array.indices)
        if pa.types.is_string_view(array.type):  # Arrow lacks functions for views
            array = array.cast(pa.large_string())
        if len(array) * 8 < len(self):  # too few to pay for a hash table over the whole dictionary
            few = pc.dictionary_encode(array)
            return _spell_out(self._look_up(few.dictionary), few.indices)
        known, labels = self._everything()
        wanted = array.cast(pa.large_binary())
        at = interruptible(len(wanted) + len(known), pc.index_in, wanted, value_set=known)
        keys = _spell_out(labels, at)
        strange = pc.and_(pc.is_null(at), pc.is_valid(array))
        if pc.any(strange).as_py():
            few = pc.dictionary_encode(array.filter(strange))
            keys[strange.to_numpy(zero_copy_only=False)] = _spell_out(self._look_up(few.dictionary), few.indices)
        return keys

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The whole dictionary as flat arrays; it stays as it is, and may be read meanwhile."""
        texts, labels, _ = self._merged(NO_TEXTS)
        data, offsets = _flat(texts)
        return {"data": np.frombuffer(data, np.uint8), "offsets": offsets, "labels": labels}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Dictionary:
        """On arrays that may be maps of files, which are checked first."""
        labels = column(arrays, "labels", np.int64)
        ascending(labels, "labels", strictly=True)
        bounds(labels, "labels", -MAX_LABEL, MAX_LABEL)
        require(not (labels & 1).any(), "labels", "a label is odd")
        named = {"data_data": arrays.get("data"), "data_offsets": arrays.get("offsets")}
        known = texts({name: array for name, array in named.items() if array is not None}, "data", len(labels))
        raw = known.cast(pa.large_binary())
        require(pc.all(pc.less(raw[:-1], raw[1:])).as_py() is not False, "data", "its strings do not ascend")
        return cls(arrays["data"].data, arrays["offsets"], labels)

    def _look_up(self, values: pa.Array) -> I64:
        try:
            texts = values.to_pylist()
        except UnicodeDecodeError:
            raise ValueProblem("a text of the column is not UTF-8") from None
        return np.array([MISSING if v is None else self.key(v) for v in texts], np.int64)

    def _unknown(self, texts: Texts) -> pa.Array:
        """Those without a label, each once, as bytes."""
        if not isinstance(texts, pa.Array) and len(texts) > MAX_GAP_SEARCHES:
            with contextlib.suppress(UnicodeEncodeError):  # `utf8` says which one is at fault
                texts = pa.array(list(texts), pa.large_string())
        if isinstance(texts, pa.Array):
            check_texts(texts)
            raws = interruptible(len(texts), pc.unique, texts.cast(pa.large_binary()))
        else:
            raws = pa.array(set(map(utf8, texts)), pa.large_binary())
        if len(raws) * 8 < len(self):
            return pa.array([raw for raw in raws.to_pylist() if self._place(raw)[1] is None], pa.large_binary())
        known, _ = self._everything()
        there = interruptible(len(raws) + len(known), pc.is_in, raws, value_set=known)
        return raws.filter(pc.invert(there))

    def _text(self, at: int) -> memoryview:
        return self._data[int(self._offsets[at]) : int(self._offsets[at + 1])]

    def _place(self, raw: bytes) -> tuple[int | None, int | None, int | None]:
        """The nearest label below, the string's own, the nearest above."""
        low, high = 0, len(self._base)
        while low < high:
            middle = (low + high) // 2
            if bytes(self._text(middle)) < raw:
                low = middle + 1
            else:
                high = middle
        own = int(self._base[low]) if low < len(self._base) and bytes(self._text(low)) == raw else None
        above = low + (own is not None)
        labels_below = [int(self._base[low - 1])] if low else []
        labels_above = [int(self._base[above])] if above < len(self._base) else []
        if self._sorted:
            own = self._overlay.get(raw, own)
            at = bisect_left(self._sorted, raw)
            after = at + (at < len(self._sorted) and self._sorted[at] == raw)
            labels_below += [self._overlay[self._sorted[at - 1]]] if at else []
            labels_above += [self._overlay[self._sorted[after]]] if after < len(self._sorted) else []
        return max(labels_below, default=None), own, min(labels_above, default=None)

    def _in_gaps(self, new: list[bytes]) -> tuple[dict[bytes, int], int, int] | None:
        """Labels for sorted new strings in the gaps between their neighbours, and what the next string needs to know of
        the last one; None where a gap has run out."""
        places: dict[bytes, int] = {}
        last, way = self._last, self._way
        for raw in new:
            below, _, above = self._place(raw)
            if places:  # the ones before it are smaller
                below = last if below is None else max(below, last)
            label, way = _between(below, above, last, way)
            if label is None:
                return None
            places[raw] = last = label
        return places, last, way

    def _everything(self) -> tuple[pa.Array, I64]:
        """All strings as one Arrow array and their labels, in no particular order."""
        self_base = pa.Array.from_buffers(
            pa.large_binary(), len(self._base), [None, pa.py_buffer(self._offsets), pa.py_buffer(self._data)]
        )
        if not self._overlay:
            return self_base, self._base
        extra = pa.array(list(self._overlay), pa.large_binary())
        return (
            pa.concat_arrays([self_base, extra]),
            np.concatenate([self._base, np.fromiter(self._overlay.values(), np.int64)]),
        )

    def _merged(self, new: pa.Array) -> tuple[pa.Array, I64, Relabel | None]:
        """All strings and `new` in order, and their labels, which are spread again only where a gap is too small."""
        known, labels = self._everything()
        if not len(new) and not self._overlay:
            return known, labels, None
        texts = pa.concat_arrays([known, new])
        fresh = np.concatenate([np.zeros(len(labels), bool), np.ones(len(new), bool)])
        labels = np.concatenate([labels, np.zeros(len(new), np.int64)])
        order = interruptible(len(texts), pc.sort_indices, texts).to_numpy()
        texts, fresh, labels = texts.take(pa.array(order)), fresh[order], labels[order]
        filled = _fill(labels, fresh)
        if filled is not None:
            return texts, filled, None
        filled = _spread(len(labels))
        return texts, filled, Relabel(labels[~fresh], filled[~fresh])

    def _frozen(self, texts: pa.Array, labels: I64) -> Callable[[], None]:
        """Prepare to make sorted texts and their labels the base."""
        data, offsets = _flat(texts)

        def commit() -> None:
            self._hold(data, offsets, labels)
            self.memo.clear()

        return commit


def _flat(texts: pa.Array) -> tuple[memoryview, I64]:
    """The bytes of texts, and where each begins."""
    _, starts, raw = texts.buffers()
    offsets = np.frombuffer(starts, np.int64)[: len(texts) + 1] if len(texts) else np.zeros(1, np.int64)
    return memoryview(raw) if raw is not None else memoryview(b""), offsets


def _between(below: int | None, above: int | None, last: int, before: int) -> tuple[int | None, int]:
    """An even label in the gap, or None where it has run out; and on which side of it the last new string lies."""
    way = 1 if last == below else -1 if last == above else 0
    run = way == before  # strings arrive in order: leave room for the rest of the run
    if below is None and above is None:
        return 0, way
    if below is None or above is None:
        edge, out = (below, 1) if below is not None else (above or 0, -1)
        step = min(LABEL_STRIDE, (MAX_LABEL - abs(edge)) // 2) & ~1
        return (edge + out * step if step >= 2 else None), way
    half = (above - below) // 2
    if half < 2:
        return None, way
    if run and way:
        half = min(half, RUN_STEP) if way > 0 else above - below - min(half, RUN_STEP)
    return below + (half & ~1), way


def _spell_out(keys: I64, at: pa.Array) -> I64:
    """keys[at], with MISSING where `at` is null."""
    places = at.cast(pa.int64()).fill_null(len(keys)).to_numpy(zero_copy_only=False)
    spelt: I64 = np.append(keys, np.int64(MISSING))[places]
    return spelt


def _spread(count: int) -> I64:
    stride = min(LABEL_STRIDE, MAX_LABEL // (count + 1)) & ~1
    return (np.arange(count, dtype=np.int64) - count // 2) * stride


def _fill(labels: I64, fresh: NDArray[np.bool_]) -> I64 | None:
    """Labels for the fresh positions, evenly in the gaps between the others; None where one is too small."""
    old = np.flatnonzero(~fresh)
    if not len(old):
        return _spread(len(labels))
    position = np.arange(len(labels))
    after = np.searchsorted(old, position)  # index into `old` of the next kept label
    left, right = after - 1, after
    low = np.where(left >= 0, labels[old[np.maximum(left, 0)]], -MAX_LABEL)
    high = np.where(right < len(old), labels[old[np.minimum(right, len(old) - 1)]], MAX_LABEL)
    start = np.where(left >= 0, old[np.maximum(left, 0)], -1)
    end = np.where(right < len(old), old[np.minimum(right, len(old) - 1)], len(labels))
    step = ((high // 2 - low // 2) // (end - start)) * 2  # halves first: the difference may pass int64
    step = np.minimum(step, LABEL_STRIDE)
    last_gap = right >= len(old)
    first_gap = left < 0
    up = low + step * (position - start)
    down = high - step * (end - position)
    filled = np.where(fresh, np.where(first_gap & ~last_gap, down, up), labels)
    return None if (step[fresh] < 2).any() else filled


def check_texts(texts: pa.Array) -> None:
    """An error where one of the texts may not be held."""
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        raise ValueProblem("a text of the column is not UTF-8") from None
    bad = pc.match_substring(texts, "\0")
    if pc.any(bad).as_py():
        check_text(texts.filter(bad)[0].as_py())


def utf8(text: str) -> bytes:
    check_text(text)
    return text.encode("utf-8")
