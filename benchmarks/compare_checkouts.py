"""Matching time of two or more checkouts of hitbox, taking turns on one core.

    python benchmarks/compare_checkouts.py before=/path/one after=/path/two again=/path/one --rounds 61

Each checkout has its own `.venv` (made by `make setup`). Printed per case: least and median CPU time per event in µs,
and the median of the ratios to the first checkout, round by round. Name the first checkout twice: the ratio between
equals is the noise.
"""

from __future__ import annotations

import argparse
import os
import statistics
from pathlib import Path

from research.checkouts import measure, running

CASES = ("w1", "w1 0.8", "w2", "w3", "w4")
WAYS = ("single", "batch")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkouts", nargs="+", metavar="NAME=FOLDER")
    parser.add_argument("--rounds", type=int, default=61)
    parser.add_argument("--scale", type=float, default=0.3, help="share of the workloads' subscriptions")
    parser.add_argument("--core", type=int, default=1)
    options = parser.parse_args()
    folders = {name: Path(folder) for name, folder in (entry.split("=", 1) for entry in options.checkouts)}
    os.sched_setaffinity(0, {options.core})
    names = list(folders)
    print(f"{'least / median µs per event; ratio to ' + names[0]:50}" + "".join(f"{name:>26}" for name in names))
    with running(folders) as checkouts:
        for case in CASES:
            found = measure(checkouts, case, WAYS, options.rounds, dict.fromkeys(names, options.scale))
            for way in WAYS:
                cells = []
                for name in names:
                    times = [value * 1e6 for value in found[name][way]]
                    first = found[names[0]][way]
                    ratio = statistics.median(a / b for a, b in zip(found[name][way], first, strict=True))
                    cells.append(f"{min(times):9.2f} {statistics.median(times):9.2f} {ratio:7.3f}")
                print(f"{case + ', ' + way:50}" + "".join(cells), flush=True)


if __name__ == "__main__":
    main()
