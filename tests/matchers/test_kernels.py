"""Lists and sorting, which the compiled matchers share."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hitbox.encoding.arrays import HIGHEST, LOWEST, MISSING
from hitbox.matchers.kernels import SHORT, Lists, sort_by_value


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("far", [5, 10**6, HIGHEST])
def test_lists_equal_plain_lists(ordered: bool, far: int) -> None:
    rng = np.random.default_rng(1)
    lists = Lists(5, ordered=ordered)
    plain: list[dict[int, int]] = [{} for _ in range(5)]
    for step in range(60):
        where = rng.integers(0, 5, rng.choice([1, 3, 40]))
        numbers = np.arange(len(where)) + 1000 * step
        values = rng.integers(-far, far, len(where), endpoint=True)
        lists.insert(where, numbers, values)
        for one, number, value in zip(where, numbers, values, strict=True):
            plain[one][int(number)] = int(value)
        held = [(one, number) for one in range(5) for number in plain[one]]
        gone = [held[i] for i in rng.permutation(len(held))[: rng.integers(0, len(held))]]
        if gone:
            (lists.purge if step % 2 else lists.delete)(*(np.array(part) for part in zip(*gone, strict=True)))
        for one, number in gone:
            del plain[one][number]
        for one in range(5):
            part = slice(lists.start[one], lists.start[one] + lists.size[one])
            assert dict(zip(lists.numbers[part].tolist(), lists.values[part].tolist(), strict=True)) == plain[one]
            assert not ordered or (lists.values[part] == np.sort(lists.values[part])).all()
        assert lists.live == sum(map(len, plain))


@pytest.mark.parametrize("count", [1, 2, SHORT - 1, SHORT, SHORT + 1, 3 * SHORT])
@pytest.mark.parametrize("values", [[7], range(-3, 3), range(0, 70_000, 100), [MISSING, LOWEST, -1, 0, 1, HIGHEST]])
def test_sorting_by_value(count: int, values: Any) -> None:
    before = np.random.default_rng(3).choice(np.array(values, np.int64), count)
    numbers, after = np.arange(count, dtype=np.int32), before.copy()
    sort_by_value(numbers, after)
    np.testing.assert_array_equal(after, np.sort(before))
    np.testing.assert_array_equal(after, before[numbers])
    assert len(set(numbers.tolist())) == count
