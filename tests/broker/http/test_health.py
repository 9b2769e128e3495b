"""/livez and /readyz."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest

from hitbox.broker.broker import Broker
from support.broker_kit import serving


def test_whether_it_lives_looks_at_nothing_that_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as (broker, url), httpx.AsyncClient(base_url=url) as http:
            monkeypatch.delattr(Broker, "problems")
            assert (await http.get("/livez")).status_code == 200
            monkeypatch.undo()
            broker.backlog._pins = None  # type: ignore[assignment,method-assign]  # is asked now and then, not now
            assert (await http.get("/readyz")).json()["status"] == "ok"

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("fault", "status", "check", "alive"),
    [
        ("", 200, "", True),
        ("closing", 503, "open", True),
        ("full", 507, "room", True),
        ("failed", 503, "writer", False),
    ],
)
def test_health(tmp_path: Path, fault: str, status: int, check: str, alive: bool) -> None:
    async def scenario() -> None:
        async with (
            serving(tmp_path, principals=["ops"]) as (broker, url),
            httpx.AsyncClient(base_url=url) as http,
        ):
            if fault == "full":
                broker.writer.full, broker.writer.reason = True, "the disk is full"
            elif fault == "closing":
                broker.closing = True
            elif fault == "failed":
                broker.failed = OSError("no disk")
            ready, live = await http.get("/readyz"), await http.get("/livez")
            broker.closing = broker.writer.full = False
            broker.failed = None
            assert (ready.status_code, live.status_code) == (status, 200 if alive else 503)
            found = ready.json()
            assert found["ok"] is (status == 200)
            assert list(found["checks"]) == ["started", "open", "writer", "room"]
            for name, one in found["checks"].items():
                assert one["ok"] is (name != check)
                assert bool(one["reason"]) is (name == check)
            assert live.json() == {"ok": alive, "reason": "" if alive else found["reason"]}
            assert (await http.get("/healthz")).status_code == 404

    asyncio.run(scenario())
