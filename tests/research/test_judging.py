"""The rules, the checks on curves made by hand, what is counted, and the shuffled baseline."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from research import claims, judging, rules
from research.claims import judge
from research.curves import BESIDE, Curves
from research.errors import BenchError
from research.experiment import Claim, Experiment, by
from research.papers import PAPERS, parse_check
from research.ranks import rank_correlation
from research.rules import CURRENT, DIRECTION, FACTOR, FAILS, NOT_COMPARABLE, UNDECIDED, Threshold

Line = list[float | None]


def curves(xs: list[Any], metric: str = "match", spread: float = 0.0, **lines: Line) -> Curves:
    """Each value with resampled values of up to `spread` around it, the same for all curves' places but not in step."""
    around = np.concatenate([[0.0], np.linspace(-spread, spread, 41)]) if spread else np.zeros(1)
    points = [
        {name: {metric: value * (1 + around)} for name, line in lines.items() if (value := line[i]) is not None}
        for i in range(len(xs))
    ]
    skipped = [{name: "does not fit" for name, line in lines.items() if line[i] is None} for i in range(len(xs))]
    return Curves(xs, points, skipped, [1000] * len(xs))  # type: ignore[arg-type]


def verdict(check: claims.Check, c: Curves) -> str:
    return judge(check, c, CURRENT).verdict


GROWING = curves(
    [1, 2, 4], fast=[1.0, 1.02, 1.05], slow=[10.0, 20.0, 40.0], linear=[1.0, 2.0, 4.0], gone=[5.0, None, None]
)


@pytest.mark.parametrize(
    ("check", "expected"),
    [
        (claims.faster("fast", "slow", 30), FACTOR),
        (claims.faster("fast", "slow", 5), DIRECTION),
        (claims.faster("fast", "slow", None), DIRECTION),
        (claims.faster("slow", "fast", 14), FAILS),
        (claims.faster("fast", "gone", 14), NOT_COMPARABLE),
        (claims.best("fast", ("fast", "slow", "gone")), DIRECTION),
        (claims.best("fast", ("fast", "slow"), by=5), FACTOR),
        (claims.best("fast", ("fast", "linear")), UNDECIDED),  # equal at the first place
        (claims.best("slow", ("fast", "slow")), FAILS),
        (claims.worst("slow", ("fast", "slow")), DIRECTION),
        (claims.no_more("fast", "slow"), DIRECTION),
        (claims.no_more("linear", "slow"), DIRECTION),
        (claims.no_more("slow", "linear"), FAILS),
        (claims.rises("slow"), DIRECTION),
        (claims.rises("fast"), UNDECIDED),
        (claims.rises("slow", rapidly=True), DIRECTION),
        (claims.falls("slow"), FAILS),
        (claims.rises_slightly("slow"), FAILS),
        (claims.flat("fast"), DIRECTION),
        (claims.flat("slow"), FAILS),
        (claims.level("fast"), DIRECTION),
        (claims.level("slow"), FAILS),
        (claims.faster_between("fast", "slow", 10, 100), FACTOR),
        (claims.faster_between("fast", "slow", 100, 1_000), DIRECTION),
        (claims.faster_between("slow", "fast", 10, 100), FAILS),
        (claims.doubling("slow", "match", 0.05), FAILS),
        (claims.least_growth("fast", ("fast", "slow")), DIRECTION),
        (claims.least_change("fast", ("fast", "slow")), DIRECTION),
        (claims.steeper("slow", "fast"), DIRECTION),
        (claims.steeper("slow", "linear"), UNDECIDED),
        (claims.turns("slow"), UNDECIDED),
        (claims.doubling("slow", "match", 1.0), FACTOR),
        (claims.doubling("slow", "match", 1.35), DIRECTION),
        (claims.doubling("fast", "match", 0.0), DIRECTION),
        (claims.linear("slow"), DIRECTION),
        (claims.linear("fast"), FAILS),
        (claims.at_most_linear("fast"), DIRECTION),
        (claims.less_than_linear("fast"), DIRECTION),
        (claims.exponential("fast"), FAILS),
        (claims.gap_opens("slow", "fast"), DIRECTION),
        (claims.gap_closes("slow", "fast"), FAILS),
        (claims.matched(0.01, 1, "fast"), NOT_COMPARABLE),
        (claims.nothing_matched(1, matcher="fast"), NOT_COMPARABLE),
        (claims.equal("fast", "linear", at=1), DIRECTION),
        (claims.equal("slow", "fast", at=1), FAILS),
        (claims.costs_more("linear", "fast", 0.9, "match", 2), FACTOR),
        (claims.mean_ratio("fast", "slow", 0.05), FACTOR),
        (claims.mean_ratio("fast", "slow", 0.5), DIRECTION),
        (claims.does_not_fit("gone", 4, 1000, 32), NOT_COMPARABLE),
        (claims.absolute("fast", "match", "µs"), NOT_COMPARABLE),
        (claims.rises("gone"), NOT_COMPARABLE),
        (claims.against("fast"), NOT_COMPARABLE),
        (claims.same_everywhere("fast", "slow"), FAILS),
    ],
)
def test_checks(check: claims.Check, expected: str) -> None:
    assert verdict(check, GROWING) == expected


def test_the_margin_is_the_same_for_and_against() -> None:
    """A lead of a fifth holds, a lead of a twentieth is a near tie whoever has it."""
    for lead, one, other in ((1.2, DIRECTION, FAILS), (1.05, UNDECIDED, UNDECIDED)):
        c = curves([1], a=[1.0], b=[lead])
        assert verdict(claims.faster("a", "b", None), c) == one
        assert verdict(claims.faster("b", "a", None), c) == other
        assert verdict(claims.best("a", ("a", "b")), c) == one
        assert verdict(claims.worst("a", ("a", "b")), c) == other


def test_what_is_a_near_tie_for_a_lead_is_equal() -> None:
    for lead in (1.0, 1.05, 1.09, 0.92):
        c = curves([1], a=[1.0], b=[lead])
        assert verdict(claims.faster("a", "b", None), c) == UNDECIDED
        assert verdict(claims.equal("b", "a"), c) == DIRECTION


def test_an_interval_that_straddles_a_threshold_is_undecided_and_may_be_settled_by_more_events() -> None:
    wide, narrow = (curves([1], spread=spread, a=[1.0], b=[1.2]) for spread in (0.5, 0.01))
    for c in (wide, narrow):  # not in step: the resampled values of b run the other way
        c.points[0]["b"]["match"][1:] = c.points[0]["b"]["match"][:0:-1]
    open_, decided = (judge(claims.faster("a", "b", None), c, CURRENT) for c in (wide, narrow))
    assert (open_.verdict, open_.settled) == (UNDECIDED, False)
    assert (decided.verdict, decided.settled) == (DIRECTION, True)
    tie = judge(claims.faster("a", "b", None), curves([1], a=[1.0], b=[1.0]), CURRENT)
    assert (tie.verdict, tie.settled) == (UNDECIDED, True)
    assert wide.used == {("a", 1), ("b", 1)}


def test_a_falling_curve_does_not_grow_linearly() -> None:
    c = curves([1, 2, 4], falling=[4.0, 2.0, 1.0])
    assert verdict(claims.linear("falling"), c) == FAILS
    assert verdict(claims.at_most_linear("falling"), c) == DIRECTION


def test_a_small_share_is_not_any_small_share() -> None:
    c = curves([1], "ending", a=[0.013])
    c.points[0]["a"]["matching"] = np.array([1.0])  # type: ignore[index]
    assert verdict(claims.share("a", "ending", "matching", 0.0003), c) == DIRECTION
    assert verdict(claims.share("a", "ending", "matching", 0.01), c) == FACTOR
    assert verdict(claims.share("a", "ending", "matching", 0.7), c) == FAILS
    assert verdict(claims.negligible("a", "ending", "matching"), c) == DIRECTION


def test_memory_that_would_fit_the_papers_machine_fails_the_claim_that_it_does_not() -> None:
    c = curves([0.7], "memory", **{"h-tree": [6_100.0]})
    assert verdict(claims.does_not_fit("h-tree", 0.7, 1_000_000, 32), c) == FAILS
    refused = curves([0.7], "memory", **{"h-tree": [None]})
    assert verdict(claims.does_not_fit("h-tree", 0.7, 1_000_000, 32), refused) == NOT_COMPARABLE


def test_a_loss_below_five_per_cent() -> None:
    c = curves([1, 2], "matching", rein=[1.0, 1.0], close=[1.02, 1.03], far=[1.1, 1.2])
    assert verdict(claims.loses_less("close", "rein", 0.05, "matching"), c) == DIRECTION
    assert verdict(claims.loses_less("far", "rein", 0.05, "matching"), c) == FAILS


def test_two_workloads_are_compared_where_both_were_measured() -> None:
    lines: dict[str, Line] = {"a": [2.0, 4.0], "a beside": [1.0, 3.0], "b": [2.0, 1.0], "b beside": [2.0, None]}
    both = curves([1, 2], "match", **lines)
    assert judge(claims.against("a"), both, CURRENT).ours == "x1.5"
    assert verdict(claims.against("b"), both) == UNDECIDED
    assert verdict(claims.least_against("b", ("a", "b")), both) == DIRECTION
    assert verdict(claims.least_against("a", ("a", "b")), both) == FAILS


def test_a_curve_that_turns_and_where() -> None:
    c = curves([1, 2, 4], **{"rein few": [1.0, 2.0, 3.0], "rein many": [3.0, 1.0, 2.0]})
    assert verdict(claims.turns("rein many"), c) == DIRECTION
    assert verdict(claims.of_series("rein", claims.turns_later, -1, 0), c) == DIRECTION
    assert verdict(claims.of_series("rein", claims.turns_later, 0, -1), c) == FAILS


def test_a_share_needs_enough_matches_to_be_judged() -> None:
    figures = {"hits": np.array([2.0]), "asked": np.array([100.0])}
    seen = Curves([1], [{"hitbox": figures}], [{}], [1000])
    assert verdict(claims.matched(0.0021, 1), seen) == FACTOR
    assert verdict(claims.matched(0.0005, 1), seen) == FAILS
    assert verdict(claims.matched(0.0001, 1), seen) == NOT_COMPARABLE
    assert verdict(claims.nothing_matched(1), seen) == FAILS


def test_the_law_that_fits_better_counts() -> None:
    figures = {"time_vs_hits": np.array([0.9]), "linear_misfit": np.array([3.0])}
    c = Curves([1], [{"siena": figures}], [{}], [1000])
    assert verdict(claims.shape("siena", "logarithmic", 1), c) == DIRECTION
    assert verdict(claims.shape("siena", "linear", 1), c) == FAILS
    assert verdict(claims.shape("siena", "logarithmic", -1), c) == FAILS
    axis = [1.0, 2.0, 3.0, 4.0]
    both = curves(axis, power=[x**3 for x in axis], exponential=[10.0**x for x in axis])
    assert verdict(claims.exponential("power"), both) == FAILS
    assert verdict(claims.exponential("exponential"), both) == DIRECTION


def test_what_does_not_change_neither_rises_nor_falls() -> None:
    c = curves([1, 2, 4, 8, 16], up=[1.0, 1.0, 1.5, 2.0, 2.0], down=[2.0, 2.0, 1.5, 1.0, 1.0], same=[1.0] * 5)
    assert [verdict(claims.level(name), c) for name in ("up", "down", "same")] == [FAILS, FAILS, DIRECTION]
    outcome = judge(claims.level("up"), c, CURRENT)
    assert outcome.ours == "x2 from the first two values to the last two"
    doubled = curves([1, 2, 4], slightly=[1.0, 1.2, 1.44])  # a fifth per doubling is not a twentieth
    assert verdict(claims.doubling("slightly", "match", 0.046), doubled) == UNDECIDED


def test_rank_correlation_shares_ties() -> None:
    assert rank_correlation(np.array([1.0, 1.0, 2.0]), np.array([5.0, 5.0, 9.0])) == 1.0
    assert rank_correlation(np.array([1.0, 2.0, 3.0]), np.array([3.0, 2.0, 1.0])) == -1.0
    assert rank_correlation(np.array([1.0, 1.0]), np.array([3.0, 2.0])) == 0.0


def experiment(*statements: Claim) -> Experiment:
    nothing = by(*((1,),) * 3)
    return Experiment("e", "e", "x", "rein", ("fast", "slow"), nothing, nothing, (), statements)


def test_too_few_seeds_or_events_leave_a_claim_undecided() -> None:
    for seeds, events, expected in ((3, 102, DIRECTION), (2, 102, UNDECIDED), (3, 99, UNDECIDED)):
        c = curves([1], fast=[1.0], slow=[10.0])
        c.points[0]["slow"] |= {"seeds": np.array([seeds]), "events": np.array([events])}  # type: ignore[index, operator]
        (row,) = judging.verdicts("rein", experiment(Claim("", "", claims.faster("fast", "slow", None))), c)
        assert row["verdict"] == expected
        assert row["settled"] == (expected == DIRECTION)


def test_statements_that_repeat_each_other_count_once_as_the_weakest() -> None:
    rows = judging.verdicts(
        "rein",
        experiment(
            Claim("fastest", "", claims.best("fast", ("fast", "slow")), group="fastest"),
            Claim("by 30", "", claims.faster("fast", "slow", 30), group="fastest"),
            Claim("slowest", "", claims.best("slow", ("fast", "slow")), "because"),
            Claim("grows", "", claims.rises("slow"), trivial=True),
        ),
        GROWING,
    )
    assert [row["verdict"] for row in rows] == [DIRECTION, FACTOR, FAILS, DIRECTION]
    assert rows[2]["reason"] == "because"
    rows[0]["missed"] = True
    found = judging.headline(rows)
    assert found["another factor"] == 1
    assert (found[FACTOR], found[DIRECTION], found[FAILS]) == (0, 1, 1)
    assert (found["trivial"], found["trivial that hold"]) == (1, 1)


def test_a_statement_of_two_experiments_counts_once() -> None:
    slow = Claim("slow is faster", "", claims.faster("slow", "fast", None), group="fastest", counted_in="e")
    rows = judging.verdicts("rein", experiment(Claim("a", "", claims.rises("slow"), group="fastest")), GROWING)
    rows += judging.verdicts("rein", replace(experiment(slow), name="other"), GROWING)
    (one,) = judging.counted(rows)
    assert (one["experiment"], one["verdict"]) == ("e", FAILS)


def test_the_baseline_is_what_holds_with_exchanged_labels() -> None:
    one = experiment(
        Claim("fastest", "", claims.best("fast", ("fast", "slow"))), Claim("any", "", claims.rises("slow"))
    )
    c = curves([1, 2], fast=[1.0, 2.0], slow=[10.0, 20.0])
    found = judging.shuffled([("rein", one, c)], shuffles=5)["rein"]
    assert (found["held"], found["judged"], found["true"]) == (1.0, 2.0, 2.0)
    assert judging.baseline_text(found).startswith("With the labels of the matchers shuffled, 50%")


def test_later_rules_show_what_the_earlier_ones_said(monkeypatch: pytest.MonkeyPatch) -> None:
    wider = replace(CURRENT, version=2, thresholds=CURRENT.thresholds | {"margin": Threshold(50, "a test")})
    monkeypatch.setattr(judging, "VERSIONS", (CURRENT, wider))
    one = experiment(Claim("fastest", "", claims.best("fast", ("fast", "slow"))))
    (row,) = judging.verdicts("rein", one, GROWING, wider)
    assert (row["verdict"], row["earlier"]) == (UNDECIDED, {1: DIRECTION})
    assert rules.version(1) is rules.VERSIONS[0]
    with pytest.raises(BenchError, match="there are no rules 99"):
        rules.version(99)


def test_every_threshold_has_a_reason() -> None:
    for one in rules.VERSIONS:
        assert all(len(threshold.reason) > 20 for threshold in one.thresholds.values())


class Everything(dict[str, Any]):
    """Figures in which every metric is there."""

    def get(self, key: str, default: Any = None) -> Any:
        return np.array([2.0])

    def __contains__(self, key: object) -> bool:
        return True

    __getitem__ = get


@pytest.mark.parametrize("scale", ["small", "paper"])
def test_every_claim_can_be_judged_where_everything_is_measured(scale: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No claim asks for a place or a matcher that its experiment does not have."""
    monkeypatch.setattr(judging, "judge_enough", lambda claim, c, by: judge(claim.check, c, by))
    for paper in PAPERS.values():
        for one in paper.experiments:
            names = [name + more for name in one.labels(scale) for more in ("", *([BESIDE] if one.beside else []))]
            xs = list(one.values[scale])
            c = Curves(xs, [{name: Everything() for name in names} for _ in xs], [{}] * len(xs), [10**9] * len(xs))
            for row in judging.verdicts(paper.name, one, c):
                assert not row["reason"].startswith("Not measured"), (row["claim"], row["reason"])


def test_the_page_states_the_rules() -> None:
    page = (Path(__file__).parents[2] / "docs/reproduction/README.md").read_text()
    assert f"the rules, version {CURRENT.version}" in page
    for name, one in CURRENT.thresholds.items():
        assert f"| {name} | {one.value:g} | {one.reason} |" in page, name


def test_what_differs_from_the_report_before_the_rules_is_listed_with_the_reason() -> None:
    old = judging.before()
    assert len(old) == 355
    widths = next(e for e in PAPERS["rein"].experiments if e.name == "widths")
    xs = list(widths.values["small"])
    memory = curves(xs, "memory", **{"h-tree": [6_100.0] * len(xs)})
    rows = judging.verdicts("rein", widths, memory)
    changed = {row["claim"]: row for row in judging.changed(rows)}
    row = changed["H-Tree does not fit into 32 GB at w = 0.7"]
    assert (row["before"], row["now"]) == ("not comparable", FAILS)
    assert "our own limit" in row["reason"]
    assert all(row["reason"] for row in changed.values())


def test_a_factor_that_is_no_longer_near_is_a_change() -> None:
    row = {"paper": "rein", "experiment": "subscriptions", "claim": "At the largest n REIN is faster than H-Tree"}
    row |= {"was": "", "correction": "", "reason": "Another factor.", "ours": "30 times", "verdict": DIRECTION}
    for missed in (True, False):
        found = [one for one in judging.changed([row | {"missed": missed}]) if one["claim"] == row["claim"]]
        assert [(one["before"], one["now"]) for one in found] == [("holds", DIRECTION)] * missed


def test_no_claim_of_the_report_before_the_rules_was_lost() -> None:
    now = {
        (paper.name, experiment.name, claim.was or claim.text)
        for paper in PAPERS.values()
        for experiment in paper.experiments
        for claim in experiment.claims
    }
    lost = [row["claim"] for row in judging.before() if (row["paper"], row["experiment"], row["claim"]) not in now]
    assert lost == []


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("faster('fast', 'slow', 10)", claims.faster("fast", "slow", 10)),
        ("falls('turn', where='x <= 2')", claims.falls("turn", where=lambda x: x <= 2)),
        (
            "faster('fast', 'slow', 10, 'size 2')",
            claims.at_size(2, lambda at: claims.faster("fast", "slow", 10, at)),
        ),
        (
            "faster('of[0]', 'of[-1]', None)",
            claims.of_series("of", lambda one, other: claims.faster(one, other, None), 0, -1),
        ),
    ],
)
def test_a_check_can_be_written_in_a_table(text: str, same: claims.Check) -> None:
    lines = {"fast": [1.0, 2.0, 3.0], "slow": [10.0, 21.0, 33.0], "turn": [9.0, 3.0, 12.0]}
    c = curves([1, 2, 4], **lines, **{"of 1k": [1.0, 2.0, 3.0], "of 2k": [4.0, 5.0, 9.0]})
    assert parse_check(text)(c, CURRENT) == same(c, CURRENT)
    assert verdict(same, c) not in ("not comparable", "undecided")


@pytest.mark.parametrize("text", ["faster", "quicker('a', 'b')", "faster('a')", "faster('a', b, 1)"])
def test_a_check_that_does_not_exist_is_an_error(text: str) -> None:
    with pytest.raises((ValueError, AttributeError, TypeError)):
        parse_check(text)
