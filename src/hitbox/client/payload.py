"""Payloads as programs have them <-> as JSON carries them.

bytes become base64 with a content type. Everything else becomes JSON: mappings, dataclasses and models, lists, tuples
and arrays, and NumPy scalars, Decimals, datetimes, UUIDs and Enums as plain values. Nothing is left out or rounded:
what JSON cannot hold is an error that names the place.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import date, time
from decimal import Decimal
from typing import Any

import numpy as np

from hitbox.encoding.inputs import as_mapping, unwrapped
from hitbox.encoding.values import brief, moment
from hitbox.protocol.errors import BadRequest
from hitbox.protocol.payload import BYTES, MAX_DEPTH, check_content_type, from_base64, to_base64


def payload_fields(payload: Any, content_type: str | None) -> dict[str, Any]:
    """The fields of a published item that carry its payload."""
    if isinstance(payload, (bytes, bytearray, memoryview)):
        kind = BYTES if content_type is None else content_type
        check_content_type(kind)
        return {"payload": to_base64(bytes(payload)), "content_type": kind}
    if content_type is not None:
        raise BadRequest(
            f"a content_type belongs to a payload of bytes, not to {brief(payload)}: JSON is sent without one"
        )
    return {} if payload is None else {"payload": _json(payload, "payload", 1)}


def cloudevent_fields(event: Mapping[str, Any]) -> dict[str, Any]:
    """A CloudEvent in JSON format; bytes in `data` become `data_base64`."""
    fields = as_mapping(event)
    if fields is None:
        raise BadRequest(f"a CloudEvent is a mapping of its attributes and data, not {brief(event)}")
    published = {name: _json(value, name, 1) for name, value in fields.items() if name != "data"}
    data = fields.get("data")
    if isinstance(data, (bytes, bytearray, memoryview)):
        return {**published, "data_base64": to_base64(bytes(data))}
    return published if data is None else {**published, "data": _json(data, "data", 1)}


def received_payload(payload: Any, content_type: str | None) -> Any:
    """A payload as it was published: bytes if it has a content type."""
    return payload if content_type is None else from_base64(payload, "the payload")


def _json(value: Any, place: str, depth: int) -> Any:
    value = unwrapped(value)
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, np.datetime64) or hasattr(value, "to_datetime64"):
        value = moment(value)
    elif isinstance(value, np.generic) and value.dtype.names is None:
        value = value.item()
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, (float, Decimal)):
        return _number(value, place)
    if isinstance(value, (date, time)):
        return value.isoformat()
    if isinstance(value, (bytes, bytearray, memoryview)):
        raise BadRequest(f"{place} is bytes: a payload is JSON or, as a whole, bytes")
    if depth > MAX_DEPTH:
        raise BadRequest(f"the payload has objects and lists nested more than {MAX_DEPTH} deep, or contains itself")
    if isinstance(value, (list, tuple, set, frozenset, np.ndarray)):
        inner = value.tolist() if isinstance(value, np.ndarray) and value.ndim == 0 else value
        if not isinstance(inner, (list, tuple, set, frozenset, np.ndarray)):
            return _json(inner, place, depth)
        return [_json(part, f"{place}[{at}]", depth + 1) for at, part in enumerate(inner)]
    fields = as_mapping(value)
    if fields is None:
        raise BadRequest(f"{place} is {brief(value)}, a {type(value).__name__}, which JSON cannot hold")
    return {_key(key, place): _json(part, f"{place}.{key}", depth + 1) for key, part in fields.items()}


def _key(key: Any, place: str) -> str:
    key = unwrapped(key)
    if not isinstance(key, str):
        raise BadRequest(f"{place} has the key {brief(key)}: the keys of a JSON object are texts")
    return key


def _number(value: float | Decimal, place: str) -> float | int:
    if not (value.is_finite() if isinstance(value, Decimal) else math.isfinite(value)):
        raise BadRequest(f"{place} is {value}, which JSON does not have")
    if isinstance(value, Decimal):
        if value.adjusted() < 40 and value == value.to_integral_value():
            return int(value)
        value = float(value)
        if math.isinf(value):
            raise BadRequest(f"{place} is too large for a number of 64 bits")
    return value
