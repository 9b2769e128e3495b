"""Run many schedules one after the other; report the injected faults and the broken promises."""

from __future__ import annotations

import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from simulator.schedule import Schedule
from simulator.tenants import TenantSchedule

TENANTS_EVERY = 3
"""Every third seed is a schedule of two tenants."""


@dataclass
class Failure:
    seed: int
    problem: str
    trace: str

    @property
    def replay(self) -> str:
        return f"make torture ARGS='--seed {self.seed} --schedules 1'"


@dataclass
class Report:
    """`faults`: injected faults by kind. `counts`: what the broker did. `trace`: equal for equal schedules."""

    first: int
    schedules: int = 0
    seconds: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)
    trace: int = 0

    def to_dict(self) -> dict[str, Any]:
        return {
            "seed": self.first,
            "schedules": self.schedules,
            "seconds": round(self.seconds, 1),
            "faults": dict(sorted(self.faults.items())),
            "counts": dict(sorted(self.counts.items())),
            "trace": self.trace,
            "failures": [
                {"seed": f.seed, "problem": f.problem, "replay": f.replay, "traceback": f.trace} for f in self.failures
            ],
        }


def torture(
    seed: int,
    minutes: float | None = None,
    schedules: int | None = None,
    progress: Callable[[Report], None] = lambda report: None,
) -> Report:
    """Run schedules with the seeds `seed`, `seed` + 1 and so on, for `minutes` or until there were `schedules`."""
    report = Report(seed)
    began = time.monotonic()
    for one in _seeds(seed, schedules):
        schedule = TenantSchedule(one) if one % TENANTS_EVERY == 0 else Schedule(one)
        try:
            schedule.run()
        except Exception as problem:
            text = f"{type(problem).__name__}: {problem}".replace(str(schedule.folder), "DIR")
            report.failures.append(Failure(one, text, traceback.format_exc()))
        report.schedules += 1
        report.faults += schedule.faults
        report.counts += schedule.counts
        report.trace ^= schedule.trace
        report.seconds = time.monotonic() - began
        progress(report)
        if minutes is not None and report.seconds >= minutes * 60:
            break
    return report


def _seeds(first: int, count: int | None) -> Iterator[int]:
    one = first
    while count is None or one < first + count:
        yield one
        one += 1
