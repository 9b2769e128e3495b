"""The rules that decide a verdict: every threshold in one table, each with its reason, fixed before the run.

A claim is brought to a ratio and a threshold: "A is faster than B" is B's time / A's time above 1; "is stable" is
largest / smallest below `steady`. One margin holds on both sides of every threshold:

    ratio / threshold     <= 1 / margin     between         >= margin
    verdict                  fails          undecided        holds          (the other way round for "below")

The 95% interval of the bootstrap must lie in one of the three zones as a whole. Where it straddles a border, the claim
is undecided, and more events or seeds may decide it. An interval inside the middle zone is a near tie: it stays
undecided.

Rules never change in place. A change is a new version at the end of VERSIONS, and a report shows what both say.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from research.errors import BenchError

F64 = NDArray[np.float64]
Zone = Literal["holds", "near tie", "fails", "straddles"]

FACTOR, DIRECTION, FAILS = "factor reproduced", "direction only", "fails"
UNDECIDED, NOT_COMPARABLE = "undecided", "not comparable"
OTHER_FACTOR, NO_FACTOR = "another factor", "the interval straddles the factor"
VERDICTS = (FACTOR, DIRECTION, FAILS, UNDECIDED, NOT_COMPARABLE)


@dataclass(frozen=True)
class Threshold:
    value: float
    reason: str


@dataclass(frozen=True)
class Rules:
    version: int
    about: str
    thresholds: Mapping[str, Threshold]

    def __getitem__(self, name: str) -> float:
        return self.thresholds[name].value

    def zone(self, samples: F64, threshold: float, above: bool) -> Zone:
        """Where the interval of a ratio lies: `samples` are the estimate and its resampled values."""
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = samples / threshold if above else threshold / np.maximum(samples, 0.0)
        low, high = self.interval(ratio)
        margin = self["margin"]
        if low >= margin:
            return "holds"
        if high <= 1 / margin:
            return "fails"
        return "near tie" if low >= 1 / margin and high <= margin else "straddles"

    def interval(self, samples: F64) -> tuple[float, float]:
        """The middle `confidence` of the resampled values; of a number that was not resampled, itself."""
        values = np.sort(samples[1:] if len(samples) > 1 else samples)
        tail = round((1 - self["confidence"]) / 2 * len(values))
        return float(values[tail]), float(values[len(values) - 1 - tail])


VERSIONS = (
    Rules(
        1,
        "The first rules that were fixed before the run that they judge.",
        {
            "margin": Threshold(
                1.1,
                "Two builds of the same code, or two layouts in memory, differ by up to a tenth here. A smaller lead "
                "says nothing about an algorithm, for or against the paper.",
            ),
            "confidence": Threshold(
                0.95, "The usual level; the interval leaves out 2.5% of the resamples on each side."
            ),
            "resamples": Threshold(1000, "The ends of the interval are the 25th and the 975th of a thousand values."),
            "seeds": Threshold(
                3, "The fewest that show a spread between workloads; more are added where that decides."
            ),
            "events": Threshold(100, "The fewest per point, over all seeds; more are added, up to the paper's number."),
            "lead": Threshold(1.0, "Faster, smaller, steeper, rises, falls: the two differ by the margin or more."),
            "equal": Threshold(
                1.21,
                "The same, hardly more, unaffected: the margin squared, so that the claim holds exactly where a lead "
                "would be a near tie (within 1.1).",
            ),
            "steady": Threshold(
                1.41,
                "Stable, flat, nearly unchanged, small variation: 1.28 times the margin. Pri-REIN calls 47.0 to 60.0 "
                "ms, a factor of 1.28, a small variation; no paper calls a larger measured one small.",
            ),
            "rapidly": Threshold(2.0, "Rapidly, quickly: at least doubles along the axis."),
            "negligible": Threshold(
                0.05, "Negligible, hardly any, a small share: a twentieth. Pri-REIN calls 5% small."
            ),
            "strong": Threshold(
                3.0,
                "Strongly correlated: (1 + r) / (1 - r) above 3, which is r = 0.5: three pairs in order for each "
                "pair that is not.",
            ),
            "linear": Threshold(
                1.25,
                "Linear: doubling the axis multiplies the value by 2, give or take this factor (with the margin: a "
                "power between 0.82 and 1.18 of the axis).",
            ),
            "factor": Threshold(
                2.0,
                "A factor is reproduced if our lead (the factor less 1) is between half and twice the paper's. Other "
                "hardware and another language alone change it by less.",
            ),
            "odds": Threshold(
                2.0, "A share is reproduced if its odds, share / rest, are between half and twice the paper's."
            ),
            "growth": Threshold(
                1.1,
                "A growth per doubling of the axis is reproduced within a tenth: it acts once per doubling, so a "
                "tenth is a third over a sweep from 100,000 to 1,000,000.",
            ),
            "few": Threshold(20, "A share of matches is judged only where this many matches are expected."),
        },
    ),
)
CURRENT = VERSIONS[-1]


def version(number: int) -> Rules:
    for rules in VERSIONS:
        if rules.version == number:
            return rules
    raise BenchError(f"there are no rules {number} (have: {', '.join(str(rules.version) for rules in VERSIONS)})")


@dataclass(frozen=True)
class Requirement:
    """Part of a claim: a ratio that must lie above (or below) a threshold."""

    samples: F64
    threshold: float
    above: bool = True


@dataclass(frozen=True)
class Factor:
    """What the paper's number asks for: the ratio of ours to it lies within [low, high]."""

    samples: F64
    low: float
    high: float


@dataclass(frozen=True)
class Outcome:
    ours: str
    verdict: str
    note: str = ""
    settled: bool = True
    """More events and seeds would not change the verdict: no interval straddles a border."""


def decide(rules: Rules, ours: str, requirements: list[Requirement], factor: Factor | None = None) -> Outcome:
    """All requirements must hold; one that fails decides. The factor counts only where they hold."""
    zones = [rules.zone(one.samples, one.threshold, one.above) for one in requirements]
    if "fails" in zones:
        return Outcome(ours, FAILS)
    if "straddles" in zones:
        return Outcome(ours, UNDECIDED, "the interval straddles the threshold", settled=False)
    if "near tie" in zones:
        return Outcome(ours, UNDECIDED, f"a near tie: within the margin of {rules['margin']:g}")
    if factor is None:
        return Outcome(ours, DIRECTION)
    low, high = rules.interval(factor.samples)
    if factor.low <= low and high <= factor.high:
        return Outcome(ours, FACTOR)
    if high < factor.low or low > factor.high:
        return Outcome(ours, DIRECTION, OTHER_FACTOR)
    return Outcome(ours, DIRECTION, NO_FACTOR, settled=False)


def number_decides(rules: Rules, ours: str, factor: Factor) -> Outcome:
    """A claim that is nothing but a number: it is reproduced or not, there is no direction."""
    low, high = rules.interval(factor.samples)
    if factor.low <= low and high <= factor.high:
        return Outcome(ours, FACTOR)
    if high < factor.low or low > factor.high:
        return Outcome(ours, FAILS)
    return Outcome(ours, UNDECIDED, NO_FACTOR, settled=False)


def table(rules: Rules) -> list[dict[str, Any]]:
    return [{"name": name, "value": one.value, "reason": one.reason} for name, one in rules.thresholds.items()]
