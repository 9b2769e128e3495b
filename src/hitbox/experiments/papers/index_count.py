"""Index-Count: a count matching algorithm with constraint covering and a hash index (figure 3, the only experiment)."""

from __future__ import annotations

from hitbox.experiments.claims import best, least_growth, rises, steeper, worst
from hitbox.experiments.experiment import Claim, Experiment, Paper, Plot, by, each

TITLES = {"simple": "Linear comparison", "counting": "Counting", "index-count": "Index-Count"}
ALL = tuple(TITLES)
SHARED = (
    "In time it does, as the row on the least decline says; by factors the two grow alike. Subscriptions share "
    "constraints here: the more there are, the fewer new ones come in, and those are what Counting tests one by one. "
    "Counting the owners of those that hold grows with n in both."
)

SUBSCRIPTIONS = Experiment(
    name="subscriptions",
    title="Number of subscriptions",
    axis="subscriptions",
    workload="index-count",
    matchers=ALL,
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

PAPER = Paper(
    "index-count",
    "Index-Count",
    "Pentium IV 3.0 GHz, 2 GB; the paper gives no parameters of its workload: ours is `index-count`, constraints "
    "<=, >= and = on 4 of 10 attributes that many subscriptions share.",
    (SUBSCRIPTIONS,),
    events=1_000,
)
