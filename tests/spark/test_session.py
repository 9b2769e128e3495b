"""The session that `hs.session` starts."""

from __future__ import annotations

import importlib
import os
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


def test_what_the_jvm_writes_is_passed_on_at_once() -> None:
    """Spark's progress bar is a line that never ends; it used to stay in the filter until the line did."""
    (messages, jvm), (seen, screen) = os.pipe(), os.pipe()
    thread = threading.Thread(target=session._pass_on, args=(messages, screen))
    thread.start()
    os.write(jvm, b"\r[Stage 0:> (0 + 2) / 8]")
    assert os.read(seen, 100) == b"\r[Stage 0:> (0 + 2) / 8]"
    for part in (b"\rdone\n", session.HARMLESS[:20], session.HARMLESS[20:] + b"\nnext\nWARN"):
        os.write(jvm, part)
    os.close(jvm)
    thread.join(20)
    assert os.read(seen, 1000) == b"\rdone\nnext\nWARN"
    for end in (seen, screen):
        os.close(end)


def test_names_with_dots_keep_their_underscores(spark: Any) -> None:
    with pytest.warns(HitboxWarning, match=r"so spark\.sql\.catalog\.my_lake=x, spark\.driver\.cores=7 are ignored"):
        session.session(**{"spark.sql.catalog.my_lake": "x"}, spark_driver_cores=7)
