"""Index-Count: a count matching algorithm with constraint covering and a hash index (figure 3, the only experiment)."""

from __future__ import annotations

from research.claims import best, faster, least_growth, rises, steeper, worst
from research.experiment import Claim, Experiment, Paper, Plot, by, each

TITLES = {"simple": "Linear comparison", "counting": "Counting", "index-count": "Index-Count"}
ALL = tuple(TITLES)
MATCHERS = ("simple", "counting", "index-count=index-count:types=4")
"""Attributes spread over four types, the first level of the paper's index."""
SHARED = (
    "In time it does, as the row on the least decline says; by factors the two grow alike. Subscriptions share "
    "constraints here: the more there are, the fewer new ones come in, and those are what Counting tests one by one. "
    "Counting the owners of those that hold grows with n in both."
)

FEW_TESTS = (
    "Counting tests each distinct constraint once. There are only some hundreds of them here, so that there is next to "
    "nothing to gain; either spends its time on counting the subscriptions of those that hold."
)

SUBSCRIPTIONS = Experiment(
    name="subscriptions",
    title="Number of subscriptions",
    axis="subscriptions",
    workload="index-count",
    matchers=MATCHERS,
    n=by(0, 0, 0),
    values=by(
        (500, 1_000),
        (10_000, 25_000, 50_000, 100_000, 200_000, 400_000),
        (10_000, 50_000, 100_000, 250_000, 500_000, 1_000_000),
    ),
    plots=(Plot("figure 3", "match"),),
    claims=(
        Claim("Linear comparison is the slowest", "figure 3", worst("simple", ALL)),
        Claim(
            "Index-Count is faster than counting",
            "figure 3",
            best("index-count", ("index-count", "counting")),
            group="fastest",
        ),
        Claim("Index-Count is the fastest of the three", "figure 3", best("index-count", ALL), group="fastest"),
        *each(TITLES, "{} slows down with n", "figure 3", rises, trivial=True),
        Claim("Index-Count declines least with n", "figure 3", least_growth("index-count", ALL), group="declines"),
        Claim(
            "Linear comparison declines more than Index-Count",
            "figure 3",
            steeper("simple", "index-count"),
            SHARED,
            group="declines",
        ),
        Claim(
            "Counting declines more than Index-Count",
            "figure 3",
            steeper("counting", "index-count"),
            SHARED,
            group="declines",
        ),
    ),
)

VALUES = by((10, 1_000), *((10, 100, 1_000, 10_000, 100_000),) * 2)
DISTINCT = Experiment(
    name="distinct",
    title="Distinct values per attribute, up to 30 times as many distinct constraints (n={n})",
    axis="distinct values per attribute",
    workload="index-count",
    matchers=MATCHERS,
    n=by(500, 100_000, 100_000),
    values=VALUES,
    set=lambda cardinality: {"cardinality": cardinality},
    log_axis=True,
    plots=(Plot("the workload that the paper leaves open", "match"),),
    claims=(
        Claim(
            "Index-Count is faster than counting where subscriptions share most constraints",
            "figure 3; the paper does not say how many constraints are distinct",
            faster("index-count", "counting", None, "first"),
            FEW_TESTS,
            group="whatever is shared",
        ),
        Claim(
            "Index-Count is faster than counting where they share few",
            "figure 3; the paper does not say how many constraints are distinct",
            faster("index-count", "counting", None, "last"),
            group="whatever is shared",
        ),
        Claim(
            "Index-Count gains on counting as more constraints are distinct",
            "section 3: constraints that hold are found, not tested",
            steeper("counting", "index-count"),
        ),
    ),
)

PAPER = Paper(
    "index-count",
    "Index-Count",
    "Pentium IV 3.0 GHz, 2 GB; the paper gives no parameters of its workload: ours is `index-count`, constraints "
    "<=, >= and = on 4 of 10 attributes that many subscriptions share.",
    (SUBSCRIPTIONS, DISTINCT),
    events=1_000,
)
