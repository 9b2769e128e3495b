"""index.check(): attributes that no event had, also where only an anchor names them."""

from __future__ import annotations

import hitbox


def test_lists_and_fragments() -> None:
    index = hitbox.Index(
        {"name": "string", "text": "string", "tags": "string[]", "items": [{"sku": "string"}], "price": "float"}
    )
    index.subscribe("element", "ANY(tags) = 'x'")
    index.subscribe("field", "EXISTS(items WHERE sku = 'A') AND price > 3")
    index.subscribe("fragment", "text LIKE '%abc%'")
    index.subscribe("range", "price < 10")
    found = {one.attribute: (one.subscriptions, one.ids) for one in index.check([{"name": "a"}])}
    assert found.pop("price") == (2, ["field", "range"])
    assert found == {"tags": (1, ["element"]), "items": (1, ["field"]), "text": (1, ["fragment"])}
    seen = {"price": 1.0, "tags": [], "items": [], "text": "t"}
    assert index.check([seen]) == []
