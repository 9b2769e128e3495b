"""Long native calls that the main thread can be interrupted in.

Python runs signal handlers between bytecodes only, so Ctrl-C waits for as long as one call into Arrow takes: a second
for a million strings to be sorted. Such a call runs in a thread of its own here, and the caller waits for it, which can
be interrupted. The call must change nothing: after an interrupt it runs to its end, and nobody looks at the result.

The thread is a bare one: where memory is short, `Thread.start` waits for ever for a thread that ended before it began.
"""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")
LONG = 100_000
"""Values from which a call may take so long that it matters."""
BEGIN = 2.0
"""Seconds in which a thread must have begun; otherwise the caller does the work itself."""


def interruptible(size: int, call: Callable[..., T], *args: Any, **named: Any) -> T:
    """The result of a call that looks at some `size` values."""
    if size < LONG or threading.current_thread() is not threading.main_thread():
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
    except (RuntimeError, MemoryError):  # no thread to be had
        return call(*args, **named)
    if not begun.acquire(timeout=BEGIN):
        return call(*args, **named)
    done.acquire()
    if problems[0] is not None:
        raise problems[0]
    result: T = results[0]
    return result
