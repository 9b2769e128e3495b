"""The floor of matching, in C++ (native/)."""

import numpy as np
from numpy.typing import NDArray

def floor(
    bitmaps: NDArray[np.uint64], offsets: NDArray[np.uint32], chosen: NDArray[np.uint32], simd: str, counting: bool
) -> tuple[NDArray[np.int64], NDArray[np.int32]]: ...
