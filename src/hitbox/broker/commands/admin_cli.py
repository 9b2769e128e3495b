"""`hitbox admin subscribers`, `webhooks`, `dead`, `delayed`, `clock` and `schema`: they ask a running broker."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from hitbox.broker.settings import Options, check_name
from hitbox.console.errors import plain_errors
from hitbox.console.table_files import read_schema
from hitbox.errors import counted, nearest
from hitbox.protocol.errors import BadRequest, BrokerError, NotAllowed, Unknown

if TYPE_CHECKING:
    from hitbox.client.sync import SyncClient  # importing it takes time

HERE = "http://127.0.0.1:8400"
MOST = 1_000
Url = Annotated[str, typer.Option(help="Address of the broker.", envvar="HITBOX_URL")]
Token = Annotated[str, typer.Option(help="Token, if the broker requires one.", envvar="HITBOX_TOKEN")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Limit = Annotated[int, typer.Option(min=1, max=MOST, help="Show at most this many.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
Name = Annotated[str, typer.Argument(help="Name of the subscriber.")]
SubscriptionName = Annotated[str, typer.Argument(help="Name of the subscription.")]
Numbers = Annotated[list[int] | None, typer.Argument(help="Numbers of dead letters, as `list` shows them.")]
Every = Annotated[bool, typer.Option("--all", help="All of them, or all of --subscriber.")]
Owner = Annotated[str, typer.Option(help="Only those of this subscriber.")]

subscribers = typer.Typer(no_args_is_help=True, help="Subscribers: list, show, change, pause, resume, remove.")
subscriptions = typer.Typer(no_args_is_help=True, help="Subscriptions: list, remove, resume.")
webhooks = typer.Typer(no_args_is_help=True, help="Webhooks of subscribers: set, show, remove.")
dead = typer.Typer(no_args_is_help=True, help="Dead letters: list, retry, drop.")
delayed = typer.Typer(no_args_is_help=True, help="Delayed events: list, cancel.")
clock = typer.Typer(no_args_is_help=True, help="The broker's clock: accept.")
schema = typer.Typer(no_args_is_help=True, help="The schema: show, change.")


def ask(url: str, token: str, method: str, path: str, body: Any = None, **query: Any) -> Any:
    """The answer of the broker to one request."""
    with plain_errors(), connected(url, token) as client:
        return client.request(method, path, body, **query)


@contextlib.contextmanager
def connected(url: str, token: str, **options: Any) -> Iterator[SyncClient]:
    """A client for one command. Errors name the flags and variables with which a shell answers them."""
    from hitbox.client import Client

    try:
        with Client.sync(url, token or None, **tls_files(), **options) as client:
            yield client
    except NotAllowed as problem:
        if problem.status == NotAllowed.status:
            problem.add_note("give one with --token or HITBOX_TOKEN")
        raise
    except BrokerError as problem:
        if "CERTIFICATE_VERIFY_FAILED" in str(problem):
            problem.add_note("name the certificate of an authority of your own in HITBOX_CA")
        raise


def tls_files() -> dict[str, str | None]:
    """Files for an https address, from the environment."""
    return {"ca": os.environ.get("HITBOX_CA"), "client_cert": os.environ.get("HITBOX_CLIENT_CERT")}


def output(found: Any, as_json: bool, lines: Callable[[], Iterable[str]]) -> None:
    """Print an answer as JSON, or the lines that say the same to people."""
    for line in [json.dumps(found, indent=2)] if as_json else lines():
        typer.echo(line)


def table(head: list[str], rows: list[list[Any]]) -> Iterable[str]:
    """Columns aligned by spaces; what a terminal would interpret is escaped."""
    texts = [head, *([plain(value) for value in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    return ("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in texts)


def listing(columns: list[str], rows: list[dict[str, Any]], count: int, one: str, many: str) -> Iterable[str]:
    """A table of rows, and how many there are in all."""
    yield from table(columns, [[row[name] for name in columns] for row in rows])
    yield f"{len(rows)} shown; the broker has {counted(count, one, many)}"


def plain(value: Any) -> str:
    """A value as text that a terminal does not interpret."""
    text = value if isinstance(value, str) else json.dumps(value)
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def moment(seconds: float) -> str:
    """A time in seconds since 1970, for people."""
    try:
        return datetime.fromtimestamp(int(seconds), UTC).isoformat().replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):  # thousands of years from now
        return f"{seconds:.0f} s after 1970"


def _path(subscriber: str) -> str:
    with plain_errors():
        return f"/v1/subscribers/{quote(check_name(subscriber, 'subscriber'))}"


def _confirm(question: str, yes: bool) -> None:
    if not yes:
        typer.confirm(question, abort=True, err=True)


# ---- subscribers


@subscribers.command("list")
def list_subscribers(
    search: Annotated[str, typer.Argument(help="Only names that contain this.")] = "",
    limit: Limit = 100,
    as_json: AsJson = False,
    url: Url = HERE,
    token: Token = "",
) -> None:
    """List subscribers, those with the most pending deliveries first."""
    found = ask(url, token, "GET", "/v1/subscribers", q=search, limit=limit)
    columns = ["name", "connected", "paused", "subscriptions", "pending", "dead", "dropped", "expired"]
    rows, count = found["subscribers"], found["count"]
    output(found, as_json, lambda: listing(columns, rows, count, "subscriber", "subscribers"))


@subscribers.command("show")
def show_subscriber(
    name: Name, limit: Limit = 100, as_json: AsJson = False, url: Url = HERE, token: Token = ""
) -> None:
    """Show the state, the options and the subscriptions of a subscriber."""
    found = ask(url, token, "GET", _path(name))
    wanted = ask(url, token, "GET", "/v1/subscriptions", subscriber=name, limit=limit)["subscriptions"]

    def lines() -> Iterable[str]:
        options = found["options"]
        state = [[key, value] for key, value in found.items() if key not in ("options", "subscriptions")]
        yield from table(["subscriber", plain(name)], [*state, *([key, value] for key, value in options.items())])
        yield f"{counted(found['subscriptions'], 'subscription', 'subscriptions')}; {len(wanted)} shown:"
        columns = ["name", "priority", "where"]
        yield from table(columns, [[one[column] for column in columns] for one in wanted])

    output({**found, "subscriptions": wanted}, as_json, lines)


@subscribers.command("change")
def change_subscriber(
    name: Name,
    changes: Annotated[
        list[str],
        typer.Argument(
            metavar="OPTION=VALUE...", help=f"Such as limit=1000. Options: {', '.join(Options.__struct_fields__)}."
        ),
    ],
    as_json: AsJson = False,
    url: Url = HERE,
    token: Token = "",
) -> None:
    """Change options of a subscriber; the others stay as they are. Prints all of them."""
    with plain_errors():
        given = dict(map(_option, changes))
    options = ask(url, token, "GET", _path(name))["options"]
    found = ask(url, token, "PUT", _path(name), {**options, **given})["options"]
    output(found, as_json, lambda: table(["subscriber", plain(name)], [list(one) for one in found.items()]))


def _option(text: str) -> tuple[str, Any]:
    """Name and value of OPTION=VALUE. The value is JSON, or else a text."""
    name, equals, value = text.partition("=")
    if not equals or name not in Options.__struct_fields__:
        raise BadRequest(f"{text!r:.80} is not OPTION=VALUE{nearest(name, Options.__struct_fields__)}")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


@subscribers.command("pause")
def pause_subscriber(name: Name, as_json: AsJson = False, url: Url = HERE, token: Token = "") -> None:
    """Send nothing to a subscriber until it is resumed. Its deliveries are kept, up to its limit."""
    ask(url, token, "POST", _path(name) + "/pause")
    output({"paused": name}, as_json, lambda: [f"{name} is paused; its deliveries are kept"])


@subscribers.command("resume")
def resume_subscriber(name: Name, as_json: AsJson = False, url: Url = HERE, token: Token = "") -> None:
    """Send deliveries to a paused subscriber again."""
    ask(url, token, "POST", _path(name) + "/resume")
    output({"resumed": name}, as_json, lambda: [f"{name} gets its deliveries again"])


@subscribers.command("remove")
def remove_subscriber(
    name: Name, yes: Yes = False, as_json: AsJson = False, url: Url = HERE, token: Token = ""
) -> None:
    """Remove a subscriber with its subscriptions, pending deliveries and dead letters."""
    found = ask(url, token, "GET", _path(name))
    losses = f"{found['subscriptions']} subscriptions and {found['pending']} pending deliveries"
    _confirm(f"Remove {name} with {losses}?", yes)
    ask(url, token, "DELETE", _path(name))
    output({"removed": name}, as_json, lambda: [f"removed {name} with {losses}"])


# ---- subscriptions


@subscriptions.command("list")
def list_subscriptions(
    search: Annotated[str, typer.Argument(help="Only those whose name or predicate contains this.")] = "",
    subscriber: Owner = "",
    suspended: Annotated[
        bool, typer.Option("--suspended", help="Only those that were too expensive too often.")
    ] = False,
    limit: Limit = 100,
    as_json: AsJson = False,
    url: Url = HERE,
    token: Token = "",
) -> None:
    """List subscriptions with their predicates."""
    query = {"q": search, "subscriber": subscriber, "limit": limit} | ({"suspended": "true"} if suspended else {})
    found = ask(url, token, "GET", "/v1/subscriptions", **query)
    columns, rows, count = ["subscriber", "name", "priority", "where"], found["subscriptions"], found["count"]
    if any(one["suspended"] for one in rows):
        columns.append("suspended")
    output(found, as_json, lambda: listing(columns, rows, count, "subscription", "subscriptions"))


@subscriptions.command("remove")
def remove_subscription(
    subscriber: Name, name: SubscriptionName, as_json: AsJson = False, url: Url = HERE, token: Token = ""
) -> None:
    """Remove a subscription. Deliveries that wait already are kept."""
    ask(url, token, "DELETE", f"{_path(subscriber)}/subscriptions/{quote(name, safe='')}")
    output({"removed": f"{subscriber}/{name}"}, as_json, lambda: [f"removed {subscriber}/{plain(name)}"])


@subscriptions.command("resume")
def resume_subscription(
    subscriber: Name, name: SubscriptionName, as_json: AsJson = False, url: Url = HERE, token: Token = ""
) -> None:
    """Match a subscription again that was suspended because it was too expensive."""
    ask(url, token, "POST", f"{_path(subscriber)}/subscriptions/{quote(name, safe='')}/resume")
    output({"resumed": f"{subscriber}/{name}"}, as_json, lambda: [f"resumed {subscriber}/{plain(name)}"])


# ---- webhooks


@webhooks.command("set")
def set_webhook(
    name: Name,
    address: Annotated[str, typer.Argument(metavar="ADDRESS", help="Where deliveries are sent, https://...")],
    secret: Annotated[
        str,
        typer.Option(
            envvar="HITBOX_WEBHOOK_SECRET",
            help="whsec_... or new; better in the environment. Without one the present secret stays, or one is made.",
            show_envvar=True,
        ),
    ] = "",
    overlap: Annotated[
        float, typer.Option(min=0, help="Seconds for which the previous secret signs as well.")
    ] = 86_400,
    batch: Annotated[int, typer.Option(min=1, max=500, help="Most deliveries in one request.")] = 100,
    requests: Annotated[int, typer.Option(min=1, max=16, help="Most requests at a time; above 1: unordered.")] = 1,
    as_json: AsJson = False,
    url: Url = HERE,
    token: Token = "",
) -> None:
    """Send the deliveries of a subscriber to an address, by POST. A new secret is printed once. Also enables a webhook
    that was disabled."""
    wanted = {"url": address, "secret": secret, "overlap_seconds": overlap, "batch": batch, "max_requests": requests}
    found = ask(url, token, "PUT", _path(name) + "/webhook", wanted)

    def lines() -> Iterable[str]:
        yield f"deliveries of {name} are sent to {plain(found['url'])}"
        if "secret" in found:
            yield f"its secret, which is not shown again: {found['secret']}"

    output(found, as_json, lines)


@webhooks.command("show")
def show_webhook(name: Name, as_json: AsJson = False, url: Url = HERE, token: Token = "") -> None:
    """Show the webhook of a subscriber, without its secrets."""
    found = ask(url, token, "GET", _path(name) + "/webhook")
    output(found, as_json, lambda: table(["webhook of", plain(name)], [[key, value] for key, value in found.items()]))


@webhooks.command("remove")
def remove_webhook(name: Name, as_json: AsJson = False, url: Url = HERE, token: Token = "") -> None:
    """Remove the webhook of a subscriber. Its deliveries are kept."""
    ask(url, token, "GET", _path(name) + "/webhook")  # removing none is no error of the broker's, but one of a person's
    ask(url, token, "DELETE", _path(name) + "/webhook")
    output({"removed": name}, as_json, lambda: [f"removed the webhook of {name}"])


# ---- dead letters


@dead.command("list")
def list_dead(
    subscriber: Owner = "", limit: Limit = 100, as_json: AsJson = False, url: Url = HERE, token: Token = ""
) -> None:
    """List dead letters, the newest first."""
    found = ask(url, token, "GET", "/v1/dead", subscriber=subscriber, limit=limit)
    columns = ["number", "subscriber", "seq", "level", "tries", "time", "reason", "event"]
    rows = [{"event": {}, **letter, "time": moment(letter["time"] / 1e6)} for letter in found["letters"]]
    output(found, as_json, lambda: listing(columns, rows, found["count"], "dead letter", "dead letters"))


@dead.command("retry")
def retry_dead(
    numbers: Numbers = None,
    every: Every = False,
    subscriber: Owner = "",
    as_json: AsJson = False,
    url: Url = HERE,
    token: Token = "",
) -> None:
    """Deliver dead letters again. One whose event is pending for its subscriber already stays a dead letter."""
    count = _for_each(numbers, every, subscriber, "/v1/dead/replay", "delivered again", url, token)
    output(
        {"count": count}, as_json, lambda: [f"{counted(count, 'dead letter is', 'dead letters are')} delivered again"]
    )


@dead.command("drop")
def drop_dead(
    numbers: Numbers = None,
    every: Every = False,
    subscriber: Owner = "",
    yes: Yes = False,
    as_json: AsJson = False,
    url: Url = HERE,
    token: Token = "",
) -> None:
    """Delete dead letters for good."""
    which = "all dead letters" if every else counted(len(numbers or []), "dead letter", "dead letters")
    _confirm(f"Delete {which}?", yes or not (every or numbers))
    count = _for_each(numbers, every, subscriber, "/v1/dead/drop", "deleted", url, token)
    output({"count": count}, as_json, lambda: [f"{counted(count, 'dead letter was', 'dead letters were')} deleted"])


def _for_each(
    numbers: list[int] | None, every: bool, subscriber: str, path: str, done: str, url: str, token: str
) -> int:
    """Ask for the given letters, or for all that are there now, in parts; returns how many the broker changed."""
    with plain_errors():
        if bool(numbers) == every:
            raise BadRequest("name the numbers of dead letters, or --all")
        if subscriber and not every:
            raise BadRequest("--subscriber is for --all")
    if numbers:
        count = int(ask(url, token, "POST", path, {"numbers": numbers})["count"])
        _check_any(count, f"no dead letter {_either(numbers)} is there, or may be {done}")
        return count
    total, seen, known = 0, set[int](), -1
    while len(seen) > known:  # others may change the list meanwhile: look again until nothing is new
        known, at = len(seen), 0
        while letters := ask(url, token, "GET", "/v1/dead", subscriber=subscriber, limit=MOST, offset=at)["letters"]:
            fresh = [one["number"] for one in letters if one["number"] not in seen]
            changed = int(ask(url, token, "POST", path, {"numbers": fresh})["count"]) if fresh else 0
            seen.update(fresh)
            total += changed
            at += len(letters) - changed  # what stays, stays for a reason
    return total


def _either(numbers: list[int]) -> str:
    return " or ".join(map(str, numbers))


def _check_any(count: int, nothing: str) -> None:
    """Raise if nothing was there to be changed."""
    with plain_errors():
        if not count:
            raise Unknown(f"{nothing}; nothing was changed")


# ---- delayed events


@delayed.command("list")
def list_delayed(limit: Limit = 100, as_json: AsJson = False, url: Url = HERE, token: Token = "") -> None:
    """List delayed events, those that are due first."""
    found = ask(url, token, "GET", "/v1/delayed", limit=limit)
    rows = [{**event, "due": moment(event["due"] / 1e6)} for event in found["events"]]
    columns, count = ["number", "due", "event"], found["count"]
    output(found, as_json, lambda: listing(columns, rows, count, "delayed event", "delayed events"))


@delayed.command("cancel")
def cancel_delayed(
    numbers: Annotated[list[int], typer.Argument(help="Numbers of delayed events, as `list` shows them.")],
    as_json: AsJson = False,
    url: Url = HERE,
    token: Token = "",
) -> None:
    """Delete delayed events that are not due yet."""
    count = ask(url, token, "POST", "/v1/delayed/cancel", {"numbers": numbers})["count"]
    _check_any(count, f"no delayed event {_either(numbers)} is there: it is due already, or was cancelled")
    asked = counted(len(numbers), "delayed event was", "delayed events were")
    output({"count": count}, as_json, lambda: [f"{count} of {asked} cancelled"])


# ---- clock


@clock.command("accept")
def accept_clock(as_json: AsJson = False, url: Url = HERE, token: Token = "") -> None:
    """The system's clock has jumped, and is right: let the broker follow it now. What is too old by it goes."""
    found = ask(url, token, "POST", "/v1/clock/accept")
    output(found, as_json, lambda: [f"the broker's clock moved by {found['moved_seconds']:,.1f} seconds"])


# ---- schema


@schema.command("show")
def show_schema(as_json: AsJson = False, url: Url = HERE, token: Token = "") -> None:
    """Show the attributes that events and subscriptions may use."""
    found = ask(url, token, "GET", "/v1/schema")
    names = list(dict.fromkeys(key for one in found["attributes"] for key in one))
    output(found, as_json, lambda: table(names, [[one.get(name, "") for name in names] for one in found["attributes"]]))


@schema.command("change")
def change_schema(
    new: Annotated[str, typer.Argument(help="price:float,city:string or a JSON file; - for JSON from stdin.")],
    as_json: AsJson = False,
    url: Url = HERE,
    token: Token = "",
) -> None:
    """Replace the schema. It is refused if subscriptions or delayed events contradict the new one."""
    with plain_errors():
        wanted = read_schema(new)
    found = ask(url, token, "PUT", "/v1/schema", {"attributes": wanted.to_json()})
    output(
        found, as_json, lambda: [f"the schema has {counted(len(found['attributes']), 'attribute', 'attributes')} now"]
    )
