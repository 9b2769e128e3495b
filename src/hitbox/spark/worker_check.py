"""Can the workers run hitbox? Checked once per session, by a function that needs nothing but Python there."""

from __future__ import annotations

import os
import re
import sys
from typing import Any

from pyspark.sql import SparkSession

from hitbox import version
from hitbox.errors import HitboxError
from hitbox.spark.task_progress import job_description

_PROBE = """
def probe(batches):
    import pyarrow as pa
    try:
        import hitbox
        found = hitbox.__version__
    except ImportError as problem:
        found = f"! {problem}"
    for batch in batches:
        yield pa.RecordBatch.from_arrays([pa.array([found] * batch.num_rows)], ["version"])
"""

_ERROR = re.compile(r"\w+(?:Error|Exception): (?!.*(?:Error|Exception): ).+")
_asked: set[str] = set()


def require_hitbox(spark: SparkSession) -> None:
    """Raise an error that says what to do if the workers lack hitbox or have another version of it."""
    key = str(getattr(spark, "session_id", None) or id(spark))
    if key in _asked:
        return
    space: dict[str, Any] = {"__name__": "__main__"}  # so that the function travels by value, not by name
    exec(_PROBE, space)
    try:
        with job_description(spark, "hitbox: check that the workers can run it"):
            rows = spark.range(2, numPartitions=2).mapInArrow(space["probe"], "version string").distinct().collect()
    except Exception as problem:  # classic sessions, Connect and the JVM have no error in common
        raise _unfit(spark, _reason(str(problem))) from problem
    for row in rows:
        if row.version != version.__version__:
            raise _unfit(spark, row.version[2:] if row.version.startswith("!") else f"they have hitbox {row.version}")
    _asked.add(key)


def _unfit(spark: SparkSession, reason: str) -> HitboxError:
    remedies = "install the same version on every worker, or ship an environment that contains it with spark.archives"
    if not _python_chosen(spark):
        remedies = (
            f"set PYSPARK_PYTHON={sys.executable} before the session starts (hs.session() does that), or {remedies}"
        )
    return HitboxError(
        f"the Spark workers cannot run hitbox {version.__version__} ({reason}): {remedies} (docs/spark.md, Packaging)"
    )


def _python_chosen(spark: SparkSession) -> bool:
    """Whether somebody said which Python the workers run; otherwise it is the first `python3` on their PATH."""
    if os.environ.get("PYSPARK_PYTHON"):
        return True
    try:
        return bool(spark.conf.get("spark.pyspark.python", ""))
    except Exception:  # a Connect server does not say everything
        return False


def _reason(text: str) -> str:
    """The first error that a stack trace names, the innermost of its line."""
    found = _ERROR.search(text)
    return found[0].strip() if found else text.strip().partition("\n")[0]
