"""OpenTelemetry spans of the broker, with the extra `telemetry`.

    hitbox.publish        from accepting the events of a publish until they are on disk
    hitbox.match          from there until the deliveries of a group of events were offered to their connections
    hitbox.send           from finding the first delivery of a frame until the frame was written to its connection
    hitbox.acknowledge    from there until it was acknowledged; of one message by its first delivery

A span of events that name one `traceparent` is a child of it. If they name several, it is linked to each, up to LINKS.
Spans are made when the work is done, from times that are measured anyway. The standard OTEL_* variables say whether
and where they are sent. This module is imported only if they ask for spans.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterable
from importlib.metadata import entry_points
from typing import Any

import msgspec
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter

from hitbox.broker.clock import time
from hitbox.protocol.errors import BadRequest

LINKS = 128
"""Traces that one span is linked to, at most."""
CLOSE_SECONDS = 5.0
log = logging.getLogger("hitbox.broker")
PROTOCOLS = {"http/protobuf": "otlp_proto_http", "grpc": "otlp_proto_grpc"}


class _Traced(msgspec.Struct):
    """What is read of a stored event."""

    traceparent: str | None = None


class Telemetry:
    """Makes spans. Times are in nanoseconds of `time.perf_counter_ns`."""

    def __init__(self, provider: TracerProvider):
        self._provider = provider
        self._tracer = provider.get_tracer("hitbox.broker")

    def add(self, name: str, started: int, ended: int, bodies: Iterable[bytes], **about: str | int) -> None:
        """Add a span of work on events; `bodies` are their stored texts."""
        parents = _parents(bodies)
        parent, links = None, []
        if len(parents) == 1:
            parent = trace.set_span_in_context(trace.NonRecordingSpan(parents[0]))
        else:
            links = [trace.Link(one) for one in parents]
        since = time.time_ns() - time.perf_counter_ns()
        attributes = {f"hitbox.{key}": value for key, value in about.items()}
        span = self._tracer.start_span(name, parent, attributes=attributes, links=links, start_time=since + started)
        span.end(since + ended)

    def close(self) -> None:
        """Send what was not sent yet. A collector that does not answer delays the exit by CLOSE_SECONDS at most."""
        closing = threading.Thread(target=self._provider.shutdown, daemon=True)
        closing.start()
        closing.join(CLOSE_SECONDS)
        if closing.is_alive():
            log.warning("the OpenTelemetry collector does not answer: the last spans are lost")


def _parents(bodies: Iterable[bytes]) -> list[trace.SpanContext]:
    """The spans that events name, each once."""
    found: dict[str, trace.SpanContext] = {}
    for body in bodies:
        if b'"traceparent":' not in body:
            continue
        text = msgspec.json.decode(body, type=_Traced).traceparent
        if text is None or text in found:
            continue
        _, trace_id, span_id, flags = text.split("-")
        found[text] = trace.SpanContext(
            int(trace_id, 16), int(span_id, 16), True, trace.TraceFlags(int(flags, 16) & trace.TraceFlags.SAMPLED)
        )
        if len(found) == LINKS:
            break
    return list(found.values())


def from_environment() -> Telemetry:
    """What the OTEL_* variables ask for. The SDK reads those of the resource, the sampler and the exporter itself."""
    provider = TracerProvider(shutdown_on_exit=False)  # `close` does it, and does not wait for ever
    for name in os.environ.get("OTEL_TRACES_EXPORTER", "otlp").split(","):
        provider.add_span_processor(BatchSpanProcessor(_exporter(name.strip())))
    return Telemetry(provider)


def _exporter(name: str) -> SpanExporter:
    wanted = name
    if name == "otlp":
        protocol = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL")
        wanted = PROTOCOLS.get(protocol or "http/protobuf", "")
        if not wanted:
            raise BadRequest(
                f"OTEL_EXPORTER_OTLP_PROTOCOL is {protocol!r:.80}; it must be one of {', '.join(PROTOCOLS)}"
            )
    found = list(entry_points(group="opentelemetry_traces_exporter", name=wanted))
    if not found:
        raise BadRequest(
            f"no package for the OpenTelemetry exporter {wanted!r:.80} is installed (OTEL_TRACES_EXPORTER): "
            "pip install 'hitbox[telemetry]' brings otlp over HTTP and console"
        )
    made: Any = found[0].load()
    exporter: SpanExporter = made()
    return exporter
