"""Plots of the curves, distinguished by marker and dash as well as by colour, so that they print in black and white.

The colours are Okabe and Ito's, which colour-blind readers can tell apart; the engine is always the thick black line.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hitbox.errors import BenchError
from hitbox.experiments.claims import show
from hitbox.experiments.curves import Curves
from hitbox.experiments.experiment import ENGINE, Experiment, Plot

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = ("o", "s", "^", "D", "v", "P")
DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)))
HATCHES = ("//", "\\\\", "xx", "..", "++", "--")

LABELS = {
    "match": "matching time per event (µs of CPU)",
    "match_std": "standard deviation of the matching time (µs)",
    "match_max": "slowest event (µs of CPU)",
    "match_min": "fastest event (µs of CPU)",
    "scatter": "matching time (µs of CPU)",
    "hits": "matches per event",
    "build": "insertion (µs per subscription)",
    "build_total": "insertion of all subscriptions (s)",
    "insert_one": "insertion of one (µs)",
    "delete_one": "deletion of one (µs)",
    "insert_each": "insertion of one, in calls of many (µs)",
    "delete_each": "deletion of one, in calls of many (µs)",
    "delete_thousand": "deletion of 1,000 subscriptions (s)",
    "memory": "memory (bytes per subscription)",
    "memory_total": "memory (MB)",
    "levels": "mean determining time (ms)",
    "determining": "determining time of a match (ms)",
    "processing": "processing time of a match: determined and sent (ms)",
    "matching": "matching time (ms)",
    "matching_std": "standard deviation of the matching time (ms)",
    "preparing": "preparing time (ms)",
    "preparing_std": "standard deviation of the preparing time (ms)",
    "ending": "ending time (ms)",
    "ending_std": "standard deviation of the ending time (ms)",
    "gap": "gap time (ms)",
    "gap_std": "standard deviation of the gap time (ms)",
    "interval": "interval time (ms)",
    "interval_std": "standard deviation of the interval time (ms)",
    "last_std": "standard deviation of the last determining time (ms)",
    "level_std": "standard deviation within a priority (ms)",
    "plan_cost": "cost of the plan (multiples of N)",
    "plan_time": "finding the plan (µs)",
}

Scatter = Mapping[str, list[tuple[float, float]]]


def pyplot() -> Any:
    try:
        import matplotlib
    except ModuleNotFoundError:
        raise BenchError("the report's plots need the package 'matplotlib': pip install 'hitbox[bench]'") from None
    matplotlib.use("Agg")
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "hitbox", "font.size": 9})
    from matplotlib import pyplot as found

    return found


def draw(experiment: Experiment, plot: Plot, curves: Curves, scatter: Scatter, path: Path, labels: list[str]) -> None:
    """Into `path` as SVG and as PNG."""
    plt = pyplot()
    if plot.metric == "scatter":
        figure = _scatter(plt, labels, curves, scatter)
    else:
        figure, axes = plt.subplots(figsize=(6.2, 3.4), layout="constrained")
        fill(axes, experiment, plot, curves, labels)
        figure.legend(*axes.get_legend_handles_labels(), loc="outside right upper", frameon=False)
    _save(plt, figure, path)


def overview(panels: list[tuple[str, Experiment, Plot, Curves]], path: Path, scale: str) -> None:
    """One panel per paper, side by side."""
    plt = pyplot()
    rows = -(-len(panels) // 3)
    figure, grid = plt.subplots(
        rows, min(3, len(panels)), figsize=(4.2 * min(3, len(panels)), 3.7 * rows), layout="constrained", squeeze=False
    )
    for axes in grid.flat[len(panels) :]:
        axes.set_axis_off()
    for axes, (title, experiment, plot, curves) in zip(grid.flat, panels, strict=False):
        fill(axes, experiment, plot, curves, experiment.labels(scale))
        axes.set_title(title, fontsize=10)
        axes.legend(fontsize=7, frameon=False, ncols=4, loc="upper center", bbox_to_anchor=(0.5, -0.16))
    _save(plt, figure, path)


def fill(axes: Any, experiment: Experiment, plot: Plot, curves: Curves, labels: list[str]) -> None:
    if plot.metric == "levels":
        _levels(axes, labels, curves)
    elif len(curves.xs) < 2 or isinstance(curves.xs[0], str):
        _bars(axes, experiment, plot, curves, labels)
    else:
        for label, style in _styles(labels).items():
            xs = [x for x, p in zip(curves.xs, curves.points, strict=True) if plot.metric in p.get(label, {})]
            if xs:
                axes.plot(xs, [curves.estimate(label, plot.metric, x) for x in xs], label=label, **style)
        axes.set_xlabel(experiment.axis)
        axes.set_xscale("log" if experiment.log_axis else "linear")
        if max(curves.xs) >= 10_000 and not experiment.log_axis:
            axes.xaxis.set_major_formatter(lambda x, _: f"{x / 1000:,.0f}k")
    if plot.log and _positive(axes):
        axes.set_yscale("log")
    axes.set_ylabel(LABELS[plot.metric])
    axes.grid(True, which="major", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)


def _positive(axes: Any) -> bool:
    heights = [y for line in axes.get_lines() for y in line.get_ydata()] + [p.get_height() for p in axes.patches]
    return bool(heights) and min(heights) > 0


def _styles(labels: list[str]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for i, label in enumerate(labels):
        if label == ENGINE:
            found[label] = {"color": "black", "linewidth": 2.4, "marker": "*", "markersize": 7}
        else:
            found[label] = {
                "color": COLOURS[i % 6],
                "marker": MARKERS[i % 6],
                "linestyle": DASHES[i % 6],
                "markersize": 4.5,
            }
    return found


def _bars(axes: Any, experiment: Experiment, plot: Plot, curves: Curves, labels: list[str]) -> None:
    labels = [label for label in labels if any(plot.metric in p.get(label, {}) for p in curves.points)]
    width = 0.8 / max(1, len(labels))
    for i, label in enumerate(labels):
        heights = [float(point.get(label, {}).get(plot.metric, [0.0])[0]) for point in curves.points]
        colour = "black" if label == ENGINE else COLOURS[i % 6]
        places = [x + i * width for x in range(len(curves.xs))]
        axes.bar(places, heights, width * 0.9, label=label, color=colour, hatch=HATCHES[i % 6], edgecolor="white")
    middle = 0.4 - width / 2
    axes.set_xticks([x + middle for x in range(len(curves.xs))], [show(x) for x in curves.xs])
    axes.set_xlabel(experiment.axis)


def _levels(axes: Any, labels: list[str], curves: Curves) -> None:
    """Determining time over priority at the first place; the paper's 0 is our 9, the most urgent."""
    for label, style in _styles(labels).items():
        point = curves.points[0].get(label, {})
        levels = [level for level in range(9, -1, -1) if f"level_{level}" in point]
        if levels:
            axes.plot(
                [9 - level for level in levels], [point[f"level_{level}"][0] for level in levels], label=label, **style
            )
    axes.set_xlabel("priority (0: most urgent, as in the paper)")


def _scatter(plt: Any, labels: list[str], curves: Curves, scatter: Scatter) -> Any:
    labels = [label for label in labels if scatter.get(label)]
    figure, grid = plt.subplots(1, len(labels), figsize=(2.5 * len(labels), 2.6), layout="constrained", squeeze=False)
    for i, (axes, label) in enumerate(zip(grid[0], labels, strict=True)):
        hits, taken = zip(*scatter[label], strict=True)
        axes.plot(hits, taken, MARKERS[i % 6], markersize=3, color="black" if label == ENGINE else COLOURS[i % 6])
        axes.set_title(f"{label} ({curves.estimate(label, 'time_vs_hits', 'last'):+.2f})", fontsize=9)
        axes.set_xlabel("matches")
        axes.set_ylim(bottom=0)
    grid[0][0].set_ylabel(LABELS["scatter"])
    return figure


def _save(plt: Any, figure: Any, path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})
        figure.set_layout_engine("none")  # as it is now: laying it out again would take most of the time
        figure.savefig(path.with_suffix(".png"), dpi=110)
    except OSError as problem:
        raise BenchError(f"cannot write the plot {path}: {problem}") from None
    finally:
        plt.close(figure)
