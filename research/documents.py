"""`make bench ARGS=documents`: subscriptions on documents (lists, text, networks, places), beside what a user would do
otherwise: a loop of compiled Python predicates, and DuckDB where its SQL can say it.

Each case is built, compared with the loop on a few events, and measured in several rounds. The loop is measured on a
share of the subscriptions and scaled up; a share of 20,000 is exact enough for a factor of thousands.
"""

from __future__ import annotations

import ipaddress
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from rich import box
from rich.console import Console
from rich.table import Table

from hitbox import Index
from research.errors import BenchError
from research.machine import machine

QUICK = 0.002
SEED = 1
CHECKED = 3
"""Events on which the answers are compared with those of the loop."""
MOST_LOOPED = 20_000
"""Subscriptions that the loop of Python predicates goes through."""
MIXED_COLUMNS = "kind", "word", "price", "price_to", "quantity", "first_address", "last_address", "lat", "lon"
FAR = """2 * 6371008.8 * asin(least(1.0, sqrt(pow(sin(radians(lat - $lat) / 2), 2)
    + cos(radians($lat)) * cos(radians(lat)) * pow(sin(radians(lon - $lon) / 2), 2))))"""
"""DISTANCE in the SQL of DuckDB."""
ADDRESS = " + ".join(f"split_part($ip, '.', {n})::BIGINT * {256 ** (4 - n)}" for n in range(1, 5))
"""The number of an IPv4 address."""
MIXED = f"""CASE kind
    WHEN 0 THEN word = struct_extract($order, 'sku') AND $price < price
    WHEN 1 THEN $price BETWEEN price AND price_to AND quantity = $quantity
    WHEN 2 THEN list_contains($tags, word) AND $price > price
    WHEN 3 THEN contains($text, word)
    WHEN 4 THEN {ADDRESS} BETWEEN first_address AND last_address
    ELSE {FAR} <= 3000 END"""
SYLLABLES = [consonant + vowel for consonant in "bdklmnr" for vowel in "aeiou"]
Event = dict[str, Any]
Progress = Callable[[str], None]


@dataclass
class Case:
    """Subscriptions and events. `python` are the same conditions as Python expressions of an event `e`."""

    what: str
    schema: dict[str, Any]
    where: list[str]
    events: list[Event]
    python: list[str]
    single: float | None = None
    """The goal: seconds per single event,"""
    batch: float | None = None
    """and per event of a batch."""
    columns: dict[str, list[Any]] = field(default_factory=dict)
    """What DuckDB knows of each subscription, beside its number,"""
    sql: str = ""
    """and the condition on it; `$name` stands for a value of the event."""


class Draw:
    """Words, texts and numbers at random, the same for every run."""

    def __init__(self, seed: int):
        self.rng = np.random.default_rng(seed)
        parts = self.rng.choice(SYLLABLES, (60_000, 4))
        sizes = self.rng.integers(2, 5, len(parts))
        words = ("".join(row[:size]) for row, size in zip(parts.tolist(), sizes.tolist(), strict=True))
        self.words = list(dict.fromkeys(words))
        self._weights = 1 / np.arange(10, len(self.words) + 10)
        self._weights /= self._weights.sum()

    def text(self, size: int) -> str:
        """Words up to so many characters; a few are frequent, most are rare."""
        return " ".join(self.rng.choice(self.words, size // 5, p=self._weights).tolist())[:size]

    def some(self, count: int) -> list[str]:
        return [self.words[at] for at in self.rng.integers(0, len(self.words), count).tolist()]

    def addresses(self, count: int) -> list[str]:
        return [str(ipaddress.IPv4Address(one)) for one in self.rng.integers(2**24, 2**32 - 2**24, count).tolist()]


def fragments(scale: float) -> Case:
    draw, count = Draw(SEED), int(100_000 * scale)
    pairs = [f"{a} {b}" for a, b in zip(draw.some(count), draw.some(count), strict=True)]
    return Case(
        "text LIKE '%two words%', 1 KB of text",
        {"text": "string"},
        [f"text LIKE '%{one}%'" for one in pairs],
        [{"text": draw.text(1000)} for _ in range(200)],
        [f"{one!r} in e['text']" for one in pairs],
        single=0.5e-3,
        columns={"fragment": pairs},
        sql="contains($text, fragment)",
    )


def words(scale: float) -> Case:
    draw, count = Draw(SEED), int(100_000 * scale)
    some = draw.some(count)
    return Case(
        "text ILIKE '%word%', 1 KB of text",
        {"text": "string"},
        [f"text ILIKE '%{one.title()}%'" for one in some],
        [{"text": draw.text(1000)} for _ in range(200)],
        [f"{one!r} in e['text'].lower()" for one in some],
        columns={"fragment": some},
        sql="contains(lower($text), fragment)",
    )


def lists(scale: float) -> Case:
    draw, count = Draw(SEED), int(100_000 * scale)
    some = draw.some(count)
    return Case(
        "ANY(tags) = 'word', 10 tags",
        {"tags": "string[]"},
        [f"ANY(tags) = '{one}'" for one in some],
        [{"tags": draw.some(10)} for _ in range(500)],
        [f"{one!r} in e['tags']" for one in some],
        single=0.1e-3,
        columns={"tag": some},
        sql="list_contains($tags, tag)",
    )


def circles(scale: float) -> Case:
    draw, count = Draw(SEED), int(100_000 * scale)
    lat, lon = draw.rng.uniform(-60, 60, count), draw.rng.uniform(-180, 180, count)
    places = [f"{a:.5f}, {b:.5f}" for a, b in zip(lat, lon, strict=True)]
    events = [
        {"lat": a, "lon": b}
        for a, b in zip(draw.rng.uniform(-60, 60, 500).tolist(), draw.rng.uniform(-180, 180, 500).tolist(), strict=True)
    ]
    return Case(
        "DISTANCE(lat, lon, ...) <= 5000",
        {"lat": "float", "lon": "float"},
        [f"DISTANCE(lat, lon, {one}) <= 5000" for one in places],
        events,
        [f"distance(e['lat'], e['lon'], {one}) <= 5000" for one in places],
        single=50e-6,
        columns={"lat": [round(one, 5) for one in lat.tolist()], "lon": [round(one, 5) for one in lon.tolist()]},
        sql=f"{FAR} <= 5000",
    )


def suffixes(scale: float) -> Case:
    draw, count = Draw(SEED), int(20_000 * scale)
    some = draw.some(count)
    return Case(
        "name LIKE '%word'",
        {"name": "string"},
        [f"name LIKE '%{one}'" for one in some],
        [{"name": " ".join(draw.some(3))} for _ in range(500)],
        [f"e['name'].endswith({one!r})" for one in some],
        single=1e-3,
        columns={"ending": some},
        sql="ends_with($name, ending)",
    )


def mixed(scale: float) -> Case:
    draw, count = Draw(SEED), int(1_000_000 * scale)
    rng = draw.rng
    where, python = [], []
    columns: dict[str, list[Any]] = {name: [] for name in MIXED_COLUMNS}
    some, others, networks = draw.some(count), draw.some(count), draw.addresses(count)
    prices, lat, lon = rng.uniform(0, 900, count), rng.uniform(-60, 60, count), rng.uniform(-180, 180, count)
    for n, kind in enumerate(rng.choice(6, count, p=[0.3, 0.25, 0.15, 0.1, 0.1, 0.1]).tolist()):
        word, price = some[n], round(float(prices[n]), 2)
        known: dict[str, Any] = {"kind": kind, "word": word, "price": price}
        if kind == 0:
            where.append(f"order.sku = '{word}' AND price < {price}")
            python.append(f"e['order']['sku'] == {word!r} and e['price'] < {price}")
        elif kind == 1:
            quantity = int(price) % 50
            known |= {"quantity": quantity, "price_to": round(price + 0.5, 2)}
            where.append(f"price BETWEEN {price} AND {price + 0.5:.2f} AND quantity = {quantity}")
            python.append(f"{price} <= e['price'] <= {price + 0.5:.2f} and e['quantity'] == {quantity}")
        elif kind == 2:
            where.append(f"ANY(tags) = '{word}' AND price > {price}")
            python.append(f"{word!r} in e['tags'] and e['price'] > {price}")
        elif kind == 3:
            known["word"] = f"{word} {others[n]}"
            where.append(f"text LIKE '%{word} {others[n]}%'")
            python.append(f"{word + ' ' + others[n]!r} in e['text']")
        elif kind == 4:
            network = ipaddress.ip_network(f"{networks[n]}/20", strict=False)
            known |= {"first_address": int(network[0]), "last_address": int(network[-1])}
            where.append(f"ip IN NETWORK '{network}'")
            python.append(f"{int(network[0])} <= int(IPv4Address(e['ip'])) <= {int(network[-1])}")
        else:
            known |= {"lat": round(float(lat[n]), 4), "lon": round(float(lon[n]), 4)}
            where.append(f"DISTANCE(lat, lon, {lat[n]:.4f}, {lon[n]:.4f}) <= 3000")
            python.append(f"distance(e['lat'], e['lon'], {lat[n]:.4f}, {lon[n]:.4f}) <= 3000")
        for name in MIXED_COLUMNS:
            columns[name].append(known.get(name))
    events = [
        {
            "order": {"sku": draw.some(1)[0]},
            "price": round(float(rng.uniform(0, 900)), 2),
            "quantity": int(rng.integers(0, 50)),
            "tags": draw.some(5),
            "text": draw.text(1000),
            "ip": draw.addresses(1)[0],
            "lat": float(rng.uniform(-60, 60)),
            "lon": float(rng.uniform(-180, 180)),
        }
        for _ in range(500)
    ]
    schema = {"order": {"sku": "string"}, "price": "float", "quantity": "int", "tags": "string[]", "text": "string"}
    schema |= {"ip": "string", "lat": "float", "lon": "float"}
    return Case(
        "equalities, ranges, lists, text, networks, places", schema, where, events, python, 1e-3, 0.2e-3, columns, MIXED
    )


CASES: dict[str, Callable[[float], Case]] = {
    "mixed": mixed,
    "fragments": fragments,
    "words": words,
    "lists": lists,
    "circles": circles,
    "suffixes": suffixes,
}


def run(quick: bool, rounds: int, progress: Progress) -> dict[str, Any]:
    """Measure every case; the record has a line per figure."""
    scale = QUICK if quick else 1.0
    lines: list[dict[str, Any]] = []
    for name, make in CASES.items():
        progress(name)
        lines += _measured(make(scale), rounds)
    progress("one subscription")
    lines += list(_single_subscriptions(scale, rounds))
    return {"documents": lines, "seed": SEED, "quick": quick, "rounds": rounds, "machine": machine()}


def _measured(case: Case, rounds: int) -> list[dict[str, Any]]:
    count = len(case.where)
    index = Index(case.schema)
    begun = time.process_time()
    index.load(pa.table({"id": np.arange(count), "where": case.where}))
    loading = time.process_time() - begun
    loop = _loop(case.python[:MOST_LOOPED])
    for event in case.events[:CHECKED]:
        found = [id for id in sorted(index.match(event)) if id < MOST_LOOPED]  # type: ignore[operator]
        if found != loop(event):
            raise BenchError(f"wrong answers: {case.what} differs from a loop of Python predicates; no figure is kept")
    index.match_batch(case.events)
    single, batch = [], []
    for _ in range(rounds):
        single.append(_seconds(lambda: [index.match(event) for event in case.events], len(case.events)))
        batch.append(_seconds(lambda: index.match_batch(case.events), len(case.events)))
    looped = len(case.python[:MOST_LOOPED])
    other = _seconds(lambda: [loop(event) for event in case.events[:5]], 5) * count / looped
    sql = _duckdb(case)
    what = f"{count:,} subscriptions: {case.what}"
    return [
        _line(f"{what}; one event", single, case.single, other, sql),
        _line(f"{what}; an event of a batch", batch, case.batch, other, sql),
        _line(f"{what}; loading, per subscription", [loading / count], None),
        _line(f"{what}; memory, per subscription", [sum(index.nbytes().values()) / count], None, unit="B"),
    ]


def _single_subscriptions(scale: float, rounds: int) -> Iterator[dict[str, Any]]:
    """Predicates that would be many boxes if they were multiplied out."""
    names = [f"x{n}" for n in range(20)]
    unequal = " AND ".join(f"{name} <> 1" for name in names[:14])
    either = " AND ".join(f"({name} = 1 OR y{name} = 1)" for name in names)
    listed = ", ".join(f"'{one}'" for one in range(int(10_000 * max(scale, 0.01))))
    schema = dict.fromkeys([*names, *(f"y{name}" for name in names)], "int") | {"s": "string"}
    for what, text, goal in (
        ("<> on 14 attributes", unequal, 0.3e-3),
        ("twenty (x OR y)", either, None),
        ("NOT IN with 10,000 strings", f"s NOT IN ({listed})", 20e-3),
    ):
        index = Index(schema)
        count = 3 if "IN" in what else 200
        taken = [_seconds(partial(_subscribe, index, text, count), count) for _ in range(rounds)]
        yield _line(f"subscribe: {what}", taken, goal)
        if what.startswith("<>"):
            yield _line(f"memory: {what}", [sum(index.nbytes().values()) / len(index)], 2048, unit="B")


def _subscribe(index: Index, text: str, count: int) -> None:
    for id in range(len(index), len(index) + count):
        index.subscribe(id, text)


def _loop(expressions: Sequence[str]) -> Callable[[Event], list[int]]:
    """A function that goes through compiled predicates, as a user would write it."""
    names = {"distance": distance, "IPv4Address": ipaddress.IPv4Address}
    functions = [eval(f"lambda e: {one}", names) for one in expressions]
    return lambda event: [number for number, holds in enumerate(functions) if holds(event)]


def distance(lat: float, lon: float, lat2: float, lon2: float) -> float:
    """Great circle, haversine."""
    a, b = math.radians(lat), math.radians(lat2)
    x = math.sin((b - a) / 2) ** 2 + math.cos(a) * math.cos(b) * math.sin(math.radians(lon2 - lon) / 2) ** 2
    return 2 * 6_371_008.8 * math.asin(min(1.0, math.sqrt(x)))


def _duckdb(case: Case) -> float | None:
    """Seconds per event, if DuckDB is there and can say it."""
    if not case.sql:
        return None
    try:
        import duckdb
    except ImportError:
        return None
    with duckdb.connect() as connection:
        table = pa.table({"id": np.arange(len(case.where)), **case.columns})
        connection.register("given", table)
        connection.execute("SET threads = 1")
        connection.execute("CREATE TABLE subscriptions AS SELECT * FROM given")
        query = f"SELECT id FROM subscriptions WHERE {case.sql}"
        some = case.events[:10]
        return _seconds(lambda: [connection.execute(query, event).fetchall() for event in some], len(some))


def _seconds(call: Callable[[], Any], count: int) -> float:
    begun = time.process_time()
    call()
    return (time.process_time() - begun) / count


def _line(
    what: str,
    samples: Sequence[float],
    goal: float | None,
    loop: float | None = None,
    duckdb: float | None = None,
    unit: str = "s",
) -> dict[str, Any]:
    now = float(np.median(samples))
    reached = None if goal is None else now <= goal
    spread = {"least": float(min(samples)), "most": float(max(samples))}
    return {
        "what": what,
        "now": now,
        **spread,
        "goal": goal,
        "reached": reached,
        "loop": loop,
        "duckdb": duckdb,
        "unit": unit,
    }


def rows(record: dict[str, Any]) -> list[list[str]]:
    found = []
    for line in record["documents"]:
        unit = line["unit"]
        reached = {True: "yes", False: "no", None: "-"}[line["reached"]]
        figures = [shown(line[name], unit) for name in ("goal", "now", "loop", "duckdb")]
        found.append([line["what"], *figures, reached])
    return found


def shown(value: float | None, unit: str) -> str:
    """
    >>> shown(0.00025, "s"), shown(1.5, "s"), shown(2048, "B"), shown(None, "s")
    ('250 µs', '1.5 s', '2,048 B', '-')
    """
    if value is None:
        return "-"
    if unit != "s":
        return f"{value:,.0f} {unit}"
    for factor, name in ((1, "s"), (1e3, "ms"), (1e6, "µs")):
        if value * factor >= 1 or name == "µs":
            return f"{value * factor:.3g} {name}"
    raise AssertionError


def show(record: dict[str, Any], console: Console) -> None:
    show_head(record, console, "documents", "")
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for name in ("what", "goal", "now", "Python loop", "DuckDB", "reached"):
        table.add_column(name, justify="left" if name == "what" else "right", no_wrap=name != "what")
    for row in rows(record):
        table.add_row(*row)
    console.print(table)


def show_head(record: dict[str, Any], console: Console, name: str, sizes: str) -> None:
    """How and where a record was measured."""
    about = record["machine"]
    console.print(
        f"[bold]{name}[/bold]: {sizes}seed {record['seed']}, {record['rounds']} rounds, CPU time; "
        f"{about['cpu']}, hitbox {about['hitbox']} ({about['commit'] or 'installed'})",
        highlight=False,
    )
    if record["quick"]:
        console.print("quick: small sizes, which show that everything runs; the figures mean nothing", style="yellow")
