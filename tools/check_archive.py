"""Checks what a wheel or a source distribution holds; `--find FOLDER` prints the wheel there that this Python installs.

Needs nothing but pip: tools/check_wheel runs it in every environment.
"""

from __future__ import annotations

import sys
import tarfile
import zipfile
from pathlib import Path

MOST_BYTES = 3_000_000
UNWANTED = (
    "docs/reproduction/",
    "docs/broker.png",
    "benchmarks/results/",
    ".github/",
    ".ci/",
    "__pycache__",
    ".parquet",
)
NEEDED = {
    ".whl": ("hitbox/__init__.py", "hitbox/py.typed", "hitbox/broker/page/index.html"),
    ".gz": ("CMakeLists.txt", "pyproject.toml", "README.md", "LICENSE", "src/engine/build/grid.cpp"),
}


def check(archive: Path) -> list[str]:
    """What is wrong with the archive."""
    if archive.suffix == ".whl":
        names = zipfile.ZipFile(archive).namelist()
    else:
        with tarfile.open(archive) as tar:
            names = [name.partition("/")[2] for name in tar.getnames()]
    problems = [f"holds {name}" for name in names if any(part in name for part in UNWANTED)]
    problems += [f"lacks {name}" for name in NEEDED[archive.suffix] if name not in names]
    if archive.stat().st_size > MOST_BYTES:
        problems.append(f"is {archive.stat().st_size / 1e6:.1f} MB, more than {MOST_BYTES / 1e6:.1f} MB")
    if archive.suffix == ".whl":
        native = [name for name in names if "_kernels" in name and name.endswith(".so")]
        if len(native) != 1:
            problems.append(f"holds {len(native)} native modules, not one: {native}")
        elif ("abi3" in archive.name) != (".abi3." in native[0]):
            problems.append(f"has a tag that does not fit its native module {native[0]}")
        if "manylinux" not in archive.name and sys.platform == "linux":
            problems.append("has no manylinux tag")
    return problems


def find(folder: Path) -> str:
    """The wheel that this Python installs, or nothing."""
    from pip._vendor.packaging import tags
    from pip._vendor.packaging.utils import parse_wheel_filename

    known = set(tags.sys_tags())
    wheels = [wheel for wheel in folder.glob("*.whl") if parse_wheel_filename(wheel.name)[3] & known]
    return str(wheels[0]) if wheels else ""


def main() -> None:
    if sys.argv[1] == "--find":
        print(find(Path(sys.argv[2])))
        return
    archive = Path(sys.argv[1])
    problems = check(archive)
    for problem in problems:
        print(f"{archive.name} {problem}", file=sys.stderr)
    if problems:
        sys.exit(1)
    print(f"{archive.name}: {archive.stat().st_size / 1e6:.2f} MB, contents as they should be")


if __name__ == "__main__":
    main()
