"""Subscriptions in bulk: a snapshot that Spark built becomes a broker's, and the other way.

Ids that are texts like "ann/cheap" name the subscriber; others belong to the subscriber that `--as` gives.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import msgspec

from hitbox import events
from hitbox.broker.errors import BadRequest, Conflict
from hitbox.broker.registry import Registry
from hitbox.broker.settings import Options, check_name
from hitbox.broker.store import Store
from hitbox.catalog import Id
from hitbox.explained import describe_box
from hitbox.index import Index
from hitbox.schema import Schema

CHUNK = 50_000


def load(folder: Path, path: Path, owner: str = "") -> Schema:
    """Put a snapshot's subscriptions into a store that has none; its schema."""
    index = Index.open(path, verify=True)
    store = Store(folder)
    try:
        kept = store.get("schema")
        if kept is not None and Schema.from_json(kept) != index.schema:
            raise Conflict("the snapshot's schema is not the broker's")
        if store.subscriptions.rows():
            raise Conflict(f"{folder} holds subscriptions already; --import is for a new broker")
        _fill(store, index, owner)
        if all("/" in str(id) for id in islice(iter(index), 1)):
            _adopt(store, index)
    finally:
        store.rollback()
        store.close()
    return index.schema


def _fill(store: Store, index: Index, owner: str) -> None:
    """All in one transaction: either the whole snapshot is there, or nothing of it."""
    numbers: dict[str, int] = {name: number for number, name, *_ in store.subscribers.scan()}
    store.begin()
    store.keep("schema", index.schema.to_json())
    rows = _rows(index, owner)
    while chunk := list(islice(rows, CHUNK)):
        for name in {name for name, *_ in chunk} - set(numbers):
            numbers[name] = max(numbers.values(), default=0) + 1
            store.put_subscriber(numbers[name], name, msgspec.json.encode(Options()))
        store.subscriptions.insert([(numbers[name], *rest) for name, *rest in chunk])
    store.commit()


def _rows(index: Index, owner: str) -> Iterator[tuple[str, str, str, int, str]]:
    for id, where, priority, about in _dump(index):
        head, slash, tail = str(id).partition("/")
        if not slash and not owner:
            raise BadRequest(f"the id {id!r} names no subscriber (like 'ann/cheap'); say whose it is: --as NAME")
        name, text = (head, tail) if slash else (owner, str(id))
        yield check_name(name, "subscriber"), check_name(text, "subscription"), where, priority, about


def _dump(index: Index) -> Iterator[tuple[Id, str, int, str]]:
    """(id, where, priority, about) of everything, a chunk at a time: asking the index one by one would take hours."""
    catalog, keys = index._catalog, index._keys
    slots = catalog.living_slots()
    for start in range(0, len(slots), CHUNK):
        part = slots[start : start + CHUNK]
        texts = catalog.where.take(part).to_pylist()
        told = ["{}"] * len(part)
        if None in texts or keys.space.information:
            numbers = catalog.boxes_of(part)
            first = dict(zip(catalog.owner[numbers].tolist()[::-1], range(len(numbers) - 1, -1, -1), strict=True))
            boxes = index._matcher.boxes(numbers)
            for at, slot in enumerate(part.tolist()):
                box = boxes[first[slot]] if slot in first else None
                if texts[at] is None:
                    texts[at] = "FALSE" if box is None else describe_box(keys, box)
                if keys.space.information and box is not None:
                    told[at] = json.dumps(events.told(keys, box), sort_keys=True, default=str)
        yield from zip(catalog.id_list(part), texts, catalog.priority[part].tolist(), told, strict=True)


def _adopt(store: Store, index: Index) -> None:
    """The snapshot itself is the broker's first: it opens without building anything."""
    version = index.save(store.folder / "snapshots")
    store.begin()
    store.keep("snapshot", {"version": version, "change": store.changes.next() - 1})
    store.commit()


def export(folder: Path, path: Path) -> int:
    """Save a broker's subscriptions as a snapshot; its version."""
    store = Store(folder)
    try:
        kept = store.get("schema")
        if kept is None:
            raise BadRequest(f"{folder} holds no broker")
        return Registry(store, Schema.from_json(kept)).index.save(path)
    finally:
        store.close()
