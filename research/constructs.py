"""`make bench ARGS=constructs`: what each construct of the language costs, beside a loop of compiled Python predicates.

Each construct is 100,000 subscriptions that differ in their literals. Those that most events satisfy (`<>`, NOT, ...)
are joined with `zone = ..`, which one subscription in a hundred passes: that is how they are used, and otherwise the
result would be all there is to measure. The answers for a few events are compared with the loop before any figure.
"""

from __future__ import annotations

import ipaddress
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hitbox import Index
from research.documents import SEED, Draw, Event, Progress, distance, show_head, shown
from research.errors import BenchError
from research.machine import machine

SUBSCRIPTIONS, QUICK = 100_000, 400
FEWEST = 10_000
"""Of a construct that takes long to load."""
EVENTS, CHECKED, LOOPED = 200, 3, 2_000
LOAD_SECONDS, MATCH_SECONDS = 4.0, 0.6
TRIAL = 1_000
"""Subscriptions that are loaded to see how long all of them would take."""
SINGLE = 200
"""Calls of `subscribe` that are measured."""
ZONES = 100
MOMENT = datetime(2026, 1, 31, tzinfo=UTC)
SCHEMA: dict[str, Any] = {
    "sku": "string",
    "name": "string",
    "text": "string",
    "code": "string",
    "zone": "int",
    "qty": "int",
    "low": "int",
    "high": "int",
    "price": "float",
    "at": "timestamp",
    "tags": "string[]",
    "scores": "int[]",
    "items": [{"sku": "string", "price": "float"}],
    "ip": "string",
    "lat": "float",
    "lon": "float",
    "paid": "bool",
    **{f"x{n}": "int" for n in range(10)},
}


@dataclass(frozen=True)
class Construct:
    """`one(draw)` is a predicate and the same as a Python expression of an event `e`, with random literals."""

    what: str
    needs: str
    """The attributes of its events."""
    one: Callable[[Literals], tuple[str, str]]
    form: str = "declared"
    """or "open": an index without a schema; or "change": events with an old image."""


class Literals(Draw):
    """What predicates compare with. Drawn in large pieces: one draw by itself takes microseconds."""

    def __init__(self) -> None:
        super().__init__(SEED)
        self._floats: list[float] = []

    def number(self, low: float, high: float) -> float:
        if not self._floats:
            self._floats = self.rng.random(10_000).tolist()
        return round(low + (high - low) * self._floats.pop(), 2)

    def whole(self, low: int, high: int) -> int:
        return int(self.number(low, high))

    def word(self) -> str:
        return self.words[self.whole(0, len(self.words) - 1)]


def _zoned(condition: str, python: str) -> Callable[[Literals], tuple[str, str]]:
    """A condition that most events satisfy, for the subscriptions of one zone. `$n` stands for a number."""

    def one(draw: Literals) -> tuple[str, str]:
        zone, number, word = draw.whole(0, ZONES), str(draw.whole(1, 40)), draw.word()
        texts = (one.replace("$n", number).replace("$w", word) for one in (condition, python))
        where, same = texts
        return f"zone = {zone} AND {where}", f"e['zone'] == {zone} and ({same})"

    return one


def _worded(condition: str, python: str) -> Callable[[Literals], tuple[str, str]]:
    """`$w` and `$v` stand for words, `$W` for one in capitals."""

    def one(draw: Literals) -> tuple[str, str]:
        word, other = draw.word(), draw.word()
        made = (one.replace("$w", word).replace("$W", word.upper()).replace("$v", other) for one in (condition, python))
        where, same = made
        return where, same

    return one


def _between(value: str, python: str, low: float, high: float, width: float) -> Callable[[Literals], tuple[str, str]]:
    def one(draw: Literals) -> tuple[str, str]:
        start = draw.number(low, high)
        end = round(start + width, 2)
        return f"{value} BETWEEN {start} AND {end}", f"{start} <= {python} <= {end}"

    return one


def _network(draw: Literals) -> tuple[str, str]:
    address = draw.whole(2**24, 2**32 - 2**24) & ~0xFFF
    network = ipaddress.ip_network((address, 20))
    return f"ip IN NETWORK '{network}'", f"{int(network[0])} <= int(IPv4Address(e['ip'])) <= {int(network[-1])}"


def _circle(draw: Literals) -> tuple[str, str]:
    place = f"{draw.number(-60, 60)}, {draw.number(-180, 180)}"
    return f"DISTANCE(lat, lon, {place}) <= 5000", f"distance(e['lat'], e['lon'], {place}) <= 5000"


def _polygon(draw: Literals) -> tuple[str, str]:
    x, y = draw.number(-179, 178), draw.number(-60, 59)
    ring = [(x, y), (x + 0.3, y + 0.05), (x + 0.35, y + 0.3), (x + 0.1, y + 0.4), (x, y)]
    ring = [(round(a, 3), round(b, 3)) for a, b in ring]
    return (
        f"INSIDE(lat, lon, 'POLYGON (({', '.join(f'{a} {b}' for a, b in ring)}))')",
        f"inside(e['lat'], e['lon'], {ring})",
    )


def _either(draw: Literals) -> tuple[str, str]:
    pairs = [(f"x{n}", draw.whole(0, 100_000)) for n in range(10)]
    return " OR ".join(f"{a} = {b}" for a, b in pairs), " or ".join(f"e['{a}'] == {b}" for a, b in pairs)


def _both(draw: Literals) -> tuple[str, str]:
    pairs = [(f"x{n}", draw.whole(0, 100_000), draw.whole(0, 100_000)) for n in range(10)]
    return (
        " AND ".join(f"({a} < {b} OR {a} > {c})" for a, b, c in pairs),
        " and ".join(f"(e['{a}'] < {b} or e['{a}'] > {c})" for a, b, c in pairs),
    )


def _not_in(draw: Literals) -> tuple[str, str]:
    values, zone = [draw.whole(0, 50) for _ in range(10)], draw.whole(0, ZONES)
    listed = ", ".join(map(str, values))
    return f"zone = {zone} AND qty NOT IN ({listed})", f"e['zone'] == {zone} and e['qty'] not in ({listed})"


def _in(draw: Literals) -> tuple[str, str]:
    words = [draw.word() for _ in range(10)]
    return f"sku IN ({', '.join(map(_quoted, words))})", f"e['sku'] in {tuple(words)!r}"


def _quoted(word: str) -> str:
    return f"'{word}'"


CONSTRUCTS = [
    Construct("sku = 'w'", "sku", _worded("sku = '$w'", "e['sku'] == '$w'")),
    Construct("sku IN (10 words)", "sku", _in),
    Construct("price BETWEEN a AND b", "price", _between("price", "e['price']", 0, 900, 0.5)),
    Construct("zone = z AND qty > n", "zone qty", _zoned("qty > $n", "e['qty'] > $n")),
    Construct("name LIKE 'w%'", "name", _worded("name LIKE '$w%'", "e['name'].startswith('$w')")),
    Construct("name LIKE '%w'", "name", _worded("name LIKE '%$w'", "e['name'].endswith('$w')")),
    Construct("text LIKE '%w v%', 1 KB", "text", _worded("text LIKE '%$w $v%'", "'$w $v' in e['text']")),
    Construct("name ILIKE 'W%'", "name", _worded("name ILIKE '$W%'", "e['name'].lower().startswith('$w')")),
    Construct("text ILIKE '%W%', 1 KB", "text", _worded("text ILIKE '%$W%'", "'$w' in e['text'].lower()")),
    Construct(
        "text LIKE '%w%v%', 1 KB", "text", _worded("text LIKE '%$w%$v%'", "search('$w.*$v', e['text']) is not None")
    ),
    Construct(
        "text REGEXP 'w[a-m]+ v', 1 KB",
        "text",
        _worded("text REGEXP '$w[a-m]+ $v'", "search('$w[a-m]+ $v', e['text']) is not None"),
    ),
    Construct(
        "zone = z AND name REGEXP '^[a-k].[ae]'",
        "zone name",
        _zoned("name REGEXP '^[a-k].[ae]'", "search('^[a-k].[ae]', e['name']) is not None"),
    ),
    Construct("LOWER(code) = 'w'", "code", _worded("LOWER(code) = '$w'", "e['code'].lower() == '$w'")),
    Construct("ANY(tags) = 'w', 10 tags", "tags", _worded("ANY(tags) = '$w'", "'$w' in e['tags']")),
    Construct(
        "ANY(tags) LIKE '%w%', 10 tags", "tags", _worded("ANY(tags) LIKE '%$w%'", "any('$w' in t for t in e['tags'])")
    ),
    Construct(
        "zone = z AND ANY(scores) > n", "zone scores", _zoned("ANY(scores) > $n", "any(s > $n for s in e['scores'])")
    ),
    Construct(
        "zone = z AND ALL(scores) > n", "zone scores", _zoned("ALL(scores) > $n", "all(s > $n for s in e['scores'])")
    ),
    Construct(
        "EXISTS(items WHERE sku = 'w' AND price < 500), 5 items",
        "items",
        _worded(
            "EXISTS(items WHERE sku = '$w' AND price < 500)",
            "any(i['sku'] == '$w' and i['price'] < 500 for i in e['items'])",
        ),
    ),
    Construct(
        "price * qty BETWEEN a AND b", "price qty", _between("price * qty", "e['price'] * e['qty']", 0, 40_000, 20)
    ),
    Construct("zone = z AND low < high", "zone low high", _zoned("low < high", "e['low'] < e['high']")),
    Construct("zone = z AND high - low > n", "zone low high", _zoned("high - low > $n", "e['high'] - e['low'] > $n")),
    Construct(
        "zone = z AND HOUR(at, 'Europe/Paris') < n",
        "zone at",
        _zoned("HOUR(at, 'Europe/Paris') < $n", "e['at'].astimezone(PARIS).hour < $n"),
    ),
    Construct(
        "zone = z AND at < NOW() - INTERVAL 'n days'",
        "zone at",
        _zoned("at < NOW() - INTERVAL '$n days'", "e['at'] < now() - timedelta(days=$n)"),
    ),
    Construct("ip IN NETWORK 'a.b.c.0/20'", "ip", _network),
    Construct("DISTANCE(lat, lon, ...) <= 5000", "lat lon", _circle),
    Construct("INSIDE(lat, lon, 'POLYGON ...'), 4 corners", "lat lon", _polygon),
    Construct("zone = z AND qty <> n", "zone qty", _zoned("qty <> $n", "e['qty'] != $n")),
    Construct("zone = z AND qty NOT IN (10 numbers)", "zone qty", _not_in),
    Construct(
        "zone = z AND NOT text LIKE '%w%', 1 KB", "zone text", _zoned("NOT text LIKE '%$w%'", "'$w' not in e['text']")
    ),
    Construct("zone = z AND qty IS MISSING", "zone", _zoned("qty IS MISSING", "'qty' not in e")),
    Construct(
        "zone = z AND (qty > n XOR paid)",
        "zone qty paid",
        _zoned("(qty > $n XOR paid)", "(e['qty'] > $n) != e['paid']"),
    ),
    Construct("x0 = a OR x1 = b OR ..., 10 attributes", "x", _either),
    Construct("(x0 < a OR x0 > b) AND ..., 10 attributes", "x", _both),
    Construct(
        "zone = z AND OLD.price > NEW.price",
        "zone price",
        _zoned("OLD.price > NEW.price", "e['old']['price'] > e['price']"),
        "change",
    ),
    Construct("price BETWEEN a AND b, no schema", "price", _between("price", "e['price']", 0, 900, 0.5), "open"),
    Construct("ANY(tags) = 'w', 10 tags, no schema", "tags", _worded("ANY(tags) = '$w'", "'$w' in e['tags']"), "open"),
]


@cache
def _documents(count: int) -> list[Event]:
    """Events with every attribute; each construct gets those that it needs."""
    draw = Literals()
    draw.rng = np.random.default_rng(SEED + 1)
    return [
        {
            "sku": draw.word(),
            "name": f"{draw.word()} {draw.word()}",
            "text": draw.text(1000),
            "code": draw.word().title(),
            "zone": draw.whole(0, ZONES),
            "qty": draw.whole(0, 50),
            "low": draw.whole(0, 100),
            "high": draw.whole(0, 100),
            "price": draw.number(0, 900),
            "at": MOMENT - timedelta(minutes=draw.whole(0, 500_000)),
            "tags": [draw.word() for _ in range(10)],
            "scores": [draw.whole(0, 100) for _ in range(10)],
            "items": [{"sku": draw.word(), "price": draw.number(0, 1000)} for _ in range(5)],
            "ip": draw.addresses(1)[0],
            "lat": draw.number(-60, 60),
            "lon": draw.number(-180, 180),
            "paid": draw.number(0, 1) < 0.5,
            **{f"x{n}": draw.whole(0, 100_000) for n in range(10)},
        }
        for _ in range(count)
    ]


def _events(of: Construct, count: int) -> list[Event]:
    names = [name for need in of.needs.split() for name in ([f"x{n}" for n in range(10)] if need == "x" else [need])]
    return [{name: event[name] for name in names} for event in _documents(count)]


def run(quick: bool, rounds: int, progress: Progress) -> dict[str, Any]:
    """Measure every construct; the record has a line for each."""
    lines = []
    for construct in CONSTRUCTS:
        progress(construct.what)
        lines.append(_measured(construct, quick, rounds))
    return {"constructs": lines, "seed": SEED, "quick": quick, "rounds": rounds, "machine": machine()}


def _measured(of: Construct, quick: bool, rounds: int) -> dict[str, Any]:
    draw = Literals()
    plain = _events(of, 20 if quick else EVENTS)
    events = plain
    if of.form == "change":
        events = [{"old": old, "new": new} for old, new in zip([*plain[1:], plain[0]], plain, strict=True)]
        plain = [{**one["new"], "old": one["old"]} for one in events]
    made = [of.one(draw) for _ in range(QUICK if quick else TRIAL)]
    count = len(made) - SINGLE
    if not quick:
        trial = _table([where for where, _ in made])
        _index(of).load(trial)  # what is learnt once
        begun = time.process_time()
        _index(of).load(trial)
        fits = int(LOAD_SECONDS / max(time.process_time() - begun, 1e-9)) * TRIAL
        count = min(SUBSCRIPTIONS, max(FEWEST, fits))
        made += [of.one(draw) for _ in range(count + SINGLE - len(made))]
    index = _index(of)
    begun = time.process_time()
    index.load(_table([where for where, _ in made[:count]]))
    loading = (time.process_time() - begun) / count
    looped = min(count, LOOPED)
    loop = _loop([python for _, python in made[:looped]])
    matches = 0.0
    for event, same in zip(events[:CHECKED], plain, strict=False):
        found = sorted(int(id) for id in index.match(event))
        matches += len(found) / CHECKED
        if [id for id in found if id < looped] != loop(same):
            raise BenchError(f"wrong answers: {of.what} differs from a loop of Python predicates; no figure is kept")
    singles, batches = [], []
    for _ in range(rounds):
        singles.append(_repeated(index.match, events, MATCH_SECONDS / rounds))
        some = events[: max(CHECKED, int(MATCH_SECONDS / rounds / singles[-1]))]
        batches.append(_seconds(partial(index.match_batch, some), len(some)))
    memory = sum(index.nbytes().values()) / count
    others = [where for where, _ in made[count : count + SINGLE]]
    subscribing = _repeated(lambda one: index.subscribe(*one), list(enumerate(others, count)))
    return {
        "what": of.what,
        "subscriptions": count,
        "subscribe": subscribing,
        "load": loading,
        "memory": memory,
        "single": float(np.median(singles)),
        "batch": float(np.median(batches)),
        "loop": _seconds(lambda: [loop(one) for one in plain[:CHECKED]], CHECKED) * count / looped,
        "matches": matches,
    }


def _index(of: Construct) -> Index:
    return Index() if of.form == "open" else Index({name: SCHEMA[name] for name in SCHEMA})


def _table(where: Sequence[str]) -> pa.Table:
    return pa.table({"id": np.arange(len(where)), "where": list(where)})


def _loop(expressions: Sequence[str]) -> Callable[[Event], list[int]]:
    moment = datetime.now(UTC)
    names = {
        "distance": distance,
        "inside": _inside,
        "IPv4Address": ipaddress.IPv4Address,
        "search": re.search,
        "PARIS": ZoneInfo("Europe/Paris"),
        "timedelta": timedelta,
        "now": lambda: moment,
    }
    functions = [eval(f"lambda e: {one}", names) for one in expressions]
    return lambda event: [number for number, holds in enumerate(functions) if holds(event)]


def _inside(lat: float, lon: float, ring: Sequence[tuple[float, float]]) -> bool:
    """A ray to the east crosses the border an odd number of times."""
    inside = False
    for (ax, ay), (bx, by) in pairwise(ring):
        if (ay > lat) != (by > lat) and lon < ax + (bx - ax) * (lat - ay) / (by - ay):
            inside = not inside
    return inside


def _repeated(call: Callable[[Any], Any], inputs: Sequence[Any], most: float = MATCH_SECONDS) -> float:
    """CPU seconds per call; as many calls as `most` seconds allow."""
    begun, done = time.process_time(), 0
    for one in inputs:
        call(one)
        done += 1
        if done >= 3 and time.process_time() - begun > most:
            break
    return (time.process_time() - begun) / done


def _seconds(call: Callable[[], Any], count: int) -> float:
    begun = time.process_time()
    call()
    return (time.process_time() - begun) / count


HEADS = ("construct", "subscribe", "load", "bytes", "one event", "in a batch", "Python loop", "matches")


def rows(record: dict[str, Any]) -> list[list[str]]:
    found = []
    for line in record["constructs"]:
        what = line["what"]
        if line["subscriptions"] < SUBSCRIPTIONS and not record["quick"]:
            what += f" ({line['subscriptions']:,} subscriptions)"
        times = {name: shown(line[name], "s") for name in ("subscribe", "load", "single", "batch", "loop")}
        figures = [times["subscribe"], times["load"], f"{line['memory']:,.0f}", times["single"], times["batch"]]
        found.append([what, *figures, times["loop"], f"{line['matches']:,.0f}"])
    return found


def markdown(record: dict[str, Any]) -> str:
    """The table of docs/performance.md."""
    lines = [HEADS, ("---", *["--:"] * (len(HEADS) - 1))]
    lines += [(f"`{row[0]}`", *row[1:]) for row in rows(record)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def show(record: dict[str, Any], console: Console) -> None:
    show_head(record, console, "constructs", f"{SUBSCRIPTIONS:,} subscriptions of each, ")
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for name in HEADS:
        table.add_column(name, justify="left" if name == "construct" else "right", no_wrap=name != "construct")
    for row in rows(record):
        table.add_row(*map(escape, row))
    console.print(table)
