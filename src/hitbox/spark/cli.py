"""`hitbox generate | build | match | stream | versions | diff | vacuum | demo`: the pipeline on the command line.

Tables are Parquet unless their name ends in .csv, .json or .jsonl. Spark runs on all cores of this machine, on
`--master`, or on a Connect server (SPARK_REMOTE). Errors go to stderr, with exit status 2.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hitbox import workloads
from hitbox.console import table_files
from hitbox.console.errors import plain_errors
from hitbox.console.progress import Step
from hitbox.console.progress import progress as shown_progress
from hitbox.errors import TableError, WorkloadError
from hitbox.index.matches import ERROR
from hitbox.spark import demo as demonstration
from hitbox.spark.build import build as built
from hitbox.spark.event_source import register
from hitbox.spark.generate import generate as generated
from hitbox.spark.kafka_demo import kafka_demo
from hitbox.spark.match import match as matched
from hitbox.spark.session import session
from hitbox.spark.store_settings import spark_address
from hitbox.spark.stream import match_stream, progress, stop
from hitbox.spark.task_errors import raised_again
from hitbox.spark.task_progress import show_progress
from hitbox.spark.versions import Version, diff, vacuum, versions
from hitbox.storage.addresses import ONLY_SPARK, is_remote, resolve, scheme_of

CONTEXT: dict[str, Any] = {"allow_extra_args": True, "ignore_unknown_options": True}

TEXT_ENDINGS = (".csv", ".json", ".jsonl", ".ndjson")

NUMBER_OF_MATCHES: dict[str, Callable[[], Column]] = {  # of bad events the result is null, whose size may be -1
    "arrays": lambda: F.sum(F.greatest(F.size("subscriptions"), F.lit(0))),
    "pairs": lambda: F.count("subscription"),
    "counts": lambda: F.sum("matches"),
}

app = typer.Typer(add_completion=False, no_args_is_help=True)

Master = Annotated[str | None, typer.Option(help="local[4], spark://host:7077, sc://host, ...")]
AsJson = Annotated[bool, typer.Option("--json", help="print the summary as JSON")]
Form = Annotated[str, typer.Option(help="arrays, pairs or counts")]
Limit = Annotated[int | None, typer.Option(help="at most this many matches per event, the most urgent ones")]
Keep = Annotated[str, typer.Option(help="event columns to copy to the output, comma-separated")]
EventId = Annotated[str, typer.Option("--event-id", help="the column that identifies an event")]
OnError = Annotated[
    str,
    typer.Option(
        help="events that do not fit: raise (stop), null (bad values are null), return (rows with the reason)"
    ),
]
Where = Annotated[
    str | None, typer.Option(help="event column with a predicate that the subscriptions must meet (symmetric matching)")
]

KeepVersions = Annotated[
    str | None,
    typer.Option(
        "--keep",
        help="versions that stay: the last N, or those current in the last '7 days' (default: as before, at first 2)",
    ),
]
Snapshot = Annotated[str, typer.Argument(help="folder or address of the snapshot")]


@app.command("generate", context_settings=CONTEXT)
def generate_command(
    context: typer.Context,
    workload: Annotated[str, typer.Argument(help="w1, w2, w3, w4, symmetric, ...")],
    out: Annotated[str, typer.Argument(help="folder for subscriptions/, events/ and schema.json")],
    subscriptions: Annotated[str, typer.Option(help="number of subscriptions, such as 200k or 1M")] = "200k",
    events: Annotated[str, typer.Option(help="number of events")] = "100k",
    layout: Annotated[
        str, typer.Option(help="of the subscriptions: wide (one column per bound) or where (predicates as text)")
    ] = "wide",
    master: Master = None,
    as_json: AsJson = False,
) -> None:
    """Write a synthetic workload as Parquet. Other options are parameters of the workload, such as --width 0.1."""
    with plain_errors():
        sizes = _count("subscriptions", subscriptions), _count("events", events)
        spark, parameters = _start(master), _parameters(context.args)
        with _timed(spark, "writing") as clock:
            generated(workload, *sizes, layout=layout, path=out, spark=spark, **parameters)
        summary = {"subscriptions": sizes[0], "events": sizes[1], "seconds": clock(), "out": out}
    _print_facts(as_json, summary)


@app.command("build")
def build_command(
    subscriptions: Annotated[str, typer.Argument(help="table of subscriptions, in either layout (see docs/spark.md)")],
    snapshot: Snapshot,
    schema: Annotated[str | None, typer.Option(help="price:float,city:string or a JSON file")] = None,
    parts: Annotated[
        int | None,
        typer.Option(help="number of parts to build in parallel (default: about one per million subscriptions)"),
    ] = None,
    latest_by: Annotated[
        str | None,
        typer.Option(help="of several rows with the same id, keep the one with the largest value in this column"),
    ] = None,
    report: Annotated[str | None, typer.Option(help="write bad rows to this table and continue without them")] = None,
    matcher: Annotated[str, typer.Option(help="matching algorithm")] = "auto",
    compact: Annotated[bool, typer.Option("--compact", help="smaller parts, which may take longer to match")] = False,
    keep: KeepVersions = None,
    id_column: Annotated[str | None, typer.Option(help="the column that holds the ids, if it is not 'id'")] = None,
    where_column: Annotated[
        str | None, typer.Option(help="the column that holds the predicates, if it is not 'where'")
    ] = None,
    master: Master = None,
    as_json: AsJson = False,
) -> None:
    """Build the next version of a snapshot from a table of subscriptions, in parallel.

    Columns: id, where (or bounds such as price_low and price_high), and optionally priority: 0 to 9, 9 is the most
    urgent, 4 the default.
    """
    with plain_errors():
        wanted = table_files.read_schema(schema) if schema else None
        spark = _start(master)
        with _timed(spark, "building") as clock:
            made = built(
                _table(spark, subscriptions),
                snapshot,
                wanted,
                matcher=matcher,
                compact=compact,
                parts=parts,
                latest_by=latest_by,
                on_error="return" if report else "raise",
                report=report,
                keep=keep,
                id_column=id_column,
                where_column=where_column,
            )
    rate = round(made.subscriptions / clock())
    facts = {name: getattr(made, name) for name in made.__slots__}
    facts["ignored_columns"] = list(made.ignored_columns) or None
    _print_facts(as_json, facts | {"seconds": clock(), "subscriptions_per_second": rate, "out": snapshot})


@app.command("match")
def match_command(
    events: Annotated[str, typer.Argument(help="table of events")],
    subscriptions: Annotated[str, typer.Argument(help="a snapshot, or a table of subscriptions")],
    out: Annotated[str, typer.Argument(help="Parquet table for the matches")],
    event_id: EventId = "event_id",
    form: Form = "arrays",
    limit: Limit = None,
    keep: Keep = "",
    where: Where = None,
    on_error: OnError = "raise",
    version: Annotated[int | None, typer.Option(help="of the snapshot (default: the current one)")] = None,
    as_of: Annotated[
        str | None, typer.Option(help="the version that was current at this time, such as '2026-01-31 12:00' (UTC)")
    ] = None,
    master: Master = None,
    as_json: AsJson = False,
) -> None:
    """Match a table of events against a snapshot on Spark."""
    with plain_errors():
        spark = _start(master)
        table, against = _read(spark, events), _against(spark, subscriptions)
        with _timed(spark, "matching") as clock, raised_again():
            options: dict[str, Any] = {"form": form, "limit": limit, "keep": _names(keep), "where": where}
            options["on_error"] = on_error
            found = matched(table, against, event_id, **options, version=version, as_of=as_of)
            found.write.mode("overwrite").parquet(place := spark_address(spark, out))
        written = spark.read.parquet(place)
        total = written.agg(NUMBER_OF_MATCHES[form]()).collect()[0][0] or 0
        bad = {"bad_events": written.where(F.col(ERROR).isNotNull()).count()} if on_error == "return" else {}
        count = table.count()
    facts = {"events": count, "matches": total, **bad, "seconds": clock(), "events_per_second": round(count / clock())}
    _print_facts(as_json, facts | {"out": out})


@app.command("stream", context_settings=CONTEXT)
def stream_command(
    context: typer.Context,
    snapshot: Annotated[str, typer.Argument(help="the snapshot; new versions are used from the next batch on")],
    out: Annotated[str, typer.Argument(help="Parquet table for the matches, one folder per batch")],
    checkpoint: Annotated[str, typer.Argument(help="folder for the checkpoint of the stream")],
    events: Annotated[str | None, typer.Option(help="folder to which Parquet files of events are added")] = None,
    workload: Annotated[str, typer.Option(help="without --events: synthetic events of w1, w2, ...")] = "w1",
    rows_per_batch: Annotated[str, typer.Option(help="synthetic events per batch")] = "10k",
    batches: Annotated[int, typer.Option(help="stop after this many batches (0: never)")] = 10,
    event_id: EventId = "event_id",
    form: Form = "arrays",
    limit: Limit = None,
    keep: Keep = "",
    where: Where = None,
    on_error: OnError = "raise",
    master: Master = None,
    as_json: AsJson = False,
) -> None:
    """Match a stream of events. Other options are parameters of the workload, such as --width 0.1."""
    with plain_errors(), shown_progress("starting Spark", batches or None, "batches") as step:
        spark = _start(master)
        if events is not None:
            source = spark.readStream.schema(_read(spark, events).schema).parquet(spark_address(spark, events))
        else:
            register(spark)
            reader = spark.readStream.format("hitbox").option("workload", workload)
            for name, value in _parameters(context.args).items():
                reader = reader.option(name, value)
            source = reader.option("rows_per_batch", str(_count("rows-per-batch", rows_per_batch))).load()
        options: dict[str, Any] = {"form": form, "limit": limit, "keep": _names(keep), "where": where}
        query = match_stream(source, snapshot, out, checkpoint, event_id, **options, on_error=on_error)
        done = _follow(query, checkpoint, batches, step)
    total = {
        name: sum(d[name] for d in done) for name in ("events", "matches", "bad_events", "seconds", "seconds_matching")
    }
    facts = total | {"batches": len(done), "versions": sorted({d["version"] for d in done})}
    _print_facts(
        as_json,
        facts | {"events_per_second": round(total["events"] / max(total["seconds"], 1e-9)), "out": out},
    )


@app.command("versions")
def versions_command(snapshot: Snapshot, as_json: AsJson = False) -> None:
    """List the versions of a snapshot: number, time, rows, operation."""
    with plain_errors():
        found = versions(snapshot)
    rows = [dict(zip(Version.__annotations__, one, strict=True)) for one in found]
    if as_json:
        typer.echo(json.dumps(rows, default=str))
    else:
        _print_rows(rows)


@app.command("diff")
def diff_command(
    snapshot: Snapshot,
    a: Annotated[int, typer.Argument(help="a version")],
    b: Annotated[int | None, typer.Argument(help="a later version (default: the current one)")] = None,
    limit: Annotated[int, typer.Option(help="subscriptions to print")] = 20,
    out: Annotated[str | None, typer.Option(help="write all of them to this Parquet table")] = None,
    master: Master = None,
    as_json: AsJson = False,
) -> None:
    """List the subscriptions that were added, removed or changed between two versions of a snapshot."""
    with plain_errors():
        spark = _start(master)
        found = diff(snapshot, a, b, spark=spark)
        with _timed(spark, "comparing"):
            if out:
                found.write.mode("overwrite").parquet(place := spark_address(spark, out))
                found = spark.read.parquet(place)
            counts = {row["change"]: row["count"] for row in found.groupBy("change").count().collect()}
            rows = [row.asDict(recursive=True) for row in found.limit(limit).collect()] if limit else []
    facts = {name: counts.get(name, 0) for name in ("added", "removed", "changed")} | ({"out": out} if out else {})
    if as_json:
        typer.echo(json.dumps(facts | {"subscriptions": rows}))
        return
    _print_rows([{"id": row["id"], "change": row["change"]} | _sides(row) for row in rows])
    _print_facts(False, facts)


@app.command("vacuum")
def vacuum_command(snapshot: Snapshot, keep: KeepVersions = None, as_json: AsJson = False) -> None:
    """Remove old versions of a snapshot, and what writers that died left behind."""
    with plain_errors():
        done = vacuum(snapshot, keep)
    shown = done.versions if as_json else ", ".join(map(str, done.versions)) or "none"
    _print_facts(as_json, {"versions_removed": shown, "files_removed": done.files, "bytes_freed": done.bytes})


@app.command("demo")
def demo_command(
    subscriptions: Annotated[str, typer.Option(help="number of subscriptions")] = "1M",
    events: Annotated[str, typer.Option(help="number of events")] = "100k",
    kafka: Annotated[bool, typer.Option("--kafka", help="show a stream from Kafka to Kafka instead")] = False,
    as_json: AsJson = False,
) -> None:
    """Run the whole pipeline in under two minutes: generate, build, match, check, compare, stream."""
    with plain_errors():
        console = Console(quiet=as_json)
        sizes = _count("subscriptions", subscriptions), _count("events", events)
        facts = kafka_demo(console) if kafka else demonstration.demo(*sizes, console=console)
    if as_json:
        typer.echo(json.dumps(facts))


def _follow(query: Any, checkpoint: str, batches: int, step: Step) -> list[dict[str, Any]]:
    """Wait for a number of batches, or for Ctrl-C; returns what they did."""
    before = len(progress(checkpoint))
    done: list[dict[str, Any]] = []
    try:
        while query.isActive and (not batches or len(done) < batches):
            time.sleep(0.2)
            done = progress(checkpoint)[before:]
            last = f"version {done[-1]['version']}, {done[-1]['matches']:,} matches" if done else "waiting"
            step.reach(len(done), doing=last)
    except KeyboardInterrupt:
        pass
    stop(query)
    return done


def _start(master: str | None) -> SparkSession:
    return session(master)


def _read(spark: SparkSession, path: str) -> DataFrame:
    path = spark_address(spark, path)
    try:
        if path.endswith(".csv"):
            return spark.read.csv(path, header=True, inferSchema=True)
        if path.endswith(TEXT_ENDINGS):
            return spark.read.json(path)
        return spark.read.parquet(path)
    except AnalysisException as problem:
        raise TableError(f"cannot read {path}: {str(problem).splitlines()[0]}") from None


def _table(spark: SparkSession, path: str) -> Any:
    """A table to build from: Parquet is read by the tasks themselves, if pyarrow can open the address."""
    parquet = not path.endswith(TEXT_ENDINGS) and scheme_of(path) not in ONLY_SPARK
    return path if parquet else _read(spark, path)


def _against(spark: SparkSession, path: str) -> Any:
    """A snapshot has a file CURRENT; anything else is a table."""
    if scheme_of(path) in ONLY_SPARK:
        return _read(spark, path)
    place = resolve(path)
    table = not is_remote(place) and Path(place).exists() and not Path(place, "CURRENT").exists()
    return _read(spark, path) if table else path


def _parameters(words: list[str]) -> dict[str, Any]:
    """`--width 0.1 --levels=10` as a mapping."""
    found: dict[str, str] = {}
    rest = iter(words)
    for word in rest:
        if not word.startswith("--"):
            raise WorkloadError(f"{word!r} is not an option; write parameters of the workload as --name value")
        key, equals, value = word[2:].partition("=")
        found[key.replace("-", "_")] = value if equals else next(rest, "")
    return found


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _count(option: str, text: str) -> int:
    try:
        return workloads.count(text)
    except (ValueError, OverflowError):
        raise WorkloadError(f"--{option} {text!r} is not a whole number such as 200k or 1M") from None


@contextmanager
def _timed(spark: SparkSession, doing: str) -> Iterator[Callable[[], float]]:
    """Show progress while the body runs; the seconds it took can be asked for afterwards."""
    began, ended = time.perf_counter(), [0.0]
    try:
        with show_progress(doing, spark):
            yield lambda: round(ended[0] - began, 3)
    finally:
        ended[0] = time.perf_counter()


def _sides(row: dict[str, Any]) -> dict[str, Any]:
    """What a subscription said before and says now, in short."""
    return {
        side: row[side] and " ".join(f"{row[side][name]}" for name in ("where", "priority", "about") if row[side][name])
        for side in ("before", "after")
    }


def _print_rows(rows: list[dict[str, Any]]) -> None:
    if not rows:
        return
    table = Table(*rows[0], box=None, header_style="bold")
    for row in rows:
        table.add_row(*["" if value is None else Text(str(value)) for value in row.values()])
    Console().print(table)


def _print_facts(as_json: bool, facts: dict[str, Any]) -> None:
    if as_json:
        typer.echo(json.dumps(facts))
        return
    console = Console()
    for name, value in facts.items():
        if value is not None:
            shown = f"{value:,}" if isinstance(value, (int, float)) else str(value)
            console.print(f"{name.replace('_', ' '):>26}  {shown}", highlight=False)
