"""What idle subscribers cost: the broker's CPU time while nothing is published.

    python benchmarks/broker_idle.py --subscribers 50000 --connected 19000

Durable subscribers with one subscription each, first none of them connected, then some. The broker runs in a process of
its own: first alone, then with somebody who asks for /v1/stats once per second, as the page does. Percent of one core.
A connection needs an open file of the broker and one of this program; connected clients answer the broker's pings.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import resource
import selectors
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from broker_load import SCHEMA, Server
from hitbox import Schema
from hitbox.broker.broker import Broker
from hitbox.broker.subscribers.subscriptions import Subscription
from hitbox.client import Client
from stamped import Connection

AT_ONCE = 2_000
OTHER_FILES = 100
LOOPBACK = "127.0.0.{}"
PER_ADDRESS = 4_000
"""Connections from one loopback address: below the broker's limit per address."""


async def fill(folder: Path, subscribers: int) -> None:
    broker = Broker(folder, Schema(SCHEMA))
    await broker.start()
    try:
        for first in range(0, subscribers, AT_ONCE):
            some = range(first, min(first + AT_ONCE, subscribers))
            await asyncio.gather(*(broker.subscribe(f"i{n}", [Subscription("one", f"a = {n}")]) for n in some))
    finally:
        await broker.stop()


async def share(server: Server, seconds: float) -> float:
    began, used = time.monotonic(), server.cpu_seconds()
    await asyncio.sleep(seconds)
    return 100 * (server.cpu_seconds() - used) / (time.monotonic() - began)


@contextlib.contextmanager
def connected(url: str, count: int) -> Iterator[None]:
    """So many subscribers are connected: a thread reads, which answers pings."""
    chosen, over = selectors.DefaultSelector(), threading.Event()
    found: list[Connection] = []

    def read() -> None:
        while not over.is_set():
            for key, _ in chosen.select(0.2):
                key.data.deliveries()  # an error ends the thread

    thread = threading.Thread(target=read)
    thread.start()
    try:
        for n in range(count):
            found.append(one := Connection(url, source=LOOPBACK.format(1 + n // PER_ADDRESS)))
            one.hello(f"i{n}")
            chosen.register(one.socket, selectors.EVENT_READ, one)
        yield
        assert thread.is_alive(), "the broker closed a connection"
    finally:
        over.set()
        thread.join()
        for one in found:
            one.socket.close()


async def ask(client: Client) -> None:
    while True:
        await client.request("GET", "/v1/stats")
        await asyncio.sleep(1)


async def costs(server: Server, seconds: float) -> str:
    async with Client(server.url) as client:
        alone = await share(server, seconds)
        asking = asyncio.create_task(ask(client))
        watched = await share(server, seconds)
        asking.cancel()
    return f"{alone:6.2f}% alone {watched:6.2f}% watched"


async def main(options: argparse.Namespace) -> None:
    _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    os.environ["HITBOX_SERVE_MAX_SOCKETS"] = str(options.connected + OTHER_FILES)
    os.environ["HITBOX_SERVE_MAX_CONNECTIONS"] = str(options.connected + OTHER_FILES)
    with tempfile.TemporaryDirectory(prefix="hitbox-idle-") as folder:
        for count in (0, options.subscribers):
            await fill(Path(folder) / str(count), count)
            checkouts = {"before": options.before, "after": None} if options.before else {"this": None}
            for name, checkout in checkouts.items():
                async with Server(Path(folder) / str(count), checkout=checkout) as server:
                    await asyncio.sleep(2)
                    print(f"{count:8} subscribers  {name:8}{await costs(server, options.seconds)}", flush=True)
                    if not count or not options.connected:
                        continue
                    before = server.megabytes()
                    with connected(server.url, options.connected):
                        await asyncio.sleep(60)  # until the pings of all have begun
                        kilobytes = (server.megabytes() - before) * 1024 / options.connected
                        cost = await costs(server, max(options.seconds, 60.0))
                        print(f"{options.connected:8} connected    {name:8}{cost}, {kilobytes:.0f} KB each", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--subscribers", type=int, default=50_000)
    parser.add_argument("--connected", type=int, default=10_000, help="of them; 0: do not measure this")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each measurement")
    parser.add_argument("--before", type=Path, help="another checkout with a .venv, to compare with")
    asyncio.run(main(parser.parse_args()))
