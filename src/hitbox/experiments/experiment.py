"""How an experiment of a paper is declared: what is varied, which matchers run, what is measured, what was claimed.

    Paper ── Experiment ── Claim        papers/*.py hold nothing but these
                 │            └─ check(curves) -> Outcome          (claims.py)
                 └─ values at a scale ── one point each            (runner.py)

An experiment is one sweep over one axis. It may serve several figures of its paper, because one run yields times,
spread, memory and upkeep at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from hitbox.experiments.claims import Check

SCALES = ("smoke", "small", "paper")
MEASURES = ("match", "upkeep", "times", "plan", "halves")
ENGINE = "hitbox"

APPROXIMATE_TAMA = "tama=tama:exact=false"
"""TAMA as the papers ran it, which call it approximate: it counts cells and confirms nothing. Ours can be exact."""

Value = int | float | str
ByScale = Mapping[str, Any]


@dataclass(frozen=True)
class Scale:
    """How much work a point may be.

    events (fewest where a matcher is slow), repetitions, events checked against the oracle, seconds of timing a
    matcher, seconds of building one, GB that must be free before anything starts
    """

    events: int
    fewest: int
    repeats: int
    checked: int
    budget: float
    build_budget: float
    memory_gb: float


SETTINGS = {
    "smoke": Scale(6, fewest=4, repeats=1, checked=2, budget=0.02, build_budget=10, memory_gb=1),
    "small": Scale(60, fewest=12, repeats=3, checked=3, budget=1.0, build_budget=40, memory_gb=5),
    "paper": Scale(400, fewest=50, repeats=3, checked=20, budget=120, build_budget=7200, memory_gb=48),
}


def by(smoke: Any, small: Any, paper: Any) -> ByScale:
    return {"smoke": smoke, "small": small, "paper": paper}


@dataclass(frozen=True)
class Claim:
    """One statement of a paper: `said` is its figure, `check` compares our curves with it.

    `finding` is what we found out where it does not hold here, or with another factor; it is printed only then.
    """

    text: str
    said: str
    check: Check
    finding: str = ""


def each(
    titles: Mapping[str, str], text: str, said: str, check: Callable[[str], Check], finding: str = ""
) -> tuple[Claim, ...]:
    """What a paper says of several is judged one by one; `titles`: matcher -> what the paper calls it."""
    return tuple(Claim(text.format(title), said, check(name), finding) for name, title in titles.items())


@dataclass(frozen=True)
class Plot:
    """One picture of a metric over the axis, or of time against matches (`metric="scatter"`)."""

    figure: str
    metric: str
    log: bool = True


@dataclass(frozen=True)
class Experiment:
    name: str
    title: str
    axis: str
    """Label of what is varied, with its unit."""
    workload: str
    matchers: tuple[str, ...]
    """Contestants of the paper; `label=name:option={x}` gives one a label and the value of the axis as an option."""
    values: ByScale
    n: ByScale
    plots: tuple[Plot, ...]
    claims: tuple[Claim, ...]
    set: Callable[[Any], dict[str, Any]] = lambda x: {"n": x}
    """Workload parameters at a value of the axis."""
    events: Callable[[Any], dict[str, Any]] = lambda x: {}
    """Parameters that hold for the events only."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    beside: Mapping[str, Any] = field(default_factory=dict)
    """Parameters of a second workload, on which every matcher is timed in turn with the first. The machine's speed
    varies from point to point, so only this shows small differences."""
    measures: tuple[Literal["match", "upkeep", "times", "plan", "halves"], ...] = ("match",)
    log_axis: bool = False

    def parameters(self, scale: str, x: Value) -> dict[str, Any]:
        return {"n": self.n[scale], **self.fixed, **self.set(x)}

    def lanes(self, x: Value) -> dict[str, str]:
        """Label -> contestant, the engine always last."""
        found = {}
        for text in (*self.matchers, ENGINE):
            label, equals, spec = text.partition("=") if ":" in text and "=" in text.split(":")[0] else (text, "", text)
            found[label] = (spec if equals else text).format(x=x)
        return found

    @property
    def labels(self) -> list[str]:
        return list(self.lanes(1))


@dataclass(frozen=True)
class Paper:
    name: str
    title: str
    about: str
    experiments: tuple[Experiment, ...]
