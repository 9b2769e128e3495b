"""Regular expressions with RE2's syntax and linear time, through google-re2 (the extra `text`)."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from hitbox.errors import MissingExtra

MEMORY = 2**23
"""Bytes that one expression may take: RE2's own limit."""


@lru_cache(maxsize=10_000)
def regular_expression(text: str) -> Any:
    """The compiled expression; its `search` finds it anywhere in a text. A ValueError where it is not one."""
    try:
        import re2  # imported here: an extra
    except ImportError:
        raise MissingExtra("REGEXP needs google-re2: pip install 'hitbox[text]'") from None
    options = re2.Options()
    options.log_errors = False
    options.max_mem = MEMORY
    try:
        return re2.compile(text, options)
    except re2.error as problem:
        reason = problem.args[0].decode() if isinstance(problem.args[0], bytes) else str(problem)
        raise ValueError(f"not a regular expression of RE2: {reason}") from None
