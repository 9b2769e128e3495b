"""A snapshot in several parts that answer as one: what the Spark pipeline writes and reads.

    versions/00000007/manifest.json     "parts": ["part-00000-5e3a", "part-00001-91bc"]
                      dictionary0.*     one dictionary for all parts, so that keys mean the same everywhere
                      part-00000-5e3a/  catalog and matcher of the subscriptions whose id falls on part 0
                      part-00001-91bc/  ...

A subscription's part follows from its id, so a change touches one part, and the files of the others are linked. Matches
of the parts are merged event by event, most urgent first: one pass over the ids found.
"""

from __future__ import annotations

import os
import uuid
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Never

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hitbox.encoding.arrays import I64
from hitbox.encoding.keys import Keys
from hitbox.encoding.schema import Schema
from hitbox.encoding.string_dictionary import Relabel
from hitbox.errors import HitboxError
from hitbox.index import state
from hitbox.index.bad_events import Found, left_out
from hitbox.index.catalog import ID_TYPES
from hitbox.index.index import Index
from hitbox.index.load import bulk_load
from hitbox.index.matches import Matches
from hitbox.index.state import IndexState
from hitbox.storage import snapshot


def part_of(ids: pa.Array, parts: int) -> NDArray[np.int32]:
    """The part that each id belongs to: a hash that depends on the id alone."""
    if parts == 1:
        return np.zeros(len(ids), np.int32)
    if pa.types.is_integer(ids.type):
        words = ids.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False).astype(np.uint64)
        words = (words ^ (words >> np.uint64(31))) * np.uint64(0x9E3779B97F4A7C15)
        words >>= np.uint64(33)
    else:
        words = np.array([zlib.crc32((text or "").encode()) for text in ids.to_pylist()], np.uint64)
    part: NDArray[np.int32] = (words % np.uint64(parts)).astype(np.int32)
    return part


def part_name(number: int) -> str:
    """A unique name for one attempt to write this part."""
    return f"part-{number:05d}-{uuid.uuid4().hex[:8]}"


def index_of(keys: Keys, encoded: bulk_load.Encoded, matcher: str = "auto", **options: object) -> Index:
    """An index of subscriptions that are already encoded as boxes; each id occurs once."""
    contents = IndexState.empty(keys, matcher, options)
    contents.add(encoded)
    return Index.of(contents, options=options)


def write_part(folder: Path, index: Index, name: str) -> snapshot.Files:
    """Add an index to a draft as the part `name`; returns the manifest entries of its files."""
    files = snapshot.add(folder / name, index.compacted().arrays())
    return {f"{name}/{file}": facts for file, facts in files.items()}


def change_part(index: Index, relabels: Mapping[int, Relabel], gone: pa.Array, come: bulk_load.Encoded) -> int:
    """Move a part to new labels of strings, remove the ids `gone` that are there, add or replace what comes; how many
    were removed."""
    if relabels:
        index.relabelling(relabels)()
    removed = index.unsubscribe_many(gone) if len(gone) else 0
    if len(come.ids):
        index.put(come)
    return removed


class Shards:
    """A snapshot opened part by part; matches like an index."""

    def __init__(self, facts: Mapping[str, Any], keys: Keys, parts: Sequence[Index]):
        self.facts, self.keys, self.parts = facts, keys, list(parts)
        keys.shared = True

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        version: int | None = None,
        only: Iterable[int] | None = None,
        verify: bool = True,
        mapped: bool = True,
    ) -> Shards:
        """All parts of a version, or only those with these numbers; `verify` and `mapped` as in `Index.open`."""
        only = None if only is None else list(only)
        if version is None:
            return snapshot.latest(path, lambda number: cls.open(path, number, only, verify, mapped))
        facts = snapshot.facts_of(path, version)
        names = facts.get("parts", [""])
        chosen = names if only is None else [names[number] for number in only]
        _, arrays = snapshot.read(path, facts["version"], verify, chosen, mapped)
        folder = snapshot.folder_of(path, facts["version"])
        keys = state.keys_of(facts, arrays, folder)
        parts = [state.part(facts, keys, arrays, name, folder=folder) for name in chosen]
        return cls(facts, keys, [Index.of(part) for part in parts])

    @property
    def schema(self) -> Schema:
        return self.keys.schema

    def __reduce__(self) -> Never:
        raise HitboxError("shards read a snapshot in place, so they cannot be copied: open it again (Shards.open)")

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def match_batch(
        self,
        events: pa.Table,
        where: Sequence[str | None] | None = None,
        *,
        threads: int = 1,
        on_error: str = "raise",
        match_steps: int | None = None,
    ) -> Found:
        """The matches of many events, and the priority of each. `match_steps` are as in `hitbox.Limits`."""
        options: dict[str, Any] = {"on_error": on_error, "match_steps": match_steps}
        found = [part.match_with_priorities(events, where, threads, **options) for part in self.parts]
        if len(found) == 1:
            return found[0]
        return merged(found, ID_TYPES[self.facts["id_type"]], on_error)


def merged(found: Sequence[Found], kind: pa.DataType, on_error: str = "raise") -> Found:
    """The matches of all parts, event by event, most urgent first. What does not fit in one part, is too expensive
    there for example, does not fit."""
    counts = np.stack([matches.counts for matches, _ in found])
    offsets = np.zeros(counts.shape[1] + 1, np.int64)
    np.cumsum(counts.sum(axis=0), out=offsets[1:])
    starts = offsets[:-1] + np.cumsum(counts, axis=0) - counts  # where each part's run of an event begins
    ids = pa.concat_arrays([matches.ids.cast(kind) for matches, _ in found])
    priority = np.concatenate([levels for _, levels in found])
    place: I64 = np.empty(len(priority), np.int64)
    at = 0
    for (matches, _), start, count in zip(found, starts, counts, strict=True):
        run = np.arange(len(matches.ids))
        place[run + np.repeat(start - matches.offsets[:-1], count)] = at + run
        at += len(run)
    if len(priority) and priority.min() != priority.max():
        event = np.repeat(np.arange(counts.shape[1]), counts.sum(axis=0))
        place = place[np.argsort(event * 10 + (9 - priority[place].astype(np.int64)), kind="stable")]
    errors = {number: reason for matches, _ in reversed(found) for number, reason in matches.errors}
    whole = Matches(offsets, ids.take(pa.array(place)), sorted(errors.items())), priority[place]
    return left_out(whole, sorted(errors)) if on_error == "return" else whole
