"""Documents on Spark: structs, arrays and arrays of structs match as in the library and the second evaluator."""

from __future__ import annotations

import random
import time
import warnings
from pathlib import Path
from typing import Any

import pyarrow as pa

import hitbox
from hitbox import spark as hs
from support.document_tables import ARROW, flat, strictly_nested
from support.random_documents import SCHEMA, TYPES, Writer, meaning, random_image
from support.second_evaluator import Unsure, World, parse, truth


def test_random_documents(spark: Any, tmp_path: Path) -> None:
    rng = random.Random(7)
    texts = {id: Writer(rng, old=False).predicate(rng.randint(0, 2)) for id in range(150)}
    rows = []
    for _ in range(25):
        row = strictly_nested(random_image(rng))
        row["order"] = row.get("order") or None
        rows.append(row)
    table = pa.Table.from_pylist(rows, ARROW)
    events = spark.createDataFrame(table.append_column("event_id", pa.array(range(len(rows)), pa.int64())))
    path = str(tmp_path / "built")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hitbox.HitboxWarning)
        index = hitbox.Index(SCHEMA)
        index.load(pa.table({"id": list(texts), "where": list(texts.values())}))
        hs.build(spark.createDataFrame(list(texts.items()), "id long, where string"), path, SCHEMA, parts=2)
    found = {row.event_id: sorted(row.subscriptions) for row in hs.match(events, path).collect()}
    library = index.match_batch(table)
    checked = 0
    for number, row in enumerate(table.to_pylist()):
        assert found[number] == sorted(library[number])
        world = World(meaning(flat(row)) or {}, None, time.time_ns() // 1000)
        for id, text in texts.items():
            try:
                wanted = truth(parse(text, TYPES), TYPES, world) is True
            except Unsure:
                continue
            assert (id in found[number]) == wanted, f"{text!r} of {row!r}"
            checked += 1
    assert checked > 2000
