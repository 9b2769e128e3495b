"""What a person sees of the Spark jobs that run: a progress line here, a description in Spark's UI."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hitbox.spark.session import active

POLL_SECONDS = 0.3

_showing = threading.local()


@contextmanager
def job_description(spark: Any, text: str) -> Iterator[None]:
    """Spark's UI shows the jobs of the body under this text; a Connect session has no such setting."""
    context = getattr(spark, "_sc", None)
    if context is None:
        yield
        return
    before = context.getLocalProperty("spark.job.description")
    context.setJobDescription(text)
    try:
        yield
    finally:
        context.setLocalProperty("spark.job.description", before)


@contextmanager
def show_progress(doing: str = "working", spark: Any = None) -> Iterator[None]:
    """Show how many Spark tasks are done while the body runs; on a Connect server, which does not say, the time.

        with hs.show_progress("matching"):
            hs.match(events, path).write.parquet("matches")

    The line is drawn on terminals if `rich` is installed, and in notebooks if `ipywidgets` is installed as well. Inside
    of another line it does nothing.
    """
    try:
        from hitbox.console.progress import progress
    except ImportError:  # rich comes with the extra cli
        yield
        return
    if getattr(_showing, "now", False):
        yield
        return
    _showing.now = True
    try:
        with progress(doing, unit="Spark tasks") as step, _watching(spark or active(), step):
            yield
    finally:
        _showing.now = False


@contextmanager
def _watching(spark: Any, step: Any) -> Iterator[None]:
    ended = threading.Event()
    if step.visible:
        threading.Thread(target=_watch, args=(spark, step, ended), daemon=True).start()
    try:
        yield
    finally:
        ended.set()


def _watch(spark: Any, step: Any, ended: threading.Event) -> None:
    try:
        tracker = spark.sparkContext.statusTracker()
        while not ended.wait(POLL_SECONDS):
            done, total = tasks_of(tracker)
            if total:
                step.reach(done, total)
    except Exception:  # a session without a tracker, or one that stops: the work itself will raise the error
        return


def tasks_of(tracker: Any) -> tuple[int, int]:
    """How many tasks of the stages that run now are done, and how many there are."""
    stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    known = [stage for stage in stages if stage is not None]
    return sum(stage.numCompletedTasks for stage in known), sum(stage.numTasks for stage in known)
