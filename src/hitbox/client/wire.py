"""What the client checks and converts before it sends, and after it has received."""

from __future__ import annotations

import random
import ssl
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import msgspec
from websockets.exceptions import InvalidMessage

from hitbox.protocol.errors import BadRequest

PROTOCOL = "hitbox.json.2"
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 10.0
Progress = Callable[[int, int], object]
"""Gets how much is done, and how much there is."""
BadEventReport = Callable[[int, str], object]
"""Gets the number of an event that does not fit, in its batch, and the reason."""


def checked_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and parts.hostname and not parts.query and not parts.fragment
        httpx.URL(url)  # raises for an invalid URL, as does `port` below for an invalid port
        if good and parts.port != 0:
            return url.rstrip("/")
    except (ValueError, httpx.InvalidURL):
        pass
    raise BadRequest(f"{url!r:.200} is not the address of a broker, such as http://127.0.0.1:8400")


def tls_context(ca: Any, client_cert: Any) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=ca)
        if client_cert is not None:
            files = client_cert if isinstance(client_cert, tuple) else (client_cert,)
            context.load_cert_chain(*files)
    except (OSError, ssl.SSLError) as problem:
        raise BadRequest(f"the files of ca or client_cert cannot be used: {problem}") from None
    return context


def checked_token(token: str | None) -> str | None:
    if token is not None and not (token.isascii() and token.isprintable()):
        raise BadRequest("a token consists of printable ASCII characters; does it contain a line break?")
    return token


def encoded(message: Any) -> bytes:
    try:
        return msgspec.json.encode(message)
    except UnicodeEncodeError:
        raise BadRequest("a text contains a lone surrogate, which cannot be sent: remove it") from None
    except (TypeError, ValueError, OverflowError, RecursionError) as problem:
        raise BadRequest(f"this cannot be sent as JSON: {problem}") from None


def decoded(content: bytes) -> Any:
    """The decoded JSON; None if it is not JSON."""
    try:
        return msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def reason_of(problem: BaseException) -> str:
    """Why there is no connection: the broker's answer to the handshake, or the error itself."""
    response = getattr(problem, "response", None)
    answer = decoded(response.body or b"") if response is not None else None
    error = answer.get("error") if isinstance(answer, dict) else None
    message = error.get("message") if isinstance(error, dict) else None
    return str(message or problem) or type(problem).__name__


def https_hint(url: str, problem: BaseException) -> str:
    """A question, if what answers at an http address does not speak plain HTTP."""
    other = isinstance(problem, (httpx.RemoteProtocolError, httpx.ReadError, InvalidMessage))
    return "; does it want https://?" if other and url.startswith("http:") else ""


def pauses() -> Iterator[float]:
    pause = FIRST_PAUSE
    while True:
        yield pause * random.uniform(0.5, 1.0)
        pause = min(pause * 2, LONGEST_PAUSE)


def no_progress(done: int, total: int) -> None:
    """A `Progress` that shows nothing."""
