"""The broker's web application: HTTP and JSON, WebSockets, Server-Sent Events, metrics, and the page.

application(broker, access)    an ASGI application
serve(...)                     runs it with uvicorn until a signal
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import signal
import socket
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket

from hitbox.broker import backup, metrics
from hitbox.broker.broker import Broker
from hitbox.broker.errors import BadRequest, Overloaded, StoreFailed
from hitbox.broker.http import connections, health, openapi, request_bodies, routes
from hitbox.broker.http.access_log import AccessLog
from hitbox.broker.http.auth import AccessControl, RateLimiter
from hitbox.broker.http.error_responses import describe, status_of
from hitbox.broker.http.lookups import Lookups
from hitbox.broker.http.websocket import Session
from hitbox.broker.logs import without_message
from hitbox.errors import HitboxError

PAGE = Path(__file__).parent.parent / "page"
PUBLIC_PATHS = ("/", "/livez", "/readyz")
LIVE_SECONDS = 1.0
LATEST = 20
"""Number of events that the page lists."""
SWITCH_SECONDS = 0.0005
"""How long the writer thread waits for Python's interpreter lock while the event loop is busy; the default is 0.005."""
SECURITY_HEADERS = {
    "content-security-policy": "default-src 'self'; style-src 'self' 'unsafe-inline'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}
log = logging.getLogger("hitbox.broker")


class AccessMiddleware:
    """Checks Host, Origin and token of every request before any handler runs."""

    def __init__(self, app: ASGIApp, access: AccessControl):
        self.app, self.access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        path = scope["path"]
        try:
            headers = _headers(scope["headers"])
            self.access.check_page(headers)
            public = path in PUBLIC_PATHS or path.startswith("/page/")
            scope["principal"] = "" if public else self.access.principal(headers, scope.get("subprotocols", ()))
        except HitboxError as problem:
            await error_response(problem)(scope, receive, send)  # for a WebSocket this replaces the handshake
            return
        await self.app(scope, receive, send)


def _headers(raw: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Headers by name. Those that decide about access must not come twice: a proxy might have checked the other one."""
    found: dict[str, str] = {}
    for name, value in raw:
        key = name.decode("latin-1")
        if key in found and key in ("host", "origin", "authorization"):
            raise BadRequest(f"the header {key} came twice")
        found[key] = value.decode("latin-1")
    return found


def json_response(found: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    body = b"" if status == 204 else msgspec.json.encode(found)
    kind = None if status == 204 else "application/json"
    return Response(body, status, {**SECURITY_HEADERS, **(headers or {})}, kind)


def error_response(problem: HitboxError) -> Response:
    headers = {"retry-after": str(math.ceil(problem.retry_after))} if isinstance(problem, Overloaded) else {}
    return json_response(describe(problem), status_of(problem), headers)


def application(broker: Broker, access: AccessControl, version: str = "1") -> Starlette:
    rate_limiter = RateLimiter(broker.settings.publish_rate)
    lookups = Lookups(broker.settings.max_lookups)
    connected: Counter[str] = Counter()

    def endpoint(by_method: dict[str, routes.Route]) -> Any:
        async def run(request: Request) -> Response:
            route = by_method["GET" if request.method == "HEAD" else request.method]
            call = routes.Call(broker, access, rate_limiter, lookups, request, request.scope["principal"])
            call.query = _query(request, route.query)
            if route.body is not None and not route.raw:
                if request_bodies.kind_of(request) != "application/json":
                    raise BadRequest("the content type must be application/json")
                data = await request_bodies.read(request, broker.settings.max_body_bytes)
                call.body = request_bodies.decode(data, route.body)
            return json_response(await route.run(call), route.status)

        return run

    async def connect(socket: WebSocket) -> None:
        principal = socket.scope["principal"]
        if broker.closing:
            await socket.send_denial_response(error_response(StoreFailed("the broker is shutting down")))
            return
        if connected[principal] >= broker.settings.max_connections:
            problem = Overloaded(f"{principal} has {broker.settings.max_connections} connections, which is the maximum")
            await socket.send_denial_response(error_response(problem))
            return
        connected[principal] += 1
        try:
            await Session(socket, broker, rate_limiter, principal).run()
        finally:
            connected[principal] -= 1

    async def live(request: Request) -> Response:
        return StreamingResponse(_live(broker), media_type="text/event-stream", headers=SECURITY_HEADERS)

    async def livez(request: Request) -> Response:
        return json_response(*health.liveness(broker))

    async def readyz(request: Request) -> Response:
        return json_response(*health.readiness(broker))

    async def prometheus(request: Request) -> Response:
        return Response(metrics.exposition(broker), media_type="text/plain; version=0.0.4", headers=SECURITY_HEADERS)

    async def description(request: Request) -> Response:
        return json_response(openapi.describe(version))

    async def send_backup(request: Request) -> Response:
        """A copy of the store as of one moment: a SQLite database."""
        sender = await asyncio.to_thread(backup.Sender, broker.store.folder)
        headers = {**SECURITY_HEADERS, "content-length": str(sender.size)}
        return StreamingResponse(sender.chunks(), headers=headers, media_type="application/vnd.sqlite3")

    async def page(request: Request) -> Response:
        return FileResponse(PAGE / "index.html", headers=SECURITY_HEADERS)

    by_path: dict[str, dict[str, routes.Route]] = {}
    for route in routes.ROUTES:
        by_path.setdefault(route.path, {})[route.method] = route
    return Starlette(
        routes=[
            *(Route(path, endpoint(found), methods=list(found)) for path, found in by_path.items()),
            WebSocketRoute("/v1/connect", connect),
            Route("/v1/live", live),
            Route("/livez", livez),
            Route("/readyz", readyz),
            Route("/metrics", prometheus),
            Route("/v1/backup", send_backup, methods=["POST"]),
            Route("/openapi.json", description),
            Route("/", page),
            Mount("/page", StaticFiles(directory=PAGE)),
        ],
        middleware=[Middleware(AccessLog, statistics=broker.statistics), Middleware(AccessMiddleware, access=access)],
        exception_handlers={HitboxError: _problem, HTTPException: _http_problem, Exception: _unexpected_error},  # type: ignore[dict-item]
    )


def _query(request: Request, shape: type[msgspec.Struct]) -> Any:
    try:
        return msgspec.convert(dict(request.query_params), shape, strict=False)
    except msgspec.ValidationError as problem:
        raise BadRequest(f"invalid query parameter: {problem}") from None


async def _problem(request: Request, problem: HitboxError) -> Response:
    return error_response(problem)


async def _http_problem(request: Request, problem: HTTPException) -> Response:
    found = {"error": {"type": "HTTPError", "message": problem.detail}}
    return json_response(found, problem.status_code, dict(problem.headers or {}))


async def _unexpected_error(request: Request, problem: Exception) -> Response:
    log.error("unexpected error in a request", exc_info=without_message(problem))
    return json_response({"error": {"type": "InternalError", "message": "unexpected error; see the broker's log"}}, 500)


async def _live(broker: Broker) -> AsyncIterator[bytes]:
    """Server-Sent Events for the page: once per second the figures and the latest events."""
    seen = 0
    while not broker.closing:
        line = broker.statistics.history[-1] if broker.statistics.history else {}
        fresh = broker.statistics.events_after(seen, LATEST)
        seen = broker.statistics.event_count
        state = {key: value for key, value in broker.describe().items() if key != "history"}
        data = msgspec.json.encode({"stats": {**state, **line}, "events": fresh, "arrived": seen})
        yield b"data: " + data + b"\n\n"
        await asyncio.sleep(LIVE_SECONDS)


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: `serve` handles signals, because the broker must stop after uvicorn."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(
    broker: Broker,
    access: AccessControl,
    host: str,
    port: int,
    ready: Callable[[int], None],
    stop: asyncio.Event | None = None,
) -> None:
    """Run until SIGTERM, SIGINT or `stop`, then finish accepted work and close. `ready` is called with the port."""
    listening: list[socket.socket] = []
    try:
        access.check_address()
        most = connections.most_sockets(broker.settings)
        backup.remove_remains(broker.store.folder)
        listening = connections.listen(host, port)
        sys.setswitchinterval(SWITCH_SECONDS)
        await broker.start()
    except BaseException:
        for one in listening:
            one.close()
        broker.store.close()
        raise
    config = connections.Config(
        application(broker, access),
        broker.settings,
        most,
        broker.statistics,
        ws_max_size=broker.settings.max_body_bytes,
        ws_per_message_deflate=False,
        log_config=None,
        log_level="warning",
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=5,
    )
    server = _Server(config)

    def shut_down() -> None:
        broker.closing = server.should_exit = True

    async def wait_for_stop() -> None:
        if stop is not None:
            await stop.wait()
            shut_down()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT) if stop is None else ():
        loop.add_signal_handler(number, shut_down)
    stop_task = asyncio.create_task(wait_for_stop())
    running = asyncio.create_task(server.serve(listening))
    try:
        while not server.started and not running.done():
            await asyncio.sleep(0.01)
        if not running.done():
            ready(listening[0].getsockname()[1])
        await running
    finally:
        stop_task.cancel()
        await broker.stop()
