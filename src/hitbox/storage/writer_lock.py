"""One writer at a time: a lock on a file that names its holder. The lock ends with the holder's process.

    with alone(folder / "writer.lock", "publish a version"):
        ...

The lock is the operating system's (`flock`): it holds between threads, processes and, on NFS, hosts. A thread that has
it may take it again.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from hitbox.errors import SnapshotError, WriterConflict

WAIT_SECONDS = 600.0
"""Seconds that a writer waits for another one."""

NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF}

_open: set[IO[str]] = set()
_mine = threading.local()


@contextlib.contextmanager
def alone(file: Path, what: str, wait: float | None = None) -> Iterator[None]:
    """Exclude all other threads and processes; raise WriterConflict after waiting for `wait` seconds."""
    held: set[str] = _mine.__dict__.setdefault("held", set())
    key = os.path.realpath(file)
    if key in held:
        yield
        return
    with exclusive(file, what, WAIT_SECONDS if wait is None else wait):
        held.add(key)
        try:
            yield
        finally:
            held.discard(key)


@contextlib.contextmanager
def exclusive(file: Path, what: str, wait: float) -> Iterator[None]:
    """Exclude all others as `alone` does, but not reentrant: a thread that is inside waits, too."""
    until, pause = time.monotonic() + wait, 0.002
    while True:
        opened = open(os.open(file, os.O_RDWR | os.O_CREAT, 0o666), "r+")  # noqa: SIM115
        try:
            if _taken(opened, file):
                _open.add(opened)
                _name(opened, what)
                yield
                return
        finally:
            _open.discard(opened)
            opened.close()
        if time.monotonic() >= until:
            raise WriterConflict(
                f"cannot {what} at {file.parent}: {describe_writer(_read(file))} is writing there"
                + (f", and has not ended in {wait:g} seconds; try again, or end that process" if wait else "")
            )
        time.sleep(min(pause, max(0.0, until - time.monotonic())))
        pause = min(pause * 1.5, 0.1)


def _name(opened: IO[str], what: str) -> None:
    """Say who holds the lock. On a full disk it holds without that: what frees space needs it, too."""
    with contextlib.suppress(OSError):
        os.ftruncate(opened.fileno(), 0)
        os.pwrite(opened.fileno(), (json.dumps(owner(what)) + "\n").encode(), 0)


def _taken(opened: IO[str], file: Path) -> bool:
    """Whether the lock is ours now. A lock on a file that was removed in the meantime does not count."""
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as problem:
        if problem.errno in NO_LOCKS:
            raise SnapshotError(
                f"cannot lock {file}: its filesystem has no locks ({problem.strerror}), and without them two writers "
                "destroy each other's work; write to a folder on a local disk or NFS and copy it, CURRENT last"
            ) from None
        raise
    try:
        return os.path.samestat(os.fstat(opened.fileno()), os.stat(file))
    except FileNotFoundError:
        return False


def owner(what: str) -> dict[str, Any]:
    """What identifies this process."""
    return {
        "what": what,
        "pid": os.getpid(),
        "started": started(os.getpid()),
        "host": socket.gethostname(),
        "since": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
    }


def describe_writer(facts: dict[str, Any] | None) -> str:
    """An owner in words."""
    if not facts:
        return "another process"
    return f"process {facts.get('pid')} on {facts.get('host')}, since {facts.get('since')} ({facts.get('what')}),"


def ended(facts: dict[str, Any]) -> bool:
    """Whether an owner is a process of this host that has ended."""
    if facts.get("host") != socket.gethostname():
        return False
    try:
        os.kill(int(facts["pid"]), 0)
    except ProcessLookupError:
        return True
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return facts.get("started") != started(int(facts["pid"]))


def started(pid: int) -> str | None:
    """The start time of a process, by the kernel's clock: it differs if a later process has the same number."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):  # not Linux, or it ended
        return None


def _read(file: Path) -> dict[str, Any] | None:
    try:
        content = json.loads(file.read_text())
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def _forget() -> None:
    """A forked child has none of its parent's locks, and must not keep them alive."""
    for opened in list(_open):
        with contextlib.suppress(OSError):
            opened.close()
    _open.clear()
    _mine.__dict__.clear()


os.register_at_fork(after_in_child=_forget)
