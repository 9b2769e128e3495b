"""Long native work in pieces: over all cores, and open to an interrupt between two pieces."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")

MOST_THREADS = 16


def run(tasks: Sequence[Callable[[], T]]) -> list[T]:
    """What each of the tasks returns, in their order; they run at once, and the first error ends the others."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = min(cores, len(tasks), MOST_THREADS)
    if threads < 2:
        return [task() for task in tasks]
    try:
        from concurrent.futures import ThreadPoolExecutor  # brings logging, which importing hitbox need not wait for
    except RuntimeError:  # the interpreter ends
        return [task() for task in tasks]
    pool = ThreadPoolExecutor(threads, "hitbox")
    try:
        try:
            futures = [pool.submit(task) for task in tasks]
        except RuntimeError:  # no thread can be started
            return [task() for task in tasks]
        return [future.result() for future in futures]
    finally:
        pool.shutdown(cancel_futures=True)
