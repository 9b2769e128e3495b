"""The kernels alone, in C++, under the address and undefined-behaviour sanitizers, against a plain scan."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = ["memory.cpp", "grid.cpp", "cluster.cpp", "build_bitmap.cpp", "build_postings.cpp"]
AVX2 = ["-mavx2", "-mbmi", "-mbmi2", "-mlzcnt", "-mpopcnt"]
AVX512 = [*AVX2, "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq"]
VBMI = [*AVX512, "-mavx512vbmi", "-mavx512vbmi2"]
X86 = platform.machine() in ("x86_64", "AMD64")
LEVELS: dict[str, list[str]] = (
    {"baseline": [], "avx2": AVX2, "avx512": AVX512, "avx512vbmi": VBMI} if X86 else {"baseline": []}
)


def compiler() -> str:
    for name in (os.environ.get("CXX"), "c++", "g++", "clang++"):
        if name and shutil.which(name):
            return name
    pytest.skip("no C++ compiler")


def build(folder: Path, cxx: str) -> Path:
    common = [cxx, "-std=c++17", "-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    common.append(f"-DHITBOX_X86={int(X86)}")
    jobs = [(ROOT / "src/engine" / name, name, []) for name in SOURCES]
    jobs.append((ROOT / "tests/native/check.cpp", "check", []))
    for level, flags in LEVELS.items():
        named = [f"-DHITBOX_KERNELS=kernels_{level}", f'-DHITBOX_NAME="{level}"']
        jobs.append((ROOT / "src/engine/match.cpp", level, flags + named))
    objects = []
    for source, name, flags in jobs:
        objects.append(folder / f"{name}.o")
        subprocess.run([*common, *flags, "-c", source, "-o", objects[-1]], check=True)
    program = folder / "check"
    subprocess.run([*common, *objects, "-pthread", "-o", program], check=True)
    return program


@pytest.mark.slow
def test_sanitizers_find_nothing(tmp_path: Path) -> None:
    done = subprocess.run([build(tmp_path, compiler())], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip() == "exact"
