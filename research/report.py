"""The report of a run: an overview and one page per paper, each one file that needs nothing else.

overview    headline, how it was measured, what is missing, a row per paper, every claim, what changed, the rules
a paper     the same headline for that paper, then each figure or table with its claims beside it
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from html import escape
from typing import Any

from research import judging, plots
from research.claims import show
from research.experiment import Experiment, Paper
from research.report_cards import (
    KINDS,
    OTHER_KIND,
    Card,
    Row,
    Run,
    claim,
    claims,
    kind_of,
    placed,
    title,
    toggled,
)
from research.report_html import (
    CSS,
    MEANINGS,
    SIGNS,
    capital,
    count,
    details,
    document,
    items,
    scroll,
    shared,
    table,
    verdict,
)
from research.rules import DIRECTION, FACTOR, FAILS, VERDICTS

OVERVIEW = "report.html"


def pages(run: Run) -> dict[str, str]:
    """File name -> page, or what the pages share."""
    own = {file_of(paper): paper_page(run, paper) for paper in run.papers}
    return {OVERVIEW: overview(run)} | own | shared()


def file_of(paper: Paper) -> str:
    return f"{paper.name}.html"


def pictures(run: Run) -> dict[str, str]:
    """Name -> picture as an SVG file of its own, with the engine's curve where it took part; `overview`: the first
    figure of each paper."""
    firsts = [(paper, first) for paper in run.papers if (first := _first(run, paper))]
    panels = [(f"{paper.title}, {card.head}", card.drawings[-1]) for paper, (_, card) in firsts]
    whole = {"overview": plots.standalone(plots.sheet(panels))} if panels else {}
    return whole | {
        f"{paper.name}-{card.id}": plots.standalone(card.drawings[-1])
        for paper in run.papers
        for experiment in run.measured(paper)
        for card in run.cards(paper, experiment)
        if card.drawings
    }


# The two kinds of pages


def overview(run: Run) -> str:
    record = run.record
    contents = {"papers": "The papers", "claims": "Every claim", "changed": "What has changed", "rules": "The rules"}
    parts = [
        "<h1>The papers, reproduced</h1><p class='lead'>Papers on content-based publish/subscribe: their experiments "
        "run again with our matchers, each claim of their text judged by rules that were fixed before the run.</p>",
        _headline(record["headline"], record["verdicts"], record["shuffled"]),
        _facts(run, run.papers),
        _missing(run, record["missing"]),
        _contents(contents),
        _filters(record["verdicts"], run.papers),
        "<h2 id='papers'>The papers</h2>",
        _papers(run),
        f"<div class='cards'>{''.join(_first_figure(run, paper) for paper in run.papers)}</div>",
        "<h2 id='claims'>Every claim</h2>",
        *(_every_claim(run, paper) for paper in run.papers),
        "<h2 id='changed'>What has changed</h2>",
        _changed(record["changed"]),
        "<h2 id='rules'>The rules</h2>",
        _rules(record["rules"]),
    ]
    return _page(run, "The papers, reproduced", OVERVIEW, parts)


def paper_page(run: Run, paper: Paper) -> str:
    record, rows = run.record, run.rows(paper)
    contents = {experiment.name: title(run, paper, experiment) for experiment in run.asked(paper)}
    about = re.sub("`(.+?)`", r"<code>\1</code>", escape(paper.about))
    parts = [
        f"<h1>{escape(paper.title)}, reproduced</h1><p class='lead'>The paper's setting: {about}</p>",
        _headline(judging.headline(rows), rows, _baseline(run, paper)),
        _facts(run, [paper]),
        _missing(run, [one for one in record["missing"] if one["paper"] == paper.name]),
        _contents(contents | {"changed": "What has changed"}),
        _filters(rows),
        *(_section(run, paper, experiment) for experiment in run.asked(paper)),
        "<h2 id='changed'>What has changed</h2>",
        _changed([one for one in record["changed"] if one["paper"] == paper.name]),
        f"<p><a href='{OVERVIEW}#rules'>The rules</a> are on the overview.</p>",
    ]
    return _page(run, f"{paper.title}, reproduced", file_of(paper), parts)


def _page(run: Run, heading: str, name: str, parts: list[str]) -> str:
    links = [(OVERVIEW, "Overview"), *((file_of(paper), paper.title) for paper in run.papers)]
    return document(heading, links, name, "".join(parts))


# The first screen


def _headline(found: Mapping[str, int], rows: list[Row], shuffled: dict[str, float]) -> str:
    numbers = "".join(
        f"<li class='{CSS[name]}{'' if name in (FACTOR, DIRECTION, FAILS) else ' beside'}'>"
        f"<b>{found[name]}</b> <span>{SIGNS[name]} {name}</span></li>"
        for name in VERDICTS
    )
    unexplained = sum(not row["explained"] for row in rows)
    text = (
        f"{count(len(rows), 'claim')} make {count(sum(found[name] for name in VERDICTS), 'statement')}: claims that "
        f"repeat each other count once, as the weakest of them. {found['another factor']} of those in direction only "
        f"state a number that ours misses. {found['trivial']} more are satisfied by any implementation and are not "
        f"counted ({found['trivial that hold']} of them hold)."
    )
    if unexplained:
        text += f" Claims that differ from their paper without an explanation so far: {unexplained}."
    baseline = judging.baseline_text(shuffled) if shuffled["judged"] else "nothing here compares several matchers."
    return (
        f"<section class='headline' aria-label='Headline'><ul class='numbers'>{numbers}</ul><p>{text}</p>"
        f"<p><b>Baseline:</b> {escape(baseline)}</p></section>"
    )


def _baseline(run: Run, paper: Paper) -> dict[str, float]:
    return judging.add_up([run.record["shuffled_by_paper"].get(paper.name, {})])


def _facts(run: Run, papers: list[Paper]) -> str:
    """How these papers were measured."""
    record = run.record
    machine, own = record["machine"], [record["measured"][paper.name] for paper in papers]
    cpus = " or ".join(sorted({cpu for one in own for cpu in one["cpus"]})) or machine["cpu"]
    place = f"{cpus}, {machine['cores']} cores, {machine['memory_gb']} GB, Python {machine['python']}"
    points, more = (sum(one[name] for one in own) for name in ("points", "with_more_seeds"))
    facts = {
        "scale": record["scale"],
        "seeds per point": _span([n for one in own for n in one["seeds"]])
        + (f" (more than the first at {more} of {count(points, 'point')})" if more else ""),
        "events per point": _span([n for one in own for n in one["events"]]),
        "hours of measuring": f"{sum(one['hours'] for one in own):.1f} of one process",
        "command": f"<code>{escape(record['command'])}</code>",
        "code": f"<code>{record['code']}</code>",
        "rules": f"<a href='{OVERVIEW}#rules'>version {record['rules']['version']}</a>",
        "machine": escape(place),
        "hitbox": f"{escape(machine['hitbox'])}, {escape(machine['when'][:16].replace('T', ' '))} UTC",
    }
    listed = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in facts.items())
    return f"<dl class='facts'>{listed}</dl>" + details("Caveats", items(_caveats(run)), "caveats", opened=True)


def _span(numbers: list[int]) -> str:
    """
    >>> _span([3, 3, 8]), _span([]), _span([102])
    ('3 to 8', 'none', '102')
    """
    return " to ".join(f"{one:,}" for one in dict.fromkeys([min(numbers), max(numbers)])) if numbers else "none"


def _caveats(run: Run) -> list[str]:
    sizes = {
        "smoke": "<b>This scale only shows that everything runs: its verdicts mean nothing.</b>",
        "small": "<b>The small scale: fewer subscriptions than in the papers.</b> Titles show how many.",
        "paper": "Titles show the number of subscriptions that was measured; in a few it is below the paper's.",
    }
    oracle = run.record["oracle"]
    if run.record["spark"]:
        how = "Workloads, verdicts and tables were made by Spark from Parquet; only the timing ran outside of it."
        how += f" {oracle['checked']:,} answers were compared with those of <code>brute</code>." if oracle else ""
    else:
        how = "Workloads and verdicts were made in one process, without Spark. Two events of every contestant and seed "
        how += "were compared with <code>brute</code>."
    return [
        sizes[run.scale],
        "Our own implementations in Python, Numba and C++, each experiment on one kind of machine: absolute times of "
        "the papers are never judged, only ratios, orders and shapes.",
        "Times are CPU time of one event at a time, the fastest of some repetitions, scaled by a fixed piece of work "
        "that is timed beside them. The parts of Pri-REIN's times are wall-clock stamps.",
        "Error bars and numbers in brackets are 95% intervals of a bootstrap over seeds and events. They do not cover "
        "another machine, another compiler or another reading of a paper.",
        "Most points have the first seeds only, so that many claims are undecided: their intervals are too wide.",
        "The thresholds were fixed before the run. How a statement is read, and some sizes, were chosen after earlier "
        "results, and some of these choices after the results shown here: docs/reproduction/README.md lists them.",
        how,
    ]


def _missing(run: Run, missing: list[dict[str, Any]]) -> str:
    """Which units an incomplete run lacks, contestant by contestant."""
    if not missing:
        return ""
    groups: dict[tuple[str, str], dict[str, dict[str, list[int]]]] = {}
    for one in missing:
        place = show(one["x"]) + (f" ({one['series']})" if one["series"] else "")
        contestants = groups.setdefault((one["paper"], one["experiment"]), {})
        contestants.setdefault(one["contestant"], {}).setdefault(place, []).append(one["seed"])
    entries = []
    for (paper, experiment), contestants in groups.items():
        each = []
        for name, places in contestants.items():
            seeds = sorted({seed for some in places.values() for seed in some})
            each.append(escape(f"{name} at {', '.join(places)}: seeds {', '.join(map(str, seeds))}"))
        entries.append(f"{escape(paper)}, {escape(experiment)}{items(each)}")
    unjudged = sum(
        len(experiment.claims)
        for paper in run.papers
        if any(paper.name == name for name, _ in groups)
        for experiment in run.asked(paper)
        if experiment not in run.measured(paper)
    )
    also = (
        f" The {count(unjudged, 'claim')} of experiments without any measurement are not counted." if unjudged else ""
    )
    return (
        f"<section class='missing' role='status'><p><b>Not complete: {count(len(missing), 'unit')} of measurement "
        f"{'is' if len(missing) == 1 else 'are'} missing.</b> The same command continues.{also}</p>"
        f"{details('Which', items(entries))}</section>"
    )


def _contents(entries: Mapping[str, str]) -> str:
    links = items(f"<a href='#{name}'>{escape(text)}</a>" for name, text in entries.items())
    return f"<nav class='contents' aria-label='Contents'><b>Contents</b>{links}</nav>"


def _filters(rows: list[Row], papers: list[Paper] | None = None) -> str:
    """`papers`: to choose from, where the page has several."""
    verdicts = Counter(row["verdict"] for row in rows)
    boxes = "".join(
        f"<label title='{escape(MEANINGS[name], quote=True)}'><input type='checkbox' name='verdict' "
        f"value='{CSS[name]}' checked> {verdict(name)} <small>{verdicts[name]}</small></label>"
        for name in VERDICTS
    )
    there = {kind_of(row) for row in rows}
    selects = _select("kind", "Kind", {name: name for name in (*KINDS, OTHER_KIND) if name in there})
    if papers:
        selects += _select("paper", "Paper", {paper.name: paper.title for paper in papers})
    return (
        "<form class='filters' id='filters' aria-label='Filters' hidden>"
        f"<fieldset><legend>Claims by verdict</legend>{boxes}</fieldset><div class='row'>{selects}"
        "<label><input type='checkbox' name='trivial' checked> those that any implementation satisfies</label>"
        "<label><input type='checkbox' name='engine' id='engine'> our engine's curve</label>"
        "<button type='reset'>Show all</button><output id='shown' aria-live='polite'></output></div></form>"
    )


def _select(name: str, label: str, options: Mapping[str, str]) -> str:
    choices = "".join(f"<option value='{escape(value)}'>{escape(text)}</option>" for value, text in options.items())
    return f"<label>{label} <select name='{name}'><option value=''>all</option>{choices}</select></label>"


# The overview


def _papers(run: Run) -> str:
    """A row per paper; each number leads to its claims."""
    rows = ""
    for paper in run.papers:
        found, baseline = judging.headline(run.rows(paper)), _baseline(run, paper)
        cells = "".join(
            f"<td class='number'><a href='{file_of(paper)}?verdict={CSS[name]}#filters' "
            f"aria-label='{escape(paper.title)}: {found[name]} {name}'>{found[name]}</a></td>"
            for name in VERDICTS
        )
        for text in (
            str(found["trivial"]),
            _share(baseline, "true", "true judged"),
            _share(baseline, "held", "judged"),
        ):
            cells += f"<td class='number'>{text}</td>"
        rows += f"<tr><th scope='row'><a href='{file_of(paper)}'>{escape(paper.title)}</a></th>{cells}</tr>"
    head = ["paper", *(f"{SIGNS[name]} {name}" for name in VERDICTS), "trivial", "hold", "hold when shuffled"]
    caption = (
        "Statements, each counted once; a number leads to the claims with that verdict, which may be more: claims that "
        "repeat each other, and those that any implementation satisfies. The last two columns: the share that holds of "
        "those that compare matchers, with the right labels and with shuffled ones."
    )
    return f"<p class='note'>{caption}</p>{scroll('Statements by paper and verdict', table(head, rows))}"


def _share(baseline: dict[str, float], part: str, whole: str) -> str:
    return f"{baseline[part] / baseline[whole]:.0%}" if baseline[whole] else "–"


def _first(run: Run, paper: Paper) -> tuple[Experiment, Card] | None:
    """The first figure of a paper that can be drawn."""
    every = [(one, card) for one in run.measured(paper) for card in run.cards(paper, one) if card.drawings]
    return every[0] if every else None


def _first_figure(run: Run, paper: Paper) -> str:
    first = _first(run, paper)
    if first is None:
        return ""
    experiment, card = first
    caption = f"{paper.title}, {card.head}: {title(run, paper, experiment)}."
    more = f"<a href='{file_of(paper)}#{card.id}'>Its claims and values</a>"
    return (
        f"<article class='card'><figure>{toggled(card.drawings)}<figcaption>{escape(caption)} {more}</figcaption>"
        "</figure></article>"
    )


def _every_claim(run: Run, paper: Paper) -> str:
    text = ""
    for experiment in run.measured(paper):
        for card, rows in placed(run, paper, experiment):
            place, name = (card.id, card.head) if card else (experiment.name, experiment.name)
            link = f"<a href='{file_of(paper)}#{place}'>{escape(name)}</a>"
            text += "".join(claim(row, link) for row in rows)
    summary = f"{paper.title}: {count(len(run.rows(paper)), 'claim')}"
    return details(summary, f"<ul class='claims two'>{text}</ul>", "group") if text else ""


def _changed(changed: list[dict[str, str]]) -> str:
    """Claims whose verdict is another one than in the report before the rules, or that are new or gone."""
    if not changed:
        return "<p>Every claim has the verdict that it had in the report before the rules.</p>"
    pairs = Counter((one["before"] or "not stated", one["now"] or "not stated") for one in changed)
    sums = "".join(
        f"<tr><td>{escape(before)}</td><td>{escape(now)}</td><td class='number'>{number}</td></tr>"
        for (before, now), number in pairs.most_common()
    )
    rows = "".join(
        f"<tr data-paper='{escape(one['paper'])}'><th scope='row'>{escape(one['claim'])} "
        f"<small>{escape(one['paper'])}, {escape(one['experiment'])}</small></th>"
        f"<td data-label='before'>{escape(one['before'] or 'not stated')}</td>"
        f"<td data-label='now'>{verdict(one['now']) if one['now'] else 'not stated'}</td>"
        f"<td data-label='ours'>{escape(one['ours'])}</td><td data-label='reason'>{escape(one['reason'])}</td></tr>"
        for one in changed
    )
    lead = f"<p>{count(len(changed), 'claim')} differ from the report before the rules, which was made at the small "
    each = table(["claim", "before", "now", "ours", "reason"], rows, css="stacked")
    return (
        f"{lead}scale with one seed.</p>{table(['before', 'now', 'claims'], sums, css='narrow')}"
        f"{details('Each of them, with the reason', each, 'changes')}"
    )


def _rules(rules: dict[str, Any]) -> str:
    rows = "".join(
        f"<tr><th scope='row'>{one['name']}</th><td class='number'>{one['value']:g}</td>"
        f"<td>{escape(one['reason'])}</td></tr>"
        for one in rules["thresholds"]
    )
    return (
        f"{items(f'{verdict(name)} {MEANINGS[name]}' for name in VERDICTS)}"
        f"<p>Version {rules['version']}: {escape(rules['about'])} A change is a new version, and the report then shows "
        f"what both say.</p>{scroll('The rules', table(['threshold', 'value', 'reason'], rows))}"
    )


# A paper


def _section(run: Run, paper: Paper, experiment: Experiment) -> str:
    body = f"<h2>{escape(title(run, paper, experiment))}</h2>"
    if experiment in run.measured(paper):
        body += f"<div class='cards'>{_articles(run, paper, experiment)}</div>{_left_out(run, paper, experiment)}"
    else:
        figures = ", ".join(dict.fromkeys(plot.figure.partition(":")[0] for plot in experiment.plots))
        text = f"Not measured yet: {figures}, with {count(len(experiment.claims), 'claim')}."
        body += f"<p class='missing'>{escape(text)}</p>"
    return f"<section class='experiment' id='{experiment.name}'>{body}</section>"


def _articles(run: Run, paper: Paper, experiment: Experiment) -> str:
    """Two in a row; a wide table, and a figure that would stand alone in its row, take the whole width."""
    every = placed(run, paper, experiment)
    wide = [card is not None and not card.drawings and card.values.count("<th scope='col'") > 4 for card, _ in every]
    text, column = "", 0
    for place, (card, rows) in enumerate(every):
        last = place + 1 == len(every) or wide[place + 1]
        css = "card wide" if wide[place] else "card alone" if column == 0 and last else "card"
        column = 0 if css != "card" else 1 - column
        if card is None:
            text += f"<article class='card'><h3>Claims that no figure shows</h3>{claims(rows)}</article>"
            continue
        caption = f"<figcaption>{escape(card.caption)}</figcaption>"
        if card.drawings:
            shown = f"<figure>{toggled(card.drawings)}{caption}</figure>{card.values}"
        else:
            shown = f"<figure>{caption}{card.values}</figure>"
        text += (
            f"<article class='{css}' id='{card.id}'><h3>{escape(capital(card.head))}</h3><div>{shown}</div>"
            f"<div>{claims(rows)}</div></article>"
        )
    return text


def _left_out(run: Run, paper: Paper, experiment: Experiment) -> str:
    own = [one for one in run.record["skipped"] if (one["paper"], one["experiment"]) == (paper.name, experiment.name)]
    texts = [escape(f"{one['contestant']} at {show(one['x'])}: {one['reason']}") for one in own]
    return f"<p>Left out:</p>{items(texts)}" if texts else ""
