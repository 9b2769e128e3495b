"""Writes the pages of the documentation site that describe the commands and the broker's HTTP interface.

docs/conf.py calls this whenever the site is built, so the pages cannot become outdated. They are not committed.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import typer

import hitbox


def write(folder: Path) -> None:
    """Write the pages; a page that is unchanged is left alone, so that the next build is quick."""
    for name, text in (("commands.md", commands()), ("broker-api.md", broker_api())):
        file = folder / name
        if not file.exists() or file.read_text() != text:
            file.write_text(text)


def commands() -> str:
    """Every command of the command line, with its arguments and options."""
    from hitbox import cli

    found = dict(typer.main.get_group(cli.app).commands)
    for name, (module, _, _) in cli.ELSEWHERE.items():
        found[name] = typer.main.get_group(import_module(module).app).commands[name]
    parts = ["# Command line", "`hitbox COMMAND --help` prints the same."]
    for name, command in found.items():
        parts += _command(f"hitbox {name}", command, level=2)
    return "\n\n".join(parts) + "\n"


def _command(path: str, command: Any, level: int) -> list[str]:
    context = command.make_context(path, [], resilient_parsing=True)
    parts = [f"{'#' * level} {path}", _cell(command.help or ""), f"```console\n{command.get_usage(context)}\n```"]
    rows = [row for p in command.params if (row := p.get_help_record(context)) is not None]
    if rows:
        table = ["| option | meaning |", "| --- | --- |"]
        parts.append("\n".join(table + [f"| `{name}` | {_cell(text)} |" for name, text in rows]))
    for name, sub in getattr(command, "commands", {}).items():
        parts += _command(f"{path} {name}", sub, level + 1)
    return parts


def broker_api() -> str:
    """Every route of the broker, from its OpenAPI description."""
    from hitbox.broker.http.openapi import describe

    api = describe(hitbox.__version__)
    parts = ["# Broker API", "The broker serves this description for programs at `/openapi.json`."]
    for path, methods in api["paths"].items():
        for method, operation in methods.items():
            parts.append(f"## {method.upper()} {path}")
            parts.append(operation.get("summary", ""))
            parts.append(operation.get("description", ""))
            rows = [
                f"| `{p['name']}` | {p['in']} | {'yes' if p.get('required') else 'no'} |"
                for p in operation.get("parameters", [])
            ]
            if rows:
                parts.append("\n".join(["| parameter | in | required |", "| --- | --- | --- |", *rows]))
            answers = [f"| {code} | {_cell(r.get('description', ''))} |" for code, r in operation["responses"].items()]
            parts.append("\n".join(["| status | meaning |", "| --- | --- |", *answers]))
    return "\n\n".join(part for part in parts if part) + "\n"


def _cell(text: str) -> str:
    """Text for a cell of a table: one line, nothing that Markdown would read as a mark."""
    return " ".join(text.split()).replace("|", "\\|").replace("[", "\\[").replace("<", "\\<")
