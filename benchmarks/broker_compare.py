"""The broker's CPU time per event, for this checkout and, in the same run, for another one.

    python benchmarks/broker_compare.py --before ../hitbox-old --rounds 3

Both checkouts have their own `.venv` (made by `make setup`), and take turns. 100,000 subscriptions of 100 subscribers,
ten per level of priority; an event matches about ten. Publishers and receivers are plain sockets in this process, which
do little themselves, so that the broker is the one that has to work:

    single    64 publishers, each sends one event and waits for its answer
    batch     4 publishers, each sends 100 events and waits for its answer

Events go over a publish socket where the checkout has one, otherwise by HTTP; `--http` uses HTTP for both. Every
delivery is compared with `Index.match_batch`: each must arrive exactly once.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import statistics
import subprocess
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import hitbox
from broker_load import SUBSCRIBERS, Server, build, events
from exchange import Events, HttpPublisher, exchange, publisher_of
from stamped import Connection

WAYS = {"single": (64, 1), "batch": (4, 100)}


class Load:
    """Publishers and receivers of one broker."""

    def __init__(self, url: str, http: bool):
        self.got: Counter[tuple[int, str]] = Counter()
        self.url, self.http = url, http
        self.receivers = {Connection(url): f"s{number:02d}" for number in range(SUBSCRIBERS)}
        for one, name in self.receivers.items():
            one.hello(name)

    def run(self, sent: Events, publishers: int, batch: int, expected: int) -> dict[int, int]:
        """Publish everything and receive what is expected; returns the number of the first event of each batch."""
        found = [publisher_of(self.url, self.http) for _ in range(publishers)]
        self.http = isinstance(found[0], HttpPublisher)
        return exchange(sent, batch, found, self.receivers, self._receive, expected)

    def _receive(self, one: Connection, name: str) -> int:
        matches = [(delivery.seq, f"{name}/{id}") for delivery in one.deliveries() for id in delivery.subscriptions]
        self.got.update(matches)
        return len(matches)

    def close(self) -> None:
        for one in self.receivers:
            one.socket.close()


def wanted_of(index: hitbox.Index, sent: Events) -> list[list[str]]:
    matches = index.match_batch(sent)
    ids = matches.ids.to_pylist()
    return [ids[a:b] for a, b in zip(matches.offsets[:-1], matches.offsets[1:], strict=True)]


async def measure(checkout: Path, data: Path, index: hitbox.Index, way: str, count: int, http: bool, seed: int) -> Any:
    """Milliseconds of CPU per event, and how the events were published."""
    publishers, batch = WAYS[way]
    sent = events(count + 500, seed)
    wanted = wanted_of(index, sent)
    async with Server(data, checkout=checkout) as server:
        load = Load(server.url, http)
        try:
            load.run(sent[:500], publishers, batch, sum(map(len, wanted[:500])))  # warm up
            load.got.clear()
            used = server.cpu_seconds()
            firsts = load.run(sent[500:], publishers, batch, sum(map(len, wanted[500:])))
            await asyncio.sleep(0.5)  # the last acknowledgements are work, too
            used = server.cpu_seconds() - used
        finally:
            load.close()
    expected = Counter(
        (first + at, id)
        for start, first in firsts.items()
        for at, ids in enumerate(wanted[500 + start : 500 + start + batch])
        for id in ids
    )
    assert load.got == expected, "deliveries are missing, wrong or came twice"
    return used / count * 1000, "HTTP" if load.http else "socket", sum(expected.values()) / count


def load_with(checkout: Path, data: Path, snapshot: Path) -> None:
    """Import the subscriptions with the checkout that serves them: another one may write another format."""
    program = (
        "import sys, pathlib; from hitbox.broker import import_export as i; i.load(*map(pathlib.Path, sys.argv[1:]))"
    )
    python = checkout.absolute() / ".venv/bin/python"
    subprocess.run([str(python), "-c", program, str(data), str(snapshot)], check=True)


async def main(options: argparse.Namespace) -> None:
    own = Path(__file__).resolve().parents[1]
    checkouts = {"before": options.before, "after": own} if options.before else {"this": own}
    with tempfile.TemporaryDirectory(prefix="hitbox-compare-") as folder:
        place = Path(folder)
        build(place / "snapshot", options.subscriptions, options.seed)
        for name, checkout in checkouts.items():
            load_with(checkout, place / f"data-{name}", place / "snapshot")
        index = hitbox.Index.open(place / "snapshot")
        print(f"{len(index)} subscriptions, {os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f} at the start")
        for way in options.ways.split(","):
            found: dict[str, list[float]] = {name: [] for name in checkouts}
            for turn in range(options.rounds):
                for name, checkout in checkouts.items():
                    data = place / "run"
                    shutil.copytree(place / f"data-{name}", data)
                    took, kind, matches = await measure(
                        checkout, data, index, way, options.events, options.http, options.seed + 1 + turn
                    )
                    shutil.rmtree(data)
                    found[name].append(took)
                    print(f"{way:8}{name:8}{kind:8}{took:8.3f} ms of CPU per event, {matches:.1f} matches", flush=True)
            if options.before:
                ratios = [b / a for b, a in zip(found["before"], found["after"], strict=True)]
                print(f"{way:8}before / after: {statistics.median(ratios):.1f} (median of {len(ratios)})", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, help="another checkout, to compare with")
    parser.add_argument("--subscriptions", type=int, default=100_000)
    parser.add_argument("--events", type=int, default=4_000, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ways", default="single,batch")
    parser.add_argument("--http", action="store_true", help="publish by HTTP even where there is a publish socket")
    parser.add_argument("--seed", type=int, default=1)
    asyncio.run(main(parser.parse_args()))
