"""DEXIN: dynamic exclusive and inclusive methods (Fan, Liu, Tang; FGCS 2017), figures 2-17.

All of 10 attributes constrained, 10% of the constraints equalities, ranges 0.2-0.8 wide, 10^4 distinct values.
"""

from __future__ import annotations

from hitbox.experiments.claims import (
    against,
    best,
    falls,
    faster,
    flat,
    gap_closes,
    gap_opens,
    least_against,
    least_growth,
    least_mean,
    mean_ratio,
    not_rising,
    ratio,
    rises,
    steeper,
)
from hitbox.experiments.declare import Claim, Experiment, Paper, Plot, by, each

TITLES = {
    "tama": "TAMA",
    "h-tree": "H-Tree",
    "be-tree": "BE-Tree",
    "opindex": "OpIndex",
    "rein": "REIN",
    "dexin": "DEXIN",
}
OTHERS = {name: title for name, title in TITLES.items() if name != "dexin"}
FATTER = {name: title for name, title in OTHERS.items() if name != "rein"}
ALL = tuple(TITLES)
N = by(300, 30_000, 1_000_000)
MORE = by(300, 100_000, 1_000_000)
"""Where 30,000 are too few beside the 20,000 buckets that REIN sweeps whatever they hold."""
SIZES = by(
    (200, 400),
    (20_000, 40_000, 60_000, 80_000, 100_000),
    (250_000, 500_000, 750_000, 1_000_000, 1_250_000, 1_500_000, 1_750_000),
)
ATTRIBUTES = by((2, 6), (2, 4, 6, 10, 14, 18, 22), (2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22))
WIDTHS = by((0.2, 0.6), (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7), (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9))
SKEWED = {"distribution": "zipf", "event_distribution": "zipf", "skew": 1.0}

EARLY_END = (
    "Both index a few attributes and check a candidate constraint by constraint until one fails, which happens after "
    "two or three however many there are; more attributes also mean fewer matches. So it does not slow down here."
)
CORRELATED = (
    "DEXIN's cost model takes attributes for independent. Here the subscriptions that match are made to match on all "
    "of them, so that with high rates the inclusive part finds far more left at each attribute than the plan expects; "
    "and looking at a box costs about twice as much as sweeping past one on this machine; the model counts both 1."
)
STILL_FAILING = (
    "Between 0.1% and 20% the share of subscriptions that must be excluded only falls from 99.9% to 80%, and writing "
    "out the matches makes up for it."
)
COPIES = (
    "Ranges that begin near the end of the domain cross fewer cells, so H-Tree makes fewer copies of them (at width "
    "0.5 it takes half the memory) and is a tenth faster."
)
PARTITIONED = (
    "Our BE-Tree is faster than the paper's on narrow ranges, where its partitions hold little, so that it has further "
    "to rise; in level it stays beside TAMA."
)
EQUALS = "BE-Tree gains from equalities as the paper says, but more: it passes DEXIN between 30% and 50%, not at 60%."
TWICE = (
    "Every structure is charged with the bounds that it checks candidates by. BE-Tree keeps them and one entry a "
    "subscription; DEXIN keeps both ends of every constraint in its slots as well, as the paper's 2NM says."
)


def slower_under_zipf(reference: str) -> tuple[Claim, ...]:
    """The paper says it of all six; `reference` is the same experiment with uniform values."""
    return each(
        TITLES, "{} slows down under Zipf", "to some extent", lambda name: against(reference, [name]), finding=COPIES
    )


SUBSCRIPTIONS = Experiment(
    name="subscriptions",
    title="Number of subscriptions (M=10)",
    axis="subscriptions",
    workload="dexin",
    matchers=ALL,
    n=by(0, 0, 0),
    values=SIZES,
    measures=("match", "upkeep"),
    plots=(
        Plot("figure 2", "match"),
        Plot("figure 3", "match_std"),
        Plot("figure 13", "build_total"),
        Plot("figure 14", "memory"),
    ),
    claims=(
        Claim("DEXIN is the fastest at every N", "figure 2", best("dexin", ALL)),
        Claim("DEXIN's time as a share of TAMA's", "20.18%", mean_ratio("dexin", "tama", 0.2018)),
        Claim("DEXIN's time as a share of H-Tree's", "64.28%", mean_ratio("dexin", "h-tree", 0.6428)),
        Claim("DEXIN's time as a share of BE-Tree's", "68.36%", mean_ratio("dexin", "be-tree", 0.6836)),
        Claim("DEXIN's time as a share of OpIndex's", "26.4%", mean_ratio("dexin", "opindex", 0.264)),
        Claim("DEXIN's time as a share of REIN's", "38.49%", mean_ratio("dexin", "rein", 0.3849)),
        Claim("Reduction against TAMA (N = 1M)", "82.13%: 5.6 times", faster("dexin", "tama", 5.6)),
        Claim("Reduction against BE-Tree (N = 0.75M)", "63.01%: 2.7 times", faster("dexin", "be-tree", 2.7)),
        *each(TITLES, "{} slows down with N", "figure 2", rises),
        *each(
            TITLES,
            "{}: the standard deviation grows with N",
            "figure 3",
            lambda name: rises(name, metric="match_std"),
        ),
        Claim("DEXIN is least sensitive to N", "figure 2", least_growth("dexin", ALL)),
        Claim(
            "DEXIN varies least from event to event",
            "std 1.52 against 5.74 to 36.02",
            best("dexin", ALL, "match_std"),
        ),
        Claim("DEXIN varies less than TAMA", "1.52 / 27.49", mean_ratio("dexin", "tama", 0.055, "match_std")),
        Claim("DEXIN varies less than H-Tree", "1.52 / 36.02", mean_ratio("dexin", "h-tree", 0.042, "match_std")),
        Claim("DEXIN varies less than BE-Tree", "1.52 / 5.74", mean_ratio("dexin", "be-tree", 0.26, "match_std")),
        Claim("DEXIN varies less than OpIndex", "1.52 / 13.39", mean_ratio("dexin", "opindex", 0.11, "match_std")),
        Claim("DEXIN varies less than REIN", "1.52 / 11.87", mean_ratio("dexin", "rein", 0.13, "match_std")),
        *each(
            FATTER,
            "DEXIN subscribes faster than {}",
            "figure 13",
            lambda name: best("dexin", ("dexin", name), "build"),
        ),
        Claim(
            "DEXIN subscribes slightly slower than REIN",
            "figure 13",
            ratio("dexin", "rein", 1.2, "build", 1.0),
        ),
        Claim("DEXIN takes slightly more memory than REIN", "figure 14", ratio("dexin", "rein", 1.2, "memory", 1.0)),
        *each(
            FATTER,
            "DEXIN takes less memory than {}",
            "figure 14",
            lambda name: best("dexin", ("dexin", name), "memory"),
            TWICE,
        ),
    ),
)

DIMENSIONS = Experiment(
    name="dimensions",
    title="Number of attributes (N=1M)",
    axis="attributes",
    workload="dexin",
    matchers=ALL,
    n=N,
    values=ATTRIBUTES,
    set=lambda m: {"m": m},
    plots=(Plot("figure 4", "match"), Plot("figure 5", "match_std")),
    claims=(
        Claim("TAMA slows down with M", "figure 4", rises("tama")),
        Claim("BE-Tree slows down with M", "figure 4", rises("be-tree"), EARLY_END),
        Claim("OpIndex slows down with M", "figure 4", rises("opindex")),
        Claim("REIN slows down with M", "figure 4", rises("rein")),
        Claim("H-Tree speeds up to M = 6", "figure 4", falls("h-tree", where=lambda m: m <= 6)),
        Claim("H-Tree slows down beyond M = 6", "figure 4", rises("h-tree", where=lambda m: m >= 6), EARLY_END),
        Claim(
            "DEXIN hardly changes from M = 6 on",
            "nearly invariant",
            not_rising("dexin", where=lambda m: m >= 6),
        ),
        Claim(
            "DEXIN varies least from event to event",
            "std 1.7 against 6.17 to 39.32",
            least_mean("dexin", ALL, "match_std"),
        ),
        Claim("DEXIN varies less than TAMA", "1.7 / 28.13", mean_ratio("dexin", "tama", 0.060, "match_std")),
        Claim("DEXIN varies less than H-Tree", "1.7 / 39.32", mean_ratio("dexin", "h-tree", 0.043, "match_std")),
        Claim("DEXIN varies less than BE-Tree", "1.7 / 6.17", mean_ratio("dexin", "be-tree", 0.276, "match_std")),
        Claim("DEXIN varies less than OpIndex", "1.7 / 11.38", mean_ratio("dexin", "opindex", 0.149, "match_std")),
        Claim("DEXIN varies less than REIN", "1.7 / 11.47", mean_ratio("dexin", "rein", 0.148, "match_std")),
        *each(
            OTHERS,
            "{} varies more with more attributes",
            "figure 5",
            lambda name: rises(name, metric="match_std"),
            "It varies with the number of matches, and that falls as attributes are added.",
        ),
        Claim("Fewer match with more attributes", "section 4.1.2", falls("hitbox", metric="hits")),
        Claim("DEXIN slows down slightly up to M = 6", "figure 4", rises("dexin", where=lambda m: m <= 6)),
        Claim("DEXIN varies less with more attributes", "figure 5", falls("dexin", metric="match_std")),
    ),
)

RANGES = Experiment(
    name="widths",
    title="Width of the ranges (N=1M, M=10)",
    axis="width of a range, share of the domain",
    workload="dexin",
    matchers=ALL,
    n=N,
    values=WIDTHS,
    set=lambda w: {"width": w, "width_max": 0.0},
    plots=(Plot("figure 6", "match"), Plot("spread over the width", "match_std")),
    claims=(
        Claim("TAMA slows down rapidly", "figure 6", rises("tama", by=2)),
        Claim("BE-Tree slows down less than TAMA", "slowly", steeper("tama", "be-tree"), PARTITIONED),
        Claim("OpIndex slows down less than TAMA", "slowly", steeper("tama", "opindex")),
        Claim("H-Tree is the fastest up to 0.3", "figure 6", best("h-tree", ALL, where=lambda w: w <= 0.3)),
        Claim(
            "H-Tree then slows down exponentially",
            "figure 6",
            rises("h-tree", by=4, where=lambda w: 0.3 <= w <= 0.7),
        ),
        Claim("REIN speeds up with the width", "figure 6", falls("rein")),
        Claim("DEXIN keeps nearly unchanged", "figure 6", flat("dexin")),
        Claim(
            "DEXIN varies least from event to event",
            "std 1.09 against 7.33 to 35.64",
            least_mean("dexin", ALL, "match_std"),
        ),
        Claim("DEXIN varies less than TAMA", "1.09 / 23.25", mean_ratio("dexin", "tama", 0.047, "match_std")),
        Claim("DEXIN varies less than H-Tree", "1.09 / 35.64", mean_ratio("dexin", "h-tree", 0.031, "match_std")),
        Claim("DEXIN varies less than BE-Tree", "1.09 / 8.13", mean_ratio("dexin", "be-tree", 0.134, "match_std")),
        Claim("DEXIN varies less than OpIndex", "1.09 / 12.02", mean_ratio("dexin", "opindex", 0.091, "match_std")),
        Claim("DEXIN varies less than REIN", "1.09 / 7.33", mean_ratio("dexin", "rein", 0.149, "match_std")),
    ),
)

ZIPF_SUBSCRIPTIONS = Experiment(
    name="zipf-subscriptions",
    title="Number of subscriptions, Zipf-distributed constraints",
    axis="subscriptions",
    workload="dexin",
    fixed=SKEWED,
    matchers=ALL,
    n=by(0, 0, 0),
    values=by((200, 400), (20_000, 60_000, 100_000), SIZES["paper"]),
    plots=(Plot("figure 7", "match"),),
    claims=(
        *slower_under_zipf("subscriptions"),
        Claim("DEXIN is affected least", "figure 7", least_against("subscriptions", "dexin", ALL)),
        Claim("DEXIN is the fastest at every N", "figure 7", best("dexin", ALL)),
    ),
)

ZIPF_DIMENSIONS = Experiment(
    name="zipf-dimensions",
    title="Number of attributes, Zipf-distributed constraints",
    axis="attributes",
    workload="dexin",
    fixed=SKEWED,
    matchers=ALL,
    n=N,
    values=by((2, 6), (2, 6, 10, 22), ATTRIBUTES["paper"]),
    set=lambda m: {"m": m},
    plots=(Plot("figure 8", "match"),),
    claims=(
        *slower_under_zipf("dimensions"),
        Claim("DEXIN is affected least", "figure 8", least_against("dimensions", "dexin", ALL)),
    ),
)

ZIPF_WIDTHS = Experiment(
    name="zipf-widths",
    title="Width of the ranges, Zipf-distributed constraints",
    axis="width of a range, share of the domain",
    workload="dexin",
    fixed=SKEWED,
    matchers=ALL,
    n=N,
    values=by((0.2, 0.6), (0.1, 0.3, 0.5), WIDTHS["paper"]),
    set=lambda w: {"width": w, "width_max": 0.0},
    plots=(Plot("figure 9", "match"),),
    claims=(
        *slower_under_zipf("widths"),
        Claim("DEXIN is affected least", "figure 9", least_against("widths", "dexin", ALL)),
    ),
)

CARDINALITIES = Experiment(
    name="cardinalities",
    title="Cardinality of the attribute values (N=1M, M=10)",
    axis="distinct values an attribute",
    workload="dexin",
    matchers=ALL,
    n=MORE,
    values=by((100, 10_000), *((100, 1_000, 10_000, 100_000, 1_000_000),) * 2),
    set=lambda c: {"cardinality": c},
    log_axis=True,
    plots=(Plot("figure 10", "match"),),
    claims=(
        *each(
            TITLES,
            "{} keeps stable from 10^3 on",
            "figure 10",
            lambda name: flat(name, where=lambda c: c >= 1_000),
        ),
        *each(
            TITLES,
            "{} rises very slowly below 10^3",
            "figure 10",
            lambda name: not_rising(name, where=lambda c: c <= 1_000),
            "With few values most buckets are empty, and the others long runs that are quick to read.",
        ),
        Claim("DEXIN is the fastest", "by more than 26.88%", best("dexin", ALL)),
    ),
)

EQUALITIES = Experiment(
    name="equalities",
    title="Share of point constraints (N=1M, M=10)",
    axis="equalities, share of the constraints",
    workload="dexin",
    matchers=ALL,
    n=MORE,
    values=by((0.1, 0.9), (0.1, 0.3, 0.5, 0.7, 0.9), (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)),
    set=lambda share: {"equalities": share},
    plots=(Plot("figure 11", "match"),),
    claims=(
        Claim("TAMA gains from equalities", "figure 11", falls("tama")),
        Claim("H-Tree gains from equalities", "figure 11", falls("h-tree")),
        Claim("BE-Tree gains from equalities", "figure 11", falls("be-tree")),
        Claim("OpIndex gains from equalities", "figure 11", falls("opindex")),
        Claim("REIN keeps nearly flat", "figure 11", flat("rein")),
        Claim("DEXIN keeps nearly flat", "figure 11", flat("dexin")),
        Claim(
            "DEXIN is the fastest below 60%", "figure 11", best("dexin", ALL, where=lambda share: share < 0.6), EQUALS
        ),
    ),
)

RATES = Experiment(
    name="rates",
    title="Matching rate (N=1M, M=10)",
    axis="share of the subscriptions that an event meets",
    workload="dexin",
    matchers=ALL,
    n=MORE,
    values=by((0.01, 0.2), *((0.001, 0.01, 0.05, 0.1, 0.2),) * 2),
    set=lambda rate: {"match_rate": rate},
    log_axis=True,
    plots=(Plot("figure 12", "match"),),
    claims=(
        Claim("TAMA slows down with the rate", "figure 12", rises("tama")),
        Claim("H-Tree slows down with the rate", "figure 12", rises("h-tree")),
        Claim("BE-Tree slows down with the rate", "figure 12", rises("be-tree")),
        Claim("OpIndex slows down with the rate", "figure 12", rises("opindex")),
        Claim("REIN speeds up with the rate", "figure 12", falls("rein"), STILL_FAILING),
        Claim("DEXIN is stable", "figure 12", flat("dexin"), CORRELATED),
        Claim("DEXIN beats BE-Tree on average", "by 42.46%", mean_ratio("dexin", "be-tree", 0.5754)),
        Claim("DEXIN is the fastest", "figure 12", best("dexin", ALL)),
    ),
)

OPTIMAL = "optimal=dexin:plan=optimal"
PLANS = Experiment(
    name="plans",
    title="Near-optimal against optimal plan (N=1M)",
    axis="attributes",
    workload="dexin",
    matchers=("dexin", OPTIMAL),
    n=by(300, 50_000, 1_000_000),
    values=by((2, 6), (2, 4, 6, 10, 14, 18), ATTRIBUTES["paper"]),
    set=lambda m: {"m": m},
    measures=("match", "plan"),
    plots=(
        Plot("figure 15", "plan_cost", log=False),
        Plot("figure 16", "match"),
        Plot("figure 16: finding a plan", "plan_time"),
    ),
    claims=(
        Claim(
            "The costs of the two come closer with more attributes",
            "figure 15",
            gap_closes("dexin", "optimal", "plan_cost"),
        ),
        Claim(
            "From M = 10 on the costs are almost the same",
            "figure 15",
            ratio("dexin", "optimal", 1.0, "plan_cost", 0.99, 1.1, at=10),
        ),
        Claim(
            "Matching time without planning is close at M = 10",
            "figure 16",
            ratio("dexin", "optimal", 1.0, "match", 0.5, 1.3, at=10),
        ),
        Claim("With planning the optimal one is slower", "figure 16", faster("dexin", "optimal", 2)),
        Claim("Its disadvantage grows with M", "exponentially", gap_opens("optimal", "dexin")),
        Claim(
            "Finding the near-optimal plan is negligible",
            "figure 16",
            ratio("dexin", "optimal", 0.01, "plan_time", 0.0, 0.2),
        ),
    ),
)

METHODS = Experiment(
    name="methods",
    title="One method alone (N=1M, M=10)",
    axis="share of the subscriptions that an event meets",
    workload="dexin",
    matchers=("dexin", "exclusive=dexin:plan=exclusive", "inclusive=dexin:plan=inclusive"),
    n=MORE,
    values=RATES.values,
    set=lambda rate: {"match_rate": rate},
    log_axis=True,
    plots=(Plot("figure 17", "match"),),
    claims=(
        Claim("Exclusive alone speeds up with the rate", "figure 17", falls("exclusive")),
        Claim("Inclusive alone slows down with the rate", "figure 17", rises("inclusive")),
        Claim(
            "DEXIN is as fast as the better of the two",
            "figure 17",
            best("dexin", ("dexin", "exclusive", "inclusive")),
            CORRELATED,
        ),
        Claim("DEXIN is steadier than inclusive alone", "figure 17", steeper("inclusive", "dexin"), CORRELATED),
    ),
)

PAPER = Paper(
    "dexin",
    "DEXIN (FGCS 2017)",
    "Java on a 2.8 GHz Xeon, 96 GB; 0.25-1.75M subscriptions, 1000 events.",
    (
        SUBSCRIPTIONS,
        DIMENSIONS,
        RANGES,
        ZIPF_SUBSCRIPTIONS,
        ZIPF_DIMENSIONS,
        ZIPF_WIDTHS,
        CARDINALITIES,
        EQUALITIES,
        RATES,
        PLANS,
        METHODS,
    ),
)
