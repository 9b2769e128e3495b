"""The report of a run: one HTML file that needs nothing else. The headline first, then the verdicts, our curves, the
rules.

verdict            means
factor reproduced  the direction is the paper's, and where it gives a number, ours is near it
direction only     the direction is the paper's; it gives no number, or another one
fails              the direction differs: see the reason
undecided          the interval straddles the threshold, or the two are within the margin
not comparable     an absolute time of another machine, or not measured
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path
from typing import Any

from hitbox.experiments.claims import number, show
from hitbox.experiments.curves import Curves
from hitbox.experiments.experiment import Experiment, Paper, Plot
from hitbox.experiments.judging import baseline_text
from hitbox.experiments.plots import LABELS
from hitbox.experiments.rules import DIRECTION, FACTOR, FAILS, NOT_COMPARABLE, UNDECIDED, VERDICTS

SIGNS = {FACTOR: "✓", DIRECTION: "→", FAILS: "✗", UNDECIDED: "?", NOT_COMPARABLE: "–"}
KINDS = {FACTOR: "", DIRECTION: "other", FAILS: "fails", UNDECIDED: "open", NOT_COMPARABLE: "none"}
Found = Mapping[tuple[str, Experiment], Curves]

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; color: #1a1a1a }
table { border-collapse: collapse; width: 100%; margin: 1rem 0 }
th, td { text-align: left; vertical-align: top; padding: .3rem .6rem; border-bottom: 1px solid #ddd }
th { border-bottom: 2px solid #444 } td.verdict { white-space: nowrap; font-weight: 600 }
tr.fails td { background: #fbeee6 } tr.other td.verdict { font-weight: 400 } tr.none td, tr.open td { color: #666 }
img { max-width: 100%; height: auto } figure { display: inline-block; margin: .5rem 1rem .5rem 0; vertical-align: top }
figcaption { font-size: .9rem; color: #444 } code { background: #f3f3f3; padding: 0 .2rem }
small, .note { color: #555 } summary { cursor: pointer } h2 { border-top: 3px solid #222; padding-top: .6rem }
"""


def page(record: dict[str, Any], papers: Iterable[Paper], found: Found, pictures: dict[str, Path]) -> str:
    """`record` as reproduce.py writes it; `pictures` as SVG files, by `picture_name`."""
    papers, verdicts = list(papers), record["verdicts"]
    parts = [_head(record), _headline(record)]
    if "overview" in pictures:
        parts.append(
            _picture(pictures["overview"], "The first figure of each paper, with the engine as one more curve")
        )
    for paper in papers:
        parts += [f"<h3>{escape(paper.title)}</h3>", _verdicts([v for v in verdicts if v["paper"] == paper.name])]
    for paper in papers:
        parts.append(f"<h2 id='{paper.name}'>{escape(paper.title)}</h2><p class='note'>{escape(paper.about)}</p>")
        for experiment in paper.experiments:
            curves = found.get((paper.name, experiment))
            if curves is not None:
                parts.append(_experiment(record, paper, experiment, curves, pictures))
    parts += ["<h2>The rules</h2>", _rules(record), "<h2>What has changed</h2>", _changed(record)]
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'><title>hitbox: the papers, reproduced</title>"
        f"<meta name='viewport' content='width=device-width'><style>{STYLE}</style></head>"
        f"<body>{''.join(parts)}</body></html>\n"
    )


def _head(record: dict[str, Any]) -> str:
    machine, scale = record["machine"], record["scale"]
    place = f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gb']} GB, Python {machine['python']}"
    events = " to ".join(f"{number:,}" for number in dict.fromkeys(record["events"]))
    where = (
        "Workloads, verdicts and tables were made by Spark from Parquet; only the timing ran in one process."
        if record["spark"]
        else "Workloads and verdicts were made in one process, without Spark."
    )
    text = (
        f"<h1>The papers, reproduced</h1><p><code>{escape(record['command'])}</code>, code {record['code']}, "
        f"seeds {', '.join(map(str, record['seeds']))}, {events} events per point, {record['hours']:.1f} hours of "
        f"measuring, rules {record['rules']['version']}. hitbox {escape(machine['hitbox'])}, {machine['when']}, "
        f"{escape(place)}.</p>"
        "<p>Contestants are built one after another on the same boxes and events, each checked against "
        "<code>brute</code> first. Times are CPU time of one event at a time, the quickest of some repetitions (the "
        "fine-grained times of Pri-REIN are wall-clock stamps inside the kernels), scaled by a fixed piece of work "
        "that is timed beside them. "
        f"{where}</p>"
    )
    if record["missing"]:
        text += f"<p><b>Not complete: {record['missing']} measurements are missing.</b> The same command continues.</p>"
    if scale == "smoke":
        text += "<p><b>This scale only shows that everything runs: its verdicts mean nothing.</b></p>"
    return text


def _headline(record: dict[str, Any]) -> str:
    found = record["headline"]
    rows = "".join(f"<tr><td>{SIGNS[name]} {name}</td><td>{found[name]}</td></tr>" for name in VERDICTS)
    unexplained = sum(not v["explained"] for v in record["verdicts"])
    return (
        f"<h2>Verdicts</h2><p>Statements that repeat each other count once. <b>{found[FACTOR]}</b> are reproduced "
        f"with their factor, <b>{found[DIRECTION]}</b> in direction only, <b>{found[FAILS]}</b> fail. "
        f"{found['another factor']} of those in direction only state a number that ours misses.</p>"
        f"<table style='width:auto'>{rows}</table><p>{found['trivial']} more are satisfied by any implementation and "
        f"are not counted ({found['trivial that hold']} of them hold). {escape(baseline_text(record['shuffled']))} "
        f"{unexplained} rows that differ from their paper have no explanation yet.</p>"
    )


def _verdicts(verdicts: list[dict[str, Any]]) -> str:
    rows = [
        f"<tr class='{KINDS[v['verdict']]}'><td>{escape(v['claim'])}{' <small>(trivial)</small>' * v['trivial']}</td>"
        f"<td>{escape(v['said'])}</td><td>{escape(v['ours'])}</td>"
        f"<td class='verdict'>{SIGNS[v['verdict']]} {v['verdict']}{_older(v)}</td><td>{escape(v['reason'])}</td></tr>"
        for v in verdicts
    ]
    head = "<tr><th>claim</th><th>paper</th><th>ours</th><th>verdict</th><th>reason</th></tr>"
    return f"<table>{head}{''.join(rows)}</table>"


def _older(verdict: dict[str, Any]) -> str:
    """What older rules say, where that differs."""
    other = {version: said for version, said in verdict["earlier"].items() if said != verdict["verdict"]}
    return "".join(f"<br><small>rules {version}: {escape(said)}</small>" for version, said in other.items())


def _experiment(
    record: dict[str, Any], paper: Paper, experiment: Experiment, curves: Curves, pictures: dict[str, Path]
) -> str:
    text = f"<h3>{escape(title(experiment, curves))}</h3>"
    for plot in experiment.plots:
        picture = pictures.get(picture_name(paper, experiment, plot))
        if plot.table:
            text += _values(plot, curves)
        elif picture:
            text += _picture(picture, f"{plot.figure}: {title(experiment, curves)}")
    for left in record["skipped"]:
        if (left["paper"], left["experiment"]) == (paper.name, experiment.name):
            text += f"<p class='note'>{left['contestant']} at {escape(show(left['x']))}: {escape(left['reason'])}</p>"
    return text


def title(experiment: Experiment, curves: Curves) -> str:
    """With the number of subscriptions that was really measured."""
    sizes = sorted({n for n in curves.n if n})
    span = f"{sizes[0]:,}" + (f" to {sizes[-1]:,}" if len(sizes) > 1 else "") if sizes else "?"
    return experiment.title.replace("{n}", span)


def _values(plot: Plot, curves: Curves) -> str:
    """A table of the paper, as a table: a row per place, a column per curve, formulas beside what was measured."""
    names = [name for name in dict.fromkeys(n for p in curves.points for n in p) if _has(curves, name, plot.metric)]
    head = "".join(f"<th>{escape(name)}</th>" + ("<th>formula</th>" if name in plot.formulas else "") for name in names)
    rows = ""
    for x, point, n in zip(curves.xs, curves.points, curves.n, strict=True):
        cells = ""
        for name in names:
            samples = point.get(name, {}).get(plot.metric)
            cells += f"<td>{number(float(samples[0])) if samples is not None else ''}</td>"
            if name in plot.formulas:
                cells += f"<td>{number(plot.formulas[name](n) / 1e6)}</td>"
        rows += f"<tr><td>{escape(show(x))}</td>{cells}</tr>"
    return f"<p>{escape(plot.figure)}: {escape(LABELS[plot.metric])}</p><table><tr><th></th>{head}</tr>{rows}</table>"


def _has(curves: Curves, name: str, metric: str) -> bool:
    return any(metric in point.get(name, {}) for point in curves.points)


def _rules(record: dict[str, Any]) -> str:
    rows = "".join(
        f"<tr><td>{one['name']}</td><td>{one['value']:g}</td><td>{escape(one['reason'])}</td></tr>"
        for one in record["rules"]["thresholds"]
    )
    return f"<p>Version {record['rules']['version']}: {escape(record['rules']['about'])}</p><table>{rows}</table>"


def _changed(record: dict[str, Any]) -> str:
    head = "<tr><th>claim</th><th>before</th><th>now</th><th>reason</th></tr>"
    rows = "".join(
        f"<tr><td>{escape(c['paper'])}: {escape(c['claim'])}</td><td>{escape(c['before'] or '-')}</td>"
        f"<td>{escape(c['now'] or '-')}</td><td>{escape(c['reason'])}</td></tr>"
        for c in record["changed"]
    )
    lead = f"<p>{len(record['changed'])} rows differ from the report before the rules (small scale, one seed).</p>"
    return lead + f"<table>{head}{rows}</table>"


def picture_name(paper: Paper, experiment: Experiment, plot: Plot) -> str:
    return f"{paper.name}-{experiment.name}-{plot.metric}"


def _picture(path: Path, caption: str) -> str:
    data = base64.b64encode(path.read_bytes()).decode()
    return (
        f"<figure><img alt='{escape(caption, quote=True)}' src='data:image/svg+xml;base64,{data}'>"
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )
