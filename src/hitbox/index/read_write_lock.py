"""The lock of an index: many readers, or one writer who is alone; and one who prepares a change beside the readers.

    with lock.read:       any number at a time
    with lock.prepare:    one at a time, while readers go on: the long part of a change, which touches nothing they see
        ...
        with lock.commit: alone: the short part. No Python signal handler runs inside; signals are handled on leaving

So an interrupt finds a change not begun or done. The sections are native (src/engine/bindings/read_write_lock.hpp): a
`with` over native methods cannot be interrupted between taking the lock and entering its body, nor between leaving it
and giving it back (CPython 3.11 to 3.13, and 3.15; early releases of 3.14 have a gap of one instruction there, CPython
gh-148874, which `commit` does not suffer from). Waiting can be interrupted.

A forked child keeps the locks of its own thread. If another thread was inside `commit`, every use in the child is a
HitboxError: the change is half done, and no thread is left to finish it.
"""

from __future__ import annotations

from hitbox.engine import _kernels


class ReadWriteLock:
    __slots__ = ("commit", "prepare", "read")

    def __init__(self) -> None:
        lock = _kernels.Lock()
        self.read, self.prepare, self.commit = _kernels.Read(lock), _kernels.Prepare(lock), _kernels.Commit(lock)
