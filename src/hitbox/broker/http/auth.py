"""What a request says about itself: its Host, its Origin and its token; and the rate limit per principal.

A browser sends the page's Origin with every request that a foreign page makes, and as Host the name it resolved. A
loopback broker therefore accepts loopback names only as Host, and an Origin must be the broker's own or an allowed one.
Both are parsed strictly as a name and a port, so that no other program can read them differently.
"""

from __future__ import annotations

import ipaddress
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qsl

from hitbox.protocol.errors import BadRequest, Forbidden, NotAllowed, Overloaded

ADDRESS = re.compile(
    r"(?P<name>[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?|\[[0-9A-Fa-f:.]+\])(?::(?P<port>[0-9]{1,5}))?"
)
PORTS = {"http": 80, "https": 443}
PROTOCOL = "hitbox.json.2"
BEARER = "bearer."
LONGEST_WAIT = 86_400.0
"""Seconds that a publisher over its rate is told to wait, at most."""


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


def check_open_address(has_token: bool, is_private: bool) -> None:
    """Raise unless an address other than loopback may be served. `is_private`: with TLS, or explicitly without."""
    if not has_token:
        raise NotAllowed("an address other than loopback needs a token: `hitbox admin tokens create NAME --data DIR`")
    if not is_private:
        raise NotAllowed(
            "an address other than loopback needs TLS (--tls-cert and --tls-key), or --allow-plain-text if a proxy "
            "does it or the network is trusted: tokens and events would be sent as plain text"
        )


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
    """Checks where a request comes from. Names of headers are in lower case."""

    loopback: bool
    origins: frozenset[str] = frozenset()

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


def headers_of(raw: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Headers by name. Those that decide about access must not come twice: a proxy might have checked the other one."""
    found: dict[str, str] = {}
    for name, value in raw:
        key = name.decode("latin-1").lower()
        if key in found and key in ("host", "origin", "authorization"):
            raise BadRequest(f"the header {key} came twice")
        found[key] = value.decode("latin-1")
    return found


def check_query(query: bytes) -> None:
    """Refuse a token in the address, where proxies and browsers would write it down."""
    names = {name.lower() for name, _ in parse_qsl(query.decode("latin-1"), keep_blank_values=True)}
    if names & {"token", "access_token", "authorization"}:
        raise BadRequest("a token belongs into the header Authorization, never into an address; revoke this one")


def token_in(headers: Mapping[str, str], protocols: Iterable[str] = ()) -> str:
    """The token in the Authorization header or, for a browser's WebSocket, in a subprotocol; empty if there is none."""
    kind, _, token = headers.get("authorization", "").partition(" ")
    found = [token.strip()] if kind.lower() == "bearer" else []
    found += [one.removeprefix(BEARER) for one in protocols if one.startswith(BEARER)]
    if len(found) > 1:
        raise BadRequest("the request has two tokens")
    return found[0] if found else ""


def check_protocols(protocols: Iterable[str]) -> None:
    """Refuse a WebSocket that speaks none of what is spoken here. Without any, it speaks what there is."""
    offered = [one for one in protocols if not one.startswith(BEARER)]
    if offered and PROTOCOL not in offered:
        raise BadRequest(f"the WebSocket protocol {', '.join(offered)[:100]!r} is not known here: use {PROTOCOL}")


@dataclass(slots=True)
class RateLimiter:
    """Limits events per second and principal; unused rate is saved for at most one second. `rate` is for those who have
    none of their own."""

    rate: float
    _levels: dict[str, tuple[float, float, float]] = field(default_factory=dict)
    """(events left, at this time, rate) of each principal; once all is left that it may save, it can be forgotten."""
    _many: int = 1_000

    def take(self, principal: str, count: int, own_rate: float = 0.0) -> None:
        rate = own_rate or self.rate
        if rate <= 0:
            return
        now = time.monotonic()
        level, then, _ = self._levels.get(principal, (rate, now, rate))
        level = min(level + (now - then) * rate, rate)
        if level <= 0:
            wait = min(-level / rate + 0.1, LONGEST_WAIT)
            raise Overloaded(f"{principal} publishes more than {rate:g} events per second", wait)
        self._levels[principal] = (level - count, now, rate)
        if len(self._levels) > self._many:
            self._levels = {who: one for who, one in self._levels.items() if one[0] + (now - one[1]) * one[2] < one[2]}
            self._many = 2 * len(self._levels) + 1_000

    def forget(self, principal: str) -> None:
        """It was removed."""
        self._levels.pop(principal, None)

    def give_back(self, principal: str, count: int) -> None:
        """So many of them were not published."""
        if principal in self._levels:
            level, then, rate = self._levels[principal]
            self._levels[principal] = (level + count, then, rate)
