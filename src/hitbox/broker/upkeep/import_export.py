"""Import a snapshot, such as one that Spark built, into a broker, and export a broker's subscriptions as a snapshot.

An id like "ann/cheap" names the subscriber; other ids belong to the subscriber that `--as` names.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from hitbox.broker.settings import Options, check_name, check_schema
from hitbox.broker.store.store import Store
from hitbox.broker.subscribers.subscriptions import SubscriptionRegistry
from hitbox.encoding.schema import Schema
from hitbox.encoding.values import with_named_ends
from hitbox.index import state
from hitbox.index.index import Index
from hitbox.index.state import IndexState
from hitbox.protocol.errors import BadRequest, Conflict

CHUNK = 50_000


def load(
    folder: Path, path: Path, owner: str = "", progress: Callable[[int, int], None] = lambda done, total: None
) -> Schema:
    """Import a snapshot into a store without subscriptions; returns the schema. `progress` gets (done, total)."""
    contents = _named(state.read(path, verify=True), owner)
    schema = check_schema(contents.keys.schema)
    store = Store(folder)
    try:
        kept = store.meta.get("schema")
        if kept is not None and Schema.from_json(kept) != schema:
            raise Conflict("the snapshot's schema is not the broker's")
        if store.subscribers.subscriptions.rows():
            raise Conflict(f"{folder} holds subscriptions already; --import is for a new broker")
        with store.transaction():
            _fill(store, contents, progress)
        with store.transaction():
            _adopt(store, contents)
    finally:
        store.close()
    return schema


def _named(contents: IndexState, owner: str) -> IndexState:
    """The snapshot with ids of the form "subscriber/subscription"."""
    slots = contents.catalog.living_slots()
    ids = contents.catalog.ids.take(slots).cast(pa.large_string())
    bare = pc.invert(pc.match_substring(ids, "/"))
    if not pc.any(bare, min_count=0).as_py():
        return contents
    if not owner:
        id = ids.filter(bare)[0].as_py()
        raise BadRequest(f"the id {id!r} names no subscriber (like 'ann/cheap'); say whose it is: --as NAME")
    whose, slash = pa.scalar(owner, ids.type), pa.scalar("/", ids.type)
    names = pc.if_else(bare, pc.binary_join_element_wise(whose, ids, slash), ids)
    counts = pc.value_counts(names)
    twice = counts.filter(pc.greater(counts.field("counts"), 1))
    if len(twice):
        raise BadRequest(f"with --as {owner} two subscriptions are called {twice[0]['values'].as_py()!r}")
    return contents.renamed(names)


def _fill(store: Store, contents: IndexState, progress: Callable[[int, int], None]) -> None:
    """Store all subscriptions in the current transaction."""
    numbers: dict[str, int] = {name: number for number, name, *_ in store.subscribers.table.scan()}
    highest = max(numbers.values(), default=0)
    options = msgspec.json.encode(Options())
    store.meta.put("schema", contents.keys.schema.to_json())
    rows, done, total = _rows(contents), 0, len(contents.catalog.living_slots())
    while chunk := list(islice(rows, CHUNK)):
        fresh = [name for name in dict.fromkeys(row[0] for row in chunk) if name not in numbers]
        numbers.update(zip(fresh, range(highest + 1, highest + 1 + len(fresh)), strict=True))
        store.subscribers.table.insert((numbers[name], name, options) for name in fresh)
        highest += len(fresh)
        store.subscribers.subscriptions.insert([(numbers[name], *rest) for name, *rest in chunk])
        done += len(chunk)
        progress(done, total)


def _rows(contents: IndexState) -> Iterator[tuple[str, str, str, int, str]]:
    for id, where, priority, about in contents.rows():
        owner, _, name = str(id).partition("/")
        about_json = json.dumps(with_named_ends(about), sort_keys=True, default=str)
        yield check_name(owner, "subscriber"), check_name(name, "subscription"), where, priority, about_json


def _adopt(store: Store, contents: IndexState) -> None:
    """Save the index as the broker's first snapshot, so that its first start need not build one."""
    version = Index.of(contents).save(store.folder / "snapshots")
    store.meta.put("snapshot", {"version": version, "change": store.subscribers.changes.next() - 1})


def export(folder: Path, path: Path) -> int:
    """Save a broker's subscriptions as a snapshot; returns its version."""
    if not (folder / "hitbox.db").is_file():
        raise BadRequest(f"{folder} holds no broker: there is no hitbox.db")
    store = Store(folder)
    try:
        kept = store.meta.get("schema")
        if kept is None:
            raise BadRequest(f"{folder} holds no broker")
        return SubscriptionRegistry(store, Schema.from_json(kept)).index.save(path)
    finally:
        store.close()
