"""The OpenAPI description of ROUTES."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from hitbox.broker.events.published_event import PublishedEvent
from hitbox.broker.http import request_bodies
from hitbox.broker.http.event_stream import StreamQuery
from hitbox.broker.http.routes import OWNER, ROUTES, LiveQuery, NoQuery, Route
from hitbox.broker.settings import NAME
from hitbox.protocol import payload

TEXTS = {name: {"type": "string"} for name in ("type", "message", "text")}
ERROR = {
    "type": "object",
    "required": ["type", "message"],
    "properties": {**TEXTS, "position": {"type": ["integer", "null"]}},
}
PROBLEM = {"type": "object", "required": ["error"], "properties": {"error": ERROR}}
PROBLEMS = {
    "400": "the request is invalid; the message says where", "401": "a valid token is required",
    "403": "the Host or Origin is not allowed, or the principal lacks a right", "404": "it does not exist",
    "408": "the request took too long to arrive", "409": "it conflicts with what is stored", "413": "too large",
    "429": "the broker is busy; see Retry-After",
    "503": "the store cannot be written, or the broker is shutting down", "507": "the disk is full",
}  # fmt: skip


STREAM, TEXT, JSON = "text/event-stream", "text/plain", "application/json"


class Other(NamedTuple):
    """A route whose answer is no JSON, or that needs no token. The application has its own handlers for these."""

    method: str
    path: str
    name: str
    says: str
    media_type: str
    query: type[msgspec.Struct] = NoQuery
    is_public: bool = False
    problems: tuple[str, ...] = tuple(PROBLEMS)


OTHERS = [
    Other("GET", f"{OWNER}/deliveries", "deliveries", "Deliveries as Server-Sent Events", STREAM, StreamQuery),
    Other("GET", "/v1/live", "live", "Figures and the latest events, once per second", STREAM, LiveQuery),
    Other("POST", "/v1/backup", "backup", "The store as of one moment, a SQLite database", "application/vnd.sqlite3"),
    Other("GET", "/metrics", "metrics", "The figures for Prometheus", TEXT),
    Other("GET", "/livez", "livez", "Whether it works, or must be restarted", JSON, is_public=True, problems=("503",)),
    Other("GET", "/readyz", "readyz", "Whether events can be published", JSON, is_public=True, problems=("503", "507")),
]


def describe(version: str) -> dict[str, Any]:
    shapes = {s for route in ROUTES for s in (route.body, route.query) if s is not None}
    shapes |= {one.query for one in OTHERS}
    ordered = sorted(shapes, key=lambda shape: shape.__name__)
    _, components = msgspec.json.schema_components(map(_described, ordered), ref_template="#/components/schemas/{name}")
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, components)
    for one in OTHERS:
        paths.setdefault(one.path, {})[one.method.lower()] = _other_operation(one, components)
    return {
        "openapi": "3.1.0",
        "info": {"title": "hitbox broker", "version": version, "description": "Deliveries by WebSocket: /v1/connect"},
        "paths": paths,
        "components": {
            "schemas": {**components, "Problem": PROBLEM},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"token": []}],
    }


def _described(shape: type[msgspec.Struct]) -> type[msgspec.Struct]:
    """The shape of a body, with any JSON for what is not decoded: msgspec describes no Raw."""
    fields = msgspec.structs.fields(shape)
    if all(one.type is not msgspec.Raw for one in fields):
        return shape
    made: list[Any] = [
        (one.name, Any, None) if one.type is msgspec.Raw
        else (one.name, one.type) if one.required else (one.name, one.type, one.default)
        for one in fields
    ]  # fmt: skip
    return msgspec.defstruct(shape.__name__, made, namespace={"__doc__": shape.__doc__}, forbid_unknown_fields=True)


def _operation(route: Route, components: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {"summary": route.says, "operationId": route.run.__name__, "responses": _answers(route)}
    if parameters := _parameters(route.path, route.query, components):
        found["parameters"] = parameters
    if route.body is not None:
        one = {"$ref": f"#/components/schemas/{route.body.__name__}"}
        content: dict[str, Any] = {"application/json": {"schema": one}}
        if route.raw:
            content["application/json"] = {"schema": {"anyOf": [one, {"type": "array", "items": one}]}}
            content[request_bodies.LINES[0]] = {"schema": {"type": "string", "description": "one JSON value per line"}}
            content[request_bodies.ARROW] = {"schema": {"type": "string", "format": "binary"}}
            if route.body is PublishedEvent:
                content[payload.STRUCTURED] = {"schema": {"type": "object"}}
                content[payload.BATCHED] = {"schema": {"type": "array", "items": {"type": "object"}}}
        found["requestBody"] = {"required": True, "content": content}
    return found


def _other_operation(one: Other, components: dict[str, Any]) -> dict[str, Any]:
    problem = {JSON: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    if one.is_public:  # it says the same when it is well and when it is not
        problem = {JSON: {"schema": {"type": "object"}}}
    kind = "object" if one.media_type == JSON else "string"
    good = {"description": "done", "content": {one.media_type: {"schema": {"type": kind}}}}
    bad = {code: {"description": PROBLEMS[code], "content": problem} for code in one.problems}
    found: dict[str, Any] = {"summary": one.says, "operationId": one.name, "responses": {"200": good, **bad}}
    if parameters := _parameters(one.path, one.query, components):
        found["parameters"] = parameters
    return found | ({"security": []} if one.is_public else {})


def _parameters(path: str, query: type[msgspec.Struct], components: dict[str, Any]) -> list[dict[str, Any]]:
    name_schema = {"type": "string", "pattern": f"^{NAME.pattern}$"}
    names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
    found = [{"name": name, "in": "path", "required": True, "schema": name_schema} for name in names]
    for name, schema in components[query.__name__].get("properties", {}).items():
        found.append({"name": name, "in": "query", "required": False, "schema": schema})
    return found


def _answers(route: Route) -> dict[str, Any]:
    problem = {"application/json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    good: dict[str, Any] = {"description": "done"}
    if route.status != 204:
        good["content"] = {"application/json": {"schema": {"type": "object"}}}
    return {str(route.status): good} | {
        code: {"description": says, "content": problem} for code, says in PROBLEMS.items()
    }
