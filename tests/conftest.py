"""Settings that all tests share."""

from __future__ import annotations

import os
import re
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from hitbox import matchers
from hitbox.index import resolver

MATCHER = re.compile(rf"\[(?:.*-)?({'|'.join(matchers())})(?:-.*)?\]$")

settings.register_profile(
    "hitbox",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=bool(os.environ.get("CI")),
)
settings.load_profile("hitbox")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The predicates that Python had to evaluate."""
    found: list[str] = []
    evaluate = resolver.language.evaluate

    def noted(predicate: Any, *arguments: Any) -> Any:
        found.append(predicate.text)
        return evaluate(predicate, *arguments)

    monkeypatch.setattr(resolver.language, "evaluate", noted)
    return found


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """On several workers: Spark first, because it takes longest."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: not group(item.nodeid).startswith("spark"))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Skipped tests are easy to overlook."""
    for name, need in (("KAFKA", "kafka"), ("DELTA AND ICEBERG", "tables")):
        reports = terminalreporter.stats.get("skipped", [])
        skipped = [report for report in reports if f"NO {name}" in str(report.longrepr)]
        if skipped:
            text = f"{len(skipped)} TESTS WITH {name} WERE SKIPPED: run `tools/need {need}` to fetch it"
            terminalreporter.write_line(text, red=True, bold=True)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Groups by name, because the marks of pytest-xdist 3.8 (xdist_group) are without effect on pytest 9.2."""
    from xdist.scheduler import LoadScopeScheduling

    class Groups(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group(nodeid)

    config.option.loadscopereorder = False
    return Groups(config, log)


def group(nodeid: str) -> str:
    """What to keep on one worker: Spark, for its one session; a matcher, so that its kernels compile once.

    What runs Spark in processes of its own is kept together, too, so that it runs one at a time.
    """
    if nodeid.startswith("tests/spark/"):
        return "spark-elsewhere" if "/test_elsewhere.py" in nodeid else "spark"
    of_matcher = MATCHER.search(nodeid)
    return of_matcher[1] if of_matcher else nodeid
