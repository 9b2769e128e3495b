"""The measurements behind `make bench ARGS=goals`, as a program of its own, so that another checkout can run it too.

checkouts.py starts it with the Python of the checkout that is measured. It reads one JSON request per line and answers
each with one line: {"build": case, "scale": share} builds a case and compares its answers with the oracle; then
{"measure": name} returns figures by name: seconds per event or call, rows per second, or bytes. A measurement that the
checkout does not know yields no figures. So this file uses only what older versions have, too, or looks for it first.

Clocks are CPU time of the process, except where it says wall.
"""

from __future__ import annotations

import gc
import inspect
import json
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

import hitbox
from hitbox import Index, workloads
from hitbox.encoding.arrays import HIGHEST, LOWEST, MISSING, Points, Space
from hitbox.engine import Engine, _kernels
from hitbox.matchers import make
from research.machine import machine
from research.measure import oracle, parts_of

Figures = dict[str, float]
WORKLOADS: dict[str, tuple[str, dict[str, Any]]] = {
    "w1": ("w1", {"n": 1_000_000}),
    "w1 0.8": ("w1", {"n": 1_000_000, "width": 0.8}),
    "w1 0.8 str": ("w1", {"n": 1_000_000, "width": 0.8}),
    "w2": ("w2", {"n": 1_000_000}),
    "w3": ("w3", {"n": 500_000}),
    "w4": ("w4", {"n": 1_000_000}),
}
SEED = 1
CHECKED = 6
"""Events whose matches are compared with the oracle."""
CITIES = [f"city {i}" for i in range(500)]


def seconds(call: Callable[[], Any], count: int, clock: Callable[[], float] = time.process_time) -> float:
    begin = clock()
    call()
    return (clock() - begin) / count


def each(call: Callable[[Any], Any], arguments: list[Any]) -> None:
    for one in arguments:
        call(one)


def require(right: bool, what: str) -> None:
    if not right:
        raise SystemExit(f"wrong answers: {what} differs from the oracle; no figure is kept")


class Small:
    """A thousand subscriptions on some floats, where calls cost more than matching."""

    def __init__(self, attributes: int, scale: float) -> None:
        names = [f"a{n}" for n in range(attributes)]
        self.index = Index(dict.fromkeys(names, "float"))
        draw = np.random.default_rng(SEED)
        low = draw.random((1000, 3)) * 0.9
        chosen = [draw.choice(attributes, 3, replace=False) for _ in range(1000)]
        for n in range(1000):
            bounds = zip(chosen[n], low[n], strict=True)
            text = " AND ".join(f"a{a} BETWEEN {at:.6f} AND {at + 0.1:.6f}" for a, at in bounds)
            self.index.subscribe(n, text)
        values = draw.random((max(64, int(4096 * scale)), attributes))
        self.events = [dict(zip(names, row, strict=True)) for row in values.tolist()]
        for row, event in list(zip(values, self.events, strict=True))[:64]:
            inside = [(low[n].round(6) <= row[c]) & (row[c] <= (low[n] + 0.1).round(6)) for n, c in enumerate(chosen)]
            want = np.flatnonzero(np.all(inside, axis=1)).tolist()
            require(sorted(self.index.match(event)) == want, "match")
            require(sorted(self.index.match_batch([event])[0]) == want, "match_batch")

    def facts(self) -> Figures:
        return {}

    def match(self) -> Figures:
        some = self.events[:2000]
        return {"match": seconds(lambda: each(self.index.match, some), len(some))}

    def list(self) -> Figures:
        return {"list": seconds(lambda: self.index.match_batch(self.events), len(self.events))}


class Large:
    """A workload of the papers behind an index, loaded as a table. Ids are whole numbers in any order, or texts."""

    def __init__(self, name: str, scale: float) -> None:
        kind, parameters = WORKLOADS[name]
        self.workload = workloads.get(kind, seed=SEED, **(parameters | {"n": int(parameters["n"] * scale)}))
        self.n = self.workload.n
        wide = name.startswith("w1 0.8")
        self.few, many = max(8, int((100 if wide else 300) * scale)), max(96, int((512 if wide else 4096) * scale))
        boxes = self.workload.boxes(0, self.n)
        numbers = np.random.default_rng(3).permutation(self.n)
        self.ids: Any = [f"subscriber-{n}" for n in numbers.tolist()] if name.endswith("str") else numbers
        self.index = Index(dict.fromkeys(self.workload.attributes, "int"))
        self.index.load(_table(self.ids, boxes, list(self.workload.attributes)))
        self.engine: Any = self.index._state.matcher
        self.points = self.workload.points(0, many)
        self.events = [
            {name: value for name, value in zip(self.workload.attributes, row, strict=True) if value != MISSING}
            for row in self.points.low.tolist()
        ]
        self.table = _events(self.points, list(self.workload.attributes))
        self.singles = [self.points[at : at + 1] for at in range(self.few)]
        self.used = np.unique(boxes.attribute)
        self.expected = oracle(self.workload.space, parts_of(boxes), self.points[:CHECKED])
        self.others: dict[str, Any] = {}
        self._check()
        if name in ("w1", "w1 0.8"):
            self.others["rein"] = self._made(make("rein", self.workload.space), boxes)
        if name == "w1" and "compact" in inspect.signature(Engine).parameters:
            self.others["compact"] = self._made(make("hitbox", self.workload.space, compact=True), boxes)
        self._add_floor()

    def _made(self, matcher: Any, boxes: Any) -> Any:
        matcher.insert(np.arange(self.n, dtype=np.int64), boxes)
        hits = matcher.match(self.points[:CHECKED])
        for event, want in enumerate(self.expected):
            require(np.array_equal(np.sort(hits[event]), want), type(matcher).__name__)
        return matcher

    def _add_floor(self) -> None:
        try:
            from research.floor import Floor
        except ModuleNotFoundError:  # an older version
            return
        points = self.points[:512]
        made = Floor(self.workload.space, self.n, self.used, points, self.engine.match(points))
        for event, want in enumerate(self.expected):
            require(int(made.count(points[event : event + 1])[0]) == len(want), "the floor's count")
        self.others["floor"] = made

    def _check(self) -> None:
        ids = np.array(self.ids)
        batch = self.index.match_batch(self.table.slice(0, CHECKED))
        for event, rows in enumerate(self.expected):
            want = np.sort(ids[rows]).tolist()
            for way in ("match", "match_array"):
                if hasattr(self.index, way):
                    found = getattr(self.index, way)(self.events[event])
                    require(sorted(found if isinstance(found, list) else found.to_pylist()) == want, way)
            require(sorted(batch[event]) == want, "match_batch")
        best = self.engine.simd
        for level in _kernels.simd_levels():
            self.engine.simd = level
            for hits in (self.engine.match(self.points[:CHECKED]), self.engine.match(self.points)):
                counts = [len(hits[event]) for event in range(CHECKED)]
                require(counts == [len(rows) for rows in self.expected], f"the engine with {level}")
        self.engine.simd = best
        counted = self.engine.count(self.points[:CHECKED]).tolist()
        require(counted == [len(rows) for rows in self.expected], "count")

    def facts(self) -> Figures:
        found = {"bytes": self.engine.nbytes() / self.n, "matches": float(np.mean([len(one) for one in self.expected]))}
        if "compact" in self.others:
            found["compact bytes"] = self.others["compact"].nbytes() / self.n
        return found

    def single(self) -> Figures:
        return {"single": seconds(lambda: each(self.engine.match, self.singles), self.few)}

    def batch(self) -> Figures:
        return {"batch": seconds(lambda: self.engine.match(self.points), len(self.points))}

    def counting(self) -> Figures:
        return {
            "count": seconds(lambda: each(self.engine.count, self.singles), self.few),
            "count batch": seconds(lambda: self.engine.count(self.points), len(self.points)),
        }

    def match(self) -> Figures:
        return {"match": seconds(lambda: each(self.index.match, self.events[: self.few]), self.few)}

    def match_array(self) -> Figures:
        if not hasattr(self.index, "match_array"):
            return {}
        return {"match_array": seconds(lambda: each(self.index.match_array, self.events[: self.few]), self.few)}

    def match_batch(self) -> Figures:
        return {"match_batch": seconds(lambda: self.index.match_batch(self.table), len(self.points))}

    def threads(self) -> Figures:
        """Wall clock: one batch in one thread and in two."""
        size, clock = len(self.points), time.perf_counter
        return {
            "one thread": seconds(lambda: self.engine.match(self.points), size, clock),
            "two threads": seconds(lambda: self.engine.match(self.points, threads=2), size, clock),
        }

    def floor(self) -> Figures:
        made = self.others.get("floor")
        if made is None:
            return {}
        points = self.points[:512]
        return {
            "floor": seconds(lambda: each(made.match, self.singles), self.few),
            "floor count": seconds(lambda: each(made.count, self.singles), self.few),
            "floor batch": seconds(lambda: made.match(points), len(points)),
        }

    def rein(self) -> Figures:
        made = self.others.get("rein")
        if made is None:
            return {}
        some, points = self.singles[:16], self.points[:64]
        return {
            "rein": seconds(lambda: each(made.match, some), len(some)),
            "rein batch": seconds(lambda: made.match(points), len(points)),
        }

    def levels(self) -> Figures:
        """The engine on processors with less: without VBMI2, and with AVX2 only."""
        best, found = self.engine.simd, {}
        for level in set(_kernels.simd_levels()) & {"avx512", "avx2"}:
            self.engine.simd = level
            found[f"{level} single"] = self.single()["single"]
            found[f"{level} batch"] = self.batch()["batch"]
        self.engine.simd = best
        return found

    def compact(self) -> Figures:
        made = self.others.get("compact")
        if made is None:
            return {}
        return {
            "compact single": seconds(lambda: each(made.match, self.singles), self.few),
            "compact batch": seconds(lambda: made.match(self.points), len(self.points)),
        }


class EngineChanges:
    """Boxes that come and go one by one, with W1 there."""

    def __init__(self, scale: float) -> None:
        self.workload = workloads.get("w1", seed=SEED, n=int(1e6 * scale))
        n, self.count = self.workload.n, max(50, int(2000 * scale))
        self.engine = Engine(self.workload.space)
        self.engine.insert(np.arange(n, dtype=np.int64), self.workload.boxes(0, n))
        fresh = self.workload.boxes(n, self.count)
        self.numbers = np.arange(n, n + self.count, dtype=np.int64)
        self.boxes = [fresh.take(np.array([at])) for at in range(self.count)]

    def facts(self) -> Figures:
        return {}

    def one(self) -> Figures:
        inserted = [
            seconds(lambda at=at: self.engine.insert(self.numbers[at : at + 1], self.boxes[at]), 1)  # type: ignore[misc]
            for at in range(self.count)
        ]
        deleted = [
            seconds(lambda at=at: self.engine.delete(self.numbers[at : at + 1]), 1)  # type: ignore[misc]
            for at in range(self.count)
        ]
        require(len(self.engine) == self.workload.n, "the number of boxes")
        return {
            "insert median": float(np.median(inserted)),
            "insert mean": float(np.mean(inserted)),
            "delete median": float(np.median(deleted)),
            "delete mean": float(np.mean(deleted)),
        }


class Changes:
    """Subscriptions that come and go one by one, with a million there, while another thread matches. Wall clock."""

    def __init__(self, scale: float) -> None:
        self.n, self.count = int(1e6 * scale), max(200, int(5000 * scale))
        self.index = Index(dict.fromkeys("abc", "float"))
        draw = np.random.default_rng(SEED)
        low = draw.random((self.n, 3)) * 0.9
        columns = {
            f"{a}_{end}": low[:, i] + (end == "high") * 0.1 for i, a in enumerate("abc") for end in ("low", "high")
        }
        self.index.load(pa.table({"id": np.arange(self.n), **columns}))
        at = draw.random((self.count, 3))
        self.texts = [
            " AND ".join(f"{a} BETWEEN {x:.4f} AND {x + 0.1:.4f}" for a, x in zip("abc", row, strict=True))
            for row in at.tolist()
        ]
        self.at = at.round(4)
        self.event = {"a": 0.5, "b": 0.5, "c": 0.5}
        row = np.array([0.5, 0.5, 0.5])
        self.held = np.flatnonzero(((low <= row) & (row <= low + 0.1)).all(axis=1)).tolist()
        require(sorted(self.index.match(self.event)) == self.held, "match")

    def facts(self) -> Figures:
        return {}

    def one(self) -> Figures:
        return self._changes(False)

    def beside_matching(self) -> Figures:
        """The longest that a match takes alone, and while another thread subscribes and unsubscribes."""
        alone = max(seconds(lambda: self.index.match(self.event), 1, time.perf_counter) for _ in range(2000))
        return {"longest match alone": alone, **self._changes(True)}

    def _changes(self, matching: bool) -> Figures:
        over, taken = threading.Event(), [0.0]

        def match() -> None:
            while not over.is_set():
                taken.append(seconds(lambda: self.index.match(self.event), 1, time.perf_counter))
                time.sleep(0.0002)

        thread = threading.Thread(target=match)
        if matching:
            thread.start()
        found: Figures = {}
        try:
            for what, call in (
                ("subscribe", lambda at: self.index.subscribe(self.n + at, self.texts[at])),
                ("unsubscribe", lambda at: self.index.unsubscribe(self.n + at)),
            ):
                times = [seconds(lambda at=at, call=call: call(at), 1, time.perf_counter) for at in range(self.count)]  # type: ignore[misc]
                median = float(np.median(times))
                found[what] = 1 / float(np.mean(times))
                found[f"{what} tail"] = float(np.quantile(times, 0.999)) / median
                fresh = np.flatnonzero(((self.at <= 0.5) & (self.at + 0.1 >= 0.5)).all(axis=1)) + self.n
                want = self.held + (fresh.tolist() if what == "subscribe" else [])
                require(sorted(self.index.match(self.event)) == want, f"match after {what}")
        finally:
            over.set()
            if matching:
                thread.join()
        return {"longest match": max(taken)} if matching else found


class Load:
    """Rows per second that `load` takes from texts of one mix."""

    def __init__(self, mix: str, scale: float) -> None:
        three = {"price": "float", "qty": "int", "city": "string"}
        floats = {f"a{i}": "float" for i in range(20)}
        mixes = {
            "few": (three, few_conditions),
            "many": (three, many_conditions),
            "ten": (floats, ten_conditions),
            "strings": (three, lists_and_ors),
            "like": (three, likes),
        }
        self.schema, texts_of = mixes[mix]
        texts = texts_of(np.random.default_rng(7), max(500, int(200_000 * scale)))
        self.table = pa.table({"id": np.arange(len(texts)), "where": texts})
        self._check(texts[:200])

    def _check(self, texts: list[str]) -> None:
        """`load` must mean what `subscribe` means, one by one."""
        loaded, one_by_one = Index(self.schema), Index(self.schema)
        loaded.load(self.table.slice(0, len(texts)))
        for row, text in enumerate(texts):
            one_by_one.subscribe(row, text)
        draw = np.random.default_rng(8)
        kinds: dict[str, Callable[[], Any]] = {
            "string": lambda: f"city {draw.integers(20)}",
            "int": lambda: int(draw.integers(1000)),
            "float": draw.random,
        }
        for _ in range(20):
            event = {name: kinds[kind]() for name, kind in self.schema.items()}
            require(sorted(loaded.match(event)) == sorted(one_by_one.match(event)), "load")

    def facts(self) -> Figures:
        return {}

    def load(self) -> Figures:
        index = Index(self.schema)
        return {"load": 1 / seconds(lambda: index.load(self.table), len(self.table))}


class Limit:
    """Identical boxes with a limit, before and after one subscription of two boxes came."""

    def __init__(self, scale: float) -> None:
        n = int(2e5 * scale)
        self.plain, self.mixed = (Index({"a": "int", "b": "int"}) for _ in range(2))
        for index in (self.plain, self.mixed):
            index.load(pa.table({"id": np.arange(n), "where": ["a >= 0 AND b >= 0"] * n}))
        self.mixed.subscribe(n, "a = 1 OR b = 1")
        for index in (self.plain, self.mixed):
            found = index.match({"a": 1, "b": 1}, limit=10)
            require(len(set(found)) == 10 and set(found) <= set(range(n + 1)), "match with a limit")

    def facts(self) -> Figures:
        return {}

    def limit(self) -> Figures:
        event = {"a": 1, "b": 1}
        return {
            name: seconds(lambda index=index: index.match(event, limit=10), 1)  # type: ignore[misc]
            for name, index in (("plain", self.plain), ("mixed", self.mixed))
        }


def few_conditions(rng: np.random.Generator, rows: int) -> list[str]:
    """Three conditions, few of which differ."""
    low, qty, city = rng.integers(0, 10, rows), rng.integers(0, 10, rows), rng.integers(0, 20, rows)
    return [
        f"price BETWEEN {a} AND {a + 5} AND qty >= {q} AND city = '{CITIES[c]}'"
        for a, q, c in zip(low, qty, city, strict=True)
    ]


def many_conditions(rng: np.random.Generator, rows: int) -> list[str]:
    """Three conditions, nearly all of which differ."""
    low, qty, city = rng.random(rows), rng.integers(0, 10**6, rows), rng.integers(0, 10**6, rows)
    return [
        f"price BETWEEN {a} AND {a + 0.5} AND qty >= {q} AND city = 'street {c}'"
        for a, q, c in zip(low.tolist(), qty, city, strict=True)
    ]


def ten_conditions(rng: np.random.Generator, rows: int) -> list[str]:
    """Ranges on ten of twenty attributes, in any order."""
    found = []
    for _ in range(rows):
        chosen, low = rng.choice(20, 10, replace=False), rng.random(10).tolist()
        found.append(" AND ".join(f"a{n} BETWEEN {a} AND {a + 0.5}" for n, a in zip(chosen, low, strict=True)))
    return found


def lists_and_ors(rng: np.random.Generator, rows: int) -> list[str]:
    """IN lists of strings and of numbers, and a disjunction over one attribute."""
    found = []
    for row in range(rows):
        cities = ", ".join(f"'{CITIES[c]}'" for c in rng.integers(0, 500, 3))
        a, b = rng.integers(0, 1000, 2)
        found.append(
            f"city IN ({cities}) AND qty IN ({a}, {b}) AND price > {row}.5"
            if row % 2
            else f"city = '{CITIES[a // 2]}' AND (qty < {a} OR qty >= {b + 500}) AND price <= {row}"
        )
    return found


def likes(rng: np.random.Generator, rows: int) -> list[str]:
    """Of the rows with three conditions, five in a hundred have a LIKE that no range can say."""
    found = many_conditions(rng, rows)
    for row in range(0, rows, 20):
        found[row] = f"price > {row} AND qty >= 3 AND city LIKE '%eet {row % 1000}'"
    return found


def _table(ids: Any, boxes: Any, names: list[str]) -> pa.Table:
    """Boxes as a table of bounds."""
    n, row = len(boxes), np.repeat(np.arange(len(boxes)), np.diff(boxes.offsets))
    order = np.argsort(boxes.attribute, kind="stable")
    ends = np.searchsorted(boxes.attribute[order], np.arange(len(names) + 1))
    columns: dict[str, Any] = {"id": ids, "priority": boxes.priority}
    for a, name in enumerate(names):
        some = order[ends[a] : ends[a + 1]]
        for end, values, free in (("low", boxes.low, LOWEST), ("high", boxes.high, HIGHEST)):
            full, absent = np.zeros(n, np.int64), np.ones(n, np.bool_)
            full[row[some]], absent[row[some]] = values[some], values[some] == free
            columns[f"{name}_{end}"] = pa.array(full, mask=absent)
    return pa.table(columns)


def _events(points: Points, names: list[str]) -> pa.Table:
    keys = points.low
    return pa.table({name: pa.array(keys[:, a].copy(), mask=keys[:, a] == MISSING) for a, name in enumerate(names)})


def build(case: str, scale: float) -> Any:
    kind, _, which = case.partition(" ")
    if kind == "small":
        return Small(int(which), scale)
    if kind == "load":
        return Load(which, scale)
    others = {"changes": Changes, "engine changes": EngineChanges, "limit": Limit}
    return others[case](scale) if case in others else Large(case, scale)


def main() -> None:
    """Answers requests until the input ends."""
    answers, sys.stdout = sys.stdout, sys.stderr  # a stray print must not look like an answer
    held: Any = None
    for line in sys.stdin:
        request = json.loads(line)
        if "build" in request:
            held = None
            gc.collect()
            held = build(request["build"], request["scale"])
            found = held.facts()
            gc.collect()
            gc.freeze()
        elif "measure" in request:
            gc.collect()
            gc.disable()
            found = getattr(held, request["measure"])()
            gc.enable()
        else:
            held = None
            found = {"machine": machine(), "simd": Engine(Space.of(1)).simd, "version": hitbox.__version__}
        print(json.dumps(found), file=answers, flush=True)


if __name__ == "__main__":
    main()
