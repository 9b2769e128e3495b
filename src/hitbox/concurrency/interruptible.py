"""Long native calls that the main thread can be interrupted in.

Python runs signal handlers between bytecodes only, so Ctrl-C waits for as long as one call into Arrow takes: a second
for a million strings to be sorted. Such a call runs in a thread of its own here, and the caller waits for it, which can
be interrupted. The call must change nothing: after an interrupt it runs to its end, and nobody looks at the result.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")
LONG = 100_000
"""Values from which a call may take so long that it matters."""


def interruptible(size: int, call: Callable[..., T], *args: Any, **named: Any) -> T:
    """The result of a call that looks at some `size` values."""
    if size < LONG or threading.current_thread() is not threading.main_thread():
        return call(*args, **named)
    from concurrent.futures import Future  # brings logging, which importing hitbox need not wait for

    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(call(*args, **named))
        except BaseException as problem:
            answer.set_exception(problem)

    try:
        threading.Thread(target=run, name="hitbox-long-call", daemon=True).start()
    except RuntimeError:  # no thread to be had
        return call(*args, **named)
    return answer.result()
