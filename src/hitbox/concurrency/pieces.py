"""Long native work in pieces: spread over all cores, and interruptible between two pieces.

The caller works too, so the work gets done even if no thread can be started. Threads are started with `_thread`: if
memory is short, `Thread.start` can wait for ever for a thread that died early.
"""

from __future__ import annotations

import _thread
import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

T = TypeVar("T")

MAX_THREADS = 16


def run(tasks: Sequence[Callable[[], T]]) -> list[T]:
    """The results of the tasks, in order. They run in parallel; after the first error no further task starts."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = min(cores, len(tasks), MAX_THREADS)
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
        self.idle = _thread.allocate_lock()  # held while any thread works

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
        """Let no thread start another task."""
        with self.guard:
            self.taken = len(self.tasks)

    def wait(self) -> None:
        """Wait until all threads have finished."""
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
