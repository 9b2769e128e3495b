"""Pictures of the curves as SVG: with error bars, the paper's own numbers, and colours that follow the page.

Curves differ in marker and dash as well as in colour, so that they print in black and white. The colours (plots.css)
are Okabe and Ito's, which colour-blind readers can tell apart; the engine is always the thick line. A picture is 460
units wide, so that its text stays readable on a phone.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources
from typing import Any

from research.claims import number, show
from research.curves import F64, Curves, Mark
from research.experiment import ENGINE, Experiment, Plot
from research.rules import Rules

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
LEVELS_AXIS = "priority (0: most urgent, as in the paper)"
TOTALS = {"build_total": "build", "memory_total": "memory"}
"""Metrics of all subscriptions -> those of one. A total in seconds or MB is n / 10^6 times the other."""

WIDTH, HEIGHT = 460, 290
LEFT, RIGHT, TOP, BOTTOM = 52, 14, 26, 44
LEGEND_ROW, CHARACTER = 20, 7.6
DASHES = ("", "6 3", "7 3 2 3", "2 3", "10 3", "4 2 1 2", "12 2 2 2", "1 2")
COLOURS = len(DASHES)

Scatter = Mapping[str, list[tuple[float, float]]]
"""Matcher -> matches and microseconds of each event."""


@dataclass(frozen=True)
class Dot:
    """A value with its interval."""

    x: Any
    y: float
    low: float
    high: float

    def text(self) -> str:
        span = f" ({number(self.low)} to {number(self.high)})" if self.low < self.high else ""
        return number(self.y) + span


@dataclass(frozen=True)
class Line:
    """A curve: its values, and where numbers of the paper put some of them."""

    label: str
    style: int
    dots: tuple[Dot, ...]
    said: tuple[tuple[Any, float], ...] = ()

    @property
    def css(self) -> str:
        return "engine" if self.label == ENGINE else f"c{self.style % COLOURS}"


def style_sheet() -> str:
    return resources.files("research").joinpath("plots.css").read_text("utf-8")


# What is drawn


def lines_of(plot: Plot, curves: Curves, labels: Sequence[str], marks: Iterable[Mark], rules: Rules) -> list[Line]:
    """The curves of a figure that have any value; their styles do not depend on which those are."""
    if plot.metric == "levels":
        return _levels(curves, labels, rules)
    single = TOTALS.get(plot.metric)
    found = []
    for style, label in enumerate(labels):
        dots, said = [], []
        for x, point, n in zip(curves.xs, curves.points, curves.n, strict=True):
            samples = point.get(label, {}).get(plot.metric)
            if samples is not None and math.isfinite(samples[0]):
                dots.append(_dot(x, samples, rules))
            for matcher, metric, place, value in marks:
                if (matcher, place) == (label, str(x)) and metric in (plot.metric, single):
                    said.append((x, value * n / 1e6 if metric == single else value))
        if dots:
            found.append(Line(label, style, tuple(dots), tuple(dict.fromkeys(said))))
    return found


def _levels(curves: Curves, labels: Sequence[str], rules: Rules) -> list[Line]:
    """Determining time over priority at the first place; the paper's 0 is our 9, the most urgent."""
    found = []
    for style, label in enumerate(labels):
        point = curves.points[0].get(label, {}) if curves.points else {}
        there = [level for level in range(9, -1, -1) if f"level_{level}" in point]
        dots = tuple(_dot(9 - level, point[f"level_{level}"], rules) for level in there)
        if dots:
            found.append(Line(label, style, dots))
    return found


def _dot(x: Any, samples: F64, rules: Rules) -> Dot:
    low, high = rules.interval(samples)
    return Dot(x, float(samples[0]), low, high)


def draw(experiment: Experiment, plot: Plot, lines: list[Line], title: str) -> str:
    """A figure as one <svg> element; what it shows is also said by its title and in the titles of its dots."""
    axis = LEVELS_AXIS if plot.metric == "levels" else experiment.axis
    places = list(dict.fromkeys(dot.x for line in lines for dot in line.dots))
    bars = plot.metric != "levels" and (len(places) < 2 or isinstance(places[0], str))
    values = [value for line in lines for dot in line.dots for value in (dot.y, dot.low, dot.high)]
    values += [y for line in lines for _, y in line.said]
    y = _vertical(values, plot.log, from_zero=bars)
    body = [_text(LEFT - 44, 14, LABELS[plot.metric], "label")]
    body += _rows(y)
    if bars:
        own, legend = _bars(lines, places, y, axis)
    else:
        own, legend = _curves(lines, places, y, axis, experiment.log_axis and plot.metric != "levels"), lines
    body += own
    said = any(line.said for line in lines)
    rows, height = _legend(legend, said, bars)
    return _svg([*body, *rows], HEIGHT + height, title)


def scatter(plot: Plot, points: Scatter, labels: Sequence[str], follow: Mapping[str, float], title: str) -> str:
    """Time against matches, one small panel per matcher; `follow`: the rank correlation of the two."""
    shown = [(style, label) for style, label in enumerate(labels) if points.get(label)]
    columns, width, height = 2, WIDTH / 2, 165
    body = [_text(8, 14, LABELS[plot.metric] + " over the matches of an event", "label")]
    for place, (style, label) in enumerate(shown):
        left, top = place % columns * width, 20 + place // columns * height
        hits, taken = zip(*points[label], strict=True)
        x = Scale(min(hits), max(max(hits), min(hits) + 1), left + 46, left + width - 10)
        y = Scale(0.0, max(taken) * 1.05 or 1.0, top + height - 30, top + 24)
        css = Line(label, style, ()).css
        body.append(_text(left + 46, top + 15, f"{label} (rank correlation {follow.get(label, 0.0):+.2f})", "small"))
        for tick in ticks(y, 3):
            body.append(f"<path class='grid' d='M{x.start:.0f} {y(tick):.1f}H{x.end:.0f}'/>")
            body.append(_text(x.start - 5, y(tick) + 4, short(tick), "small", "end"))
        body += [_text(x(tick), top + height - 14, short(tick), "small", "middle") for tick in ticks(x, 3)]
        dots = "".join(f"M{x(a):.1f} {y(b):.1f}h0" for a, b in points[label])
        body.append(f"<path class='cloud {css}' d='{dots}'/>")
    return _svg(body, 20 + -(-len(shown) // columns) * height, title)


# Axes


@dataclass(frozen=True)
class Scale:
    """From values to units of the picture."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high, at = (math.log10(v) if self.log else v for v in (self.low, self.high, max(value, self.floor)))
        return self.start + (at - low) / (high - low) * (self.end - self.start)

    @property
    def floor(self) -> float:
        """A value that a logarithmic axis cannot show lies at its lower end."""
        return self.low if self.log else -math.inf


def _vertical(values: list[float], log: bool, from_zero: bool) -> Scale:
    there = [value for value in values if math.isfinite(value)] or [0.0, 1.0]
    place = HEIGHT - BOTTOM, TOP + 2
    if log and min(there) > 0:
        low, high = min(there) / 1.25, max(there) * 1.25
        if high / low < 4:  # at least two labelled lines
            middle = math.sqrt(low * high)
            low, high = middle / 2, middle * 2
        return Scale(low, high, *place, log=True)
    low, high = min(there), max(there)
    if from_zero or (low > 0 and low < 0.6 * high):
        low = min(0.0, low)
    room = (high - low) * 0.06 or abs(high) * 0.1 or 1.0
    return Scale(low if low == 0 else low - room, high + room, *place)


def ticks(scale: Scale, most: int = 6) -> list[float]:
    """
    >>> ticks(Scale(0, 9, 0, 1)), ticks(Scale(8, 3000, 0, 1, log=True))
    ([0.0, 2.0, 4.0, 6.0, 8.0], [10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0])
    """
    if scale.log:
        first, last = math.floor(math.log10(scale.low)), math.ceil(math.log10(scale.high))
        for factors, every in (((1, 1.5, 2, 3, 5, 7), 1), ((1, 2, 5), 1), ((1, 3), 1), ((1,), 1), ((1,), 2), ((1,), 3)):
            found = [f * 10.0**e for e in range(first, last + 1, every) for f in factors]
            found = [value for value in found if scale.low <= value <= scale.high]
            if len(found) <= most:
                break
        return found
    rough = (scale.high - scale.low) / most
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * size for factor in (1, 2, 2.5, 5, 10) if factor * size >= rough * (1 - 1e-9))
    first = math.ceil(scale.low / step - 1e-9)
    return [round(i * step, 12) for i in range(first, math.floor(scale.high / step + 1e-9) + 1)]


def short(value: float) -> str:
    """
    >>> short(2_500_000), short(20_000), short(351.5), short(0.25), short(0), short(0.00015)
    ('2.5M', '20k', '351.5', '0.25', '0', '1.5e-4')
    """
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.4g}{letter}"
    if abs(value) >= 1e-3 or not value:
        return f"{value:.4g}"
    digits, _, exponent = f"{value:.1e}".partition("e")
    return f"{digits.removesuffix('.0')}e{int(exponent)}"


def _rows(y: Scale) -> list[str]:
    found = []
    for tick in ticks(y):
        at = y(tick)
        found.append(f"<path class='grid' d='M{LEFT} {at:.1f}H{WIDTH - RIGHT}'/>")
        found.append(_text(LEFT - 6, at + 4, short(tick), "", "end"))
    return found


# Curves


def _curves(lines: list[Line], places: list[Any], y: Scale, axis: str, log: bool) -> list[str]:
    low, high = float(min(places)), float(max(places))
    log = log and low > 0
    room = (high - low) * 0.03
    ends = (low / 1.08, high * 1.08) if log else (low - room, high + room)
    x = Scale(*ends, LEFT, WIDTH - RIGHT, log)
    body = []
    for tick in ticks(x):
        body.append(f"<path class='tick' d='M{x(tick):.1f} {HEIGHT - BOTTOM}v4'/>")
        body.append(_text(x(tick), HEIGHT - BOTTOM + 17, short(tick), "", "middle"))
    body.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - BOTTOM + 35, axis, "", "middle"))
    body.append(f"<path class='tick' d='M{LEFT} {HEIGHT - BOTTOM}H{WIDTH - RIGHT}'/>")
    for line in lines:
        path = "L".join(f"{x(dot.x):.1f} {y(dot.y):.1f}" for dot in line.dots)
        own = [f"<path class='line' d='M{path}'{_dash(line)}/>"] if len(line.dots) > 1 else []
        for dot in line.dots:
            own.append(_error_bar(x(dot.x), y(dot.low), y(dot.high)))
            own.append(_named(_marker(line, x(dot.x), y(dot.y)), f"{line.label} at {show(dot.x)}: {dot.text()}"))
        own += [_said(line, x(place), y(value), place, value) for place, value in line.said]
        body.append(f"<g class='{line.css}'>{''.join(own)}</g>")
    return body


def _bars(lines: list[Line], places: list[Any], y: Scale, axis: str) -> tuple[list[str], list[Line]]:
    """Groups of bars; at a single place each bar has its label below it, where there is room, and needs no legend."""
    space = (WIDTH - RIGHT - LEFT) / max(1, len(places))
    width = min(46.0, 0.84 * space / max(1, len(lines)))
    named = len(places) == 1 and max(len(line.label) for line in lines) * CHARACTER < 0.84 * space / len(lines)
    step = 0.92 * space / len(lines) if named else width
    body = [f"<path class='tick' d='M{LEFT} {HEIGHT - BOTTOM}H{WIDTH - RIGHT}'/>"]
    foot = y(0.0) if not y.log else HEIGHT - BOTTOM
    for place, value in enumerate(places):
        middle = LEFT + (place + 0.5) * space
        if not named:
            body.append(_text(middle, HEIGHT - BOTTOM + 17, show(value), "", "middle"))
        for i, line in enumerate(lines):
            at = middle + (i - (len(lines) - 1) / 2) * step
            own = []
            for dot in line.dots:
                if dot.x == value:
                    top = y(dot.y)
                    bar = f"<rect x='{at - width * 0.45:.1f}' y='{min(top, foot):.1f}' width='{width * 0.9:.1f}' "
                    bar += f"height='{abs(foot - top):.1f}'>"
                    own.append(_named(bar, f"{line.label} at {show(value)}: {dot.text()}", "rect"))
                    own.append(_error_bar(at, y(dot.low), y(dot.high), "over"))
            own += [_said(line, at, y(v), x, v) for x, v in line.said if x == value]
            if named:
                own.append(_text(at, HEIGHT - BOTTOM + 17, line.label, "", "middle"))
            body.append(f"<g class='bars {line.css}'>{''.join(own)}</g>")
    below = f"{axis}: {show(places[0])}" if named else axis
    body.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - BOTTOM + 35, below, "", "middle"))
    return body, [] if named else lines


def _legend(lines: list[Line], said: bool, bars: bool) -> tuple[list[str], int]:
    """The elements below the axes, and their height."""
    entries: list[tuple[str, Callable[[float, float], str]]] = [
        (line.label, lambda x, y, line=line: _sample(line, x, y, bars))  # type: ignore[misc]
        for line in lines
    ]
    if said:
        entries.append(("the paper's number", lambda x, y: f"<path class='said' d='{_diamond(x + 13, y - 4, 5.5)}'/>"))
    body, x, row = [], float(LEFT - 40), 0
    for text, sample in entries:
        width = 34 + CHARACTER * len(text) + 14
        if x + width > WIDTH and x > LEFT:
            x, row = float(LEFT - 40), row + 1
        at = HEIGHT + 12 + row * LEGEND_ROW
        body += [sample(x, at), _text(x + 31, at, text)]
        x += width
    return body, (row + 1) * LEGEND_ROW + 4 if entries else 0


def _sample(line: Line, x: float, y: float, bar: bool) -> str:
    if bar:
        return f"<g class='{line.css}'><rect x='{x + 8:.0f}' y='{y - 10:.0f}' width='12' height='12'/></g>"
    stroke = f"<path class='line' d='M{x:.0f} {y - 4:.0f}h26'{_dash(line)}/>"
    return f"<g class='{line.css}'>{stroke}{_marker(line, x + 13, y - 4)}/></g>"


# Elements


def _svg(body: list[str], height: float, title: str) -> str:
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' class='plot' viewBox='0 0 {WIDTH} {height:.0f}' role='img' "
        f"aria-label='{escape(title, quote=True)}'>{''.join(body)}</svg>"
    )


def standalone(svg: str) -> str:
    """As a file of its own, with the colours inside."""
    head, _, rest = svg.partition(">")
    return f"{head}><style>{style_sheet()}</style>{rest}\n"


def sheet(panels: Sequence[tuple[str, str]], columns: int = 3) -> str:
    """Several pictures, each with a title, as one; on a background, because pages of any colour may show it."""
    columns = min(columns, len(panels))
    heights = [int(re.findall(r"viewBox='0 0 \d+ (\d+)'", svg)[0]) for _, svg in panels]
    tall = max(heights) + 40
    width, height = columns * (WIDTH + 20), -(-len(panels) // columns) * tall
    body = [f"<rect class='back' width='{width}' height='{height}'/>"]
    for place, (title, svg) in enumerate(panels):
        x, y = place % columns * (WIDTH + 20) + 10, place // columns * tall
        body.append(_text(x + WIDTH / 2, y + 22, title, "title", "middle"))
        body.append(svg.replace("<svg ", f"<svg x='{x}' y='{y + 32}' width='{WIDTH}' height='{heights[place]}' ", 1))
    label = escape("; ".join(title for title, _ in panels), quote=True)
    head = "<svg xmlns='http://www.w3.org/2000/svg' class='plot'"
    return f"{head} viewBox='0 0 {width} {height}' role='img' aria-label='{label}'>{''.join(body)}</svg>"


def _text(x: float, y: float, text: str, css: str = "", anchor: str = "start") -> str:
    kind = f" class='{css}'" if css else ""
    place = "" if anchor == "start" else f" text-anchor='{anchor}'"
    return f"<text x='{x:.1f}' y='{y:.1f}'{kind}{place}>{escape(text)}</text>"


def _named(element: str, title: str, name: str = "path") -> str:
    """An open element, closed after the words that appear where the pointer rests on it."""
    return f"{element.removesuffix('>')}><title>{escape(title)}</title></{name}>"


def _error_bar(x: float, low: float, high: float, css: str = "") -> str:
    if abs(low - high) < 1.0:
        return ""  # less than the marker shows
    kind = f"error {css}".strip()
    return f"<path class='{kind}' d='M{x:.1f} {low:.1f}V{high:.1f}m-3 0h6M{x - 3:.1f} {low:.1f}h6'/>"


def _said(line: Line, x: float, y: float, place: Any, value: float) -> str:
    words = f"{line.label} at {show(place)} by the paper's number: {number(value)}"
    return _named(f"<path class='said' d='{_diamond(x, y, 6)}'", words)


def _diamond(x: float, y: float, r: float) -> str:
    return f"M{x:.1f} {y - r:.1f}l{r} {r}l{-r} {r}l{-r} {-r}z"


def _marker(line: Line, x: float, y: float) -> str:
    """An open <path>, to be closed."""
    r = 4.2
    if line.label == ENGINE:
        shape = 0
    else:
        shape = line.style % COLOURS
    path = (
        f"M{x - r:.1f} {y:.1f}a{r} {r} 0 1 0 {2 * r} 0a{r} {r} 0 1 0 {-2 * r} 0z",
        f"M{x - 3.6:.1f} {y - 3.6:.1f}h7.2v7.2h-7.2z",
        f"M{x:.1f} {y - 4.8:.1f}l4.6 8h-9.2z",
        _diamond(x, y, 5),
        f"M{x:.1f} {y + 4.8:.1f}l4.6 -8h-9.2z",
        f"M{x - 1.6:.1f} {y - 4.6:.1f}h3.2v3h3v3.2h-3v3h-3.2v-3h-3v-3.2h3z",
        f"M{x - 4.4:.1f} {y - 4:.1f}l8.8 8v-8l-8.8 8z",
        f"M{x - 5:.1f} {y - 2:.1f}h10v4h-10z",
    )[shape]
    return f"<path class='dot' d='{path}'"


def _dash(line: Line) -> str:
    dash = "" if line.label == ENGINE else DASHES[line.style % COLOURS]
    return f" stroke-dasharray='{dash}'" if dash else ""
