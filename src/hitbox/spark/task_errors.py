"""Errors of tasks: said first where Spark shows them, and raised again by the functions that run jobs at once.

Spark wraps what a task raises, with stack traces of the worker and of the JVM. An error of hitbox says by itself what
is wrong, so it leaves the task without the trace of Python, and stands before that of the JVM.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
from collections.abc import Callable, Iterator
from typing import Any

from pyspark.errors import PySparkException

from hitbox import errors
from hitbox.errors import HitboxError

Work = Callable[[Iterator[Any]], Iterator[Any]]

_RAISED = re.compile(
    r"\bhitbox\.errors\.(\w+): (.*?)(?=\n\s*\n|\s+SQLSTATE: \w{5}|\n\s*JVM stacktrace|\n\s*at [\w.$]+\(|\Z)", re.S
)
_NO_TRACEBACK = "SPARK_HIDE_TRACEBACK"
"""Spark sets it for its option spark.sql.execution.pyspark.udf.hideTraceback.enabled."""


def plainly(work: Work) -> Work:
    """The work of a task, whose errors are shown without a trace if they are of hitbox."""

    @functools.wraps(work)
    def task(batches: Iterator[Any]) -> Iterator[Any]:
        try:
            yield from work(batches)
        except HitboxError:
            os.environ[_NO_TRACEBACK] = "1"  # for this error alone: a worker ends with it
            raise

    return task


@contextlib.contextmanager
def raised_again() -> Iterator[None]:
    """Raise the error of hitbox that ended a job in the body; other errors stay as Spark raises them."""
    try:
        yield
    except PySparkException as problem:
        found = error_in(str(problem))
        if found is None:
            raise
        raise found from None


def error_in(text: str) -> HitboxError | None:
    """The error of hitbox that ended a job, from the text of Spark's."""
    found = _RAISED.findall(text)
    if not found:
        return None
    name, message = found[-1]
    kind = getattr(errors, name, HitboxError)
    plain = kind if kind in (errors.SnapshotError, errors.WriterConflict, errors.TableError) else HitboxError
    return plain(message.strip())
