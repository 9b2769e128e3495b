"""From raw rows to figures: means, spreads and correlations per contestant and point, each with its bootstrap.

Resampling has two levels: seeds are drawn with replacement, then events within each drawn seed. A draw is the same for
all contestants and points that measured as many events, so that a ratio of two curves compares the same events.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from research.curves import F64, Curves
from research.experiment import Experiment, label_of
from research.measurements import COUNTED_EVENTS
from research.ranks import ranks
from research.rules import Rules

Columns = dict[str, NDArray[Any]]
TIMES = ("ns", "preparing", "gap", "interval", "ending", "plan_ns")
MICRO, MILLI = 1e3, 1e6


def curves_of(experiment: Experiment, scale: str, rows: pa.Table, skipped: dict[Any, str], rules: Rules) -> Curves:
    """`rows`: of one experiment; `skipped`: (x, series, contestant) -> why it was left out at a point."""
    columns = _at_one_pace(_columns(rows))
    found = Curves(list(experiment.values[scale]), [], [], [])
    for x in found.xs:
        here: dict[str, dict[str, F64]] = {}
        left_out: dict[str, str] = {}
        n = 0
        for series in experiment.series[scale]:
            at = _select(columns, (columns["x"] == str(x)) & (columns["series"] == series))
            n = max(n, int(at["n"].max(initial=0)))
            for contestant in dict.fromkeys(at["contestant"].tolist()):
                own = _select(at, at["contestant"] == contestant)
                here[label_of(contestant, series)] = figures(own, int(own["n"].max(initial=1)), rules)
            for contestant in experiment.lanes(x):
                why = skipped.get((str(x), series, contestant))
                if why:
                    left_out[label_of(contestant, series)] = why
        found.points.append(here)
        found.skipped.append(left_out)
        found.n.append(n)
    return found


def figures(rows: Columns, n: int, rules: Rules) -> dict[str, F64]:
    """Every metric of one contestant at one point."""
    found: dict[str, F64] = {}
    kinds = {kind: _select(rows, rows["kind"] == kind) for kind in dict.fromkeys(rows["kind"].tolist())}
    found["seeds"] = np.array([float(len(np.unique(rows["seed"])))])
    if "event" in kinds:
        found["events"] = np.array([float(len(kinds["event"]["ns"]))])
        found |= _events(kinds["event"], kinds.get("level"), rules)
        if "sent" in kinds:
            weights = _weights(kinds["event"], rules)
            found["processing"], found["processing_std"] = _of_matches(kinds["event"], kinds["sent"], weights)
    if "build" in kinds:
        found |= _builds(kinds["build"], n, rules)
    if "count" in kinds:
        counted = kinds["count"]
        weights = _weights(counted, rules)
        found["hits"] = _mean(weights, counted["matches"].astype(float)) / COUNTED_EVENTS
        found["asked"] = np.full(len(weights), float(len(counted["ns"]) * COUNTED_EVENTS))
    for kind in ("insert one", "delete one", "insert many", "delete many"):
        if kind in kinds:
            name = kind.replace(" many", "_each").replace(" ", "_")
            found[name] = _median(_weights(kinds[kind], rules), kinds[kind]["ns"]) / MICRO
    if "delete_one" in found:
        found["delete_thousand"] = _mean(_weights(kinds["delete one"], rules), kinds["delete one"]["ns"]) / MILLI
    return found


def _events(rows: Columns, levels: Columns | None, rules: Rules) -> dict[str, F64]:
    found: dict[str, F64] = {}
    weights = _weights(rows, rules)
    matches, taken = rows["matches"].astype(float), rows["ns"]
    fine = bool(np.isfinite(rows["preparing"]).any() or levels is not None)
    found["hits"] = _mean(weights, matches)
    name, unit = ("matching", MILLI) if fine else ("match", MICRO)
    found |= {name: _mean(weights, taken) / unit, f"{name}_std": _deviation(weights, taken) / unit}
    drawn = weights > 0
    highest = np.where(drawn, taken, -np.inf).max(axis=1)
    lowest = np.where(drawn, taken, np.inf).min(axis=1)
    found |= {"match_max": highest / MICRO, "match_min": lowest / MICRO, "match_range": highest / lowest}
    found["time_vs_hits"] = _correlation(weights, ranks(matches), ranks(taken))
    straight, bent = (_correlation(weights, axis, taken) for axis in (matches, np.log1p(matches)))
    found["linear_misfit"] = (1 - straight**2) / np.maximum(1 - bent**2, 1e-9)
    for metric in ("preparing", "gap", "interval", "ending"):
        if np.isfinite(rows[metric]).any():
            found[metric] = _mean(weights, rows[metric]) / MILLI
            found[f"{metric}_std"] = _deviation(weights, rows[metric]) / MILLI
    if np.isfinite(rows["preparing"]).any():
        found["last"] = _mean(weights, rows["preparing"] + rows["gap"]) / MILLI
        found["last_std"] = _deviation(weights, rows["preparing"] + rows["gap"]) / MILLI
    if np.isfinite(rows["urgency"]).any():
        found["urgency_vs_determining"] = _mean(weights, rows["urgency"])
    if np.isfinite(rows["intermediate"]).any():
        found["intermediate"] = _mean(weights, rows["intermediate"])
    if np.isfinite(rows["plan_ns"]).any():
        found["plan_time"] = _median(weights, rows["plan_ns"]) / MICRO
        found["plan_cost"] = _mean(weights, rows["plan_cost"])
    if levels is not None and len(levels["ns"]):
        found |= _levels(rows, levels, weights)
    return found


def _levels(events: Columns, levels: Columns, weights: F64) -> dict[str, F64]:
    """Determining times by priority, from their sums and squares per event."""
    found: dict[str, F64] = {}
    index, count = _events_of(events, levels), len(events["ns"])
    number, total = levels["matches"].astype(float), levels["ns"]
    each_event = np.bincount(index, total, count) / np.maximum(np.bincount(index, number, count), 1)
    each_event[np.bincount(index, number, count) == 0] = np.nan
    found["waiting"] = _mean(weights, each_event - events["preparing"]) / MILLI
    heavy = weights[:, index]
    found["determining"], found["determining_std"] = _of_matches(events, levels, weights)
    names = np.unique(levels["level"].astype(int))  # a float in a column that other kinds of rows leave empty
    spreads, means = [], []
    for level in names.tolist():
        own = levels["level"] == level
        some = heavy[:, own]
        mean, spread = _moments(np.stack([some @ number[own], some @ total[own], some @ levels["square"][own]]))
        found[f"level_{level}"] = mean
        means.append(mean)
        spreads.append(spread)
    found["level_std"] = np.mean(spreads, axis=0)
    order = np.argsort(np.argsort(np.array(means), axis=0), axis=0).astype(float)
    found["level_vs_determining"] = _rank_line(order, len(names))
    return found


def _events_of(events: Columns, levels: Columns) -> NDArray[np.int64]:
    """The place among the events of the one that each row of a priority belongs to."""
    place = {key: i for i, key in enumerate(zip(events["seed"].tolist(), events["sample"].tolist(), strict=True))}
    return np.array([place[key] for key in zip(levels["seed"].tolist(), levels["sample"].tolist(), strict=True)], int)


def _of_matches(events: Columns, levels: Columns, weights: F64) -> tuple[F64, F64]:
    """Mean and standard deviation over all matches, from sums per event and priority, in milliseconds."""
    heavy = weights[:, _events_of(events, levels)]
    number = levels["matches"].astype(float)
    return _moments(np.stack([heavy @ number, heavy @ levels["ns"], heavy @ levels["square"]]))


def _rank_line(order: F64, levels: int) -> F64:
    """Rank correlation of the place in the paper's order (most urgent first) with the rank of the mean."""
    if levels < 2:
        return np.zeros(order.shape[1])
    urgent_first = np.arange(levels)[::-1].astype(float)
    a, b = urgent_first - urgent_first.mean(), order - order.mean(axis=0)
    return np.asarray((a @ b) / np.sqrt((a @ a) * np.maximum((b * b).sum(axis=0), 1e-12)))


def _moments(sums: F64) -> tuple[F64, F64]:
    """Mean and standard deviation in milliseconds from (number, sum, sum of squares)."""
    number = np.maximum(sums[0], 1e-12)
    mean = sums[1] / number
    return mean / MILLI, np.sqrt(np.maximum(sums[2] / number - mean**2, 0.0)) / MILLI


def _builds(rows: Columns, n: int, rules: Rules) -> dict[str, F64]:
    """Of each seed the quickest build counts: the first one also pays for memory that is touched for the first time."""
    seeds = np.unique(rows["seed"])
    quickest = np.array([rows["ns"][rows["seed"] == seed].min() for seed in seeds])
    size = np.array([rows["bytes"][rows["seed"] == seed].max() for seed in seeds], float)
    weights = _weights({"seed": seeds, "ns": quickest}, rules)
    total, memory = _mean(weights, quickest), _mean(weights, size)
    return {
        "build": total / MICRO / max(1, n),
        "build_total": total / 1e9,
        "memory": memory / max(1, n),
        "memory_total": memory / 1e6,
    }


# Resampling


def _weights(rows: Columns, rules: Rules) -> F64:
    """How often each row counts: 1 in the estimate (row 0), then its draws in each resample. Rows are sorted."""
    seeds, counts = np.unique(rows["seed"], return_counts=True)
    resamples = int(rules["resamples"])
    parts = [_drawn(resamples, tuple(seeds.tolist()), place, count) for place, count in enumerate(counts.tolist())]
    return np.concatenate(parts, axis=1) if parts else np.ones((1 + resamples, 0))


@cache
def _seed_draws(resamples: int, seeds: tuple[int, ...]) -> NDArray[np.int64]:
    generator = np.random.default_rng([7, *seeds])
    return generator.multinomial(len(seeds), [1 / len(seeds)] * len(seeds), size=resamples)


@cache
def _drawn(resamples: int, seeds: tuple[int, ...], place: int, count: int) -> F64:
    """Draws of the rows of one seed."""
    generator = np.random.default_rng([11, seeds[place], count])
    number = _seed_draws(resamples, seeds)[:, place] * count
    drawn = generator.multinomial(number, np.full(count, 1 / count))
    return np.concatenate([np.ones((1, count)), drawn]).astype(float)


def _mean(weights: F64, values: F64) -> F64:
    there = np.isfinite(values)
    weights, values = (weights, values) if there.all() else (weights[:, there], values[there])
    return np.asarray((weights @ values) / np.maximum(weights.sum(axis=1), 1e-12))


def _deviation(weights: F64, values: F64) -> F64:
    there = np.isfinite(values)
    weights, values = (weights, values) if there.all() else (weights[:, there], values[there])
    rest = values - values.mean()
    return np.sqrt(np.maximum(_mean(weights, rest**2) - _mean(weights, rest) ** 2, 0.0))


def _median(weights: F64, values: F64) -> F64:
    there = np.flatnonzero(np.isfinite(values))
    order = there[np.argsort(values[there])]
    running = np.cumsum(weights[:, order], axis=1)
    return np.asarray(values[order][np.argmax(running >= running[:, -1:] / 2, axis=1)])


def _correlation(weights: F64, a: F64, b: F64) -> F64:
    """Pearson's; 0 where one of the two does not vary."""
    a, b = a - a.mean(), b - b.mean()
    total = np.maximum(weights.sum(axis=1), 1e-12)
    ma, mb = (weights @ a) / total, (weights @ b) / total
    both = (weights @ (a * b)) / total - ma * mb
    scale = np.sqrt(np.maximum((weights @ a**2) / total - ma**2, 0) * np.maximum((weights @ b**2) / total - mb**2, 0))
    return np.where(scale > 1e-12, both / np.maximum(scale, 1e-12), 0.0)


# Columns


def _columns(rows: pa.Table) -> Columns:
    rows = rows.sort_by([(name, "ascending") for name in ("x", "series", "contestant", "kind", "seed", "sample")])
    found: Columns = {}
    for name in rows.column_names:
        column = rows[name]
        if pa.types.is_string(column.type):
            found[name] = np.array(column.to_pylist(), dtype=object)
        else:
            found[name] = column.to_numpy(zero_copy_only=False)
    return found


def _select(columns: Columns, mask: NDArray[np.bool_]) -> Columns:
    return {name: values[mask] for name, values in columns.items()}


def _at_one_pace(columns: Columns) -> Columns:
    """Times as they would be on the machine at its fastest; a unit was scaled to the fastest that it had seen."""
    if not len(columns["pace"]):
        return columns
    factor = np.nanmin(columns["pace"]) / columns["pace"]
    factor = np.where(np.isfinite(factor), factor, 1.0)
    scaled = {name: columns[name] * factor for name in TIMES}
    return columns | scaled | {"square": columns["square"] * factor**2}
