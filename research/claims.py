"""Checks: what "14 times faster", "falls", "is unaffected" mean on our curves. Each returns an Outcome.

A check brings a statement to ratios and thresholds (rules.py) and decides nothing itself. Where the paper gives a
number, ours must also be near it to count as "factor reproduced". Absolute times of other hardware are never judged,
only shown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from research.curves import BESIDE, F64, At, Curves, Missing, Where
from research.rules import (
    FACTOR,
    FAILS,
    NOT_COMPARABLE,
    Factor,
    Outcome,
    Requirement,
    Rules,
    decide,
    number_decides,
)

Check = Callable[[Curves, Rules], Outcome]
TINY = 1e-12


def judge(check: Check, curves: Curves, rules: Rules) -> Outcome:
    try:
        with np.errstate(divide="ignore", invalid="ignore"):
            return check(curves, rules)
    except Missing as problem:
        return Outcome("-", NOT_COMPARABLE, f"not measured: {problem}")


# Who needs less


def faster(winner: str, loser: str, times: float | None, at: At = "last", metric: str = "match") -> Check:
    """`winner` needs less than `loser` at one place, by about `times` where the paper says how much."""
    said = (times,) if times else ()
    return _faster(winner, loser, said, at, metric, lambda rules, ours: _lead(rules, ours, times))


def faster_between(winner: str, loser: str, least: float, most: float, at: At = "last", metric: str = "match") -> Check:
    """`winner` needs less than `loser` at one place, by `least` to `most` times: "one or two orders of magnitude"."""
    return _faster(winner, loser, (least, most), at, metric, lambda rules, ours: Factor(ours, least, most))


def _faster(
    winner: str, loser: str, said: Sequence[float], at: At, metric: str, factor: Callable[[Rules, F64], Factor | None]
) -> Check:
    """`said`: the paper's numbers, which are drawn into the figure; `factor`: what they ask of ours."""

    def check(c: Curves, rules: Rules) -> Outcome:
        ours = c.value(loser, metric, at) / c.value(winner, metric, at)
        for times in said:
            c.mark(loser, metric, at, times * c.estimate(winner, metric, at))
        text = f"{_span(rules, ours)} times at {show(c.xs[c.place(at)])}"
        return decide(rules, text, [Requirement(ours, rules["lead"])], factor(rules, ours))

    return check


def best(
    matcher: str,
    among: Sequence[str],
    metric: str = "match",
    where: Where | None = None,
    by: float | None = None,
) -> Check:
    """It needs less than each of the others at each place where both were measured; `by` at least this factor."""

    def check(c: Curves, rules: Rules) -> Outcome:
        xs, values = c.line(matcher, metric, where)
        ratios = {
            (name, x): c.value(name, metric, x) / value
            for x, value in zip(xs, values, strict=True)
            for name in among
            if name != matcher and c.has(name, metric, x)
        }
        return _all_lead(rules, ratios, by)

    return check


def least(matcher: str, among: Sequence[str], metric: str = "match", at: At = "last") -> Check:
    """Has the smallest value at one place."""

    def check(c: Curves, rules: Rules) -> Outcome:
        own, x = c.value(matcher, metric, at), c.xs[c.place(at)]
        return _all_lead(rules, {(name, x): c.value(name, metric, at) / own for name in among if name != matcher})

    return check


def worst(matcher: str, among: Sequence[str], metric: str = "match", at: At = "last") -> Check:
    """Has the largest value at one place."""

    def check(c: Curves, rules: Rules) -> Outcome:
        own, x = c.value(matcher, metric, at), c.xs[c.place(at)]
        return _all_lead(rules, {(name, x): own / c.value(name, metric, at) for name in among if name != matcher})

    return check


def least_mean(matcher: str, among: Sequence[str], metric: str = "match") -> Check:
    """Has the smallest mean over the axis."""

    def check(c: Curves, rules: Rules) -> Outcome:
        means = {name: np.mean(c.line(name, metric)[1], axis=0) for name in among}
        return _all_lead(rules, {(name, ""): means[name] / means[matcher] for name in among if name != matcher})

    return check


def mean_ratio(one: str, other: str, said: float, metric: str = "match", where: Where | None = None) -> Check:
    """Mean of `one` over the axis as a share of the mean of `other`; the direction is that of `said` against 1."""

    def check(c: Curves, rules: Rules) -> Outcome:
        common = [x for x in c.line(one, metric, where)[0] if c.has(other, metric, x)]
        if not common:
            raise Missing(f"{one} and {other}: nowhere together")
        a, b = (np.mean([c.value(name, metric, x) for x in common], axis=0) for name in (one, other))
        lead = b / a if said < 1 else a / b
        times = 1 / said if said < 1 else said
        text = f"{_span(rules, a / b, percent=True)}"
        return decide(rules, text, [Requirement(lead, rules["lead"])], _lead(rules, lead, times))

    return check


# About as much


def equal(one: str, other: str, said: float | None = None, metric: str = "match", at: At = "last") -> Check:
    """The two hardly differ. `said`: by how much in the paper, such as 1.04; then ours should be about that."""

    def check(c: Curves, rules: Rules) -> Outcome:
        ours = c.value(one, metric, at) / c.value(other, metric, at)
        if said:
            c.mark(one, metric, at, said * c.estimate(other, metric, at))
        text = f"x{_span(rules, ours)} at {show(c.xs[c.place(at)])}"
        near = [Requirement(ours, rules["equal"], above=False), Requirement(1 / ours, rules["equal"], above=False)]
        return decide(rules, text, near, _lead(rules, ours, said))

    return check


def no_more(one: str, other: str, metric: str = "match", at: At = "last") -> Check:
    """`one` needs as much as `other` or less."""

    def check(c: Curves, rules: Rules) -> Outcome:
        ours = c.value(one, metric, at) / c.value(other, metric, at)
        text = f"x{_span(rules, ours)} at {show(c.xs[c.place(at)])}"
        return decide(rules, text, [Requirement(ours, rules["equal"], above=False)])

    return check


def costs_more(one: str, other: str, said: float, metric: str, at: At = "last") -> Check:
    """`one` takes the share `said` more: less than a tenth more is hardly more, otherwise it is a lead."""
    return equal(one, other, 1 + said, metric, at) if said < 0.1 else faster(other, one, 1 + said, at, metric)


def slightly_more(one: str, other: str, metric: str, at: At = "last") -> Check:
    """More, but not much more."""

    def check(c: Curves, rules: Rules) -> Outcome:
        ours = c.value(one, metric, at) / c.value(other, metric, at)
        both = [Requirement(ours, rules["lead"]), Requirement(ours, rules["steady"], above=False)]
        return decide(rules, f"x{_span(rules, ours)} at {show(c.xs[c.place(at)])}", both)

    return check


def loses_less(one: str, other: str, most: float, metric: str, where: Where | None = None) -> Check:
    """`one` takes at most the share `most` more than `other`, on the mean over the axis."""

    def check(c: Curves, rules: Rules) -> Outcome:
        common = [x for x in c.line(one, metric, where)[0] if c.has(other, metric, x)]
        more = np.mean([c.value(one, metric, x) / c.value(other, metric, x) for x in common], axis=0) - 1
        text = _span(rules, more, percent=True) + " more on the mean"
        return decide(rules, text, [Requirement(np.maximum(more, TINY), most, above=False)])

    return check


def negligible(matcher: str, part: str, whole: str, at: At = "last", of: str | None = None) -> Check:
    """`part` is a small share of `whole` (of the matcher `of`, if that is another one)."""

    def check(c: Curves, rules: Rules) -> Outcome:
        ours = c.value(matcher, part, at) / c.value(of or matcher, whole, at)
        small = Requirement(np.maximum(ours, TINY), rules["negligible"], above=False)
        return decide(rules, _span(rules, ours, percent=True), [small])

    return check


def share(matcher: str, part: str, whole: str, said: float, at: At = "last") -> Check:
    """`part` of `whole`: the smaller or the larger part, as in the paper; reproduced if the odds are near."""

    def check(c: Curves, rules: Rules) -> Outcome:
        ours = np.clip(c.value(matcher, part, at) / c.value(matcher, whole, at), TINY, 1 - TINY)
        c.mark(matcher, part, at, said * c.estimate(matcher, whole, at))
        odds, theirs = ours / (1 - ours), said / (1 - said)
        near = Factor(odds / theirs, 1 / rules["odds"], rules["odds"])
        side = Requirement(odds, rules["lead"], above=said > 0.5)
        return decide(rules, _span(rules, ours, percent=True), [side], near)

    return check


def near(matcher: str, metric: str, said: float, at: At = "last") -> Check:
    """A pure number above 1 (a ratio of two times): the excess over 1 is about the paper's."""

    def check(c: Curves, rules: Rules) -> Outcome:
        ours = c.value(matcher, metric, at)
        factor = _lead(rules, ours, said)
        assert factor is not None
        return number_decides(rules, _span(rules, ours), factor)

    return check


def matched(said: float, at: At, matcher: str = "hitbox") -> Check:
    """The share of the subscriptions that an event meets; needs some matches to be expected at all."""

    def check(c: Curves, rules: Rules) -> Outcome:
        n, asked = c.n[c.place(at)], float(c.value(matcher, "asked", at)[0])
        ours = c.value(matcher, "hits", at) / n
        c.mark(matcher, "hits", at, said * n)
        if said * n * asked < rules["few"]:
            note = f"too few subscriptions and events ({n:,} x {asked:,.0f}) to see such a share"
            return Outcome(f"{ours[0]:.2g}", NOT_COMPARABLE, note)
        return number_decides(rules, _span(rules, ours), Factor(ours / said, 1 / rules["steady"], rules["steady"]))

    return check


def nothing_matched(*at: At, matcher: str = "hitbox") -> Check:
    def check(c: Curves, rules: Rules) -> Outcome:
        asked = sum(float(c.value(matcher, "asked", x)[0]) for x in at)
        found = sum(float(c.value(matcher, "hits", x)[0] * c.value(matcher, "asked", x)[0]) for x in at)
        return Outcome(f"{found:,.0f} matches of {asked:,.0f} events", FAILS if found else FACTOR)

    return check


def at_size(n: int, make: Callable[[At], Check]) -> Check:
    """`make` with the paper's number of subscriptions, or with the largest one where the scale is smaller."""

    def check(c: Curves, rules: Rules) -> Outcome:
        return make(n if n in c.xs else "last")(c, rules)

    return check


# What rises, what falls


def _from_first_to_last(
    matcher: str, metric: str, where: Where | None, requirements: Callable[[F64, Rules], list[Requirement]]
) -> Check:
    """What the last value, divided by the first one, must be."""

    def check(c: Curves, rules: Rules) -> Outcome:
        first, last = c.ends(matcher, metric, where)
        which = "the first two values to the last two" if c.ends_are_means(matcher, metric, where) else "first to last"
        return decide(rules, f"x{_span(rules, last / first)} from {which}", requirements(last / first, rules))

    return check


def rises(matcher: str, metric: str = "match", where: Where | None = None, rapidly: bool = False) -> Check:
    """From the first to the last place it grows."""
    least = "rapidly" if rapidly else "lead"
    return _from_first_to_last(matcher, metric, where, lambda growth, rules: [Requirement(growth, rules[least])])


def rises_slightly(matcher: str, metric: str = "match", where: Where | None = None) -> Check:
    return _from_first_to_last(matcher, metric, where, _slightly)


def falls(matcher: str, metric: str = "match", where: Where | None = None) -> Check:
    return _from_first_to_last(matcher, metric, where, lambda growth, rules: [Requirement(1 / growth, rules["lead"])])


def falls_slightly(matcher: str, metric: str = "match", where: Where | None = None) -> Check:
    return _from_first_to_last(matcher, metric, where, lambda growth, rules: _slightly(1 / growth, rules))


def _slightly(growth: F64, rules: Rules) -> list[Requirement]:
    return [Requirement(growth, rules["lead"]), Requirement(growth, rules["steady"], above=False)]


def level(matcher: str, metric: str = "match", where: Where | None = None) -> Check:
    """It ends hardly higher and hardly lower than it began."""
    return _from_first_to_last(matcher, metric, where, _level)


def _level(growth: F64, rules: Rules) -> list[Requirement]:
    return [Requirement(ratio, rules["steady"], above=False) for ratio in (growth, 1 / growth)]


def flat(*matchers: str, metric: str = "match", where: Where | None = None) -> Check:
    """The largest value of all is little more than the smallest."""

    def check(c: Curves, rules: Rules) -> Outcome:
        values = [value for name in matchers for value in c.line(name, metric, where)[1]]
        if len(values) < 2:
            raise Missing(f"{matchers[0]}: one measurement only")
        ours = np.max(values, axis=0) / np.min(values, axis=0)
        text = f"largest / smallest: {_span(rules, ours)}"
        return decide(rules, text, [Requirement(ours, rules["steady"], above=False)])

    return check


def same_everywhere(*matchers: str, metric: str = "match") -> Check:
    """At each place the largest of the curves hardly exceeds the smallest."""

    def check(c: Curves, rules: Rules) -> Outcome:
        apart = []
        for x in c.xs:
            here = [c.value(name, metric, x) for name in matchers if c.has(name, metric, x)]
            if len(here) == len(matchers):
                apart.append(np.max(here, axis=0) / np.min(here, axis=0))
        if not apart:
            raise Missing(f"{', '.join(matchers)}: nowhere together")
        ours = np.max(apart, axis=0)
        text = f"largest / smallest: at most {_span(rules, ours)}"
        return decide(rules, text, [Requirement(ours, rules["equal"], above=False)])

    return check


def of_series(matcher: str, make: Callable[..., Check], *places: int) -> Check:
    """`make` with the labels of the curves of a matcher at some places among its series, such as -1 for the last."""

    def check(c: Curves, rules: Rules) -> Outcome:
        labels = [name for name in c.points[0] if name.startswith(f"{matcher} ")]
        if not labels:
            raise Missing(f"{matcher}: no measurement")
        return make(*(labels[place] for place in places))(c, rules)

    return check


def turns(matcher: str, metric: str = "match") -> Check:
    """Falls to a smallest value inside the range, then rises."""

    def check(c: Curves, rules: Rules) -> Outcome:
        xs, values = c.line(matcher, metric)
        low = int(np.argmin([value[0] for value in values]))
        before, after = values[0] / values[low], values[-1] / values[low]
        ours = f"smallest at {show(xs[low])}; x{_span(rules, before)} at {show(xs[0])}, "
        ours += f"x{_span(rules, after)} at {show(xs[-1])}"
        return decide(rules, ours, [Requirement(before, rules["lead"]), Requirement(after, rules["lead"])])

    return check


def turns_later(late: str, early: str, metric: str = "match") -> Check:
    """The place where `late` is smallest lies further along the axis than that of `early`."""

    def check(c: Curves, rules: Rules) -> Outcome:
        places = []
        for name in (late, early):
            xs, values = c.line(name, metric)
            places.append(np.array(xs, float)[np.argmin(values, axis=0)])
        ours = f"{late}: {places[0][0]:,.0f}, {early}: {places[1][0]:,.0f}"
        return decide(rules, ours, [Requirement(places[0] / places[1], rules["lead"])])

    return check


# By what law


def doubling(matcher: str, metric: str, said: float) -> Check:
    """Growth when the axis doubles (slope of the logarithms), such as 1.0 for +100%. Less than a tenth, or none at all:
    over the whole axis it hardly changes."""

    def check(c: Curves, rules: Rules) -> Outcome:
        growth = _doubled(c, matcher, metric)
        xs, values = c.line(matcher, metric)
        doublings = float(np.log2(xs[-1] / xs[0]))
        c.mark(matcher, metric, xs[-1], float(values[0][0]) * (1 + said) ** doublings)
        text = f"{_span(rules, growth - 1, percent=True)} per doubling"
        if abs(said) < 0.1:
            near = _level(growth**doublings, rules)
        else:
            near = [Requirement(growth if said > 0 else 1 / growth, rules["lead"])]
        within = rules["growth"]
        return decide(rules, text, near, Factor(growth / (1 + said), 1 / within, within) if said else None)

    return check


def linear(matcher: str, metric: str = "match", where: Where | None = None) -> Check:
    """Grows in proportion to the axis, give or take."""

    def check(c: Curves, rules: Rules) -> Outcome:
        growth = _doubled(c, matcher, metric, where)
        around = [
            Requirement(growth, 2 / rules["linear"]),
            Requirement(growth, 2 * rules["linear"], above=False),
        ]
        return decide(rules, _power(rules, growth), around)

    return check


def at_most_linear(matcher: str, metric: str = "match") -> Check:
    """Scales well: doubling the axis does not do much more than double it."""

    def check(c: Curves, rules: Rules) -> Outcome:
        growth = _doubled(c, matcher, metric)
        return decide(rules, _power(rules, growth), [Requirement(growth, 2 * rules["linear"], above=False)])

    return check


def less_than_linear(matcher: str, metric: str = "match") -> Check:
    def check(c: Curves, rules: Rules) -> Outcome:
        growth = _doubled(c, matcher, metric)
        return decide(rules, _power(rules, growth), [Requirement(growth, 2.0, above=False)])

    return check


def exponential(matcher: str, metric: str = "match", where: Where | None = None) -> Check:
    """Grows more than linearly, and an exponential law fits better than a power law."""

    def check(c: Curves, rules: Rules) -> Outcome:
        xs, values = c.line(matcher, metric, where)
        growth = _doubled(c, matcher, metric, where)
        axis, logs = np.array(xs, float), np.log(np.maximum(values, TINY))
        misfit = _residue(np.log(axis), logs) / np.maximum(_residue(axis, logs), TINY)
        text = f"{_power(rules, growth)}; misfit of a power law / of an exponential: {_span(rules, misfit)}"
        better = [Requirement(misfit, rules["lead"])] if len(xs) > 3 else []  # two laws fit three values equally well
        return decide(rules, text, [Requirement(growth, 2.0), *better])

    return check


def follows(matcher: str, sign: Literal[1, -1, 0], metric: str = "time_vs_hits", at: At = "last") -> Check:
    """Rank correlation of one event's time with something: positive, negative, or none."""

    def check(c: Curves, rules: Rules) -> Outcome:
        ours = c.value(matcher, metric, at)
        odds = _odds(ours)
        text = f"rank correlation {_span(rules, ours)}"
        if sign:
            return decide(rules, text, [Requirement(odds if sign > 0 else 1 / odds, rules["lead"])])
        none = [Requirement(odds, rules["equal"], above=False), Requirement(1 / odds, rules["equal"], above=False)]
        return decide(rules, text, none)

    return check


def strongly_follows(matcher: str, metric: str, at: At = "last") -> Check:
    def check(c: Curves, rules: Rules) -> Outcome:
        ours = c.value(matcher, metric, at)
        return decide(rules, f"rank correlation {_span(rules, ours)}", [Requirement(_odds(ours), rules["strong"])])

    return check


def shape(matcher: str, law: Literal["logarithmic", "linear"], sign: Literal[1, -1], at: At = "last") -> Check:
    """An event's time follows its matches, and the named law fits better than the other one."""

    def check(c: Curves, rules: Rules) -> Outcome:
        follow, misfit = c.value(matcher, "time_vs_hits", at), c.value(matcher, "linear_misfit", at)
        better = misfit if law == "logarithmic" else 1 / misfit
        text = f"rank correlation {_span(rules, follow)}; misfit linear / logarithmic: {_span(rules, misfit)}"
        odds = _odds(follow)
        trend = Requirement(odds if sign > 0 else 1 / odds, rules["lead"])
        return decide(rules, text, [trend, Requirement(better, rules["lead"])])

    return check


# Two curves


def least_growth(matcher: str, among: Sequence[str], metric: str = "match") -> Check:
    """Its curve has the least slope: its ends differ least (by a thousandth of the first at least)."""

    def check(c: Curves, rules: Rules) -> Outcome:
        def growth(name: str) -> F64:
            first, last = c.ends(name, metric)
            return np.maximum(last - first, first / 1_000)

        own = growth(matcher)
        return _all_lead(rules, {(name, ""): growth(name) / own for name in among if name != matcher})

    return check


def least_change(matcher: str, among: Sequence[str], metric: str = "match") -> Check:
    """The ratio of its ends is nearer to 1 than those of the others."""

    def check(c: Curves, rules: Rules) -> Outcome:
        off = {name: _off(last / first) for name in among for first, last in [c.ends(name, metric)]}
        return _all_lead(rules, {(name, ""): off[name] / off[matcher] for name in among if name != matcher})

    return check


def steeper(
    steep: str, than: str, metric: str = "match", than_metric: str | None = None, where: Where | None = None
) -> Check:
    """Grows by a larger factor along the axis than another one."""

    def check(c: Curves, rules: Rules) -> Outcome:
        a, b = c.ends(steep, metric, where), c.ends(than, than_metric or metric, where)
        one, two = a[1] / a[0], b[1] / b[0]
        text = f"{steep} x{_span(rules, one)}, {than} x{_span(rules, two)}"
        return decide(rules, text, [Requirement(one / two, rules["lead"])])

    return check


def gap_closes(a: str, b: str, metric: str = "match", where: Where | None = None) -> Check:
    """The ratio of two curves comes nearer to 1 along the axis."""
    return _gap(a, b, metric, where, closes=True)


def gap_opens(a: str, b: str, metric: str = "match", where: Where | None = None) -> Check:
    return _gap(a, b, metric, where, closes=False)


def _gap(a: str, b: str, metric: str, where: Where | None, closes: bool) -> Check:
    def check(c: Curves, rules: Rules) -> Outcome:
        one, two = c.ends(a, metric, where), c.ends(b, metric, where)
        first, last = one[0] / two[0], one[1] / two[1]
        nearer = _off(first) / _off(last)
        text = f"{a} / {b}: {_span(rules, first)} first, {_span(rules, last)} last"
        return decide(rules, text, [Requirement(nearer if closes else 1 / nearer, rules["lead"])])

    return check


def against(matcher: str, metric: str = "match") -> Check:
    """Slower than on the workload beside, on the mean over the axis."""

    def check(c: Curves, rules: Rules) -> Outcome:
        ours = _against(c, matcher, metric)
        return decide(rules, f"x{_span(rules, ours)}", [Requirement(ours, rules["lead"])])

    return check


def least_against(matcher: str, among: Sequence[str], metric: str = "match") -> Check:
    """Changes less than each of the others from the workload beside to this one."""

    def check(c: Curves, rules: Rules) -> Outcome:
        off = {name: _off(_against(c, name, metric)) for name in among}
        return _all_lead(rules, {(name, ""): off[name] / off[matcher] for name in among if name != matcher})

    return check


def _against(c: Curves, name: str, metric: str) -> F64:
    common = [x for x in c.line(name, metric)[0] if c.has(name + BESIDE, metric, x)]
    if not common:
        raise Missing(f"{name}: nowhere on both workloads")
    here, there = (np.mean([c.value(lane, metric, x) for x in common], axis=0) for lane in (name, name + BESIDE))
    return np.asarray(here / there)


# Memory, and what cannot be judged


def does_not_fit(matcher: str, at: At, paper_n: int, memory_gb: float) -> Check:
    """It takes as much memory as the paper's machine had, or more. A refusal of ours says nothing."""

    def check(c: Curves, rules: Rules) -> Outcome:
        need = c.value(matcher, "memory", at) * paper_n / 1e9
        text = f"{_span(rules, need)} GB at {paper_n:,} subscriptions, from {c.n[c.place(at)]:,} here"
        return decide(rules, text, [Requirement(need, memory_gb)])

    return check


def absolute(matcher: str, metric: str, unit: str, at: At = "last") -> Check:
    """A time of the paper's machine: ours is shown, not judged."""

    def check(c: Curves, rules: Rules) -> Outcome:
        ours = f"{_span(rules, c.value(matcher, metric, at))} {unit} with {c.n[c.place(at)]:,} subscriptions"
        return Outcome(ours, NOT_COMPARABLE, "an absolute time of other hardware and another language")

    return check


# Shared


def _all_lead(rules: Rules, ratios: dict[tuple[str, Any], F64], by: float | None = None) -> Outcome:
    """Every ratio must lead; the text names the rival that comes nearest."""
    if not ratios:
        raise Missing("none of the others was measured")
    nearest = min(ratios, key=lambda key: float(ratios[key][0]))
    rival = " at ".join(str(show(part)) for part in nearest if part != "")
    worst_case = np.min(list(ratios.values()), axis=0)
    text = f"{_span(rules, worst_case)} times against the nearest rival, {rival}"
    return decide(rules, text, [Requirement(worst_case, rules["lead"])], Factor(worst_case, by, np.inf) if by else None)


def _lead(rules: Rules, ours: F64, said: float | None) -> Factor | None:
    """Our excess over 1 against the paper's."""
    if said is None:
        return None
    return Factor((ours - 1) / (said - 1), 1 / rules["factor"], rules["factor"])


def _odds(correlation: F64) -> F64:
    limited = np.clip(correlation, -1 + TINY, 1 - TINY)
    return np.asarray((1 + limited) / (1 - limited))


def _off(ratio: F64) -> F64:
    """How far from 1, whichever way."""
    return np.maximum(ratio, 1 / ratio)


def _doubled(c: Curves, matcher: str, metric: str, where: Where | None = None) -> F64:
    """The factor by which the metric grows when the axis doubles: the slope of the logarithms."""
    xs, values = c.line(matcher, metric, where)
    if len(xs) < 2:
        raise Missing(f"{matcher}: one measurement only")
    axis = np.log2(np.array(xs, float))
    axis = axis - axis.mean()
    logs = np.log2(np.maximum(np.array(values), TINY))
    return np.asarray(2.0 ** (axis @ logs / (axis @ axis)))


def _residue(axis: F64, values: F64) -> F64:
    """What is left of each column after fitting a straight line over the axis."""
    axis, rest = axis - axis.mean(), values - values.mean(axis=0)
    slope = axis @ rest / (axis @ axis)
    return np.asarray(((rest - np.outer(axis, slope)) ** 2).sum(axis=0))


def _power(rules: Rules, growth: F64) -> str:
    return f"power of the axis: {_span(rules, np.log2(growth))}"


def _span(rules: Rules, samples: F64, percent: bool = False) -> str:
    """The estimate, and the interval where there is one."""
    shown = _percent if percent else number
    if len(samples) == 1:
        return shown(float(samples[0]))
    low, high = rules.interval(samples)
    return f"{shown(float(samples[0]))} ({shown(low)} to {shown(high)})"


def _percent(value: float) -> str:
    return f"{value:.1%}" if abs(value) >= 0.01 else f"{value:.2%}"


def number(value: float) -> str:
    """
    >>> number(1234.5), number(12.34), number(0.01234), number(1.0034)
    ('1,234', '12.3', '0.0123', '1.003')
    """
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.4g}" if 1 < abs(value) < 1.1 else f"{value:.3g}"  # a ratio: what counts is how far it is from 1


def show(x: Any) -> str:
    return x if isinstance(x, str) else f"{x:,}"
