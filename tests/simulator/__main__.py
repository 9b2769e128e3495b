"""`make torture`: the simulator on the command line (`PYTHONPATH=tests python -m simulator`)."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from hitbox.console.progress import progress
from simulator.torture import Report, torture

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    seed: Annotated[int, typer.Option(help="Seed of the first schedule; the others use the numbers that follow.")] = 1,
    minutes: Annotated[
        float | None, typer.Option(help="Stop after this time (default: 2, without --schedules).", min=0)
    ] = None,
    schedules: Annotated[int | None, typer.Option(help="Stop after this many schedules.", min=1)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Test the broker on a simulated disk and clock under crashes, full disks and other faults; status 1 on failure."""
    if minutes is None and schedules is None:
        minutes = 2.0
    failed = 0
    with progress("running schedules", total=schedules, unit="schedules") as step:

        def show(report: Report) -> None:
            nonlocal failed
            for failure in report.failures[failed:]:
                print(f"FAILED seed {failure.seed}: {failure.problem}", file=sys.stderr)
            failed = len(report.failures)
            expected = report.schedules * minutes * 60 / max(report.seconds, 1e-9) if minutes else None
            total = min(filter(None, (schedules, expected)), default=None)
            step.reach(report.schedules, total, f"{sum(report.faults.values()):,} faults, {failed} failures")

        report = torture(seed, minutes, schedules, show)
    if as_json:
        typer.echo(json.dumps(report.to_dict(), indent=1))
    else:
        _show(report)
    if report.failures:
        raise typer.Exit(1)


def _show(report: Report) -> None:
    last = report.first + report.schedules - 1
    typer.echo(f"{report.schedules} schedules (seeds {report.first} to {last}) in {report.seconds:.0f} s")
    typer.echo("faults:  " + ", ".join(f"{count} {name}" for name, count in sorted(report.faults.items())))
    typer.echo("broker:  " + ", ".join(f"{count} {name}" for name, count in sorted(report.counts.items())))
    for failure in report.failures[:20]:
        typer.echo(f"FAILED seed {failure.seed}: {failure.problem}\n        repeat with: {failure.replay}")
    if report.schedules == 1 and report.failures:
        typer.echo(report.failures[0].trace)
    typer.echo(f"{len(report.failures)} failures" if report.failures else "no failures")


if __name__ == "__main__":
    app(prog_name="make torture")
