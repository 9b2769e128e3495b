"""The clock of the benchmarks on Spark counts every process once. Each case has a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def run(code: str, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(BENCHMARKS), "PYTHON_WORKER_FACTORY_SECRET": "x"}
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


BURN = "import time\nwhile time.process_time() < 0.5: pass\nprint('done', flush=True)\ninput()"
COUNT = """
import subprocess, sys
from spark_clock import Clock, cpu_seconds
with Clock() as clock:
    before = cpu_seconds()[1]
    with subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as burning:
        burning.stdout.readline()
        print(cpu_seconds()[1] - before)
        burning.communicate("\\n")
print(clock.python)
assert clock.jvm == 0
"""


@pytest.mark.parametrize("around", [[], ["sh", "-c", '"$@"; exit 0', "sh"]], ids=["child", "grandchild"])
def test_a_process_counts_once_while_it_lives_and_after_it_ended(around: list[str]) -> None:
    alive, ended = run(COUNT, *around, sys.executable, "-c", BURN).split()
    assert 0.4 < float(alive) <= float(ended) + 0.02
    assert float(ended) < 0.9


IDLE = "import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN); print('ready', flush=True); input()"
REFUSED = """
import subprocess, sys
from spark_clock import cpu_seconds
cpu_seconds()
with subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as idle:
    idle.stdout.readline()
    try:
        cpu_seconds()
    except RuntimeError as problem:
        print(str(problem).replace(str(idle.pid), "PID"))
    idle.communicate("\\n")
cpu_seconds()
"""


def test_a_process_that_does_not_wait_for_its_children_is_an_error() -> None:
    said = run(REFUSED, sys.executable, "-c", IDLE)
    assert said.startswith("process PID (")
    assert "does not wait for its children" in said


LESS = """
import spark_clock
readings = iter([(1.0, 40.0), (2.0, 5.0)])
spark_clock.cpu_seconds = lambda: next(readings)
try:
    with spark_clock.Clock():
        pass
except RuntimeError as problem:
    print(problem)
"""


def test_less_time_than_before_is_an_error() -> None:
    assert "CPU time was lost" in run(LESS)


WORKER = """
import os, socket, struct, subprocess, sys, time
from spark_clock import cpu_seconds
command = [sys.executable, "-m", sys.argv[1], "pyspark.worker"]
with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as daemon:
    (port,) = struct.unpack("!i", daemon.stdout.read(4))
    with socket.create_connection(("127.0.0.1", port)) as worker:
        (pid,) = struct.unpack("!i", worker.recv(4, socket.MSG_WAITALL))
        worker.sendall(struct.pack("!i", 5) + b"wrong")  # the secret; so the worker ends
    while os.path.exists(f"/proc/{pid}"):
        time.sleep(0.01)
    try:
        cpu_seconds()
        print("waits")
    except RuntimeError:
        print("does not wait")
    daemon.stdin.close()
"""


@pytest.mark.parametrize(("daemon", "does"), [("pyspark.daemon", "does not wait"), ("counting_daemon", "waits")])
def test_the_daemon_of_the_clock_waits_for_its_workers(daemon: str, does: str) -> None:
    """PySpark's own does not; that is why there is another."""
    pytest.importorskip("pyspark")
    assert run(WORKER, daemon).strip() == does
