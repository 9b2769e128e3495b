"""Files of boxes carry programs, and move them to the labels of the snapshot."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from hitbox import Schema, language
from hitbox.encoding.keys import Keys
from hitbox.index import sharded
from hitbox.index.load import bulk_load
from hitbox.language import DEFAULT_LIMITS
from hitbox.spark import box_files


def test_programs_travel_with_boxes(tmp_path: Path) -> None:
    schema = Schema({"a": "int", "s": "string"})
    texts: dict[int, str] = {}
    names = []
    for part in range(2):  # each file has labels of its own
        unlike = ", ".join(f"'w{part}{n}'" for n in range(20))
        some = {100 * part + n: f"s NOT IN ({unlike}, 'v{n}') AND a <> {n}" if n % 3 else f"a = {n}" for n in range(30)}
        texts |= some
        keys = Keys(schema)
        table = pa.table({"id": list(some), "where": list(some.values())})
        draft = bulk_load.read(table, schema, DEFAULT_LIMITS)
        keys.admit(draft.strings(keys))
        encoded = draft.encode(keys, DEFAULT_LIMITS)
        names.append(box_files.write(str(tmp_path), draft, encoded, keys, 2, None))
    keys = box_files.label(str(tmp_path), names, Keys(schema))
    rows, _ = box_files.settle(box_files.read(str(tmp_path), names, range(2), box_files.schema("int", None), True))
    found = box_files.unpack(rows)
    assert len(found.programs) == 40
    index = sharded.index_of(keys, found)
    for word in ("w03", "w13", "v4", "u", "w030"):
        for number in range(5):
            event = {"a": number, "s": word}
            right = {id for id, text in texts.items() if language.evaluate(index.parse(text), event) is True}
            assert set(index.match(event)) == right
