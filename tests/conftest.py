"""Settings that all tests share."""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import sys
from collections import defaultdict
from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

if os.environ.get("HITBOX_KERNELS"):  # `make coverage`: an engine that counts which lines run
    spec = importlib.util.spec_from_file_location("hitbox.engine._kernels", os.environ["HITBOX_KERNELS"])
    assert spec is not None
    assert spec.loader is not None
    sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[spec.name])
    importlib.import_module("hitbox.engine")._kernels = sys.modules[spec.name]  # type: ignore[attr-defined]

from hitbox import matchers
from hitbox.index import resolver
from support import durations

MATCHER = re.compile(rf"\[(?:.*-)?({'|'.join(matchers())})(?:-.*)?\]$")

settings.register_profile(
    "hitbox",
    max_examples=int(os.environ.get("HITBOX_EXAMPLES", 100)),  # fewer in `make check` and `make test`
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=bool(os.environ.get("CI")),
)
settings.load_profile("hitbox")


@pytest.fixture(autouse=True)
def _levels_of_logs() -> None:
    """A broker that an earlier test started in this process has set them."""
    logging.getLogger("hitbox").setLevel(logging.NOTSET)
    logging.getLogger().setLevel(logging.WARNING)


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


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-durations", action="store_true", help="write what each test takes to tests/durations.txt")


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """On several workers, the groups that take longest come first."""
    slow = durations.slow_tests()
    seconds: dict[str, float] = defaultdict(float)
    for item in items:
        seconds[group(item.nodeid)] += slow.get(item.nodeid, 0)
        if item.nodeid in slow:
            item.add_marker("slow")
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: -seconds[group(item.nodeid)])


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Skipped tests are easy to overlook."""
    if config.option.write_durations:
        write_durations(terminalreporter)
    for name, need in (("KAFKA", "kafka"), ("DELTA AND ICEBERG", "tables")):
        reports = terminalreporter.stats.get("skipped", [])
        skipped = [report for report in reports if f"NO {name}" in str(report.longrepr)]
        if skipped:
            text = f"{len(skipped)} TESTS WITH {name} WERE SKIPPED: run `tools/need {need}` to fetch it"
            terminalreporter.write_line(text, red=True, bold=True)


def write_durations(terminalreporter: Any) -> None:
    seconds: dict[str, float] = defaultdict(float)
    exhaustive = set()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                seconds[report.nodeid] += report.duration
                if "exhaustive" in report.keywords:
                    exhaustive.add(report.nodeid)
    durations.write(seconds, exhaustive, terminalreporter.config.option.numprocesses or 1)


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
    """What to keep on one worker: the tests of a file, for what they share; those of a matcher, so that its kernels
    compile once; half of the tests with Spark, for its one session. What runs Spark in processes of its own is kept
    together, so that it runs one at a time."""
    file = nodeid.partition("::")[0]
    if file.startswith("tests/spark/"):
        return "spark-elsewhere" if file.endswith("/test_elsewhere.py") else f"spark-{spark_halves().get(file, 0)}"
    of_matcher = MATCHER.search(nodeid)
    return of_matcher[1] if of_matcher else file


@cache
def spark_halves() -> dict[str, int]:
    """The files of each half, so that both take equally long."""
    seconds: dict[str, float] = defaultdict(float)
    for name, duration in durations.slow_tests().items():
        if name.startswith("tests/spark/"):
            seconds[name.partition("::")[0]] += duration
    sums, found = [0.0, 0.0], {}
    for file in sorted(seconds, key=lambda file: -seconds[file]):
        found[file] = sums.index(min(sums))
        sums[found[file]] += seconds[file]
    return found
