"""Progress of a long step: one line on stderr with the rate and the time left, as long as the step lasts.

    with progress("loading", total=len(rows), unit="subscriptions") as step:
        for row in rows:
            ...
            step.advance()

The line is drawn on terminals and in notebooks, so that logs and pipes stay clean. A process draws one line at a time:
a step within another, or beside it in another thread, is not shown.
"""

from __future__ import annotations

import html
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn
from rich.text import Text

REFRESH_SECONDS = 0.2
PATIENCE_SECONDS = 0.5
"""How long a step waits for the line of another thread, which may be about to end."""

_screen = threading.Lock()
"""Held while a line is drawn."""
_here = threading.local()
"""`drawing`: whether this thread draws the line."""


class Step:
    """One long step; the work reports its progress here."""

    def __init__(self, bar: Progress, doing: str, total: float | None, visible: bool):
        self.visible = visible
        self._bar, self._task = bar, bar.add_task(doing, total=total)

    def advance(self, amount: float = 1, doing: str | None = None) -> None:
        """Report `amount` more units as done; `doing` describes what comes next."""
        self._bar.update(self._task, advance=amount, description=doing)

    def reach(self, done: float, total: float | None = None, doing: str | None = None) -> None:
        """Report `done` units of `total` as done so far."""
        self._bar.update(self._task, completed=done, total=total, description=doing)


class Figures(ProgressColumn):
    """`12/40 steps, 3.1 per second, 0:00:04, 0:00:09 left`: as much of it as is known."""

    def __init__(self, unit: str):
        self.unit = unit
        super().__init__()

    def render(self, task: Task) -> Text:
        parts = [str(timedelta(seconds=int(task.elapsed or 0)))]
        if self.unit:
            of = f"/{task.total:,.0f}" if task.total else ""
            parts = [f"{task.completed:,.0f}{of} {self.unit}", *parts]
        elif task.total:
            parts = [f"{task.percentage:.0f}%", *parts]
        speed = task.finished_speed or task.speed
        if speed and self.unit:
            rate = f"{speed:,.0f} per second" if speed >= 10 else f"{speed * 60:,.3g} per minute"
            parts.insert(1, rate)
        if speed and task.total and not task.finished:
            parts.append(f"{timedelta(seconds=int(task.time_remaining or 0))} left")
        return Text(", ".join(parts), no_wrap=True)


@contextmanager
def progress(
    doing: str, total: float | None = None, unit: str = "steps", console: Console | None = None
) -> Iterator[Step]:
    """Show how far the body has come. Without a unit the share that is done is shown, not a count."""
    console = console or Console(stderr=True)
    figures = Figures(unit)
    columns = (SpinnerColumn(), BarColumn(20), figures, TextColumn("{task.description}"))
    bar = Progress(*columns, console=console, transient=True, speed_estimate_period=600)
    with _alone(can_draw(console)) as visible:
        step = Step(bar, doing, total, visible)
        with nullcontext() if not visible else bar if console.is_terminal else _in_notebook(bar, figures):
            yield step


def can_draw(console: Console | None = None) -> bool:
    """Whether somebody can see a line: on a terminal or in a notebook."""
    console = console or Console(stderr=True)
    return console.is_terminal or console.is_jupyter


@contextmanager
def _alone(wanted: bool) -> Iterator[bool]:
    """Whether the body may draw; if so, nobody else does meanwhile."""
    if not wanted or getattr(_here, "drawing", False) or not _screen.acquire(timeout=PATIENCE_SECONDS):
        yield False
        return
    _here.drawing = True
    try:
        yield True
    finally:
        _here.drawing = False
        _screen.release()


@contextmanager
def _in_notebook(bar: Progress, figures: Figures) -> Iterator[None]:
    """Draw the bar as HTML below the cell; rich itself would need ipywidgets for that."""
    from IPython import display as notebook

    display: Any = notebook.display

    def drawn() -> dict[str, str]:
        (task,) = bar.tasks
        text = f"{figures.render(task)} {task.description}"
        share = f'value="{task.completed}" max="{task.total}"' if task.total else ""
        return {"text/plain": text, "text/html": f"<progress {share}></progress> {html.escape(text)}"}

    def refresh() -> None:
        while not ended.wait(REFRESH_SECONDS):
            shown.update(drawn(), raw=True)

    ended = threading.Event()
    shown = display(drawn(), raw=True, display_id=True)
    thread = threading.Thread(target=refresh, daemon=True, name="hitbox-progress-line")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        shown.update({"text/plain": "", "text/html": ""}, raw=True)
