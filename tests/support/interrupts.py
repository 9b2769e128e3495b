"""Interrupt a call at every place where CPython may run a signal handler, one after the other.

CPython runs Python signal handlers between bytecodes: at the start of a function, after a call, and when a loop jumps
back (bpo-29988). A trace function counts these places in the files that matter and raises the signal at the n-th.
Elsewhere no handler can run, above all not between taking a native lock and entering the body of its `with`.
"""

from __future__ import annotations

import dis
import signal
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import hitbox

SIGNAL = signal.SIGUSR1
SOURCE = Path(hitbox.__file__).parent
ALL = ("index", "encoding", "engine", "storage", "matchers", "concurrency")


class Interrupted(BaseException):
    """What the signal handler raises."""


def _raise(number: int, frame: FrameType | None) -> None:
    raise Interrupted


def _raise_inside(number: int, frame: FrameType | None) -> None:
    """Only in hitbox: a signal that comes late must not hit the test."""
    while frame is not None and not frame.f_code.co_filename.startswith(str(SOURCE)):
        frame = frame.f_back
    if frame is not None:
        raise Interrupted


@cache
def _part(file: str) -> str:
    """The module or folder of hitbox that a file belongs to."""
    path = Path(file)
    return path.relative_to(SOURCE).parts[0].removesuffix(".py") if path.is_relative_to(SOURCE) else ""


@cache
def _places(code: CodeType) -> frozenset[int]:
    """Offsets of the instructions before which a handler may have run."""
    protected = [(entry.start, entry.end, entry.target) for entry in dis.Bytecode(code).exception_entries]

    def handler(offset: int) -> int | None:
        return next((target for start, end, target in protected if start <= offset < end), None)

    found, before = set(), None
    for one in dis.get_instructions(code):
        after_call = before is not None and before.opname.startswith("CALL")
        if one.opname == "RESUME" or "JUMP_BACKWARD" in one.opname:
            found.add(one.offset)
        elif after_call and handler(one.offset) == handler(before.offset):
            found.add(one.offset)  # it runs as part of the call, so it must be caught where the call is
        before = one
    return frozenset(found)


def interrupt_at(place: int, call: Callable[[], Any], files: tuple[str, ...] = ALL) -> bool:
    """Call with an interrupt at the n-th place; False where there are fewer places, so that the call came through."""
    left = place

    def in_frame(frame: FrameType, event: str, _: object) -> Any:
        nonlocal left
        if event == "opcode" and frame.f_lasti in _places(frame.f_code):
            left -= 1
            if left == 0:
                sys.settrace(None)
                signal.raise_signal(SIGNAL)
        return in_frame

    def on_call(frame: FrameType, event: str, _: object) -> Any:
        if left <= 0 or _part(frame.f_code.co_filename) not in files:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return in_frame

    old, traced = signal.signal(SIGNAL, _raise), sys.gettrace()
    sys.settrace(on_call)
    try:
        call()
    except Interrupted:
        pass
    finally:
        sys.settrace(traced)
        assert signal.getsignal(SIGNAL) is _raise, "a section did not put the signal handler back"
        signal.signal(SIGNAL, old)
    return left <= 0


def every_place(step: int = 1, first: int = 1) -> Iterator[int]:
    while True:
        yield first
        first += step


def interrupt_after(seconds: float, call: Callable[[], Any]) -> bool:
    """Call with an interrupt after some time; False where the call was quicker."""
    old = signal.signal(signal.SIGALRM, _raise_inside)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        call()
    except Interrupted:
        return True
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
    return False
