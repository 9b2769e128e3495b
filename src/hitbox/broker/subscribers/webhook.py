"""The webhook of a subscriber: where its deliveries are sent, and how requests are signed (Standard Webhooks).

    webhook-id: dlv_2f6c...                     the same for the same deliveries, whenever they are sent
    webhook-timestamp: 1763407112               seconds since 1970
    webhook-signature: v1,K5oZ... v1,9dkN...    one signature per secret: two during a rotation

A signature is the base64 of HMAC-SHA256, with the decoded secret, over "id.timestamp.body".
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Iterable
from typing import Annotated, Any
from urllib.parse import urlsplit

import msgspec

from hitbox.protocol.errors import BadRequest

PREFIX = "whsec_"
NEW = "new"
LEAST_BYTES, MOST_BYTES, NEW_BYTES = 24, 64, 32
"""Of a secret: the standard's limits, and the size of those that the broker makes."""
MOST_URL = 2_000
MOST_OVERLAP = 30 * 86_400.0
Batch = Annotated[int, msgspec.Meta(ge=1, le=500, description="most deliveries in one request")]
Requests = Annotated[int, msgspec.Meta(ge=1, le=16, description="most requests at a time; above 1 they are unordered")]


class Secret(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`until`: when it ends, in seconds since 1970, because another one replaced it."""

    text: str
    until: float | None = None

    def __repr__(self) -> str:
        return "Secret(...)"

    def key(self) -> bytes:
        return base64.b64decode(self.text.removeprefix(PREFIX))


class Webhook(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """As it is stored. `secrets`: the newest first. `disabled`: why it is not used; empty: it is."""

    url: str
    secrets: list[Secret]
    batch: Batch = 100
    max_requests: Requests = 1
    disabled: str = ""

    def describe(self, now: float) -> dict[str, Any]:
        """For everybody who may look at the subscriber: without its secrets."""
        return {
            "url": self.url,
            "batch": self.batch,
            "max_requests": self.max_requests,
            "disabled": self.disabled,
            "secrets": len(self.valid_secrets(now)),
        }

    def valid_secrets(self, now: float) -> list[Secret]:
        return [one for one in self.secrets if one.until is None or now < one.until]


class WebhookSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """As it is set. `secret`: "whsec_..." or "new"; empty: the one that it has, or a new one. The previous secret signs
    as well for `overlap_seconds`."""

    url: Annotated[str, msgspec.Meta(max_length=MOST_URL)]
    secret: Annotated[str, msgspec.Meta(max_length=200)] = ""
    overlap_seconds: Annotated[float, msgspec.Meta(ge=0, le=MOST_OVERLAP)] = 86_400.0
    batch: Batch = 100
    max_requests: Requests = 1

    def changed(self, old: Webhook | None, now: float) -> tuple[Webhook, str]:
        """The webhook with these settings, and its secret if it was made here, to be shown once."""
        kept = [] if old is None else old.valid_secrets(now)
        made = ""
        if self.secret == NEW or (not self.secret and not kept):
            made = PREFIX + base64.b64encode(secrets.token_bytes(NEW_BYTES)).decode()
        given = made or self.secret
        if given:
            before = [one for one in kept if one.text != given][:1]
            until = now + self.overlap_seconds
            ending = [Secret(one.text, min(one.until or until, until)) for one in before if self.overlap_seconds]
            kept = [Secret(check_secret(given)), *ending]
        return Webhook(self.url, kept, self.batch, self.max_requests), made


def check_secret(text: str) -> str:
    """A secret in the form of the standard. The message does not repeat it."""
    try:
        if not text.startswith(PREFIX):
            raise ValueError
        raw = base64.b64decode(text.removeprefix(PREFIX), validate=True)
    except (ValueError, binascii.Error):
        raise BadRequest(f'a secret is "{PREFIX}" and base64; "{NEW}" makes one') from None
    if not LEAST_BYTES <= len(raw) <= MOST_BYTES:
        raise BadRequest(f"a secret has {LEAST_BYTES} to {MOST_BYTES} bytes, not {len(raw)}")
    return text


def check_url(text: str, allow_http: bool) -> str:
    """The address of a target, as it is requested: no user, no fragment, nothing that needs encoding."""
    if not text.isascii() or any(c.isspace() or not c.isprintable() for c in text):
        raise BadRequest("the url of a webhook is ASCII without spaces; encode other characters")
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError as problem:
        raise BadRequest(f"the url of a webhook is invalid: {problem}") from None
    if parts.scheme not in ("https", "http") or not host or port == 0:
        raise BadRequest("the url of a webhook begins with https:// and names a host")
    if parts.scheme == "http" and not allow_http:
        raise BadRequest("the url of a webhook must be https; the broker's setting allow_private_webhooks allows http")
    if "@" in parts.netloc or parts.fragment:
        raise BadRequest("the url of a webhook has no user, password or fragment")
    return text


def message_id(incarnation: str, subscriber: str, seqs: Iterable[int]) -> str:
    """Equal for equal deliveries, so that a target can recognise what it has handled already. `incarnation`: of
    the store, because after a restore a number may be that of another event."""
    text = f"{incarnation}/{subscriber}/{','.join(map(str, sorted(seqs)))}"
    return "dlv_" + hashlib.sha256(text.encode()).hexdigest()[:32]


def signed_headers(webhook: Webhook, id: str, now: float, body: bytes) -> dict[str, str]:
    """The three headers of the standard."""
    stamp = str(int(now))
    text = f"{id}.{stamp}.".encode() + body
    keys = [one.key() for one in webhook.valid_secrets(now)]
    found = [base64.b64encode(hmac.digest(key, text, "sha256")).decode() for key in keys]
    signature = " ".join(f"v1,{one}" for one in found)
    return {"webhook-id": id, "webhook-timestamp": stamp, "webhook-signature": signature}
