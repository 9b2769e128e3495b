"""What a result must say about the machine that it was measured on; free memory; the processes this one started."""

from __future__ import annotations

import contextlib
import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import hitbox

PACKAGES = ("numpy", "pyarrow", "numba", "rtree", "duckdb")


def machine() -> dict[str, Any]:
    load = os.getloadavg() if hasattr(os, "getloadavg") else ()
    return {
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "memory_gb": round(_meminfo("MemTotal") / 1e9, 1),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "hitbox": hitbox.__version__,
        "packages": {name: version for name in PACKAGES if (version := _version(name))},
        "commit": commit(),
        "load": [round(value, 2) for value in load],
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def cpu_model() -> str:
    """Name, family and model: virtual machines of several generations call themselves the same."""
    info = Path("/proc/cpuinfo")
    said: dict[str, str] = {}
    for line in info.read_text().splitlines() if info.exists() else ():
        name, _, value = line.partition(":")
        said.setdefault(name.strip(), value.strip())
    if "model name" not in said:
        return platform.processor() or platform.machine()
    numbers = ", ".join(f"{name.split()[-1]} {said[name]}" for name in ("cpu family", "model") if name in said)
    return said["model name"] + (f" ({numbers})" if numbers else "")


def commit() -> str | None:
    """The commit of the source checkout, `+` where src/ has changes; None where hitbox was installed."""
    here = Path(__file__).parent
    try:
        head = _git(here, "rev-parse", "--short=12", "HEAD")
        changes = _git(here, "status", "--porcelain", "--untracked-files=no", "--", str(here.parents[1]))
        return head + ("+" if changes else "")
    except (OSError, subprocess.SubprocessError):
        return None


def free_memory() -> int:
    """Bytes that can be taken without swapping."""
    return _meminfo("MemAvailable")


def own_processes(first: int | None = None) -> set[int]:
    """This process (or `first`) and all that it started, itself or through others: on Spark, a JVM and its workers."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(folder.name))
    found, waiting = set(), [first or os.getpid()]
    while waiting:
        found.add(pid := waiting.pop())
        waiting += children.get(pid, [])
    return found


def _git(place: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=place, capture_output=True, text=True, timeout=10, check=True)
    return done.stdout.strip()


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _meminfo(field: str) -> int:
    info = Path("/proc/meminfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith(field + ":"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
