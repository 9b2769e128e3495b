"""What a person sees of the Spark jobs that run: a progress line here, a description in Spark's UI.

`build` draws a line while it runs. The DataFrame that `match` returns is computed later, by whatever the user does with
it. So a thread looks which queries Spark is running, and draws a line while one of them contains a match. Spark shows
the names of Python functions in its plans, which tells a match from other queries.
"""

from __future__ import annotations

import atexit
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hitbox.spark.session import active, at_prompt, is_connect

POLL_SECONDS = 0.2
RECENT_QUERIES = 20
TABLE_MATCH, STREAM_MATCH = "hitbox_match", "hitbox_match_stream"
"""How Spark's plans name the tasks of a match. Streams never end, so no line is drawn for them."""

_ended = threading.Event()
_watcher: threading.Thread | None = None


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
    """Show how many Spark tasks are done while the body runs, whatever it does on Spark.

        with hs.show_progress("counting"):
            events.groupBy("city").count().show()

    The line is drawn on terminals and in notebooks if `rich` is installed (extra `cli`). `build` and `match` draw one
    by themselves; within another line nothing is drawn.
    """
    spark = spark or active()
    if not _drawable(spark):
        yield
        return
    from hitbox.console.progress import progress

    with progress(doing, unit="Spark tasks") as step, _watching(spark, step):
        yield


def show_matches(spark: Any) -> None:
    """From now on, draw a line whenever a query with a match runs. A Connect server does not say what runs."""
    global _watcher
    if (_watcher is not None and _watcher.is_alive()) or is_connect(spark):
        return
    if _drawable(spark) and not at_prompt():
        _watcher = threading.Thread(target=_draw_matches, args=(spark,), daemon=True, name="hitbox-progress")
        _watcher.start()
        atexit.register(_end)


def _end() -> None:
    """A thread that is stopped in the middle of a line would leave the terminal without a cursor."""
    _ended.set()
    if _watcher is not None:
        _watcher.join(1)


def _drawable(spark: Any) -> bool:
    """Whether to draw lines: there is a screen, and Spark does not draw its own on it."""
    try:
        from hitbox.console.progress import can_draw
    except ImportError:  # rich comes with the extra cli
        return False
    if not can_draw():
        return False
    try:
        own = spark.conf.get("spark.ui.showConsoleProgress", "false") == "true"
    except Exception:  # a Connect server does not say everything
        own = False
    return not (own and sys.stderr.isatty())


def _draw_matches(spark: Any) -> None:
    from hitbox.console.progress import progress

    try:
        queries = Queries(spark)
        while not _ended.wait(POLL_SECONDS):
            if not queries.tracker.getActiveJobsIds() or queries.tasks() is None:
                continue
            with progress("matching", unit="Spark tasks") as step:
                while not _ended.is_set() and (tasks := queries.tasks()) is not None:
                    if tasks[1]:
                        step.reach(*tasks)
                    _ended.wait(POLL_SECONDS / 2)
    except Exception:  # the session stopped, or does not allow this: nobody needs a line then
        return


class Queries:
    """The queries with a match that a classic session is running."""

    def __init__(self, spark: Any):
        self.store = spark._jsparkSession.sharedState().statusStore()
        self.tracker = spark.sparkContext.statusTracker()
        self.known: dict[int, bool] = {}
        """By number: whether a query contains a match."""

    def tasks(self) -> tuple[int, int] | None:
        """How many tasks of their running stages are done, and how many there are; None if no such query runs."""
        count = self.store.executionsCount()
        recent = self.store.executionsList(max(0, count - RECENT_QUERIES), RECENT_QUERIES)
        running = [one for one in map(recent.apply, range(recent.size())) if one.completionTime().isEmpty()]
        stages = [one.stages().mkString(" ") for one in running if self._matches(one)]
        if not stages:
            return None
        return tasks_of(self.tracker, {int(number) for number in " ".join(stages).split()})

    def _matches(self, query: Any) -> bool:
        number = query.executionId()
        if number not in self.known:
            self.known = {old: it for old, it in self.known.items() if old > number - 10 * RECENT_QUERIES}
            self.known[number] = f"{TABLE_MATCH}(" in query.physicalPlanDescription()
        return self.known[number]


@contextmanager
def _watching(spark: Any, step: Any) -> Iterator[None]:
    """Report the tasks of all jobs to the step."""
    if not step.visible:
        yield
        return
    if is_connect(spark):
        with _reported(spark, step):
            yield
        return
    ended = threading.Event()
    threading.Thread(target=_watch, args=(spark, step, ended), daemon=True).start()
    try:
        yield
    finally:
        ended.set()


@contextmanager
def _reported(spark: Any, step: Any) -> Iterator[None]:
    """A Connect session reports the tasks of its own jobs."""

    def report(stages: Any, inflight_tasks: int, operation_id: Any, done: bool) -> None:
        known = list(stages or [])
        if known:
            step.reach(sum(stage.num_completed_tasks for stage in known), sum(stage.num_tasks for stage in known))

    spark.registerProgressHandler(report)
    try:
        yield
    finally:
        spark.removeProgressHandler(report)


def _watch(spark: Any, step: Any, ended: threading.Event) -> None:
    try:
        tracker = spark.sparkContext.statusTracker()
        while not ended.wait(POLL_SECONDS):
            done, total = tasks_of(tracker, tracker.getActiveStageIds())
            if total:
                step.reach(done, total)
    except Exception:  # a session without a tracker, or one that stops: the work itself will raise the error
        return


def tasks_of(tracker: Any, stages: Any) -> tuple[int, int]:
    """How many tasks of those of these stages that run now are done, and how many there are."""
    running = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds() if stage in stages]
    known = [stage for stage in running if stage is not None]
    return sum(stage.numCompletedTasks for stage in known), sum(stage.numTasks for stage in known)
