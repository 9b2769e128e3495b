"""`make reproduce`: the experiments of the papers, and whether their claims hold here."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from hitbox.console.progress import progress
from hitbox.errors import HitboxError
from research import judging, plan, rules
from research import reproduce as run
from research.errors import BenchError
from research.machine import free_memory
from research.rules import FAILS, VERDICTS
from research.runner import Store, Task, missing

app = typer.Typer(add_completion=False)
UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


@app.command()
def reproduce(
    paper: Annotated[str, typer.Argument(help="rein, symmetric, index-count, pri-rein, dexin or all")] = "all",
    scale: Annotated[
        str,
        typer.Option(help="smoke (only checks that it runs), small (an hour or two), paper (the sizes of the papers)"),
    ] = "small",
    out: Annotated[
        Path, typer.Option(help="directory for the report; what is already measured there is not measured again")
    ] = Path("reproduction"),
    figure: Annotated[str, typer.Option(help="only this experiment, such as widths or 'figure 11'")] = "",
    budget: Annotated[
        str, typer.Option(help="stop measuring after this time, such as 30m or 2h; the next run continues")
    ] = "",
    plan_only: Annotated[
        bool, typer.Option("--plan", help="print points, hours and memory, and measure nothing")
    ] = False,
    local: Annotated[
        bool, typer.Option("--local", help="make the workloads and judge in this process, without Spark")
    ] = False,
    rules_version: Annotated[
        int, typer.Option("--rules", help="judge by this version of the rules")
    ] = rules.CURRENT.version,
    as_json: Annotated[bool, typer.Option("--json", help="print the verdicts as JSON")] = False,
) -> None:
    """Repeat the experiments of the papers, check their claims, and write an overview and a page per paper."""
    try:
        _, todo = run.choose(paper, scale, figure)
        seconds = duration(budget)
        if plan_only:
            show_plan(todo, Store(out), Console())
            return
        if not as_json:
            show_plan(todo, Store(out), Console(stderr=True))
        units = len(missing(todo, Store(out)))
        with progress("preparing", total=max(1, units), unit="units") as step:

            def report(doing: str, done: int) -> None:
                step.advance(done, doing=doing or None)

            record = run.reproduce(
                paper,
                scale,
                out,
                figure=figure,
                seconds=seconds,
                spark=not local,
                rules_version=rules_version,
                progress=report,
            )
    except HitboxError as problem:
        typer.echo(f"hitbox: {problem}", err=True)
        raise typer.Exit(2) from None
    if as_json:
        typer.echo(json.dumps(record["verdicts"], indent=1))
        return
    _show(record, Console())
    typer.echo(f"{out / 'report.html'}")


def duration(text: str) -> float:
    """
    >>> duration("30m"), duration("90"), duration("1.5h"), duration("")
    (1800.0, 90.0, 5400.0, inf)
    """
    if not text:
        return float("inf")
    number, unit = (text[:-1], text[-1]) if text[-1] in UNITS else (text, "s")
    try:
        found = float(number) * UNITS[unit]
    except ValueError:
        found = 0.0
    if not found > 0:
        raise BenchError(f"--budget {text!r} is not a time: give 30m, 2h or a number of seconds")
    return found


def show_plan(todo: list[Task], store: Store, console: Console) -> None:
    lines = plan.plan(todo, store)
    table = Table("paper", "experiment", "points", "units", "subscriptions", "hours", "GB", box=box.SIMPLE_HEAD)
    for line in lines:
        cells = (line.points, line.units, f"{line.n:,}", f"{line.hours:.2f}", f"{line.memory_gb:.1f}")
        table.add_row(line.paper, line.experiment, *map(str, cells))
    console.print(table)
    most, free = max((line.memory_gb for line in lines), default=0.0), free_memory() / 1e9
    console.print(
        f"{sum(line.points for line in lines)} points, about {plan.total_hours(lines):.1f} hours for the first seeds; "
        f"claims that they leave undecided get more events while the budget lasts.\n"
        f"The largest contestant needs about {most:.1f} GB, and {free:.1f} GB are free. One that does not fit is "
        f"left out.",
        highlight=False,
    )


def _show(record: dict[str, object], console: Console) -> None:
    verdicts = record["verdicts"]
    assert isinstance(verdicts, list)
    table = Table("paper", *VERDICTS, "trivial", box=box.SIMPLE_HEAD)
    for paper in dict.fromkeys(v["paper"] for v in verdicts):
        found = judging.headline(v for v in verdicts if v["paper"] == paper)
        table.add_row(paper, *(str(found[name]) for name in (*VERDICTS, "trivial")))
    console.print(table)
    missing = record["missing"]
    assert isinstance(missing, list)
    if missing:
        where = Counter(f"{one['paper']} {one['experiment']}" for one in missing)
        console.print(
            f"Not complete: {len(missing)} units of measurement are missing "
            f"({', '.join(f'{name}: {count}' for name, count in where.items())}). The same command continues.",
            highlight=False,
        )
    console.print(judging.baseline_text(record["shuffled"]), highlight=False)  # type: ignore[arg-type]
    for v in verdicts:
        if v["verdict"] == FAILS:
            console.print(f"✗ {v['paper']}: {v['claim']} ({v['said']}): {v['ours']}", highlight=False, markup=False)
