"""`hitbox admin tokens` and `principals`: who may do what."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import msgspec
import typer

from hitbox.broker.commands.admin_cli import HERE, AsJson, Token, Url, Yes, ask, moment, output, plain, table
from hitbox.broker.upkeep.data_folder import check_folder, folder_errors, has_store
from hitbox.console.errors import plain_errors
from hitbox.errors import counted
from hitbox.protocol.errors import Unknown

tokens = typer.Typer(no_args_is_help=True, help="Tokens: of a running broker, or in the folder of a stopped one.")
principals = typer.Typer(no_args_is_help=True, help="Principals of a running broker: who may do what.")
Stopped = Annotated[
    Path | None, typer.Option("--data", help="Folder of a broker that is stopped; without it a running one is asked.")
]
Roles = Annotated[
    list[str] | None, typer.Option("--role", help="publish, subscribe, observe or manage; may be repeated.")
]
Id = Annotated[str, typer.Argument(help="The token's id, as `list` shows it.")]
PrincipalName = Annotated[str, typer.Argument(help="Name of the principal.")]


# ---- tokens


@tokens.command("create")
def create_token(
    principal: PrincipalName,
    role: Roles = None,
    days: Annotated[float, typer.Option(min=0, help="Expires after this many days; 0: never.")] = 0,
    note: Annotated[str, typer.Option(help="What it is for.")] = "",
    data: Stopped = None,
    yes: Yes = False,
    url: Url = HERE,
    token: Token = "",
) -> None:
    """Create a token of a principal and print it; it is shown only now. The first one of a broker has all rights."""
    body = {"roles": role or None, "expires": time.time() + days * 86_400 if days else None, "note": note}
    if data is None:
        if not yes and sys.stdin.isatty() and ask(url, token, "GET", "/v1/whoami")["token"] is None:
            connections = ask(url, token, "GET", "/v1/stats")["connections"]
            held = counted(connections, "connection of a subscriber is", "connections of subscribers are")
            typer.confirm(f"From then on every request needs a token, and {held} closed. Go on?", abort=True, err=True)
        made = ask(url, token, "POST", "/v1/tokens", {"principal": principal, **body})
        for warning in made["warnings"]:
            typer.echo(f"hitbox: {warning}", err=True)
        typer.echo(made["token"])
        return
    from hitbox.broker.access import directory
    from hitbox.broker.access.principals import TokenSettings
    from hitbox.broker.events.json_text import decode

    with stopped(data, may_be_new=True) as store:
        settings = decode(msgspec.json.encode(body), TokenSettings)
        typer.echo(directory.create_in_folder(store, principal, settings)[1])


@tokens.command("list")
def list_tokens(data: Stopped = None, as_json: AsJson = False, url: Url = HERE, token: Token = "") -> None:
    """List all tokens, without their secrets."""
    from hitbox.broker.access import directory

    if data is None:
        found = ask(url, token, "GET", "/v1/tokens")["tokens"]
    else:
        with stopped(data) as store:
            found = directory.list_in_folder(store)

    def lines() -> Iterable[str]:
        rows = [
            [
                one["id"],
                one["principal"],
                ", ".join(one["allowed"]) or "none",
                "never" if one["expires"] is None else moment(one["expires"]),
                one["note"],
            ]
            for one in found
        ]
        yield from table(["id", "principal", "roles", "expires", "note"], rows)
        yield counted(len(found), "token", "tokens")

    output({"tokens": found}, as_json, lines)


@tokens.command("limit")
def limit_token(
    id: Id,
    role: Roles = None,
    days: Annotated[float, typer.Option(min=0, help="Expires after this many days; 0: as before.")] = 0,
    as_json: AsJson = False,
    url: Url = HERE,
    token: Token = "",
) -> None:
    """Give a token fewer roles or an earlier expiry."""
    body = {"roles": role or None, "expires": time.time() + days * 86_400 if days else None}
    found = ask(url, token, "PUT", f"/v1/tokens/{quote(id, safe='')}", body)
    output(found, as_json, lambda: table(["token", id], [[key, value] for key, value in found.items()]))


@tokens.command("revoke")
def revoke_token(id: Id, data: Stopped = None, as_json: AsJson = False, url: Url = HERE, token: Token = "") -> None:
    """Revoke a token. Its connections are closed."""
    from hitbox.broker.access import directory

    if data is None:
        ask(url, token, "DELETE", f"/v1/tokens/{quote(id, safe='')}")
    else:
        with stopped(data) as store:
            directory.revoke_in_folder(store, id)
    output({"revoked": id}, as_json, lambda: [f"revoked the token {plain(id)}; nobody gets in with it any more"])


@contextlib.contextmanager
def stopped(data: Path, may_be_new: bool = False) -> Iterator[Any]:
    """The store of a stopped broker. `may_be_new`: make one where there is none, and say so."""
    from hitbox.broker.store.store import Store

    with plain_errors(), folder_errors(data):
        check_folder(data)
        is_new = not has_store(data)
        if is_new and not may_be_new:
            raise Unknown(f"{data} holds no broker: there is no hitbox.db")
        with contextlib.closing(Store(data)) as store:
            yield store
        if is_new:
            typer.echo(f"hitbox: there was no broker in {data}: this made a new store", err=True)


# ---- principals


@principals.command("put")
def put_principal(
    name: PrincipalName,
    role: Annotated[
        list[str] | None,
        typer.Option("--role", help="publish, subscribe, observe or manage; may be repeated. All of its roles, or ''."),
    ] = None,
    names: Annotated[
        str | None, typer.Option(help="Subscribers that it may use: team-a.*, ann, or * for all (the default).")
    ] = None,
    publish: Annotated[str | None, typer.Option(help="Predicate: the events that it may publish; '': all.")] = None,
    see: Annotated[str | None, typer.Option(help="Predicate: the events that it may see; '': all.")] = None,
    max_subscriptions: Annotated[int | None, typer.Option(min=0, help="Of all its subscribers; 0: no limit.")] = None,
    publish_rate: Annotated[
        float | None, typer.Option(min=0, help="Events per second; 0: as the broker's setting.")
    ] = None,
    max_day_bytes: Annotated[
        int | None, typer.Option(min=0, help="Of events published in a day (UTC); 0: no limit.")
    ] = None,
    as_json: AsJson = False,
    url: Url = HERE,
    token: Token = "",
) -> None:
    """Create a principal, or change its rights and quotas. What is not given stays as it is. Prints the result."""
    wanted = {
        "roles": None if role is None else [one for one in role if one], "names": names, "publish": publish,
        "see": see, "max_subscriptions": max_subscriptions, "publish_rate": publish_rate,
        "max_day_bytes": max_day_bytes,
    }  # fmt: skip
    known = ask(url, token, "GET", "/v1/principals")["principals"]
    before: dict[str, Any] = next((one for one in known if one["name"] == name), {})
    body = {
        right: before[right] if value is None else value
        for right, value in wanted.items()
        if value is not None or right in before
    }
    found = ask(url, token, "PUT", f"/v1/principals/{quote(name, safe='')}", body)
    output(
        {"name": name, **found}, as_json, lambda: table(["principal", plain(name)], [list(x) for x in found.items()])
    )


@principals.command("list")
def list_principals(as_json: AsJson = False, url: Url = HERE, token: Token = "") -> None:
    """List all principals with their rights, their quotas and what is used of them."""
    found = ask(url, token, "GET", "/v1/principals")

    def lines() -> Iterable[str]:
        columns = list(found["principals"][0]) if found["principals"] else ["name"]
        rows = [
            [", ".join(value) if isinstance(value, list) else value for value in one.values()]
            for one in found["principals"]
        ]
        yield from table(columns, rows)
        yield counted(len(rows), "principal", "principals")

    output(found, as_json, lines)


@principals.command("delete")
def delete_principal(name: PrincipalName, as_json: AsJson = False, url: Url = HERE, token: Token = "") -> None:
    """Remove a principal and its tokens. It must own no subscriber and have no delayed events."""
    ask(url, token, "DELETE", f"/v1/principals/{quote(name, safe='')}")
    output({"removed": name}, as_json, lambda: [f"removed {plain(name)} and its tokens"])
