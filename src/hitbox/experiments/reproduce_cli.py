"""`hitbox reproduce`: the experiments of the papers, and whether their claims hold here."""

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
from hitbox.experiments import reproduce as run
from hitbox.experiments.report import FAILS, SIGNS
from hitbox.experiments.runner import Task

app = typer.Typer(add_completion=False)


@app.command()
def reproduce(
    paper: Annotated[str, typer.Argument(help="rein, symmetric, index-count, pri-rein, dexin or all")] = "all",
    scale: Annotated[
        str,
        typer.Option(help="smoke (only checks that it runs), small (under an hour), paper (the sizes of the papers)"),
    ] = "small",
    out: Annotated[
        Path,
        typer.Option(
            "--out", "-o", help="folder for the report; run again with the same folder to continue a stopped run"
        ),
    ] = Path("reproduction"),
    figure: Annotated[str, typer.Option(help="only this experiment, such as widths or 'figure 11'")] = "",
    seed: Annotated[int, typer.Option(help="seed of the workloads")] = 1,
    spark: Annotated[
        bool, typer.Option("--spark", help="generate the workloads and summarize the results with Spark")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print the verdicts as JSON")] = False,
) -> None:
    """Repeat the experiments of the papers, check their claims, and write an HTML report."""
    try:
        _, todo = run.plan(paper, scale, figure, seed)
        with progress("preparing", total=sum(task.weight for task in todo), unit="") as step:

            def report(task: Task, done: bool) -> None:
                step.advance(task.weight if done else 0, doing=str(task))

            record = run.reproduce(paper, scale, out, figure=figure, seed=seed, spark=spark, progress=report)
    except HitboxError as problem:
        typer.echo(f"hitbox: {problem}", err=True)
        raise typer.Exit(2) from None
    if as_json:
        typer.echo(json.dumps(record["verdicts"], indent=1))
        return
    _show(record["verdicts"], Console())
    typer.echo(f"{out / 'report.html'}")


def _show(verdicts: list[dict[str, str]], console: Console) -> None:
    table = Table("paper", *SIGNS, box=box.SIMPLE_HEAD)
    for paper in dict.fromkeys(v["paper"] for v in verdicts):
        found = Counter(v["verdict"] for v in verdicts if v["paper"] == paper)
        table.add_row(paper, *(str(found[name]) for name in SIGNS))
    console.print(table)
    for v in verdicts:
        if v["verdict"] == FAILS:
            console.print(f"✗ {v['paper']}: {v['claim']} ({v['said']}): {v['ours']}", highlight=False, markup=False)
