"""The methods of `Management` without an event loop. Written by tools/sync_client.py: do not edit."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Mapping
from typing import Any, TypeVar

from hitbox.client.management import Management
from hitbox.encoding.schema import Schema

T = TypeVar("T")


class SyncRequests:
    """What the methods share; `asynchronous` does the work."""

    asynchronous: Any

    @property
    def _management(self) -> Management:
        management: Management = self.asynchronous
        return management

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        raise NotImplementedError


class SyncSubscriberManagement(SyncRequests):
    """Subscribers, their subscriptions, webhooks and deliveries."""

    def subscribers(self, q: str = "", limit: int = 100) -> list[dict[str, Any]]:
        """Subscribers whose name contains `q`, with their pending deliveries and options, the longest queue first."""
        return self.do(self._management.subscribers(q, limit))

    def get_subscriber(self, name: str) -> dict[str, Any]:
        """The state and options of a subscriber."""
        return self.do(self._management.get_subscriber(name))

    def put_subscriber(self, name: str, *, owner: str = "", **options: Any) -> dict[str, Any]:
        """Create a durable subscriber, or replace its options (policy, limit, visibility_seconds, ...). `owner`: the
        principal that it shall belong to from now on."""
        return self.do(self._management.put_subscriber(name, owner=owner, **options))

    def remove_subscriber(self, name: str) -> None:
        """Remove a subscriber with its subscriptions, pending deliveries and dead letters."""
        self.do(self._management.remove_subscriber(name))

    def subscriptions(
        self, q: str = "", subscriber: str = "", limit: int = 100, suspended: bool = False
    ) -> list[dict[str, Any]]:
        """Subscriptions whose name or predicate contains `q`, of one subscriber or of all; with `suspended` only those
        that match nothing because they were too expensive."""
        return self.do(self._management.subscriptions(q, subscriber, limit, suspended))

    def put_subscription(
        self, subscriber: str, name: str, where: str, *, priority: int = 4, about: Mapping[str, Any] | None = None
    ) -> list[str]:
        """Add or replace a subscription; returns warnings."""
        return self.do(self._management.put_subscription(subscriber, name, where, priority=priority, about=about))

    def put_subscriptions(self, subscriber: str, subscriptions: Iterable[Mapping[str, Any]]) -> list[str]:
        """Add or replace many subscriptions (name, where, priority, about), all or none; returns warnings."""
        return self.do(self._management.put_subscriptions(subscriber, subscriptions))

    def remove_subscription(self, subscriber: str, name: str) -> None:
        """Remove a subscription."""
        self.do(self._management.remove_subscription(subscriber, name))

    def resume_subscription(self, subscriber: str, name: str) -> None:
        """Match a subscription again that was suspended because it was too expensive."""
        self.do(self._management.resume_subscription(subscriber, name))

    def replay(self, subscriber: str, first: int = 1) -> int:
        """Deliver stored events again, from number `first` on, that match the subscriber's subscriptions now; returns
        how many."""
        return self.do(self._management.replay(subscriber, first))

    def pause(self, subscriber: str) -> None:
        """Send nothing to a subscriber; its deliveries are kept."""
        self.do(self._management.pause(subscriber))

    def resume(self, subscriber: str) -> None:
        """Send a paused subscriber its deliveries again."""
        self.do(self._management.resume(subscriber))

    def webhook(self, subscriber: str) -> dict[str, Any]:
        """The webhook of a subscriber, without its secrets. Raises Unknown if it has none."""
        return self.do(self._management.webhook(subscriber))

    def put_webhook(self, subscriber: str, url: str, **settings: Any) -> dict[str, Any]:
        """Send the deliveries of a subscriber by POST to an address. Settings: secret (a text, or "new"),
        overlap_seconds, batch, max_requests. A secret that the broker made is in the answer, and never shown again."""
        return self.do(self._management.put_webhook(subscriber, url, **settings))

    def remove_webhook(self, subscriber: str) -> None:
        """Remove the webhook of a subscriber."""
        self.do(self._management.remove_webhook(subscriber))

    def ack(self, subscriber: str, seqs: Iterable[int]) -> None:
        """Acknowledge deliveries that came as Server-Sent Events. `Subscriber.ack` is for those of a connection."""
        self.do(self._management.ack(subscriber, seqs))

    def nack(self, subscriber: str, seqs: Iterable[int]) -> None:
        """Refuse deliveries that came as Server-Sent Events: they are sent again later."""
        self.do(self._management.nack(subscriber, seqs))

    def extend(self, subscriber: str, seqs: Iterable[int]) -> None:
        """Ask for more time for deliveries that came as Server-Sent Events."""
        self.do(self._management.extend(subscriber, seqs))


class SyncEventManagement(SyncRequests):
    """Events that are stored or delayed, dead letters, and what predicates say about events."""

    def events(self, first: int = 1, limit: int = 100) -> dict[str, Any]:
        """{"events": stored events, "next": where the next call begins}."""
        return self.do(self._management.events(first, limit))

    def delayed(self, limit: int = 100) -> list[dict[str, Any]]:
        """Delayed events with their numbers, those that are due first. `due`: microseconds since 1970. Who may
        manage sees the `principal` that published each."""
        return self.do(self._management.delayed(limit))

    def cancel_delayed(self, numbers: Iterable[int]) -> int:
        """Delete delayed events that are not due yet, which this principal published, or if it may manage; returns how
        many."""
        return self.do(self._management.cancel_delayed(numbers))

    def check(self, where: str) -> str:
        """A predicate in normal form. Raises BadPredicate if it is wrong."""
        return self.do(self._management.check(where))

    def try_event(self, event: Any, where: str | None = None, *, limit: int = 100, misses: int = 0) -> dict[str, Any]:
        """Which subscriptions an event would match, without publishing it, and the nearest `misses`."""
        return self.do(self._management.try_event(event, where, limit=limit, misses=misses))

    def explain(self, event: Any, id: str, where: str | None = None) -> dict[str, Any]:
        """Why the subscription "subscriber/name" matches an event, or why not."""
        return self.do(self._management.explain(event, id, where))

    def unseen(self, events: int = 1_000) -> list[dict[str, Any]]:
        """Attributes of subscriptions that none of the latest events had: they may be misspelt."""
        return self.do(self._management.unseen(events))

    def dead_letters(self, subscriber: str = "", limit: int = 100) -> list[dict[str, Any]]:
        """Dead letters, newest first, of one subscriber or of all."""
        return self.do(self._management.dead_letters(subscriber, limit))

    def replay_dead_letters(self, numbers: Iterable[int]) -> int:
        """Deliver dead letters again; returns how many."""
        return self.do(self._management.replay_dead_letters(numbers))

    def drop_dead_letters(self, numbers: Iterable[int]) -> int:
        """Delete dead letters for good; returns how many."""
        return self.do(self._management.drop_dead_letters(numbers))


class SyncBrokerManagement(SyncRequests):
    """The schema, the state and the figures of the broker."""

    def schema(self) -> Schema:
        """The attributes that events and subscriptions may use."""
        return self.do(self._management.schema())

    def put_schema(self, schema: Schema | Mapping[str, Any]) -> Schema:
        """Change the schema. Raises Conflict if subscriptions or delayed events contradict the new one."""
        return self.do(self._management.put_schema(schema))

    def stats(self) -> dict[str, Any]:
        """Counters and sizes, and in "history" one line per second of rates and latencies."""
        return self.do(self._management.stats())

    def trace(self, first: int = 1, limit: int = 1_000) -> list[dict[str, Any]]:
        """The latest deliveries of events from number `first` on: when each was determined and sent."""
        return self.do(self._management.trace(first, limit))

    def snapshot(self) -> dict[str, Any]:
        """Save the index now."""
        return self.do(self._management.snapshot())

    def accept_clock(self) -> dict[str, Any]:
        """The clock of the broker's system has jumped, and is right: let the broker follow it now."""
        return self.do(self._management.accept_clock())

    def openapi(self) -> dict[str, Any]:
        """The OpenAPI description of the interface."""
        return self.do(self._management.openapi())


class SyncAccessManagement(SyncRequests):
    """Principals and their tokens."""

    def whoami(self) -> dict[str, Any]:
        """The principal of this client's token, and its rights."""
        return self.do(self._management.whoami())

    def principals(self) -> list[dict[str, Any]]:
        """All principals with their rights."""
        return self.do(self._management.principals())

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
        self.do(
            self._management.put_principal(
                name,
                roles,
                names=names,
                publish=publish,
                see=see,
                max_subscriptions=max_subscriptions,
                publish_rate=publish_rate,
                max_day_bytes=max_day_bytes,
            )
        )

    def remove_principal(self, name: str) -> None:
        """Remove a principal and its tokens."""
        self.do(self._management.remove_principal(name))

    def tokens(self) -> list[dict[str, Any]]:
        """All tokens, without their secrets."""
        return self.do(self._management.tokens())

    def create_token(
        self, principal: str, roles: Iterable[str] | None = None, expires: float | None = None, note: str = ""
    ) -> dict[str, Any]:
        """Create a token; its text is in "token", and is shown only now. `roles`: fewer than the principal has;
        `expires`: seconds since 1970."""
        return self.do(self._management.create_token(principal, roles, expires, note))

    def limit_token(self, id: str, roles: Iterable[str] | None = None, expires: float | None = None) -> dict[str, Any]:
        """Give a token fewer roles, or an earlier expiry."""
        return self.do(self._management.limit_token(id, roles, expires))

    def revoke_token(self, id: str) -> None:
        """Revoke a token; its connections are closed."""
        self.do(self._management.revoke_token(id))


class SyncManagement(SyncSubscriberManagement, SyncEventManagement, SyncBrokerManagement, SyncAccessManagement):
    """The methods of `SyncClient` that manage a broker."""
