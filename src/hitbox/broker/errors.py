"""What can go wrong in the broker, each with the HTTP status that says so."""

from __future__ import annotations

from hitbox.errors import HitboxError


class BrokerError(HitboxError):
    """Base of the broker's own errors."""

    status = 400


class BadRequest(BrokerError):
    """A body, frame or parameter is not what the interface takes."""


class NotAllowed(BrokerError):
    """The token is missing or wrong, or the request comes from a foreign page."""

    status = 401


class Forbidden(NotAllowed):
    status = 403


class Unknown(BrokerError):
    """A subscriber, dead letter or path that is not there."""

    status = 404


class Conflict(BrokerError):
    """The request contradicts what is stored."""

    status = 409


class TooLarge(BrokerError):
    """A body, event or batch beyond the limits."""

    status = 413


class Overloaded(BrokerError):
    """More than the broker takes at the moment; nothing was accepted, try again after `retry_after` seconds."""

    status = 429

    def __init__(self, message: str, retry_after: float = 1.0):
        self.retry_after = retry_after
        super().__init__(message)

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (str(self), self.retry_after))


class CannotListen(BrokerError):
    """The address or port cannot be had; the broker does not start."""


class StoreFailed(BrokerError):
    """The store cannot be written to; nothing was accepted."""

    status = 503


class StoreFull(StoreFailed):
    """The disk, or the size that the store may have, is used up; nothing was accepted."""

    status = 507


class StoreDamaged(BrokerError):
    """What is on disk is not what was committed; the broker does not start on it."""

    status = 503
