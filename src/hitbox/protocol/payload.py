"""How payloads travel: the content type of bytes, base64, the formats of CloudEvents, and how deep JSON may be."""

from __future__ import annotations

import re
from binascii import a2b_base64, b2a_base64

from hitbox.protocol.errors import BadRequest

CONTENT_TYPE = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,127}/[!#$%&'*+.^_`|~0-9A-Za-z-]{1,127}(?:\s*;[\x20-\x7e]*)?")
BYTES = "application/octet-stream"
"""The content type of bytes whose publisher names none."""
STRUCTURED, BATCHED = "application/cloudevents+json", "application/cloudevents-batch+json"
MAX_DEPTH = 200
"""Objects and lists inside of each other in a payload, as in an event."""


def check_content_type(text: str) -> None:
    if not CONTENT_TYPE.fullmatch(text) or len(text) > 255:
        raise BadRequest(f"{text!r:.80} is no content type such as image/png or text/plain; charset=utf-8")


def from_base64(text: str, what: str) -> bytes:
    """The bytes. Raises BadRequest unless the text is base64 with its padding and nothing else."""
    try:
        return a2b_base64(text.encode("ascii"), strict_mode=True)
    except ValueError as problem:
        raise BadRequest(f"{what} is not base64: {problem}") from None


def to_base64(data: bytes) -> str:
    return b2a_base64(data, newline=False).decode()
