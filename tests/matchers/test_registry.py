"""One algorithm = one line in the registry = one row in the README."""

from __future__ import annotations

import re
from pathlib import Path

from hitbox.matchers import AUTO, matchers

PROMISED = [
    "brute",
    "hitbox",
    "simple",
    "counting",
    "index-count",
    "siena",
    "tama",
    "h-tree",
    "be-tree",
    "opindex",
    "rein",
    "pri-rein",
    "pri-rein-s",
    "dexin",
    "r-tree",
    "compound",
    "ub-tree",
    "mlgf",
]


def test_every_matcher_is_there_and_described() -> None:
    rows = re.findall(
        r"^\| `([\w-]+)` \|", (Path(__file__).parents[2] / "docs" / "matchers.md").read_text(), re.MULTILINE
    )
    assert sorted(rows) == sorted(matchers()) == sorted(PROMISED)
    assert AUTO == "hitbox"
