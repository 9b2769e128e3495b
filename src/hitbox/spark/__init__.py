"""The Spark pipeline: everything that moves data in bulk.

    from hitbox import spark as hs

    hs.build(subscriptions, "snapshots/ads")
    hs.match(events, "snapshots/ads").write.parquet("matches")

Needs `pip install 'hitbox[spark,cli]'` and Java 17 (`cli` draws the progress).
"""

# ruff: noqa: E402 - the packages are checked before the imports that need them
from __future__ import annotations

import warnings

from hitbox.errors import require_extra

require_extra("hitbox.spark", "spark", "pyspark")
# said at the first use of a session, whoever made it; hitbox uses nothing of pandas
warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)

from hitbox.spark.build import BuildReport, build
from hitbox.spark.changes import ChangeReport, apply_changes
from hitbox.spark.event_source import register
from hitbox.spark.exchange import exchange
from hitbox.spark.generate import Generated, generate
from hitbox.spark.match import match
from hitbox.spark.session import session
from hitbox.spark.stream import match_stream, progress
from hitbox.spark.task_progress import show_progress
from hitbox.spark.versions import Version, diff, vacuum, versions
from hitbox.storage.snapshot import Vacuumed

__all__ = [
    "BuildReport",
    "ChangeReport",
    "Generated",
    "Vacuumed",
    "Version",
    "apply_changes",
    "build",
    "diff",
    "exchange",
    "generate",
    "match",
    "match_stream",
    "progress",
    "register",
    "session",
    "show_progress",
    "vacuum",
    "versions",
]
