"""`make bench`: the harness on the command line.

Mounted with `app.command("bench", context_settings=CONTEXT)(bench)`. Whatever is not an option of the command itself
is a parameter of the workload (`--n 200k --width 0.1`), so each workload's parameters are options by their own names;
`--list` prints them, and an unknown one is an error with the nearest that exists.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from hitbox import workloads
from hitbox.console.progress import progress
from hitbox.errors import HitboxError
from research import bench_report, constructs, documents, goals
from research.bench import Settings, favourites, grow, run, steps
from research.contestants import contestants
from research.errors import BenchError

CONTEXT: dict[str, Any] = {"allow_extra_args": True, "ignore_unknown_options": True}

app = typer.Typer(add_completion=False)


@app.command(context_settings=CONTEXT)
def bench(
    context: typer.Context,
    workload: Annotated[
        str, typer.Argument(help="w1, w2, w3, w4, symmetric, ... (see --list), goals, documents or constructs")
    ] = "w1",
    matchers: Annotated[str, typer.Option(help="comma-separated; ratios refer to the first one")] = "",
    events: Annotated[int, typer.Option(help="number of single events to time")] = 400,
    batches: Annotated[str, typer.Option(help="batch sizes to time, comma-separated")] = "1,64,1024,4096",
    repeats: Annotated[int, typer.Option(help="repetitions; the matchers take turns")] = 5,
    updates: Annotated[int, typer.Option(help="subscriptions per bulk insert and delete")] = 10_000,
    check: Annotated[int, typer.Option(help="events whose matches are compared with a full scan first")] = 20,
    threads: Annotated[
        int, typer.Option(help="number of threads; above 1, wall-clock time is measured instead of CPU time")
    ] = 1,
    budget: Annotated[float, typer.Option(help="most seconds per measurement")] = 5.0,
    build_budget: Annotated[float, typer.Option(help="most seconds per build")] = 300.0,
    memory: Annotated[float, typer.Option(help="GB of memory that the run may use (0: all that is free)")] = 0.0,
    growth: Annotated[
        str, typer.Option(help="repeat with each of these numbers of subscriptions, such as 200k,1M,5M,10M")
    ] = "",
    out: Annotated[Path | None, typer.Option(help="write the results to this JSON file")] = None,
    plot: Annotated[Path | None, typer.Option(help="draw the results into this file")] = None,
    before: Annotated[
        Path | None, typer.Option(help="goals: a checkout of the version before, with its .venv, measured in turn")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="goals, documents, constructs: small sizes, to see that everything runs")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print the results as JSON instead of tables")] = False,
    listing: Annotated[bool, typer.Option("--list", help="print workloads, their parameters and matchers")] = False,
) -> None:
    """Compare the speed of matchers. Other options are parameters of the workload, such as --n 1M --width 0.1.

    `make bench ARGS=goals` measures what the library should reach, and prints it with the goals (about ten minutes).
    `make bench ARGS=documents` does so for lists, text, networks and places. `make bench ARGS=constructs` measures what
    each construct of the language costs (about five minutes).
    """
    try:
        if listing:
            _list(Console())
            return
        for path in (out, plot):
            if path is not None and not path.absolute().parent.is_dir():
                raise BenchError(f"cannot write {path}: {path.absolute().parent} is not a directory")
        name, parameters = workload_options([workload, *context.args])
        if name == "goals":
            if parameters or plot is not None:
                raise BenchError("goals have no parameters and no plot; --repeats, --before, --quick, --out and --json")
            _deliver(_run_goals(before, quick, repeats), out, None, as_json)
            return
        if name in ("documents", "constructs"):
            if parameters or plot is not None or before is not None:
                raise BenchError(f"{name} have no parameters and no plot; --repeats, --quick, --out and --json")
            run_it = _run_documents if name == "documents" else _run_constructs
            _deliver(run_it(quick, repeats), out, None, as_json)
            return
        settings = Settings(
            events=events,
            batches=tuple(_counts("batches", batches)),
            repeats=repeats,
            updates=updates,
            check=check,
            threads=threads,
            budget=budget,
            build_budget=build_budget,
            memory=memory * 1e9,
        )
        chosen = split_matchers(matchers) or favourites(name)
        record = _run(name, chosen, parameters, settings, _counts("growth", growth) if growth else [])
        _deliver(record, out, plot, as_json)
    except HitboxError as problem:
        typer.echo(f"hitbox: {problem}", err=True)
        raise typer.Exit(2) from None


def workload_options(words: list[str]) -> tuple[str, dict[str, str]]:
    """The workload's name and its parameters out of `w1 --n 200k --width=0.1`, in any order.

    >>> workload_options(["--free-ends", "--n", "200k", "w1"])
    ('w1', {'free_ends': 'true', 'n': '200k'})
    """
    flags = {key for name in workloads.names() for key, value in workloads.options(name).items() if value is False}
    names: list[str] = []
    parameters: dict[str, str] = {}
    rest = iter(words)
    for word in rest:
        if not word.startswith("--"):
            names.append(word)
            continue
        key, equals, value = word[2:].partition("=")
        key = key.replace("-", "_")
        if not equals:
            value = "true" if key in flags else next(rest, "")
        if not value:
            raise BenchError(f"option {word} needs a value")
        parameters[key] = value
    if len(names) > 1:
        raise BenchError(f"one workload at a time, but {' and '.join(names)} were given")
    return (names or ["w1"])[0], parameters


def split_matchers(text: str) -> list[str]:
    """Comma-separated names, where an option of a matcher may follow a comma too.

    >>> split_matchers("hitbox,rein:buckets=500,sorted_buckets=true,dexin")
    ['hitbox', 'rein:buckets=500,sorted_buckets=true', 'dexin']
    """
    names: list[str] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        if "=" in part and ":" not in part and names:
            names[-1] += f",{part}"
        else:
            names.append(part)
    return names


def _counts(option: str, text: str) -> list[int]:
    try:
        return [workloads.count(part.strip()) for part in text.split(",")]
    except (ValueError, OverflowError):
        raise BenchError(f"--{option} {text!r} is not a list of whole numbers such as 200k,1M") from None


def _run(
    name: str, chosen: list[str], parameters: dict[str, str], settings: Settings, sizes: list[int]
) -> dict[str, Any]:
    with progress("preparing", total=steps(chosen, settings) * max(1, len(sizes))) as step:

        def report(doing: str) -> None:
            step.advance(doing=doing)

        if sizes:
            return grow(name, sizes, chosen, dict(parameters), settings, report)
        return run(name, chosen, dict(parameters), settings, report)


def _run_goals(before: Path | None, quick: bool, rounds: int) -> dict[str, Any]:
    with progress("preparing", total=len(goals.CASES)) as step:

        def report(case: str) -> None:
            step.advance(0 if case == next(iter(goals.CASES)) else 1, doing=case)
            if not step.visible:
                typer.echo(f"measuring {case}", err=True)

        return goals.run(before, quick, rounds, report)


def _run_documents(quick: bool, rounds: int) -> dict[str, Any]:
    with progress("preparing", total=len(documents.CASES) + 1) as step:

        def report(case: str) -> None:
            step.advance(0 if case == next(iter(documents.CASES)) else 1, doing=case)
            if not step.visible:
                typer.echo(f"measuring {case}", err=True)

        return documents.run(quick, rounds, report)


def _run_constructs(quick: bool, rounds: int) -> dict[str, Any]:
    with progress("preparing", total=len(constructs.CONSTRUCTS)) as step:

        def report(construct: str) -> None:
            step.advance(0 if construct == constructs.CONSTRUCTS[0].what else 1, doing=construct)
            if not step.visible:
                typer.echo(f"measuring {construct}", err=True)

        return constructs.run(quick, rounds, report)


def _deliver(record: dict[str, Any], out: Path | None, plot: Path | None, as_json: bool) -> None:
    text = json.dumps(record, indent=1)
    if out is not None:
        try:
            out.write_text(text + "\n")
        except OSError as problem:
            raise BenchError(f"cannot write {out}: {problem}") from None
    if as_json:
        typer.echo(text)
    elif "goals" in record:
        console = Console()
        goals.show(record, console if console.is_terminal else Console(width=160))
    elif "documents" in record:
        console = Console()
        documents.show(record, console if console.is_terminal else Console(width=160))
    elif "constructs" in record:
        console = Console()
        constructs.show(record, console if console.is_terminal else Console(width=160))
    else:
        bench_report.show(record, Console())
    if plot is not None:
        bench_report.plot(record, plot)


def _list(console: Console) -> None:
    table = Table("workload", "what", "parameters", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    shown: dict[type, str] = {}
    for name in workloads.names():
        preset, values = workloads.PRESETS[name], workloads.options(name)
        like = shown.setdefault(preset.kind, name)
        if like != name:
            known = workloads.options(like)
            values = {key: value for key, value in values.items() if value != known[key]}
        text = ", ".join(f"{key}={value}" for key, value in values.items())
        table.add_row(name, preset.about, text if like == name else f"those of {like}, but {text}" if text else like)
    console.print(table)
    console.print(f"matchers: {', '.join(contestants())}", highlight=False)
