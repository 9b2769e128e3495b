"""The gate: every route, socket and file of the application is registered here, with what it needs.

Nothing can be registered without a `Need`, and no handler runs before the caller was asked for it. Frames of a
WebSocket are asked for in the session (websocket.py), from the table FRAMES, by the same `Caller`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route, WebSocketRoute
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Scope
from starlette.websockets import WebSocket

from hitbox.broker.access.directory import Directory
from hitbox.broker.access.rights import Caller, Need
from hitbox.broker.http import auth
from hitbox.errors import HitboxError

Handler = Callable[[Request, Caller], Awaitable[ASGIApp]]
Refusal = Callable[[HitboxError], Response]


def declared(need: Any, what: str) -> Need:
    if not isinstance(need, Need):
        raise TypeError(f"{what} does not declare what it needs (hitbox.broker.access.rights.Need)")
    return need


class Gate:
    def __init__(self, directory: Directory, refusal: Refusal):
        self._directory, self._refusal = directory, refusal
        self.routes: list[BaseRoute] = []

    def _admit(self, scope: Scope, need: Need) -> Caller:
        headers = auth.headers_of(scope["headers"])
        caller = self._directory.caller(auth.token_in(headers, scope.get("subprotocols", ())))
        scope["principal"] = caller.name  # for the access log
        caller.check(need)
        return caller

    def http(self, path: str, by_method: Mapping[str, tuple[Need, Handler]]) -> None:
        for method, (need, _) in by_method.items():
            declared(need, f"{method} {path}")

        async def run(request: Request) -> ASGIApp:
            need, handler = by_method["GET" if request.method == "HEAD" else request.method]
            return await handler(request, self._admit(request.scope, need))

        self.routes.append(Route(path, run, methods=list(by_method)))

    def public(self, path: str, handler: Callable[[], Awaitable[Response]]) -> None:
        """A route that needs no token: it tells everybody the same."""

        async def run(request: Request) -> Response:
            return await handler()

        self.routes.append(Route(path, run, methods=["GET"]))

    def socket(self, path: str, need: Need, handler: Callable[[WebSocket, Caller], Awaitable[None]]) -> None:
        declared(need, path)

        async def run(socket: WebSocket) -> None:
            try:
                auth.check_protocols(socket.scope["subprotocols"])
                caller = self._admit(socket.scope, need)
            except HitboxError as problem:
                await socket.send_denial_response(self._refusal(problem))
                return
            await handler(socket, caller)

        self.routes.append(WebSocketRoute(path, run))

    def public_files(self, path: str, folder: Path) -> None:
        self.routes.append(Mount(path, StaticFiles(directory=folder)))
