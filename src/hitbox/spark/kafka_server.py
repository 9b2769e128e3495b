"""A Kafka of one node on this machine, for `hitbox demo --kafka` and the tests; and where its files are.

    $HITBOX_KAFKA/broker/*.jar       Kafka itself
                  connector/*.jar    what Spark needs to read and write it (Spark 4.0: connector-4.0)

`tools/need kafka` of the source tree fetches them, by default into ~/.cache/hitbox/kafka. The server listens on
127.0.0.1 only, on free ports, and keeps its data in a folder that the caller gives.
"""

from __future__ import annotations

import base64
import contextlib
import os
import shutil
import socket
import subprocess
import time
import uuid
from pathlib import Path
from typing import IO, Self

import pyspark

from hitbox.errors import HitboxError

FLAGS = ["-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
START_SECONDS = 120.0

SETTINGS = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
log.dirs={folder}
num.partitions=2
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
broker.session.timeout.ms=60000
"""


def home() -> Path:
    """The folder with the files of Kafka."""
    given = os.environ.get("HITBOX_KAFKA")
    return Path(given).expanduser() if given else Path.home() / ".cache" / "hitbox" / "kafka"


def available() -> bool:
    """Whether a server can be started here."""
    return all(any((home() / name).glob("*.jar")) for name in ("broker", _connector())) and bool(shutil.which("java"))


def connector() -> str:
    """Spark's Kafka connector, for the setting `spark.jars`."""
    _require()
    return ",".join(map(str, sorted((home() / _connector()).glob("*.jar"))))


def _connector() -> str:
    return "connector-4.0" if pyspark.__version__.startswith("4.0.") else "connector"


class KafkaServer:
    """A server that runs inside a `with` block; `address` is what Spark calls kafka.bootstrap.servers."""

    def __init__(self, folder: str | os.PathLike[str]):
        _require()
        self.folder = Path(folder)
        self.port, controller = _free_ports()
        self.address = f"127.0.0.1:{self.port}"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.settings = self.folder / "server.properties"
        self.settings.write_text(SETTINGS.format(port=self.port, controller=controller, folder=self.folder / "data"))
        self.log = self.folder / "server.log"

    def __enter__(self) -> Self:
        # with a letter in front: one that begins with "-" would be taken for an option
        name = "h" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")[1:]
        with open(self.log, "ab") as log:
            self._java(log, "kafka.tools.StorageTool", "format", "-t", name, "-c", str(self.settings)).wait()
            self._server = self._java(log, "kafka.Kafka", str(self.settings))
        try:
            self._await()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._server.kill()  # its data is thrown away
        self._server.wait()

    def _java(self, log: IO[bytes], *words: str) -> subprocess.Popen[bytes]:
        command = ["java", *FLAGS, "-cp", f"{home()}/broker/*", *words]
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def _await(self) -> None:
        until = time.monotonic() + START_SECONDS
        while self._server.poll() is None and time.monotonic() < until:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return
            time.sleep(0.05)
        raise HitboxError(f"Kafka did not start: {self.log.read_text(errors='replace')[-2000:] or 'it said nothing'}")


def _require() -> None:
    if not available():
        raise HitboxError(
            f"there is no Kafka in {home()} (or no java): run `tools/need kafka` in the source tree of hitbox, or set "
            "HITBOX_KAFKA to a folder with the jars of a Kafka in broker/ and those of Spark's connector in "
            f"{_connector()}/"
        )


def _free_ports() -> tuple[int, int]:
    with socket.socket() as one, socket.socket() as two:
        one.bind(("127.0.0.1", 0))
        two.bind(("127.0.0.1", 0))
        return one.getsockname()[1], two.getsockname()[1]
