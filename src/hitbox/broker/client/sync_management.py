"""The methods of `Management` for programs without an event loop, with the same names, parameters and results."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Mapping
from typing import Any, TypeVar

from hitbox.encoding.schema import Schema

T = TypeVar("T")


class SyncManagement:
    """The methods of `SyncClient` that manage a broker; `asynchronous` does the work."""

    asynchronous: Any

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        raise NotImplementedError

    # ---- subscribers and subscriptions

    def subscribers(self, q: str = "", limit: int = 100) -> list[dict[str, Any]]:
        """Subscribers whose name contains `q`, with their pending deliveries and options, the longest queue first."""
        found: list[dict[str, Any]] = self.do(self.asynchronous.subscribers(q, limit))
        return found

    def get_subscriber(self, name: str) -> dict[str, Any]:
        """The state and options of a subscriber."""
        found: dict[str, Any] = self.do(self.asynchronous.get_subscriber(name))
        return found

    def put_subscriber(self, name: str, *, owner: str = "", **options: Any) -> dict[str, Any]:
        """Create a durable subscriber, or replace its options (policy, limit, visibility_seconds, ...). `owner`: the
        principal that it shall belong to from now on."""
        found: dict[str, Any] = self.do(self.asynchronous.put_subscriber(name, owner=owner, **options))
        return found

    def remove_subscriber(self, name: str) -> None:
        """Remove a subscriber with its subscriptions, pending deliveries and dead letters."""
        self.do(self.asynchronous.remove_subscriber(name))

    def subscriptions(
        self, q: str = "", subscriber: str = "", limit: int = 100, suspended: bool = False
    ) -> list[dict[str, Any]]:
        """Subscriptions whose name or predicate contains `q`, of one subscriber or of all; with `suspended` only those
        that match nothing because they were too expensive."""
        found: list[dict[str, Any]] = self.do(self.asynchronous.subscriptions(q, subscriber, limit, suspended))
        return found

    def put_subscription(
        self, subscriber: str, name: str, where: str, *, priority: int = 4, about: Mapping[str, Any] | None = None
    ) -> list[str]:
        """Add or replace a subscription; returns warnings."""
        found: list[str] = self.do(
            self.asynchronous.put_subscription(subscriber, name, where, priority=priority, about=about)
        )
        return found

    def put_subscriptions(self, subscriber: str, subscriptions: Iterable[Mapping[str, Any]]) -> list[str]:
        """Add or replace many subscriptions (name, where, priority, about), all or none; returns warnings."""
        found: list[str] = self.do(self.asynchronous.put_subscriptions(subscriber, subscriptions))
        return found

    def remove_subscription(self, subscriber: str, name: str) -> None:
        """Remove a subscription."""
        self.do(self.asynchronous.remove_subscription(subscriber, name))

    def resume_subscription(self, subscriber: str, name: str) -> None:
        """Match a subscription again that was suspended because it was too expensive."""
        self.do(self.asynchronous.resume_subscription(subscriber, name))

    def replay(self, subscriber: str, first: int = 1) -> int:
        """Deliver stored events again, from number `first` on, that match the subscriber's subscriptions now; returns
        how many."""
        found: int = self.do(self.asynchronous.replay(subscriber, first))
        return found

    def pause(self, subscriber: str) -> None:
        """Send nothing to a subscriber; its deliveries are kept."""
        self.do(self.asynchronous.pause(subscriber))

    def resume(self, subscriber: str) -> None:
        """Send its deliveries again."""
        self.do(self.asynchronous.resume(subscriber))

    def webhook(self, subscriber: str) -> dict[str, Any]:
        """The webhook of a subscriber, without its secrets. Raises Unknown if it has none."""
        found: dict[str, Any] = self.do(self.asynchronous.webhook(subscriber))
        return found

    def put_webhook(self, subscriber: str, url: str, **settings: Any) -> dict[str, Any]:
        """Send the deliveries of a subscriber by POST to an address. Settings: secret (a text, or "new"),
        overlap_seconds, batch, max_requests. A secret that the broker made is in the answer, and never shown again."""
        found: dict[str, Any] = self.do(self.asynchronous.put_webhook(subscriber, url, **settings))
        return found

    def remove_webhook(self, subscriber: str) -> None:
        """Remove the webhook of a subscriber."""
        self.do(self.asynchronous.remove_webhook(subscriber))

    def ack(self, subscriber: str, seqs: Iterable[int]) -> None:
        """Acknowledge deliveries that came as Server-Sent Events. `Subscriber.ack` is for those of a connection."""
        self.do(self.asynchronous.ack(subscriber, seqs))

    def nack(self, subscriber: str, seqs: Iterable[int]) -> None:
        """Refuse such deliveries: they are sent again later."""
        self.do(self.asynchronous.nack(subscriber, seqs))

    def extend(self, subscriber: str, seqs: Iterable[int]) -> None:
        """Restart the time-out of such deliveries."""
        self.do(self.asynchronous.extend(subscriber, seqs))

    # ---- events

    def events(self, first: int = 1, limit: int = 100) -> dict[str, Any]:
        """{"events": stored events, "next": where the next call begins}."""
        found: dict[str, Any] = self.do(self.asynchronous.events(first, limit))
        return found

    def delayed(self, limit: int = 100) -> list[dict[str, Any]]:
        """Delayed events with their numbers, those that are due first. `due`: microseconds since 1970."""
        found: list[dict[str, Any]] = self.do(self.asynchronous.delayed(limit))
        return found

    def cancel_delayed(self, numbers: Iterable[int]) -> int:
        """Delete delayed events that are not due yet, which this principal published, or if it may manage; returns how
        many."""
        found: int = self.do(self.asynchronous.cancel_delayed(numbers))
        return found

    def check(self, where: str) -> str:
        """A predicate in normal form. Raises BadPredicate if it is wrong."""
        found: str = self.do(self.asynchronous.check(where))
        return found

    def try_event(self, event: Any, where: str | None = None, *, limit: int = 100, misses: int = 0) -> dict[str, Any]:
        """Which subscriptions an event would match, without publishing it, and the nearest `misses`."""
        found: dict[str, Any] = self.do(self.asynchronous.try_event(event, where, limit=limit, misses=misses))
        return found

    def explain(self, event: Any, id: str, where: str | None = None) -> dict[str, Any]:
        """Why the subscription "subscriber/name" matches an event, or why not."""
        found: dict[str, Any] = self.do(self.asynchronous.explain(event, id, where))
        return found

    def unseen(self, events: int = 1000) -> list[dict[str, Any]]:
        """Attributes of subscriptions that none of the latest events had: they may be misspelt."""
        found: list[dict[str, Any]] = self.do(self.asynchronous.unseen(events))
        return found

    # ---- dead letters

    def dead_letters(self, subscriber: str = "", limit: int = 100) -> list[dict[str, Any]]:
        """Dead letters, newest first, of one subscriber or of all."""
        found: list[dict[str, Any]] = self.do(self.asynchronous.dead_letters(subscriber, limit))
        return found

    def replay_dead_letters(self, numbers: Iterable[int]) -> int:
        """Deliver dead letters again; returns how many."""
        found: int = self.do(self.asynchronous.replay_dead_letters(numbers))
        return found

    def drop_dead_letters(self, numbers: Iterable[int]) -> int:
        """Delete dead letters for good; returns how many."""
        found: int = self.do(self.asynchronous.drop_dead_letters(numbers))
        return found

    # ---- the broker

    def schema(self) -> Schema:
        """The attributes that events and subscriptions may use."""
        found: Schema = self.do(self.asynchronous.schema())
        return found

    def put_schema(self, schema: Schema | Mapping[str, Any]) -> Schema:
        """Change the schema. Raises Conflict if subscriptions contradict the new one."""
        found: Schema = self.do(self.asynchronous.put_schema(schema))
        return found

    def stats(self) -> dict[str, Any]:
        """Counters and sizes, and in "history" one line per second of rates and latencies."""
        found: dict[str, Any] = self.do(self.asynchronous.stats())
        return found

    def trace(self, first: int = 1, limit: int = 1000) -> list[dict[str, Any]]:
        """The latest deliveries of events from number `first` on: when each was determined and sent."""
        found: list[dict[str, Any]] = self.do(self.asynchronous.trace(first, limit))
        return found

    def snapshot(self) -> dict[str, Any]:
        """Save the index now."""
        found: dict[str, Any] = self.do(self.asynchronous.snapshot())
        return found

    def accept_clock(self) -> dict[str, Any]:
        """The clock of the broker's system has jumped, and is right: let the broker follow it now."""
        found: dict[str, Any] = self.do(self.asynchronous.accept_clock())
        return found

    def openapi(self) -> dict[str, Any]:
        """The OpenAPI description of the interface."""
        found: dict[str, Any] = self.do(self.asynchronous.openapi())
        return found

    # ---- principals and tokens

    def whoami(self) -> dict[str, Any]:
        """The principal of this client's token, and its rights."""
        found: dict[str, Any] = self.do(self.asynchronous.whoami())
        return found

    def principals(self) -> list[dict[str, Any]]:
        """All principals with their rights."""
        found: list[dict[str, Any]] = self.do(self.asynchronous.principals())
        return found

    def put_principal(
        self,
        name: str,
        roles: Iterable[str],
        *,
        names: str = "*",
        publish: str = "",
        see: str = "",
        max_subscriptions: int = 0,
        publish_rate: float = 0.0,
        max_day_bytes: int = 0,
    ) -> None:
        """Create a principal, or replace its rights. `names`: the subscribers that it may use, such as "team-a.*";
        `publish` and `see`: predicates, what it may publish and see (empty: everything). Quotas (0: none):
        `max_subscriptions` of all its subscribers, `publish_rate` in events per second, `max_day_bytes` of the events
        that it publishes in a day (UTC)."""
        rights: dict[str, Any] = {"names": names, "publish": publish, "see": see}
        quotas = {"max_subscriptions": max_subscriptions, "publish_rate": publish_rate, "max_day_bytes": max_day_bytes}
        self.do(self.asynchronous.put_principal(name, roles, **rights, **quotas))

    def remove_principal(self, name: str) -> None:
        """Remove a principal and its tokens."""
        self.do(self.asynchronous.remove_principal(name))

    def tokens(self) -> list[dict[str, Any]]:
        """All tokens, without their secrets."""
        found: list[dict[str, Any]] = self.do(self.asynchronous.tokens())
        return found

    def create_token(
        self, principal: str, roles: Iterable[str] | None = None, expires: float | None = None, note: str = ""
    ) -> dict[str, Any]:
        """Create a token; its text is in "token", and is shown only now. `roles`: fewer than the principal has;
        `expires`: seconds since 1970."""
        found: dict[str, Any] = self.do(self.asynchronous.create_token(principal, roles, expires, note))
        return found

    def limit_token(self, id: str, roles: Iterable[str] | None = None, expires: float | None = None) -> dict[str, Any]:
        """Give a token fewer roles, or an earlier expiry."""
        found: dict[str, Any] = self.do(self.asynchronous.limit_token(id, roles, expires))
        return found

    def revoke_token(self, id: str) -> None:
        """Revoke a token; its connections are closed."""
        self.do(self.asynchronous.revoke_token(id))
