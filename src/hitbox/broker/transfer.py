"""Subscriptions in bulk: a snapshot that Spark built becomes a broker's, and the other way.

Ids that are texts like "ann/cheap" name the subscriber; others belong to the subscriber that `--as` gives.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import msgspec

from hitbox.broker.errors import BadRequest, Conflict
from hitbox.broker.registry import Registry
from hitbox.broker.settings import Options, check_name
from hitbox.broker.store import Store
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
    for id in index:
        head, slash, tail = str(id).partition("/")
        if not slash and not owner:
            raise BadRequest(f"the id {id!r} names no subscriber (like 'ann/cheap'); say whose it is: --as NAME")
        name, text = (head, tail) if slash else (owner, str(id))
        about = json.dumps(index.about(id), sort_keys=True, default=str)
        yield (
            check_name(name, "subscriber"),
            check_name(text, "subscription"),
            index.where(id),
            index.priority(id),
            about,
        )


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
