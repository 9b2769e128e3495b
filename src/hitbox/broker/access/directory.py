"""All principals and tokens: in memory, and in the store, where every change is durable before it is confirmed.

As long as there is no principal, everybody who can reach the broker may do everything, as the principal "local". From
the first principal on, every request needs a token, for good: if all tokens are lost or revoked, nobody gets in until
`hitbox admin tokens create` makes one in the folder of the stopped broker.

The predicates `see` of all principals are one index, and so are those of `publish`: one match of an event tells which
principals may see it. A predicate that does not fit the schema allows nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Protocol

import msgspec

from hitbox.broker.access.principals import (
    EVERYTHING,
    ITSELF,
    LOCAL,
    TOKEN,
    Principal,
    Token,
    TokenSettings,
    check_principal,
    check_token,
    hash_of,
    new_token,
)  # fmt: skip
from hitbox.broker.access.rights import Caller, Need
from hitbox.broker.access.usage import PREFIX, Usage
from hitbox.broker.clock import time
from hitbox.broker.events import changes
from hitbox.broker.settings import check_name
from hitbox.broker.store.group_commit import Writer
from hitbox.broker.store.store import Store
from hitbox.broker.subscribers.subscriptions import Sight, Subscriber, SubscriptionRegistry
from hitbox.encoding.schema import Schema
from hitbox.errors import HitboxError, TooExpensive, counted
from hitbox.index.index import Index
from hitbox.index.match_budget import MatchBudget
from hitbox.language import Limits
from hitbox.protocol.errors import BadRequest, Conflict, Forbidden, NotAllowed, Unknown

LONGEST_WAIT = 3600.0
SINCE = "since/"
"""Of a key in table `meta`: with which event a principal began."""
MOST_PRINCIPALS, MOST_TOKENS = 10_000, 100_000
NEEDED = "a valid token is needed: Authorization: Bearer ..."
NO_HASH = hash_of("")
STEPS = 100_000
"""That a predicate of a principal may take on an event."""
log = logging.getLogger("hitbox.broker")


class Watched(Protocol):
    """A connection that is closed as soon as its caller loses the right to have it."""

    caller: Caller

    @property
    def need(self) -> Need: ...

    def close(self, code: int, reason: str) -> None: ...

    def discard_unsent(self) -> None:
        """End it at once if it holds something that could not be sent yet."""


def _deny(problem: TooExpensive) -> None:
    log.warning("a predicate of the principal %s took more than %d steps on an event", problem.id, problem.steps)


class Predicates:
    """The predicates of all principals, for one schema. `problems`: those that do not fit. `sights`: of those that may
    not see everything."""

    def __init__(self, schema: Schema, principals: Mapping[str, Principal]):
        self.schema = schema
        self.problems: dict[str, str] = {}
        self.publish, self.see = (self._index(principals, which) for which in ("publish", "see"))
        self.sights = {name: (schema, one.see) for name, one in principals.items() if one.see}
        self.principals = frozenset(principals)

    def _index(self, principals: Mapping[str, Principal], which: str) -> Index:
        index = Index(self.schema, limits=Limits(match_steps=STEPS))
        for name, one in principals.items():
            if text := getattr(one, which):
                try:
                    index.subscribe(name, text)
                except HitboxError as problem:
                    self.problems[name] = f"the predicate {which} of {name!r}: {problem}"
        return index

    def names(
        self, index: Index, event: Mapping[str, Any], only: str = "", costs: MatchBudget | None = None
    ) -> frozenset[str]:
        """The principals whose predicate holds, for both images if the event has two. One that takes too many steps on
        it does not hold. `only`: the principal that is asked for, so that those of others take nothing. `costs`: of the
        call that this is a part of."""
        budget = MatchBudget(STEPS, _deny)
        budget.excluded = self.principals - {only} if only else frozenset()
        budget.in_all = None if costs is None or costs.in_all is None else costs.left_in_all(costs.in_all)
        found = [frozenset(map(str, index.match(part, budget=budget))) for part in _images(self.schema, event)]
        if costs is not None:
            costs.spend(budget.spent)
        return frozenset.intersection(*found)


def _images(schema: Schema, event: Mapping[str, Any]) -> list[Any]:
    """What a predicate has to hold for: the event, or both of its images. An image that is null shows nothing."""
    old, new = changes.images(schema, event) or (None, None)
    if old is None:
        return [event]
    return [old] if new is None else [event, old]


class Directory:
    """The principals and tokens of a broker. `problems`: stored ones that cannot be used, which have no rights."""

    def __init__(self, store: Store, registry: SubscriptionRegistry):
        self.store, self.registry = store, registry
        self.problems: list[str] = []
        self.principals = {name: self._read(name, raw, Principal) for name, raw, _ in store.principals.scan()}
        self.tokens: dict[str, Token] = {}
        for id, principal, hash, raw, _ in store.tokens.scan():
            settings = self._read(f"token {id}", raw, TokenSettings)
            if settings is not None:
                self.tokens[id] = Token(id, principal, hash, settings)
        self.protected = bool(self.principals) or bool(store.meta.get("protected", False))
        self.usage = Usage(store)
        self._watched: set[Watched] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._changing = asyncio.Lock()
        self.adopt(self.compile(registry.schema))
        self.problems += self.predicates.problems.values()
        for problem in self.problems:
            log.warning("%s: %s; it has no rights", store.path, problem)

    principals: dict[str, Principal | None]
    sights: Mapping[str, Sight]

    def _read(self, what: str, raw: bytes, shape: Any) -> Any:
        try:
            return msgspec.json.decode(raw, type=shape)
        except (msgspec.DecodeError, UnicodeDecodeError) as problem:
            self.problems.append(f"the rights of {what!r} cannot be read ({problem})")
            return None

    # ---- predicates

    def compile(self, schema: Schema, changed: Mapping[str, Principal] | None = None) -> Predicates:
        known = {name: one for name, one in self.principals.items() if one is not None}
        return Predicates(schema, {**known, **(changed or {})})

    def adopt(self, predicates: Predicates) -> None:
        self.predicates, self.sights = predicates, predicates.sights
        self.registry.visibility = self

    def for_schema(self, schema: Schema) -> Predicates:
        """The predicates for another schema. Raises Conflict if one contradicts it."""
        found = self.compile(schema)
        if found.problems:
            raise Conflict("principals contradict the new schema:\n" + "\n".join([*found.problems.values()][:5]))
        return found

    def hidden_from(self, event: Mapping[str, Any], costs: MatchBudget | None = None) -> frozenset[str]:
        """The principals that may not see an event. `costs`: of the call that this is a part of."""
        predicates = self.predicates
        if not predicates.sights:
            return frozenset()
        return frozenset(predicates.sights) - predicates.names(predicates.see, event, costs=costs)

    def unaware(self, owners: Iterable[str], of: Collection[Subscriber]) -> set[str]:
        """Those of the owners that may not know of any of these subscribers. One that is gone knows of all."""
        theirs, nobodys, found = {one.owner for one in of if one.owner}, [one for one in of if not one.owner], set()
        for owner in owners:
            if owner in theirs:
                continue
            with contextlib.suppress(NotAllowed):
                caller = self.acting_for(owner)
                if not any(map(caller.shows_now(), of if caller.knows_others() else nobodys)):
                    found.add(owner)
        return found

    def may_see(self, name: str, event: Mapping[str, Any]) -> bool:
        """Whether a principal with a predicate `see` may see an event. What cannot be decided is not seen."""
        predicates = self.predicates
        try:
            return name in predicates.names(predicates.see, event, name)
        except HitboxError:  # an event from before a change of the schema
            return False

    def hides(self, name: str, event: Mapping[str, Any]) -> bool:
        """Whether a principal may not see an event; empty: nobody. Those of others are not asked."""
        return name in self.sights and not self.may_see(name, event)

    def may_publish(self, name: str, event: Mapping[str, Any], costs: MatchBudget | None = None) -> bool:
        predicates = self.predicates
        return name in predicates.names(predicates.publish, event, name, costs)

    # ---- who asks

    def caller(self, text: str) -> Caller:
        """The caller with this token; an empty text: none was given."""
        if not self.protected:
            return Caller(self, self.registry, LOCAL, None)
        found = TOKEN.fullmatch(text)
        token = self.tokens.get(found["id"]) if found else None
        good = hmac.compare_digest(token.hash if token else NO_HASH, hash_of(text))
        if token is None or not good:
            raise NotAllowed(NEEDED)
        caller = Caller(self, self.registry, token.principal, token.id)
        caller.rights()
        return caller

    def acting_for(self, owner: str) -> Caller:
        """The broker, with the rights of a principal: for its webhooks. Empty: of one who may do everything."""
        return Caller(self, self.registry, owner or LOCAL, ITSELF)

    def rights(self, name: str, id: str | None) -> Principal:
        """What a principal may do now, with this token."""
        if id == ITSELF:
            own = EVERYTHING if name == LOCAL else self.principals.get(name)
            if own is None:
                raise NotAllowed(f"there is no principal {name!r} any more")
            return own
        if id is None:
            if self.protected:
                raise NotAllowed(NEEDED)
            return EVERYTHING
        token, principal = self.tokens.get(id), self.principals.get(name)
        if token is None or principal is None or token.principal != name:
            raise NotAllowed("the token was revoked")
        limits = token.settings
        if limits.expires is not None and time.time() >= limits.expires:
            raise NotAllowed("the token has expired")
        if limits.roles is None:
            return principal
        return msgspec.structs.replace(principal, roles=token.allowed(principal))

    def quotas(self, name: str) -> Principal:
        """The quotas of a principal; those of nobody, and of one that cannot be read, are none."""
        return self.principals.get(name) or EVERYTHING

    def owned_subscriptions(self, name: str) -> int:
        """The subscriptions of all subscribers of a principal."""
        return sum(one.subscriptions for one in self.registry.by_name.values() if one.owner == name)

    def check_quota(
        self, name: str, more: int, owned: int | None = None, refusal: type[HitboxError] = Forbidden
    ) -> None:
        """Raise if a principal would have more subscriptions than it may have. One that has too many may keep them.
        `owned`: how many it has, if that is known."""
        most = self.quotas(name).max_subscriptions
        if not most or more <= 0:
            return
        owned = self.owned_subscriptions(name) if owned is None else owned
        if owned + more > most:
            raise refusal(
                f"{name!r} has {owned} subscriptions and may have {most} (max_subscriptions): {more} more are too many"
            )

    # ---- connections

    @contextlib.contextmanager
    def watched(self, connection: Watched) -> Iterator[None]:
        """Close a connection when its caller loses its rights."""
        self._watched.add(connection)
        self._recheck_in_time(connection.caller)
        try:
            yield
        finally:
            self._watched.discard(connection)

    def _discard_unsent(self, principal: str) -> None:
        """The principal may see other events, or use other names: what could not be sent to its clients yet was checked
        before that. They connect again, and get what they may have."""
        for one in list(self._watched):
            if one.caller.name == principal:
                one.discard_unsent()

    def _recheck(self) -> None:
        """Close the connections of those who have lost their rights."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for one in list(self._watched):
            try:
                one.caller.check(one.need)
            except NotAllowed as problem:
                one.discard_unsent()
                one.close(1008, str(problem))
                self._watched.discard(one)
            else:
                self._recheck_in_time(one.caller)

    def _recheck_in_time(self, caller: Caller) -> None:
        """Look again when the token of a connection expires, or earlier."""
        token = self.tokens.get(caller.token or "")
        if token is None or token.settings.expires is None:
            return
        loop = asyncio.get_running_loop()
        at = loop.time() + min(max(token.settings.expires - time.time(), 0.0) + 0.001, LONGEST_WAIT)
        if self._timer is not None:
            if self._timer.when() <= at:
                return
            self._timer.cancel()
        self._timer = loop.call_at(at, self._recheck)

    # ---- changes

    async def put_principal(self, writer: Writer, name: str, given: Principal) -> None:
        check_name(name, "principal")
        given = check_principal(given)
        async with self._changing:
            if not self.protected:
                raise Conflict(
                    "the first principal comes with its token, or nobody could get in: POST /v1/tokens, or "
                    "`hitbox admin tokens create NAME`"
                )
            if name == LOCAL:
                raise BadRequest(f"{LOCAL!r} is everybody on this machine, while there are no principals")
            if name not in self.principals and len(self.principals) >= MOST_PRINCIPALS:
                raise Conflict(f"{MOST_PRINCIPALS} principals are the most")
            before = self.principals.get(name)
            self._keep_a_manager(name, given)
            compiled = await asyncio.to_thread(_compiled, self, name, given)
            await writer.submit(partial(_put, self.store, name, given, name not in self.principals))
            self.principals[name] = given
            if compiled.schema is not self.registry.schema:  # it changed meanwhile
                compiled = self.compile(self.registry.schema)
            if before is None or before != given:
                self.adopt(compiled)
            if before is None or (before.names, before.see) != (given.names, given.see):
                self._discard_unsent(name)
            self._recheck()

    async def remove_principal(self, writer: Writer, name: str, delayed: Callable[[str], int]) -> None:
        """Remove a principal and its tokens. The caller holds the change barrier exclusively. `delayed`: how many
        delayed events it has."""
        async with self._changing:
            if name not in self.principals:
                raise Unknown(f"there is no principal {name!r:.100}")
            self._keep_a_manager(name, Principal())
            owned = [one.name for one in self.registry.by_name.values() if one.owner == name and not one.ephemeral]
            if owned:
                raise Conflict(
                    f"{name!r} owns {len(owned)} subscribers, such as {owned[0]!r}: remove them, or give them to "
                    "another principal (PUT /v1/subscribers/NAME?owner=...)"
                )
            if waiting := delayed(name):
                raise Conflict(
                    f"{name!r} has {counted(waiting, 'delayed event', 'delayed events')}: wait until they are due, or "
                    "cancel them (hitbox admin delayed list, cancel)"
                )
            tokens = [id for id, one in self.tokens.items() if one.principal == name]
            for id in tokens:
                del self.tokens[id]
            del self.principals[name]
            self.usage.forget(name)
            self._recheck()
            await writer.submit(lambda: _remove(self.store, name, tokens), mandatory=True, frees_space=True)
            self.adopt(self.compile(self.registry.schema))

    async def create_token(self, writer: Writer, principal: str, given: TokenSettings) -> tuple[Token, str]:
        """A new token and its text, which is shown only now. The first one comes with a principal with all rights."""
        check_name(principal, "principal")
        async with self._changing:
            token, text = _new(principal, given)
            first = not self.protected
            if first and (token.settings.roles is not None or token.settings.expires is not None):
                raise Conflict("the first token has all roles and does not expire: with it you make the others")
            _check_can_have_token(principal, first, self.principals, len(self.tokens))
            await writer.submit(lambda: _add(self.store, token, first))
            self.tokens[token.id] = token
            if first:
                for warning in self.first_token_warnings():
                    log.warning("the first token was made: %s", warning)
                self.principals[principal] = EVERYTHING
                self.protected = True
                self._recheck()
        return token, text

    async def limit_token(self, writer: Writer, id: str, given: TokenSettings) -> Token:
        """Give a token fewer roles or an earlier expiry: a limit is never lifted."""
        async with self._changing:
            token = self._token(id)
            limited = msgspec.structs.replace(token, settings=_narrowed(token.settings, check_token(given)))
            self._keep_a_manager(token.principal, None, {id: limited})
            row = _row(limited)
            self.tokens[id] = limited
            self._recheck()
            await writer.submit(lambda: self.store.tokens.put([row]), mandatory=True, frees_space=True)
            return limited

    async def revoke_token(self, writer: Writer, id: str) -> None:
        async with self._changing:
            token = self._token(id)
            self._keep_a_manager(token.principal, None, {id: None})
            del self.tokens[id]
            self._recheck()
            await writer.submit(lambda: self.store.tokens.delete([(id,)]), mandatory=True, frees_space=True)

    def _token(self, id: str) -> Token:
        if id not in self.tokens:
            raise Unknown(f"there is no token {id!r:.100}")
        return self.tokens[id]

    def _keep_a_manager(
        self, name: str, given: Principal | None, tokens: Mapping[str, Token | None] | None = None
    ) -> None:
        """Raise if after a change nobody could manage principals any more."""
        changed = {**self.tokens, **(tokens or {})}
        for token in changed.values():
            if token is None or token.settings.expires is not None:
                continue
            rights = given if given is not None and token.principal == name else self.principals.get(token.principal)
            roles = token.settings.roles
            if rights is not None and "manage" in rights.roles and not rights.is_limited and (
                roles is None or "manage" in roles
            ):  # fmt: skip
                return
        raise Conflict("this would take the last unlimited manager's rights away, and nobody could give them back")

    def describe_tokens(self) -> list[dict[str, Any]]:
        tokens = sorted(self.tokens.values(), key=lambda one: (one.principal, one.id))
        return [one.describe(self.principals.get(one.principal)) for one in tokens]

    def first_token_warnings(self) -> list[str]:
        """What the first token would do to those who are connected."""
        if self.protected or not self._watched:
            return []
        closed = counted(len(self._watched), "connection without one is", "connections without one are")
        return [f"from now on every request needs a token, and {closed} closed"]

    def describe_principals(self) -> list[dict[str, Any]]:
        found = []
        tokens = Counter(one.principal for one in self.tokens.values())
        subscribers, subscriptions = Counter[str](), Counter[str]()
        for one in self.registry.by_name.values():
            subscribers[one.owner] += 1
            subscriptions[one.owner] += one.subscriptions
        for name in sorted(self.principals):
            rights = self.principals[name] or Principal()
            found.append({
                "name": name, **msgspec.to_builtins(rights), "tokens": tokens[name], "subscribers": subscribers[name],
                "subscriptions": subscriptions[name], "day_bytes": self.usage.today(name),
            })  # fmt: skip
        return found


def _compiled(directory: Directory, name: str, given: Principal) -> Predicates:
    """The predicates with a changed principal; raises the error of an invalid one."""
    schema = directory.registry.schema
    for which in ("publish", "see"):
        if text := getattr(given, which):
            try:
                Index(schema, matcher="brute").subscribe(name, text)
            except HitboxError as problem:
                problem.add_note(f"in the predicate {which}")
                raise
    return directory.compile(schema, {name: given})


def _narrowed(known: TokenSettings, given: TokenSettings) -> TokenSettings:
    roles = known.roles
    if given.roles is not None:
        roles = given.roles if roles is None else [role for role in roles if role in given.roles]
    times = [one for one in (known.expires, given.expires) if one is not None]
    return msgspec.structs.replace(known, roles=roles, expires=min(times, default=None), note=given.note or known.note)


# ---- the store: in a transaction, of the writer or of a command


def _row(token: Token) -> tuple[str, str, str, bytes]:
    return token.id, token.principal, token.hash, msgspec.json.encode(token.settings)


def _new(principal: str, given: TokenSettings) -> tuple[Token, str]:
    id, text = new_token()
    now = time.time()
    settings = msgspec.structs.replace(check_token(given), created=now)
    if settings.expires is not None and settings.expires <= now:
        raise BadRequest(
            f"the token would have expired already: {settings.expires:.0f} is {now - settings.expires:.0f} s ago"
        )
    return Token(id, principal, hash_of(text), settings), text


def _check_can_have_token(principal: str, first: bool, known: Collection[str], count: int) -> None:
    if principal == LOCAL:
        raise BadRequest(f"{LOCAL!r} is everybody on this machine, while there are no principals; choose another name")
    if not first and principal not in known:
        raise Unknown(f"there is no principal {principal!r}: make it first, with PUT /v1/principals/{principal}")
    if count >= MOST_TOKENS:
        raise Conflict(f"{MOST_TOKENS} tokens are the most")


def _add(store: Store, token: Token, first: bool) -> None:
    store.tokens.put([_row(token)])
    if first:
        _put(store, token.principal, EVERYTHING, True)
        store.meta.put("protected", True)


def _put(store: Store, principal: str, given: Principal, new: bool) -> None:
    store.principals.put([(principal, msgspec.json.encode(given))])
    if new:
        store.meta.put(SINCE + principal, store.events.table.next())


def _remove(store: Store, principal: str, tokens: list[str]) -> None:
    store.tokens.delete((id,) for id in tokens)
    store.principals.delete([(principal,)])
    store.meta.table.delete([(PREFIX + principal,), (SINCE + principal,)])


def publishers(store: Store) -> dict[str, int]:
    """The number of the first event that each principal can have published: those before it are of an earlier one that
    had its name."""
    names = [name for name, *_ in store.principals.scan()]
    return {
        LOCAL: 0,
        **{name: found if isinstance(found := store.meta.get(SINCE + name, 0), int) else 0 for name in names},
    }


# ---- the folder of a stopped broker


def create_in_folder(store: Store, principal: str, given: TokenSettings) -> tuple[Token, str]:
    """Create a token while the broker is stopped. A principal that does not exist gets all rights: whoever may write to
    the folder has them anyway."""
    check_name(principal, "principal")
    token, text = _new(principal, given)
    known = {name for name, *_ in store.principals.scan()}
    _check_can_have_token(principal, True, known, store.tokens.rows())
    with store.transaction():
        _add(store, token, principal not in known)
    return token, text


def list_in_folder(store: Store) -> list[dict[str, Any]]:
    principals = {name: msgspec.json.decode(raw, type=Principal) for name, raw, _ in store.principals.scan()}
    found = []
    for id, principal, hash, raw, _ in store.tokens.scan():
        token = Token(id, principal, hash, msgspec.json.decode(raw, type=TokenSettings))
        found.append(token.describe(principals.get(principal)))
    return found


def revoke_in_folder(store: Store, id: str) -> None:
    with store.transaction():
        if not store.tokens.delete([(id,)]):
            raise Unknown(f"there is no token {id!r:.100}")
