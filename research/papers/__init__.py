"""The experiments of the five papers, as tables: what they varied (PAPER.toml), and what they claimed (PAPER.csv).

The words of a table are the fields of `Paper`, `Experiment`, `Plot` and `Claim` (experiment.py). What is calculated is
an expression of `x`, the value of the axis (in a formula of the paper, the number of subscriptions). The check of a
claim is a call of claims.py, in which

    where='x <= 0.3'      leaves out places of the axis
    at='size 1000000'     is where there are that many subscriptions, or the largest number at a smaller scale
    'rein[-1]'            is the last of a matcher's curves, one per series
"""

from __future__ import annotations

import ast
import csv
import inspect
import re
import tomllib
from collections.abc import Callable
from importlib import resources
from typing import Any

from research import claims
from research.claims import Check
from research.experiment import SCALES, Claim, Experiment, Paper, Plot

NAMES = ("rein", "symmetric", "index-count", "pri-rein", "dexin")
CURVE = re.compile(r"(.+)\[(-?\d+)\]")


def _paper(name: str) -> Paper:
    declared = tomllib.loads(_text(f"{name}.toml"))
    findings = declared.get("findings", {})
    stated: dict[str, list[Claim]] = {}
    for row in csv.DictReader(_text(f"{name}.csv").splitlines()):
        stated.setdefault(row["experiment"], []).append(_claim(row, findings))
    experiments = declared["experiments"]
    if unknown := set(stated) - set(experiments):
        raise ValueError(f"{name}.csv has claims of experiments that {name}.toml has not: {', '.join(unknown)}")
    own = tuple(_experiment(key, entry, tuple(stated.get(key, ()))) for key, entry in experiments.items())
    return Paper(name, declared["title"], declared["about"], own, declared["events"])


def _text(file: str) -> str:
    return resources.files("research.papers").joinpath(file).read_text("utf-8")


def _experiment(name: str, entry: dict[str, Any], stated: tuple[Claim, ...]) -> Experiment:
    entry = dict(entry)
    entry |= {key: tuple(entry[key]) for key in ("matchers", "measures") if key in entry}
    entry |= {key: _parameters(entry[key]) for key in ("set", "events") if key in entry}
    entry["values"] = {scale: tuple(entry["values"][scale]) for scale in SCALES}
    entry["plots"] = tuple(_plot(dict(plot)) for plot in entry["plots"])
    return Experiment(name=name, claims=stated, **entry)


def _plot(entry: dict[str, Any]) -> Plot:
    formulas = {matcher: expression(text) for matcher, text in entry.pop("formulas", {}).items()}
    return Plot(**entry, formulas=formulas)


def _parameters(entry: dict[str, Any]) -> Callable[[Any], dict[str, Any]]:
    """Of a workload: texts are expressions, anything else is the value itself."""
    made = {key: expression(value) if isinstance(value, str) else value for key, value in entry.items()}
    return lambda x: {key: value(x) if callable(value) else value for key, value in made.items()}


def expression(text: str) -> Callable[[Any], Any]:
    """
    >>> expression("2 * x")(5), expression("x <= 0.3")(0.5)
    (10, False)
    """
    code = compile(text, "an expression of x", "eval")
    return lambda x: eval(code, {"__builtins__": {}}, {"x": x})


def _claim(row: dict[str, str], findings: dict[str, str]) -> Claim:
    row.pop("experiment")
    finding, check = row.pop("finding"), parse_check(row.pop("check"))
    trivial = row.pop("trivial") == "yes"
    return Claim(row.pop("claim"), row.pop("said"), check, findings[finding] if finding else "", trivial=trivial, **row)


def parse_check(text: str) -> Check:
    """A call of claims.py, as it is written in a table."""
    call = ast.parse(text, mode="eval").body
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        raise ValueError(f"{text} is no check")
    make = getattr(claims, call.func.id)
    named = {part.arg: ast.literal_eval(part.value) for part in call.keywords if part.arg}
    given = inspect.signature(make).bind(*map(ast.literal_eval, call.args), **named)
    values = given.arguments
    if values.get("where"):
        values["where"] = expression(values["where"])
    at = values.get("at")
    if isinstance(at, str) and at.startswith("size "):
        return claims.at_size(int(at.removeprefix("size ")), lambda place: _with(make, given, {"at": place}))
    curves = {
        key: found for key, value in values.items() if isinstance(value, str) and (found := CURVE.fullmatch(value))
    }
    if curves:
        matcher, places = next(iter(curves.values()))[1], [int(found[2]) for found in curves.values()]
        return claims.of_series(
            matcher, lambda *labels: _with(make, given, dict(zip(curves, labels, strict=True))), *places
        )
    check: Check = make(*given.args, **given.kwargs)
    return check


def _with(make: Callable[..., Check], given: inspect.BoundArguments, other: dict[str, Any]) -> Check:
    changed = inspect.BoundArguments(given.signature, {**given.arguments, **other})
    return make(*changed.args, **changed.kwargs)


PAPERS: dict[str, Paper] = {name: _paper(name) for name in NAMES}
