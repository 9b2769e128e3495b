"""What the library adds to the engine: each public way to match, timed beside the engine's own call in one process.

    python benchmarks/public_api.py                      # all parts, W1 to W3 at their full size
    python benchmarks/public_api.py --scale 0.1 --parts w1,small

Times are medians of CPU time; each round times the engine and the library in turn, on the same events. Before timing,
what the library answers is compared with what the engine answers.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import io
import pstats
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from hitbox import Index, workloads
from hitbox.encoding.arrays import Points
from hitbox.encoding.events import from_table
from hitbox.encoding.keys import Keys
from hitbox.encoding.schema import Schema
from hitbox.index.bulk_load import Encoded
from hitbox.index.state import IndexState

ROUNDS = 7
BATCH = 4096
CHANGES = 10_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--scale", type=float, default=1.0, help="share of the subscriptions of each workload")
    parser.add_argument("--parts", default="small,w1,wide,w2,w3,limit,changes")
    parser.add_argument("--profile", action="store_true", help="also print the calls inside one Index.match")
    options = parser.parse_args()
    chosen = options.parts.split(",")
    print(f"{'what':44} {'engine':>10} {'library':>10}  ratio   (µs per event; spread of the library)")
    if "small" in chosen:
        for attributes in (3, 10, 20):
            small(attributes, options.profile)
    for name, workload in {
        "w1": workloads.get("w1", n=int(1e6 * options.scale)),
        "wide": workloads.get("w1", n=int(1e6 * options.scale), width=0.8),
        "w2": workloads.get("w2", n=int(1e6 * options.scale)),
        "w3": workloads.get("w3", n=int(5e5 * options.scale)),
    }.items():
        if name in chosen:
            for kind in ("row", "int", "str"):
                large(name, workload, kind)
    if "limit" in chosen:
        limits(int(2e5 * options.scale))
    if "changes" in chosen:
        changes(int(1e6 * options.scale))


def small(attributes: int, profile: bool) -> None:
    """A thousand subscriptions, where calls cost more than matching."""
    names = [f"a{n}" for n in range(attributes)]
    index = Index(dict.fromkeys(names, "float"))
    draw = np.random.default_rng(1)
    low = draw.random((1000, 3)) * 0.9
    for n in range(1000):
        bounds = zip(draw.choice(names, 3, replace=False), low[n], strict=True)
        index.subscribe(n, " AND ".join(f"{a} BETWEEN {at:.6f} AND {at + 0.1:.6f}" for a, at in bounds))
    events = [dict(zip(names, row, strict=True)) for row in draw.random((BATCH, attributes)).tolist()]
    table = pa.Table.from_pylist(events)
    points = keys_of(index, table)
    check(index, points, events)
    singles = [points[at : at + 1] for at in range(500)]
    report(
        f"match, {attributes} attributes, 1,000 subscriptions",
        lambda: each(index._matcher.match, singles),
        lambda: each(index.match, events[:500]),
        500,
    )
    many = partial(index._matcher.match, points)
    report(f"match_batch, list of {attributes}", many, lambda: index.match_batch(events), BATCH)
    report(f"match_batch, table of {attributes}", many, lambda: index.match_batch(table), BATCH)
    if profile:
        calls(index, events[0])


def large(name: str, workload: Any, kind: str) -> None:
    """A workload of the papers. Ids are the numbers of rows, ints in any order, or texts."""
    index = indexed(workload, kind)
    points = workload.points(0, BATCH)
    events = [dict(zip(index.schema.names, row, strict=True)) for row in points.low.tolist()]
    check(index, points, events[:8])
    few, size = (64, 512) if name == "wide" else (512, BATCH)
    singles = [points[at : at + 1] for at in range(few)]
    one = partial(each, index._matcher.match, singles)
    report(f"{name}, {kind} ids: match", one, lambda: each(index.match, events[:few]), few)
    if hasattr(index, "match_array"):
        report(f"{name}, {kind} ids: match_array", one, lambda: each(index.match_array, events[:few]), few)
    table = pa.Table.from_pylist(events[:size])
    many = partial(index._matcher.match, points[:size])
    report(f"{name}, {kind} ids: match_batch of {size}", many, lambda: index.match_batch(table), size, 3)


def limits(n: int) -> None:
    """Identical boxes with a limit, before, with and after one subscription that is two boxes."""
    index = Index({"a": "int", "b": "int"})
    index.load(pa.table({"id": np.arange(n), "where": ["a >= 0 AND b >= 0"] * n}))
    event = {"a": 1, "b": 1}
    point = keys_of(index, pa.Table.from_pylist([event]))
    engine = partial(index._matcher.match_top, point, 10)
    report(f"limit=10 of {n:,} alike", engine, lambda: index.match(event, limit=10), 1, 21)
    index.subscribe(n, "a = 1 OR b = 1")
    report("the same, one with an OR there", engine, lambda: index.match(event, limit=10), 1, 21)
    index.unsubscribe(n)
    report("the same, it is gone", engine, lambda: index.match(event, limit=10), 1, 21)


def changes(n: int) -> None:
    """One by one, with many subscriptions there: in CPU time of the thread that changes, and by the clock, which also
    counts what it waits for. Merges run in other threads; `all` is the CPU time of the whole process."""
    index = Index(dict.fromkeys("abc", "float"))
    draw = np.random.default_rng(1)
    low = draw.random((n, 3)) * 0.9
    columns = {f"{a}_{end}": low[:, i] + (end == "high") * 0.1 for i, a in enumerate("abc") for end in ("low", "high")}
    index.load(pa.table({"id": np.arange(n), **columns}))
    texts = [
        " AND ".join(f"{a} BETWEEN {at:.4f} AND {at + 0.1:.4f}" for a, at in zip("abc", row, strict=True))
        for row in draw.random((CHANGES, 3)).tolist()
    ]
    some = draw.permutation(n)[:CHANGES].tolist()
    title = f"one by one, {n:,} there"
    print(f"\n{title:44} {'per s':>8} {'(all)':>9} {'median':>8} {'p99.9':>8}  by clock")
    for what, call in {
        "subscribe": lambda at: index.subscribe(n + at, texts[at]),
        "replace": lambda at: index.subscribe(n + at, texts[-1 - at]),
        "unsubscribe, new ones": lambda at: index.unsubscribe(n + at),
        "unsubscribe, any": lambda at: index.unsubscribe(some[at]),
    }.items():
        one_by_one(what, call, range(min(CHANGES, n)))
    engine = index._matcher
    boxes = [engine.boxes(np.array([number])) for number in engine.numbers()[:100].tolist()]
    top = int(engine.numbers().max()) + 1
    engine.insert(np.array([top + CHANGES]), boxes[0])  # arrays grow here, and not under the clock
    numbers = [np.array([top + at]) for at in range(100)]
    for _ in range(5):
        one_by_one("engine: insert", lambda at: engine.insert(numbers[at], boxes[at]), range(100))
        one_by_one("engine: delete", lambda at: engine.delete(numbers[at]), range(100))


def one_by_one(what: str, call: Callable[[int], Any], numbers: range) -> None:
    taken, waited = [], []
    whole = time.process_time()
    for at in numbers:
        begin, began = time.perf_counter(), time.thread_time()
        call(at)
        taken.append(time.thread_time() - began)
        waited.append(time.perf_counter() - begin)
    whole = (time.process_time() - whole) / len(numbers)
    own, clock = np.array(taken) * 1e6, np.array(waited) * 1e6
    slow, late = np.quantile(own, 0.999) / np.median(own), np.quantile(clock, 0.999) / np.median(clock)
    print(
        f"{what:44} {1e6 / own.mean():8,.0f} {1 / whole:9,.0f} {np.median(own):8.1f} {slow:7.0f}x"
        f"  {1e6 / clock.mean():,.0f} per s, {np.median(clock):.1f}, {late:.0f}x",
        flush=True,
    )


def indexed(workload: Any, kind: str) -> Index:
    """An index of a workload's boxes; its attributes are ints, so that keys are values."""
    boxes = workload.boxes(0, workload.n)
    keys = Keys(Schema(dict.fromkeys(workload.attributes, "int")))
    ids = pa.array(np.arange(len(boxes)) if kind == "row" else np.random.default_rng(3).permutation(len(boxes)))
    if kind == "str":
        ids = pa.array([f"subscriber-{n}" for n in ids.to_pylist()], pa.large_string())
    state_ = IndexState.empty(keys, "auto", {})
    one = np.ones(len(boxes), np.int64)
    state_.add(Encoded(ids, pa.nulls(len(boxes), pa.large_string()), boxes.priority, one, one.astype(bool), boxes))
    return Index.of(state_)


def keys_of(index: Index, table: pa.Table) -> Points:
    return from_table(index._keys, table)


def check(index: Index, points: Points, events: list[dict[str, Any]]) -> None:
    owner, ids = index._catalog.owner, index._catalog.ids
    for at, event in enumerate(events[:64]):
        numbers = index._matcher.match(points[at : at + 1]).numbers
        found = sorted(ids.take(owner[numbers]).to_pylist())
        ways = [index.match(event), index.match_batch([event])[0]]
        if hasattr(index, "match_array"):
            ways.append(index.match_array(event).to_pylist())
        if any(sorted(way) != found for way in ways):
            sys.exit("the library and the engine differ")


def each(call: Callable[[Any], Any], arguments: list[Any]) -> None:
    for one in arguments:
        call(one)


def report(what: str, engine: Callable[[], Any], library: Callable[[], Any], events: int, rounds: int = ROUNDS) -> None:
    engine(), library()
    times: dict[str, list[float]] = {"engine": [], "library": []}
    gc.collect()
    for _ in range(rounds):
        for name, call in (("engine", engine), ("library", library)):
            begin = time.process_time()
            call()
            times[name].append((time.process_time() - begin) / events * 1e6)
    one, two = (statistics.median(times[name]) for name in times)
    spread = (max(times["library"]) - min(times["library"])) / 2
    print(f"{what:44} {one:10.2f} {two:10.2f} {two / one:6.2f}   ±{spread:.2f}", flush=True)


def calls(index: Index, event: dict[str, Any]) -> None:
    profile = cProfile.Profile()
    profile.enable()
    for _ in range(1000):
        index.match(event)
    profile.disable()
    out = io.StringIO()
    pstats.Stats(profile, stream=out).sort_stats("tottime").print_stats(16)
    print("\n".join(line for line in out.getvalue().splitlines() if line.strip()))


if __name__ == "__main__":
    main()
