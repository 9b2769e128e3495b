"""CloudEvents 1.0: published in all three modes, matched by the schema, delivered as they were."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

import hitbox
from hitbox import Attribute, Schema
from hitbox.broker.events.cloudevents import as_cloudevent, attributes, from_binary, from_structured
from hitbox.broker.events.published_event import NO_PAYLOAD, PublishedEvent
from hitbox.client import Client, Delivery
from hitbox.protocol.errors import BadRequest
from hitbox.protocol.payload import BATCHED, STRUCTURED
from support.broker_kit import serving

SCHEMA = Schema({
    "type": "string", "ce_source": "string", "time": "timestamp", "retries": "int", "price": "float",
    "order": {"customer": {"city": "string"}}, "items": [{"sku": "string"}], "data.subject": "string",
})  # fmt: skip
SMALLEST: dict[str, Any] = {"specversion": "1.0", "id": "7", "source": "/shop", "type": "order.created"}
ORDER: dict[str, Any] = {
    **SMALLEST,
    "subject": "of the context",
    "time": "2026-04-05T17:31:00.123456789Z",
    "retries": 3,
    "datacontenttype": "application/json",
    "data": {
        "price": 12.5,
        "order": {"customer": {"city": "Paris", "name": "Ann"}, "id": 9},
        "items": [{"sku": "A1", "count": 2}, {"sku": "B2"}],
        "subject": "of the data",
        "type": "hidden by the context",
        "other": [None, {"x": 1}],
    },
}


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 120))


async def take(subscriber: Any, count: int) -> list[Delivery]:
    found: list[Delivery] = []
    async for delivery in subscriber:
        found.append(delivery)
        await subscriber.ack(delivery)
        if len(found) == count:
            break
    return found


def test_attributes_come_from_the_context_and_from_data() -> None:
    item = from_structured(ORDER, SCHEMA)
    assert item.event == {
        "type": "order.created",
        "ce_source": "/shop",
        "time": "2026-04-05T17:31:00.123456Z",
        "retries": 3,
        "price": 12.5,
        "order.customer.city": "Paris",
        "items": [{"sku": "A1"}, {"sku": "B2"}],
        "data.subject": "of the data",
    }
    assert json.loads(bytes(item.payload)) == ORDER["data"]
    assert item.cloudevent == {name: value for name, value in ORDER.items() if name != "data"}


def test_headers_are_texts_that_fit_the_schema() -> None:
    schema = Schema({"retries": "int", "weight": "float", "urgent": "bool", "subject": "string", "id": "string"})
    headers = [
        (b"ce-specversion", b"1.0"), (b"CE-ID", b"7"), (b"ce-source", b"/shop"), (b"ce-type", b"t"),
        (b"ce-retries", b"3"), (b"ce-weight", b"2.5"), (b"ce-urgent", b"true"),
        (b"ce-subject", b"caf%C3%A9 %22x%22"), (b"content-type", b"application/json"),
    ]  # fmt: skip
    item = from_binary(headers, b'{"a": 1}', schema)
    assert item.event == {"retries": 3, "weight": 2.5, "urgent": True, "subject": 'café "x"', "id": "7"}
    assert bytes(item.payload) == b'{"a":1}'


def test_values_that_nearly_fit() -> None:
    schema = Schema({"weight": "float", "data": "string", "order.id": "int"})
    found = attributes({**SMALLEST, "weight": "9" * 400}, {"order.id": 7}, schema)
    assert found == {"weight": "9" * 400, "order.id": 7}  # a text that is no float is refused later
    assert attributes(SMALLEST, {"data": "x"}, schema) == {"data": "x"}


def test_what_only_subscribers_state_is_not_taken_from_an_event() -> None:
    schema = Schema({"type": "string", "age": Attribute("int", role="information")})
    assert attributes(SMALLEST, {"age": 7}, schema) == {"type": "order.created"}


def test_all_modes_arrive_and_come_back_as_they_were(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            serving(tmp_path, SCHEMA) as (broker, url),
            Client(url) as client,
            httpx.AsyncClient(base_url=url) as http,
            client.subscriber("ann", cloudevents=True) as ann,
            client.subscriber("bob") as bob,
        ):
            for one in (ann, bob):
                await one.subscribe("orders", "type LIKE 'order.%'")
            second = {**SMALLEST, "id": "8", "data_base64": "AP8=", "datacontenttype": "image/png"}
            third = {**SMALLEST, "id": "9", "flag": True}
            sent = await http.post("/v1/events", json=ORDER, headers={"content-type": STRUCTURED + "; charset=utf-8"})
            assert (sent.status_code, sent.json()) == (201, {"first": 1, "count": 1})
            sent = await http.post("/v1/events", json=[second, third], headers={"content-type": BATCHED})
            assert sent.json() == {"first": 2, "count": 2}
            headers = {f"ce-{name}": value for name, value in SMALLEST.items()}
            for kind, body in (
                ("application/vnd.shop+json", b"[1]"),
                ("text/plain", b"h\xc3\xa9"),
                ("image/png", b"\xff"),
            ):
                one_more = {**headers, "ce-id": kind, "content-type": kind}
                sent = await http.post("/v1/events", content=body, headers=one_more)
                assert sent.status_code == 201, sent.text
            assert (await http.post("/v1/events", headers={**headers, "ce-id": "empty"})).status_code == 201
            more = [{**SMALLEST, "id": "bytes", "data": b"\x00"}, {**SMALLEST, "id": "last"}]
            assert await client.publish_cloudevents(*more) == 8
            await client.publish({"type": "order.plain"})
            await client.publish({"type": "order.plain"}, payload=b"x", content_type="image/png")

            whole = [d.cloudevent or {} for d in await take(ann, 11)]
            assert whole[:3] == [ORDER, second, third]
            data = [(one.get("datacontenttype"), one.get("data", one.get("data_base64"))) for one in whole[3:9]]
            assert data == [
                ("application/vnd.shop+json", [1]), ("text/plain", "hé"), ("image/png", "/w=="), (None, None),
                (None, "AA=="), (None, None),
            ]  # fmt: skip
            assert [one["source"] for one in whole[:9]] == ["/shop"] * 9
            plain = whole[9]
            ten = f"{broker.store.incarnation}-10"
            assert (plain["id"], plain["source"], plain["type"]) == (ten, "/hitbox", "hitbox.event")
            assert plain["data"] == {"type": "order.plain"}
            assert (whole[10]["datacontenttype"], whole[10]["data_base64"]) == ("image/png", "eA==")
            assert from_structured(plain, Schema({"id": "string"})).event == {"id": ten}  # a valid CloudEvent

            got = await take(bob, 11)
            assert (got[0].payload, got[1].payload) == (ORDER["data"], b"\x00\xff")
            assert got[2].cloudevent == third
            assert got[9].cloudevent is None

    run(scenario())


def changed(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in {**SMALLEST, **values}.items() if value is not ...}


BAD = [
    (changed(id=...), "lacks the required attribute 'id'"),
    (changed(source=...), "lacks the required attribute 'source'"),
    (changed(type=...), "lacks the required attribute 'type'"),
    (changed(specversion=...), "lacks the required attribute 'specversion'"),
    (changed(id=None), "lacks the required attribute 'id'"),
    (changed(id=""), "id must be a text that is not empty"),
    (changed(id=7), "id must be a text"),
    (changed(specversion="0.3"), "the broker takes 1.0"),
    (changed(source="a b"), "not a URI reference"),
    (changed(source="%zz"), "not a URI reference"),
    (changed(dataschema="/relative"), "not an absolute URI"),
    (changed(datacontenttype="json"), "no media type"),
    (changed(time="yesterday"), "no time of RFC 3339"),
    (changed(time="2026-13-01T00:00:00Z"), "no time of RFC 3339"),
    (changed(subject=""), "subject must be a text that is not empty"),
    (changed(Upper="x"), "'Upper' is not the name of a context attribute"),
    (changed(my_name="x"), "'my_name' is not the name of a context attribute"),
    (changed(extra=1.5), "other values belong into data"),
    (changed(extra={"a": 1}), "other values belong into data"),
    (changed(extra=2**31), "whole number of 32 bits"),
    (changed(extra="a\x07"), "U+0007"),
    (changed(data=1, data_base64="AA=="), "both data and data_base64"),
    (changed(data_base64="A"), "not base64"),
    (changed(data_base64=7), "must be a text in base64"),
    (changed(data={"price": "dear"}), "attribute 'price'"),
    (changed(data=json.loads("[" * 300 + "]" * 300)), "nested more than 200 deep"),
]


def test_bad_cloudevents_are_refused_and_nothing_is_stored(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, SCHEMA) as (broker, url), httpx.AsyncClient(base_url=url) as http:

            async def refused(message: str, **request: Any) -> None:
                found = await http.post("/v1/events", **request)
                assert found.status_code in (400, 413), found.text
                assert message in found.json()["error"]["message"], found.text

            for event, message in BAD:
                await refused(message, json=event, headers={"content-type": STRUCTURED})
            await refused(
                "CloudEvent 1 of the batch", json=[SMALLEST, changed(id="")], headers={"content-type": BATCHED}
            )
            await refused("JSON object", content=b"[1]", headers={"content-type": STRUCTURED})
            await refused("JSON list", content=b"{}", headers={"content-type": BATCHED})
            await refused("nested too deep", content=b'[{"x":' + b"[" * 9000, headers={"content-type": BATCHED})
            await refused("binary mode", content=b"x", headers={"content-type": "application/cloudevents+avro"})
            await refused("at most 10000", json=[{}] * 10_001, headers={"content-type": BATCHED})
            headers = {f"ce-{name}": value for name, value in SMALLEST.items()}
            nameless = {name: value for name, value in headers.items() if name != "ce-id"}
            await refused("lacks the required attribute 'id'", headers=nameless)
            await refused("not allowed in binary mode", headers={**headers, "ce-datacontenttype": "a/b"})
            await refused("percent-encoded UTF-8", headers={**headers, "ce-subject": "%ff"})
            await refused("appears twice", headers=[*headers.items(), ("ce-subject", "a"), ("ce-subject", "b")])
            await refused("no JSON", content=b"{", headers={**headers, "content-type": "application/json"})
            assert broker.store.events.table.next() == 1

    run(scenario())


def test_what_the_schema_does_not_know_is_refused_with_its_names() -> None:
    with pytest.raises(BadRequest, match=r"nothing that the schema declares \(city\)"):
        from_structured(ORDER, Schema({"city": "string"}))


def test_a_context_in_a_plain_publish_is_checked(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, SCHEMA) as (_, url), httpx.AsyncClient(base_url=url) as http:
            found = await http.post("/v1/events", json={"event": {"price": 1}, "cloudevent": {"id": "7"}})
            assert "lacks the required attribute" in found.json()["error"]["message"]
            found = await http.post("/v1/events", json={"event": {"price": 1}, "cloudevent": SMALLEST})
            assert found.status_code == 201

    run(scenario())


def test_what_belongs_to_the_event_is_delivered_beside_the_cloudevent() -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    item = PublishedEvent(
        {"qty": 1}, "qty > 0", msgspec.Raw(b'{"a":1}'), id="order-7", traceparent=trace, ttl_seconds=60.0
    )
    found = msgspec.json.decode(as_cloudevent("0f", 3, 0, msgspec.json.encode(item)), type=PublishedEvent)
    assert (found.event, found.where, found.payload, found.id) == ({"qty": 1}, "qty > 0", NO_PAYLOAD, "order-7")
    assert (found.traceparent, found.ttl_seconds) == (trace, 60.0)
    assert found.cloudevent is not None
    assert (found.cloudevent["id"], found.cloudevent["data"]) == ("0f-3", {"a": 1})


def test_the_example_of_the_documentation(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "broker.md").read_text()
    (code,) = [block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "publish_cloudevents" in block]
    names: dict[str, Any] = {"hitbox": hitbox}
    exec(code, names)

    async def scenario() -> None:
        schema = Schema({"type": "string", "price": "float"})
        async with serving(tmp_path, schema) as (_, url), Client(url) as client:
            found = await names["first_order"](client)
            assert found["data"] == {"price": 12.5, "city": "Paris"}

    run(scenario())
