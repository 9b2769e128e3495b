"""The broker's answers that are errors, as exceptions: the classes that the broker itself raises."""

from __future__ import annotations

from typing import Any

from hitbox.protocol.errors import (
    BadEvent,
    BadPredicate,
    BadRequest,
    BrokerError,
    Conflict,
    Forbidden,
    NotAllowed,
    Overloaded,
    StoreFailed,
    StoreFull,
    TooLarge,
    Unknown,
)

Refused = BrokerError
"""What older programs catch: any error of the broker."""
CLASSES = (BadRequest, NotAllowed, Forbidden, Unknown, Conflict, TooLarge, Overloaded, StoreFailed, StoreFull)
BY_KIND: dict[str, type[BrokerError]] = {
    **{kind.__name__: kind for kind in CLASSES},
    "UnknownSubscription": Unknown,
    "ValueProblem": BadEvent,
}
BY_STATUS: dict[int, type[BrokerError]] = {400: BadRequest, **{kind.status: kind for kind in reversed(CLASSES)}}
PREDICATES = ("PredicateError", "SyntaxProblem", "TypeProblem", "LimitExceeded", "UnknownAttribute", "DialectError")
CLOSED: dict[int, tuple[type[BrokerError], str]] = {
    1008: (NotAllowed, "the broker refused the connection"),
    4404: (Unknown, "the subscriber was removed"),
    4409: (Conflict, "another connection of this subscriber took over"),
}
"""The codes of a closed connection after which the client does not connect again."""


def error_of(answer: Any, status: int | None = None) -> BrokerError:
    """The exception for an answer of the broker. `status`: that of HTTP; None in a message of a WebSocket."""
    error = answer.get("error") if isinstance(answer, dict) else None
    if not isinstance(error, dict):
        error = {}
    message = str(error.get("message") or f"the broker answered with status {status}")
    kind, text, position = str(error.get("type", "")), error.get("text"), error.get("position")
    if kind in PREDICATES:  # of an event, they have no text
        problem: BrokerError = BadPredicate(message) if isinstance(text, str) and text else BadEvent(message)
    elif status == 429 or kind == "Overloaded":
        after = error.get("retry_after")
        problem = Overloaded(message, float(after) if isinstance(after, (int, float)) else 1.0)
    else:
        problem = (BY_KIND.get(kind) or BY_STATUS.get(status or 400, BrokerError))(message)
    problem.kind = kind or type(problem).__name__
    problem.status = problem.status if status is None else status
    if isinstance(position, int):
        problem.position = position
    return problem


def closed_error(code: int, reason: str) -> BrokerError | None:
    """The exception for a connection that the broker closed for good; None if the client may connect again."""
    if code not in CLOSED:
        return None
    kind, text = CLOSED[code]
    return kind(reason or text)


def is_temporary(problem: BrokerError) -> bool:
    """Whether to try again: the broker is busy, full or closing, or the name of the lost connection is still taken."""
    return isinstance(problem, (Overloaded, Conflict, StoreFailed))
