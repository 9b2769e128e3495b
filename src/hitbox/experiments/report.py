"""The report of a run: one HTML file that needs nothing else. Verdicts first, then our curves.

verdict             means
holds               the direction is the paper's; where it gives a factor, ours is within twice or half of it
holds, other factor the direction is the paper's, the factor is not
does not hold       the direction differs: see the reason
not comparable      an absolute time of another machine, or out of reach at this scale
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterable
from html import escape
from pathlib import Path
from typing import Any

from hitbox.experiments.claims import show
from hitbox.experiments.experiment import Experiment, Paper, Plot

HOLDS, OTHER_FACTOR, FAILS, UNCOMPARABLE = "holds", "holds, other factor", "does not hold", "not comparable"
DIFFERENT = (OTHER_FACTOR, FAILS)
SIGNS = {HOLDS: "✓", OTHER_FACTOR: "✓ ×", FAILS: "✗", UNCOMPARABLE: "–"}

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; color: #1a1a1a }
table { border-collapse: collapse; width: 100%; margin: 1rem 0 }
th, td { text-align: left; vertical-align: top; padding: .3rem .6rem; border-bottom: 1px solid #ddd }
th { border-bottom: 2px solid #444 } td.verdict { white-space: nowrap; font-weight: 600 }
tr.fails td { background: #fbeee6 } tr.other td.verdict { font-weight: 400 } tr.none td { color: #666 }
img { max-width: 100%; height: auto } figure { display: inline-block; margin: .5rem 1rem .5rem 0; vertical-align: top }
figcaption { font-size: .9rem; color: #444 } code { background: #f3f3f3; padding: 0 .2rem }
small, .note { color: #555 } summary { cursor: pointer } h2 { border-top: 3px solid #222; padding-top: .6rem }
"""


def page(record: dict[str, Any], papers: Iterable[Paper], pictures: dict[str, Path]) -> str:
    """`record` as reproduce.py writes it; `pictures` by `paper/experiment/plot`, as SVG files."""
    verdicts = record["verdicts"]
    parts = [_head(record), "<h2>Verdicts</h2>", _counts(verdicts)]
    if "overview" in pictures:
        parts.append(
            _picture(pictures["overview"], "The first figure of each paper, with the engine as one more curve")
        )
    for paper in papers:
        parts += [f"<h3>{escape(paper.title)}</h3>", _table([v for v in verdicts if v["paper"] == paper.name])]
    for paper in papers:
        parts.append(f"<h2 id='{paper.name}'>{escape(paper.title)}</h2><p class='note'>{escape(paper.about)}</p>")
        for experiment in paper.experiments:
            parts.append(_experiment(record, paper, experiment, pictures))
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'><title>hitbox: the papers, reproduced</title>"
        f"<meta name='viewport' content='width=device-width'><style>{STYLE}</style></head>"
        f"<body>{''.join(parts)}</body></html>\n"
    )


def verdict_of(holds: bool | None, close: bool | None) -> str:
    if holds is None:
        return UNCOMPARABLE
    return (OTHER_FACTOR if close is False else HOLDS) if holds else FAILS


def _head(record: dict[str, Any]) -> str:
    machine, scale = record["machine"], record["scale"]
    place = f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gb']} GB, Python {machine['python']}"
    commits = ", ".join(f"{name} ({points} points)" for name, points in record["commits"].items())
    yards = [point["yard"] for point in record["points"]]
    slowest = max(yards) / min(yards)
    text = (
        f"<h1>The papers, reproduced</h1><p>Scale <b>{scale}</b>, seed {record['seed']}, measured at "
        f"commit {escape(commits)}, hitbox {escape(machine['hitbox'])}, {machine['when']}. "
        f"{escape(place)}, load {', '.join(map(str, machine['load']))}; {record['cpu_seconds']:,.0f} s of CPU time.</p>"
        "<p>All matchers run in one process on the same boxes and events, each checked against <code>brute</code> "
        "first; times are CPU time of one event at a time, the quickest of interleaved repetitions (the fine-grained "
        "times of Pri-REIN are wall-clock stamps inside the kernels). A fixed piece of work is timed beside them, and "
        f"times of matching are scaled by it to its quickest; it took {slowest:.2f} times as long at the slowest. The "
        "claims are about shape: who wins, by what factor, what rises. Curves within 10% of each other count as "
        "equal.</p>"
    )
    if scale == "smoke":
        text += "<p><b>This scale only shows that everything runs: its verdicts mean nothing.</b></p>"
    return text


def _counts(verdicts: list[dict[str, Any]]) -> str:
    found = Counter(v["verdict"] for v in verdicts)
    judged = found[HOLDS] + found[OTHER_FACTOR] + found[FAILS]
    good = found[HOLDS] + found[OTHER_FACTOR]
    rows = "".join(f"<tr><td>{SIGNS[name]} {name}</td><td>{found[name]}</td></tr>" for name in SIGNS)
    lead = f"<p>{len(verdicts)} claims. "
    if judged:
        lead += f"The direction of <b>{good} of the {judged}</b> that can be judged holds here ({good / judged:.0%}). "
    return lead + "</p><table style='width:auto'>" + rows + "</table>"


def _table(verdicts: list[dict[str, Any]]) -> str:
    kinds = {HOLDS: "", OTHER_FACTOR: "other", FAILS: "fails", UNCOMPARABLE: "none"}
    rows = [
        f"<tr class='{kinds[v['verdict']]}'><td>{escape(v['claim'])}</td><td>{escape(v['said'])}</td>"
        f"<td>{escape(v['ours'])}</td><td class='verdict'>{SIGNS[v['verdict']]} {v['verdict']}</td>"
        f"<td>{escape(v['reason'])}</td></tr>"
        for v in verdicts
    ]
    head = "<tr><th>claim</th><th>paper</th><th>ours</th><th>verdict</th><th>reason</th></tr>"
    return f"<table>{head}{''.join(rows)}</table>"


def _experiment(record: dict[str, Any], paper: Paper, experiment: Experiment, pictures: dict[str, Path]) -> str:
    points = [p for p in record["points"] if (p["paper"], p["experiment"]) == (paper.name, experiment.name)]
    if not points:
        return ""
    sizes = sorted({p["n"] for p in points})
    span = f"{sizes[0]:,}" + (f" to {sizes[-1]:,}" if len(sizes) > 1 else "")
    text = f"<h3>{escape(experiment.title)}</h3><p class='note'>Here: {span} subscriptions, workload "
    text += f"<code>{experiment.workload}</code>.</p>"
    for plot in experiment.plots:
        found = pictures.get(picture_name(paper, experiment, plot))
        if found:
            text += _picture(found, f"{plot.figure}: {experiment.title}")
    left = sorted({(show(p["x"]), name, why) for p in points for name, why in p["skipped"].items()})
    for x, name, why in left:
        text += f"<p class='note'>{escape(name)} at {escape(x)}: {escape(why)}</p>"
    return text


def picture_name(paper: Paper, experiment: Experiment, plot: Plot) -> str:
    return f"{paper.name}-{experiment.name}-{plot.metric}"


def _picture(path: Path, caption: str) -> str:
    data = base64.b64encode(path.read_bytes()).decode()
    return (
        f"<figure><img alt='{escape(caption, quote=True)}' src='data:image/svg+xml;base64,{data}'>"
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )
