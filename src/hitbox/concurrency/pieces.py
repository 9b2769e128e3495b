"""Long native work in pieces: over all cores, and open to an interrupt between two pieces.

The caller works too, so the work is done also where no thread can be had. The threads are bare ones: where memory is
short, `Thread.start` waits for ever for a thread that ended before it began.
"""

from __future__ import annotations

import _thread
import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

T = TypeVar("T")

MOST_THREADS = 16


def run(tasks: Sequence[Callable[[], T]]) -> list[T]:
    """What each of the tasks returns, in their order; they run at once, and the first error ends the others."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = min(cores, len(tasks), MOST_THREADS)
    if threads < 2:
        return [task() for task in tasks]
    work = _Work(tasks)
    try:
        for _ in range(threads - 1):
            _thread.start_new_thread(work.help, ())
    except (RuntimeError, MemoryError):  # no thread can be started
        pass
    try:
        work.help()
        work.wait()
    finally:
        work.stop()
    if work.problem is not None:
        raise work.problem
    return work.results


class _Work:
    """Tasks that several threads take one after the other."""

    def __init__(self, tasks: Sequence[Callable[[], Any]]) -> None:
        self.tasks = tasks
        self.results: list[Any] = [None] * len(tasks)
        self.problem: BaseException | None = None
        self.taken = 0
        self.running = 0
        self.guard = _thread.allocate_lock()
        self.idle = _thread.allocate_lock()  # held while somebody works

    def help(self) -> None:
        """Work until no task is left."""
        while (at := self._take()) is not None:
            try:
                self.results[at] = self.tasks[at]()
            except BaseException as problem:
                self.problem = self.problem or problem
                self.stop()
            finally:
                self._finish()

    def stop(self) -> None:
        """Nobody takes another task."""
        with self.guard:
            self.taken = len(self.tasks)

    def wait(self) -> None:
        """Until everybody has finished."""
        with self.idle:
            pass

    def _take(self) -> int | None:
        with self.guard:
            at = self.taken
            if at == len(self.tasks):
                return None
            if not self.running:
                self.idle.acquire()
            self.taken += 1
            self.running += 1
            return at

    def _finish(self) -> None:
        with self.guard:
            self.running -= 1
            if not self.running:
                self.idle.release()
