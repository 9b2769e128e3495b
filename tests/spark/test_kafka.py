"""Kafka in, `match`, Kafka out: keys and headers pass, hits carry the event's offset, versions are picked up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as F

from hitbox import Index
from hitbox import spark as hs
from hitbox.console.progress import progress
from hitbox.spark import kafka_demo

OFFSET = ["topic", "partition", "offset"]


def send(spark: Any, kafka: str, topic: str, events: list[dict[str, Any]]) -> None:
    rows = [(f"key-{event['n']}", json.dumps(event), [("trace", f"t{event['n']}".encode())]) for event in events]
    schema = "key string, value string, headers array<struct<key: string, value: binary>>"
    frame = spark.createDataFrame(rows, schema).withColumn("topic", F.lit(topic)).coalesce(1)
    frame.write.format("kafka").option("kafka.bootstrap.servers", kafka).save()


def received(spark: Any, kafka: str, topic: str) -> list[Any]:
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", kafka).option("subscribe", topic)
    return reader.option("includeHeaders", "true").load().collect()


def run(spark: Any, kafka: str, path: str, names: tuple[str, str], checkpoint: Path) -> list[dict[str, Any]]:
    """As in docs/how-to/kafka.md, once over what there is."""
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", kafka).option("subscribe", names[0])
    stream = reader.option("includeHeaders", "true").option("startingOffsets", "earliest").load()
    event = F.from_json(F.col("value").cast("string"), "price double, city string").alias("event")
    events = stream.select(*OFFSET, "key", "headers", event).select("*", "event.*").drop("event")
    hits = hs.match(events, path, event_id=None, keep=[*OFFSET, "key", "headers"], form="pairs")
    value = F.to_json(F.struct(*OFFSET, "subscription", "snapshot_version")).alias("value")
    writer = hits.select("key", value, "headers", F.lit(names[1]).alias("topic")).writeStream.format("kafka")
    writer = writer.option("kafka.bootstrap.servers", kafka).option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    return hs.progress(query)


def test_from_kafka_to_kafka(spark: Any, kafka: str, tmp_path: Path) -> None:
    path, names, checkpoint = str(tmp_path / "snapshot"), ("prices", "wanted"), tmp_path / "checkpoint"
    index = Index({"price": "float", "city": "string"})
    index.subscribe("cheap", "price < 10")
    index.subscribe("paris", "city = 'Paris'")
    index.save(path)
    first = [{"n": n, "price": 4.0 * n, "city": "Paris" if n % 2 else "Rome"} for n in range(6)]
    send(spark, kafka, names[0], [*first, {"n": 6, "price": "not a number"}])
    done = run(spark, kafka, path, names, checkpoint)
    assert sum(d["events"] for d in done) == 7
    index.subscribe("rome", "city = 'Rome'")
    index.save(path)
    second = [{"n": n, "price": 50, "city": "Rome"} for n in (7, 8)]
    send(spark, kafka, names[0], second)
    assert {d["version"] for d in run(spark, kafka, path, names, checkpoint)} == {2}

    sent = {(row.partition, row.offset): json.loads(row.value) for row in received(spark, kafka, names[0])}
    hits = received(spark, kafka, names[1])
    found = set()
    for row in hits:
        hit = json.loads(row.value)
        assert hit["topic"] == names[0]
        event = sent[hit["partition"], hit["offset"]]
        assert row.key.decode() == f"key-{event['n']}"
        assert [(one.key, bytes(one.value)) for one in row.headers] == [("trace", f"t{event['n']}".encode())]
        found.add((event["n"], hit["subscription"], hit["snapshot_version"]))
    cheap = {(n, "cheap", 1) for n in (0, 1, 2)}
    assert found == cheap | {(n, "paris", 1) for n in (1, 3, 5)} | {(n, "rome", 2) for n in (7, 8)}
    assert len(hits) == len(found), "nothing twice"


@pytest.mark.exhaustive  # `make test` goes from Kafka to Kafka without the demo
def test_the_demo(spark: Any, kafka: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_demo, "QUOTES", 600)
    monkeypatch.setattr(kafka_demo, "PER_BATCH", 200)
    with progress("", 6) as step:
        facts = kafka_demo.KafkaDemo(spark, kafka, str(tmp_path), step).run()
    assert facts["events"] > 600
    assert facts["hits"] > 0
    assert facts["versions"] == [1, 2]
    assert facts["lost"] == 0
    assert facts["latency_ms"] > 0
