"""Merges in the background, held up or waited for."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from hitbox.engine import Engine
from hitbox.engine.merge import Merge


@contextmanager
def held(monkeypatch: pytest.MonkeyPatch, step: str = "build") -> Iterator[threading.Event]:
    """Merges stop before a step until the test has ended; the event says that one has."""
    inside, leave, whole = threading.Event(), threading.Event(), getattr(Merge, step)

    def wait(merge: Merge, *args: Any) -> None:
        if threading.current_thread() is not threading.main_thread():
            inside.set()
            leave.wait(60)
        whole(merge, *args)

    with monkeypatch.context() as patch:
        patch.setattr(Merge, step, wait)
        try:
            yield inside
        finally:
            leave.set()


def settle(engine: Engine) -> None:
    """Wait until no merge is under way."""
    end = time.monotonic() + 60
    while any(merge.under_way for merge in engine.merges.under_way) and time.monotonic() < end:
        time.sleep(0.001)
    assert not any(merge.under_way for merge in engine.merges.under_way)
