"""The session that `hs.session` starts."""

from __future__ import annotations

import importlib
import subprocess
import sys
import threading
from typing import Any

import pytest

from hitbox.errors import HitboxWarning

session = importlib.import_module("hitbox.spark.session")


def test_javas_warning_about_incubator_modules_is_left_out(capfd: pytest.CaptureFixture[str]) -> None:
    """A child that starts meanwhile stands for the JVM: it goes on to write after the start."""
    script = f"echo '{session.HARMLESS.decode()}' >&2; echo something else >&2; sleep 0.2; echo later >&2"
    before = threading.enumerate()
    with session._jvm_messages_filtered():
        child = subprocess.Popen(["sh", "-c", script])
    assert child.wait(20) == 0
    print("mine", file=sys.stderr, flush=True)
    for thread in threading.enumerate():
        if thread not in before:
            thread.join(20)
    assert sorted(capfd.readouterr().err.splitlines()) == ["later", "mine", "something else"]


def test_names_with_dots_keep_their_underscores(spark: Any) -> None:
    with pytest.warns(HitboxWarning, match=r"so spark\.sql\.catalog\.my_lake=x, spark\.driver\.cores=7 are ignored"):
        session.session(**{"spark.sql.catalog.my_lake": "x"}, spark_driver_cores=7)
