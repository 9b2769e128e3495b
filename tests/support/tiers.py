"""Parameters of which `make test` takes some; the others are for `make test-all`."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def only(kept: Collection[Any], values: Iterable[Any]) -> list[Any]:
    """All of these parameters; those that are not in `kept` are exhaustive."""
    return [one if one in kept else pytest.param(*_values(one), marks=pytest.mark.exhaustive) for one in values]


def _values(one: Any) -> tuple[Any, ...]:
    return one if isinstance(one, tuple) else (one,)
