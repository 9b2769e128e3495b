"""`hitbox serve`, `publish`, `subscribe` and `admin`."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn
from urllib.parse import quote

import msgspec
import typer
from typer.core import TyperCommand

from hitbox.broker.commands import access_cli, admin_cli, configuration
from hitbox.broker.commands.admin_cli import HERE, AsJson, Token, Url, ask, connected, output
from hitbox.broker.settings import check_name
from hitbox.broker.upkeep.data_folder import check_folder, folder_errors, has_store
from hitbox.console.errors import plain_errors
from hitbox.console.progress import progress
from hitbox.console.table_files import read_schema
from hitbox.encoding.fitting import FOR_EVENTS, check_on_error
from hitbox.errors import counted
from hitbox.protocol.errors import BadRequest, BrokerError

if TYPE_CHECKING:
    from hitbox.broker.telemetry import Telemetry  # an extra

app = typer.Typer(no_args_is_help=True, help="The live broker.", add_completion=False)
admin = typer.Typer(no_args_is_help=True, help="Operate a broker.")
app.add_typer(admin, name="admin")
admin.add_typer(admin_cli.subscribers, name="subscribers")
admin.add_typer(admin_cli.subscriptions, name="subscriptions")
admin.add_typer(admin_cli.webhooks, name="webhooks")
admin.add_typer(admin_cli.dead, name="dead")
admin.add_typer(admin_cli.delayed, name="delayed")
admin.add_typer(admin_cli.clock, name="clock")
admin.add_typer(admin_cli.schema, name="schema")
admin.add_typer(access_cli.tokens, name="tokens")
admin.add_typer(access_cli.principals, name="principals")

COLLECT_AFTER = 50_000
"""Objects that are made, and not freed, between two garbage collections of a serving broker."""
TELEMETRY_VARIABLES = ("OTEL_TRACES_EXPORTER", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
"""The broker makes spans if one of these is set."""
Config = Annotated[
    Path | None, typer.Option(help="TOML file with settings, such as max_batch = 500.", envvar="HITBOX_CONFIG")
]
Check = Annotated[
    bool, typer.Option("--check", help="Print the settings and what is wrong, and exit with 0 or 2; start nothing.")
]
Import = Annotated[
    Path | None, typer.Option("--import", help="For a new broker: snapshot of subscriptions to start with.")
]
ImportedAs = Annotated[
    str,
    typer.Option("--as", help="With --import: subscriber for ids that do not have the form subscriber/subscription."),
]
Data = Annotated[Path, typer.Option(help="Folder in which the broker keeps its data.")]


class PlainHelp(TyperCommand):
    """Help without a table, which cuts long flags in a terminal of 80 columns."""

    def __init__(self, *arguments: Any, **named: Any):
        super().__init__(*arguments, **{**named, "rich_markup_mode": None})


@app.command(cls=PlainHelp)
@configuration.with_flags
def serve(
    config: Config = None, check: Check = False, import_: Import = None, as_: ImportedAs = "", **flags: Any
) -> None:
    """Run a broker until it gets an interrupt (Ctrl-C) or a termination signal.

    Each setting may come from the file that --config names, from the environment (HITBOX_SERVE_MAX_BATCH) or from a
    flag (--max-batch); the later of these is the stronger.
    """
    early_hangups: list[int] = []
    signal.signal(signal.SIGHUP, lambda number, _: early_hangups.append(number))  # unhandled, it ends the process

    import logging

    from hitbox.broker import logs
    from hitbox.broker.broker import Broker
    from hitbox.broker.commands import start_check
    from hitbox.broker.http.app import serve
    from hitbox.broker.http.auth import AccessControl, check_origin, is_loopback
    from hitbox.broker.http.tls import Tls
    from hitbox.broker.upkeep import import_export

    with plain_errors():
        if as_ and import_ is None:
            raise typer.BadParameter("--as is only for --import")
        found = configuration.read(config, os.environ, flags)
        serving = found.serving
        if check:
            _report_check(found, import_ is not None)
        found.raise_problems()
        if not serving.data:
            raise BadRequest("name the folder for the broker's data: --data DIR")
    data, host = Path(serving.data), serving.host
    logs.configure(serving.log_level, serving.log_format)
    log = logging.getLogger("hitbox.broker")

    async def run() -> None:
        given = read_schema(serving.schema) if serving.schema else None
        check_folder(data)
        is_new = not has_store(data)
        if is_new:
            start_check.check_new_broker(serving, given is not None or import_ is not None)
        telemetry = _telemetry()
        if import_ is not None:
            with progress("reading the snapshot", unit="subscriptions") as step:
                given = import_export.load(data, import_, as_, lambda done, total: step.reach(done, total, "importing"))
        broker = Broker(data, given, found.settings, telemetry=telemetry)
        access = AccessControl(is_loopback(host), origins)
        name = f"[{host}]" if ":" in host else host

        def ready(bound: int) -> None:
            _collect_rarely()
            count = counted(len(broker.registry.index), "subscription", "subscriptions")
            address = f"{'https' if tls else 'http'}://{name}:{bound}"
            typer.echo(f"hitbox broker on {address} ({count}, from {broker.registry.restored_from})")
            sys.stdout.flush()
            if early_hangups:
                signal.raise_signal(early_hangups[0])  # now it is handled
            log.info("started on %s, with the%s folder %s", address, " new" if is_new else "", data)

        try:
            await serve(broker, access, host, serving.port, ready, tls=tls, allow_plain_text=serving.allow_plain_text)
        finally:
            if telemetry is not None:
                await asyncio.to_thread(telemetry.close)
        log.info("stopped; everything is in the folder %s", data)

    with plain_errors(), folder_errors(data):
        origins = frozenset(check_origin(one) for one in serving.allow_origin)
        tls = Tls.of(serving.tls_cert, serving.tls_key, serving.tls_client_ca)
        asyncio.run(run())


def _report_check(found: configuration.Configuration, imports: bool) -> NoReturn:
    """Print the settings and what is wrong, and end the command. A snapshot to import brings its own schema."""
    from hitbox.broker.commands import start_check

    typer.echo(found.describe())
    wrong = [*found.problems, *start_check.problems(found.serving)]
    if imports:
        wrong = [one for one in wrong if one != start_check.SCHEMA_MISSING]
    for one in wrong:
        typer.echo(f"hitbox: {one}", err=True)
    raise typer.Exit(2 if wrong else 0)


def _telemetry() -> Telemetry | None:
    """What makes OpenTelemetry spans, if the standard variables ask for them."""
    asked = [name for name in TELEMETRY_VARIABLES if os.environ.get(name)]
    off = os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
    if not asked or off or os.environ.get("OTEL_TRACES_EXPORTER") == "none":
        return None
    try:
        from hitbox.broker.telemetry import from_environment
    except ImportError as problem:
        raise BadRequest(
            f"{asked[0]} is set, but OpenTelemetry is not installed ({problem}): pip install 'hitbox[telemetry]', "
            "or set OTEL_SDK_DISABLED=true"
        ) from None
    return from_environment()


def _collect_rarely() -> None:
    """Leave what exists after the start out of garbage collection, and collect the rest rarely: deliveries come and go
    by the thousand and are no garbage in cycles, so looking at them was a fifth of the broker's time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER, 20, 20)


@app.command()
def publish(
    event: Annotated[str, typer.Argument(help="The event as JSON; - for stdin, one JSON event per line.")],
    where: Annotated[str, typer.Option(help="A predicate that the subscriptions must meet (symmetric matching).")] = "",
    payload: Annotated[str, typer.Option(help="JSON that is delivered with each event and not matched.")] = "",
    payload_file: Annotated[Path | None, typer.Option(help="The bytes of a file as the payload.")] = None,
    content_type: Annotated[str, typer.Option(help="What these bytes are, such as image/png.")] = "",
    id: Annotated[
        str, typer.Option(help="Id of the event, such as a UUID: it is stored once, however often this is repeated.")
    ] = "",
    ttl: Annotated[
        float | None,
        typer.Option(help="Seconds after which the events are not delivered any more.", show_default=False),
    ] = None,
    delay: Annotated[
        float | None, typer.Option(help="Seconds after which the events are matched and delivered.", show_default=False)
    ] = None,
    on_error: Annotated[
        str,
        typer.Option(
            help="Events from stdin that do not fit: raise (stop), null (bad values are null), return (left out). With "
            "the last two, the reasons go to stderr."
        ),
    ] = "raise",
    url: Url = HERE,
    token: Token = "",
) -> None:
    """Publish one event, or many from standard input; prints their numbers, or with --delay their numbers among the
    delayed events."""
    carried = _payload(payload, payload_file)
    kind = content_type or None
    times: dict[str, Any] = {"ttl_seconds": ttl, "delay_seconds": delay}
    if id and event == "-":
        raise typer.BadParameter("--id is for one event; with - there may be many")
    bad: set[int] = set()

    def report(line: int, reason: str) -> None:
        bad.add(line)
        typer.echo(f"line {line}: {reason}", err=True)

    with plain_errors(), connected(url, token) as client:
        check_on_error(on_error, FOR_EVENTS)
        if event != "-":
            one: dict[str, Any] = {"payload": carried, "content_type": kind, "id": id or None, **times}
            typer.echo(client.publish(_json(event), where or None, **one))
            return
        lines = _lines(None if on_error == "raise" else report)
        with progress("publishing", unit="events") as step:
            while numbered := list(itertools.islice(lines, 1000)):
                batch = [event for _, event in numbered]
                each: dict[str, Any] = {
                    "payloads": [carried] * len(batch),
                    "content_types": [kind] * len(batch),
                    "on_error": on_error,
                    "report": partial(_report_lines, numbered, report),
                    **times,
                }
                try:
                    typer.echo(client.publish_many(batch, [where or None] * len(batch), **each))
                except BrokerError as problem:
                    problem.add_note(f"in the lines {numbered[0][0]} to {numbered[-1][0]}; none of these was accepted")
                    raise
                step.advance(len(batch))
        if bad:
            typer.echo(f"{counted(len(bad), 'event does', 'events do')} not fit", err=True)


def _lines(report: Callable[[int, str], None] | None) -> Iterator[tuple[int, Any]]:
    """(number, event) of the lines of standard input; `report` is told of those that are no event."""
    for number, line in enumerate(sys.stdin, 1):
        if line.strip():
            try:
                yield number, _json(line, 0 if report else number)
            except typer.BadParameter as problem:
                if report is None:
                    raise
                report(number, problem.message)


def _report_lines(lines: list[tuple[int, Any]], report: Callable[[int, str], None], event: int, reason: str) -> None:
    report(lines[event][0], reason)


def _payload(text: str, file: Path | None) -> Any:
    if text and file is not None:
        raise typer.BadParameter("--payload and --payload-file: there is one payload")
    try:
        return file.read_bytes() if file is not None else _any_json(text) if text else None
    except OSError as problem:
        raise typer.BadParameter(f"--payload-file: {problem}") from None


def _any_json(text: str, place: str = "") -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise typer.BadParameter(f"{place}not JSON: {problem}: {text[:80]!r}") from None


def _json(line: str, number: int = 0) -> Any:
    """The event of a line. `number`: of the line, if there are several."""
    place = f"line {number}: " if number else ""
    found = _any_json(line, place)
    if not isinstance(found, dict):
        raise typer.BadParameter(f"{place}an event is a JSON object, not {line[:80]!r}")
    return found


@app.command()
def subscribe(
    where: Annotated[
        str, typer.Argument(help="The predicate; empty to receive for the subscriptions that exist already.")
    ] = "",
    name: Annotated[str, typer.Option(help="Name of a durable subscriber; without it only live events arrive.")] = "",
    id: Annotated[str, typer.Option(help="Name of the subscription.")] = "cli",
    priority: Annotated[int, typer.Option(min=0, max=9, help="9 is the most urgent.")] = 4,
    unmatched: Annotated[
        bool, typer.Option("--unmatched", help="Also receive events that match no subscription.")
    ] = False,
    changes: Annotated[
        bool, typer.Option("--changes", help="Be told whether a changed document enters, leaves or stays.")
    ] = False,
    shared: Annotated[
        bool, typer.Option("--shared", help="Share the deliveries with other connections of the subscriber.")
    ] = False,
    expires: Annotated[
        float, typer.Option(min=0, help="Remove the subscriber if it is not used for so many seconds; 0: never.")
    ] = 0,
    count: Annotated[int, typer.Option(min=0, help="Exit after this many deliveries; 0: never.")] = 0,
    wait: Annotated[float, typer.Option(min=0.1, help="Seconds to keep trying to connect.")] = 5.0,
    url: Url = HERE,
    token: Token = "",
) -> None:
    """Print deliveries, one JSON object per line, and acknowledge them."""
    with plain_errors(), connected(url, token, connect_seconds=wait) as client, contextlib.suppress(KeyboardInterrupt):
        wanted = [{"name": id, "where": where, "priority": priority}] if where else []
        given = {"unmatched": unmatched, "changes": changes, "shared": shared, "expires_seconds": expires}
        flags = {option: value for option, value in given.items() if value}
        options: dict[str, Any] = {**flags, "policy": "spool" if name else "drop_oldest"} if flags else {}
        for delivery in client.listen(name, wanted, count or None, ephemeral=not name, **options):
            typer.echo(msgspec.json.encode(delivery).decode())


@admin.command()
def stats(as_json: AsJson = True, url: Url = HERE, token: Token = "") -> None:
    """Print counters and sizes as JSON."""
    found = ask(url, token, "GET", "/v1/stats")
    typer.echo(json.dumps({key: value for key, value in found.items() if key != "history"}, indent=2))


@admin.command()
def replay(subscriber: str, first: int, as_json: AsJson = False, url: Url = HERE, token: Token = "") -> None:
    """Deliver stored events to a subscriber again, starting at sequence number FIRST; prints how many."""
    with plain_errors():
        path = f"/v1/subscribers/{quote(check_name(subscriber, 'subscriber'))}/replay"
    found = ask(url, token, "POST", path, {"first": first})
    output(found, as_json, lambda: [str(found["count"])])


@admin.command()
def snapshot(as_json: AsJson = True, url: Url = HERE, token: Token = "") -> None:
    """Save a snapshot of the index now; prints its version as JSON."""
    typer.echo(json.dumps(ask(url, token, "POST", "/v1/snapshot")))


@admin.command()
def unseen(
    events: Annotated[int, typer.Option(min=1, max=10_000, help="Of this many of the latest events.")] = 1_000,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
    url: Url = HERE,
    token: Token = "",
) -> None:
    """List attributes of subscriptions that none of the latest events had: they may be misspelt."""
    found = ask(url, token, "GET", "/v1/unseen", events=events)
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    for one in found["attributes"]:
        some = ", ".join(one["ids"][:3]) + (", ..." if one["subscriptions"] > 3 else "")
        typer.echo(f"{one['attribute']}: {counted(one['subscriptions'], 'subscription', 'subscriptions')} ({some})")
    none = "all attributes of the subscriptions were in" if not found["attributes"] else "not in any of"
    typer.echo(f"{none} the latest {counted(found['events'], 'event', 'events')}")


@admin.command()
def export(path: Path, data: Data) -> None:
    """Save the subscriptions as a snapshot for the library and Spark; prints its version. Stop the broker first."""
    from hitbox.broker.upkeep import import_export

    with plain_errors(), folder_errors(data):
        with progress("exporting the subscriptions", unit=""):
            version = import_export.export(data, path)
        typer.echo(version)


Folder = Annotated[Path, typer.Argument(help="Data folder of a broker that is stopped.")]


@admin.command()
def check(folder: Folder) -> None:
    """Report what is wrong with a broker's store, without changing it; exit status 1 if anything is."""
    from hitbox.broker.upkeep import repair

    with plain_errors(), progress("checking the store", unit=""):
        problems = repair.check(folder)
    for problem in problems:
        typer.echo(problem)
    typer.echo(f"{len(problems)} problems" if problems else "no problems found")
    if problems:
        raise typer.Exit(1)


@admin.command()
def backup(
    source: Annotated[str, typer.Argument(help="Address of a running broker, or the data folder of any.")],
    target: Annotated[Path, typer.Argument(help="New folder for the backup.")],
    token: Token = "",
) -> None:
    """Copy a broker's store as of one moment, while it runs, and check the copy."""
    from hitbox.broker.upkeep import backup

    with plain_errors(), progress("copying the store", unit="") as step:
        if "://" in source:
            with connected(source, token) as client:
                found = client.backup(target, step.reach)
        else:
            found = backup.backup(Path(source), target, step.reach)
    _report_copy(found, f"backup in {target}")


@admin.command()
def restore(
    source: Annotated[Path, typer.Argument(help="Folder that `hitbox admin backup` made.")],
    folder: Annotated[Path, typer.Argument(help="New data folder for a broker.")],
) -> None:
    """Make a broker's data folder from a backup and check it; nothing is overwritten."""
    from hitbox.broker.upkeep import backup

    with plain_errors(), progress("restoring the store", unit="") as step:
        found = backup.restore(source, folder, step.reach)
    _report_copy(found, f"restored to {folder}; start it with: hitbox serve --data {folder}")


def _report_copy(problems: list[str], done: str) -> None:
    for problem in problems:
        typer.echo(f"hitbox: warning: copied as it is: {problem}", err=True)
    typer.echo(done)


@admin.command("repair")
def repair_(folder: Folder) -> None:
    """Back up a damaged store and build a new one from what can be read; reports what was left out."""
    from hitbox.broker.upkeep import repair

    with plain_errors(), progress("repairing the store", unit=""):
        done = repair.repair(folder)
    typer.echo(f"backup of the old store: {done.backup}")
    typer.echo("kept: " + ", ".join(f"{count} {name}" for name, count in done.kept.items()))
    for note in done.notes:
        typer.echo(note)
    for one in done.left_out[:20]:
        typer.echo(f"left out, {one['table']}: {one['why']}: {str(one['row'])[:200]}")
    if done.damaged is not None:
        typer.echo(f"{len(done.left_out)} rows were left out; all of them are in {done.damaged}")
    else:
        typer.echo("nothing was left out")
