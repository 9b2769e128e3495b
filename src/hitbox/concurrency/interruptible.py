"""Long native calls that the main thread can be interrupted in.

Python runs signal handlers between bytecodes only, so Ctrl-C has to wait until a call into Arrow returns: a second to
sort a million strings. Here such a call runs in a thread of its own, and the caller waits for it; that wait can be
interrupted. The call must not change anything: after an interrupt it still runs to its end, and its result is dropped.

The thread is started with `_thread`: if memory is short, `Thread.start` can wait for ever for a thread that died early.
"""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")
MIN_VALUES = 100_000
"""Calls on fewer values are quick enough to run without a thread."""
START_TIMEOUT = 2.0
"""Seconds that a new thread has to start; after that the caller does the work itself."""


def interruptible(size: int, call: Callable[..., T], *args: Any, **named: Any) -> T:
    """The result of `call(*args, **named)`, which works on `size` values and may be interrupted."""
    if size < MIN_VALUES or threading.current_thread() is not threading.main_thread():
        return call(*args, **named)
    begun, done = _thread.allocate_lock(), _thread.allocate_lock()
    begun.acquire()
    done.acquire()
    results: list[Any] = [None]
    problems: list[BaseException | None] = [None]

    def run() -> None:
        begun.release()
        try:
            results[0] = call(*args, **named)
        except BaseException as problem:
            problems[0] = problem
        finally:
            done.release()

    try:
        _thread.start_new_thread(run, ())
    except (RuntimeError, MemoryError):  # no thread can be started
        return call(*args, **named)
    if not begun.acquire(timeout=START_TIMEOUT):
        return call(*args, **named)
    done.acquire()
    if problems[0] is not None:
        raise problems[0]
    result: T = results[0]
    return result
