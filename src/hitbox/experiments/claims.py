"""Checks: what "14 times faster", "falls", "is unaffected" mean on our curves. Each returns an Outcome.

A check looks at directions: who wins, what rises, where a curve turns. Where the paper gives a factor, ours stands
beside it and `close` says whether the two are within a factor of two (shares: within ten points). Absolute times of
other hardware are never judged, only shown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from hitbox.experiments.curves import BESIDE, At, Curves, Missing, Where

EQUAL_WITHIN = 1.1
"""Curves that differ by less than a tenth count as equal: repetitions lie that far apart."""
STEADY_WITHIN = 1.5
"""A curve that is said not to change, to be stable or flat may change by half."""
LINEAR_POWER = 1.2
"""A curve that is said to grow linearly at most may grow by this power of the axis."""


@dataclass(frozen=True)
class Outcome:
    ours: str
    holds: bool | None
    """None: cannot be compared; `note` says why."""
    close: bool | None = None
    note: str = ""


Check = Callable[[Curves], Outcome]


def judge(check: Check, curves: Curves) -> Outcome:
    try:
        return check(curves)
    except Missing as problem:
        return Outcome("-", None, note=f"not measured at this scale: {problem}")
    except ZeroDivisionError:
        return Outcome("-", None, note="a time of zero: too small to measure at this scale")


def faster(winner: str, loser: str, times: float, at: At = "last", metric: str = "match") -> Check:
    """`winner` needs less than `loser` at one place, by about `times`."""

    def check(c: Curves) -> Outcome:
        ours = c.value(loser, metric, at) / c.value(winner, metric, at)
        return Outcome(f"{ours:.1f} times at {show(c.xs[c.place(at)])}", ours > 1, times / 2 <= ours <= times * 2)

    return check


def best(matcher: str, among: Sequence[str], metric: str = "match", where: Where | None = None) -> Check:
    """None of the others needs less, anywhere (within the spread)."""

    def check(c: Curves) -> Outcome:
        xs, values = c.line(matcher, metric, where)
        lost = []
        for x, value in zip(xs, values, strict=True):
            point = c.points[c.place(x)]
            rivals = {name: point[name][metric] for name in among if name != matcher and metric in point.get(name, {})}
            quicker = [name for name, rival in rivals.items() if rival * EQUAL_WITHIN < value]
            if quicker:
                lost.append(f"{min(quicker, key=lambda name: rivals[name])} at {show(x)}")
        ours = f"at {len(xs) - len(lost)} of {len(xs)} places" + (f"; beaten by {', '.join(lost)}" if lost else "")
        return Outcome(ours, not lost)

    return check


def least(matcher: str, among: Sequence[str], metric: str = "match", at: At = "last") -> Check:
    """Has the smallest value at one place."""
    return _extreme(matcher, among, metric, at, largest=False)


def worst(matcher: str, among: Sequence[str], metric: str = "match", at: At = "last") -> Check:
    """Has the largest value at one place."""
    return _extreme(matcher, among, metric, at, largest=True)


def least_mean(matcher: str, among: Sequence[str], metric: str = "match") -> Check:
    """Has the smallest mean over the axis."""

    def check(c: Curves) -> Outcome:
        values = {name: float(np.mean(c.line(name, metric)[1])) for name in among}
        text = ", ".join(f"{name} {number(v)}" for name, v in sorted(values.items(), key=lambda pair: pair[1]))
        return Outcome(text, min(values, key=lambda name: values[name]) == matcher)

    return check


def _extreme(matcher: str, among: Sequence[str], metric: str, at: At, largest: bool) -> Check:
    def check(c: Curves) -> Outcome:
        values = {name: c.value(name, metric, at) for name in among}
        extreme = (max if largest else min)(values.values())
        holds = values[matcher] * EQUAL_WITHIN >= extreme if largest else values[matcher] <= extreme * EQUAL_WITHIN
        text = ", ".join(f"{name} {number(v)}" for name, v in sorted(values.items(), key=lambda pair: -pair[1]))
        return Outcome(text, holds)

    return check


def rises(*matchers: str, metric: str = "match", by: float = EQUAL_WITHIN, where: Where | None = None) -> Check:
    """From the first to the last place, each grows at least by the factor `by`."""
    return _trend(matchers, metric, where, lambda ratio: ratio >= by)


def rises_slightly(*matchers: str, metric: str = "match", where: Where | None = None) -> Check:
    """Grows, but by half at most: what is called slight may well be less than a tenth."""
    return _trend(matchers, metric, where, lambda ratio: 1 < ratio <= STEADY_WITHIN)


def falls(*matchers: str, metric: str = "match", by: float = EQUAL_WITHIN, where: Where | None = None) -> Check:
    return _trend(matchers, metric, where, lambda ratio: ratio <= 1 / by)


def not_rising(
    *matchers: str, metric: str = "match", within: float = STEADY_WITHIN, where: Where | None = None
) -> Check:
    """Ends at most `within` times as high as it began."""
    return _trend(matchers, metric, where, lambda ratio: ratio <= within)


def _trend(matchers: Sequence[str], metric: str, where: Where | None, rule: Callable[[float], bool]) -> Check:
    def check(c: Curves) -> Outcome:
        ratios = {name: last / first for name in matchers for first, last in [c.ends(name, metric, where)]}
        text = ", ".join(f"{name} x{number(ratio)}" for name, ratio in ratios.items())
        return Outcome(text + " from first to last", all(rule(ratio) for ratio in ratios.values()))

    return check


def flat(*matchers: str, metric: str = "match", where: Where | None = None) -> Check:
    """The largest value is at most STEADY_WITHIN times the smallest."""

    def check(c: Curves) -> Outcome:
        ratios = {}
        for name in matchers:
            _, values = c.line(name, metric, where)
            ratios[name] = max(values) / min(values)
        text = ", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items())
        return Outcome(f"largest / smallest: {text}", all(ratio <= STEADY_WITHIN for ratio in ratios.values()))

    return check


def least_growth(matcher: str, among: Sequence[str], metric: str = "match", relative: bool = False) -> Check:
    """Its time grows least along the axis: in absolute terms, or relative to where it began."""

    def check(c: Curves) -> Outcome:
        def growth(name: str) -> float:
            first, last = c.ends(name, metric)
            return last / first if relative else last - first

        found = {name: growth(name) for name in among}
        text = ", ".join(f"{name} {'x' if relative else '+'}{number(g)}" for name, g in found.items())
        return Outcome(text, min(found, key=lambda name: found[name]) == matcher)

    return check


def steeper(
    steep: str, than: str, metric: str = "match", than_metric: str | None = None, where: Where | None = None
) -> Check:
    """Grows by a larger factor along the axis than another one."""

    def check(c: Curves) -> Outcome:
        a, b = c.ends(steep, metric, where), c.ends(than, than_metric or metric, where)
        one, two = a[1] / a[0], b[1] / b[0]
        return Outcome(f"{steep} x{number(one)}, {than} x{number(two)}", one > two)

    return check


def turns(matcher: str, metric: str = "match") -> Check:
    """Falls to a smallest value inside the range, then rises."""

    def check(c: Curves) -> Outcome:
        xs, values = c.line(matcher, metric)
        low = int(np.argmin(values))
        inside = (
            0 < low < len(xs) - 1 and values[0] > values[low] * EQUAL_WITHIN and values[-1] > values[low] * EQUAL_WITHIN
        )
        ours = f"smallest at {show(xs[low])}; x{number(values[0] / values[low])} at {show(xs[0])}, "
        return Outcome(ours + f"x{number(values[-1] / values[low])} at {show(xs[-1])}", inside)

    return check


def follows(matcher: str, sign: Literal[1, -1, 0], metric: str = "time_vs_hits", at: At = "last") -> Check:
    """Rank correlation of one event's time with something: positive, negative, or none."""

    def check(c: Curves) -> Outcome:
        ours = c.value(matcher, metric, at)
        holds = abs(ours) < 0.3 if sign == 0 else ours * sign > 0.1
        return Outcome(f"rank correlation {ours:+.2f}", holds)

    return check


def share(matcher: str, part: str, whole: str | None, said: float, tolerance: float = 0.2, at: At = "last") -> Check:
    """`part` as a share of `whole` (or as it is), within `tolerance` of what the paper says."""

    def check(c: Curves) -> Outcome:
        ours = c.value(matcher, part, at) / (c.value(matcher, whole, at) if whole else 1.0)
        return Outcome(f"{ours:.2%}", abs(ours - said) <= tolerance, abs(ours - said) <= 0.1)

    return check


def matched(said: float, at: At, matcher: str = "hitbox") -> Check:
    """The share of the subscriptions that an event meets, give or take half; needs 20 matches to be expected at all."""

    def check(c: Curves) -> Outcome:
        n, asked = c.n[c.place(at)], c.value(matcher, "asked", at)
        ours = c.value(matcher, "hits", at) / n
        if said * n * asked < 20:
            note = f"too few subscriptions and events ({n:,} x {asked:,.0f}) to see such a share"
            return Outcome(f"{ours:.2g}", None, note=note)
        return Outcome(f"{ours:.3g}", said / 1.5 <= ours <= said * 1.5)

    return check


def nothing_matched(*at: At, matcher: str = "hitbox") -> Check:
    def check(c: Curves) -> Outcome:
        found = sum(c.value(matcher, "hits", x) * c.value(matcher, "asked", x) for x in at)
        asked = sum(c.value(matcher, "asked", x) for x in at)
        return Outcome(f"{found:,.0f} matches of {asked:,.0f} events", found == 0)

    return check


def near(matcher: str, metric: str, said: float, at: At = "last") -> Check:
    """A pure number (a ratio of two times) is within twice or half of the paper's."""

    def check(c: Curves) -> Outcome:
        ours = c.value(matcher, metric, at)
        return Outcome(f"{ours:.2f}", said / 2 <= ours <= said * 2)

    return check


def ratio(
    one: str, other: str, said: float, metric: str = "match", low: float = 0.0, high: float = np.inf, at: At = "last"
) -> Check:
    """`one` / `other` at one place lies within [low, high]."""

    def check(c: Curves) -> Outcome:
        ours = c.value(one, metric, at) / c.value(other, metric, at)
        return Outcome(
            f"x{number(ours)} at {show(c.xs[c.place(at)])}", low <= ours <= high, said / 2 <= ours <= said * 2
        )

    return check


def overhead(one: str, other: str, said: float, metric: str, most: float = 0.5, at: At = "last") -> Check:
    """`one` takes a little more than `other`: at most the share `most`; 5% less counts as equal."""

    def check(c: Curves) -> Outcome:
        ours = c.value(one, metric, at) / c.value(other, metric, at) - 1
        return Outcome(f"{ours:+.1%}", -0.05 <= ours <= most, abs(ours - said) <= 0.1)

    return check


def mean_ratio(one: str, other: str, said: float, metric: str = "match", where: Where | None = None) -> Check:
    """Mean of `one` over the axis as a share of the mean of `other`; the direction is that of `said` against 1."""

    def check(c: Curves) -> Outcome:
        common = [x for x in c.line(one, metric, where)[0] if x in c.line(other, metric, where)[0]]
        ours = float(np.mean([c.value(one, metric, x) for x in common]))
        ours /= float(np.mean([c.value(other, metric, x) for x in common]))
        return Outcome(f"{ours:.1%}", (ours < 1) == (said < 1), said / 2 <= ours <= said * 2)

    return check


def doubling(matcher: str, metric: str, said: float, low: float, high: float) -> Check:
    """Growth of the metric when the axis doubles (slope of the logarithms), between `low` and `high`."""

    def check(c: Curves) -> Outcome:
        xs, values = c.line(matcher, metric)
        if len(xs) < 2:
            raise Missing(f"{matcher}: one measurement only")
        slope = np.polyfit(np.log2(np.array(xs, float)), np.log2(np.maximum(values, 1e-9)), 1)[0]
        ours = float(2**slope - 1)
        return Outcome(f"{ours:+.0%} a doubling", low <= ours <= high, abs(ours - said) <= 0.3)

    return check


def sublinear(*matchers: str, metric: str = "match", most: float = LINEAR_POWER) -> Check:
    """Grows at most by the power `most` of the axis."""
    return _power(matchers, metric, lambda power: power <= most)


def superlinear(*matchers: str, metric: str = "match", least: float = 1.0) -> Check:
    return _power(matchers, metric, lambda power: power > least)


def _power(matchers: Sequence[str], metric: str, rule: Callable[[float], bool]) -> Check:
    def check(c: Curves) -> Outcome:
        powers = {}
        for name in matchers:
            xs, values = c.line(name, metric)
            if len(xs) < 2:
                raise Missing(f"{name}: one measurement only")
            powers[name] = float(np.polyfit(np.log(np.array(xs, float)), np.log(values), 1)[0])
        text = ", ".join(f"{name} {power:.2f}" for name, power in powers.items())
        return Outcome(f"power of the axis: {text}", all(rule(power) for power in powers.values()))

    return check


def does_not_fit(matcher: str, at: At, paper_n: int, memory_gb: float) -> Check:
    """The point is refused for memory; where a small scale fits, its bytes are carried over to the paper's n."""

    def check(c: Curves) -> Outcome:
        place = c.place(at)
        if matcher in c.skipped[place]:
            return Outcome(f"refused: {c.skipped[place][matcher]}", True)
        each = c.value(matcher, "memory", at)
        need = each * paper_n / 1e9
        ours = f"{need:.1f} GB at {paper_n:,} subscriptions, from {c.n[place]:,} here"
        if need >= memory_gb:
            return Outcome(ours, True)
        entries = f"it fits at this scale; the paper's n would make {each * paper_n / 4e6:,.0f}M entries of 4 bytes"
        return Outcome(ours, None, note=f"{entries}, and ours refuses more than 250M of them")

    return check


def gap_closes(a: str, b: str, metric: str = "match", where: Where | None = None) -> Check:
    """The ratio of two curves comes nearer to 1 along the axis."""
    return _gap(a, b, metric, where, closes=True)


def gap_opens(a: str, b: str, metric: str = "match", where: Where | None = None) -> Check:
    return _gap(a, b, metric, where, closes=False)


def _gap(a: str, b: str, metric: str, where: Where | None, closes: bool) -> Check:
    def check(c: Curves) -> Outcome:
        one, two = c.ends(a, metric, where), c.ends(b, metric, where)
        first, last = one[0] / two[0], one[1] / two[1]
        nearer = abs(np.log(last)) < abs(np.log(first))
        return Outcome(f"{a} / {b}: {first:.2f} first, {last:.2f} last", bool(nearer) == closes)

    return check


def against(*matchers: str, metric: str = "match") -> Check:
    """Slower than on the workload beside, on the mean over the axis."""

    def check(c: Curves) -> Outcome:
        found = {name: _against(c, name, metric) for name in matchers}
        text = ", ".join(f"{name} x{number(r)}" for name, r in found.items())
        return Outcome(text, all(r > 1 for r in found.values()))

    return check


def least_against(matcher: str, among: Sequence[str], metric: str = "match") -> Check:
    """Changes less than the others from the workload beside to this one."""

    def check(c: Curves) -> Outcome:
        found = {name: _against(c, name, metric) for name in among}
        text = ", ".join(f"{name} x{number(r)}" for name, r in found.items())
        off = {name: abs(float(np.log(r))) for name, r in found.items()}
        return Outcome(text, off[matcher] <= min(off.values()) + float(np.log(EQUAL_WITHIN)))

    return check


def _against(c: Curves, name: str, metric: str) -> float:
    common = set(c.line(name, metric)[0]) & set(c.line(name + BESIDE, metric)[0])
    if not common:
        raise Missing(f"{name}: nowhere on both workloads")
    here, there = (float(np.mean([c.value(lane, metric, x) for x in common])) for lane in (name, name + BESIDE))
    return here / there


def absolute(matcher: str, metric: str, unit: str, at: At = "last") -> Check:
    """A time of the paper's machine: ours is shown, not judged."""

    def check(c: Curves) -> Outcome:
        place = c.place(at)
        ours = f"{number(c.value(matcher, metric, at))} {unit} with {c.n[place]:,} subscriptions"
        return Outcome(ours, None, note="an absolute time of other hardware, language and number of subscriptions")

    return check


def number(value: float) -> str:
    """
    >>> number(1234.5), number(12.34), number(0.01234)
    ('1,234', '12.3', '0.0123')
    """
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def show(x: Any) -> str:
    return x if isinstance(x, str) else f"{x:,}"
