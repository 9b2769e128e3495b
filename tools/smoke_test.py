"""Does an installed hitbox work? Needs nothing but the package: used to check wheels."""

from __future__ import annotations

import tempfile

import hitbox
from hitbox.engine import _kernels


def main() -> None:
    index = hitbox.Index({"price": "float", "city": "string"})
    oracle = hitbox.Index({"price": "float", "city": "string"}, matcher="brute")
    for number in range(3_000):
        where = f"price BETWEEN {number % 97} AND {number % 97 + number % 13} AND city = 'c{number % 7}'"
        for one in (index, oracle):
            one.subscribe(number, where, priority=number % 10)
    for event in ({"price": value / 3, "city": f"c{value % 7}"} for value in range(300)):
        assert sorted(index.match(event)) == sorted(oracle.match(event)), event
    with tempfile.TemporaryDirectory() as folder:
        index.save(folder)
        assert len(hitbox.Index.open(folder)) == 3_000
    print(f"hitbox {hitbox.__version__} works here; kernels: {', '.join(_kernels.simd_levels())}")


if __name__ == "__main__":
    main()
