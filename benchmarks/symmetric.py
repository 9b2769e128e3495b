"""The figures of docs/symmetric.md, as Markdown.

    python symmetric.py matchers [n]       the four index families of the paper and the engine, both directions:
                                           match, insert and delete at the paper's defaults (n: 1,000,000)
    python symmetric.py soak [operations]  an exchange under a mixed load, half publishes and half subscribes, with
                                           expiry: time an operation and memory, slice by slice (200,000)

`matchers` goes through the harness: every matcher is checked against the oracle before and after it is timed. `soak`
compares the last answers with a plain scan of the language over what is alive.
"""

from __future__ import annotations

import gc
import resource
import sys
import time
from collections.abc import Iterator
from random import Random
from typing import Any

from hitbox import Attribute, Exchange, Schema, language
from research import bench
from research.bench_report import duration, rate

FAMILIES = ("hitbox", "floor", "mlgf", "ub-tree", "compound", "r-tree")
SLICES = 10
EVENTS, SUBSCRIBERS = 5_000, 5_000
TOWNS = [f"town {n}" for n in range(200)]
SKILLS = [f"skill {n}" for n in range(100)]
SCHEMA = Schema(
    {
        "salary": "int",
        "town": "string",
        "title": "string",
        "age": Attribute("int", role="information"),
        "skill": Attribute("string", role="information"),
    }
)


def compare(n: int) -> Iterator[str]:
    settings = bench.Settings(events=200, repeats=3, updates=5_000, batches=(1, 1024))
    for swapped in (False, True):
        record = bench.run("symmetric", FAMILIES, {"n": n, "swapped": swapped}, settings)
        machine, base = record["machine"], "events" if swapped else "subscriptions"
        yield (
            f"{n:,} {base} stored, {record['hits_per_event'] or 0:,.0f} matches each, {record['clock']} time, seed "
            f"{record['seed']}; {machine['cpu']}, {machine['commit']}\n"
        )
        yield "| matcher | match | times | in batches | times | insert | delete | build/s | bytes |"
        yield "|---|--:|--:|--:|--:|--:|--:|--:|--:|"
        for m in record["matchers"]:
            cells = [
                m["name"],
                duration(m["single"]["mean_us"]),
                f"{m['ratio']['single']:.1f}",
                duration(m["batches"]["1024"]["us"]),
                f"{m['ratio']['1024']:.1f}",
                duration(m["insert_one_us"]),
                duration(m["delete_one_us"]),
                rate(m["build_per_s"]),
                f"{m['bytes_per_subscription']:,.0f}",
            ]
            yield f"| {' | '.join(cells)} |"
        for skipped in record["skipped"]:
            yield f"\nLeft out {skipped['name']}: {skipped['why']}."
        yield ""


def soak(operations: int) -> Iterator[str]:
    """Every title is new, so that strings come and go; a third of the predicates make several boxes."""
    rng = Random(1)
    exchange = Exchange(SCHEMA, max_events=EVENTS)
    yield f"{EVENTS:,} events and up to {SUBSCRIBERS:,} subscriptions kept\n"
    yield "| operations | publish | subscribe | index bytes | peak memory |"
    yield "|--:|--:|--:|--:|--:|"
    part = operations // SLICES // 2
    for slice_ in range(SLICES):
        spent = [0.0, 0.0]
        for n in range(slice_ * part, (slice_ + 1) * part):
            values, asked = offer(rng, n)
            id, where, about = rng.randrange(SUBSCRIBERS), wish(rng), self_description(rng)
            begin = time.process_time()
            exchange.publish(n, values, where=asked)
            middle = time.process_time()
            found = exchange.subscribe(id, where, about=about)
            spent[1] += time.process_time() - middle
            spent[0] += middle - begin
        require_right(exchange, found, where, about)
        gc.collect()
        size = sum(sum(side.values()) for side in exchange.nbytes().values())
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        times = " | ".join(duration(seconds / part * 1e6) for seconds in spent)
        yield f"| {(slice_ + 1) * part * 2:,} | {times} | {size / 1e6:.1f} MB | {peak / 1e3:,.0f} MB |"


def offer(rng: Random, n: int) -> tuple[dict[str, Any], str]:
    low = rng.randrange(100_000)
    values = {"salary": (low, low + rng.randrange(5_000)), "town": rng.choice(TOWNS), "title": f"post {n} of many"}
    asked = f"age > {rng.randrange(18, 70)} AND skill = '{rng.choice(SKILLS)}'"
    return values, asked if rng.random() < 0.7 else f"{asked} OR skill IN ('{rng.choice(SKILLS)}')"


def wish(rng: Random) -> str:
    towns = "', '".join(rng.sample(TOWNS, 3 if rng.random() < 0.3 else 1))
    return f"salary > {rng.randrange(100_000)} AND town IN ('{towns}')"


def self_description(rng: Random) -> dict[str, Any]:
    return {"age": rng.randrange(18, 70), "skill": rng.choice(SKILLS)}


def require_right(exchange: Exchange, found: list[Any], where: str, about: dict[str, Any]) -> None:
    wanted = language.parse(where, SCHEMA)
    base = exchange._events
    want = {
        id
        for id in exchange.events
        if language.evaluate(wanted, base.about(id))
        and language.evaluate(language.parse(base.where(id), SCHEMA), about)
    }
    if set(found) != want:
        raise SystemExit(f"wrong: {len(found)} events reported, {len(want)} suit")


def main() -> None:
    ways = {"matchers": (compare, 1_000_000), "soak": (soak, 200_000)}
    if len(sys.argv) not in (2, 3) or sys.argv[1] not in ways:
        raise SystemExit(__doc__)
    way, usual = ways[sys.argv[1]]
    for line in way(int(sys.argv[2].replace(",", "")) if len(sys.argv) == 3 else usual):
        print(line, flush=True)


if __name__ == "__main__":
    main()
