"""JSON from outside: decoded with errors that say what is wrong, and with sizes that are checked before.

Five million empty lists are 15 MB of text and 400 MB of Python, and nothing else runs while one call decodes them, in
whatever thread. So sizes are checked on the text, and of a long list one value after the other is decoded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, TypeVar

import msgspec
import numpy as np

from hitbox.broker.events.shape_errors import explain
from hitbox.protocol.errors import BadRequest, TooLarge
from hitbox.protocol.payload import MAX_DEPTH

LARGE = 64 * 1024
"""A text of more bytes than this is decoded and checked in a thread, so that it does not delay the event loop."""
PLACE = re.compile(r"\(byte (\d+)\)")
NOT_JSON = re.compile(rb"[^\w\"-]?(-?(?:NaN|Infinity|nan|inf))\b")
LONE_SURROGATE = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F][0-9a-fA-F]{2}"
)
PAIR_BYTES = 12
"""Of two escaped surrogates."""
STEPS = np.zeros(256, np.int8)
"""How much deeper the text is nested after a byte."""
STEPS[[*b"[{"]], STEPS[[*b"]}"]] = 1, -1
PART_BYTES = 128 * 1024
"""How much of a list is searched for its values at once."""
T = TypeVar("T")


@cache
def _decoder(type: Any) -> msgspec.json.Decoder[Any]:
    """Kept, because making one for a union of messages takes 25 times as long as decoding a message."""
    return msgspec.json.Decoder(type)


def decode(data: bytes | str | msgspec.Raw, type: type[T], what: str = "the body") -> T:
    """The value. Raises BadRequest if it is not one of this type."""
    try:
        found: T = _decoder(type).decode(data)  # type: ignore[arg-type]
    except RecursionError:
        raise BadRequest(f"{what} is invalid: objects and lists are nested too deep") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as problem:
        raise BadRequest(f"{what} is invalid: {_why(data, problem, type)}") from None
    return found


def _why(data: bytes | str | msgspec.Raw, problem: Exception, type: Any) -> str:
    """What is wrong with a JSON text. What Python programs send by mistake is named."""
    if isinstance(problem, msgspec.ValidationError):
        return explain(problem, type)
    raw = data.encode("utf-8", "replace") if isinstance(data, str) else bytes(data)
    found = PLACE.search(str(problem))
    place = len(raw) if found is None else int(found[1])
    if word := NOT_JSON.match(raw, max(place - 1, 0)):
        return f"JSON has no {word[1].decode()}"
    if lone := LONE_SURROGATE.search(raw, max(place - PAIR_BYTES, 0), place):
        return f"a text holds a lone surrogate, {lone[0].decode()}"
    return str(problem)


def decode_list(data: bytes | msgspec.Raw, type: type[T], most: int, most_bytes: int) -> list[T]:
    """The values of a JSON list. Raises TooLarge if they are more than `most`, or one has more than `most_bytes`."""
    if len(data) > most_bytes:
        named = ((f"value {n}", text) for n, text in enumerate(_parted(bytes(data))))
        return decode_each(named, type, most, most_bytes)
    found = decode(data, list[type])  # type: ignore[valid-type]
    if len(found) > most:
        raise TooLarge(f"a batch may have at most {most} values")
    return found


def decode_each(texts: Iterable[tuple[str, bytes]], type: type[T], most: int, most_bytes: int) -> list[T]:
    """Values that have a text each, and a name for errors, such as "line 3". Raises TooLarge as `decode_list` does."""
    found: list[T] = []
    for name, text in texts:
        if len(found) == most:
            raise TooLarge(f"a batch may have at most {most} values")
        check_size(text, most_bytes, name)
        try:
            found.append(decode(text, type))
        except BadRequest as problem:
            problem.add_note(f"{name}; none was accepted")
            raise
    return found


def _parted(text: bytes) -> Iterator[bytes]:
    r"""The texts of the values of a JSON list. Whoever decodes all of them has seen all mistakes in it.

    >>> list(_parted(rb' [ [1,2],{"a":",\\"}, "]\"" ] '))
    [b' [1,2]', b'{"a":",\\\\"}', b' "]\\"" ']
    """
    text = text.strip()
    if not (text.startswith(b"[") and text.endswith(b"]")):
        raise BadRequest("the body is invalid: the list does not end")
    if not text[1:-1].strip():
        return
    plain = text.replace(rb"\\", b"  ").replace(rb"\"", b"  ")
    start, depth, inside = 1, 0, False
    for at in range(0, len(plain), PART_BYTES):
        part = np.frombuffer(plain[at : at + PART_BYTES], np.uint8)
        in_string = np.bitwise_xor.accumulate(part == ord('"')) ^ inside
        depths = np.cumsum(np.where(in_string, 0, STEPS[part]), dtype=np.int64) + depth
        for comma in np.flatnonzero((part == ord(",")) & (depths == 1) & ~in_string).tolist():
            yield text[start : at + comma]
            start = at + comma + 1
        depth, inside = depths[-1], in_string[-1]
    yield text[start:-1]


def check_size(text: bytes | msgspec.Raw, most_bytes: int, what: str) -> None:
    if len(text) > most_bytes:
        raise TooLarge(f"{what} has {len(text)} bytes as it was sent; the most is {most_bytes}")


def normalized(text: msgspec.Raw, what: str) -> msgspec.Raw:
    """A JSON value that was not decoded yet, without spaces and needless escapes. Raises BadRequest if it is invalid,
    or nested too deep."""
    if _depth(bytes(text)) > MAX_DEPTH:
        raise BadRequest(f"{what} has objects and lists nested more than {MAX_DEPTH} deep")
    return msgspec.Raw(msgspec.json.encode(decode(text, Any, what)))


def _depth(text: bytes) -> int:
    """How deep objects and lists are nested, or more than that if there are few of them.

    >>> _depth(b'{"a":["[[","\\\\"[["]}' + b"[]" * MAX_DEPTH), _depth(b"[]")
    (2, 1)
    """
    count = text.count(b"[") + text.count(b"{")
    if count <= MAX_DEPTH:
        return count
    without_strings = b"".join(text.replace(rb"\\", b"").replace(rb"\"", b"").split(b'"')[::2])
    steps = STEPS[np.frombuffer(without_strings, np.uint8)]
    return int(np.cumsum(steps, dtype=np.int64).max(initial=0))
