"""Errors as JSON: the type, the message and, for a predicate, the position in its text."""

from __future__ import annotations

from typing import Any

from hitbox.errors import HitboxError, PredicateError, TableError, UnknownSubscription
from hitbox.protocol.errors import BrokerError


def status_of(problem: HitboxError) -> int:
    if isinstance(problem, BrokerError):
        return problem.status
    return 404 if isinstance(problem, UnknownSubscription) else 400


def close_code(problem: HitboxError) -> int:
    """The code with which a connection is closed: 1008 if the client must not try again, otherwise 1013."""
    status = status_of(problem)
    return 1013 if status == 429 or status >= 500 else 1008


def describe(problem: HitboxError) -> dict[str, Any]:
    message = "; ".join([str(problem), *getattr(problem, "__notes__", [])])
    found: dict[str, Any] = {"type": type(problem).__name__, "message": message}
    if isinstance(problem, PredicateError):
        found |= {"problem": problem.message, "text": problem.text, "position": problem.position}
    if isinstance(problem, TableError):
        found["rows"] = [{"row": row, "message": text} for row, text in problem.rows[:100]]
    if hasattr(problem, "retry_after"):
        found["retry_after"] = problem.retry_after
    return {"error": found}
