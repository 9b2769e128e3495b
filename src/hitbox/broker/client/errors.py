"""The broker's answers that are errors, as exceptions."""

from __future__ import annotations

from typing import Any

from hitbox.broker.errors import BrokerError, NotAllowed, Overloaded


class Refused(BrokerError):
    """The broker refused a request. `kind`: name of the broker's error; `position`: place in a predicate's text."""

    def __init__(self, message: str, kind: str = "", status: int = 400, position: int | None = None):
        self.kind, self.status, self.position = kind, status, position
        super().__init__(message)

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (str(self), self.kind, self.status, self.position))


def error_of(found: Any, status: int) -> BrokerError:
    error = found.get("error") if isinstance(found, dict) else None
    if not isinstance(error, dict):
        error = {}
    message = error.get("message") or f"the broker answered with status {status}"
    if status == 429 or error.get("type") == "Overloaded":
        return Overloaded(message, error.get("retry_after", 1.0))
    if status in (401, 403):
        return NotAllowed(message)
    return Refused(message, error.get("type", ""), status, error.get("position"))


def is_temporary(problem: BrokerError) -> bool:
    """Whether to try again: the broker is busy, full or closing, or the name of the lost connection is still taken."""
    kinds = ("Conflict", "StoreFailed", "StoreFull")
    return isinstance(problem, Overloaded) or (isinstance(problem, Refused) and problem.kind in kinds)
