"""Errors of tasks, as the functions that run jobs at once raise them.

Spark wraps what a task raises, with a stack trace of the worker. An error of hitbox says by itself what is wrong, so
it is raised again as what it is.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from pyspark.errors import PySparkException

from hitbox import errors
from hitbox.errors import HitboxError

_RAISED = re.compile(r"^hitbox\.errors\.(\w+): (.*?)(?=\n\s*\n|\n\s*JVM stacktrace|\n\s*at [\w.$]+\(|\Z)", re.M | re.S)


@contextlib.contextmanager
def raised_again() -> Iterator[None]:
    """Raise the error of hitbox that ended a job in the body; other errors stay as Spark raises them."""
    try:
        yield
    except PySparkException as problem:
        found = _RAISED.findall(str(problem))
        if not found:
            raise
        name, message = found[-1]
        kind = getattr(errors, name, HitboxError)
        plain = kind if kind in (errors.SnapshotError, errors.WriterConflict, errors.TableError) else HitboxError
        raise plain(message.strip()) from None
