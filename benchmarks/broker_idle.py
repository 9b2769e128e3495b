"""What idle subscribers cost: the broker's CPU time while nothing is published.

    python benchmarks/broker_idle.py --subscribers 50000

Durable subscribers with one subscription each, none of them connected. The broker runs in a process of its own: first
alone, then with somebody who asks for /v1/stats once per second, as the page does. Percent of one core.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from pathlib import Path

from broker_load import SCHEMA, Server
from hitbox import Schema
from hitbox.broker.broker import Broker
from hitbox.broker.client import Client
from hitbox.broker.subscriptions import Subscription

AT_ONCE = 2_000


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


async def ask(client: Client) -> None:
    while True:
        await client.request("GET", "/v1/stats")
        await asyncio.sleep(1)


async def main(options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(prefix="hitbox-idle-") as folder:
        for count in (0, options.subscribers):
            await fill(Path(folder) / str(count), count)
            checkouts = {"before": options.before, "after": None} if options.before else {"this": None}
            for name, checkout in checkouts.items():
                async with Server(Path(folder) / str(count), checkout=checkout) as server, Client(server.url) as client:
                    await asyncio.sleep(2)
                    alone = await share(server, options.seconds)
                    asking = asyncio.create_task(ask(client))
                    watched = await share(server, options.seconds)
                    asking.cancel()
                    print(f"{count:8} subscribers  {name:8}{alone:6.2f}% alone {watched:6.2f}% watched", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--subscribers", type=int, default=50_000)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each measurement")
    parser.add_argument("--before", type=Path, help="another checkout with a .venv, to compare with")
    asyncio.run(main(parser.parse_args()))
