"""Parameters of which `make test` takes some; the others are for `make test-all`."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable
from typing import Any

import pytest


def only(kept: Collection[Any], values: Iterable[Any]) -> list[Any]:
    """All of these parameters; those that are not in `kept` are exhaustive."""
    return [one if one in kept else pytest.param(*_values(one), marks=pytest.mark.exhaustive) for one in values]


def _values(one: Any) -> tuple[Any, ...]:
    return one if isinstance(one, tuple) else (one,)


def pairs(**values: Iterable[Any]) -> pytest.MarkDecorator:
    """Parametrizes a test with all combinations. `make test` takes so many of them that each two values of different
    parameters meet at least once; the others are exhaustive. What goes wrong for a reason of three values at once is
    found by `make test-all` only."""
    columns = [list(column) for column in values.values()]
    every = list(itertools.product(*(range(len(column)) for column in columns)))
    to_meet = {pair for row in every for pair in _pairs_of(row)}
    kept: set[tuple[int, ...]] = set()
    while to_meet:
        row = max(every, key=lambda row: len(to_meet & _pairs_of(row)))  # the first of those that are as good
        kept.add(row)
        to_meet -= _pairs_of(row)
    cases = []
    for row in every:
        found = [column[at] for column, at in zip(columns, row, strict=True)]
        name = "-".join(str(part) for value in found for part in _values(value))
        cases.append(pytest.param(*found, id=name, marks=() if row in kept else pytest.mark.exhaustive))
    return pytest.mark.parametrize(tuple(values), cases)


def _pairs_of(row: tuple[int, ...]) -> set[Any]:
    return set(itertools.combinations(enumerate(row), 2))
