"""A web server that receives webhooks, and answers as it is told."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"


@dataclass
class Received:
    headers: dict[str, str]
    body: bytes
    line: str

    @property
    def deliveries(self) -> list[dict[str, Any]]:
        return list(json.loads(self.body)["data"]["deliveries"])

    def is_signed_with(self, secret: str) -> bool:
        """As a target checks it, by the text of the standard alone."""
        text = f"{self.headers['webhook-id']}.{self.headers['webhook-timestamp']}.".encode() + self.body
        key = base64.b64decode(secret.removeprefix("whsec_"))
        mine = base64.b64encode(hmac.new(key, text, hashlib.sha256).digest()).decode()
        return f"v1,{mine}" in self.headers["webhook-signature"].split(" ")


@dataclass
class Target:
    """`answers`: what the next requests are answered; then `default`. None: nothing is answered."""

    port: int = 0
    answers: list[bytes | None] = field(default_factory=list)
    default: bytes | None = OK
    got: list[Received] = field(default_factory=list)
    connections: int = 0
    at_once: int = 0
    most_at_once: int = 0
    hold: asyncio.Event | None = None

    def url(self, host: str = "127.0.0.1", scheme: str = "http") -> str:
        return f"{scheme}://{host}:{self.port}/hook?x=1"

    def seqs(self) -> list[int]:
        return [d["seq"] for one in self.got for d in one.deliveries]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                headers = {k.lower(): v for k, _, v in (line.partition(": ") for line in head[1:] if line)}
                body = await reader.readexactly(int(headers["content-length"]))
                self.got.append(Received(headers, body, head[0]))
                self.at_once += 1
                self.most_at_once = max(self.most_at_once, self.at_once)
                if self.hold is not None:
                    await self.hold.wait()
                answer = self.answers.pop(0) if self.answers else self.default
                if answer is None:
                    await asyncio.sleep(3600)
                self.at_once -= 1
                writer.write(answer or b"")
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


def answer(status: int, **headers: str) -> bytes:
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {status} X\r\ncontent-length: 0\r\n{lines}\r\n".encode()


@asynccontextmanager
async def target(tls: ssl.SSLContext | None = None) -> AsyncIterator[Target]:
    found = Target()
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        with contextlib.suppress(asyncio.CancelledError):  # the end of the test
            await found.serve(reader, writer)

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    found.port = server.sockets[0].getsockname()[1]
    try:
        yield found
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
