"""Boxes with anchors in the files between the two steps of a build."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from hitbox import Schema
from hitbox.encoding.keys import Keys
from hitbox.index.load import bulk_load
from hitbox.index.sharded import index_of
from hitbox.language import DEFAULT_LIMITS
from hitbox.spark import box_files


def test_files_with_anchors_and_without_join(tmp_path: Path) -> None:
    schema = Schema({"s": "string", "n": "int", "tags": "string[]"})
    names = []
    for ids, texts in (
        ([1, 2], ["n = 1 OR n = 5", "s = 'q'"]),
        ([3, 4, 5, 6], ["s LIKE '%abc%' OR n = 3", "ANY(tags) = 'x'", "n > 2 OR s LIKE '%zz%'", "bad ="]),
    ):
        draft = bulk_load.read(pa.table({"id": ids, "where": texts}), schema, DEFAULT_LIMITS)
        keys = Keys(schema)
        keys.admit(draft.strings(keys))
        encoded = draft.encode(keys, DEFAULT_LIMITS)
        names.append(box_files.write(str(tmp_path), draft, encoded, keys, 2, None))
    labels = box_files.label(str(tmp_path), names, Keys(schema))
    rows = box_files.read(str(tmp_path), names, [0, 1], box_files.schema("int", None), labelled=True)
    good, bad = box_files.settle(rows)
    assert bad["id"].to_pylist() == ["6"]
    index = index_of(labels, box_files.unpack(good))
    assert len(index._state.anchors) == 3
    assert sorted(index.match({"s": "xabcx", "n": 1})) == [1, 3]
    assert sorted(index.match({"n": 3, "tags": ["x"]})) == [3, 4, 5]
    assert index.match({"s": "q", "n": 0}) == [2]
