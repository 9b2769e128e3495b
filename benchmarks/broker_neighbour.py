"""The broker beside mosquitto, for the part that both can do: deliveries by topic, with acknowledgements.

    python benchmarks/broker_neighbour.py --rounds 3        # needs mosquitto (Debian: apt-get install mosquitto)
    python benchmarks/broker_neighbour.py --before ../hitbox-old        # and another checkout of hitbox, with a .venv

100 durable subscribers, ten for each of ten topics; an event has one topic, so ten subscribers get it. In hitbox that
is 100 subscriptions `topic = 't3'`; in mosquitto (MQTT 3.1.1) a subscription of topic t3 with QoS 1 and a persistent
session. Every delivery is acknowledged by its receiver. Publishers and receivers are plain sockets in this process; the
two brokers take turns. What is measured is the CPU time of the broker's process per event.

    single    64 publishers, each sends one event and waits for its acknowledgement
    batch     4 publishers with 100 events on the way each

What differs: hitbox acknowledges an event when it is synced to disk. Mosquitto keeps its messages in memory and writes
them to its file every 30 minutes and at its end (`persistence true`, otherwise its defaults): a crash loses them. It
filters by topic only, and is written in C.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import socket
import statistics
import struct
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

import hitbox
from broker_compare import WAYS, load_with
from broker_load import Server
from exchange import Events, exchange, publisher_of
from stamped import Connection

SUBSCRIBERS, TOPICS = 100, 10
Expected = Counter[tuple[int, int]]
"""How often each (event, subscriber) arrived."""


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class Mosquitto:
    """Mosquitto in a process of its own."""

    def __init__(self, folder: Path):
        self.port = free_port()
        folder.mkdir()
        lines = [
            f"listener {self.port} 127.0.0.1",
            "allow_anonymous true",
            "persistence true",
            f"persistence_location {folder}/",
            "max_queued_messages 0",
            "max_inflight_messages 2000",
            "log_type error",
            f"user {os.environ.get('USER', 'root')}",
        ]
        (folder / "conf").write_text("\n".join(lines) + "\n")
        self.process = subprocess.Popen(["mosquitto", "-c", str(folder / "conf")])
        for _ in range(100):
            try:
                socket.create_connection(("127.0.0.1", self.port)).close()
                return
            except ConnectionRefusedError:
                time.sleep(0.05)
        raise RuntimeError("mosquitto did not start")

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        self.process.terminate()
        self.process.wait()


class Mqtt:
    """A plain MQTT 3.1.1 connection."""

    def __init__(self, port: int, name: str, durable: bool):
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._data = b""
        self._send(0x10, b"\x00\x04MQTT\x04" + (b"\x00" if durable else b"\x02") + b"\x00\x00" + _text(name))
        assert self._next(True)[0] == 0x20, "no CONNACK"

    def subscribe(self, topic: str) -> None:
        self._send(0x82, b"\x00\x01" + _text(topic) + b"\x01")
        assert self._next(True)[0] == 0x90, "no SUBACK"

    def packets(self) -> list[tuple[int, bytes]]:
        """What has come in. Publishes are acknowledged."""
        self._read()
        found, acks = [], []
        while (one := self._next(False)) is not None:
            kind, body = one
            if kind & 0xF0 == 0x30:
                at = 2 + int.from_bytes(body[:2], "big")
                acks.append(b"\x40\x02" + body[at : at + 2])
                body = body[at + 2 :]
            found.append((kind & 0xF0, body))
        if acks:
            self.socket.sendall(b"".join(acks))
        return found

    def _send(self, kind: int, body: bytes) -> None:
        self.socket.sendall(bytes([kind]) + _length(len(body)) + body)

    def _read(self) -> None:
        more = self.socket.recv(1 << 20)
        if not more:
            raise ConnectionError("mosquitto closed the connection")
        self._data += more

    def _next(self, wait: bool) -> Any:
        while True:
            size, at = 0, 1
            while at < len(self._data) and at < 5:
                size |= (self._data[at] & 127) << 7 * (at - 1)
                at += 1
                if not self._data[at - 1] & 128:
                    if len(self._data) >= at + size:
                        kind, body = self._data[0], self._data[at : at + size]
                        self._data = self._data[at + size :]
                        return kind, body
                    break
            if not wait:
                return None
            self._read()


def _text(text: str) -> bytes:
    return struct.pack("!H", len(text)) + text.encode()


def _length(size: int) -> bytes:
    found = b""
    while True:
        size, low = size >> 7, size & 127
        found += bytes([low | (128 if size else 0)])
        if not size:
            return found


class MqttPublisher(Mqtt):
    """Publishes events to their topics."""

    def publish(self, items: Events) -> None:
        self._left = len(items)
        parts = []
        for number, event in enumerate(items, 1):
            body = _text(event["topic"]) + struct.pack("!H", number) + msgspec.json.encode(event)
            parts.append(b"\x32" + _length(len(body)) + body)  # QoS 1
        self.socket.sendall(b"".join(parts))

    def answer(self) -> int | None:
        self._left -= sum(kind == 0x40 for kind, _ in self.packets())
        return None if self._left else 0


class Load:
    """The receivers of a broker; `connect` opens one of them."""

    def __init__(self, connect: Callable[[int], Any], publisher: Callable[[int], Any], received: Callable[[Any], Any]):
        self.receivers = {connect(number): str(number) for number in range(SUBSCRIBERS)}
        self.publisher, self.received = publisher, received

    def run(self, topics: list[int], first: int, publishers: int, batch: int) -> Expected:
        got: Expected = Counter()

        def receive(one: Any, name: str) -> int:
            numbers = self.received(one)
            got.update((number, int(name)) for number in numbers)
            return len(numbers)

        events = [{"topic": f"t{topic}", "n": n} for n, topic in enumerate(topics, first)]
        wanted = len(topics) * SUBSCRIBERS // TOPICS
        exchange(events, batch, [self.publisher(n) for n in range(publishers)], self.receivers, receive, wanted)
        return got

    def close(self) -> None:
        for one in self.receivers:
            one.socket.close()


def mqtt_load(port: int) -> Load:
    def connect(number: int) -> Mqtt:
        one = Mqtt(port, f"s{number:02d}", True)
        one.subscribe(f"t{number % TOPICS}")
        return one

    def received(one: Mqtt) -> list[int]:
        return [msgspec.json.decode(body)["n"] for kind, body in one.packets() if kind == 0x30]

    return Load(connect, lambda number: MqttPublisher(port, f"p{number}", False), received)


def hitbox_load(url: str) -> Load:
    def connect(number: int) -> Connection:
        one = Connection(url)
        one.hello(f"s{number:02d}")
        return one

    return Load(connect, lambda _: publisher_of(url), lambda one: [d.event["n"] for d in one.deliveries()])


def measured(load: Load, cpu_seconds: Any, topics: list[int], warm: int, way: str) -> tuple[float, float]:
    """(CPU time of the broker, time) per event in microseconds; every delivery is checked."""
    publishers, batch = WAYS[way]
    load.run(topics[:warm], 0, publishers, batch)
    used, began = cpu_seconds(), time.perf_counter()
    got = load.run(topics[warm:], warm, publishers, batch)
    took = time.perf_counter() - began
    time.sleep(0.5)  # the last acknowledgements are work, too
    used = cpu_seconds() - used
    expected = Counter(
        (warm + at, number)
        for at, topic in enumerate(topics[warm:])
        for number in range(topic, SUBSCRIBERS, TOPICS)
    )  # fmt: skip
    assert got == expected, "deliveries are missing, wrong or came twice"
    count = len(topics) - warm
    return used / count * 1e6, took / count * 1e6


async def main(options: argparse.Namespace) -> None:
    topics = np.random.default_rng(options.seed).integers(0, TOPICS, options.events + 1000).tolist()
    print(f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f} at the start, seed {options.seed}")
    own = Path(__file__).resolve().parents[1]
    checkouts = {"before": options.before, "hitbox": own} if options.before else {"hitbox": own}
    with tempfile.TemporaryDirectory(prefix="hitbox-neighbour-") as name:
        place = Path(name)
        index = hitbox.Index({"topic": "string", "n": "int"})
        for number in range(SUBSCRIBERS):
            index.subscribe(f"s{number:02d}/topic", f"topic = 't{number % TOPICS}'")
        index.save(place / "snapshot")
        for which, checkout in checkouts.items():
            load_with(checkout, place / which, place / "snapshot")
        for way in WAYS:
            found: dict[str, list[float]] = {which: [] for which in (*checkouts, "mosquitto")}
            for turn in range(options.rounds):
                for which, checkout in checkouts.items():
                    shutil.copytree(place / which, place / "run")
                    async with Server(place / "run", checkout=checkout) as server:
                        load = hitbox_load(server.url)
                        used, took = measured(load, server.cpu_seconds, topics, 1000, way)
                        load.close()
                    shutil.rmtree(place / "run")
                    found[which].append(used)
                    print(f"{way:8}{which:11}{used:8.1f} µs of CPU, {took:8.1f} µs per event", flush=True)
                neighbour = Mosquitto(place / f"mosquitto-{way}-{turn}")
                load = mqtt_load(neighbour.port)
                used, took = measured(load, neighbour.cpu_seconds, topics, 1000, way)
                load.close()
                neighbour.close()
                found["mosquitto"].append(used)
                print(f"{way:8}{'mosquitto':11}{used:8.1f} µs of CPU, {took:8.1f} µs per event", flush=True)
            for which, times in found.items():
                ratio = statistics.median(a / b for a, b in zip(times, found["hitbox"], strict=True))
                print(f"{way:8}{which:11}{statistics.median(times):8.1f} µs of CPU, {ratio:.2f} of hitbox", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=10_000, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--before", type=Path, help="another checkout of hitbox, to compare with")
    asyncio.run(main(parser.parse_args()))
