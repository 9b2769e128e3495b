"""Building a large snapshot on Spark: time, and the memory of the driver, the JVM and the Python workers.

    python benchmarks/spark_build.py --subscriptions 5M
    python benchmarks/spark_build.py --subscriptions 20M --parts 20 --by-part

Writes the workload W1 (10 of 20 attributes) in the wide layout as Parquet, then builds it, while the memory of every
process is read five times a second. Resident memory that belongs to a process alone ("anonymous") is what it costs;
pages of files that it maps or writes belong to the page cache; "largest_worker" is the largest resident memory of a
Python worker, mapped files included. At the end a few events are matched against the
snapshot on Spark and compared with boxes that this process makes and tests itself, one chunk after the other.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from hitbox import spark as hs
from hitbox import workloads
from research.machine import own_processes

EVENTS, CHUNK = 20, 250_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--subscriptions", default="5M")
    parser.add_argument("--cores", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--parts", type=int, default=None)
    parser.add_argument("--by-part", action="store_true", help="match with one part per task")
    parser.add_argument("--memory", default="2g", help="the JVM's heap")
    given = parser.parse_args()
    folder = tempfile.mkdtemp(prefix="hitbox-spark-build-")
    try:
        print(json.dumps(measure(given, folder), indent=1))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def measure(given: argparse.Namespace, folder: str) -> dict[str, Any]:
    count = workloads.count(given.subscriptions)
    facts: dict[str, Any] = {"subscriptions": count, "cores": given.cores, "load_before": os.getloadavg()[0]}
    spark = hs.session(f"local[{given.cores}]", spark_driver_memory=given.memory)
    with observed() as seen:
        made = hs.generate("w1", count, EVENTS, path=folder, spark=spark)
    facts["generate"] = seen
    with observed() as seen:
        report = hs.build(f"{folder}/subscriptions", f"{folder}/snapshot", parts=given.parts)
    facts["build"] = seen | {"parts": report.parts, "per_second": round(report.subscriptions / seen["seconds"])}
    size = sum(file.stat().st_size for file in Path(folder, "snapshot").rglob("*") if file.is_file())
    facts["bytes_a_subscription"] = round(size / count)
    with observed() as seen:
        rows = hs.match(made.events, f"{folder}/snapshot", by_part=given.by_part).collect()
    facts["match"] = seen | {"events": EVENTS, "matches": sum(len(row.subscriptions) for row in rows)}
    if {row.event_id: sorted(row.subscriptions) for row in rows} != by_hand(count):
        raise SystemExit("the snapshot does not answer as the boxes do")
    return facts


def by_hand(count: int) -> dict[int, list[int]]:
    """Who wants the first events, by testing every box."""
    workload = workloads.get("w1", n=count)
    points = workload.points(0, EVENTS).low
    found: dict[int, list[int]] = {event: [] for event in range(EVENTS)}
    for start in range(0, count, CHUNK):
        low, high = workload.boxes(start, min(CHUNK, count - start)).dense(points.shape[1])
        for event in range(EVENTS):
            inside = ((low <= points[event]) & (points[event] <= high)).all(1)
            found[event] += (start + np.flatnonzero(inside)).tolist()
    return found


@contextmanager
def observed() -> Iterator[dict[str, Any]]:
    """Seconds, and peaks of memory in MB, of what happens meanwhile."""
    facts: dict[str, Any] = {}
    peaks: dict[str, int] = {}
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.2):
            now = memory()
            now["all"] = sum(size for name, size in now.items() if name != "largest_worker")
            for name, size in now.items():
                peaks[name] = max(peaks.get(name, 0), size)

    watcher = threading.Thread(target=watch)
    watcher.start()
    began = time.perf_counter()
    try:
        yield facts
    finally:
        facts["seconds"] = round(time.perf_counter() - began, 1)
        over.set()
        watcher.join()
        facts["peak_mb"] = {name: size // 1024 for name, size in sorted(peaks.items())}


def memory() -> dict[str, int]:
    """Anonymous KB of this process, its JVM and its Python workers together; resident KB of the largest worker."""
    found = {"driver": 0, "jvm": 0, "workers": 0, "largest_worker": 0}
    for pid in own_processes():
        try:
            status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
            anonymous, resident = (int(status[name].split()[0]) for name in ("RssAnon", "VmRSS"))
        except (OSError, KeyError, ValueError):  # it has ended
            continue
        if pid == os.getpid():
            found["driver"] += anonymous
        elif status["Name"].strip() == "java":
            found["jvm"] += anonymous
        else:
            found["workers"] += anonymous
            found["largest_worker"] = max(found["largest_worker"], resident)
    return found


if __name__ == "__main__":
    main()
