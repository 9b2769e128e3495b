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


OBJECTS = {"price": "float", "o": {"n": "int", "d": {"k": "string"}}, "tags": "string[]"}
CONDITIONS = {
    1: "OLD.price > price",
    2: "OLD.price IS NULL",
    3: "OLD.price IS MISSING",
    4: "o.n IS MISSING",
    5: "o.d.k IS MISSING AND o.n IS NOT MISSING",
    6: "o.n IS NULL AND o.n IS NOT MISSING",
    7: "OLD.o.n = o.n",
    8: "ANY(OLD.tags) = 'x'",
    9: "price IS MISSING",
}
IMAGE = "struct<price:double,o:struct<n:int,d:struct<k:string>>,tags:array<string>,extra:string>"
IMAGES: list[tuple[int, Any, Any]] = [
    (0, (5.0, (1, None), ["x"], "q"), (2.0, (1, ("z",)), None, None)),
    (1, None, (9.0, None, [], None)),
    (2, (1.0, None, [None, "x"], None), None),
    (3, (None, (2, None), None, None), (None, (None, None), None, None)),
]


def subscriptions(frame: Any) -> dict[int, list[int]]:
    return {row.event_id: sorted(row.subscriptions) for row in frame.collect()}


def test_a_null_object_and_two_images(spark: Any, tmp_path: Path) -> None:
    """The fields of an object that is null are missing, as in the library; and events may have an old image."""
    path = str(tmp_path / "built")
    hs.build(spark.createDataFrame(list(CONDITIONS.items()), "id long, where string"), path, OBJECTS, parts=2)
    images = spark.createDataFrame(IMAGES, f"event_id long, old {IMAGE}, new {IMAGE}")
    both = {0: [1, 7, 8], 1: [2, 3, 4], 2: [4, 8, 9], 3: [2, 5, 6]}
    plain = images.selectExpr("event_id", "new.*")
    alone = {0: [2, 3], 1: [2, 3, 4], 2: [2, 3, 4], 3: [2, 3, 5, 6]}
    index = hitbox.Index.open(path)
    for frame, wanted in ((images, both), (plain, alone)):
        table = frame.drop("event_id", "extra").toArrow()
        library = index.match_batch(table)
        assert {row: sorted(library[row]) for row in range(4)} == wanted
        assert subscriptions(hs.match(frame, path)) == wanted
        assert subscriptions(hs.match(frame, path, by_part=True)) == wanted
    images.write.parquet(str(tmp_path / "images"))
    stream = spark.readStream.schema(images.schema).parquet(str(tmp_path / "images"))
    matches = hs.match(stream, path, keep=["new", "old.extra"]).writeStream.format("memory").queryName("two_images")
    matches.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(
        availableNow=True
    ).start().awaitTermination()
    assert subscriptions(spark.table("two_images")) == both
