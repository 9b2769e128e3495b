"""`make coverage`: runs the tests, and writes which lines and branches they reach into docs/reliability.md.

    tools/coverage_table.py                      the tests of make test
    tools/coverage_table.py -m "not spark"       others: the words are pytest's

The engine is compiled a second time, into build/coverage, with counters of gcov; tests/conftest.py loads it from there.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "build" / "coverage"
PAGE = ROOT / "docs" / "reliability.md"
MARKS = "<!-- coverage -->\n", "<!-- end of coverage -->\n"
TESTS = ["-n", "3", "-m", "not exhaustive"]

Counts = dict[str, list[int]]
"""Room -> lines, lines reached, branches, branches reached."""


def build() -> Path:
    nanobind = subprocess.run(
        [sys.executable, "-m", "nanobind", "--cmake_dir"], capture_output=True, text=True, check=True
    )
    options = [f"-Dnanobind_DIR={nanobind.stdout.strip()}", f"-DPython_EXECUTABLE={sys.executable}"]
    options += ["-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_CXX_FLAGS=--coverage -fprofile-update=atomic", "-G", "Ninja"]
    run(["cmake", "-S", ROOT, "-B", FOLDER, *options])
    run(["cmake", "--build", FOLDER])
    for counted in FOLDER.rglob("*.gcda"):
        counted.unlink()
    return next(FOLDER.glob("_kernels*.so"))


def run(command: list[object], check: bool = True) -> None:
    subprocess.run([str(part) for part in command], cwd=ROOT, check=check)


def python_rooms() -> Counts:
    run([sys.executable, "-m", "coverage", "combine", "--quiet"])
    run([sys.executable, "-m", "coverage", "json", "--quiet", "-o", FOLDER / "python.json"])
    counts: Counts = defaultdict(lambda: [0, 0, 0, 0])
    for file, entry in json.loads((FOLDER / "python.json").read_text())["files"].items():
        found = entry["summary"]
        row = [found[key] for key in ("num_statements", "covered_lines", "num_branches", "covered_branches")]
        add(counts, f"`{room(file, 'src/hitbox')}`", row)
    return counts


def native_rooms() -> Counts:
    """A line of a header, or of a file that is compiled once per instruction set, counts once."""
    reached: dict[str, dict[int, bool]] = defaultdict(dict)
    for notes in FOLDER.rglob("*.gcno"):
        if "nanobind" not in str(notes):
            words = ["gcov", "--json-format", "--stdout", notes]
            done = subprocess.run(words, capture_output=True, text=True, check=True, cwd=FOLDER)
            for file in (file for line in done.stdout.splitlines() for file in json.loads(line)["files"]):
                if "src/engine/" in file["file"]:
                    lines = reached[file["file"]]
                    for line in file["lines"]:
                        lines[line["line_number"]] = lines.get(line["line_number"], False) or line["count"] > 0
    counts: Counts = defaultdict(lambda: [0, 0, 0, 0])
    for file, lines in reached.items():
        add(counts, f"C++ `{room(file, 'src/engine')}`", [len(lines), sum(lines.values()), 0, 0])
    return counts


def room(file: str, folder: str) -> str:
    rest = file.partition(f"{folder}/")[2].split("/")
    return rest[0] if len(rest) > 1 else "(the files beside)"


def add(counts: Counts, name: str, row: list[int]) -> None:
    counts[name] = [a + b for a, b in zip(counts[name], row, strict=True)]


def table(counts: Counts) -> str:
    def share(part: int, whole: int) -> str:
        return f"{whole:,} | {part / whole:.1%}" if whole else "|"

    rows = ["| room | lines | reached | branches | reached |", "| --- | --: | --: | --: | --: |"]
    rows += [
        f"| {name} | {share(hit, lines)} | {share(taken, of)} |" for name, (lines, hit, of, taken) in counts.items()
    ]
    return "\n".join(rows) + "\n"


def main() -> None:
    tests = sys.argv[1:] or TESTS
    os.environ["PATH"] = f"{ROOT / '.venv/bin'}{os.pathsep}{os.environ['PATH']}"  # cmake and ninja
    os.environ["HITBOX_KERNELS"] = str(build())
    os.environ.setdefault("HITBOX_EXAMPLES", "30")
    run([sys.executable, "-m", "coverage", "erase"])
    run([sys.executable, "-m", "coverage", "run", "-m", "pytest", *tests], check=False)  # failures are seen above
    python, native = python_rooms(), native_rooms()
    counts = dict(sorted(python.items())) | dict(sorted(native.items()))
    for name, part in (("**Python**", python), ("**C++**", native)):
        counts[name] = [sum(column) for column in zip(*part.values(), strict=True)]
    words = " ".join(f'"{word}"' if " " in word else word for word in tests)
    text = f"{MARKS[0]}`make coverage` with `pytest {words}`:\n\n{table(counts)}{MARKS[1]}"
    page = PAGE.read_text()
    PAGE.write_text(re.sub(f"{MARKS[0]}.*{MARKS[1]}", lambda _: text, page, flags=re.DOTALL))
    print(table(counts))


if __name__ == "__main__":
    main()
