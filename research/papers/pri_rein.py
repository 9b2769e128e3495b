"""Pri-REIN: prioritised event matching on top of REIN (figures 4-7 and 11-14, tables 2-8).

5 of 50 attributes constrained, width 0.25, 500k subscriptions. Five times of each event: preparing, matching, gap,
interval and ending time, and the determining time of each match (matchers/metrics.py).
"""

from __future__ import annotations

from hitbox.matchers.sending import WAYS
from research.claims import (
    absolute,
    best,
    costs_more,
    doubling,
    equal,
    exponential,
    faster,
    flat,
    follows,
    least,
    least_growth,
    linear,
    loses_less,
    matched,
    negligible,
    no_more,
    rises,
    share,
    steeper,
    strongly_follows,
    worst,
)
from research.curves import At
from research.experiment import APPROXIMATE_TAMA, Claim, Experiment, Paper, Plot, by, each

TITLES = {"simple": "Simple", "siena": "Siena", "tama": "Tama", "h-tree": "H-tree", "rein": "Rein"}
PRIORITISED = {"pri-rein": "Pri-Rein", "pri-rein-s": "Pri-Rein-S"}
ALL = tuple(TITLES)
REIN = "rein=rein:scan=bits"
"""The paper's output stage looks at one bit after the other, and so does Pri-Rein's; ours would skip whole words."""
MATCHERS = ("simple", "siena", APPROXIMATE_TAMA, "h-tree", REIN)

CHEAP_BITS = (
    "Looking at a bit takes less than a nanosecond here, 94 in the paper (47 ms for 500,000), so that noting the "
    "matches, which grow with the selectivity, is not small beside it."
)
FEW_STEPS = (
    "While the selectivity grows fortyfold, the share of the constraints that hold only doubles, from 40% to 83%. The "
    "work of all five follows the constraints, and no time grows in proportion to the matches."
)
LONGER = "A bucket holds fewer constraints the more attributes there are, so that it fits a nearer cache."
ONE_BY_ONE = (
    "Rein reads 64 bits at once and looks at each in 0.8 ns; Pri-Rein must find each bit by its number first, which "
    "takes it 1.4. That is little beside the 94 that a bit takes in the paper, but not here."
)
BY_LOT = (
    "In the order of selectivity bits lie here and there, and looking at them takes 8% longer than in the order of "
    "arrival, which is more than finding matches early saves; a bit takes a hundred times as long in the paper."
)
MACHINE = "Both vary by a few per cent of their time here, which is what the machine adds from one event to the next."
SHORTER = (
    "Siena determines its first match only after half of its time here (31% in the paper), and a counter costs it some "
    "ten nanoseconds, not hundreds: the same matches share a gap that is no longer than Simple's."
)
FLAT_TAMA = (
    "TAMA is much faster here, relative to the others, than in the paper: its cells are runs of one array. With narrow "
    "ranges (0.25) it counts one constraint in four, and REIN marks the other three."
)
SPREAD = (
    "An event takes Siena longest here (32 ms; H-tree 9), because its counters are a map, and its times vary most. In "
    "the paper it is H-tree that varies most."
)
AT_ONCE = (
    "Simple and H-tree determine their first match within tens of microseconds here, so that there is little to vary."
)
FREE_LEAF = (
    "With 5 of 50 attributes constrained, half of the subscriptions constrain none of the 6 indexed attributes and "
    "share one leaf; that leaf grows with the number of attributes, while the number of leaves to visit stays."
)
FEW_COPIES = (
    "Of 5 constraints on 50 attributes, 0.6 on average are on one of the 6 indexed attributes. So wider ranges put a "
    "subscription into few more leaves, and an event looks at each subscription once at most."
)
AT_THE_END = "Rein and Tama end in 0.05 ms here, and either varies by about a hundredth of a millisecond."
HANDED_OVER = (
    "Most of ending is handing the matches over to Python, 0.05 ms whichever the algorithm (H-tree and Siena also look "
    "at what is left after the last match). That is less than the paper's 0.11 ms for Rein, but the match before it "
    "takes milliseconds, not hundreds of them."
)
OUT_OF_CACHE = (
    "With 100,000 subscriptions most of what is read lies in the caches, with a million it does not. The gap time per "
    "subscription rises from 16 to 25 ns for H-tree, and from 48 to 137 ns for Siena, whose counters are a map."
)
CELLS = (
    "Tama visits 14 cells an attribute, whether they hold anything or not: with so few subscriptions that is most of "
    "its time, with the paper's it would not be."
)
LOOKED_UP = (
    "Ours finds an event's attribute by its number, so the attributes that a subscription does not constrain cost "
    "nothing; the paper's time for Simple, which has no index at all, grows with them too."
)
SEND_DOMINATES = (
    "With few matches REIN's marking, which no way of sending can shorten, is most of the time; with many, sending is "
    "(some microseconds per message), and then waiting for the last level to be determined hardly delays the first."
)
SHARED_CORES = (
    "The sending thread and the receivers take turns with matching on two cores, and Python's lock is passed between "
    "the two threads."
)
N = by(1_000, 500_000, 500_000)


def varies_least_and_most(
    metric: str, least_ms: str, most: str, most_ms: str, finding: str = "", table: str = "table 2"
) -> tuple[Claim, Claim]:
    """What a table of standard deviations says: Rein's is always the smallest."""
    std = f"{metric}_std"
    return (
        Claim(f"Rein's {metric} time varies least", f"{table}: {least_ms} ms", least("rein", ALL, std), finding),
        Claim(f"{TITLES[most]}'s {metric} time varies most", f"{table}: {most_ms} ms", worst(most, ALL, std), finding),
    )


def shares(part: str, said: dict[str, float], correction: str = "") -> tuple[Claim, ...]:
    """A part of the matching time as a share of it, algorithm by algorithm. Gap and preparing time add up to nearly all
    of it, so that they are one statement."""
    return tuple(
        Claim(
            f"{part.capitalize()} / matching time of {TITLES[name]}",
            f"{100 * value:.3g}%",
            share(name, part, "matching", value),
            HANDED_OVER if part == "ending" or name in ("simple", "h-tree") else "",
            group="" if part == "ending" else f"parts of {name}",
            correction=correction,
        )
        for name, value in said.items()
    )


def doubled(axis: str, said: dict[str, tuple[str, float]], findings: dict[str, str]) -> tuple[Claim, ...]:
    """By how much the gap time grows when the axis doubles: the paper's words and its number."""
    return tuple(
        Claim(
            f"{TITLES[name]}: growth of gap time when {axis} doubles",
            text,
            doubling(name, "gap", value),
            findings.get(name, ""),
            correction="The range that counted as the paper's growth was up to 170 points wide.",
        )
        for name, (text, value) in said.items()
    )


def in_order(figures: tuple[str, ...], at: At, *names: str) -> tuple[Claim, ...]:
    """Rein knows no priorities; Pri-Rein determines the urgent matches first."""
    what = "urgency_vs_determining"
    return (
        Claim("Rein: priority and determining time are unrelated", figures[0], follows("rein", 0, what, at)),
        *(
            Claim(f"{PRIORITISED[name]}: strongly correlated", figures[-1], strongly_follows(name, what, at))
            for name in names
        ),
    )


def costs(title: str, metric: str, at: At, said: dict[str, tuple[str, float]], group: str = "") -> tuple[Claim, ...]:
    """What heeding priorities adds to a time of Rein's."""
    return tuple(
        Claim(
            f"{title} of {PRIORITISED[name]} against Rein",
            text,
            costs_more(name, "rein", value, metric, at),
            ONE_BY_ONE,
            group=f"{group} {name}" if group else "",
            correction="Up to half more counted as a few per cent more.",
        )
        for name, (text, value) in said.items()
    )


def spreads_more(title: str, said: str, value: float, name: str, at: At = "last") -> Claim:
    return Claim(title, said, faster(name, "rein", value, at, "level_std"), CHEAP_BITS)


def five_metrics(figure: str, spread: str = "") -> tuple[Plot, ...]:
    """The five times of a figure, and their standard deviations where a table has them."""
    times = ("preparing", "ending", "matching", "gap", "interval")
    found = [Plot(f"{figure}: {metric} time", metric) for metric in times]
    if spread:
        found += [Plot(f"{spread}: {metric} time", f"{metric}_std", table=True) for metric in times]
    return tuple(found)


TIMES = Experiment(
    name="times",
    title="Five times of five algorithms (n={n}, m=50, r=5, w=0.25)",
    axis="width of a range",
    workload="pri-rein",
    matchers=MATCHERS,
    n=N,
    values=by(*((0.25,),) * 3),
    set=lambda w: {"width": w},
    measures=("times",),
    plots=five_metrics("figure 4", "table 2"),
    claims=(
        Claim("Share of the subscriptions that an event meets", "about 0.001", matched(0.001, "last"), trivial=True),
        *shares("gap", {"simple": 0.995, "siena": 0.686, "tama": 0.712, "h-tree": 0.991, "rein": 0.149}),
        Claim("Rein has the smallest gap time", "47 ms", best("rein", ALL, "gap")),
        Claim("Gap time of Rein", "47 ms", absolute("rein", "gap", "ms")),
        Claim(
            "Simple needs hardly any preparing",
            "under 5 ms",
            negligible("simple", "preparing", "matching"),
            group="parts of simple",
        ),
        Claim(
            "H-tree needs hardly any preparing",
            "as Simple",
            negligible("h-tree", "preparing", "matching"),
            FREE_LEAF,
            group="parts of h-tree",
        ),
        *shares("preparing", {"siena": 0.308, "tama": 0.288, "rein": 0.851}),
        Claim("Rein matches fastest", "figure 4", best("rein", ALL, "matching"), finding=FLAT_TAMA),
        *shares(
            "ending",
            {"simple": 0.0023, "siena": 0.0062, "tama": 0.0004, "h-tree": 0.0066, "rein": 0.0003},
            "Within twenty points counted as the same share: 1.30% for 0.03%.",
        ),
        Claim("Ending time of Rein", "0.11 ms", absolute("rein", "ending", "ms")),
        Claim("Siena has the largest interval time", "6.03 ms", worst("siena", ALL, "interval"), finding=SHORTER),
        *varies_least_and_most("interval", "0.10", "siena", "26.92", SHORTER),
        *varies_least_and_most("matching", "4.51", "h-tree", "128.84", SPREAD),
        *varies_least_and_most("preparing", "4.56", "siena", "286.34", AT_ONCE),
        *varies_least_and_most("ending", "0.14", "siena", "25.20", AT_THE_END),
        *varies_least_and_most("gap", "0.22", "siena", "303.17", SHORTER),
    ),
)

SUBSCRIPTIONS = Experiment(
    name="subscriptions",
    title="Gap time over the number of subscriptions (m=50, r=5, w=0.25)",
    axis="subscriptions",
    workload="pri-rein",
    matchers=MATCHERS,
    n=by(0, 0, 0),
    values=by((500, 1_000), (100_000, 200_000, 400_000), (100_000, 200_000, 400_000, 600_000, 800_000, 1_000_000)),
    measures=("times",),
    plots=(Plot("figure 5", "gap"), Plot("table 3", "gap_std", table=True)),
    claims=(
        *doubled("n", dict.fromkeys(("simple", "h-tree", "rein"), ("+100%", 1.0)), {"h-tree": OUT_OF_CACHE}),
        *doubled("n", dict.fromkeys(("siena", "tama"), ("+135%", 1.35)), {"siena": OUT_OF_CACHE}),
        Claim(
            "Rein has the least gap time at the largest n",
            "95.4 ms",
            least("rein", ALL, "gap"),
            group="least and largest",
        ),
        Claim(
            "Siena has the largest gap time at the largest n",
            "7346 ms",
            worst("siena", ALL, "gap"),
            SHORTER,
            group="least and largest",
        ),
        Claim(
            "Siena's gap time is a multiple of Rein's",
            "77 times",
            faster("rein", "siena", 77, metric="gap"),
            SHORTER,
            group="least and largest",
        ),
        *varies_least_and_most("gap", "6.3", "siena", "601.3", SHORTER, table="table 3"),
        *each(
            TITLES,
            "{}: the spread of the gap time grows with n",
            "table 3",
            lambda name: rises(name, metric="gap_std"),
            "A few microseconds here: what the machine adds.",
            trivial=True,
        ),
    ),
)

ATTRIBUTES = Experiment(
    name="attributes",
    title="Gap time over the number of attributes (n={n}, r=5, w=0.25)",
    axis="attributes",
    workload="pri-rein",
    matchers=MATCHERS,
    n=N,
    values=by((10, 20), (10, 20, 40, 80), (10, 20, 40, 60, 80, 100)),
    set=lambda m: {"m": m},
    measures=("times",),
    plots=(Plot("figure 6", "gap"), Plot("table 4", "gap_std", table=True)),
    claims=(
        *doubled(
            "m",
            {
                "h-tree": ("+91.5%", 0.915),
                "rein": ("unaffected", 0.0),
                "simple": ("+61.3%", 0.613),
                "siena": ("+14.5%", 0.145),
                "tama": ("+4.6%", 0.046),
            },
            {"h-tree": FREE_LEAF, "simple": LOOKED_UP, "tama": CELLS, "siena": LONGER},
        ),
        Claim(
            "H-tree is most affected: more than Simple",
            "+91.5%",
            steeper("h-tree", "simple", "gap"),
            FREE_LEAF,
            group="most affected",
            was="H-tree is most affected",
            correction="Each rival is compared with it.",
        ),
        *each(
            {name: TITLES[name] for name in ("siena", "tama", "rein")},
            "H-tree is most affected: more than {}",
            "+91.5%",
            lambda name: steeper("h-tree", name, "gap"),
            f"{CELLS} {FREE_LEAF}",
            group="most affected",
        ),
        *varies_least_and_most("gap", "0.2", "siena", "346.7", SHORTER, table="table 4"),
    ),
)

SELECTIVITIES = Experiment(
    name="selectivities",
    title="Gap time over the selectivity (n={n}, m=50, r=5)",
    axis="share of the subscriptions that an event meets",
    workload="pri-rein",
    matchers=MATCHERS,
    n=by(500, 200_000, 500_000),
    values=by((0.01, 0.4), (0.01, 0.05, 0.1, 0.2, 0.4), (0.01, 0.05, 0.1, 0.2, 0.3, 0.4)),
    set=lambda s: {"selectivity": s},
    measures=("times",),
    plots=(Plot("figure 7", "gap"), Plot("table 5", "gap_std", table=True)),
    claims=(
        *each(
            {name: TITLES[name] for name in ("siena", "simple", "tama")},
            "H-tree is most affected: more than {}",
            "exponential",
            lambda name: steeper("h-tree", name, "gap"),
            group="most affected",
        ),
        Claim("H-tree's gap time grows exponentially", "figure 7", exponential("h-tree", "gap"), FEW_COPIES),
        *each(
            {name: TITLES[name] for name in ("simple", "siena", "tama")},
            "{}'s gap time grows",
            "linearly",
            lambda name: linear(name, "gap"),
            FEW_STEPS,
            correction="Any rise counted as linear.",
        ),
        Claim("Rein grows least", "47.0 to 60.0 ms: x1.28", least_growth("rein", ALL, "gap"), FEW_STEPS),
        Claim("Rein has the smallest gap time", "figure 7", best("rein", ALL, "gap")),
        Claim("Rein varies little", "x1.28", flat("rein", metric="gap"), finding=CHEAP_BITS),
        *varies_least_and_most("gap", "3.3", "h-tree", "745,731", table="table 5"),
    ),
)

PRIORITIES = Experiment(
    name="priorities",
    title="Determining time by priority: Rein and Pri-Rein (n={n}, m=50, r=5)",
    axis="share of the subscriptions that an event meets",
    workload="pri-rein",
    matchers=(REIN, "pri-rein"),
    n=N,
    values=by((0.01, 0.1), *((0.001, 0.1, 0.3),) * 2),
    set=lambda s: {"selectivity": s},
    most_events=5_000,
    measures=("times",),
    plots=(
        Plot("figure 11", "levels"),
        *five_metrics("figure 12", "table 7"),
        Plot("table 6: spread within a priority", "level_std", table=True),
    ),
    claims=(
        *in_order(("figure 11a", "figure 11b"), "first", "pri-rein"),
        *costs("Mean determining time", "determining", "first", {"pri-rein": ("+1.35%", 0.0135)}),
        Claim(
            "Standard deviation of all determining times",
            "19.56 / 18.12 ms: +8%",
            costs_more("pri-rein", "rein", 0.08, "determining_std", "first"),
            ONE_BY_ONE,
        ),
        Claim(
            "No obvious difference in the spread of the matching time",
            "11.53 / 12.05 ms",
            equal("pri-rein", "rein", None, "matching_std", "first"),
            MACHINE,
        ),
        Claim(
            "No obvious difference in the spread of the preparing time",
            "10.68 / 11.40 ms",
            equal("pri-rein", "rein", None, "preparing_std", "first"),
            MACHINE,
        ),
        Claim(
            "Gap time of Pri-Rein against Rein",
            "+17.1%",
            costs_more("pri-rein", "rein", 0.171, "gap", "first"),
            ONE_BY_ONE,
        ),
        *costs("Matching time", "matching", "first", {"pri-rein": ("+2.53%", 0.0253)}, "whole"),
        Claim(
            "Preparing takes the same time",
            "almost the same",
            equal("pri-rein", "rein", None, "preparing", "first"),
        ),
        *costs("Last determining time", "last", "first", {"pri-rein": ("331.0 / 322.9 ms: +2.5%", 0.025)}, "whole"),
        spreads_more("Within a priority Rein's determining times spread more", "1.65 times", 1.65, "pri-rein", "first"),
        Claim(
            "Matching time of Pri-Rein against Rein at selectivity 0.1",
            "+2.88%",
            costs_more("pri-rein", "rein", 0.0288, "matching", 0.1),
            ONE_BY_ONE,
        ),
        Claim(
            "Matching time of Pri-Rein against Rein at selectivity 0.3",
            "+9.98%",
            costs_more("pri-rein", "rein", 0.0998, "matching", 0.3),
            ONE_BY_ONE,
        ),
        Claim(
            "Heeding priorities usually costs less than 5% of the throughput",
            "usually less than 5.0%",
            loses_less("pri-rein", "rein", 0.05, "matching", where=lambda s: s <= 0.1),
            ONE_BY_ONE,
        ),
        Claim(
            "The loss grows with the selectivity",
            "2.88% to 9.98%",
            steeper("pri-rein", "rein", "matching"),
            ONE_BY_ONE,
        ),
    ),
)

SELECTIVE = Experiment(
    name="selective",
    title="Pri-Rein-S: selectivity within a priority (n={n}, both ends of a range drawn)",
    axis="constraints per subscription",
    workload="pri-rein-s",
    matchers=(REIN, "pri-rein", "pri-rein-s"),
    n=N,
    values=by(*((5,),) * 3),
    set=lambda r: {"k": r},
    measures=("times",),
    plots=(
        Plot("figure 13", "levels"),
        *five_metrics("figure 14", "table 8"),
        Plot("table 8: last determining time", "last_std", table=True),
    ),
    claims=(
        Claim(
            "Share of the subscriptions that an event meets",
            "0.0825",
            matched(0.0825, "last"),
            trivial=True,
            finding="An interval between two uniform numbers covers a uniform point with probability 1/3, five of them "
            "with 1/3^5 = 0.0041, which is what we measure. The paper's figure does not follow from the workload that "
            "it describes.",
        ),
        *in_order(("figure 13",), "last", "pri-rein", "pri-rein-s"),
        Claim(
            "Pri-Rein-S determines earlier than Pri-Rein (after preparing, which is the same code)",
            "-3.20%",
            faster("pri-rein-s", "pri-rein", 1 / 0.968, metric="waiting"),
            BY_LOT,
        ),
        *costs(
            "Matching time",
            "matching",
            "last",
            {"pri-rein": ("+3.64%", 0.0364), "pri-rein-s": ("+3.40%", 0.034)},
            "whole",
        ),
        Claim(
            "Preparing takes the same time",
            "almost the same",
            equal("pri-rein-s", "rein", None, "preparing"),
        ),
        Claim(
            "Pri-Rein-S ends far later after its last match than Pri-Rein",
            "0.98 ms",
            faster("pri-rein", "pri-rein-s", None, metric="ending"),
        ),
        *costs(
            "Last determining time",
            "last",
            "last",
            {"pri-rein": ("+3.64%", 0.0364), "pri-rein-s": ("+3.01%", 0.0301)},
            "whole",
        ),
        *each(
            PRIORITISED,
            "{}'s gap time exceeds Rein's",
            "figure 14",
            lambda name: faster("rein", name, None, metric="gap"),
        ),
        spreads_more(
            "Within a priority Rein's determining times spread more than Pri-Rein's",
            "15.7 against 4.8",
            3.3,
            "pri-rein",
        ),
        spreads_more(
            "Within a priority Rein's determining times spread more than Pri-Rein-S's",
            "15.7 against 4.2",
            3.7,
            "pri-rein-s",
        ),
    ),
)

SENDING = Experiment(
    name="sending",
    title="Serial, alternate and concurrent sending over loopback sockets (n={n}, m=50, r=5)",
    axis="share of the subscriptions that an event meets",
    workload="pri-rein",
    matchers=tuple(f"{way}=pri-rein:buckets=1000" for way in WAYS),
    n=N,
    values=by((0.01, 0.1), (0.001, 0.01), (0.001, 0.01, 0.05)),
    set=lambda s: {"selectivity": s},
    measures=("sending",),
    log_axis=True,
    engine=False,
    plots=(Plot("figure 2: determining time", "determining"), Plot("figure 2: processing time", "processing")),
    claims=(
        Claim(
            "Serial: a shorter determining time than alternate",
            "section 4.1",
            faster("serial", "alternate", None, metric="determining"),
        ),
        Claim(
            "Serial: a longer processing time than alternate",
            "section 4.1",
            faster("alternate", "serial", None, metric="processing"),
            SEND_DOMINATES,
        ),
        Claim(
            "Concurrent: a shorter processing time than serial",
            "section 4.1",
            faster("concurrent", "serial", None, metric="processing"),
            SEND_DOMINATES,
        ),
        Claim(
            "Concurrent: no longer determining time than serial",
            "without sacrificing determining time",
            no_more("concurrent", "serial", "determining"),
            SHARED_CORES,
        ),
        Claim(
            "Concurrent: a shorter determining time than alternate",
            "section 4.1",
            faster("concurrent", "alternate", None, metric="determining"),
        ),
    ),
)

PAPER = Paper(
    "pri-rein",
    "Pri-REIN",
    "C++ on 2.4 GHz cores and 32 GB; 500k subscriptions, 500 events (5000 for Pri-Rein).",
    (TIMES, SUBSCRIPTIONS, ATTRIBUTES, SELECTIVITIES, PRIORITIES, SELECTIVE, SENDING),
    events=500,
)
