"""Fixtures of the broker's tests."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hitbox.broker.clock import time


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Let so many seconds pass, as if the machine were suspended."""
    real, elapsed = time.time_ns, time.elapsed_ns

    def move(seconds: float) -> None:
        monkeypatch.setattr(time, "time_ns", lambda: real() + int(seconds * 1e9))
        monkeypatch.setattr(time, "elapsed_ns", lambda: elapsed() + int(seconds * 1e9))

    return move
