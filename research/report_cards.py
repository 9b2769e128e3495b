"""The figures and tables of an experiment as the report shows them, each with its claims.

A claim stands beside the figure that shows what its check reads. Of a figure with the engine's curve there are two
pictures: the engine is so much faster than the papers' contestants that it flattens their differences.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from html import escape
from typing import Any

from research import plots
from research.claims import number, show
from research.curves import Curves, Mark
from research.experiment import ENGINE, Experiment, Paper, Plot, label_of
from research.plots import LABELS, Dot, Line, Scatter
from research.report_html import CSS, capital, count, details, scroll, table, verdict
from research.rules import Rules

KINDS = {
    "matching time": r"match|matching|match_planned",
    "spread of the times": r"match_(range|max|min)|time_vs_hits|linear_misfit|.*_std",
    "parts of the matching time": r"preparing|gap|interval|ending|last|waiting|.*determining|level.*",
    "insertion and deletion": r"(build|insert|delete).*",
    "memory": r"memory.*",
    "plans": r"plan_.*",
    "number of matches": r"hits|asked|intermediate",
}
"""What a claim is about -> the metric that its check reads first."""
OTHER_KIND = "other"
SHOWN_AS = {
    "build": ("build_total",),
    "memory": ("memory_total",),
    "asked": ("hits",),
    "match_range": ("match_max", "match_min"),
    "time_vs_hits": ("scatter",),
    "linear_misfit": ("scatter",),
    "determining": ("levels",),
    "determining_std": ("levels",),
    "urgency_vs_determining": ("levels",),
    "level_vs_determining": ("levels",),
    "last": ("matching",),
}
"""Metrics that have no figure of their own -> the figures in which they can be seen."""

BROUGHT = "The paper's number is its factor or share, applied to our value of what it refers to."

Row = dict[str, Any]
"""A verdict, as judging.py makes it."""


@dataclass(frozen=True)
class Card:
    """A figure, or the parts of one table."""

    id: str
    head: str
    """As the paper numbers it."""
    plots: tuple[Plot, ...]
    drawings: tuple[str, ...] = ()
    """Without the engine's curve and, where it took part, with it."""
    caption: str = ""
    values: str = ""
    """The numbers as a table."""


@dataclass(frozen=True)
class Run:
    """All that the pages are made from."""

    record: dict[str, Any]
    """As reproduce.py writes it."""
    papers: list[Paper]
    found: Mapping[tuple[str, Experiment], Curves]
    scatter: Mapping[tuple[str, Experiment], Scatter]
    rules: Rules
    made: dict[tuple[str, Experiment], list[Card]] = field(default_factory=dict)
    """Figures and tables that were drawn already: several pages show them."""

    @property
    def scale(self) -> str:
        return str(self.record["scale"])

    def rows(self, paper: Paper, experiment: Experiment | None = None) -> list[Row]:
        return [
            row
            for row in self.record["verdicts"]
            if row["paper"] == paper.name and (experiment is None or row["experiment"] == experiment.name)
        ]

    def asked(self, paper: Paper) -> list[Experiment]:
        """The experiments that were to be run."""
        names = self.record["asked"].get(paper.name, [])
        return [experiment for experiment in paper.experiments if experiment.name in names]

    def measured(self, paper: Paper) -> list[Experiment]:
        return [experiment for experiment in self.asked(paper) if (paper.name, experiment) in self.found]

    def cards(self, paper: Paper, experiment: Experiment) -> list[Card]:
        key = paper.name, experiment
        if key not in self.made:
            self.made[key] = _cards(self, paper, experiment)
        return self.made[key]


def title(run: Run, paper: Paper, experiment: Experiment) -> str:
    """With the number of subscriptions that was really measured."""
    found = sizes(run, paper, experiment)
    span = f"{found[0]:,}" + (f" to {found[-1]:,}" if len(found) > 1 else "")
    if "{n}" in experiment.title:
        return experiment.title.replace("{n}", span)
    return f"{experiment.title}, n={span}"


def sizes(run: Run, paper: Paper, experiment: Experiment) -> list[int]:
    """The numbers of subscriptions at the points that were measured; where none was, those that are planned."""
    curves = run.found.get((paper.name, experiment))
    planned, found = set(), set()
    for x, series in experiment.places(run.scale):
        n = int(experiment.parameters(run.scale, x, series)["n"])
        planned.add(n)
        if curves and any(label_of(name, series) in curves.points[curves.place(x)] for name in experiment.lanes(x)):
            found.add(n)
    return sorted(found or planned)


# Figures and tables


def _cards(run: Run, paper: Paper, experiment: Experiment) -> list[Card]:
    found: list[Card] = []
    for plot in experiment.plots:
        name = plot.figure.partition(":")[0] if plot.table else plot.figure
        if plot.table and found and found[-1].plots[0].table and found[-1].head == name:
            found[-1] = replace(found[-1], plots=(*found[-1].plots, plot))
        else:
            slug = re.sub(r"[^a-z0-9]+", "-", f"{experiment.name} {name}".lower()).strip("-")
            found.append(Card(slug, name, (plot,)))
    return [_filled(run, paper, experiment, card) for card in found]


def _filled(run: Run, paper: Paper, experiment: Experiment, card: Card) -> Card:
    curves, plot = run.found[paper.name, experiment], card.plots[0]
    marks = [tuple(mark) for row in run.rows(paper, experiment) for mark in row["marks"]]
    if plot.table:
        return _table(run, experiment, card, curves, marks)
    about = f"{card.head}: {LABELS[plot.metric]}. {title(run, paper, experiment)}"
    labels = experiment.labels(run.scale)
    if plot.metric == "scatter":
        every = run.scatter.get((paper.name, experiment), {})
        follow = {name: float(own["time_vs_hits"][0]) for name, own in _last(curves) if "time_vs_hits" in own}
        some = [{label: points for label, points in every.items() if label != ENGINE}]
        some += [dict(every)] if ENGINE in every else []
        drawings = tuple(plots.scatter(plot, one, labels, follow, about) for one in some if one)
        return replace(card, drawings=drawings, caption="One dot per event, at the last point.")
    lines = plots.lines_of(plot, curves, labels, marks, run.rules)
    ours = [line for line in lines if line.label != ENGINE]
    both = [ours, lines] if len(lines) > len(ours) else [ours]
    drawings = tuple(plots.draw(experiment, plot, some, about) for some in both if some)
    axis = plots.LEVELS_AXIS if plot.metric == "levels" else experiment.axis
    caption = "Error bars: 95% intervals."
    if any(line.said for line in lines):
        caption += f" {BROUGHT}"
    return replace(card, drawings=drawings, caption=caption, values=_values(card, lines, axis))


def _last(curves: Curves) -> list[tuple[str, Mapping[str, Any]]]:
    """The figures of all contestants at the last point that was measured."""
    return next((list(point.items()) for point in reversed(curves.points) if point), [])


def toggled(drawings: tuple[str, ...]) -> str:
    if len(drawings) < 2:
        return "".join(drawings)
    return f"<div class='without-engine'>{drawings[0]}</div><div class='with-engine'>{drawings[1]}</div>"


def _values(card: Card, lines: list[Line], axis: str) -> str:
    """The values of a picture as a table, for those who cannot see it or want to read numbers."""
    rows = ""
    for x in dict.fromkeys(dot.x for line in lines for dot in line.dots):
        cells = "".join(f"<td class='number'{_engine(line.label)}>{_cell(line, x)}</td>" for line in lines)
        rows += f"<tr><th scope='row'>{escape(show(x))}</th>{cells}</tr>"
    head = [axis, *(f"<th scope='col'{_engine(line.label)}>{escape(line.label)}</th>" for line in lines)]
    whole = table(head, rows, LABELS[card.plots[0].metric])
    return details("Values", scroll(f"Values of {card.head}", whole), "values")


def _table(run: Run, experiment: Experiment, card: Card, curves: Curves, marks: list[Mark]) -> Card:
    """A table of the paper, as a table: a row per place, a column per curve, formulas beside what was measured."""
    labels = experiment.labels(run.scale)
    parts = [  # the paper's formulas say more than its factors
        (plot, plots.lines_of(plot, curves, labels, [] if plot.formulas else marks, run.rules)) for plot in card.plots
    ]
    matches = card.plots[0].metric == "hits"  # the same for every contestant: the engine was asked most events
    there = {line.label for _, lines in parts for line in lines}
    names = [ENGINE] if matches and ENGINE in there else [label for label in labels if label in there]
    head, rows = [experiment.axis], ""
    formulas = [name for name in names if any(name in plot.formulas for plot in card.plots)]
    for name in names:
        head.append("here" if matches else f"<th scope='col'{_engine(name)}>{escape(name)}</th>")
        head += ["formula"] if name in formulas else []
    for plot, lines in parts:
        own = {line.label: line for line in lines}
        part = plot.figure.partition(": ")[2]
        if part:
            rows += f"<tr class='part'><th colspan='{len(head)}' scope='colgroup'>{escape(capital(part))}</th></tr>"
        for x, n in zip(curves.xs, curves.n, strict=True):
            cells = ""
            for name in names:
                cells += f"<td class='number'{'' if matches else _engine(name)}>{_cell(own.get(name), x)}</td>"
                if name in formulas:
                    cells += f"<td class='number'>{number(plot.formulas[name](n) / 1e6)}</td>"
            rows += f"<tr><th scope='row'>{escape(show(x))}</th>{cells}</tr>"
    caption = capital("; ".join(LABELS[plot.metric] for plot in card.plots)) + ". Below each value its 95% interval."
    if any(line.said for _, lines in parts for line in lines):
        caption += f" {BROUGHT}"
    return replace(card, caption=caption, values=scroll(card.head, table(head, rows)))


def _cell(line: Line | None, x: Any) -> str:
    dot: Dot | None = next((dot for dot in line.dots if dot.x == x), None) if line else None
    text = number(dot.y) if dot else ""
    if dot and dot.low < dot.high:
        text += f" <small>{number(dot.low)} to {number(dot.high)}</small>"
    said = [value for at, value in line.said if at == x] if line else []
    return text + "".join(f" <small class='said'>the paper's: {number(value)}</small>" for value in said)


def _engine(label: str) -> str:
    return " data-engine" if label == ENGINE else ""


# Claims


def placed(run: Run, paper: Paper, experiment: Experiment) -> list[tuple[Card | None, list[Row]]]:
    """The figures of an experiment, each with its claims; those that no figure shows come last."""
    every = run.cards(paper, experiment)
    found: dict[int | None, list[Row]] = {place: [] for place in range(len(every))}
    for row in run.rows(paper, experiment):
        found.setdefault(_place(row, every), []).append(row)
    return [(None if place is None else every[place], rows) for place, rows in found.items()]


def _place(row: Row, every: list[Card]) -> int | None:
    """The first figure that shows what the claim's check reads; one that the claim names goes before others."""
    named = [place for place, card in enumerate(every) if is_named(row["said"], card.head)]
    for metric in row["metrics"]:
        for shown in (metric, *SHOWN_AS.get(metric, ())):
            showing = [place for place, card in enumerate(every) if any(plot.metric == shown for plot in card.plots)]
            if showing:
                return next((place for place in showing if place in named), showing[0])
    return named[0] if named else None


def is_named(said: str, head: str) -> bool:
    """Whether a claim names a figure.

    >>> is_named("figure 10a", "figure 10"), is_named("figure 1", "figure 10"), is_named("table 2: 4 ms", "table 2")
    (True, False, True)
    """
    return re.search(rf"\b{re.escape(head.partition(':')[0])}[a-z]?\b", said) is not None


def kind_of(row: Row) -> str:
    first = (row["metrics"] or [""])[0]
    return next((kind for kind, metrics in KINDS.items() if re.fullmatch(metrics, first)), OTHER_KIND)


def claims(rows: list[Row]) -> str:
    own = "".join(claim(row) for row in rows if not row["trivial"])
    trivial = [row for row in rows if row["trivial"]]
    text = f"<ul class='claims'>{own}</ul>" if own else ""
    if trivial:
        body = f"<ul class='claims'>{''.join(claim(row) for row in trivial)}</ul>"
        text += details(f"{count(len(trivial), 'claim')} that any implementation satisfies", body, "group")
    return text


def claim(row: Row, link: str = "") -> str:
    """`link`: to its figure, where it does not stand beside that."""
    notes = [escape(row["reason"])] if row["reason"] else []
    notes += [f"By rules {old}: {escape(said)}." for old, said in row["earlier"].items() if said != row["verdict"]]
    if row["group"] != row["claim"]:
        notes.append(f"Counts once with the others on: {escape(row['group'])}.")
    if row["trivial"]:
        notes.append("Any implementation satisfies it: not counted.")
    where = f" <span class='where'>{link}</span>" if link else ""
    said = {"paper": row["said"], "ours": row["ours"]}
    numbers = "".join(f"<div><dt>{name}</dt><dd>{escape(text)}</dd></div>" for name, text in said.items())
    return (
        f"<li data-verdict='{CSS[row['verdict']]}' data-kind='{kind_of(row)}' data-paper='{row['paper']}'"
        f"{' data-trivial' * row['trivial']}>{verdict(row['verdict'])} <b>{escape(row['claim'])}</b>{where}"
        f"<dl>{numbers}</dl>{''.join(f'<p>{note}</p>' for note in notes)}</li>"
    )
