"""Errors and warnings of all commands: one line on stderr; errors end with status 2."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hitbox.errors import HitboxError, HitboxWarning


@contextmanager
def plain_errors() -> Iterator[None]:
    """Print a HitboxError to stderr and exit with status 2; print each hitbox warning as one line when it occurs."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", HitboxWarning)
        others: Any = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
            if issubclass(category, HitboxWarning):
                print(f"hitbox: warning: {message}", file=sys.stderr)
            else:
                others(message, category, *place, **more)

        warnings.showwarning = show
        try:
            yield
        except HitboxError as problem:
            print("; ".join([f"hitbox: {problem}", *getattr(problem, "__notes__", [])]), file=sys.stderr)
            raise SystemExit(2) from None
