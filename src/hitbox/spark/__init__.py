"""The Spark pipeline: everything that moves data in bulk.

    from hitbox import spark as hs

    hs.build(subscriptions, "snapshots/ads", schema={"price": "float", "city": "string"})
    hs.match(events, "snapshots/ads").write.parquet("matches")

Needs `pip install 'hitbox[spark]'` and Java 17.
"""

from __future__ import annotations

from hitbox.spark.build import BuildReport, build
from hitbox.spark.changes import ChangeReport, apply_changes
from hitbox.spark.event_source import register
from hitbox.spark.generate import Generated, generate
from hitbox.spark.match import match
from hitbox.spark.session import session
from hitbox.spark.stream import match_stream, progress

__all__ = [
    "BuildReport",
    "ChangeReport",
    "Generated",
    "apply_changes",
    "build",
    "generate",
    "match",
    "match_stream",
    "progress",
    "register",
    "session",
]
