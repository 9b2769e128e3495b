"""What could not be sent, because its client does not read, is lost with the right to it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
from collections.abc import Coroutine
from pathlib import Path

import pytest

from hitbox.broker.http.tls import Tls
from hitbox.client import Client
from support.broker_kit import item, serving, sub, token_of, until
from support.certificates import Authority
from support.raw_websocket import frame

CITY = "Rome" + "x" * 4000
EVENTS = 400


def run(scenario: Coroutine[None, None, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 180))


class Unread:
    """A connection whose client reads nothing, and can take little, until it is asked to read everything."""

    def __init__(self, url: str, path: str, token: str, context: ssl.SSLContext | None = None):
        host, port = url.partition("//")[2].split(":")
        plain = socket.socket()
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        plain.connect((host, int(port)))
        self.socket = plain if context is None else context.wrap_socket(plain, server_hostname=host)
        lines = [f"GET {path} HTTP/1.1", f"Host: {host}:{port}", f"Authorization: Bearer {token}"]
        if path == "/v1/connect":
            lines += ["Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA=="]
            lines += ["Sec-WebSocket-Version: 13"]
        self.socket.sendall("\r\n".join([*lines, "", ""]).encode())
        self.answer = b""
        while b"\r\n\r\n" not in self.answer:
            self.answer += self.socket.recv(1)
        if path == "/v1/connect":
            self.socket.sendall(frame(json.dumps({"type": "hello", "subscriber": "ann", "window": 1000}).encode()))

    def read_all(self) -> bytes:
        """Until the connection ends, or nothing comes for a while."""
        self.socket.settimeout(10)
        found = bytearray()
        with contextlib.suppress(OSError):
            while part := self.socket.recv(65536):
                found += part
        self.socket.close()
        return bytes(found)


@pytest.mark.parametrize("change", ["see", "names", "token", "principal"])
@pytest.mark.parametrize("path", ["/v1/connect", "/v1/subscribers/ann/deliveries", "/v1/live"])
def test_what_was_not_read_is_lost_with_the_right_to_it(tmp_path: Path, path: str, change: str) -> None:
    run(_scenario(tmp_path, path, change, None))


@pytest.mark.parametrize("path", ["/v1/connect", "/v1/live"])
def test_over_tls(tmp_path: Path, path: str) -> None:
    run(_scenario(tmp_path, path, "see", Authority(tmp_path, "authority")))


async def _scenario(folder: Path, path: str, change: str, authority: Authority | None) -> None:
    tls = None if authority is None else Tls(*authority.issue("server"))
    ca = None if authority is None else authority.cert
    context = None if ca is None else ssl.create_default_context(cafile=ca)
    async with contextlib.AsyncExitStack() as stack:
        broker, url = await stack.enter_async_context(serving(folder / "broker", principals=["root"], tls=tls))
        client = await stack.enter_async_context(Client(url, token_of("root"), ca=ca))
        await client.put_principal("ann", ["subscribe", "observe"], names="a*")
        token = await client.create_token("ann")
        if path != "/v1/live":
            await broker.subscribe("ann", [sub("all", "qty > 0")], owner="ann")
        unread = await asyncio.to_thread(Unread, url, path, token["token"], context)
        await until(lambda: len(broker.directory._watched) == 1)
        await broker.publish([item(qty=1, city=CITY)] * EVENTS)
        await until(lambda: all(one._line.has_unsent() for one in broker.directory._watched))
        if change == "see":
            await client.put_principal("ann", ["subscribe", "observe"], names="a*", see="city = 'Paris'")
        elif change == "names":
            await client.put_principal("ann", ["subscribe", "observe"], names="b*")
        elif change == "token":
            await client.revoke_token(token["id"])
        else:
            await client.put_principal("ann", [])
        hidden = (await asyncio.to_thread(unread.read_all)).count(CITY.encode())
        assert hidden < 10  # what its machine had already
        await until(lambda: not broker.directory._watched)
