"""An ordered dictionary with gaps: strings as int64 keys that keep their order while strings come and go.

Labels are even. A string that is not in the dictionary gets the odd key just above its predecessor, so it lies between
its neighbours and equals neither: REIN's doubling of the domain, generalised.

    "Berlin"   "Paris"            "Rome"
       -4 ......  0 ................ 6         labels, even
            -3          1                      keys of unknown strings: "Oslo" -> -3, "Quito" -> 1

A new string takes a label inside the gap between its neighbours; the gaps are some 2^40 wide, and runs of strings that
arrive in order take small steps, so a gap seldom runs out. When one does, all labels are spread anew and the caller is
handed a `Relabel` to move the keys that it holds.

Layout: a frozen base (UTF-8 bytes, offsets, labels; flat arrays that may be memory-mapped) and a small sorted overlay
of strings that came later, merged into the base when it has grown. UTF-8 bytes compare as code points do.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from hitbox.boxes import HIGHEST, I64, LOWEST, MISSING
from hitbox.checks import ascending, bounds, column, require, texts
from hitbox.errors import ValueProblem

STRIDE = 2**40
STEP = 2**20
EDGE = 2**62
OVERLAY = 20_000
MEMO = 100_000


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
        self._data = memoryview(data)
        self._offsets = np.zeros(1, np.int64) if offsets is None else offsets
        self._base = np.zeros(0, np.int64) if labels is None else labels
        self._overlay: dict[bytes, int] = {}
        self._spelt: dict[int, bytes] = {}  # the overlay, by label
        self._sorted: list[bytes] = []
        self._memo: dict[str, int] = {}
        self._last = self._way = 0

    def __len__(self) -> int:
        return len(self._base) + len(self._overlay)

    def nbytes(self) -> int:
        return self._data.nbytes + self._offsets.nbytes + self._base.nbytes + 100 * len(self._overlay)

    def key(self, text: str) -> int:
        """The label of a known string, or the odd key in the gap where it would stand."""
        key = self._memo.get(text)
        if key is None:
            below, label, _ = self._place(utf8(text))
            key = label if label is not None else (LOWEST if below is None else below + 1)
            if len(self._memo) >= MEMO:
                self._memo.clear()
            self._memo[text] = key
        return key

    def string(self, key: int) -> str | None:
        """The string whose label is `key`, if there is one."""
        at = int(np.searchsorted(self._base, key))
        if at < len(self._base) and self._base[at] == key:
            return str(self._text(at), "utf-8")
        late = self._spelt.get(key)
        return None if late is None else str(late, "utf-8")

    def admit(self, texts: Collection[str]) -> Relabel | None:
        """Make sure that all of `texts` have labels; a Relabel where labels had to move."""
        new = self._unknown(texts)
        if not new:
            return None
        self._memo.clear()
        if len(new) > 64 or len(self._sorted) > OVERLAY:
            return self._merge(new)
        for raw in new:
            below, _, above = self._place(raw)
            label = self._between(below, above)
            if label is None:
                return self._merge([one for one in new if one not in self._overlay])
            self._overlay[raw] = self._last = label
            self._spelt[label] = raw
            insort(self._sorted, raw)
        return None

    def retain(self, labels: I64) -> None:
        """Forget the strings whose labels are not among `labels`; the labels of the others stay as they are."""
        self._merge([])
        kept = np.flatnonzero(np.isin(self._base, labels))
        texts, _ = self._everything()
        self._freeze(texts.take(pa.array(kept)), self._base[kept])

    def column(self, array: pa.Array) -> I64:
        """Keys of an Arrow string array; null becomes MISSING."""
        if isinstance(array, pa.ChunkedArray):
            parts = [self.column(chunk) for chunk in array.chunks]
            return np.concatenate(parts) if parts else np.zeros(0, np.int64)
        if pa.types.is_dictionary(array.type):
            return _spell_out(self.column(array.dictionary), array.indices)
        if len(array) * 8 < len(self):  # too few to pay for a hash table over the whole dictionary
            few = pc.dictionary_encode(array)
            return _spell_out(self._look_up(few.dictionary), few.indices)
        known, labels = self._everything()
        at = pc.index_in(array.cast(pa.large_binary()), value_set=known)
        keys = _spell_out(labels, at)
        strange = pc.and_(pc.is_null(at), pc.is_valid(array))
        if pc.any(strange).as_py():
            few = pc.dictionary_encode(array.filter(strange))
            keys[strange.to_numpy(zero_copy_only=False)] = _spell_out(self._look_up(few.dictionary), few.indices)
        return keys

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The whole dictionary as flat arrays."""
        self._merge([])
        return {
            "data": np.frombuffer(self._data, np.uint8),
            "offsets": self._offsets,
            "labels": self._base,
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Dictionary:
        """On arrays that may be maps of files, which are checked first."""
        labels = column(arrays, "labels", np.int64)
        ascending(labels, "labels", strictly=True)
        bounds(labels, "labels", -EDGE, EDGE)
        require(not (labels & 1).any(), "labels", "a label is odd")
        named = {"data_data": arrays.get("data"), "data_offsets": arrays.get("offsets")}
        known = texts({name: array for name, array in named.items() if array is not None}, "data", len(labels))
        raw = known.cast(pa.large_binary())
        require(pc.all(pc.less(raw[:-1], raw[1:])).as_py() is not False, "data", "its strings do not ascend")
        return cls(arrays["data"].data, arrays["offsets"], labels)

    def _look_up(self, values: pa.Array) -> I64:
        return np.array([MISSING if v is None else self.key(v) for v in values.to_pylist()], np.int64)

    def _unknown(self, texts: Collection[str]) -> list[bytes]:
        if len(texts) * 8 < len(self):
            return sorted({raw for raw in map(utf8, texts) if self._place(raw)[1] is None})
        known, _ = self._everything()
        raws = pc.unique(pa.array(list(map(utf8, texts)), pa.large_binary()))
        new = raws.filter(pc.invert(pc.is_in(raws, value_set=known)))
        return sorted(new.to_pylist())

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

    def _between(self, below: int | None, above: int | None) -> int | None:
        """An even label in the gap, or None where it has run out."""
        way = 1 if self._last == below else -1 if self._last == above else 0
        run, self._way = way == self._way, way  # strings arrive in order: leave room for the rest of the run
        if below is None and above is None:
            return 0
        if below is None or above is None:
            edge, out = (below, 1) if below is not None else (above or 0, -1)
            step = min(STRIDE, (EDGE - abs(edge)) // 2) & ~1
            return edge + out * step if step >= 2 else None
        half = (above - below) // 2
        if half < 2:
            return None
        if run and way:
            half = min(half, STEP) if way > 0 else above - below - min(half, STEP)
        return below + (half & ~1)

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

    def _merge(self, new: list[bytes]) -> Relabel | None:
        """Fold overlay and `new` into the base; labels are spread anew only where a gap is too small."""
        if not new and not self._overlay:
            return None
        known, labels = self._everything()
        texts = pa.concat_arrays([known, pa.array(new, pa.large_binary())])
        fresh = np.concatenate([np.zeros(len(labels), bool), np.ones(len(new), bool)])
        labels = np.concatenate([labels, np.zeros(len(new), np.int64)])
        order = pc.sort_indices(texts).to_numpy()
        texts, fresh, labels = texts.take(pa.array(order)), fresh[order], labels[order]
        filled = _fill(labels, fresh)
        relabel = None
        if filled is None:
            filled = _spread(len(labels))
            relabel = Relabel(labels[~fresh], filled[~fresh])
        self._freeze(texts, filled)
        return relabel

    def _freeze(self, texts: pa.Array, labels: I64) -> None:
        """Make sorted texts and their labels the base."""
        buffers = texts.buffers()
        self._data = memoryview(buffers[2]) if buffers[2] is not None else memoryview(b"")
        self._offsets = np.frombuffer(buffers[1], np.int64)[: len(texts) + 1] if len(texts) else np.zeros(1, np.int64)
        self._base = labels
        self._overlay, self._spelt, self._sorted, self._last, self._way = {}, {}, [], 0, 0
        self._memo.clear()


def _spell_out(keys: I64, at: pa.Array) -> I64:
    """keys[at], with MISSING where `at` is null."""
    places = at.cast(pa.int64()).fill_null(len(keys)).to_numpy(zero_copy_only=False)
    spelt: I64 = np.append(keys, np.int64(MISSING))[places]
    return spelt


def _spread(count: int) -> I64:
    stride = min(STRIDE, EDGE // (count + 1)) & ~1
    return (np.arange(count, dtype=np.int64) - count // 2) * stride


def _fill(labels: I64, fresh: NDArray[np.bool_]) -> I64 | None:
    """Labels for the fresh positions, evenly in the gaps between the others; None where one is too small."""
    old = np.flatnonzero(~fresh)
    if not len(old):
        return _spread(len(labels))
    position = np.arange(len(labels))
    after = np.searchsorted(old, position)  # index into `old` of the next kept label
    left, right = after - 1, after
    low = np.where(left >= 0, labels[old[np.maximum(left, 0)]], -EDGE)
    high = np.where(right < len(old), labels[old[np.minimum(right, len(old) - 1)]], EDGE)
    start = np.where(left >= 0, old[np.maximum(left, 0)], -1)
    end = np.where(right < len(old), old[np.minimum(right, len(old) - 1)], len(labels))
    step = ((high // 2 - low // 2) // (end - start)) * 2  # halves first: the difference may pass int64
    step = np.minimum(step, STRIDE)
    last_gap = right >= len(old)
    first_gap = left < 0
    up = low + step * (position - start)
    down = high - step * (end - position)
    filled = np.where(fresh, np.where(first_gap & ~last_gap, down, up), labels)
    return None if (step[fresh] < 2).any() else filled


def utf8(text: str) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        raise ValueProblem(f"{text!r:.60} holds a lone surrogate, which no text file or column can carry") from None
