"""What a step on Spark costs: wall-clock seconds, and CPU seconds of the JVM and of Python.

    spark = hs.session("local[2]", **settings())
    with Clock() as clock:
        hs.build(...)
    clock.facts()       {"wall": 12.1, "jvm": 3.2, "python": 8.7}

Python is this process and all that the JVM started. A process that ended counts for its parent, which must have waited
for it: PySpark's daemon does not, so the session needs `settings()`. A process that does not wait is an error, because
the figures would be too small, or less than nothing.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from signal import SIGCHLD
from typing import Any, NamedTuple

TICK = os.sysconf("SC_CLK_TCK")
TRIES = 100


class Process(NamedTuple):
    parent: int
    is_java: bool
    own: int
    """Ticks of CPU."""
    ended: int
    """Ticks of its children that ended, and of theirs."""


class Clock:
    """Wall-clock seconds, and CPU seconds of the JVM and of Python."""

    wall = jvm = python = 0.0

    def __enter__(self) -> Clock:
        self._began, self._spent = time.perf_counter(), cpu_seconds()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.wall = time.perf_counter() - self._began
        if kind is None:
            self.jvm, self.python = (now - before for now, before in zip(cpu_seconds(), self._spent, strict=True))
            if min(self.jvm, self.python) < 0:
                raise RuntimeError("CPU time was lost: a process ended after its parent had ended")

    def facts(self) -> dict[str, Any]:
        return {name: round(getattr(self, name), 2) for name in ("wall", "jvm", "python")}


def settings() -> dict[str, str]:
    """Settings of a session whose workers can be counted."""
    here = str(Path(__file__).parent)
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([here, *filter(None, paths)]))
    return {"spark_python_daemon_module": "counting_daemon"}


def cpu_seconds() -> tuple[float, float]:
    """Of the JVM, and of Python, so far."""
    processes = _own(_all())
    for _ in range(TRIES):  # one that ends meanwhile would be counted twice, or not at all
        again = _own(_all())
        if {pid: one.ended for pid, one in again.items()} == {pid: one.ended for pid, one in processes.items()}:
            break
        processes = again
    for pid in processes:
        _check_waits(pid)
    jvm = sum(one.own for one in processes.values() if one.is_java)
    python = sum(one.ended + (0 if one.is_java else one.own) for one in processes.values())
    return jvm / TICK, python / TICK


def _all() -> dict[int, Process]:
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            name, _, rest = (folder / "stat").read_text().rpartition(")")
        except OSError:  # it has ended
            continue
        fields = rest.split()
        own, ended = (sum(map(int, fields[at : at + 2])) for at in (11, 13))
        found[int(folder.name)] = Process(int(fields[1]), name.endswith("(java"), own, ended)
    return found


def _own(processes: dict[int, Process]) -> dict[int, Process]:
    """This process and what it started, itself or through others."""
    children: dict[int, list[int]] = {}
    for pid, one in processes.items():
        children.setdefault(one.parent, []).append(pid)
    found, waiting = {}, [os.getpid()]
    while waiting:
        pid = waiting.pop()
        found[pid] = processes[pid]
        waiting += children.get(pid, [])
    return found


def _check_waits(pid: int) -> None:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        command = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").strip()
    except OSError:  # it has ended
        return
    ignored = next((int(line.split()[1], 16) for line in status.splitlines() if line.startswith("SigIgn:")), 0)
    if ignored >> (SIGCHLD - 1) & 1:
        raise RuntimeError(
            f"process {pid} ({command:.100}) does not wait for its children, so their CPU time is lost: "
            "make the session with spark_clock.settings()"
        )
