"""Settings that all tests share."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # `randoms` and friends, from the folders below too

settings.register_profile(
    "hitbox",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=bool(os.environ.get("CI")),
)
settings.load_profile("hitbox")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What to keep on one worker: Spark, for its one session; a matcher, so that its kernels compile once."""
    for item in items:
        parameters = getattr(item, "callspec", None)
        matcher = parameters and (parameters.params.get("name") or parameters.params.get("matcher"))
        if HERE / "spark" in item.path.parents:
            item.add_marker(pytest.mark.xdist_group("spark"))
        elif isinstance(matcher, str):
            item.add_marker(pytest.mark.xdist_group(matcher))
