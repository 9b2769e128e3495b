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
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket

from hitbox.broker import metrics
from hitbox.broker.access.rights import ANYONE, MANAGE_ALL, OBSERVE, Caller
from hitbox.broker.broker import Broker
from hitbox.broker.delivery.receiver import Receiver
from hitbox.broker.events.shape_errors import explain
from hitbox.broker.fair_threads import FairThreads, held
from hitbox.broker.http import auth, connections, health, openapi, request_bodies, routes
from hitbox.broker.http.access_log import AccessLog
from hitbox.broker.http.auth import AccessControl, RateLimiter
from hitbox.broker.http.body_memory import Account, BodyMemory
from hitbox.broker.http.error_responses import describe, status_of
from hitbox.broker.http.event_stream import EventStream, StreamQuery, event_number
from hitbox.broker.http.gate import Gate, Handler
from hitbox.broker.http.listings import Listings
from hitbox.broker.http.live import LiveFigures, LiveStream
from hitbox.broker.http.publish_socket import PublishSession
from hitbox.broker.http.tls import Tls
from hitbox.broker.http.websocket import Session
from hitbox.broker.logs import without_message
from hitbox.broker.upkeep import backup
from hitbox.errors import HitboxError
from hitbox.protocol.errors import BadRequest, Overloaded, StoreFailed

PAGE = Path(__file__).parent.parent / "page"
SWITCH_SECONDS = 0.0005
"""How long the writer thread waits for Python's interpreter lock while the event loop is busy; the default is 0.005."""
SECURITY_HEADERS = {
    "content-security-policy": "default-src 'self'; style-src 'self' 'unsafe-inline'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}
log = logging.getLogger("hitbox.broker")


class OriginMiddleware:
    """Checks the Host and Origin of every request before anything else. The gate asks for rights."""

    def __init__(self, app: ASGIApp, access: AccessControl):
        self.app, self.access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        try:
            self.access.check_page(auth.headers_of(scope["headers"]))
            auth.check_query(scope["query_string"])
        except HitboxError as problem:
            await error_response(problem)(scope, receive, send)  # for a WebSocket this replaces the handshake
            return
        await self.app(scope, receive, send)


def json_response(found: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    body = b"" if status == 204 else msgspec.json.encode(found)
    kind = None if status == 204 else "application/json"
    return Response(body, status, {**SECURITY_HEADERS, **(headers or {})}, kind)


def error_response(problem: HitboxError) -> Response:
    headers = {"retry-after": str(math.ceil(problem.retry_after))} if isinstance(problem, Overloaded) else {}
    return json_response(describe(problem), status_of(problem), headers)


class Endpoints:
    """What answers requests: the handlers of `routes.ROUTES`, and of what is no plain route."""

    def __init__(self, broker: Broker, version: str):
        self.broker, self.version = broker, version
        self.rate_limiter = RateLimiter(broker.settings.publish_rate)
        self.lookups = FairThreads("hitbox-lookup", 2, broker.settings.max_lookups)
        self.listings, self.figures, self.bodies = Listings(), LiveFigures(broker), BodyMemory(broker.settings)
        self._connected: Counter[str] = Counter()

    def handler(self, route: routes.Route) -> Handler:
        async def answer(call: routes.Call) -> Response:
            return json_response(await route.run(call), route.status)

        async def run(request: Request, caller: Caller) -> ASGIApp:
            with Account(self.bodies, caller.name) as account:
                call = routes.Call(self.broker, self.rate_limiter, self.lookups, request, caller, route.need, account)
                call.query = _query(request, route.query)
                if route.body is not None and not route.raw:
                    if request_bodies.kind_of(request) != "application/json":
                        raise BadRequest("the content type must be application/json")
                    call.body = await call.read_value(route.body)
                if route.listing:
                    return self.listings.answer(caller.name, partial(answer, call))
                return await answer(call)

        return run

    @contextlib.contextmanager
    def admitted(self, made: Receiver | PublishSession | LiveStream) -> Iterator[None]:
        """Count a connection of its caller, and close it when the caller loses its rights."""
        principal, most = made.caller.name, self.broker.settings.max_connections
        if self.broker.closing:
            raise StoreFailed("the broker is shutting down")
        if self._connected[principal] >= most:
            raise Overloaded(f"{principal} has {most} connections, which is the maximum")
        with held(self._connected, principal), self.broker.directory.watched(made):
            yield

    def connection(
        self, session: type[Session] | type[PublishSession]
    ) -> Callable[[WebSocket, Caller], Awaitable[None]]:
        async def connect(socket: WebSocket, caller: Caller) -> None:
            made = session(socket, self.broker, self.rate_limiter, caller)
            with contextlib.ExitStack() as stack:
                try:
                    stack.enter_context(self.admitted(made))
                except HitboxError as problem:
                    await socket.send_denial_response(error_response(problem))
                    return
                line: connections.WebSocketProtocol = socket.scope["extensions"]["hitbox"]
                line.account = stack.enter_context(Account(self.bodies, caller.name))
                await made.run()
                line.account = None

        return connect

    async def deliveries(self, request: Request, caller: Caller) -> ASGIApp:
        query = _query(request, StreamQuery)
        last = event_number(request.headers.get("last-event-id", ""), self.broker.tracker.incarnation)
        name = str(request.path_params["subscriber"])
        return EventStream(self.broker, caller, name, query, last, SECURITY_HEADERS, self.admitted)

    async def live(self, request: Request, caller: Caller) -> ASGIApp:
        where = _query(request, routes.LiveQuery).where
        parse = self.broker.registry.index.parse
        wanted = await self.lookups.run(caller.name, parse, where) if where.strip() else None
        return LiveStream(self.figures, caller, wanted, SECURITY_HEADERS, self.admitted)

    async def metrics(self, request: Request, caller: Caller) -> Response:
        text = metrics.exposition(self.broker, caller.shows_now(), caller.shows_all())
        return Response(text, media_type="text/plain; version=0.0.4", headers=SECURITY_HEADERS)

    async def description(self, request: Request, caller: Caller) -> Response:
        return json_response(openapi.describe(self.version))

    async def backup(self, request: Request, caller: Caller) -> Response:
        """A copy of the store as of one moment: a SQLite database."""
        sender = await asyncio.to_thread(backup.Sender, self.broker.store.folder)
        headers = {**SECURITY_HEADERS, "content-length": str(sender.size)}
        return StreamingResponse(sender.chunks(), headers=headers, media_type="application/vnd.sqlite3")

    async def livez(self) -> Response:
        return json_response(*health.liveness(self.broker))

    async def readyz(self) -> Response:
        return json_response(*health.readiness(self.broker))

    async def page(self) -> Response:
        return FileResponse(PAGE / "index.html", headers=SECURITY_HEADERS)


def application(broker: Broker, access: AccessControl, version: str = "1") -> Starlette:
    endpoints = Endpoints(broker, version)
    gate = Gate(broker.directory, error_response)
    by_path: dict[str, dict[str, Any]] = {}
    for route in routes.ROUTES:
        by_path.setdefault(route.path, {})[route.method] = (route.need, endpoints.handler(route))
    for path, by_method in by_path.items():
        gate.http(path, by_method)
    gate.socket("/v1/connect", Session.need, endpoints.connection(Session))
    gate.socket("/v1/publish", PublishSession.need, endpoints.connection(PublishSession))
    gate.http(routes.OWNER + "/deliveries", {"GET": (EventStream.need, endpoints.deliveries)})
    gate.http("/v1/live", {"GET": (LiveStream.need, endpoints.live)})
    gate.http("/metrics", {"GET": (OBSERVE, endpoints.metrics)})
    gate.http("/openapi.json", {"GET": (ANYONE, endpoints.description)})
    gate.http("/v1/backup", {"POST": (MANAGE_ALL, endpoints.backup)})
    gate.public("/livez", endpoints.livez)
    gate.public("/readyz", endpoints.readyz)
    gate.public("/", endpoints.page)
    gate.public_files("/page", PAGE)
    return Starlette(
        routes=gate.routes,
        middleware=[Middleware(AccessLog, statistics=broker.statistics), Middleware(OriginMiddleware, access=access)],
        exception_handlers={HitboxError: _problem, HTTPException: _http_problem, Exception: _unexpected_error},  # type: ignore[dict-item]
    )


def _query(request: Request, shape: type[msgspec.Struct]) -> Any:
    try:
        return msgspec.convert(dict(request.query_params), shape, strict=False)
    except msgspec.ValidationError as problem:
        raise BadRequest(f"invalid query parameter: {explain(problem, shape)}") from None


async def _problem(request: Request, problem: HitboxError) -> Response:
    return error_response(problem)


async def _http_problem(request: Request, problem: HTTPException) -> Response:
    found = {"error": {"type": "HTTPError", "message": problem.detail}}
    return json_response(found, problem.status_code, dict(problem.headers or {}))


async def _unexpected_error(request: Request, problem: Exception) -> Response:
    log.error("unexpected error in a request", exc_info=without_message(problem))
    return json_response({"error": {"type": "InternalError", "message": "unexpected error; see the broker's log"}}, 500)


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: `serve` handles signals, because the broker must stop after uvicorn. It
    listens itself, because uvicorn sets no limit for the TLS handshake."""

    config: connections.Config

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=[])
        config = self.config

        def protocol() -> asyncio.Protocol:
            return connections.HttpProtocol(config, self.server_state, self.lifespan.state)

        seconds = None if config.ssl is None else config.limits.request_seconds
        for one in sockets or ():
            self.servers.append(
                await asyncio.get_running_loop().create_server(
                    protocol, sock=one, ssl=config.ssl, backlog=connections.BACKLOG, ssl_handshake_timeout=seconds
                )
            )

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _handle_hangups(tls: Tls | None) -> None:
    """From here on SIGHUP reads the certificate again. Unhandled, it ends the process."""

    def nothing() -> None:
        log.warning("SIGHUP: the broker has no certificate, so there is nothing to read again")

    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, nothing if tls is None else tls.reload)


async def serve(
    broker: Broker,
    access: AccessControl,
    host: str,
    port: int,
    ready: Callable[[int], None],
    stop: asyncio.Event | None = None,
    tls: Tls | None = None,
    allow_plain_text: bool = False,
) -> None:
    """Run until SIGTERM, SIGINT or `stop`, then finish accepted work and close. `ready` is called with the port. An
    address other than loopback needs `tls`, or `allow_plain_text`."""
    listening: list[socket.socket] = []
    if stop is None:
        _handle_hangups(tls)
    try:
        if not access.loopback:
            auth.check_open_address(broker.directory.protected, tls is not None or allow_plain_text)
        most = connections.most_sockets(broker.settings)
        doorman = connections.Doorman(broker.settings, broker.statistics.closed)
        listening = connections.listen(host, port, doorman)
        backup.remove_remains(broker.store.folder)
        sys.setswitchinterval(SWITCH_SECONDS)
        await broker.start()
    except BaseException:
        for one in listening:
            one.close()
        broker.store.close()
        raise
    config = connections.Config(
        application(broker, access), broker.settings, most, broker.statistics, tls,
        ws_max_size=broker.settings.max_body_bytes, ws_per_message_deflate=False, log_config=None,
        log_level="warning", access_log=False, lifespan="off", timeout_graceful_shutdown=5,
    )  # fmt: skip
    server = _Server(config)

    def shut_down() -> None:
        broker.closing = server.should_exit = True
        broker.close_connections()  # uvicorn waits for event streams, which do not end by themselves

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
