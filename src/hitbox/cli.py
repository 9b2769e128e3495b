"""The `hitbox` command. Each command is thin: it reads, calls the library, prints.

Errors go to stderr, with exit status 2. What Spark and the broker add is imported only when it is
called, so that the others start quickly and work without those extras.
"""

from __future__ import annotations

import json
import re
import sys
from importlib import import_module
from typing import Annotated, Any

try:
    import typer
    import typer.core
    import typer.main
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table
except ModuleNotFoundError as missing:  # the core installs without them
    sys.exit(f"the hitbox command needs {missing.name}: pip install 'hitbox[cli]'")

from hitbox import Index, __version__, dialects
from hitbox.console import match_results, table_files
from hitbox.console.errors import plain_errors
from hitbox.console.progress import progress
from hitbox.errors import MissingExtra, ValueProblem, nearest

SPARK, BROKER = "hitbox.spark.cli", "hitbox.broker.commands.cli"
ELSEWHERE = {  # name: module, extra, summary
    "demo": (
        SPARK,
        "spark",
        "Run the whole pipeline on Spark: generate, build, match, check, stream (under two minutes).",
    ),
    "generate": (SPARK, "spark", "Write a synthetic workload as Parquet, on Spark."),
    "build": (SPARK, "spark", "Build a snapshot from a table of subscriptions, on Spark."),
    "stream": (SPARK, "spark", "Match a stream of events on Spark, exactly once, while subscriptions change."),
    "versions": (SPARK, "spark", "List the versions of a snapshot: number, time, rows, operation."),
    "diff": (SPARK, "spark", "List the subscriptions that changed between two versions of a snapshot, on Spark."),
    "vacuum": (SPARK, "spark", "Remove old versions of a snapshot, and what writers that died left behind."),
    "serve": (BROKER, "broker", "Start a broker: HTTP, WebSocket and a web page."),
    "publish": (BROKER, "broker", "Send events to a broker."),
    "subscribe": (BROKER, "broker", "Subscribe to events of a broker and print them."),
    "admin": (
        BROKER,
        "broker",
        "Operate a broker: subscribers, dead letters, schema, tokens, backup, repair.",
    ),
}


class LazyGroup(typer.core.TyperGroup):
    """Commands of this module, and those of ELSEWHERE on demand."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), *ELSEWHERE]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in ELSEWHERE:
            return super().get_command(ctx, cmd_name)
        module, extra, summary = ELSEWHERE[cmd_name]
        if ctx.resilient_parsing or not any(word == cmd_name for word in sys.argv[1:2]):
            return typer.core.TyperCommand(cmd_name, help=summary)  # only to be listed
        try:
            group = typer.main.get_group(import_module(module).app)
        except MissingExtra as missing:
            sys.exit(f"hitbox: {missing}")
        except ModuleNotFoundError as missing:
            sys.exit(f"hitbox {cmd_name} needs {missing.name}: pip install 'hitbox[{extra}]'")
        return group.commands[cmd_name]


app = typer.Typer(
    cls=LazyGroup,
    help="hitbox: which of my millions of standing subscriptions want this event?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"hitbox {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="print the version and exit", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    pass


Subscriptions = Annotated[
    str | None,
    typer.Option("--subscriptions", "-s", help="table of subscriptions: CSV, JSON lines or Parquet; - for stdin"),
]
Snapshot = Annotated[str | None, typer.Option("--snapshot", help="snapshot to use instead of --subscriptions")]
SchemaText = Annotated[
    str | None, typer.Option("--schema", help="price:float,city:string or a JSON file; - for JSON from stdin")
]
AsJson = Annotated[bool, typer.Option("--json", help="print JSON")]
Where = Annotated[str | None, typer.Option(help="a predicate that the subscriptions must meet (symmetric matching)")]
Matcher = Annotated[str | None, typer.Option(help="matching algorithm (default: the engine)")]


def _check_stdin(*inputs: str | None) -> None:
    if inputs.count(table_files.STDIN) > 1:
        raise ValueProblem("only one input can be - (standard input)")


def _open(
    subscriptions: str | None, snapshot: str | None, schema: str | None, matcher: str | None, events: Any
) -> Index:
    """The index that the options name."""
    if (subscriptions is None) == (snapshot is None):
        raise ValueProblem("give either --subscriptions FILE or --snapshot DIR")
    if snapshot is not None:
        return Index.open(snapshot, matcher=matcher)
    wanted = table_files.read_schema(schema) if schema else None
    if wanted is None and events is not None:  # one event alone does not say which attributes there are
        wanted = table_files.infer_schema(events)
    index = Index(wanted, matcher or "auto")
    index.load(table_files.read_table(subscriptions or ""))
    return index


@app.command()
def match(
    events: Annotated[str, typer.Argument(help="table of events: CSV, JSON lines or Parquet; - for stdin")],
    subscriptions: Subscriptions = None,
    snapshot: Snapshot = None,
    schema: SchemaText = None,
    where: Where = None,
    out: Annotated[
        str | None, typer.Option("--out", "-o", help="write the matches to this file (.csv, .jsonl, .parquet)")
    ] = None,
    threads: Annotated[int | None, typer.Option(help="number of threads (default: 1)")] = None,
    on_error: Annotated[
        str,
        typer.Option(help="events that do not fit: raise (stop), null (bad values are null), return (with the reason)"),
    ] = "raise",
    matcher: Matcher = None,
    event_id: Annotated[
        str | None,
        typer.Option(help="column that identifies an event (default: event_id; else id, else row numbers)"),
    ] = None,
    form: Annotated[
        str | None, typer.Option(help="arrays, pairs or counts (default: arrays; pairs for CSV, which has no lists)")
    ] = None,
    limit: Annotated[int | None, typer.Option(help="at most this many matches per event, the most urgent ones")] = None,
    keep: Annotated[str, typer.Option(help="event columns to copy to the output, comma-separated")] = "",
    spark: Annotated[bool, typer.Option("--spark", help="match on Spark; --out then names a Parquet table")] = False,
    master: Annotated[str | None, typer.Option(help="on Spark: the master or the address of a Connect server")] = None,
    as_json: AsJson = False,
) -> None:
    """Find the subscriptions that match each event of a table. Runs in this process, or on Spark with --spark."""
    with plain_errors():
        _check_place(spark, {"--master": master}, {"--schema": schema, "--threads": threads, "--matcher": matcher})
        if spark:
            source = snapshot or subscriptions
            if source is None or out is None:
                raise ValueProblem("--spark needs --snapshot DIR or --subscriptions TABLE, and --out TABLE")
            if table_files.STDIN in (events, source):
                raise ValueProblem("--spark reads tables by their name, not from standard input")
            on_spark = import_module(SPARK).match_command
            of_events = {"event_id": event_id or "event_id", "keep": keep, "where": where, "on_error": on_error}
            of_result = {"form": form or "arrays", "limit": limit, "as_json": as_json}
            on_spark(events, source, out, **of_events, **of_result, master=master)
            return
        _check_stdin(events, subscriptions, schema)
        with progress("reading events", total=3) as step:
            table = table_files.read_table(events)
            form = form or ("pairs" if out is not None and out.lower().endswith(".csv") else "arrays")
            kept = [name.strip() for name in keep.split(",") if name.strip()]
            labels = match_results.labels(table, event_id, kept, form, on_error)
            step.advance(doing="reading subscriptions")
            index = _open(subscriptions, snapshot, schema, matcher, table)
            step.advance(doing=f"matching {len(table):,} events with {len(index):,} subscriptions")
            matches = index.match_batch(table, where, threads=1 if threads is None else threads, on_error=on_error)
            matches = match_results.limited(matches, limit)
        total = f"{len(matches.ids)} matches" + (f", {len(matches.errors)} bad events" if matches.errors else "")
        results = match_results.as_table(matches, labels, form, on_error)
        if out is not None:
            table_files.write_table(out, results)
            print(f"{len(matches)} events, {total} -> {out}", file=sys.stderr)
        elif as_json:
            for line in table_files.json_lines(results):
                print(line)
        else:
            _show(results)
            print(f"{len(matches)} events, {len(index)} subscriptions, {total}", file=sys.stderr)


def _check_place(spark: bool, on_spark: dict[str, Any], here: dict[str, Any]) -> None:
    """Options that would not count are errors."""
    for name, value in (here if spark else on_spark).items():
        if value is not None:
            raise ValueProblem(
                f"{name} is for matching {'in this process, not on' if spark else 'on'} Spark: "
                f"{'leave it out' if spark else 'give --spark, too'}"
            )


def _show(answer: Any) -> None:
    table = Table(*answer.column_names)
    for row in answer.slice(0, 50).to_pylist():
        table.add_row(*map(_cell, row.values()))
    if len(answer) > 50:
        table.add_row("…", f"{len(answer) - 50} more rows; use --out or --json for all")
    Console().print(table)


def _cell(value: Any) -> str:
    if not isinstance(value, list):
        return escape(str(value))
    more = f" and {len(value) - 10} more" if len(value) > 10 else ""
    return escape(", ".join(map(str, value[:10])) + more)


@app.command()
def explain(
    event: Annotated[str, typer.Argument(help="one event as JSON, such as '{\"price\": 12.5}'; - for stdin")],
    id: Annotated[
        str | None, typer.Option(help="id of the subscription to explain (default: list all that match)")
    ] = None,
    subscriptions: Subscriptions = None,
    snapshot: Snapshot = None,
    schema: SchemaText = None,
    where: Where = None,
    misses: Annotated[int, typer.Option(help="without --id: explain this many subscriptions that nearly match")] = 0,
    matcher: Matcher = None,
    as_json: AsJson = False,
) -> None:
    """Explain why a subscription matches an event or does not, and what would make it match."""
    with plain_errors():
        _check_stdin(event, subscriptions, schema)
        values = _event(table_files.read_stdin().decode(errors="replace") if event == table_files.STDIN else event)
        index = _open(subscriptions, snapshot, schema, matcher, None)
        known: Any = id
        if id is not None and id not in index and re.fullmatch("-?[0-9]{1,19}", id):
            known = int(id)
        answer = index.explain(values, known, where, misses=misses)
        print(json.dumps(answer.to_dict(), ensure_ascii=False, indent=1, default=str) if as_json else str(answer))


@app.command()
def translate(
    file: Annotated[str, typer.Argument(help="the filter: a file; - for stdin")],
    dialect: Annotated[str, typer.Option("--from", help="eventbridge, jms or cesql")],
    schema: SchemaText = None,
) -> None:
    """Print the predicate that says the same as a filter of another system."""
    with plain_errors():
        _check_stdin(file, schema)
        if dialect not in dialects.__all__:
            raise ValueProblem(
                f"--from {dialect!r}{nearest(dialect, dialects.__all__)} (have: eventbridge, jms, cesql)"
            )
        text = table_files.read_text(file)
        wanted = table_files.read_schema(schema) if schema else None
        print(getattr(dialects, dialect).parse(text.strip(), wanted))


def _event(text: str) -> dict[str, Any]:
    try:
        event = json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise ValueProblem(f"the event is not JSON: {problem}") from None
    if not isinstance(event, dict):
        raise ValueProblem("the event is not a JSON object, such as '{\"price\": 12.5}'")
    return event


def main() -> None:
    app()
