"""Principals and tokens as they are stored and shown.

A principal has roles, a pattern for the names of the subscribers that it may use, and two predicates. A token belongs
to a principal; it may have fewer roles and an expiry. Its text is "hb_ID_SECRET": the id finds it, the secret proves
it. The store has only the SHA-256 of the whole text; it is random, so it needs no slow hash.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from typing import Any, Literal, get_args

import msgspec

from hitbox.broker.settings import MOST, NAME
from hitbox.protocol.errors import BadRequest

Role = Literal["publish", "subscribe", "observe", "manage"]
ROLES: tuple[Role, ...] = get_args(Role)
LOCAL = "local"
ITSELF = ""
"""Stands for the id of a token where the broker acts for a principal, or for nobody's subscribers."""
"""The principal of everybody, as long as there is none."""
PATTERN = re.compile(rf"[A-Za-z0-9_.:@~-]{{0,100}}\*|{NAME.pattern}(?:/\*)?")
TOKEN = re.compile(r"hb_(?P<id>[0-9a-f]{16})_[A-Za-z0-9_-]{43}")
MOST_TEXT = 10_000


class Principal(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The rights of a principal. `names`: "team-a.*" is every subscriber whose name begins with "team-a.", "ann" or
    "ann/*" is the subscriber ann with all its subscriptions. `publish` and `see` are predicates; empty: everything.

    Quotas; 0: none. `max_subscriptions`: of all its subscribers. `publish_rate`: events per second, instead of the
    setting of the broker. `max_day_bytes`: of the events that it publishes in a day (UTC), as they are stored."""

    roles: list[Role] = []
    names: str = "*"
    publish: str = ""
    see: str = ""
    max_subscriptions: int = 0
    publish_rate: float = 0.0
    max_day_bytes: int = 0

    def covers(self, name: str) -> bool:
        """Whether the pattern allows the name of a subscriber.

        >>> [Principal(names=pattern).covers("team-a") for pattern in ("*", "team*", "team-a/*", "team-a", "team-")]
        [True, True, True, True, False]
        """
        if self.names.endswith("/*"):
            return name == self.names[:-2]
        if self.names.endswith("*"):
            return name.startswith(self.names[:-1])
        return name == self.names

    @property
    def is_limited(self) -> bool:
        """Whether there is anything that it may not use or see."""
        return self.names != "*" or bool(self.see)


EVERYTHING = Principal(list(ROLES))


class TokenSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`roles`: None means all of the principal. `expires`: seconds since 1970; None means never."""

    roles: list[Role] | None = None
    expires: float | None = None
    note: str = ""
    created: float = 0.0


class Token(msgspec.Struct, frozen=True):
    id: str
    principal: str
    hash: str
    settings: TokenSettings

    def allowed(self, principal: Principal | None) -> list[Role]:
        """The roles that it has now: those of its principal, as far as it is not limited to some."""
        roles = [] if principal is None else principal.roles
        limit = self.settings.roles
        return roles if limit is None else [role for role in roles if role in limit]

    def describe(self, principal: Principal | None) -> dict[str, Any]:
        """What may be shown: not the hash. `allowed`: what it may do now, with the roles of its principal."""
        found = {"id": self.id, "principal": self.principal, **msgspec.to_builtins(self.settings)}
        return {**found, "allowed": list(self.allowed(principal))}


def new_token() -> tuple[str, str]:
    """The id and the text of a new token."""
    id = secrets.token_hex(8)
    return id, f"hb_{id}_{secrets.token_urlsafe(32)}"


def hash_of(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


def check_principal(given: Principal) -> Principal:
    """Check everything but the predicates, which need a schema."""
    if not PATTERN.fullmatch(given.names):
        raise BadRequest(
            "the names of a principal are like team-a.* or ann: letters, digits or . _ : @ ~ -, and one * at the end "
            f"(not {given.names!r:.60})"
        )
    for name in ("publish", "see"):
        if len(getattr(given, name)) > MOST_TEXT:
            raise BadRequest(f"the predicate {name} may have at most {MOST_TEXT} characters")
    for name in ("max_subscriptions", "publish_rate", "max_day_bytes"):
        if not 0 <= getattr(given, name) <= MOST:  # nan fails too
            raise BadRequest(f"{name} must be 0 (no limit) to {MOST}, not {getattr(given, name)}")
    return msgspec.structs.replace(given, roles=_in_order(given.roles))


def check_token(given: TokenSettings) -> TokenSettings:
    if given.expires is not None and not 0 <= given.expires <= MOST:  # nan fails too
        raise BadRequest(f"expires is a time in seconds since 1970, not {given.expires}")
    if len(given.note) > 200:
        raise BadRequest("the note of a token may have at most 200 characters")
    return msgspec.structs.replace(given, roles=None if given.roles is None else _in_order(given.roles))


def _in_order(roles: list[Role]) -> list[Role]:
    return [role for role in ROLES if role in roles]
