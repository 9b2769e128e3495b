"""What benchmarks ask the machine."""

from __future__ import annotations

import os
import signal
import subprocess

from research.machine import own_processes


def test_the_processes_that_this_one_started() -> None:
    with subprocess.Popen(["sh", "-c", "sleep 60 & echo $!; wait"], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        grandchild = int(child.stdout.readline())
        try:
            assert {os.getpid(), child.pid, grandchild} <= own_processes()
            assert own_processes(child.pid) == {child.pid, grandchild}
            assert os.getppid() not in own_processes()
        finally:
            os.kill(grandchild, signal.SIGKILL)
