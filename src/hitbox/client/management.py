"""What a client can ask of a broker besides publishing and receiving: one method per route of the HTTP interface."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

from hitbox.encoding.schema import Schema
from hitbox.encoding.values import for_json


def _path(*parts: str) -> str:
    return "/v1/" + "/".join(quote(part, safe="") for part in parts)


class Requests:
    """What the methods share: `Client` sends the request."""

    async def request(self, method: str, path: str, body: Any = None, **query: Any) -> Any:
        raise NotImplementedError

    async def _list(self, path: str, key: str, **query: Any) -> list[dict[str, Any]]:
        return list((await self.request("GET", path, **query))[key])

    async def _count(self, path: str, numbers: Iterable[int]) -> int:
        return int((await self.request("POST", path, {"numbers": list(numbers)}))["count"])


class SubscriberManagement(Requests):
    """Subscribers, their subscriptions, webhooks and deliveries."""

    async def subscribers(self, q: str = "", limit: int = 100) -> list[dict[str, Any]]:
        """Subscribers whose name contains `q`, with their pending deliveries and options, the longest queue first."""
        return await self._list("/v1/subscribers", "subscribers", q=q, limit=limit)

    async def get_subscriber(self, name: str) -> dict[str, Any]:
        """The state and options of a subscriber."""
        return dict(await self.request("GET", _path("subscribers", name)))

    async def put_subscriber(self, name: str, *, owner: str = "", **options: Any) -> dict[str, Any]:
        """Create a durable subscriber, or replace its options (policy, limit, visibility_seconds, ...). `owner`: the
        principal that it shall belong to from now on."""
        query = {"owner": owner} if owner else {}
        return dict(await self.request("PUT", _path("subscribers", name), options, **query))

    async def remove_subscriber(self, name: str) -> None:
        """Remove a subscriber with its subscriptions, pending deliveries and dead letters."""
        await self.request("DELETE", _path("subscribers", name))

    async def subscriptions(
        self, q: str = "", subscriber: str = "", limit: int = 100, suspended: bool = False
    ) -> list[dict[str, Any]]:
        """Subscriptions whose name or predicate contains `q`, of one subscriber or of all; with `suspended` only those
        that match nothing because they were too expensive."""
        query = {"q": q, "subscriber": subscriber, "limit": limit} | ({"suspended": "true"} if suspended else {})
        return await self._list("/v1/subscriptions", "subscriptions", **query)

    async def put_subscription(
        self, subscriber: str, name: str, where: str, *, priority: int = 4, about: Mapping[str, Any] | None = None
    ) -> list[str]:
        """Add or replace a subscription; returns warnings."""
        body = {"where": where, "priority": priority, "about": for_json(about or {})}
        return list(
            (await self.request("PUT", _path("subscribers", subscriber, "subscriptions", name), body))["warnings"]
        )

    async def put_subscriptions(self, subscriber: str, subscriptions: Iterable[Mapping[str, Any]]) -> list[str]:
        """Add or replace many subscriptions (name, where, priority, about), all or none; returns warnings."""
        body = [{**given, "about": for_json(given.get("about") or {})} for given in subscriptions]
        return list((await self.request("POST", _path("subscribers", subscriber, "subscriptions"), body))["warnings"])

    async def remove_subscription(self, subscriber: str, name: str) -> None:
        """Remove a subscription."""
        await self.request("DELETE", _path("subscribers", subscriber, "subscriptions", name))

    async def resume_subscription(self, subscriber: str, name: str) -> None:
        """Match a subscription again that was suspended because it was too expensive."""
        await self.request("POST", _path("subscribers", subscriber, "subscriptions", name, "resume"))

    async def replay(self, subscriber: str, first: int = 1) -> int:
        """Deliver stored events again, from number `first` on, that match the subscriber's subscriptions now; returns
        how many."""
        return int((await self.request("POST", _path("subscribers", subscriber, "replay"), {"first": first}))["count"])

    async def pause(self, subscriber: str) -> None:
        """Send nothing to a subscriber; its deliveries are kept."""
        await self.request("POST", _path("subscribers", subscriber, "pause"))

    async def resume(self, subscriber: str) -> None:
        """Send a paused subscriber its deliveries again."""
        await self.request("POST", _path("subscribers", subscriber, "resume"))

    async def webhook(self, subscriber: str) -> dict[str, Any]:
        """The webhook of a subscriber, without its secrets. Raises Unknown if it has none."""
        return dict(await self.request("GET", _path("subscribers", subscriber, "webhook")))

    async def put_webhook(self, subscriber: str, url: str, **settings: Any) -> dict[str, Any]:
        """Send the deliveries of a subscriber by POST to an address. Settings: secret (a text, or "new"),
        overlap_seconds, batch, max_requests. A secret that the broker made is in the answer, and never shown again."""
        return dict(await self.request("PUT", _path("subscribers", subscriber, "webhook"), {"url": url, **settings}))

    async def remove_webhook(self, subscriber: str) -> None:
        """Remove the webhook of a subscriber."""
        await self.request("DELETE", _path("subscribers", subscriber, "webhook"))

    async def ack(self, subscriber: str, seqs: Iterable[int]) -> None:
        """Acknowledge deliveries that came as Server-Sent Events. `Subscriber.ack` is for those of a connection."""
        await self.request("POST", _path("subscribers", subscriber, "ack"), {"seqs": list(seqs)})

    async def nack(self, subscriber: str, seqs: Iterable[int]) -> None:
        """Refuse deliveries that came as Server-Sent Events: they are sent again later."""
        await self.request("POST", _path("subscribers", subscriber, "nack"), {"seqs": list(seqs)})

    async def extend(self, subscriber: str, seqs: Iterable[int]) -> None:
        """Ask for more time for deliveries that came as Server-Sent Events."""
        await self.request("POST", _path("subscribers", subscriber, "extend"), {"seqs": list(seqs)})


class EventManagement(Requests):
    """Events that are stored or delayed, dead letters, and what predicates say about events."""

    async def events(self, first: int = 1, limit: int = 100) -> dict[str, Any]:
        """{"events": stored events, "next": where the next call begins}."""
        return dict(await self.request("GET", "/v1/events", first=first, limit=limit))

    async def delayed(self, limit: int = 100) -> list[dict[str, Any]]:
        """Delayed events with their numbers, those that are due first. `due`: microseconds since 1970. Who may
        manage sees the `principal` that published each."""
        return await self._list("/v1/delayed", "events", limit=limit)

    async def cancel_delayed(self, numbers: Iterable[int]) -> int:
        """Delete delayed events that are not due yet, which this principal published, or if it may manage; returns how
        many."""
        return await self._count("/v1/delayed/cancel", numbers)

    async def check(self, where: str) -> str:
        """A predicate in normal form. Raises BadPredicate if it is wrong."""
        return str((await self.request("POST", "/v1/check", {"where": where}))["predicate"])

    async def try_event(
        self, event: Any, where: str | None = None, *, limit: int = 100, misses: int = 0
    ) -> dict[str, Any]:
        """Which subscriptions an event would match, without publishing it, and the nearest `misses`."""
        body = {"event": for_json(event), "where": where, "limit": limit, "misses": misses}
        return dict(await self.request("POST", "/v1/try", body))

    async def explain(self, event: Any, id: str, where: str | None = None) -> dict[str, Any]:
        """Why the subscription "subscriber/name" matches an event, or why not."""
        return dict(await self.request("POST", "/v1/explain", {"event": for_json(event), "id": id, "where": where}))

    async def unseen(self, events: int = 1_000) -> list[dict[str, Any]]:
        """Attributes of subscriptions that none of the latest events had: they may be misspelt."""
        return await self._list("/v1/unseen", "attributes", events=events)

    async def dead_letters(self, subscriber: str = "", limit: int = 100) -> list[dict[str, Any]]:
        """Dead letters, newest first, of one subscriber or of all."""
        return await self._list("/v1/dead", "letters", subscriber=subscriber, limit=limit)

    async def replay_dead_letters(self, numbers: Iterable[int]) -> int:
        """Deliver dead letters again; returns how many."""
        return await self._count("/v1/dead/replay", numbers)

    async def drop_dead_letters(self, numbers: Iterable[int]) -> int:
        """Delete dead letters for good; returns how many."""
        return await self._count("/v1/dead/drop", numbers)


class BrokerManagement(Requests):
    """The schema, the state and the figures of the broker."""

    async def schema(self) -> Schema:
        """The attributes that events and subscriptions may use."""
        return Schema.from_json((await self.request("GET", "/v1/schema"))["attributes"])

    async def put_schema(self, schema: Schema | Mapping[str, Any]) -> Schema:
        """Change the schema. Raises Conflict if subscriptions or delayed events contradict the new one."""
        wanted = schema if isinstance(schema, Schema) else Schema(schema)
        return Schema.from_json(
            (await self.request("PUT", "/v1/schema", {"attributes": wanted.to_json()}))["attributes"]
        )

    async def stats(self) -> dict[str, Any]:
        """Counters and sizes, and in "history" one line per second of rates and latencies."""
        return dict(await self.request("GET", "/v1/stats"))

    async def trace(self, first: int = 1, limit: int = 1_000) -> list[dict[str, Any]]:
        """The latest deliveries of events from number `first` on: when each was determined and sent."""
        return await self._list("/v1/trace", "rows", first=first, limit=limit)

    async def snapshot(self) -> dict[str, Any]:
        """Save the index now."""
        return dict(await self.request("POST", "/v1/snapshot"))

    async def accept_clock(self) -> dict[str, Any]:
        """The clock of the broker's system has jumped, and is right: let the broker follow it now."""
        return dict(await self.request("POST", "/v1/clock/accept"))

    async def openapi(self) -> dict[str, Any]:
        """The OpenAPI description of the interface."""
        return dict(await self.request("GET", "/openapi.json"))


class AccessManagement(Requests):
    """Principals and their tokens."""

    async def whoami(self) -> dict[str, Any]:
        """The principal of this client's token, and its rights."""
        return dict(await self.request("GET", "/v1/whoami"))

    async def principals(self) -> list[dict[str, Any]]:
        """All principals with their rights."""
        return await self._list("/v1/principals", "principals")

    async def put_principal(
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
        quotas = {"max_subscriptions": max_subscriptions, "publish_rate": publish_rate, "max_day_bytes": max_day_bytes}
        body = {"roles": list(roles), "names": names, "publish": publish, "see": see, **quotas}
        await self.request("PUT", _path("principals", name), body)

    async def remove_principal(self, name: str) -> None:
        """Remove a principal and its tokens."""
        await self.request("DELETE", _path("principals", name))

    async def tokens(self) -> list[dict[str, Any]]:
        """All tokens, without their secrets."""
        return await self._list("/v1/tokens", "tokens")

    async def create_token(
        self, principal: str, roles: Iterable[str] | None = None, expires: float | None = None, note: str = ""
    ) -> dict[str, Any]:
        """Create a token; its text is in "token", and is shown only now. `roles`: fewer than the principal has;
        `expires`: seconds since 1970."""
        limits = {"roles": None if roles is None else list(roles), "expires": expires, "note": note}
        return dict(await self.request("POST", "/v1/tokens", {"principal": principal, **limits}))

    async def limit_token(
        self, id: str, roles: Iterable[str] | None = None, expires: float | None = None
    ) -> dict[str, Any]:
        """Give a token fewer roles, or an earlier expiry."""
        body = {"roles": None if roles is None else list(roles), "expires": expires}
        return dict(await self.request("PUT", _path("tokens", id), body))

    async def revoke_token(self, id: str) -> None:
        """Revoke a token; its connections are closed."""
        await self.request("DELETE", _path("tokens", id))


class Management(SubscriberManagement, EventManagement, BrokerManagement, AccessManagement):
    """The methods of `Client` that manage a broker. What a method may do depends on the rights of the token."""
