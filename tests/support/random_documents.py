"""Random documents and predicates over the whole language. Nothing here imports hitbox.

The schema is one for all, so that every construct has something to work on. A document is made as a caller hands it
over, nested or flat or both, and `meaning` turns it into what the second evaluator takes.
"""

from __future__ import annotations

import datetime as dt
import math
import random
from collections.abc import Mapping
from typing import Any

from support.second_evaluator import number

SCHEMA: dict[str, Any] = {
    "a": "int",
    "b": "int",
    "x": "float",
    "y": "float",
    "s": "string",
    "ip": "string",
    "ok": "bool",
    "at": "timestamp",
    "until": "timestamp",
    "lat": "float",
    "lon": "float",
    "order": {"city": "string", "total": {"net": "float", "odd name": "int"}},
    "tags": "string[]",
    "scores": ["int"],
    "flags": "bool[]",
    "items": [{"sku": "string", "price": "float", "size": {"w": "int"}, "tags": "string[]"}],
    "deep": {"list": "float[]"},
}
ITEM = {"sku": "string", "price": "float", "size.w": "int", "tags": "string[]"}
TYPES: dict[str, Any] = {
    **{name: SCHEMA[name] for name in ("a", "b", "x", "y", "s", "ip", "ok", "at", "until", "lat", "lon")},
    "order.city": "string",
    "order.total.net": "float",
    "order.total.odd name": "int",
    "tags": "string[]",
    "scores": "int[]",
    "flags": "bool[]",
    "items": ITEM,
    "deep.list": "float[]",
}
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
INTS = [0, 1, 2, 3, -1, -2, 7, 10, 2**53 + 1, 2**62, 2**63 - 1, -(2**63) + 1]
FLOATS = [0.0, 0.5, 1.0, 1.5, -1.5, 2.5, -2.5, 3.0, 0.1, 1e300, 1e-300, 2.0**53, math.inf]
WORDS = ["", "a", "b", "ab", "aB", "Ab", "ABC", "abc", "äb", "ÄB", "Σς", "b%", "a_c", "x", "xa1"]
ADDRESSES = ["10.0.0.1", "10.255.1.2", "11.0.0.1", "::ffff:10.0.0.9", "2001:db8::1", "2001:db9::", "::", "010.0.0.1"]
ADDRESSES += ["fe80::1%eth0", "host", "1.2.3", "255.255.255.255", "::1"]
NETWORKS = ["10.0.0.0/8", "10.0.0.1", "2001:db8::/32", "::/0", "0.0.0.0/0", "::ffff:0:0/96", "10.128.0.0/9", "::1/128"]
MOMENTS = [EPOCH + dt.timedelta(days=days, hours=days % 24, microseconds=days) for days in (0, 1, 2, 20_000, 20_300)]
MOMENTS += [dt.datetime(2026, 3, 29, 0, 59, 59, tzinfo=dt.UTC), dt.datetime(2026, 3, 29, 1, tzinfo=dt.UTC)]
MOMENTS += [dt.datetime.max.replace(tzinfo=dt.UTC), dt.datetime.min.replace(tzinfo=dt.UTC)]
ZONES = ["UTC", "Europe/Paris", "Asia/Kathmandu", "America/New_York", "+05:30", "-11:00"]
LATITUDES = [0.0, 0.5, 1.0, 2.0, 48.85, 48.86, 89.99, 90.0, -90.0, -89.5, 91.0, -33.0]
LONGITUDES = [0.0, 0.5, 1.0, 2.0, 2.35, 179.99, 180.0, -180.0, -179.9, 170.0, -175.0, 181.0]
AREAS = [
    "POLYGON ((0 0, 2 0, 2 2, 0 2, 0 0))",
    "POLYGON ((0 0, 2 0, 2 2, 0 2, 0 0), (0.5 0.5, 0.5 1, 1 1, 1 0.5, 0.5 0.5))",
    "MULTIPOLYGON (((0 0, 1 0, 0.5 1, 0 0)), ((2 48, 3 48, 3 49, 2 49, 2 48)))",
    "POLYGON ((170 -5, 190 -5, 190 5, 170 5, 170 -5))",
    "POLYGON ((-180 80, 180 80, 180 90, -180 90, -180 80))",
    "POLYGON EMPTY",
    "POLYGON ((0 0, 2 2, 2 0, 0 2, 0 0))",
]
PATTERNS = ["a%", "%b", "%B%", "_b", "A_c", "%", "", "ä%", "a!_c", "%a%b%"]
EXPRESSIONS = ["^a", "b$", "a.c", "[0-9]", "(a|b)+", "x?a", "^$", "^[A-Z]"]
LENGTHS = ["1 day", "36 hours", "90 minutes", "1 week 2 days", "-3 days", "0.5 seconds"]


def pool(type_: str) -> list[Any]:
    return {"int": INTS, "float": FLOATS, "string": WORDS, "bool": [True, False], "timestamp": MOMENTS}[type_]


# --- documents --------------------------------------------------------------------------------------------------------


def random_value(rng: random.Random, name: str, type_: Any) -> Any:
    if rng.random() < 0.1:
        return None
    if isinstance(type_, dict):
        return [random_item(rng) for _ in range(rng.randint(0, 3))]
    if type_.endswith("[]"):
        of = pool(type_.removesuffix("[]"))
        return [None if rng.random() < 0.15 else rng.choice(of) for _ in range(rng.randint(0, 3))]
    named = {"ip": ADDRESSES, "lat": LATITUDES, "lon": LONGITUDES}
    return rng.choice(named.get(name) or pool(type_))


def random_item(rng: random.Random) -> dict[str, Any] | None:
    if rng.random() < 0.1:
        return None
    return {name: random_value(rng, name, type_) for name, type_ in ITEM.items() if rng.random() < 0.8}


def random_image(rng: random.Random) -> dict[str, Any]:
    """The values of a document by dotted name."""
    return {name: random_value(rng, name, type_) for name, type_ in TYPES.items() if rng.random() < 0.75}


def nested(rng: random.Random, values: Mapping[str, Any] | None) -> Any:
    """A document with objects; now and then a name stays dotted."""
    if values is None:
        return None
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, list):
            value = [nested(rng, one) if isinstance(one, dict) else one for one in value]
        *above, last = name.split(".")
        if not above or rng.random() < 0.2:
            found[name] = value
            continue
        place = found
        for part in above:
            place = place.setdefault(part, {})
        place[last] = value
    return found


def meaning(values: Mapping[str, Any] | None, types: Mapping[str, Any] = TYPES) -> dict[str, Any] | None:
    """What the second evaluator takes."""
    if values is None:
        return None
    return {name: plain(value, types[name]) for name, value in values.items()}


def plain(value: Any, type_: Any) -> Any:
    if value is None:
        return None
    if isinstance(type_, dict):
        return [meaning(one, type_) for one in value]
    if type_.endswith("[]"):
        return [plain(one, type_.removesuffix("[]")) for one in value]
    if type_ == "float":
        return number(float(value))
    return (value - EPOCH) // dt.timedelta(microseconds=1) if type_ == "timestamp" else value


# --- predicates -------------------------------------------------------------------------------------------------------


class Writer:
    """The texts of random predicates; inside EXISTS, `fields` are those of an element."""

    def __init__(self, rng: random.Random, fields: Mapping[str, Any] | None = None, old: bool = True):
        self.rng, self.fields, self.old = rng, fields, old

    def predicate(self, depth: int = 2) -> str:
        rng = self.rng
        kind = rng.random()
        if depth == 0 or kind < 0.4:
            return self.condition(depth)
        if kind < 0.55:
            return f"NOT ({self.predicate(depth - 1)})"
        joined = rng.choice(["AND", "AND", "OR", "OR", "XOR"])
        return f" {joined} ".join(f"({self.predicate(depth - 1)})" for _ in range(rng.choice([2, 2, 3])))

    def condition(self, depth: int) -> str:
        rng, negated = self.rng, self.rng.choice(["", "", "NOT "])
        kind = rng.choice(["compare"] * 5 + ["text"] * 3 + ["between", "in", "null", "missing", "network", "inside"]
                          + ["far", "element", "element", "element", "exists", "bool"])  # fmt: skip
        if kind == "compare":
            return self.comparison(rng.choice(["number", "number", "string", "timestamp", "bool", "interval"]))
        if kind == "text":
            return f"{self.value('string', depth)} {self.text_test()}"
        if kind == "between":
            type_ = rng.choice(["number", "string", "timestamp"])
            low, high = self.value(type_, 1), self.value(type_, 1)
            return f"{self.value(type_, 1)} {negated}BETWEEN {low} AND {high}"
        if kind == "in":
            type_ = rng.choice(["int", "float", "string", "bool"])
            listed = ", ".join(self.literal(type_) for _ in range(rng.randint(1, 4)))
            return f"{self.value('number' if type_ in ('int', 'float') else type_, 1)} {negated}IN ({listed})"
        if kind in ("null", "missing"):
            test = f"IS {negated}{kind.upper()}"
            if kind == "missing" or rng.random() < 0.5:
                return f"{self.name(rng.choice([*self.known(), 'tags', 'items', 'scores']))} {test}"
            return f"{self.value('number', 1)} {test}"
        if kind == "network":
            return f"{self.name('ip')} {negated}IN NETWORK '{rng.choice(NETWORKS)}'"
        if kind == "inside":
            place = rng.choice(["lat, lon", "lat, lon", "x, y", "1, lon", "0.5, 0.5"])
            return f"INSIDE({place}, '{rng.choice(AREAS)}')"
        if kind == "far":
            centre = rng.choice(["48.85, 2.35", "0, 180", "90, 0", "-89.9, 20", "1.0, 1.0", "lat, 2"])
            metres = rng.choice(["5000", "100000.0", "1e6", "2e7", "1", "0.0", "-1"])
            return f"DISTANCE(lat, lon, {centre}) {rng.choice(['<=', '<', '>', '>='])} {metres}"
        if kind == "element":
            return self.element_test()
        if kind == "exists":
            if self.fields is not None:
                return "ok"
            return f"EXISTS({self.name('items')} WHERE {Writer(rng, ITEM, self.old).predicate(1)})"
        return f"({self.condition(0)}) {rng.choice(['=', '<>', '<'])} {self.value('bool', 0)}"

    def comparison(self, type_: str) -> str:
        sign = self.rng.choice(["=", "<>", "<", "<=", ">", ">="])
        return f"{self.value(type_, 2)} {sign} {self.value(type_, 1)}"

    def text_test(self) -> str:
        rng, negated = self.rng, self.rng.choice(["", "", "NOT "])
        if rng.random() < 0.3:
            return f"{negated}REGEXP '{rng.choice(EXPRESSIONS)}'"
        escape = " ESCAPE '!'" if rng.random() < 0.3 else ""
        return f"{negated}{rng.choice(['LIKE', 'ILIKE'])} '{rng.choice(PATTERNS)}'{escape}"

    def element_test(self) -> str:
        rng = self.rng
        lists = {"tags": "string", "scores": "int", "deep.list": "float", "items.sku": "string", "items.price": "float"}
        lists |= {"items.size.w": "int", "items.tags": "string", "flags": "bool"}
        if self.fields is not None:
            lists = {"tags": "string", "scores": "int"}
        name = rng.choice(list(lists))
        of, type_ = f"{rng.choice(['ANY', 'ALL'])}({self.name(name)})", lists[name]
        negated, kind = rng.choice(["", "NOT "]), rng.random()
        if kind < 0.15:
            return f"{of} IS {negated}NULL"
        if kind < 0.3:
            return f"{of} {negated}IN ({self.literal(type_)}, {self.literal(type_)})"
        if type_ == "string" and kind < 0.6:
            return f"{of} {self.text_test()}"
        if type_ == "bool" and kind < 0.5:
            return of
        sign = rng.choice(["=", "<>", "<", "<=", ">", ">="])
        other = self.value("number" if type_ in ("int", "float") else type_, 0)
        return f"{of} {sign} {other}" if rng.random() < 0.8 else f"{other} {sign} {of}"

    def known(self) -> list[str]:
        return [name for name, type_ in TYPES.items() if isinstance(type_, str) and not type_.endswith("[]")]

    def name(self, name: str) -> str:
        """A name as it is written, sometimes that of the old image."""
        parts = [part if part.isidentifier() else f'"{part}"' for part in name.split(".")]
        image = self.rng.choice(["OLD.", "NEW.", "old."]) if self.old and self.rng.random() < 0.15 else ""
        if not image and self.rng.random() < 0.1:
            return '"' + name + '"'
        return image + ".".join(parts)

    def attribute(self, *types: str) -> str:
        if self.fields is not None and self.rng.random() < 0.7:
            own = [name for name, type_ in self.fields.items() if type_ in types]
            if own:
                return self.rng.choice(own)
        names = [name for name, type_ in TYPES.items() if isinstance(type_, str) and type_ in types]
        return self.name(self.rng.choice(names))

    def value(self, type_: str, depth: int) -> str:
        rng = self.rng
        kind = rng.random()
        if type_ == "number":
            if depth == 0 or kind < 0.3:
                return self.literal(rng.choice(["int", "float"])) if kind < 0.12 else self.attribute("int", "float")
            if kind < 0.75:
                op = rng.choice(["+", "-", "*", "/", "%"])
                one, two = self.value(type_, depth - 1), self.value(type_, depth - 1)
                return f"({one}) {op} ({two})" if rng.random() < 0.7 else f"{one} {op} {two}"
            if kind < 0.82:
                return f"-({self.value(type_, depth - 1)})"
            if kind < 0.92:
                return f"{rng.choice(['ABS', 'ROUND', 'FLOOR', 'CEIL', 'round'])}({self.value(type_, depth - 1)})"
            lists = ["tags", "scores", "items", "flags"] if self.fields is None else ["tags", "items"]
            functions = [f"LENGTH({self.name(rng.choice(lists))})", f"LENGTH({self.value('string', 0)})"]
            zone = rng.choice(["", f", '{rng.choice(ZONES)}'"])
            functions.append(f"INT({self.value(rng.choice(['string', 'bool']), 0)})")
            functions.append(f"{rng.choice(['HOUR', 'DAY_OF_WEEK'])}({self.value('timestamp', 0)}{zone})")
            return rng.choice(functions)
        if type_ == "string":
            if depth and kind < 0.4:
                if kind < 0.1:
                    return f"STRING({self.attribute('int', 'bool', 'timestamp')})"
                return f"{rng.choice(['LOWER', 'UPPER'])}({self.value(type_, depth - 1)})"
            return self.literal(type_) if kind < 0.5 else self.attribute(type_)
        if type_ == "timestamp":
            if depth and kind < 0.4:
                return f"{self.value(type_, 0)} {rng.choice('+-')} INTERVAL '{rng.choice(LENGTHS)}'"
            return "NOW()" if kind < 0.5 else self.literal(type_) if kind < 0.65 else self.attribute(type_)
        if type_ == "interval":
            if kind < 0.4:
                return f"{self.attribute('timestamp')} - {self.value('timestamp', 0)}"
            length = f"INTERVAL '{rng.choice(LENGTHS)}'"
            return f"{length} * {rng.choice(['2', '-1', self.attribute('int')])}" if kind < 0.6 else length
        if kind < 0.1:
            return f"BOOL({self.attribute('int', 'string')})"
        return self.literal("bool") if kind < 0.4 else self.attribute("bool")

    def literal(self, type_: str) -> str:
        value = self.rng.choice([one for one in pool(type_) if one != math.inf])
        if type_ == "bool":
            return "TRUE" if value else "FALSE"
        if type_ == "string":
            return f"'{value}'"
        return f"TIMESTAMP '{value.replace(tzinfo=None).isoformat(' ')}'" if type_ == "timestamp" else repr(value)
