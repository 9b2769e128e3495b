"""`python -m research`: the commands of this package."""

from __future__ import annotations

import typer

from research.bench_cli import CONTEXT, bench
from research.reproduce_cli import reproduce

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help="Measure hitbox.")
app.command(context_settings=CONTEXT)(bench)
app.command()(reproduce)

if __name__ == "__main__":
    app(prog_name="python -m research")
