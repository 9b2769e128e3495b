"""The OpenAPI description of ROUTES."""

from __future__ import annotations

from typing import Any

import msgspec

from hitbox.broker import cloudevents
from hitbox.broker.http import request_bodies
from hitbox.broker.http.routes import ROUTES, Route
from hitbox.broker.published_event import PublishedEvent
from hitbox.broker.settings import NAME

PROBLEM = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["type", "message"],
            "properties": {
                "type": {"type": "string"},
                "message": {"type": "string"},
                "text": {"type": "string"},
                "position": {"type": ["integer", "null"]},
            },
        }
    },
}
PROBLEMS = {
    "400": "the request is invalid; the message says where",
    "401": "a valid token is required",
    "403": "the Host or Origin is not allowed, or the principal lacks a right",
    "404": "it does not exist",
    "408": "the request took too long to arrive",
    "409": "it conflicts with what is stored",
    "413": "too large",
    "429": "the broker is busy; see Retry-After",
    "503": "the store cannot be written, or the broker is shutting down",
    "507": "the disk is full",
}


def describe(version: str) -> dict[str, Any]:
    shapes = {s for route in ROUTES for s in (route.body, route.query) if s is not None}
    ordered = sorted(shapes, key=lambda shape: shape.__name__)
    _, components = msgspec.json.schema_components(ordered, ref_template="#/components/schemas/{name}")
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, components)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "hitbox broker",
            "version": version,
            "description": "Deliveries come by WebSocket: /v1/connect",
        },
        "paths": paths,
        "components": {
            "schemas": {**components, "Problem": PROBLEM},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"token": []}],
    }


def _operation(route: Route, components: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {"summary": route.says, "operationId": route.run.__name__, "responses": _answers(route)}
    names = [part[1:-1] for part in route.path.split("/") if part.startswith("{")]
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "pattern": f"^{NAME.pattern}$"}}
        for name in names
    ]
    for name, schema in components[route.query.__name__].get("properties", {}).items():
        parameters.append({"name": name, "in": "query", "required": False, "schema": schema})
    if parameters:
        found["parameters"] = parameters
    if route.body is not None:
        one = {"$ref": f"#/components/schemas/{route.body.__name__}"}
        content: dict[str, Any] = {"application/json": {"schema": one}}
        if route.raw:
            content["application/json"] = {"schema": {"anyOf": [one, {"type": "array", "items": one}]}}
            content[request_bodies.LINES[0]] = {"schema": {"type": "string", "description": "one JSON value per line"}}
            content[request_bodies.ARROW] = {"schema": {"type": "string", "format": "binary"}}
            if route.body is PublishedEvent:
                content[cloudevents.STRUCTURED] = {"schema": {"type": "object"}}
                content[cloudevents.BATCHED] = {"schema": {"type": "array", "items": {"type": "object"}}}
        found["requestBody"] = {"required": True, "content": content}
    return found


def _answers(route: Route) -> dict[str, Any]:
    problem = {"application/json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    good: dict[str, Any] = {"description": "done"}
    if route.status != 204:
        good["content"] = {"application/json": {"schema": {"type": "object"}}}
    return {str(route.status): good} | {
        code: {"description": says, "content": problem} for code, says in PROBLEMS.items()
    }
