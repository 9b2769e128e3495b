"""Flipped bits in every file of a snapshot and of a broker's folder: each must be detected, or make no difference.

    python tests/support/bit_flips.py                                1,000 flips, a snapshot of a million subscriptions
    python tests/support/bit_flips.py --flips 200 --n 50000 --seed 7

Two of three flips are a single bit, the others a run of up to 64 bytes. With default settings the snapshot is opened
and matches events; the broker's store is opened, its index restored, and every table read. What comes out is compared
with what came out before. `detected`: refused with an error of hitbox, or repaired from what is left; `harmless`: the
same answers. Printed for each file. Work is done in child processes, so that a crash is counted.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import logging
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from hitbox import HitboxError, Index, Schema, workloads
from hitbox.broker.broker import Broker
from hitbox.broker.events.published_event import PublishedEvent
from hitbox.broker.settings import Settings
from hitbox.broker.subscribers.subscriptions import Subscription
from hitbox.storage import snapshot
from hitbox.workloads import tables

GROUP = 100
OUTCOMES = ("detected", "harmless", "wrong", "crash")
LEFT_OUT = {"lock", "hitbox.db-shm"}  # nothing is read from these: SQLite makes the second again

# ---- what is damaged


def make_snapshot(path: Path, n: int) -> None:
    work = workloads.get("w1", n=n, seed=3)
    schema = tables.schema(work)
    index = Index(Schema({**dict(schema.items()), "city": "string"}))
    index.load(tables.subscriptions(work, 0, n))
    first = schema.names[0]
    for i in range(1000):
        index.subscribe(n + i, f"city = 'c{i % 300}' OR ({first} > {i} AND city LIKE '%{i % 10}')")
    index.unsubscribe_many(list(range(0, n, 1009)))
    index.save(path)
    snapshot.pin(path, "reader", 1, batch=3)


def ask_snapshot(path: Path) -> Any:
    """What a snapshot answers: matches of some events, some texts, how many there are, and the pin."""
    index = Index.open(path)
    work = workloads.get("w1", n=1000, seed=3)
    events = tables.events(work, 0, 40)
    cities = pa.array([f"c{i}" if i % 2 else f"nowhere{i}" for i in range(40)])
    events = events.select([name for name in events.column_names if name in index.schema])
    found = index.match_batch(events.append_column("city", cities))
    ids = index._state.catalog.id_list(index._state.catalog.living_slots()[::997])
    return [
        [sorted(found[i]) for i in range(40)],
        [[id, index.where(id), index.priority(id)] for id in ids],
        len(index),
        snapshot.pinned(path, "reader"),
    ]


def make_broker(path: Path, killed: bool) -> None:
    """A folder as a broker leaves it that was killed, with a write-ahead log and changes after its last snapshot; or as
    one leaves it that was stopped, with everything in the database."""
    work = path.with_name("running")
    schema = Schema({"price": "float", "city": "string"})

    async def run() -> None:
        broker = Broker(work, schema, Settings())
        await broker.start()
        for s in range(20):
            texts = [Subscription(f"n{i}", f"price > {i + s} OR city = 'c{i}'", i % 10, {}) for i in range(10)]
            await broker.subscribe(f"user{s}", texts)
        await broker.publish([PublishedEvent({"price": float(i % 60), "city": f"c{i % 40}"}) for i in range(300)])
        await broker.stop()
        broker = Broker(work)
        await broker.start()
        await broker.subscribe("user3", [Subscription("late", "price < 3", 9, {})], ["n4"])
        await broker.publish([PublishedEvent({"price": 1.0, "city": "c1"})] * 50)
        while broker.waiting.events:
            await asyncio.sleep(0.01)
        number, stored = broker.registry.by_name["user1"].number, broker.store.deliveries
        await broker.writer.submit(lambda: stored.bury(number, stored.oldest(number, 40), 5, "too many tries", 1000))
        if killed:
            shutil.copytree(work, path)
        await broker.stop()

    asyncio.run(run())
    if not killed:
        shutil.copytree(work, path)
    shutil.rmtree(work)


def ask_broker(path: Path) -> Any:
    """Every row of the store, how the index was restored, and what it matches."""
    copy = path.with_name(f"{path.name}-{os.getpid()}")
    shutil.copytree(path, copy)  # opening a store changes its files
    try:
        broker = Broker(copy)
        try:
            rows = {table.name: [list(map(str, row)) for row in table.scan()] for table in broker.store.tables.values()}
            index = broker.registry.index
            found = [sorted(index.match({"price": float(i), "city": f"c{i}"})) for i in range(20)]
            return [rows, broker.registry.restored_from, sorted(index), found]
        finally:
            broker.store.close()
    finally:
        shutil.rmtree(copy, ignore_errors=True)


ASK = {"snapshot": ask_snapshot, "killed-broker": ask_broker, "stopped-broker": ask_broker}


def digest(answer: Any) -> str:
    return hashlib.sha256(json.dumps(answer, sort_keys=True, default=str).encode()).hexdigest()


# ---- damage


def plan(rng: np.random.Generator, path: Path, flips: int) -> list[dict[str, Any]]:
    """Where to flip what: some in every file, more in larger ones."""
    files = sorted(file for file in path.rglob("*") if file.is_file() and file.name not in LEFT_OUT)
    files = [file for file in files if file.stat().st_size]
    weight = np.array([file.stat().st_size ** 0.25 for file in files])
    counts = np.maximum(2, (flips * weight / weight.sum()).astype(int))
    while counts.sum() < flips:
        counts[rng.integers(0, len(files))] += 1
    found = []
    for file, count in zip(files, counts.tolist(), strict=True):
        size = file.stat().st_size
        for i in range(count):
            at = int(rng.integers(0, size))
            run = 1 if i % 3 else min(int(rng.integers(2, 65)), size - at)
            mask = [1 << int(rng.integers(0, 8))] if i % 3 else [int(x) for x in rng.integers(1, 256, run)]
            found.append({"file": str(file), "at": at, "mask": mask})
    return found


def flip(one: dict[str, Any]) -> None:
    """Flips, and when called again puts back."""
    with open(one["file"], "r+b") as file:
        file.seek(one["at"])
        old = file.read(len(one["mask"]))
        file.seek(one["at"])
        file.write(bytes(byte ^ mask for byte, mask in zip(old, one["mask"], strict=True)))


def child(kind: str, path: Path, jobs: Path, out: Path) -> None:
    warnings.simplefilter("ignore")
    logging.disable()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    wanted, list_of = json.loads(jobs.read_text())
    with open(out, "a", buffering=1) as told:
        for one in list_of:
            flip(one)
            try:
                answer = ASK[kind](path)
                outcome = "harmless" if digest(answer) == wanted["all"] else "wrong"
                if kind != "snapshot" and outcome == "wrong":  # the index was built again from the store?
                    outcome = "detected" if digest([answer[0], *answer[2:]]) == wanted["facts"] else "wrong"
            except HitboxError:
                outcome = "detected"
            except Exception as problem:
                outcome = f"crash: {type(problem).__name__}: {problem}"[:300].replace("\n", " ")
            flip(one)
            told.write(outcome + "\n")


def run(kind: str, path: Path, flips: list[dict[str, Any]], scratch: Path) -> list[str]:
    """The outcome of each flip."""
    answer = ASK[kind](path)
    wanted = {"all": digest(answer), "facts": digest([answer[0], *answer[2:]])}
    jobs, out = scratch / "jobs", scratch / "out"
    outcomes: list[str] = []
    while len(outcomes) < len(flips):
        todo = flips[len(outcomes) : len(outcomes) + GROUP]
        jobs.write_text(json.dumps([wanted, todo]))
        out.write_text("")
        command = [sys.executable, __file__, "--child", kind, str(path), str(jobs), str(out)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=60 * GROUP)
            ended = f"ended with {done.returncode}"
        except subprocess.TimeoutExpired:
            ended = "hung"
        lines = out.read_text().splitlines()
        outcomes += lines
        if len(lines) < len(todo):
            flip(todo[len(lines)])  # the child did not live to put it back
            outcomes.append(f"crash: the process {ended}")
    assert digest(ASK[kind](path)) == wanted["all"], "a file was not put back"
    return outcomes


def table(path: Path, flips: list[dict[str, Any]], outcomes: list[str]) -> tuple[list[str], Counter[str]]:
    found: dict[str, Counter[str]] = {}
    for one, outcome in zip(flips, outcomes, strict=True):
        name = str(Path(one["file"]).relative_to(path))
        found.setdefault(name, Counter())[outcome.partition(":")[0]] += 1
    total: Counter[str] = Counter()
    rows = ["| file | bytes | flips | detected | harmless | wrong answers | crashes |", "|---|--:|--:|--:|--:|--:|--:|"]
    for name, counts in found.items():
        total.update(counts)
        cells = [f"{(path / name).stat().st_size:,}", counts.total(), *(counts[outcome] for outcome in OUTCOMES)]
        rows.append(f"| {name} | " + " | ".join(map(str, cells)) + " |")
    rows.append(f"| **all** | | {total.total()} | " + " | ".join(str(total[outcome]) for outcome in OUTCOMES) + " |")
    return rows, total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flips", type=int, default=1000, help="in all, two thirds of them in the snapshot")
    parser.add_argument("--n", type=int, default=1_000_000, help="subscriptions of the snapshot")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.child:
        child(asked.child[0], *map(Path, asked.child[1:]))
        return
    rng = np.random.default_rng(asked.seed)
    bad = 0
    with tempfile.TemporaryDirectory(prefix="hitbox-flips-") as folder:
        for kind in ASK:
            path = Path(folder) / kind
            share = asked.flips * 2 // 3 if kind == "snapshot" else asked.flips // 6 + 1
            if kind == "snapshot":
                make_snapshot(path, asked.n)
            else:
                make_broker(path, kind == "killed-broker")
            flips = plan(rng, path, share)
            started = time.monotonic()
            outcomes = run(kind, path, flips, Path(folder))
            rows, total = table(path, flips, outcomes)
            print(f"\n## {kind}: {len(flips)} flips, seed {asked.seed}, {time.monotonic() - started:.0f} s\n")
            print("\n".join(rows))
            for one, outcome in zip(flips, outcomes, strict=True):
                if outcome not in ("detected", "harmless"):
                    print(f"{Path(one['file']).relative_to(path)} at {one['at']} ^ {one['mask']}: {outcome}")
            bad += total["wrong"] + total["crash"]
    raise SystemExit(1 if bad else 0)


if __name__ == "__main__":
    main()
