"""How an experiment of a paper is declared: what is varied, which matchers run, what is measured, what was claimed.

    Paper ── Experiment ── Claim        papers/*.toml and *.csv, read by papers/__init__.py
                 │            └─ check(curves, rules) -> Outcome    (claims.py, rules.py)
                 └─ values at a scale x series ── one point each    (runner.py)

An experiment is one sweep over one axis, or several sweeps of one figure (`series`). It may serve several figures of
its paper, because one run yields times, spread, memory and upkeep at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from research.claims import Check

SCALES = ("smoke", "small", "paper")
MEASURES = ("match", "upkeep", "deletions", "times", "plan", "halves", "sending")
ENGINE = "hitbox"

Value = int | float | str
ByScale = Mapping[str, Any]


@dataclass(frozen=True)
class Scale:
    """How much is measured of each contestant at a point."""

    seeds: int
    """Workloads made from as many seeds at first; more are added where that may decide a claim."""
    events: int
    """Per seed."""
    repeats: int
    """How often each event is timed, where that is quick."""
    budget: float
    """Seconds of timing per contestant and seed beyond which nothing is repeated."""
    build_budget: float
    """Seconds that building one contestant may take."""
    checked: int
    """Events per seed that are compared with the oracle before anything is timed."""
    deleted: int
    """Subscriptions that are deleted one by one where `deletions` are measured."""
    hours: float
    """After so many hours of measuring, no more seeds are added to decide claims."""


SETTINGS = {
    "smoke": Scale(seeds=2, events=4, repeats=1, budget=0.02, build_budget=10, checked=2, deleted=10, hours=0),
    "small": Scale(seeds=3, events=34, repeats=3, budget=0.2, build_budget=60, checked=2, deleted=100, hours=2),
    "paper": Scale(seeds=3, events=34, repeats=3, budget=0.25, build_budget=1800, checked=2, deleted=1_000, hours=8),
}


def by(smoke: Any, small: Any, paper: Any) -> ByScale:
    return {"smoke": smoke, "small": small, "paper": paper}


@dataclass(frozen=True)
class Claim:
    """One statement of a paper: `said` is its figure, `check` compares our curves with it."""

    text: str
    said: str
    check: Check
    finding: str = ""
    """What we found out where it does not hold here, or with another factor; it is printed only then."""
    group: str = ""
    """Claims of an experiment with the same group repeat each other: they count once, as the weakest of them."""
    counted_in: str = ""
    """Another experiment, with a group of the same name: it counts with the claims of that."""
    trivial: bool = False
    """Any implementation would satisfy it: arithmetic of the workload, or more work for more subscriptions."""
    correction: str = ""
    """Why it is judged in another way than in the report before the rules."""
    was: str = ""
    """Its text in that report, where that was another one."""


@dataclass(frozen=True)
class Plot:
    """One picture of a metric over the axis, or of time against matches (`metric="scatter"`)."""

    figure: str
    metric: str
    log: bool = True
    table: bool = False
    """The paper shows a table of numbers here, and so does the report."""
    formulas: Mapping[str, Callable[[float], float]] = field(default_factory=dict)
    """What the paper calculates: matcher -> bytes for n subscriptions."""


@dataclass(frozen=True, eq=False)
class Experiment:
    name: str
    title: str
    """With `{n}` where the number of subscriptions stands: the report puts in what was really measured."""
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
    series: ByScale = field(default_factory=lambda: by(*({"": {}},) * 3))
    """Several curves of one figure: name -> workload parameters. The label of a contestant is then `rein 200k`."""
    events: Callable[[Any], dict[str, Any]] = lambda x: {}
    """Parameters that hold for the events only."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    beside: Mapping[str, Any] = field(default_factory=dict)
    """Parameters of a second workload, on which every matcher is timed in turn with the first. The machine's speed
    varies from point to point, so only this shows small differences."""
    measures: tuple[Literal["match", "upkeep", "deletions", "times", "plan", "halves", "sending"], ...] = ("match",)
    log_axis: bool = False
    most_events: int = 0
    """The paper's number of events, where it is another one here than elsewhere in the paper."""
    engine: bool = True
    """Whether the engine runs along; not where nothing but variants of one matcher are compared."""

    def parameters(self, scale: str, x: Value, series: str = "") -> dict[str, Any]:
        return {"n": self.n[scale], **self.fixed, **self.set(x), **self.series[scale][series]}

    def lanes(self, x: Value) -> dict[str, str]:
        """Label -> contestant, the engine last."""
        found = {}
        for text in (*self.matchers, *([ENGINE] if self.engine else [])):
            label, equals, spec = text.partition("=") if ":" in text and "=" in text.split(":")[0] else (text, "", text)
            found[label] = (spec if equals else text).format(x=x)
        return found

    def labels(self, scale: str) -> list[str]:
        """What the curves are called, at a scale: contestants, or contestants in each series."""
        return [label_of(name, series) for series in self.series[scale] for name in self.lanes(1)]

    def places(self, scale: str) -> Iterator[tuple[Value, str]]:
        """(value of the axis, series) of each point."""
        for series in self.series[scale]:
            for x in self.values[scale]:
                yield x, series


def label_of(contestant: str, series: str) -> str:
    return f"{contestant} {series}" if series else contestant


@dataclass(frozen=True)
class Paper:
    name: str
    title: str
    about: str
    experiments: tuple[Experiment, ...]
    events: int
    """How many events the paper measured per point: more than that are never measured."""
