"""Checks of a snapshot's arrays, before their values are used as an index, a size or a loop bound.

A checksum says that a file is as it was written. These checks say that it is safe to use, even if it was forged.
A check that fails raises `DamagedArray`, which names the array and the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hitbox.encoding.arrays import I64, LEVELS, Boxes
from hitbox.errors import DamagedArray

Arrays = Mapping[str, NDArray[Any]]


def require(good: object, name: str, reason: str) -> None:
    if not good:
        raise DamagedArray(name, reason)


def column(arrays: Arrays, name: str, dtype: Any, size: int | None = None) -> NDArray[Any]:
    """A plain array of this type, and of this length where it is known."""
    require(name in arrays, name, "it is missing")
    array = arrays[name]
    require(
        array.ndim == 1 and array.dtype == np.dtype(dtype),
        name,
        f"it is not a one-dimensional array of {np.dtype(dtype)}",
    )
    if size is not None:
        require(len(array) == size, name, f"{len(array)} values, expected {size}")
    if array.dtype == np.bool_ and len(array):
        require(array.view(np.uint8).max() <= 1, name, "a truth value is neither 0 nor 1")
    return array


def bounds(array: NDArray[Any], name: str, least: int, most: int) -> None:
    """Every value lies in [least, most]."""
    if len(array):
        require(int(array.min()) >= least and int(array.max()) <= most, name, f"a value is outside {least}..{most}")


def ascending(array: NDArray[Any], name: str, strictly: bool = False) -> None:
    later, earlier = array[1:], array[:-1]
    require((later > earlier if strictly else later >= earlier).all(), name, "its values do not ascend")


def offsets(arrays: Arrays, name: str, end: int, size: int | None = None) -> I64:
    """Ascending start offsets of consecutive runs: the first is 0, the last is `end`."""
    found = column(arrays, name, np.int64, None if size is None else size + 1)
    require(len(found) and found[0] == 0 and found[-1] == end, name, f"it does not go from 0 to {end}")
    ascending(found, name)
    return found


def texts(arrays: Arrays, name: str, size: int | None = None, nulls: bool = False) -> pa.Array:
    """The strings behind `{name}_offsets`, `{name}_data` and, where there are nulls, `{name}_null`; valid UTF-8."""
    data = column(arrays, f"{name}_data", np.uint8)
    starts = offsets(arrays, f"{name}_offsets", len(data), size)
    valid = None
    if nulls and f"{name}_null" in arrays:
        valid = pa.array(~column(arrays, f"{name}_null", np.bool_, len(starts) - 1)).buffers()[1]
    found = pa.Array.from_buffers(pa.large_string(), len(starts) - 1, [valid, pa.py_buffer(starts), pa.py_buffer(data)])
    try:
        found.validate(full=True)
    except pa.ArrowInvalid as problem:
        raise DamagedArray(f"{name}_data", str(problem)) from None
    return found


def boxes(arrays: Arrays, prefix: str, attributes: int) -> tuple[I64, Boxes]:
    """Box numbers, none negative, and the boxes: attributes ascend within a box, and low <= high."""
    numbers = column(arrays, f"{prefix}numbers", np.int64)
    low = column(arrays, f"{prefix}low", np.int64)
    high = column(arrays, f"{prefix}high", np.int64, len(low))
    attribute = column(arrays, f"{prefix}attribute", np.int32, len(low))
    priority = column(arrays, f"{prefix}priority", np.uint8, len(numbers))
    starts = offsets(arrays, f"{prefix}offsets", len(low), len(numbers))
    bounds(numbers, f"{prefix}numbers", 0, 2**31 - 1)
    bounds(priority, f"{prefix}priority", 0, LEVELS - 1)
    bounds(attribute, f"{prefix}attribute", 0, attributes - 1)
    require((low <= high).all(), f"{prefix}low", "a low bound is above its high bound")
    first = np.zeros(len(low) + 1, bool)
    first[starts] = True
    require((first[1:-1] | (attribute[1:] > attribute[:-1])).all(), f"{prefix}attribute", "its values do not ascend")
    return numbers, Boxes(starts, attribute, low, high, priority)
