"""`hitbox demo --kafka`: quotes from a topic, alerts to another, through a stream that is stopped and started again.

A Kafka of one node runs for as long as the demo (kafka_server.py). Every hit in the topic is compared with what the
library finds, for the version that the hit names.
"""

from __future__ import annotations

import json
import random
import shutil
import tempfile
import time
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from rich.console import Console

from hitbox.console.progress import progress as step_progress
from hitbox.errors import HitboxError
from hitbox.index.index import Index
from hitbox.spark.kafka_server import KafkaServer, connector
from hitbox.spark.match import match
from hitbox.spark.session import active, session
from hitbox.spark.stream import progress, stop

ALERTS, QUOTES, SYMBOLS, PER_BATCH = 20_000, 8_000, 500, 2_000
EVENT = "symbol string, price double"
OFFSET = ["topic", "partition", "offset"]


def kafka_demo(console: Console | None = None) -> dict[str, Any]:
    """Run the demo in a temporary folder, print what happened, clean up; returns the figures."""
    console = console or Console()
    if active() is not None:
        raise HitboxError("the demo with Kafka starts its own Spark session: stop the one that is running")
    folder = tempfile.mkdtemp(prefix="hitbox-demo-")
    began = time.perf_counter()
    try:
        with step_progress("", 6) as step:
            step.advance(0, doing="start Kafka and Spark")
            with KafkaServer(f"{folder}/kafka") as server:
                spark = session(spark_jars=connector(), spark_sql_shuffle_partitions=2)
                try:
                    facts = KafkaDemo(spark, server.address, folder, step).run()
                finally:
                    spark.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    facts["seconds"] = round(time.perf_counter() - began, 1)
    console.print(
        f"{facts['events']:,} quotes from Kafka, {facts['alerts']:,} alerts, {facts['hits']:,} hits; all correct",
        f"versions {facts['versions'][0]} to {facts['versions'][-1]}: published while the stream ran",
        f"the stream was stopped and started again: {facts['lost']} hits lost, {facts['twice']} written twice",
        "    (consumers recognise the second copy by topic, partition, offset and subscription)",
        f"from a quote in Kafka to its hit in Kafka, one quote at a time: {facts['latency_ms']} ms (median)",
        f"done in {facts['seconds']:.0f} s; the temporary folder is removed",
        sep="\n",
        highlight=False,
    )
    return facts


class KafkaDemo:
    """The steps, in a session that has the connector."""

    def __init__(self, spark: SparkSession, address: str, folder: str, step: Any):
        self.spark, self.folder, self.step = spark, folder, step
        self.kafka = {"kafka.bootstrap.servers": address}
        self.path, self.rng = f"{folder}/snapshot", random.Random(1)
        self.index = Index({"symbol": "string", "price": "float"})

    def run(self) -> dict[str, Any]:
        self.publish(ALERTS)
        self.doing("send quotes")
        self.send(QUOTES)
        self.doing("match the first batches")
        query = self.start(processingTime="0 seconds")
        self.until(query, 1)
        self.publish(100)
        self.until(query, 2)
        stop(query)
        done = progress(query)
        self.doing("start again and finish")
        query = self.start(availableNow=True)
        query.awaitTermination()
        stop(query)
        done += progress(query)
        self.doing("single quotes")
        latency = self.latency()
        self.doing("check every hit")
        facts = self.checked()
        return {**facts, "alerts": len(self.index), "latency_ms": latency, "batches": done}

    def doing(self, what: str) -> None:
        self.step.advance(doing=what)

    def publish(self, more: int) -> None:
        for number in range(len(self.index), len(self.index) + more):
            symbol, price = f"S{self.rng.randrange(SYMBOLS)}", self.rng.randrange(100, 200)
            self.index.subscribe(number, f"symbol = '{symbol}' AND price > {price}")
        self.index.save(self.path)

    def send(self, quotes: int, above: float = 0.0) -> None:
        values = F.struct(
            F.concat(F.lit("S"), (F.rand(1) * SYMBOLS).cast("int")).alias("symbol"),
            F.round(100 + above + F.rand(2) * 10, 2).alias("price"),
        )
        table = self.spark.range(quotes).select(values.alias("quote"))
        table = table.select(F.col("quote.symbol").alias("key"), F.to_json("quote").alias("value"))
        table.write.format("kafka").options(**self.kafka, topic="quotes").save()

    def start(self, **trigger: Any) -> Any:
        reader = self.spark.readStream.format("kafka").options(**self.kafka, subscribe="quotes")
        stream = reader.options(startingOffsets="earliest", maxOffsetsPerTrigger=PER_BATCH).load()
        event = F.from_json(F.col("value").cast("string"), EVENT).alias("event")
        events = stream.select(*OFFSET, "key", "timestamp", event).select(*OFFSET, "key", "timestamp", "event.*")
        hits = match(events, self.path, None, form="pairs", keep=[*OFFSET, "key", "timestamp"])
        sent = F.unix_millis("timestamp").alias("sent")
        value = F.to_json(F.struct(*OFFSET, "subscription", "snapshot_version", sent)).alias("value")
        writer = hits.select("key", value).writeStream.format("kafka").options(**self.kafka, topic="hits")
        writer = writer.option("checkpointLocation", f"{self.folder}/checkpoint").queryName("quotes to hits")
        return writer.trigger(**trigger).start()

    def until(self, query: Any, batches: int) -> None:
        while query.isActive and len(progress(query)) < batches:
            time.sleep(0.1)

    def topic(self, name: str) -> DataFrame:
        return self.spark.read.format("kafka").options(**self.kafka, subscribe=name).load()

    def latency(self) -> int:
        """Milliseconds between the timestamps that Kafka has for a quote and for its first hit; the median of a few."""
        query = self.start(processingTime="0 seconds")
        first = self.topic("quotes").groupBy("partition").agg(F.max("offset").alias("last")).collect()
        for number in range(6):
            before = len(progress(query))
            self.send(1, above=100.0)
            self.until(query, before + 1)
            time.sleep(0.05 * number)
        stop(query)
        seen = {row.partition: row["last"] for row in first}
        waits: dict[tuple[int, int], int] = {}
        for row in self.topic("hits").select("value", F.unix_millis("timestamp").alias("at")).collect():
            hit = json.loads(row.value)
            key = hit["partition"], hit["offset"]
            if key[1] > seen.get(key[0], -1):
                waits[key] = min(waits.get(key, 10**9), row.at - hit["sent"])
        ordered = sorted(waits.values())
        return ordered[len(ordered) // 2] if ordered else -1

    def checked(self) -> dict[str, Any]:
        """Exactly the hits that the library finds with the version that the hits of the event name.

        A quote without hits names no version. Later versions only add alerts, so it is checked with the first.
        """
        quotes = {(row.partition, row.offset): json.loads(row.value) for row in self.topic("quotes").collect()}
        found: dict[tuple[int, int], list[int]] = {}
        versions: dict[tuple[int, int], int] = {}
        for row in self.topic("hits").select("value").collect():
            hit = json.loads(row.value)
            key = hit["partition"], hit["offset"]
            found.setdefault(key, []).append(hit["subscription"])
            if versions.setdefault(key, hit["snapshot_version"]) != hit["snapshot_version"]:
                raise HitboxError(f"the quote at {key} was matched against two versions")
        lost = twice = 0
        seen = sorted(set(versions.values()))
        indexes = {version: Index.open(self.path, version) for version in seen}
        for key, quote in quotes.items():
            expected = set(indexes[versions.get(key, seen[0])].match(quote))
            lost += len(expected - set(found.get(key, [])))
            twice += len(found.get(key, [])) - len(set(found.get(key, [])))
            if set(found.get(key, [])) - expected:
                raise HitboxError(f"the quote at {key} has hits that the library does not find")
        hits = sum(len(set(ids)) for ids in found.values())
        return {"events": len(quotes), "hits": hits, "versions": seen, "lost": lost, "twice": twice}
