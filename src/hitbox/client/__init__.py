"""The client of a broker.

    async with hitbox.Client("http://127.0.0.1:8400") as client:
        await client.publish({"price": 12.5, "city": "Paris"})
        async with client.subscriber("ann") as ann:
            await ann.subscribe("cheap", "price < 20", priority=7)
            async for delivery in ann:                 # acknowledged when the loop asks for the next one
                print(delivery.event, delivery.subscriptions)

`ann.run(callback)` calls a function for each delivery. The delivery is acknowledged when the function returns, and
refused when it raises, so that it is sent again later. With `auto=False` the program itself must call
`await ann.ack(delivery)` or `await ann.nack(delivery)`; so it may, at any time, with `auto`.

The broker sends a delivery again if it is not acknowledged within `visibility_seconds`. Several times within that span
the client asks for more time (`extend`): for deliveries that wait in the client, and for those in the handler, the
latter for at most `handler_seconds`. A client that has died, or whose event loop is blocked, asks for nothing, so the
broker sends its deliveries again. The number of deliveries that wait in the client adapts to the handler: about one
second of its work, up to `window`.

A lost connection is opened again, with growing pauses, and continues after the last acknowledgement. Subscriptions are
stored in the broker (the client creates those of ephemeral subscribers again). `Client.sync(...)` is the same client
for programs without an event loop, with the same methods.

Everything else that a broker can be asked is in `management.py`. Errors derive from `BrokerError`.
"""

from __future__ import annotations

from hitbox.errors import require_extra

require_extra("hitbox.client", "client", "httpx", "msgspec", "websockets")

from hitbox.client.client import Client  # noqa: E402
from hitbox.client.delivery import Delivery  # noqa: E402
from hitbox.client.errors import Refused  # noqa: E402
from hitbox.client.subscriber import State, Subscriber  # noqa: E402
from hitbox.client.sync import SyncClient, SyncSubscriber  # noqa: E402
from hitbox.protocol.errors import (  # noqa: E402
    BadEvent,
    BadPredicate,
    BadRequest,
    BrokerError,
    Conflict,
    Forbidden,
    NoAnswer,
    NotAllowed,
    Overloaded,
    StoreFailed,
    StoreFull,
    TooLarge,
    Unknown,
)

__all__ = [
    "BadEvent", "BadPredicate", "BadRequest", "BrokerError", "Client", "Conflict", "Delivery", "Forbidden",
    "NoAnswer", "NotAllowed", "Overloaded", "Refused", "State", "StoreFailed", "StoreFull", "Subscriber",
    "SyncClient", "SyncSubscriber", "TooLarge", "Unknown",
]  # fmt: skip
