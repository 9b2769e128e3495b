"""The stream of events for the page: which of them fit what it asks for."""

from __future__ import annotations

from typing import Any

import pytest

from hitbox.broker.http import live
from hitbox.encoding.schema import Schema
from hitbox.language import parse


def test_what_fits_may_take_only_so_many_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = Schema({"a": [{"x": "int"}], "b": [{"y": "int"}]})
    wanted = parse("EXISTS(a WHERE EXISTS(b WHERE y * x = 6))", schema)
    fits: dict[str, Any] = {"event": {"a": [{"x": 2}], "b": [{"y": 3}]}}
    costly = {"event": {"a": [{"x": 1}] * 500, "b": [{"y": 1}] * 500}}
    monkeypatch.setattr(live, "LIVE_STEPS", 2_000)
    assert live._that_fit(wanted, [fits, {"event": {}}, fits]) == [fits, fits]
    assert live._that_fit(wanted, [fits, costly, fits]) == [fits]
