"""Verdicts: each claim judged by the rules, what the headline counts, the shuffled baseline, what has changed."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable
from importlib import resources
from typing import Any

import numpy as np
import pyarrow as pa

from research.claims import judge, show
from research.curves import Curves
from research.experiment import ENGINE, Claim, Experiment
from research.rules import (
    CURRENT,
    DIRECTION,
    FACTOR,
    FAILS,
    NO_FACTOR,
    NOT_COMPARABLE,
    OTHER_FACTOR,
    UNDECIDED,
    VERDICTS,
    VERSIONS,
    Outcome,
    Rules,
)

VALUES = pa.schema(
    [(name, pa.string()) for name in ("paper", "experiment", "x")]
    + [("n", pa.int64()), ("matcher", pa.string()), ("metric", pa.string())]
    + [(name, pa.float64()) for name in ("value", "low", "high")]
)
SHUFFLES = 20
"""Exchanges of labels that the baseline is the mean of."""
WEAKEST_FIRST = (FAILS, UNDECIDED, DIRECTION, FACTOR)
BEFORE = {"holds": (FACTOR, DIRECTION), "holds, other factor": (DIRECTION,), "does not hold": (FAILS,)}
"""Verdicts of the report before the rules, and what they correspond to now; "holds" said that the factor was near, too,
where the paper gives one."""


def verdicts(paper: str, experiment: Experiment, curves: Curves, rules: Rules = CURRENT) -> list[dict[str, Any]]:
    """A row for each claim of an experiment; `earlier` says what older rules make of the same measurements."""
    rows = []
    for claim in experiment.claims:
        curves.forget()
        outcome = judge_enough(claim, curves, rules)
        used = sorted((name, str(x)) for name, x in curves.used)
        metrics, marks = list(curves.read), list(curves.marks)
        older = {
            old.version: judge(claim.check, curves, old).verdict for old in VERSIONS if old.version < rules.version
        }
        differs = outcome.verdict == FAILS or outcome.note == OTHER_FACTOR
        rows.append(
            {
                "paper": paper,
                "experiment": experiment.name,
                "claim": claim.text,
                "said": claim.said,
                "ours": outcome.ours,
                "verdict": outcome.verdict,
                "reason": " ".join(part for part in (_sentence(outcome.note), claim.finding * differs) if part),
                "explained": not differs or bool(claim.finding),
                "group": claim.group or claim.text,
                "counted_in": claim.counted_in,
                "trivial": claim.trivial,
                "missed": outcome.note in (OTHER_FACTOR, NO_FACTOR),
                "settled": outcome.settled,
                "used": used,
                "metrics": metrics,
                "marks": marks,
                "earlier": older,
                "correction": claim.correction,
                "was": claim.was,
            }
        )
    return rows


def judge_enough(claim: Claim, curves: Curves, rules: Rules) -> Outcome:
    """A claim is undecided while one of its points has fewer seeds or events than the rules ask for."""
    outcome = judge(claim.check, curves, rules)
    if outcome.verdict == NOT_COMPARABLE:
        return outcome
    for name, x in curves.used:
        figures = curves.points[curves.xs.index(x)][name]
        for what in ("seeds", "events"):
            if what in figures and figures[what][0] < rules[what]:
                note = f"{what} of {name} at {show(x)}: {figures[what][0]:.0f} so far, of {rules[what]:.0f} at least"
                return Outcome(outcome.ours, UNDECIDED, note, settled=False)
    return outcome


def _sentence(note: str) -> str:
    return f"{note[0].upper()}{note[1:]}." if note else ""


def counted(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row per group: claims that repeat each other count once, as the weakest of them; trivial ones apart. A group
    may have members in several experiments."""
    groups: dict[tuple[str, str, str, bool], list[dict[str, Any]]] = {}
    for row in rows:
        experiment = row["counted_in"] or row["experiment"]
        groups.setdefault((row["paper"], experiment, row["group"], row["trivial"]), []).append(row)
    found = []
    for (paper, experiment, group, trivial), members in groups.items():
        judged = [row["verdict"] for row in members if row["verdict"] != NOT_COMPARABLE]
        verdict = min(judged, key=WEAKEST_FIRST.index) if judged else NOT_COMPARABLE
        one = {"paper": paper, "experiment": experiment, "group": group, "trivial": trivial}
        found.append(one | {"verdict": verdict, "missed": any(row["missed"] for row in members)})
    return found


def headline(rows: Iterable[dict[str, Any]]) -> dict[str, int]:
    """How many statements, each counted once, got which verdict; those that are trivially true are counted apart.

    "another factor": how many of those with the direction only state a number that ours misses.
    """
    groups = counted(rows)
    found = Counter(group["verdict"] for group in groups if not group["trivial"])
    trivial = [group for group in groups if group["trivial"]]
    held = sum(group["verdict"] in (FACTOR, DIRECTION) for group in trivial)
    missed = sum(group["missed"] and group["verdict"] == DIRECTION and not group["trivial"] for group in groups)
    return {name: found[name] for name in VERDICTS} | {
        "another factor": missed,
        "trivial": len(trivial),
        "trivial that hold": held,
    }


def shuffled(
    experiments: Iterable[tuple[str, Experiment, Curves]], rules: Rules = CURRENT, shuffles: int = SHUFFLES
) -> dict[str, dict[str, float]]:
    """By paper, how many statements would hold if the labels of the matchers were exchanged: what agreement alone is
    worth.

    Only experiments that compare several matchers take part; `judged` and `held` are means over the shuffles, `true` is
    how many of the same statements hold with the right labels.
    """
    return by_paper((one[0], shuffled_one(*one, rules, shuffles)) for one in experiments)


def shuffled_one(
    paper: str, experiment: Experiment, curves: Curves, rules: Rules = CURRENT, shuffles: int = SHUFFLES
) -> dict[str, float]:
    names = [name for name in experiment.lanes(1) if name != ENGINE]
    if len(names) < 2:
        return {}
    generator = np.random.default_rng([1, *f"{paper} {experiment.name}".encode()])
    found = []
    for _ in range(shuffles):
        other = curves.renamed(_exchange(names, generator))
        found.append(_holding(verdicts(paper, experiment, other, rules)))
    held, judged = np.mean(found, axis=0).tolist()
    true, of = _holding(verdicts(paper, experiment, curves, rules))
    return {"held": held, "judged": judged, "true": float(true), "true judged": float(of)}


def by_paper(parts: Iterable[tuple[str, dict[str, float]]]) -> dict[str, dict[str, float]]:
    """The baselines of experiments, added up for each paper."""
    found: dict[str, list[dict[str, float]]] = {}
    for paper, part in parts:
        found.setdefault(paper, []).append(part)
    return {paper: add_up(own) for paper, own in found.items()}


def add_up(parts: Iterable[dict[str, float]]) -> dict[str, float]:
    parts = list(parts)
    return {name: sum(part.get(name, 0.0) for part in parts) for name in ("held", "judged", "true", "true judged")}


def baseline_text(shuffled: dict[str, float]) -> str:
    """
    >>> baseline_text({"held": 3.0, "judged": 10.0, "true": 6.0, "true judged": 10.0})
    'With the labels of the matchers shuffled, 30% of the statements hold; with the right ones, 60%.'
    """
    share = shuffled["held"] / max(1.0, shuffled["judged"])
    true = shuffled["true"] / max(1.0, shuffled["true judged"])
    shuffled_text = f"With the labels of the matchers shuffled, {share:.0%} of the statements hold"
    return f"{shuffled_text}; with the right ones, {true:.0%}."


def _exchange(names: list[str], generator: np.random.Generator) -> dict[str, str]:
    """A random exchange of the labels that leaves not all in place."""
    while True:
        order = generator.permutation(len(names))
        if (order != np.arange(len(names))).any():
            return {names[i]: names[j] for i, j in enumerate(order.tolist())}


def _holding(rows: list[dict[str, Any]]) -> tuple[int, int]:
    groups = [group["verdict"] for group in counted(rows) if not group["trivial"]]
    return sum(v in (FACTOR, DIRECTION) for v in groups), sum(v != NOT_COMPARABLE for v in groups)


def values(paper: str, experiment: Experiment, curves: Curves, rules: Rules = CURRENT) -> list[list[Any]]:
    """A row for each value, with its interval: see VALUES."""
    rows: list[list[Any]] = []
    for x, point, n in zip(curves.xs, curves.points, curves.n, strict=True):
        for matcher, metrics in point.items():
            for metric, samples in metrics.items():
                low, high = rules.interval(samples)
                rows.append([paper, experiment.name, str(x), n, matcher, metric, float(samples[0]), low, high])
    return rows


def values_table(rows: list[list[Any]]) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or [()] * len(VALUES)
    return pa.table([pa.array(c, kind) for c, kind in zip(columns, VALUES.types, strict=True)], schema=VALUES)


def before() -> list[dict[str, str]]:
    """The verdicts of the report that was published before the rules: small scale, one seed."""
    text = resources.files("research.papers").joinpath("verdicts_before_the_rules.csv").read_text("utf-8")
    return list(csv.DictReader(text.splitlines()))


def changed(rows: Iterable[dict[str, Any]]) -> list[dict[str, str]]:
    """Every claim whose verdict differs from that report, or that is new or gone, with the reason."""
    rows = list(rows)
    covered = {(row["paper"], row["experiment"]) for row in rows}
    old = {(row["paper"], row["experiment"], row["claim"]): row for row in before()}
    found = []
    for row in rows:
        earlier = old.pop((row["paper"], row["experiment"], row["was"] or row["claim"]), None)
        if earlier is None:
            found.append(_change(row, "", row["correction"] or "The statement was left out before."))
        elif row["verdict"] not in BEFORE.get(earlier["verdict"], (NOT_COMPARABLE,)) or (
            earlier["verdict"] == "holds" and row["missed"]
        ):
            found.append(_change(row, earlier["verdict"], _why(row, earlier)))
    for (paper, experiment, claim), row in old.items():
        if (paper, experiment) in covered:
            gone = {"paper": paper, "experiment": experiment, "claim": claim, "verdict": "", "ours": ""}
            found.append(_change(gone, row["verdict"], "Stated in another form now."))
    return found


def _change(row: dict[str, Any], was: str, why: str) -> dict[str, str]:
    kept = {key: str(row[key]) for key in ("paper", "experiment", "claim")}
    return kept | {"before": was, "now": row["verdict"], "ours": row["ours"], "reason": why}


def _why(row: dict[str, Any], earlier: dict[str, str]) -> str:
    reasons = [row["correction"], row["reason"]]
    if not any(reasons):
        reasons = ["Judged by fixed rules, with more events and seeds."]
    if earlier["ours"] not in ("", "-"):
        reasons.append(f"Before: {earlier['ours']}.")
    return " ".join(reason for reason in reasons if reason)
