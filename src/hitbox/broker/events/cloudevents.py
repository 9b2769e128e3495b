"""CloudEvents 1.0 in and out: https://github.com/cloudevents/spec, JSON format and HTTP binding.

    structured   application/cloudevents+json           {"specversion": "1.0", "id": "7", "source": "/shop", ...}
    batched      application/cloudevents-batch+json     a list of them
    binary       any other content type                 headers ce-specversion, ce-id, ce-source, ...; the body is data

The attributes of the schema take their values from the CloudEvent:

    ce_NAME      the context attribute NAME, such as ce_type
    NAME         the context attribute NAME (type, source, subject, time, id, an extension); if there is none, the field
                 of that name in `data`, if that is a JSON object
    a.b.c        the field by that path in `data`; so is `data.NAME`, for a field with the name of a context attribute

What no attribute of the schema names is not matched. `data` is the payload, and the context attributes are kept beside
it, so that a subscriber that asks for CloudEvents gets the same CloudEvent back.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote_to_bytes

import msgspec

from hitbox.broker.events.json_text import check_size, decode_list
from hitbox.broker.events.published_event import NO_PAYLOAD, PublishedEvent
from hitbox.broker.settings import Settings
from hitbox.encoding.schema import Attribute, OpenSchema, Schema
from hitbox.protocol.errors import BadRequest
from hitbox.protocol.payload import BATCHED, BYTES, CONTENT_TYPE, STRUCTURED, from_base64, to_base64

FAMILY = "application/cloudevents"
VERSION = "1.0"
REQUIRED = ("specversion", "id", "source", "type")
TEXTS = (*REQUIRED, "subject", "time", "datacontenttype", "dataschema")
NAME = re.compile(r"[a-z0-9]+")
FORBIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")
URI_REFERENCE = re.compile(r"(?:[A-Za-z0-9\-._~:/?#\[\]@!$&'()*+,;=]|%[0-9A-Fa-f]{2})+")
URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:(?:[A-Za-z0-9\-._~:/?#\[\]@!$&'()*+,;=]|%[0-9A-Fa-f]{2})+")
TIME = re.compile(r"(\d{4}-\d\d-\d\d)[Tt](\d\d:\d\d:\d\d)(?:\.(\d+))?([Zz]|[+-]\d\d:\d\d)")
WHOLE, NUMBER = re.compile(r"-?\d{1,19}"), re.compile(r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
JSON_TYPE = re.compile(r"(?:[^/;\s]+/(?:[^;\s]+\+)?json)\s*(?:;.*)?", re.IGNORECASE)
SOURCE, TYPE = "/hitbox", "hitbox.event"
"""Of events that were not published as CloudEvents."""


def is_cloudevent(kind: str, headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether a request carries CloudEvents, in any of the modes."""
    required = {f"ce-{name}".encode() for name in REQUIRED}
    return kind.startswith(FAMILY) or any(name.lower() in required for name, _ in headers)


def from_request(
    data: bytes, kind: str, headers: Iterable[tuple[bytes, bytes]], schema: Schema, limits: Settings
) -> list[PublishedEvent]:
    """The events of a request, within the limits of a batch and of each event as it is sent."""
    most_bytes = limits.sent_event_bytes()
    if kind == BATCHED:
        if data.lstrip()[:1] != b"[":
            raise BadRequest("a batch of CloudEvents is a JSON list of objects")
        found = decode_list(data, dict[str, Any], limits.max_batch, most_bytes)
        return [_numbered(at, one, schema) for at, one in enumerate(found)]
    if kind != STRUCTURED and kind.startswith(FAMILY):
        raise BadRequest(
            f"{kind!r:.80}: of the formats of CloudEvents, the broker takes {STRUCTURED} and {BATCHED}, and binary mode"
        )
    check_size(data, most_bytes, "the CloudEvent")
    if kind == STRUCTURED:
        return [from_structured(_json(data, dict[str, Any], "a CloudEvent is a JSON object"), schema)]
    return [from_binary(headers, data, schema)]


def _numbered(at: int, given: dict[str, Any], schema: Schema) -> PublishedEvent:
    try:
        return from_structured(given, schema)
    except BadRequest as problem:
        problem.add_note(f"CloudEvent {at} of the batch; none was accepted")
        raise


def _json(data: bytes, shape: Any, expected: str) -> Any:
    try:
        return msgspec.json.decode(data, type=shape)
    except RecursionError:
        raise BadRequest("objects and lists are nested too deep") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as problem:
        raise BadRequest(f"{expected}: {problem}") from None


# ---- in


def from_structured(given: Mapping[str, Any], schema: Schema) -> PublishedEvent:
    """A CloudEvent in JSON format."""
    context = {name: value for name, value in given.items() if name not in ("data", "data_base64")}
    context = {name: value for name, value in context.items() if value is not None}  # null: not set
    check_context(context)
    data, encoded = given.get("data"), given.get("data_base64")
    if encoded is None:
        return _published(context, data, None, schema)
    if data is not None:
        raise BadRequest("the CloudEvent has both data and data_base64: it may have one of them")
    if not isinstance(encoded, str):
        raise BadRequest("the CloudEvent's data_base64 must be a text in base64")
    raw = from_base64(encoded, "the CloudEvent's data_base64")
    return _published(context, to_base64(raw), context.get("datacontenttype", BYTES), schema)


def from_binary(headers: Iterable[tuple[bytes, bytes]], body: bytes, schema: Schema) -> PublishedEvent:
    """A CloudEvent whose context is in the headers of a request and whose data is the body."""
    context: dict[str, Any] = {}
    kind = None
    for raw_name, raw in headers:
        name = raw_name.decode("latin-1").lower()
        if name == "content-type":
            kind = raw.decode("latin-1").strip()
        elif name.startswith("ce-"):
            name = name.removeprefix("ce-")
            if name in context:
                raise BadRequest(f"the header ce-{name:.80} appears twice")
            if name in ("datacontenttype", "data", "data_base64"):
                raise BadRequest(f"the header ce-{name} is not allowed in binary mode: the body is the data, and "
                                 "Content-Type says what it is")  # fmt: skip
            context[name] = _header(name, raw)
    if kind is not None and body:
        context["datacontenttype"] = kind
    check_context(context)
    if not body:
        return _published(context, None, None, schema)
    if kind is not None and JSON_TYPE.fullmatch(kind):
        return _published(
            context, _json(body, Any, f"the body is no JSON, as its content type {kind} says"), None, schema
        )
    text = _text(body) if kind is not None and kind.lower().startswith("text/") else None
    if text is not None:
        return _published(context, text, None, schema)
    return _published(context, to_base64(body), kind or BYTES, schema)


def _header(name: str, raw: bytes) -> str:
    """The value of a header: quotes are removed, and what is percent-encoded is decoded."""
    text = raw.strip()
    if len(text) >= 2 and text.startswith(b'"') and text.endswith(b'"'):
        text = re.sub(rb"\\(.)", rb"\1", text[1:-1])
    try:
        return unquote_to_bytes(text).decode()
    except UnicodeDecodeError:
        raise BadRequest(f"the header ce-{name:.80} is not percent-encoded UTF-8") from None


def _text(body: bytes) -> str | None:
    try:
        return body.decode()
    except UnicodeDecodeError:
        return None


def check_context(context: Mapping[str, Any]) -> None:
    """Raise BadRequest unless these are the context attributes of a CloudEvent 1.0."""
    for name in REQUIRED:
        if name not in context:
            raise BadRequest(f"the CloudEvent lacks the required attribute {name!r}")
    for name, value in context.items():
        if not NAME.fullmatch(name) or name == "data":
            raise BadRequest(
                f"{name!r:.80} is not the name of a context attribute: lower-case letters a to z and digits only"
            )
        _check_value(name, value)
    if context["specversion"] != VERSION:
        raise BadRequest(f"the CloudEvent has specversion {context['specversion']!r:.40}; the broker takes {VERSION}")
    if not URI_REFERENCE.fullmatch(context["source"]):
        raise BadRequest(f"the CloudEvent's source {context['source']!r:.80} is not a URI reference")
    if not URI.fullmatch(context.get("dataschema", "x:y")):
        raise BadRequest(f"the CloudEvent's dataschema {context['dataschema']!r:.80} is not an absolute URI")
    if not CONTENT_TYPE.fullmatch(context.get("datacontenttype", BYTES)):
        raise BadRequest(f"the CloudEvent's datacontenttype {context['datacontenttype']!r:.80} is no media type")
    if "time" in context:
        _microseconds(context["time"])


def _check_value(name: str, value: Any) -> None:
    if name in TEXTS:
        if not isinstance(value, str) or not value:
            raise BadRequest(f"the CloudEvent's {name} must be a text that is not empty, not {value!r:.80}")
    elif isinstance(value, int) and not isinstance(value, bool) and not -(2**31) <= value < 2**31:
        raise BadRequest(f"the CloudEvent's {name} must be a whole number of 32 bits, not {value}")
    elif not isinstance(value, (str, int, bool)):
        raise BadRequest(
            f"the CloudEvent's {name} must be a text, a whole number or a boolean, not {value!r:.80}; "
            "other values belong into data"
        )
    if isinstance(value, str) and (found := FORBIDDEN.search(value)):
        raise BadRequest(f"the CloudEvent's {name} holds the character U+{ord(found[0]):04X}, which is not allowed")


def _microseconds(text: str) -> str:
    """A time without digits that a timestamp of the schema cannot hold. Raises BadRequest if it is no RFC 3339 time."""
    found = TIME.fullmatch(text)
    try:
        if found is not None:
            day, clock, digits, zone = found.groups()
            short = f"{day}T{clock}{f'.{digits[:6]}' if digits else ''}{zone.upper()}"
            datetime.fromisoformat(short)
            return short
    except ValueError:
        pass
    raise BadRequest(f"the CloudEvent's time {text!r:.80} is no time of RFC 3339, such as 2026-04-05T17:31:00Z")


def _published(context: dict[str, Any], data: Any, content_type: str | None, schema: Schema) -> PublishedEvent:
    fields = data if content_type is None and isinstance(data, dict) else {}
    event = attributes(context, fields, schema)
    if not event:
        names = ", ".join(schema.with_role("criteria")[:10])
        raise BadRequest(
            f"the CloudEvent has nothing that the schema declares ({names:.300}): no context attribute and no field of "
            "data has one of these names, so no subscription could match it"
        )
    payload = NO_PAYLOAD if data is None else msgspec.Raw(msgspec.json.encode(data))
    return PublishedEvent(event, None, payload, content_type, context)


def attributes(context: Mapping[str, Any], data: Mapping[str, Any], schema: Schema) -> dict[str, Any]:
    """What is matched of a CloudEvent: a value for each attribute of the schema that it has."""
    if isinstance(schema, OpenSchema):
        return {**data, **context}
    found = {}
    for name in schema.with_role("criteria"):
        bare = name.removeprefix("ce_")
        if bare in context:
            value = _context_value(context[bare], bare, schema[name])
        else:
            value = _declared(_field(data, name), schema[name])
            if value is None and name.startswith("data."):
                value = _declared(_field(data, name.removeprefix("data.")), schema[name])
        if value is not None:
            found[name] = value
    return found


def _field(data: Any, name: str) -> Any:
    """The field of this name, or by this path; None if there is none."""
    if isinstance(data, dict) and name in data:
        return data[name]
    for step in name.split("."):
        if not isinstance(data, dict):
            return None
        data = data.get(step)
    return data


def _declared(value: Any, attribute: Attribute) -> Any:
    """A value without those fields of a list's objects that the schema does not declare."""
    if attribute.fields is None or not isinstance(value, list):
        return value
    fields = attribute.fields
    return [
        {name: _declared(inner, fields[name]) for name in fields if (inner := _field(one, name)) is not None}
        if isinstance(one, dict)
        else one
        for one in value
    ]


def _context_value(value: Any, name: str, attribute: Attribute) -> Any:
    """A context attribute as a value of an attribute of the schema. In headers everything is text."""
    if not isinstance(value, str):
        return value
    if attribute.type == "timestamp":
        return _microseconds(value) if name == "time" else value
    if attribute.type == "int" and WHOLE.fullmatch(value):
        return int(value)
    if attribute.type == "float" and NUMBER.fullmatch(value) and math.isfinite(float(value)):
        return float(value)
    if attribute.type == "bool" and value in ("true", "false"):
        return value == "true"
    return value


# ---- out


def structured(incarnation: str, seq: int, time: int, item: PublishedEvent) -> dict[str, Any]:
    """A stored event as a CloudEvent in JSON format. `incarnation`: of the store; `time`: when the event was stored, in
    microseconds since 1970."""
    if item.cloudevent is not None:
        found = dict(item.cloudevent)
    else:
        moment = datetime.fromtimestamp(time / 1e6, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        found = {"specversion": VERSION, "id": f"{incarnation}-{seq}", "source": SOURCE, "type": TYPE, "time": moment}
        if item.content_type is not None:
            found["datacontenttype"] = item.content_type
    if item.content_type is not None:
        return {**found, "data_base64": item.payload}
    if item.payload:
        return {**found, "data": item.payload}
    return found if item.cloudevent is not None else {**found, "data": item.event}


def as_cloudevent(incarnation: str, seq: int, time: int, body: bytes) -> bytes:
    """The stored text of an event, with the whole CloudEvent in `cloudevent` instead of the payload."""
    item = msgspec.json.decode(body, type=PublishedEvent)
    whole = structured(incarnation, seq, time, item)
    return msgspec.json.encode(msgspec.structs.replace(item, payload=NO_PAYLOAD, content_type=None, cloudevent=whole))
