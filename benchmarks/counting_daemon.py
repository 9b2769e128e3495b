"""PySpark's daemon, but the CPU time of workers that ended is kept. Spark starts it if spark_clock.settings() asks.

PySpark's own daemon ignores SIGCHLD. Of a worker that ends, the system then adds nothing to the CPU time of the
daemon's children: what the worker spent is gone. Here the daemon waits for its workers instead.
"""

from __future__ import annotations

import os
import signal
from typing import Any

from pyspark import daemon

original = signal.signal


def waiting(number: int, action: Any) -> Any:
    """`signal.signal`; where SIGCHLD would be ignored, children are waited for."""
    return original(number, wait if (number, action) == (signal.SIGCHLD, signal.SIG_IGN) else action)


def wait(*_: object) -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:  # there are none
        pass


if __name__ == "__main__":
    signal.signal = waiting
    daemon.manager()
