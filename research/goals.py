"""`make bench ARGS=goals`: what the library should reach in speed and memory, and what it reaches, in one table.

Each figure is a ratio within one run, a time per call, a rate or a size. Each case is built in a process of its own
(goal_cases.py), checked against the oracle, and measured in several rounds. With a second checkout, the version
before, both take turns, so that the figure before comes from the same minutes on the same machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from research.checkouts import Figures, measure, running

Progress = Callable[[str], None]
Samples = list[float]
"""A figure, once per round."""

QUICK = 0.003
LARGE = ("single", "batch", "match", "match_batch", "threads", "floor")
CASES: dict[str, tuple[tuple[str, ...], int]] = {
    "small 3": (("match",), 1),
    "small 10": (("match", "list"), 1),
    "w1": ((*LARGE, "match_array", "counting", "rein", "levels", "compact"), 1),
    "w1 0.8": ((*LARGE, "match_array", "counting", "rein"), 1),
    "w1 0.8 str": (("single", "match", "match_array", "batch", "match_batch"), 1),
    "w2": (LARGE, 1),
    "w3": (LARGE, 1),
    "w4": (LARGE, 1),
    "changes": (("one", "beside_matching"), 1),
    "engine changes": (("one",), 1),
    "load few": (("load",), 20),
    "load many": (("load",), 20),
    "load ten": (("load",), 20),
    "load strings": (("load",), 20),
    "load like": (("load",), 20),
    "limit": (("limit",), 1),
}
"""What is measured in each case, and how many times fewer rows the version before gets."""


@dataclass(frozen=True)
class Goal:
    """One line of the table. `figure` computes it from the samples of a case; `compared` from those of the version
    before, too. `limit` is the goal: at most, or at least where `rising`; None where a figure only informs."""

    what: str
    case: str
    figure: Callable[[Figures], Samples]
    limit: float | None
    unit: str = "x"
    rising: bool = False
    compared: Callable[[Figures, Figures], Samples] | None = None


def ratio(one: str, other: str) -> Callable[[Figures], Samples]:
    return lambda found: _divided(found[one], found[other])


def plain(name: str, scale: float = 1.0) -> Callable[[Figures], Samples]:
    return lambda found: [value * scale for value in found[name]]


def of_before(name: str) -> Callable[[Figures, Figures], Samples]:
    return lambda now, before: _divided(now[name], before[name])


def _divided(one: Samples, other: Samples) -> Samples:
    return [a / b for a, b in zip(one, other, strict=True)]


def _goals() -> list[Goal]:
    micro, milli = 1e6, 1e3
    found = [
        Goal("Index.match / engine, W1 0.5", "w1", ratio("match", "single"), 1.2),
        Goal("Index.match, 3 attributes, 1,000 subscriptions", "small 3", plain("match", micro), 8, "µs"),
        Goal("Index.match, 10 attributes, 1,000 subscriptions", "small 10", plain("match", micro), None, "µs"),
        Goal("Index.match / engine, W1 0.8, int ids", "w1 0.8", ratio("match", "single"), 4),
        Goal("Index.match / engine, W1 0.8, str ids", "w1 0.8 str", ratio("match", "single"), 4),
        Goal("Index.match_array / engine, W1 0.8, int ids", "w1 0.8", ratio("match_array", "single"), 1.5),
        Goal("Index.match_array / engine, W1 0.8, str ids", "w1 0.8 str", ratio("match_array", "single"), 1.5),
    ]
    names = {"W1 0.5": "w1", "W1 0.8": "w1 0.8", "W2": "w2", "W3": "w3", "W4": "w4"}
    others = {name: case for name, case in names.items() if name != "W1 0.8"}
    found += [
        *(
            Goal(f"match_batch / engine's batch, {name}", case, ratio("match_batch", "batch"), 1.15)
            for name, case in (names | {"W1 0.8, str ids": "w1 0.8 str"}).items()
        ),
        Goal("match_batch of mappings, 10 attributes, per event", "small 10", plain("list", micro), 1.5, "µs"),
        Goal("subscribe, 1M present", "changes", plain("subscribe"), 25_000, "per s", True),
        Goal("unsubscribe, 1M present", "changes", plain("unsubscribe"), 25_000, "per s", True),
        Goal("subscribe, p99.9 / median", "changes", plain("subscribe tail"), 20),
        Goal("unsubscribe, p99.9 / median", "changes", plain("unsubscribe tail"), 20),
        Goal("longest match while another thread changes", "changes", plain("longest match", milli), None, "ms"),
        Goal("longest match alone", "changes", plain("longest match alone", milli), None, "ms"),
        Goal("load, 3 conditions, few distinct", "load few", plain("load"), 250_000, "per s", True),
        Goal("load, 3 conditions, many distinct", "load many", plain("load"), 250_000, "per s", True),
        Goal("load, 10 conditions", "load ten", plain("load"), 100_000, "per s", True),
        Goal("load, strings, IN, OR", "load strings", plain("load"), None, "per s", True),
        Goal("load, 5% LIKE '%x'", "load like", plain("load"), None, "per s", True),
        Goal("engine, insert one, median", "engine changes", plain("insert median", micro), 5, "µs"),
        Goal("engine, insert one, mean", "engine changes", plain("insert mean", micro), None, "µs"),
        Goal("engine, delete one, median", "engine changes", plain("delete median", micro), 5, "µs"),
        Goal("engine, delete one, mean", "engine changes", plain("delete mean", micro), None, "µs"),
        Goal("W1 0.8, single / before", "w1 0.8", plain("single", milli), 0.55, "ms", compared=of_before("single")),
        Goal("W1 0.8, single / floor", "w1 0.8", ratio("single", "floor"), 1.3),
        Goal("W1 0.8, batch / before", "w1 0.8", plain("batch", milli), 0.55, "ms", compared=of_before("batch")),
        Goal("W1 0.8, batch / floor", "w1 0.8", ratio("batch", "floor batch"), None),
        Goal("W1 0.8, counting / with ids, single", "w1 0.8", ratio("count", "single"), 0.65),
        Goal("W1 0.8, counting / with ids, batch", "w1 0.8", ratio("count batch", "batch"), 0.65),
        Goal("W1 0.8, REIN / engine, single", "w1 0.8", ratio("rein", "single"), None, rising=True),
        Goal("W1 0.8, REIN / engine, batch", "w1 0.8", ratio("rein batch", "batch"), None, rising=True),
    ]
    for level, what in (("avx512", "AVX-512 without VBMI2"), ("avx2", "AVX2")):
        goal = (35.0, 100.0) if level == "avx512" else (None, None)
        for way, limit in zip(("single", "batch"), goal, strict=True):
            base = "rein" if way == "single" else "rein batch"
            figure = ratio(base, f"{level} {way}")
            found.append(Goal(f"W1 0.5, REIN / engine, {what}, {way}", "w1", figure, limit, rising=True))
    found += [
        Goal("W1 0.5, REIN / engine, single", "w1", ratio("rein", "single"), None, rising=True),
        Goal("W1 0.5, REIN / engine, batch", "w1", ratio("rein batch", "batch"), None, rising=True),
        *(
            Goal(f"1 thread / 2 threads, batch, {name}", case, ratio("one thread", "two threads"), 1.7, rising=True)
            for name, case in names.items()
        ),
        Goal("bytes per subscription, W1", "w1", plain("bytes"), 253, ""),
        Goal("bytes per subscription, W1, compact", "w1", plain("compact bytes"), 150, ""),
        Goal("compact / usual, W1 0.5, single", "w1", ratio("compact single", "single"), 1.5),
        Goal("compact / usual, W1 0.5, batch", "w1", ratio("compact batch", "batch"), 1.5),
        Goal("limit=10 of 200,000 alike, one with OR / without", "limit", ratio("mixed", "plain"), None),
        *(
            Goal(f"{name}, {way} / before", case, plain(way, milli), 1.03, "ms", compared=of_before(way))
            for name, case in others.items()
            for way in ("single", "batch")
        ),
        *(
            Goal(f"{name}, {way} / floor", case, ratio(way, base), None)
            for name, case in others.items()
            for way, base in (("single", "floor"), ("batch", "floor batch"))
        ),
    ]
    return found


GOALS = _goals()


def run(
    before: Path | None = None, quick: bool = False, rounds: int = 7, progress: Progress = lambda what: None
) -> dict[str, Any]:
    """Measure everything; returns the record. `quick` takes small sizes: it shows that all works, no figures."""
    folders: dict[str, Path | None] = {"now": None}
    if before is not None:
        folders["before"] = before
    scale = QUICK if quick else 1.0
    samples: dict[str, dict[str, Figures]] = {}
    with running(folders) as checkouts:
        about = {one.name: one.ask() for one in checkouts}
        for case, (measures, fewer) in CASES.items():
            progress(case)
            scales = {"now": scale, "before": scale / fewer}
            samples[case] = measure(checkouts, case, measures, rounds, scales)
    return {
        "goals": [measured(goal, samples[goal.case]) for goal in GOALS],
        "seed": 1,
        "quick": quick,
        "rounds": rounds,
        "machine": about["now"]["machine"],
        "simd": about["now"]["simd"],
        "before": about["before"]["machine"]["commit"] if before else None,
        "samples": samples,
    }


def measured(goal: Goal, found: dict[str, Figures]) -> dict[str, Any]:
    """A line of the record, from the samples of each checkout."""
    now = _samples(goal.figure, found["now"])
    floor = {name: values for name, values in found["now"].items() if name.startswith("floor")}
    before = _samples(goal.figure, floor | found.get("before", {}))  # a version without a floor has the same one
    compared = None
    if goal.compared is not None:
        compared = _samples(goal.compared, found["now"], found.get("before", {}))
    decisive = now if goal.compared is None else compared
    reached = None
    if decisive is not None and goal.limit is not None:
        middle = decisive["median"]
        reached = middle >= goal.limit if goal.rising else middle <= goal.limit
    return {
        "what": goal.what,
        "before": before,
        "now": now,
        "relative": goal.compared is not None,
        "ratio": compared,
        "goal": goal.limit,
        "rising": goal.rising,
        "unit": goal.unit,
        "reached": reached,
    }


def _samples(figure: Callable[..., Samples], *found: Figures) -> dict[str, float] | None:
    try:
        values = np.array(figure(*found))
    except KeyError:  # what this version or machine cannot measure
        return None
    return {"median": float(np.median(values)), "least": float(values.min()), "most": float(values.max())}


def show(record: dict[str, Any], console: Console) -> None:
    machine = record["machine"]
    console.print(
        f"[bold]goals[/bold]: seed {record['seed']}, {record['rounds']} rounds, {record['simd']}; "
        f"{machine['cpu']}, {machine['cores']} cores, hitbox {machine['hitbox']} ({machine['commit'] or 'installed'})"
        + (f", before: {record['before']}" if record["before"] else ", no checkout of the version before"),
        highlight=False,
    )
    if record["quick"]:
        console.print("quick: small sizes, which show that everything runs; the figures mean nothing", style="yellow")
    console.print(_table(("what", "before", "goal", "now", "spread", "reached"), rows(record)))


def _table(names: Sequence[str], lines: list[list[str]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for name in names:
        table.add_column(name, justify="left" if name == "what" else "right", no_wrap=name != "what")
    for line in lines:
        table.add_row(*line)
    return table


def markdown(record: dict[str, Any]) -> str:
    """The table, for a page."""
    lines = ["| what | before | goal | now | spread | reached |", "| --- | --: | --: | --: | --: | --- |"]
    lines += ["| " + " | ".join(row) + " |" for row in rows(record)]
    return "\n".join(lines) + "\n"


def rows(record: dict[str, Any]) -> list[list[str]]:
    """The table: before, goal and now as medians, and the least and the most of the rounds."""
    found = []
    for line in record["goals"]:
        now, ratio_, limit = line["now"], line["ratio"], line["goal"]
        decisive, unit = (ratio_ or now, "x" if ratio_ else line["unit"]) if line["relative"] else (now, line["unit"])
        text = "not measured" if now is None else _number(now["median"], line["unit"])
        if ratio_:
            text += f" = {_number(ratio_['median'], 'x')}"
        before = "not measured" if line["before"] is None else _number(line["before"]["median"], line["unit"])
        goal_unit = "x" if line["relative"] else line["unit"]
        goal = "-" if limit is None else f"{'>=' if line['rising'] else '<='} {_number(limit, goal_unit)}"
        spread = f"{_number(decisive['least'], '')} to {_number(decisive['most'], unit)}" if decisive else "-"
        reached = {True: "yes", False: "no", None: "-" if limit is None else "not measured"}[line["reached"]]
        found.append([line["what"], before, goal, text, spread, reached])
    return found


def _number(value: float, unit: str) -> str:
    """
    >>> _number(0.5512, "x"), _number(253_000.0, "per s"), _number(7.9, "µs")
    ('0.551x', '253,000 per s', '7.9 µs')
    """
    digits = f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
    return f"{digits}{unit}" if unit in ("", "x") else f"{digits} {unit}"
