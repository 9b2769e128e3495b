"""The one place that decides: what a route or a frame needs, and whether a caller has it.

Need      declared by every route and every frame
Caller    who asks; made from a token. Each question is answered from the directory as it is now, so a token that is
          revoked, limited or expired, and a principal that is changed, lose their rights at once
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from hitbox.broker.access.principals import ROLES, Principal, Role
from hitbox.broker.events.published_event import PublishedEvent
from hitbox.broker.subscribers.subscriptions import Sight, Subscriber, SubscriptionRegistry
from hitbox.index.match_budget import MatchBudget
from hitbox.protocol.errors import Forbidden


class Rights(Protocol):
    """What the directory of all principals answers."""

    def rights(self, name: str, id: str | None) -> Principal: ...

    @property
    def sights(self) -> Mapping[str, Sight]: ...

    def may_publish(self, name: str, event: Mapping[str, Any], costs: MatchBudget | None) -> bool: ...

    def may_see(self, name: str, event: Mapping[str, Any]) -> bool: ...


@dataclass(frozen=True, slots=True)
class Need:
    """`roles`: one of them is needed. `whole`: the caller must not be limited to some names or events."""

    roles: tuple[Role, ...]
    whole: bool = False


ANYONE = Need(ROLES)
PUBLISH = Need(("publish",))
CANCEL = Need(("publish", "manage"))
SUBSCRIBE = Need(("subscribe",))
USE = Need(("subscribe", "manage"))
READ = Need(("subscribe", "observe", "manage"))
OBSERVE = Need(("observe", "manage"))
OBSERVE_ALL = Need(("observe", "manage"), whole=True)
MANAGE_ALL = Need(("manage",), whole=True)


class Caller:
    """A principal that uses the broker, with a token; `token` is None for those on this machine, while there are no
    principals."""

    __slots__ = ("_directory", "_registry", "name", "token")

    def __init__(self, directory: Rights, registry: SubscriptionRegistry, name: str, token: str | None):
        self._directory, self._registry, self.name, self.token = directory, registry, name, token

    # ---- roles

    def rights(self) -> Principal:
        """What the caller may do now. Raises NotAllowed if its token is not valid any more."""
        return self._directory.rights(self.name, self.token)

    def check(self, need: Need) -> None:
        """Raise unless the caller has, now, what is needed."""
        rights = self.rights()
        if not any(role in need.roles for role in rights.roles):
            raise Forbidden(f"{self.name!r} lacks the role for this: {' or '.join(need.roles)}")
        if need.whole and rights.is_limited:
            raise Forbidden(f"{self.name!r} is limited to some names or events; this needs a principal that is not")

    def manages(self) -> bool:
        return "manage" in self.rights().roles

    # ---- names

    def owner(self, name: str) -> str:
        """Check that the caller may use and change a subscriber, which need not exist; returns who then owns it."""
        rights = self.rights()
        known = self._registry.by_name.get(name)
        if known is not None and known.owner == self.name and (known.ephemeral or rights.covers(name)):
            return self.name
        if not rights.covers(name):
            raise Forbidden(f"{self.name!r} may use the names {rights.names} only, not {name!r:.100}")
        if known is None or not known.owner:
            return self.own_name()
        if "manage" not in rights.roles:
            raise Forbidden(f"the subscriber {name!r} belongs to another principal")
        return known.owner

    def uses(self, name: str) -> bool:
        """Whether the caller may use a subscriber."""
        try:
            self.owner(name)
        except Forbidden:
            return False
        return True

    def own_name(self) -> str:
        """The owner of what the caller makes; empty if nobody owns it."""
        self.rights()
        return "" if self.token is None else self.name

    def receiver(self, name: str) -> str:
        """Like `owner`, for a connection: what the subscriber gets, the caller must be allowed to see."""
        owner = self.owner(name)
        if owner not in ("", self.name) and self.rights().see:
            raise Forbidden(f"the subscriber {name!r} belongs to another principal, who may see other events")
        return owner

    def shows(self, subscriber: Subscriber) -> bool:
        """Whether the caller may know of a subscriber."""
        return self.shows_now()(subscriber)

    def shows_now(self) -> Callable[[Subscriber], bool]:
        """A test of many subscribers: whether the caller may know of one, with the rights that it has now."""
        rights, name, others = self.rights(), self.name, self.knows_others()

        def shows(one: Subscriber) -> bool:
            return one.owner == name or ((others or not one.owner) and rights.covers(one.name))

        return shows

    def knows_others(self) -> bool:
        """Whether the caller may know of subscribers of other principals, those that its names cover."""
        roles = self.rights().roles
        return "observe" in roles or "manage" in roles

    def shown_subscriber(self, name: str) -> None:
        """Raise unless the caller may know of a subscriber of this name."""
        known = self._registry.by_name.get(name)
        if not (self.shows(known) if known is not None else self.rights().covers(name)):
            raise Forbidden(f"{self.name!r} may not look at the subscriber {name!r:.100}")

    def shows_id(self, id: str) -> bool:
        """Whether the caller may know of a subscription, by its id."""
        return self.shows_ids_now()(id)

    def shows_ids_now(self) -> Callable[[Any], bool]:
        """A test of many ids: whether the caller may know of a subscription, with the rights that it has now."""
        shows, by_name = self.shows_now(), self._registry.by_name
        found: dict[str, bool] = {}

        def shows_id(id: Any) -> bool:
            name = str(id).partition("/")[0]
            if name not in found:
                found[name] = (known := by_name.get(name)) is not None and shows(known)
            return found[name]

        return shows_id

    def shows_all(self) -> bool:
        """Whether the caller may know of every subscriber."""
        return self.rights().names == "*" and self.knows_others()

    def shown_numbers(self) -> list[int] | None:
        """The numbers of the subscribers that the caller may know of; None: all."""
        if self.shows_all():
            return None
        return [one.number for one in filter(self.shows_now(), self._registry.by_name.values())]

    # ---- events

    def check_publish(self, items: Sequence[PublishedEvent], most: int | None = None) -> None:
        """Raise unless the caller may publish all of these. `most`: UsedUp is raised if it takes more steps."""
        text, costs = self.rights().publish, MatchBudget(0)
        costs.in_all = most
        for at, item in enumerate(items if text else ()):
            if not self._directory.may_publish(self.name, item.event, costs):
                which = f"; event {at} of {len(items)} is none, and none was accepted" if len(items) > 1 else ""
                raise Forbidden(f"{self.name!r} may publish only events with {text}{which}")

    def sees(self, event: Mapping[str, Any]) -> bool:
        return not self.rights().see or self._directory.may_see(self.name, event)

    def sees_body(self, body: bytes | None) -> bool:
        """Whether the caller may see an event, by its stored text; None: there is nothing to show."""
        if body is None or not self.rights().see:
            return True
        return self.sees(msgspec.json.decode(body, type=PublishedEvent).event)

    def check_sees(self, event: Mapping[str, Any]) -> None:
        if not self.sees(event):
            raise Forbidden(f"{self.name!r} may see only events with {self.rights().see}")

    def sees_all(self) -> bool:
        return not self.rights().see

    def sight(self) -> Sight | None:
        """What decides which events the caller may see; None: it sees all."""
        return self._directory.sights.get(self.name)

    def shown_events(self, events: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        """Those of the events ({"event": ..., ...}) that the caller may see."""
        if self.sees_all():
            return list(events)
        return [one for one in events if self.sees(one.get("event") or {})]
