"""What a result must say about the machine that it was measured on, and how much memory is free."""

from __future__ import annotations

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
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


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
