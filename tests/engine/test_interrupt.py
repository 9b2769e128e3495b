"""A long native call can be interrupted."""

from __future__ import annotations

import threading

import pytest

from hitbox.concurrency.interruptible import MIN_VALUES, interruptible
from support.interrupts import interrupt_after


def test_the_result_or_the_error_comes_back() -> None:
    assert interruptible(MIN_VALUES, sorted, [3, 1], reverse=True) == [3, 1]
    assert interruptible(1, threading.current_thread) is threading.main_thread()
    assert interruptible(MIN_VALUES, threading.current_thread) is not threading.main_thread()
    with pytest.raises(ZeroDivisionError):
        interruptible(MIN_VALUES, lambda: 1 // 0)


def test_an_interrupt_does_not_wait_for_the_call() -> None:
    ended = threading.Event()
    assert interrupt_after(0.05, lambda: interruptible(MIN_VALUES, ended.wait, 60))
    assert not ended.is_set()
    ended.set()


def test_another_thread_calls_by_itself() -> None:
    found: list[threading.Thread] = []
    thread = threading.Thread(target=lambda: found.append(interruptible(MIN_VALUES, threading.current_thread)))
    thread.start()
    thread.join(20)
    assert found == [thread]
