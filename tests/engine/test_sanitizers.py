"""The kernels alone, in C++, against a linear scan: with sanitizers, and with assertions (NDEBUG is not defined)."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ["bindings/memory", "build/grid", "build/cluster"]
SOURCES += ["build/build_bitmap", "build/build_dense", "build/build_postings"]
X86 = platform.machine() in ("x86_64", "AMD64")


def flags_of_levels() -> dict[str, list[str]]:
    """The instruction sets that each level's kernels are compiled with."""
    text = (ROOT / "CMakeLists.txt").read_text()
    found: dict[str, list[str]] = {}
    for level, flags in re.findall(r"^set\(flags_(\w+) (.*)\)$", text, re.MULTILINE):
        words = [word for word in flags.replace('"', "").split() if word != "${quiet}"]
        found[level] = [flag for word in words for flag in (found[word[8:-1]] if word.startswith("${") else [word])]
    return found if X86 else {"baseline": []}


def compiler() -> str:
    for name in (os.environ.get("CXX"), "c++", "g++", "clang++"):
        if name and shutil.which(name):
            return name
    pytest.skip("no C++ compiler")


def build(folder: Path, program: str, sanitizers: str, levels: dict[str, list[str]]) -> Path:
    common = [compiler(), "-std=c++17", "-O1", "-g", f"-fsanitize={sanitizers}", "-fno-sanitize-recover=all"]
    common += ["-I", str(ROOT / "src/engine"), "-I", str(ROOT / "tests/engine/native")]
    common.append(f"-DHITBOX_X86={int(len(levels) > 1)}")
    jobs: list[tuple[Path, str, list[str]]] = [
        (ROOT / f"src/engine/{name}.cpp", name.replace("/", "-"), []) for name in SOURCES
    ]
    jobs.append((ROOT / f"tests/engine/native/{program}.cpp", program, []))
    for level, flags in levels.items():
        named = [f"-DHITBOX_KERNELS=kernels_{level}", f'-DHITBOX_NAME="{level}"']
        jobs.append((ROOT / "src/engine/match/match.cpp", level, flags + named))
    objects = []
    for source, name, flags in jobs:
        objects.append(folder / f"{name}.o")
        subprocess.run([*common, *flags, "-c", source, "-o", objects[-1]], check=True)
    subprocess.run([*common, *objects, "-pthread", "-o", folder / program], check=True)
    return folder / program


def build_alone(folder: Path, name: str) -> Path:
    """A program that needs headers only."""
    flags = ["-std=c++17", "-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    include = ["-I", str(ROOT / "src/engine")]
    subprocess.run(
        [compiler(), *flags, *include, ROOT / f"tests/engine/native/{name}.cpp", "-o", folder / name],
        check=True,
    )
    return folder / name


def assert_exact(program: Path) -> None:
    done = subprocess.run([program], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip() == "exact"


@pytest.mark.exhaustive  # `make test` runs the kernels without sanitizers
def test_sanitizers_find_nothing(tmp_path: Path) -> None:
    assert_exact(build(tmp_path, "check", "address,undefined", {"baseline": []}))


@pytest.mark.exhaustive  # `make test` runs the baseline under sanitizers, and every level without
def test_sanitizers_find_nothing_in_any_instruction_set(tmp_path: Path) -> None:
    assert_exact(build(tmp_path, "check", "address,undefined", flags_of_levels()))


@pytest.mark.exhaustive  # `make test` reads them without sanitizers
def test_hostile_predicates_do_not_reach_outside_their_text(tmp_path: Path) -> None:
    assert_exact(build_alone(tmp_path, "text"))


@pytest.mark.exhaustive  # `make test` reads them without sanitizers
def test_forged_programs_do_not_reach_outside_their_arrays(tmp_path: Path) -> None:
    assert_exact(build_alone(tmp_path, "programs"))


@pytest.mark.exhaustive  # `make test` reads them without sanitizers
def test_covers_with_anchors_are_those_of_a_linear_scan(tmp_path: Path) -> None:
    assert_exact(build_alone(tmp_path, "sets"))


@pytest.mark.exhaustive  # `make test` runs threads that match while others change, without a sanitizer
def test_threads_that_match_while_one_builds_do_not_race(tmp_path: Path) -> None:
    assert_exact(build(tmp_path, "threads", "thread", {"baseline": []}))


def test_every_instruction_set_that_kernels_are_compiled_with_is_asked_for() -> None:
    text = (ROOT / "src/engine/match/dispatch.hpp").read_text()
    asked = set(re.findall(r'__builtin_cpu_supports\("(\w+)"\)', text)) | set(re.findall(r"&& has_(\w+)\(\)", text))
    used = {flag.removeprefix("-m") for flags in flags_of_levels().values() for flag in flags if "=" not in flag}
    assert used == asked if X86 else not used
