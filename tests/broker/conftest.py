"""Fixtures of the broker's tests."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hitbox.broker.clock import time


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Move the broker's wall clock to so many seconds from now."""
    real = time.time_ns

    def move(seconds: float) -> None:
        monkeypatch.setattr(time, "time_ns", lambda: real() + int(seconds * 1e9))

    return move
