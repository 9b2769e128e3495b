"""Matching time of two or more checkouts of hitbox, taking turns on one core.

    python benchmarks/compare_checkouts.py before=/path/one after=/path/two again=/path/one --rounds 61

Each checkout has its own `.venv` (made by `make setup`). One child process per checkout builds the same workloads and
then measures when it is asked to, so that all of them meet the same machine. Printed per case: least and median CPU
time per event in µs, and the median of the ratios to the first checkout, round by round. Name the first checkout twice:
the ratio between equals is the noise.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

CASES = (
    ("w1", {"n": 300_000}),
    ("w1", {"n": 200_000, "width": 0.8}),
    ("w2", {"n": 300_000}),
    ("w3", {"n": 200_000}),
    ("w4", {"n": 300_000}),
)
EVENTS, SINGLE = 1024, 150


def measure() -> None:
    """The child: builds everything, then answers each line from standard input with one line of figures."""
    import numpy as np

    from hitbox.engine import Engine
    from hitbox.workloads import get

    contestants = []
    for name, parameters in CASES:
        n = int(parameters["n"])
        workload = get(name, seed=1, **parameters)
        engine = Engine(workload.space)
        engine.insert(np.arange(n), workload.boxes(0, n))
        batch = workload.points(0, EVENTS)
        events = [type(batch)(batch.low[i : i + 1].copy(), batch.high[i : i + 1].copy()) for i in range(SINGLE)]
        contestants.append((engine, events, batch))
    print("ready", flush=True)
    for _ in sys.stdin:
        figures = []
        for engine, events, batch in contestants:
            start = time.process_time()
            for event in events:
                engine.match(event)
            middle = time.process_time()
            engine.match(batch)
            figures += [(middle - start) / SINGLE * 1e6, (time.process_time() - middle) / EVENTS * 1e6]
        print(*figures, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkouts", nargs="+", metavar="NAME=FOLDER")
    parser.add_argument("--rounds", type=int, default=61)
    parser.add_argument("--core", type=int, default=1)
    options = parser.parse_args()
    folders = {name: Path(folder) for name, folder in (entry.split("=", 1) for entry in options.checkouts)}
    os.sched_setaffinity(0, {options.core})
    children = {
        name: subprocess.Popen(
            [folder / ".venv/bin/python", Path(__file__).resolve(), "--child"],
            cwd=folder,
            stdin=-1,
            stdout=-1,
            text=True,
        )
        for name, folder in folders.items()
    }

    def answer(name: str) -> str:
        stdout = children[name].stdout
        assert stdout is not None
        line = stdout.readline()
        if not line:
            sys.exit(f"the measurement of {name} ended early")
        return line

    for name in children:
        answer(name)
    names, rounds = list(children), []
    for turn in range(options.rounds):
        row = {}
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            stdin = children[name].stdin
            assert stdin is not None
            stdin.write("go\n")
            stdin.flush()
            row[name] = [float(figure) for figure in answer(name).split()]
        rounds.append(row)
    for child in children.values():
        child.communicate()
    labels = [f"{name} {parameters}, {way}" for name, parameters in CASES for way in ("single", "batch")]
    print(f"{'least / median µs per event; ratio to ' + names[0]:50}" + "".join(f"{name:>26}" for name in names))
    for i, label in enumerate(labels):
        cells = []
        for name in names:
            times = [row[name][i] for row in rounds[1:]]
            ratio = statistics.median(row[name][i] / row[names[0]][i] for row in rounds[1:])
            cells.append(f"{min(times):9.2f} {statistics.median(times):9.2f} {ratio:7.3f}")
        print(f"{label:50}" + "".join(cells))


if __name__ == "__main__":
    measure() if sys.argv[1:] == ["--child"] else main()
