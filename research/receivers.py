"""Receivers of matches: another process at the other end of loopback connections, which reads and counts.

    this process                                    python -m research.receivers PORT CONNECTIONS
    match ── send ── socket 0 ═════ loopback ═════ socket 0 ── counts bytes
                 └── socket 1 ═══════════════════ socket 1 ── ...

A subscription belongs to one of the connections; each match is one message, the event, in a call of its own, as a
broker sends it to a subscriber. Small messages leave at once (TCP_NODELAY). When all is sent, the other process reports
what it received, and a message that is missing is an error.
"""

from __future__ import annotations

import json
import selectors
import socket
import subprocess
import sys
from types import TracebackType

from hitbox.encoding.arrays import I32
from research.errors import BenchError

START_SECONDS = 60.0
"""The other process must have connected within this time."""
CHUNK = 1 << 18


class Receivers:
    """Connections to another process; `send` is what MatchAndSend calls.

    >>> import numpy as np
    >>> with Receivers(2, payload=b"event 17") as receivers:
    ...     receivers.send(9, np.array([4, 5, 6], np.int32))
    >>> receivers.received
    3
    """

    def __init__(self, connections: int, payload: bytes):
        self.connections, self.payload = connections, payload
        self.sent = self.received = 0

    def __enter__(self) -> Receivers:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            words = [sys.executable, "-m", "research.receivers", str(port), str(self.connections)]
            self.process = subprocess.Popen(words, stdout=subprocess.PIPE)
            self.sockets: list[socket.socket] = []
            server.settimeout(START_SECONDS)
            try:
                for _ in range(self.connections):
                    one, _ = server.accept()
                    one.settimeout(None)
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    self.sockets.append(one)
            except OSError as problem:
                self._stop()
                raise BenchError(f"the process of receivers did not connect: {problem}") from None
        return self

    def send(self, priority: int, numbers: I32) -> None:
        """One message for each match, to the connection of its subscription."""
        sockets, payload, count = self.sockets, self.payload, self.connections
        for number in numbers.tolist():
            sockets[number % count].sendall(payload)
        self.sent += len(numbers)

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._stop()
            return
        for one in self.sockets:
            one.close()
        report = self.process.communicate()[0]
        received = sum(json.loads(report)) if self.process.returncode == 0 else 0
        if received != self.sent * len(self.payload):
            raise BenchError(f"{self.sent} messages were sent, but the receivers read {received} bytes of them")
        self.received = received // max(1, len(self.payload))

    def _stop(self) -> None:
        for one in self.sockets:
            one.close()
        self.process.kill()
        self.process.communicate()


def receive(port: int, connections: int) -> list[int]:
    """Read all connections to their ends; the bytes of each."""
    read = [0] * connections
    with selectors.DefaultSelector() as waiting:
        for i in range(connections):
            waiting.register(socket.create_connection(("127.0.0.1", port)), selectors.EVENT_READ, i)
        buffer = bytearray(CHUNK)
        while waiting.get_map():
            for ready, _ in waiting.select():
                connection = ready.fileobj
                assert isinstance(connection, socket.socket)
                count = connection.recv_into(buffer)
                read[ready.data] += count
                if count == 0:
                    waiting.unregister(connection)
                    connection.close()
    return read


if __name__ == "__main__":
    print(json.dumps(receive(int(sys.argv[1]), int(sys.argv[2]))))
