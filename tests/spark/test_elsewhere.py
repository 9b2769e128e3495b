"""The same code on Spark Connect, on executors that are processes of their own, shipped to them, and under kill -9."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hitbox.spark import workers

HERE = Path(__file__).parent
KILLER = HERE.parent.parent / "benchmarks" / "stream_kill.py"


def run(*command: str) -> str:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=570, env=clean)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("where", ["connect", "lost", "bare", "shipped"])
def test_the_pipeline_elsewhere(tmp_path: Path, where: str) -> None:
    assert "right" in run(str(HERE / "elsewhere.py"), where, str(tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize(("what", "kills", "rows"), [("stream", 2, 3000), ("build", 2, 500), ("changes", 2, 500)])
def test_kill_minus_nine(what: str, kills: int, rows: int) -> None:
    facts = json.loads(run(str(KILLER), what, "--kills", str(kills), "--rows", str(rows)).splitlines()[-1])
    assert facts["kills"] == kills


def test_why_workers_fail_is_said_in_one_line() -> None:
    java = ': SparkException: task failed: java.io.IOException: Cannot run program "/x"\n\tat y\nCaused by: ...'
    assert workers._reason(java) == 'IOException: Cannot run program "/x"'
    assert workers._reason("Traceback:\n  File\nModuleNotFoundError: No module named 'pyarrow'") == (
        "ModuleNotFoundError: No module named 'pyarrow'"
    )
    assert workers._reason("no executors\n...") == "no executors"
