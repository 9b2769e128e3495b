"""The broker's errors, each with its HTTP status. The broker raises them, and so does a client that is told of them."""

from __future__ import annotations

from hitbox.errors import HitboxError


class BrokerError(HitboxError):
    """Base of the broker's own errors. In a client, `kind` is the name of the broker's error."""

    status: int = 400
    kind: str = ""
    position: int | None = None
    """The place in the text of a predicate."""


class BadRequest(BrokerError):
    """A body, frame or parameter is invalid."""


class BadEvent(BadRequest):
    """An event, or what a subscription says about itself, does not fit the schema."""


class BadPredicate(BadRequest):
    """A predicate is wrong; `position` is the place in its text."""


class NotAllowed(BrokerError):
    """The token is missing or wrong."""

    status = 401


class Forbidden(NotAllowed):
    """The Host or Origin of the request is not allowed, or the principal lacks a right."""

    status = 403


class Unknown(BrokerError):
    """The subscriber, event or store does not exist."""

    status = 404


class Conflict(BrokerError):
    """The request conflicts with what is stored."""

    status = 409


class TooLarge(BrokerError):
    """A body, event or batch exceeds its limit."""

    status = 413


class Overloaded(BrokerError):
    """The broker is busy; nothing was accepted. Try again after `retry_after` seconds."""

    status = 429

    def __init__(self, message: str, retry_after: float = 1.0):
        self.retry_after = retry_after
        super().__init__(message)

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (str(self), self.retry_after), self.__dict__)


class CannotListen(BrokerError):
    """The broker cannot listen on the address or port, and does not start."""


class StoreFailed(BrokerError):
    """The store or the broker is not available; nothing was accepted."""

    status = 503


class NoAnswer(StoreFailed):
    """The broker gave no answer: nobody knows whether it accepted the request."""


class StoreFull(StoreFailed):
    """The disk is full, or the store has reached its maximum size; nothing was accepted."""

    status = 507


class StoreDamaged(BrokerError):
    """The files differ from what was committed; the broker does not start."""

    status = 503
