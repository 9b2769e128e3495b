"""An index as the files of a snapshot, and back: whole, or in parts that share their dictionaries (see shards.py)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from numpy.typing import NDArray

from hitbox import snapshot
from hitbox.catalog import Catalog
from hitbox.errors import SnapshotError
from hitbox.keys import Keys
from hitbox.language import Limits
from hitbox.matchers import resolve_name, restore
from hitbox.schema import Schema

if TYPE_CHECKING:
    from hitbox.index import Index

Kind = TypeVar("Kind", bound="Index")


def facts(index: Index) -> dict[str, Any]:
    """What the manifest says of an index."""
    return {
        "schema": index.schema.to_json(),
        "subscriptions": len(index),
        "id_type": index._catalog.kind,
        "matcher": index.matcher,
    }


def arrays(index: Index) -> dict[str, NDArray[Any]]:
    """Everything but the dictionaries."""
    with index._changing():
        index._catalog.compact()
    found = {f"catalog.{name}": array for name, array in index._catalog.arrays().items()}
    return found | {f"matcher.{name}": array for name, array in index._matcher.arrays().items()}


def opened(
    cls: type[Kind],
    path: str | os.PathLike[str],
    version: int | None,
    matcher: str | None,
    limits: Limits,
    verify: bool,
    options: Mapping[str, object],
) -> Kind:
    """A snapshot as one index: memory-mapped where it has one part, joined in memory where it has several."""
    meta, found = snapshot.read(path, version, verify)
    try:
        keys = Keys.from_arrays(Schema.from_json(meta["schema"]), found)
        names = meta.get("parts", [""])
        parts = [restored(cls, meta, keys, found, name, matcher, limits, options) for name in names]
        if len(parts) == 1:
            return parts[0]
        whole = cls(keys.schema, parts[0].matcher, limits=limits, **options)
        whole._keys = keys
        for part in parts:
            absorb(whole, part)
        whole._tidy()
    except (KeyError, TypeError, IndexError) as problem:
        raise SnapshotError(f"the snapshot at {path} is damaged: {problem!r}") from problem
    return whole


def restored(
    cls: type[Kind],
    meta: Mapping[str, Any],
    keys: Keys,
    found: Mapping[str, NDArray[Any]],
    name: str,
    matcher: str | None,
    limits: Limits,
    options: Mapping[str, object],
) -> Kind:
    """One part of a snapshot (the whole, where it has no parts)."""
    index = cls(keys.schema, "brute", limits=limits)
    index._keys = keys
    prefix = f"{name}/" if name else ""
    index._catalog = Catalog.from_arrays(meta["id_type"], snapshot.part(found, f"{prefix}catalog"))
    index.matcher = resolve_name(matcher or meta["matcher"])
    boxes = snapshot.part(found, f"{prefix}matcher")
    index._matcher = restore(meta["matcher"], boxes, index.matcher, keys.space, options)
    return index


def absorb(index: Index, other: Index) -> None:
    """Take over the subscriptions of another index with the same keys, none of whose ids is in this one."""
    catalog = other._catalog
    slots = catalog.living_slots()
    theirs = catalog.boxes_of(slots)
    mine = index._catalog.add_many(
        catalog.ids.take(slots),
        catalog.where.take(slots),
        catalog.priority[slots],
        catalog.counts[slots],
        catalog.exact[theirs],
    )
    index._matcher.insert(mine, other._matcher.boxes(theirs))
