"""/livez and /readyz."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest

from support.broker_kit import serving


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
