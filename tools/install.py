"""Installs into .venv for the Makefile, says how far it is, and keeps what pip and the compiler print in .venv/*.log.

    tools/install.py tools                        what builds the native engine, and uv, which is quicker than pip
    tools/install.py packages requirements.lock   what a lock file lists: with uv if it is there, otherwise with pip
    tools/install.py engine                       the native engine, compiled here, and hitbox from this folder

Locks have hashes: pip and uv refuse a file that is not the one that was tested.
"""

from __future__ import annotations

import os
import queue
import re
import shutil
import subprocess
import sys
import threading
import time
from collections import deque
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".venv"
PYTHON = FOLDER / "bin" / "python"
DEMO = ROOT / "requirements-demo.lock"
TOOLS = ["cmake", "nanobind", "ninja", "packaging", "pathspec", "scikit-build-core"]
QUIET_SECONDS = 5
"""A line is printed at most that often."""
LAST_LINES = 40
NEWS = [
    (re.compile(r"\s*(\[\d+/\d+\]) (?:Building CXX object .*/(\S+)\.o|Linking)"), "compiling"),
    (re.compile(r"\s*Downloading (?:.*/)?([\w.]+)[^(]*(\([^)]+\))"), "downloading"),
    (re.compile(r"\s*(?:Collecting|Building wheel for|Building) ([\w.-]+)"), "preparing"),
    (re.compile(r"\s*Installing collected packages()"), "writing files"),
]


def packages(lock: Path) -> dict[str, str]:
    """The entries of a lock file by name, each with its hashes."""
    entries = re.findall(r"^\S.*(?:\n\s+.*)*\n", lock.read_text(), re.MULTILINE)
    return {re.split("[^\\w.-]", entry)[0]: entry for entry in entries}


def install(name: str, lock: Path, with_uv: bool) -> None:
    pip: list[object] = [
        PYTHON,
        "-m",
        "pip",
        "install",
        "--disable-pip-version-check",
        "--progress-bar",
        "off",
        "-r",
        lock,
    ]
    uv: list[object] = [find_uv(), "pip", "install", "--python", PYTHON, "--require-hashes", "-r", lock]
    if not (with_uv and find_uv() and run(name, uv, or_else="pip")):
        run(name, pip)


def find_uv() -> str | None:
    own = FOLDER / "bin" / "uv"
    return str(own) if own.exists() else shutil.which("uv")


def install_tools() -> None:
    entries = packages(DEMO)
    lock = FOLDER / "tools.lock"
    lock.write_text("".join(entries[name] for name in TOOLS))
    install("tools", lock, with_uv=True)
    if not find_uv():
        lock.write_text(entries["uv"])
        only_binary = ["--no-deps", "--only-binary", ":all:", "-r", lock]
        run("uv", [PYTHON, "-m", "pip", "install", "--disable-pip-version-check", *only_binary], or_else="pip")


def install_engine() -> None:
    os.environ["PATH"] = f"{FOLDER / 'bin'}{os.pathsep}{os.environ['PATH']}"  # cmake and ninja
    os.environ.pop("MAKEFLAGS", None)  # ninja would look for a job server there
    options = ["--disable-pip-version-check", "-v", "--no-build-isolation", "--no-deps", "-e", ROOT]
    run("native engine", [PYTHON, "-m", "pip", "install", *options])


def run(name: str, command: list[object], or_else: str = "") -> bool:
    """Whether it succeeded. A failure ends this program, unless `or_else` says what is tried then."""
    began = said = time.monotonic()
    log = FOLDER / f"{name.replace(' ', '-')}.log"
    print(f"{name}: installing with {'pip' if command[0] == PYTHON else 'uv'} ...", flush=True)
    with log.open("w") as file:
        process = subprocess.Popen(
            [str(part) for part in command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        reader = threading.Thread(target=lambda: deque(map(lines.put, process.stdout or ()), 0), daemon=True)
        reader.start()
        doing = ""
        while reader.is_alive() or not lines.empty():
            try:
                line = lines.get(timeout=0.2)
                file.write(line)
                doing = news(line) or doing
            except queue.Empty:
                pass
            if time.monotonic() - said > QUIET_SECONDS:
                said = time.monotonic()
                print(f"{name}: {doing or 'looking up'}, {said - began:.0f} s", flush=True)
    if process.wait() == 0:
        print(f"{name}: ready in {time.monotonic() - began:.0f} s", flush=True)
        return True
    if or_else:
        print(f"{name}: that failed (see {log}); trying {or_else} ...", flush=True)
        return False
    print(*log.read_text().splitlines()[-LAST_LINES:], f"{name}: FAILED; all of its output is in {log}", sep="\n")
    sys.exit(1)


def news(line: str) -> str:
    for pattern, doing in NEWS:
        if match := pattern.match(line):
            return " ".join([doing, *(part for part in match.groups() if part)])
    return ""


if __name__ == "__main__":
    what, *rest = sys.argv[1:]
    if what == "tools":
        install_tools()
    elif what == "packages":
        install("packages", ROOT / rest[0], with_uv=True)
    else:
        install_engine()
