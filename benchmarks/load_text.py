"""How many subscriptions per second and core `Index.load` takes from a table with texts.

    .venv/bin/python benchmarks/load_text.py [--rows 200000] [--before /path/of/another/checkout]

With --before, each mix is measured in the other checkout too, in turn, with the Python of its own .venv and fewer rows
(it may be slow). Time is CPU time of the whole process, so threads do not count as speed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa

import hitbox

Texts = list[str]
Rng = np.random.Generator
FLOATS20 = {f"a{i}": "float" for i in range(20)}
FLOATS200 = {f"a{i}": "float" for i in range(200)}
THREE = {"price": "float", "qty": "int", "city": "string"}
CITIES = [f"city {i}" for i in range(500)]


def few(rng: Rng, rows: int) -> Texts:
    """Three conditions, few of which differ."""
    low, qty, city = rng.integers(0, 10, rows), rng.integers(0, 10, rows), rng.integers(0, 20, rows)
    return [
        f"price BETWEEN {a} AND {a + 5} AND qty >= {q} AND city = '{CITIES[c]}'"
        for a, q, c in zip(low, qty, city, strict=True)
    ]


def many(rng: Rng, rows: int) -> Texts:
    """Three conditions, nearly all of which differ."""
    low, qty, city = rng.random(rows), rng.integers(0, 10**6, rows), rng.integers(0, 10**6, rows)
    return [
        f"price BETWEEN {a} AND {a + 0.5} AND qty >= {q} AND city = 'street {c}'"
        for a, q, c in zip(low.tolist(), qty, city, strict=True)
    ]


def floats(rng: Rng, rows: int, names: list[str], least: int, most: int) -> Texts:
    """Ranges on some of the attributes, in any order."""
    found = []
    for count in rng.integers(least, most + 1, rows):
        chosen = rng.choice(len(names), count, replace=False)
        low = rng.random(count).tolist()
        found.append(" AND ".join(f"{names[n]} BETWEEN {a} AND {a + 0.5}" for n, a in zip(chosen, low, strict=True)))
    return found


def strings(rng: Rng, rows: int) -> Texts:
    """IN lists of strings and of numbers, and a disjunction over one attribute."""
    found = []
    for row in range(rows):
        cities = ", ".join(f"'{CITIES[c]}'" for c in rng.integers(0, 500, 3))
        a, b = rng.integers(0, 1000, 2)
        found.append(
            f"city IN ({cities}) AND qty IN ({a}, {b}) AND price > {row}.5"
            if row % 2
            else f"city = '{CITIES[a // 2]}' AND (qty < {a} OR qty >= {b + 500}) AND price <= {row}"
        )
    return found


def likes(rng: Rng, rows: int) -> Texts:
    """Of the rows with three conditions, five in a hundred have a LIKE that no range can say."""
    found = many(rng, rows)
    for row in range(0, rows, 20):
        found[row] = f"price > {row} AND qty >= 3 AND city LIKE '%eet {row % 1000}'"
    return found


MIXES: dict[str, tuple[dict[str, str], Callable[[Rng, int], Texts]]] = {
    "3 conditions, few distinct": (THREE, few),
    "3 conditions, many distinct": (THREE, many),
    "10 of 20 floats": (FLOATS20, lambda rng, rows: floats(rng, rows, list(FLOATS20), 10, 10)),
    "3 to 8 of 200 floats": (FLOATS200, lambda rng, rows: floats(rng, rows, list(FLOATS200), 3, 8)),
    "strings, IN, OR": (THREE, strings),
    "5% LIKE '%x'": (THREE, likes),
}


def per_second(mix: str, rows: int, repeats: int) -> list[float]:
    schema, texts_of = MIXES[mix]
    texts = texts_of(np.random.default_rng(7), rows)
    table = pa.table({"id": np.arange(rows), "where": texts})
    found = []
    for _ in range(repeats):
        index = hitbox.Index(schema)
        start = time.process_time()
        report = index.load(table)
        found.append(rows / (time.process_time() - start))
        assert report.loaded == rows
    return found


def elsewhere(checkout: Path, mix: str, rows: int) -> list[float]:
    command = [str(checkout / ".venv/bin/python"), __file__, "--mix", mix, "--rows", str(rows), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: list[float] = json.loads(done.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--before", type=Path, help="another checkout, with its own .venv")
    parser.add_argument("--before-rows", type=int, default=10_000)
    parser.add_argument("--mix", choices=MIXES)
    parser.add_argument("--json", action="store_true", help="the figures of one mix, for --before")
    given = parser.parse_args()
    if given.json:
        json.dump(per_second(given.mix, given.rows, given.repeats), sys.stdout)
        return
    print(f"rows per second and core, median of {given.repeats} (least, most)\n")
    for mix in [given.mix] if given.mix else MIXES:
        now = sorted(per_second(mix, given.rows, given.repeats))
        line = f"{mix:30} {np.median(now):10,.0f} ({now[0]:,.0f}, {now[-1]:,.0f})"
        if given.before:
            before = np.median(elsewhere(given.before.resolve(), mix, given.before_rows))
            line += f"   before {before:8,.0f}   {np.median(now) / before:5.1f} times"
        print(line, flush=True)


if __name__ == "__main__":
    main()
