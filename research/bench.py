"""The one benchmark harness: any matchers side by side, in one process and one run, on one workload.

    admit     each matcher on a small sample: compiled, checked against `brute`, its rate and memory estimated
    build     all n boxes, timed
    check     some events against `brute` over all boxes; a difference ends the run before a match is timed
    time      repetition by repetition, in turn: single events, batches, counting only; then inserts and deletes
    check     again, so that the updates left nothing behind
    record    a dict ready for JSON: figures, spread, seed, parameters, machine, commit

No matcher stalls the run: a measurement takes about `budget` seconds, a build at most `build_budget`, and memory is
estimated before it is taken. Figures are compared within one run only, as ratios to the first matcher.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hitbox import workloads
from hitbox.encoding.arrays import Boxes, Points
from hitbox.errors import MatcherError
from hitbox.workloads import Workload
from research import floor
from research.contestants import contestants, enter
from research.errors import BenchError
from research.machine import free_memory, machine
from research.measure import Lane, Times, oracle, parts_of, quiet_memory, require_equal, spread

SAMPLE = 2_000
RESULT_LIMIT = 1_000_000_000
"""Bytes of box numbers that one batch may return; larger batches are shortened."""
DEFAULT = ("hitbox", "floor", "rein", "dexin", "simple", "numpy", "duckdb")
SYMMETRIC = ("hitbox", "floor", "mlgf", "ub-tree", "compound", "r-tree", "numpy")

Progress = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Settings:
    events: int = 400
    batches: tuple[int, ...] = (1, 64, 1024, 4096)
    repeats: int = 5
    updates: int = 10_000
    check: int = 20
    threads: int = 1
    budget: float = 5.0
    build_budget: float = 300.0
    memory: float = 0.0
    """Bytes that the run may take; 0: nine tenths of what is free."""

    def __post_init__(self) -> None:
        for name in ("events", "repeats", "updates", "check", "threads"):
            if getattr(self, name) < 1:
                raise BenchError(f"{name}={getattr(self, name)} must be at least 1")
        if self.budget <= 0 or self.build_budget <= 0:
            raise BenchError("budget and build_budget are seconds and must be above 0")
        if not self.batches or min(self.batches) < 1:
            raise BenchError(f"batches={self.batches} must be sizes of at least 1")


@dataclass(frozen=True)
class Data:
    workload: Workload
    points: Points
    expected: list[NDArray[np.int64]]

    @property
    def hits(self) -> float:
        """Matching boxes per event, over the checked events."""
        return sum(len(row) for row in self.expected) / max(1, len(self.expected))


def favourites(workload: str) -> list[str]:
    """The matchers that are compared by default: those of the usual ones that are installed."""
    usual = SYMMETRIC if workload == "symmetric" else DEFAULT
    return [name for name in usual if name in contestants()] or ["brute"]


def steps(matchers: Sequence[str], settings: Settings) -> int:
    """How often `run` calls `progress` at most."""
    return len(matchers) * (3 + settings.repeats * (3 + len(settings.batches)))


def run(
    workload: str,
    matchers: Sequence[str] = (),
    parameters: dict[str, Any] | None = None,
    settings: Settings | None = None,
    progress: Progress = lambda what: None,
) -> dict[str, Any]:
    """Benchmark `matchers` on `workload`; returns the record. Errors come before anything is timed."""
    settings, where = settings or Settings(), machine()
    chosen = workloads.get(workload, **(parameters or {}))
    if chosen.n < 1:
        raise BenchError("a benchmark needs at least one subscription: raise n")
    names = list(matchers) or favourites(workload)
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise BenchError(f"matcher {twice[0]!r} is named twice")
    yardstick = floor.NAME in names
    if yardstick and len(names) == 1:
        raise BenchError("the floor is a yardstick: name a matcher beside it, such as --matchers hitbox,floor")
    lanes, skipped = _admit(chosen, names, settings, progress)
    boxes = chosen.boxes(0, chosen.n)
    points = chosen.points(0, max(settings.events, *settings.batches, settings.check))
    lanes = [lane for lane in lanes if _build(lane, boxes, settings, skipped, progress)]
    expected = oracle(chosen.space, parts_of(boxes), points[: settings.check]) if lanes else []
    used = np.unique(boxes.attribute)
    del boxes  # gigabytes at ten million
    data = Data(chosen, points, expected)
    for lane in lanes:
        progress(f"{lane.name}: checking against the oracle")
        _check(lane, data, settings)
    if yardstick and lanes:
        progress(f"{floor.NAME}: checking against the oracle")
        lane = _floor(lanes, data, used)
        _check(lane, data, settings)
        lanes.insert(sum(names.index(one.name) < names.index(lane.name) for one in lanes), lane)
    with quiet_memory():
        _time(lanes, data, settings, progress)
    for lane in lanes:
        few = min(3, len(expected))
        require_equal(lane.name, lane.match(points[:few]), expected[:few], "after inserts and deletes")
    return _record(workload, data, lanes, skipped, settings) | {"machine": where}


def grow(
    workload: str,
    sizes: Sequence[int],
    matchers: Sequence[str] = (),
    parameters: dict[str, Any] | None = None,
    settings: Settings | None = None,
    progress: Progress = lambda what: None,
) -> dict[str, Any]:
    """`run` at each number of subscriptions; the records under "growth"."""
    runs = []
    for n in sizes:

        def tell(what: str, n: int = n) -> None:
            progress(f"n={n:,}: {what}")

        runs.append(run(workload, matchers, (parameters or {}) | {"n": n}, settings, tell))
    return {"growth": runs}


def _admit(
    workload: Workload, names: list[str], settings: Settings, progress: Progress
) -> tuple[list[Lane], list[dict[str, str]]]:
    space, sample = workload.space, workload.boxes(0, min(SAMPLE, workload.n))
    points = workload.points(0, 16)
    expected = oracle(space, parts_of(sample), points)
    entered = [(name, enter(name, space)) for name in names if name != floor.NAME]
    lanes, skipped, needs = [], [], {"the boxes": float(2 * _size(sample) * workload.n / len(sample))}
    if floor.NAME in names:
        needs[floor.NAME] = float(floor.nbytes(workload.n, space.attributes))
    for name, matcher in entered:
        progress(f"{name}: warming up")
        if points.intervals and not matcher.intervals:
            skipped.append({"name": name, "why": "it matches points only, and these events are intervals"})
            continue
        try:
            rate, size = _rehearse(name, sample, points, expected, workload, settings.threads)
        except MatcherError as problem:
            skipped.append({"name": name, "why": str(problem)})
            continue
        if workload.n / rate > settings.build_budget:
            why = f"building would take about {workload.n / rate:,.0f} s: raise the build budget or lower n"
            skipped.append({"name": name, "why": why})
            continue
        needs[name] = 1.5 * size * workload.n
        lanes.append(Lane(name, matcher, settings.threads, estimate=1 / rate))
    _require_memory(needs, settings)
    return lanes, skipped


def _rehearse(
    name: str, sample: Boxes, points: Points, expected: Any, workload: Workload, threads: int
) -> tuple[float, float]:
    """Compile and check on the sample; boxes per second and bytes per box of a second, warm build."""
    numbers = np.arange(len(sample), dtype=np.int64)
    few = max(1, len(sample) // 4)
    for _ in range(2):
        lane = Lane(name, enter(name, workload.space), threads)
        base = lane.matcher.nbytes()
        begin = time.perf_counter()
        lane.matcher.insert(numbers[:few], sample.take(numbers[:few]))
        small = lane.matcher.nbytes()
        if few < len(sample):
            lane.matcher.insert(numbers[few:], sample.take(numbers[few:]))
        taken = time.perf_counter() - begin
        size = (lane.matcher.nbytes() - small) / (len(sample) - few) if few < len(sample) else small - base
        require_equal(name, lane.match(points), expected, "on a sample")
        for i in range(len(points)):
            require_equal(name, lane.match(points[i : i + 1]), expected[i : i + 1], "on a sample", i)
        lane.matcher.delete(numbers[:1])
        lane.matcher.insert(numbers[:1], sample.take(numbers[:1]))
        lane.matcher.delete(numbers)
    return len(sample) / max(taken, 1e-9), max(float(size), _size(sample) / len(sample))


def _size(boxes: Boxes) -> int:
    return boxes.offsets.nbytes + boxes.attribute.nbytes + boxes.low.nbytes + boxes.high.nbytes + boxes.priority.nbytes


def _require_memory(needs: dict[str, float], settings: Settings) -> None:
    allowed = settings.memory or 0.9 * free_memory()
    total = sum(needs.values())
    if total > allowed:
        parts = ", ".join(f"{name} {need / 1e9:.1f}" for name, need in needs.items())
        raise BenchError(
            f"this run needs about {total / 1e9:.1f} GB ({parts}), but {allowed / 1e9:.1f} GB may be used; "
            "lower n, name fewer matchers, or raise the memory limit"
        )


def _build(lane: Lane, boxes: Boxes, settings: Settings, skipped: list[dict[str, str]], progress: Progress) -> bool:
    """Insert everything: in one call, or, if that looks slow, piece by piece until the budget is spent."""
    progress(f"{lane.name}: building")
    numbers = np.arange(len(boxes), dtype=np.int64)
    slow = len(boxes) * lane.estimate > settings.build_budget / 3
    piece = -(-len(boxes) // 20) if slow else len(boxes)
    with quiet_memory():
        for start in range(0, len(boxes), piece):
            part = numbers[start : start + piece]
            held = boxes if piece == len(boxes) else boxes.take(part)
            begin = lane.clock()
            lane.matcher.insert(part, held)
            lane.build += lane.clock() - begin
            done = start + len(part)
            if lane.build > settings.build_budget and done < len(boxes):
                why = f"only {done:,} of {len(boxes):,} boxes were built in {settings.build_budget:.0f} s"
                skipped.append({"name": lane.name, "why": why})
                return False
    lane.bytes_a_box = lane.matcher.nbytes() / len(boxes)
    return True


def _floor(lanes: list[Lane], data: Data, used: NDArray[np.int32]) -> Lane:
    """The floor, with the answers of the quickest matcher, which are checked."""
    quickest = min(lanes, key=lambda lane: lane.estimate)
    points = data.points[: floor.MOST_EVENTS]
    matcher = floor.Floor(data.workload.space, data.workload.n, used, points, quickest.match(points))
    return Lane(floor.NAME, matcher, bytes_a_box=matcher.nbytes() / data.workload.n, known=len(points))


def _check(lane: Lane, data: Data, settings: Settings) -> None:
    """Single events, then the same as one batch; updates the estimate of the time per event."""
    taken: list[float] = []
    for i in range(len(data.expected)):
        event = data.points[i : i + 1]
        begin = time.perf_counter()
        hits = lane.match(event)
        taken.append(time.perf_counter() - begin)
        require_equal(lane.name, hits, data.expected[i : i + 1], "on the whole set", i)
        if sum(taken) > settings.budget:
            break
    lane.estimate = float(np.median(taken))
    done = len(taken)
    require_equal(lane.name, lane.match(data.points[:done]), data.expected[:done], "in a batch")
    if lane.counts:
        counted, wanted = lane.count(data.points[:done]).tolist(), [len(row) for row in data.expected[:done]]
        if counted != wanted:
            raise BenchError(f"matcher {lane.name!r} counts {counted} matches, not {wanted}; no result is kept")


def _time(lanes: list[Lane], data: Data, settings: Settings, progress: Progress) -> None:
    for repeat in range(settings.repeats):
        for lane in _in_turn(lanes, repeat):
            progress(f"{lane.name}: single events, repetition {repeat + 1}")
            _time_single(lane, data, settings, repeat)
    for size in settings.batches:
        most = min(size, max(1, int(RESULT_LIMIT / 8 / max(data.hits, 1e-9))))
        for repeat in range(settings.repeats):
            for lane in _in_turn(lanes, repeat):
                progress(f"{lane.name}: batches of {size}, repetition {repeat + 1}")
                _time_batch(lane, data, size, most, settings)
    for repeat in range(settings.repeats):
        for lane in _in_turn([lane for lane in lanes if lane.counts], repeat):
            progress(f"{lane.name}: counting only, repetition {repeat + 1}")
            _time_counts(lane, data, settings)
    fresh = data.workload.boxes(data.workload.n, settings.updates)
    changing = [lane for lane in lanes if lane.name != floor.NAME]
    for lane in changing:
        lane.time_one(fresh, data.workload.n, settings.budget / 4)
    for repeat in range(settings.repeats):
        for lane in _in_turn(changing, repeat):
            progress(f"{lane.name}: inserts and deletes, repetition {repeat + 1}")
            lane.time_bulk(fresh, data.workload.n, settings.budget / settings.repeats)


def _time_single(lane: Lane, data: Data, settings: Settings, repeat: int) -> None:
    if lane.singles is None:
        total = lane.affordable(settings.events * settings.repeats, settings.budget)
        events = min(settings.events, lane.known, max(total // settings.repeats, min(total, 20)))
        lane.singles = np.full((max(1, min(settings.repeats, total // events)), events), np.nan)
    if repeat < len(lane.singles):
        lane.singles[repeat] = lane.time_single(data.points[: lane.singles.shape[1]])


def _time_batch(lane: Lane, data: Data, size: int, most: int, settings: Settings) -> None:
    times = lane.batches.setdefault(size, Times())
    if not times.repeats:
        times.events = lane.affordable(min(most, lane.known), settings.budget)
    spent = sum(times.repeats) * times.events
    if not times.repeats or spent + times.repeats[-1] * times.events <= settings.budget:
        times.repeats.append(lane.time_batch(data.points, times.events))
        lane.estimate = float(np.median(times.repeats))


def _time_counts(lane: Lane, data: Data, settings: Settings) -> None:
    """In batches of the events of the largest batch, and one by one."""
    events = lane.batches[max(settings.batches)].events
    for times, size in ((lane.count_single, 1), (lane.count_batch, events)):
        times.events = size
        times.repeats.append(lane.time_batch(data.points, size, counting=True))


def _in_turn(lanes: list[Lane], repeat: int) -> list[Lane]:
    """Another matcher begins in each repetition."""
    start = repeat % len(lanes) if lanes else 0
    return lanes[start:] + lanes[:start]


def _record(
    workload: str, data: Data, lanes: list[Lane], skipped: list[dict[str, str]], settings: Settings
) -> dict[str, Any]:
    return {
        "workload": workload,
        "parameters": data.workload.parameters,
        "seed": data.workload.seed,
        "subscriptions": data.workload.n,
        "intervals": data.points.intervals,
        "hits_per_event": data.hits if lanes else None,
        "clock": "cpu" if settings.threads == 1 else "wall",
        "settings": asdict(settings),
        "checked_events": len(data.expected),
        "matchers": [_figures(lane, lanes[0]) for lane in lanes],
        "skipped": skipped,
    }


def _figures(lane: Lane, first: Lane) -> dict[str, Any]:
    assert lane.singles is not None
    assert first.singles is not None
    event = np.median(lane.singles, axis=0) * 1e6
    common = min(lane.singles.shape[1], first.singles.shape[1])
    base = (np.median(first.singles, axis=0) * 1e6)[:common].mean()
    batches = {str(size): times.record() for size, times in lane.batches.items()}
    pace = {size: float(np.median(times.repeats)) for size, times in lane.batches.items()}
    return {
        "name": lane.name,
        "threads": lane.options.get("threads", 1),
        "single": {
            "mean_us": float(event.mean()),
            "median_us": float(np.median(event)),
            "p99_us": float(np.percentile(event, 99)),
            "std_us": float(event.std()),
            "spread_us": spread(lane.singles.mean(axis=1) * 1e6),
            "events": len(event),
            "repeats": len(lane.singles),
        },
        "batches": batches,
        "ratio": {
            "single": float(event[:common].mean() / max(base, 1e-9)),
            **{
                str(size): value / max(float(np.median(first.batches[size].repeats)), 1e-12)
                for size, value in pace.items()
            },
        },
        "counting": {"single": lane.count_single.record(), "batch": lane.count_batch.record()},
        **_upkeep(lane),
        "bytes_per_subscription": lane.bytes_a_box,
    }


def _upkeep(lane: Lane) -> dict[str, Any]:
    """Without figures for the floor, which holds no boxes."""
    found: dict[str, Any] = {"build_per_s": len(lane.matcher) / lane.build if lane.build else None}
    for name in ("insert", "delete"):
        bulk, one = getattr(lane, f"{name}_bulk"), getattr(lane, f"{name}_one")
        found[f"{name}_per_s"] = 1 / max(float(np.median(bulk.repeats)), 1e-12) if bulk.repeats else None
        found[f"{name}_bulk"] = bulk.record()
        found[f"{name}_one_us"] = float(np.median(one) * 1e6) if one else None
    return found
