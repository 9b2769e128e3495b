"""`hitbox serve --check`: what would keep a broker from starting. Opens nothing for writing."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import msgspec

from hitbox.broker.broker import SCHEMA_NEEDED
from hitbox.broker.commands.configuration import Serving
from hitbox.broker.http import connections
from hitbox.broker.http.auth import check_open_address, check_origin, is_loopback
from hitbox.broker.http.tls import Tls
from hitbox.broker.settings import Settings
from hitbox.broker.store.store import check_format
from hitbox.broker.store.tables import meta_fault
from hitbox.broker.upkeep.data_folder import check_folder, has_store
from hitbox.console.table_files import read_schema
from hitbox.encoding.schema import Schema
from hitbox.errors import HitboxError
from hitbox.protocol.errors import BadRequest, CannotListen

SCHEMA_MISSING = "schema: a new broker needs one, e.g. schema = 'price:float,city:string'"


def problems(serving: Serving) -> Iterator[str]:
    """What is wrong with the folder, the schema, the address and the origins."""
    stored: dict[str, Any] = {}
    folder = Path(serving.data)
    if not serving.data:
        yield "data: name the folder in which the broker keeps its data"
    else:
        try:
            fault = _folder_fault(folder)
            if has_store(folder) and not fault:
                stored = _stored(folder)
        except (HitboxError, apsw.Error, OSError, ValueError) as problem:
            fault = str(problem)
        if fault:
            yield f"data: {fault}"
    yield from _schema_faults(serving.schema, stored.get("schema"))
    try:
        tls = Tls.of(serving.tls_cert, serving.tls_key, serving.tls_client_ca)
    except CannotListen as problem:
        tls = None
        yield f"tls: {problem}"
    try:
        if not is_loopback(serving.host):
            check_open_address(bool(stored.get("protected")), tls is not None or serving.allow_plain_text)
    except HitboxError as problem:
        yield f"host: {problem}"
    try:
        _try_to_listen(serving)
    except CannotListen as problem:
        yield f"port: {problem}"
    for origin in serving.allow_origin:
        try:
            check_origin(origin)
        except HitboxError as problem:
            yield f"allow_origin: {problem}"


def check_new_broker(serving: Serving, has_schema: bool) -> None:
    """Raise what would refuse a new broker's start later: before there is a store, so that nothing is left behind."""
    if not has_schema:
        raise BadRequest(SCHEMA_NEEDED)
    if not is_loopback(serving.host):
        check_open_address(False, bool(serving.tls_cert) or serving.allow_plain_text)
    _try_to_listen(serving)


def _try_to_listen(serving: Serving) -> None:
    for one in connections.listen(serving.host, serving.port, connections.Doorman(Settings(), Counter())):
        one.close()


def _folder_fault(folder: Path) -> str:
    check_folder(folder)
    if folder.exists():
        for path in (folder, *(folder / name for name in ("hitbox.db", "hitbox.db-wal", "beacon", "reserve", "lock"))):
            if path.exists() and not os.access(path, os.R_OK | os.W_OK):
                return f"{path} cannot be read and written by this user"
        return ""
    above = next(one for one in folder.absolute().parents if one.exists())
    if not above.is_dir():
        return f"{above} is not a folder"
    return "" if os.access(above, os.W_OK | os.X_OK) else f"{folder} cannot be created: no right to write in {above}"


def _stored(folder: Path) -> dict[str, Any]:
    """The facts in table meta. A store that nobody has open is read without its log, which only a crash leaves."""
    shared = (folder / "hitbox.db-shm").exists()
    path = f"{(folder / 'hitbox.db').absolute().as_uri()}?mode=ro&{'readonly_shm=1' if shared else 'immutable=1'}"
    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    with contextlib.closing(apsw.Connection(path, flags=flags)) as db:
        check_format(db, folder)
        rows = [(key, value) for key, value in db.execute("SELECT key, value FROM meta") if not meta_fault(key, value)]
    return {key: msgspec.json.decode(value) for key, value in rows}


def _schema_faults(given: str, stored: Any) -> Iterator[str]:
    if not given:
        if stored is None:
            yield SCHEMA_MISSING
        return
    try:
        wanted = read_schema(given)
    except HitboxError as problem:
        yield f"schema: {problem}"
        return
    if stored is not None and Schema.from_json(stored) != wanted:
        yield "schema: the broker has another one already; change it with `hitbox admin schema change`, or leave it out"
