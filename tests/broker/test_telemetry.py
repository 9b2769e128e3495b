"""OpenTelemetry spans of the broker, and the traceparent that events carry."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import httpx
import msgspec
import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from hitbox.broker.broker import Broker
from hitbox.broker.events.published_event import PublishedEvent
from hitbox.broker.telemetry import LINKS, Telemetry, from_environment
from hitbox.client import Client
from hitbox.protocol.errors import BadRequest, Conflict
from support.broker_kit import SCHEMA, Listener, running, serving, sub

TRACES = [f"{n:032x}" for n in range(1, 400)]


def parent(n: int) -> str:
    return f"00-{TRACES[n]}-{n + 1:016x}-01"


async def spans_of(path: Path, items: list[PublishedEvent]) -> list[ReadableSpan]:
    """The spans of publishing events together to a subscriber that acknowledges them."""
    kept = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    broker = Broker(path, SCHEMA, telemetry=Telemetry(provider))
    await broker.start()
    try:
        await broker.subscribe("ann", [sub("all", "qty >= 0")])
        await Listener(broker).attach("ann", window=1_000)
        await broker.publish(items)
        async with asyncio.timeout(30):
            while broker.statistics.counts["acked"] < len(items):
                await asyncio.sleep(0.01)
    finally:
        await broker.stop()
    return list(kept.get_finished_spans())


def test_every_step_of_an_event_is_a_child_of_its_publishers_span(tmp_path: Path) -> None:
    spans = asyncio.run(spans_of(tmp_path, [PublishedEvent({"qty": 1}, traceparent=parent(7))]))
    named = {span.name: dict(span.attributes or {}) for span in spans}
    assert named == {
        "hitbox.publish": {"hitbox.first": 1, "hitbox.events": 1},
        "hitbox.match": {"hitbox.first": 1, "hitbox.events": 1, "hitbox.matches": 1},
        "hitbox.send": {"hitbox.subscriber": "ann", "hitbox.deliveries": 1},
        "hitbox.acknowledge": {"hitbox.subscriber": "ann", "hitbox.deliveries": 1},
    }
    assert len(spans) == 4
    for span in spans:
        assert span.parent is not None
        assert f"{span.parent.trace_id:032x}" == TRACES[7]
        assert f"{span.parent.span_id:016x}" == f"{8:016x}"
        assert span.start_time is not None
        assert span.end_time is not None
        assert span.start_time <= span.end_time


def test_a_span_of_many_traces_is_linked_to_them(tmp_path: Path) -> None:
    items = [PublishedEvent({"qty": n}, traceparent=parent(n)) for n in range(LINKS + 20)]
    publish, *_ = asyncio.run(spans_of(tmp_path, items))
    assert publish.parent is None
    assert [f"{link.context.trace_id:032x}" for link in publish.links] == TRACES[:LINKS]


def test_events_without_a_trace_have_spans_of_their_own(tmp_path: Path) -> None:
    """The word in an event or in its payload is no trace."""
    items = [PublishedEvent({"qty": 1}, payload=msgspec.Raw(msgspec.json.encode({"traceparent": parent(1)})))]
    spans = asyncio.run(spans_of(tmp_path, items))
    assert len(spans) == 4
    assert all(span.parent is None and not span.links for span in spans)


def test_the_traceparent_of_a_request_is_delivered(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as (broker, url), Client(url) as client, httpx.AsyncClient() as http:
            async with client.subscriber("ann") as ann:
                await ann.subscribe("all", "qty >= 0")
                for header in (parent(1), "00-nonsense-01", None):
                    headers = {} if header is None else {"traceparent": header}
                    own = {"event": {"qty": 2}, "traceparent": parent(2)}
                    answer = await http.post(f"{url}/v1/events", json=[{"event": {"qty": 1}}, own], headers=headers)
                    assert answer.status_code == 201
                arriving = aiter(ann)
                got = [(await anext(arriving)).traceparent for _ in range(6)]
                assert got == [parent(1), parent(2), None, parent(2), None, parent(2)]
            bodies = [body for *_, body in broker.store.events.from_number(1, 10)]
            assert [b"traceparent" in body for body in bodies] == [True, True, False, True, False, True]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "text",
    ["", "x", parent(1)[:-1], parent(1) + "0", parent(1) + "\n", "ff" + parent(1)[2:], parent(1).replace("-", "_"),
     f"00-{'0' * 32}-{1:016x}-01", f"00-{TRACES[1]}-{'0' * 16}-01", parent(10).upper().replace("0", "A"), "0" * 10**5],
)  # fmt: skip
def test_a_wrong_traceparent_is_an_error(tmp_path: Path, text: str) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as broker:
            with pytest.raises(BadRequest, match="is no traceparent: it looks like 00-"):
                await broker.publish([PublishedEvent({"qty": 1}, traceparent=text)])
            assert broker.store.events.table.next() == 1

    asyncio.run(scenario())


def test_a_repetition_may_come_with_another_traceparent(tmp_path: Path) -> None:
    """A client that tries again has a new span; the event is the same, also after a restart."""

    async def scenario() -> None:
        async with running(tmp_path) as broker:
            assert await broker.publish([PublishedEvent({"qty": 1}, id="a", traceparent=parent(1))]) == 1
            assert await broker.publish([PublishedEvent({"qty": 1}, id="a", traceparent=parent(2))]) == 1
        async with running(tmp_path) as broker:
            assert await broker.publish([PublishedEvent({"qty": 1}, id="a", traceparent=parent(3))]) == 1
            assert await broker.publish([PublishedEvent({"qty": 1}, id="a")]) == 1
            with pytest.raises(Conflict):
                await broker.publish([PublishedEvent({"qty": 2}, id="a", traceparent=parent(1))])

    asyncio.run(scenario())


def test_the_environment_chooses_the_exporter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "console")
    from_environment().close()
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "carrier pigeon")
    with pytest.raises(BadRequest, match="exporter 'carrier pigeon' is installed"):
        from_environment()
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "otlp")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "smoke")
    with pytest.raises(BadRequest, match="it must be one of http/protobuf, grpc"):
        from_environment()


def test_a_collector_that_hangs_does_not_keep_the_broker_from_ending(tmp_path: Path) -> None:
    """Not `close`, and not the exit of the process after it."""
    code = """
import threading, time
from opentelemetry.sdk.trace.export import ConsoleSpanExporter
from hitbox.broker import telemetry

ConsoleSpanExporter.export = lambda self, spans: threading.Event().wait()
telemetry.CLOSE_SECONDS = 0.2
traced = telemetry.from_environment()
traced.add("hitbox.publish", 1, 2, [b"{}"])
traced.close()
print("closed")
"""
    environment = os.environ | {"OTEL_TRACES_EXPORTER": "console"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=25)
    assert (done.returncode, done.stdout) == (0, "closed\n"), done.stderr
    assert "does not answer: the last spans are lost" in done.stderr


def test_serve_without_the_variables_does_not_import_opentelemetry(tmp_path: Path) -> None:
    program = """
import sys
from hitbox.broker.commands import cli
import hitbox.broker.http.app
assert cli._telemetry() is None
assert not any(name.startswith("opentelemetry") for name in sys.modules)
sys.modules["opentelemetry"] = None
import os
os.environ["OTEL_TRACES_EXPORTER"] = "otlp"
try:
    cli._telemetry()
except Exception as problem:
    print(problem)
os.environ["OTEL_SDK_DISABLED"] = "true"
assert cli._telemetry() is None
"""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    done = subprocess.run([sys.executable, "-c", program], env=clean, capture_output=True, text=True, check=True)
    assert "pip install 'hitbox[telemetry]'" in done.stdout


def test_the_stored_text_of_an_event_without_a_trace_is_as_before() -> None:
    assert msgspec.json.encode(PublishedEvent({"qty": 1}, id="a")) == b'{"event":{"qty":1},"id":"a"}'
