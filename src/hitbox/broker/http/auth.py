"""Access control: tokens, the Host and Origin of a request, and the rate limit per principal.

A token is 256 random bits; the store keeps only its SHA-256 (a random token needs no slow hash). A broker on the
loopback address without tokens accepts everyone on this machine as the principal "local". Any other address requires a
token. Once there is a token, every request needs one, except for /livez, /readyz and the files of the page.

A browser sends the page's Origin with every request that a foreign page makes, and as Host the name it resolved. A
loopback broker therefore accepts loopback names only as Host, and an Origin must be the broker's own or an allowed one.
Both are parsed strictly as a name and a port, so that no other program can read them differently.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
import secrets
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from hitbox.broker.errors import BadRequest, Conflict, Forbidden, NotAllowed, Overloaded
from hitbox.broker.settings import check_name
from hitbox.broker.store.store import Store

ADDRESS = re.compile(
    r"(?P<name>[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?|\[[0-9A-Fa-f:.]+\])(?::(?P<port>[0-9]{1,5}))?"
)
PORTS = {"http": 80, "https": 443}
PROTOCOL = "hitbox.v1"
BEARER = "bearer."


def make_token(store: Store, name: str) -> str:
    """Create the token of a principal. Only its hash is stored, so it can be shown only now. Needs a transaction."""
    check_name(name, "principal")
    token = secrets.token_urlsafe(32)
    tokens: dict[str, str] = store.get_meta("tokens", {})
    if name in tokens:
        raise Conflict(f"{name!r} has a token already; remove it first")
    store.put_meta("tokens", {**tokens, name: _hash(token)})
    return token


def remove_token(store: Store, name: str) -> None:
    tokens: dict[str, str] = store.get_meta("tokens", {})
    if name not in tokens:
        raise BadRequest(f"{name!r} has no token")
    store.put_meta("tokens", {kept: hash for kept, hash in tokens.items() if kept != name})


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()


def parse_address(text: str, header: str, port: int) -> tuple[str, int]:
    """Name (in lower case, an IPv6 address without brackets) and port of "name", "name:port" or "[address]:port".

    >>> parse_address("LocalHost:8400", "Host", 80), parse_address("[::1]", "Host", 80)
    (('localhost', 8400), ('::1', 80))
    """
    found = ADDRESS.fullmatch(text)
    number = int(found["port"] or port) if found else 0
    if found is None or not 0 < number <= 65535:
        raise Forbidden(f"the header {header} must be a name or an address, with an optional port, not {text!r:.100}")
    name = found["name"].lower()
    if name.startswith("["):
        try:
            name = str(ipaddress.IPv6Address(name[1:-1]))
        except ValueError:
            raise Forbidden(f"the header {header} has no valid address: {text!r:.100}") from None
    return name, number


def check_origin(text: str) -> str:
    """Check an origin given with --allow-origin: it must be as browsers send it."""
    scheme, separator, rest = text.partition("://")
    if not separator or scheme not in PORTS or ADDRESS.fullmatch(rest) is None or text != text.lower():
        raise BadRequest(
            f"an origin must be like http://name or https://name:8443 (no path, lower case), not {text!r:.100}"
        )
    return text


def is_loopback(host: str) -> bool:
    """Whether the host is the loopback name or a loopback address.

    >>> is_loopback("localhost"), is_loopback("127.0.0.2"), is_loopback("::1"), is_loopback("127.evil.example")
    (True, True, True, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


@dataclass(slots=True)
class AccessControl:
    """Checks requests. Names of headers are in lower case."""

    tokens: Mapping[str, str]
    loopback: bool
    origins: frozenset[str] = frozenset()

    def check_address(self) -> None:
        if not self.loopback and not self.tokens:
            raise NotAllowed("an address other than loopback needs a token: `hitbox admin token NAME --data DIR`")

    def check_page(self, headers: Mapping[str, str]) -> None:
        """Check Host and Origin."""
        host = headers.get("host", "")
        if self.loopback or "host" in headers:  # HTTP/1.0, which some health checks use, has no Host
            name, _ = parse_address(host, "Host", 80)
            if self.loopback and not is_loopback(name):
                raise Forbidden(f"this broker answers on the loopback address only, not as {host!r:.100}")
        origin = headers.get("origin")
        if origin is None or origin in self.origins:
            return
        scheme, separator, rest = origin.partition("://")
        if not separator or scheme.lower() not in PORTS:
            raise Forbidden(f"requests from the page {origin!r:.100} are not allowed (--allow-origin)")
        own = PORTS[scheme.lower()]
        if parse_address(rest, "Origin", own) != parse_address(host, "Host", own):
            raise Forbidden(f"requests from the page {origin!r:.100} are not allowed (--allow-origin)")

    def principal(self, headers: Mapping[str, str], protocols: Iterable[str] = ()) -> str:
        """The principal of the token in the Authorization header or, for a browser's WebSocket, in a subprotocol."""
        if not self.tokens:
            return "local"
        kind, _, token = headers.get("authorization", "").partition(" ")
        if kind.lower() != "bearer":
            token = next((p.removeprefix(BEARER) for p in protocols if p.startswith(BEARER)), "")
        hashed = _hash(token.strip())
        found = [name for name, known in self.tokens.items() if hmac.compare_digest(known, hashed)]
        if not found:
            raise NotAllowed("a valid token is needed: Authorization: Bearer ...")
        return found[0]


@dataclass(slots=True)
class RateLimiter:
    """Limits events per second and principal; unused rate is saved for at most one second."""

    rate: float
    _levels: dict[str, tuple[float, float]] = field(default_factory=dict)

    def take(self, principal: str, count: int) -> None:
        if self.rate <= 0:
            return
        now = time.monotonic()
        level, then = self._levels.get(principal, (self.rate, now))
        level = min(level + (now - then) * self.rate, self.rate)
        if level <= 0:
            raise Overloaded(
                f"{principal} publishes more than {self.rate:g} events per second", -level / self.rate + 0.1
            )
        self._levels[principal] = (level - count, now)
