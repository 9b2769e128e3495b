"""The access log: one line per request and per WebSocket, at level info. It holds no token, query or content.

Refused requests are counted here too, at every level.
"""

from __future__ import annotations

import asyncio
import logging

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hitbox.broker.clock import time
from hitbox.broker.logs import ACCESS
from hitbox.broker.stats import Statistics

MOST_CHARACTERS = 500
"""Of a path."""
CANCELLED = 499
log = logging.getLogger(ACCESS)


class AccessLog:
    """Writes the line when the answer is complete, or the WebSocket closed. Its status is the close code then."""

    def __init__(self, app: ASGIApp, statistics: Statistics):
        self.app, self.statistics = app, statistics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        started, status, size = time.perf_counter_ns(), 0, 0

        async def count(message: Message) -> None:
            nonlocal status, size
            match message["type"]:
                case "http.response.start" | "websocket.http.response.start":
                    status = message["status"]
                    self.statistics.count_refusal(status)
                case "http.response.body" | "websocket.http.response.body":
                    size += len(message.get("body", b""))
                case "websocket.send":
                    size += len(message.get("bytes") or message.get("text") or b"")
                case "websocket.close":
                    status = status or message.get("code", 1000)
            await send(message)

        async def watch() -> Message:
            nonlocal status
            message = await receive()
            if message["type"] == "websocket.disconnect":
                status = status or message.get("code") or 1005
            return message

        try:
            await self.app(scope, watch, count)
        except asyncio.CancelledError:
            status = status or CANCELLED
            raise
        except BaseException:
            status = 500
            raise
        finally:
            if log.isEnabledFor(logging.INFO):
                line = scope.get("extensions", {}).get("hitbox")  # see connections.py
                size += line.sent_bytes if line is not None else 0
                _write(scope, status, size, (time.perf_counter_ns() - started) / 1e6)


def _write(scope: Scope, status: int, size: int, milliseconds: float) -> None:
    raw = scope.get("raw_path") or scope["path"].encode("utf-8", "replace")
    host, port = scope.get("client") or ("", 0)
    fields = {
        "method": scope.get("method", "WEBSOCKET"),
        "path": raw.decode("ascii", "backslashreplace")[:MOST_CHARACTERS], "status": status, "bytes": size,
        "ms": round(milliseconds, 3), "client": f"{host}:{port}", "principal": scope.get("principal", ""),
    }  # fmt: skip
    log.info(
        "%s %s %d, %d bytes, %.3f ms, client %s, principal %s", *fields.values(), extra={"fields": fields}
    )  # fmt: skip
