"""Random predicates as text, and events to go with them: small pools, so that literals and values often meet."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from random import Random

from hitbox.encoding.schema import Schema
from hitbox.language.syntax.expressions import literal, quoted

SCHEMA = Schema(
    {
        "i": "int",
        "j": "int",
        "x": "float",
        "y": "float",
        "s": "string",
        "odd name": "string",
        "b": "bool",
        "ts": "timestamp",
    }
)
BIG = 2**53
EXTREMES = [BIG - 1, BIG, BIG + 1, -BIG - 1, 2**63 - 1, -(2**63) + 1]
INTS = [*range(-3, 12), 10**6, *EXTREMES]
FLOATS = [-2.5, -0.0, 0.0, 0.1, 0.5, 1.0, 2.5, 3.0, 3.1, 7.0, 1e6, float(BIG), BIG + 2.0, -1e300, 1e300, 5e-324]
WORDS = ["", "a", "ab", "abc", "abd", "b", "ba", "B", "Ab", "it's", "a%", "a_c", "%", "é", "zz", "a😀", "😀b", "10"]
START = datetime(2026, 1, 31, 12, tzinfo=UTC)
TIMES = [START + timedelta(microseconds=n) for n in (-1, 0, 1, 10**6, 86400 * 10**6, -(10**15))]
POOLS = {"int": INTS, "float": FLOATS, "string": WORDS, "bool": [False, True], "timestamp": TIMES}
DECIMALS = ["-2.5", "-0.0", "0.1", ".5", "1.", "2.50", "3.0", "3.1", "3.5", "1e6", "2.5E-1", "1e300", "-1e300"]


def random_event(rng: Random, names: list[str], missing: float = 0.15) -> dict[str, object]:
    return {n: None if rng.random() < missing else rng.choice(POOLS[SCHEMA[n].type]) for n in names}


def random_interval_event(rng: Random, names: list[str]) -> dict[str, object]:
    event = random_event(rng, names)
    for name, value in event.items():
        if value is not None and rng.random() < 0.5:
            low, high = sorted([value, rng.choice(POOLS[SCHEMA[name].type])])  # type: ignore[type-var]
            event[name] = (low, high)
    return event


def random_predicate(rng: Random, names: list[str], depth: int = 4) -> str:
    """The text of a predicate over `names`: every operator, nested, keywords in any case."""
    kind = rng.random()
    if depth == 0 or kind < 0.35:
        return random_leaf(rng, names)
    if kind < 0.5:
        return f"{_cased(rng, 'NOT')} ({random_predicate(rng, names, depth - 1)})"
    if kind < 0.53:
        return _cased(rng, rng.choice(["TRUE", "FALSE"]))
    op = _cased(rng, rng.choice(["AND", "OR"]))
    parts = [random_predicate(rng, names, depth - 1) for _ in range(rng.choice([2, 2, 2, 3, 5]))]
    return f" {op} ".join(f"({part})" if rng.random() < 0.7 else part for part in parts)


def random_leaf(rng: Random, names: list[str]) -> str:
    name = rng.choice(names)
    type_, written = SCHEMA[name].type, quoted(name)
    choices: list[Callable[[], str]] = [
        lambda: f"{written} {_operator(rng)} {random_literal(rng, type_)}",
        lambda: f"{written}{_operator(rng)}{random_literal(rng, type_)}",
        lambda: f"{random_literal(rng, type_)} {_operator(rng)} {written}",
        lambda: f"{written} {_not(rng)}{_cased(rng, 'BETWEEN')} {_two(rng, type_, ' AND ')}",
        lambda: f"{written} {_not(rng)}{_cased(rng, 'IN')} ({_list(rng, type_)})",
        lambda: f"{written} {_cased(rng, 'IS')} {_not(rng)}{_cased(rng, 'NULL')}",
    ]
    if type_ == "string":
        choices += [lambda: f"{written} {_not(rng)}{_cased(rng, 'LIKE')} {random_pattern(rng)}"] * 4
    if type_ == "bool":
        choices.append(lambda: written)
    return rng.choice(choices)()


def random_literal(rng: Random, type_: str) -> str:
    if type_ in ("int", "float"):
        return rng.choice(DECIMALS) if rng.random() < 0.4 else str(rng.choice(INTS if type_ == "int" else INTS[:-6]))
    return literal(rng.choice(POOLS[type_]))  # type: ignore[arg-type]


def random_pattern(rng: Random) -> str:
    """A LIKE pattern of a few characters, now and then with an escape."""
    pieces = rng.choices(["a", "b", "c", "%", "_", "😀", "é", "''"], [5, 4, 2, 4, 3, 1, 1, 1], k=rng.randint(0, 5))
    if rng.random() < 0.7:
        return f"'{''.join(pieces)}'"
    escaped = [rng.choice(["!%", "!_", "!!", "!a"]) if rng.random() < 0.3 else piece for piece in pieces]
    return f"'{''.join(escaped)}' ESCAPE '!'"


def _operator(rng: Random) -> str:
    return rng.choice(["=", "<>", "!=", "<", "<=", ">", ">="])


def _not(rng: Random) -> str:
    return _cased(rng, "NOT ") if rng.random() < 0.4 else ""


def _two(rng: Random, type_: str, between: str) -> str:
    return between.join(random_literal(rng, type_) for _ in range(2))


def _list(rng: Random, type_: str) -> str:
    return ", ".join(random_literal(rng, type_) for _ in range(rng.randint(1, 5)))


def _cased(rng: Random, word: str) -> str:
    return rng.choice([word, word, word.lower(), word.capitalize()])
