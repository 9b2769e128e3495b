"""The same code on Spark Connect, on clusters (one loses a worker, to one it is shipped), and under kill -9."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hitbox.spark import kafka_server, worker_check
from support import stream_kill
from support.tiers import only

SUPPORT = Path(__file__).parents[1] / "support"


def run(*command: str) -> str:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=570, env=clean)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


@pytest.mark.parametrize("where", only(["connect"], ["connect", "standalone", "bare", "shipped"]))
def test_the_pipeline_elsewhere(tmp_path: Path, where: str) -> None:
    assert "right" in run(str(SUPPORT / "spark_elsewhere.py"), where, str(tmp_path))


@pytest.mark.exhaustive  # `make test` interrupts builds, changes and streams at every step, without kills
@pytest.mark.parametrize(("what", "kills", "rows"), [("stream", 2, 3000), ("build", 2, 500), ("changes", 2, 500)])
def test_kill_minus_nine(what: str, kills: int, rows: int) -> None:
    facts = json.loads(
        run(str(SUPPORT / "stream_kill.py"), what, "--kills", str(kills), "--rows", str(rows)).splitlines()[-1]
    )
    assert facts["kills"] == kills
    if what == "stream":
        assert facts["rows"] % rows == 0
        assert (facts["lost"], facts["doubled"], facts["wrong"]) == (0, 0, 0)


@pytest.mark.exhaustive  # `make test` reads from Kafka and writes to it, without kills
def test_kill_minus_nine_between_kafka_and_kafka() -> None:
    if not kafka_server.available():
        pytest.skip("NO KAFKA: run tools/need kafka")
    facts = json.loads(run(str(SUPPORT / "stream_kill.py"), "kafka", "--kills", "1", "--rows", "1000").splitlines()[-1])
    assert facts["kills"] == 1
    assert facts["events"] % 1000 == 0
    assert (facts["lost"], facts["doubled"], facts["wrong"]) == (0, 0, 0)


@pytest.mark.parametrize(
    ("code", "done", "says"),
    [
        ("print('I am broken'); raise SystemExit(3)", False, "ended with status 3 (it said: I am broken"),
        ("(folder / 'ready').touch(); raise SystemExit(4)", False, "ended with status 4"),
        ("(folder / 'ready').touch(); (folder / 'done').touch()", True, ""),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", False, "ended with status -11"),
    ],
)
def test_a_child_that_ends_by_itself_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, done: bool, says: str
) -> None:
    """The killer used to fail with ProcessLookupError, in place of what the child had to say."""
    script = f"""
import pathlib, sys, time
go = pathlib.Path(sys.argv[sys.argv.index("--child") + 1])
while not go.exists():
    time.sleep(0.01)
folder = pathlib.Path(go.read_text())
{code}
"""
    (tmp_path / "child.py").write_text(script)
    monkeypatch.setattr(stream_kill, "__file__", str(tmp_path / "child.py"))
    child = stream_kill.Child("stream", tmp_path, 10)
    other = stream_kill.Child("stream", tmp_path, 10)
    folder = stream_kill.fresh(tmp_path)
    child.release(folder)
    child.process.wait(30)
    if done or "ready" in code:
        child.await_file(folder / "ready")
    else:
        with pytest.raises(SystemExit, match=re.escape(says)):
            child.await_file(folder / "ready")
    assert not child.kill(), "it had ended already, which is no error"
    assert says in child.fate()
    assert (folder / "done").exists() == done
    assert other.kill()


def test_why_workers_fail_is_said_in_one_line() -> None:
    java = ': SparkException: task failed: java.io.IOException: Cannot run program "/x"\n\tat y\nCaused by: ...'
    assert worker_check._reason(java) == 'IOException: Cannot run program "/x"'
    assert worker_check._reason("Traceback:\n  File\nModuleNotFoundError: No module named 'pyarrow'") == (
        "ModuleNotFoundError: No module named 'pyarrow'"
    )
    assert worker_check._reason("no executors\n...") == "no executors"
