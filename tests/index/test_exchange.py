"""Exchange: both sides filter, both sides are kept. The judge is the language, asked pair by pair."""

from __future__ import annotations

import copy
import doctest
import threading
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from hitbox import Attribute, Exchange, HitboxError, Index, Schema, workloads
from hitbox.encoding.arrays import Space
from hitbox.errors import (
    MatcherError,
    NeverMatches,
    SchemaError,
    UnknownAttribute,
    UnknownEvent,
    UnknownSubscription,
    ValueProblem,
)
from hitbox.index import changing
from hitbox.language import evaluate, parse
from hitbox.matchers import make, matchers
from support import predicates
from support.tiers import only

JOBS = Schema(
    {
        "salary": "int",
        "location": "string",
        "age": Attribute("int", role="information"),
        "skill": Attribute("string", role="information"),
    }
)
TAKES_INTERVALS = [name for name in matchers() if make(name, Space.of(1)).intervals]
Offer = tuple[dict[str, Any], str | None]
"""What a side says about itself, and what it asks of the other."""


def suits(schema: Schema, asked: str | None, values: dict[str, Any]) -> bool:
    return evaluate(parse(asked or "TRUE", schema), {n: v for n, v in values.items() if v is not None}) is True


def meet(schema: Schema, event: Offer, subscription: Offer) -> bool:
    return suits(schema, subscription[1], event[0]) and suits(schema, event[1], subscription[0])


# ---- the example of the paper


def test_recruitment_example() -> None:
    exchange = Exchange(JOBS)
    seeker: dict[str, Any] = {"where": "salary > 500 AND location = 'Paris'", "about": {"age": 25}}
    offer = {"salary": (400, 600), "location": "Paris"}
    assert exchange.subscribe("S1", **seeker) == []
    assert exchange.publish("E1", offer, where="age > 30") == []  # 25 is too young
    assert exchange.publish("E2", offer, where="age > 18") == ["S1"]
    assert exchange.publish("E3", {"salary": (300, 400), "location": "Paris"}, where="age > 18") == []
    assert exchange.subscribe("S2", seeker["where"], about={"age": 31}) == ["E1", "E2"]
    assert exchange.subscribe("S3", seeker["where"]) == []  # who does not say his age is not older than 18
    assert exchange.subscribe("S4", about={"age": (16, 20)}) == ["E2", "E3"]
    assert list(exchange.events) == ["E1", "E2", "E3"]
    assert len(exchange.subscriptions) == 4
    assert "S4" in exchange.subscriptions
    assert "S4" not in exchange.events


def test_who_asks_nothing_takes_everybody() -> None:
    exchange = Exchange(JOBS)
    assert exchange.subscribe(1) == []
    assert exchange.publish(1, {}) == [1]
    assert exchange.publish(2, {}, where="age IS NULL") == [1]
    assert exchange.publish(3, {}, where="age IS NOT NULL") == []
    assert exchange.subscribe(2, "salary IS NULL", about={"age": 4}) == [1, 3]


def test_most_urgent_first_and_oldest_first() -> None:
    exchange = Exchange(JOBS)
    for id, priority in [("low", 1), ("high", 9), ("middle", 5)]:
        exchange.subscribe(id, "salary > 0", priority=priority)
    assert exchange.publish("z", {"salary": 1}) == ["high", "middle", "low"]
    exchange.publish("a", {"salary": 2})
    exchange.publish("m", {"salary": 3})
    assert exchange.subscribe("new") == ["z", "a", "m"]
    exchange.publish("z", {"salary": 4})  # published again: the youngest
    assert exchange.subscribe("new", "salary > 1") == ["a", "m", "z"]


def test_replacing_either_side() -> None:
    exchange = Exchange(JOBS)
    exchange.subscribe("s", "salary > 500", about={"age": 25})
    assert exchange.publish("e", {"salary": 100}) == []
    assert exchange.subscribe("s", "salary > 50", about={"age": 40}) == ["e"]
    assert exchange.publish("e", {"salary": 100}, where="age < 30") == []
    assert exchange.publish("e", {"salary": 100}, where="age > 30") == ["s"]
    exchange.withdraw("e")
    exchange.unsubscribe("s")
    assert len(exchange.events) == len(exchange.subscriptions) == 0
    assert exchange.publish(7, {"salary": 100}) == []  # an empty side may change the type of its ids


# ---- against the language, for every matcher that takes intervals


MIXED = Schema(
    {
        name: Attribute(a.type, role="information" if name in ("j", "y", "odd name", "ts") else "criteria")
        for name, a in predicates.SCHEMA.items()
    }
)


@cache
def script(seed: int) -> list[tuple[str, int, Offer, list[int]]]:
    """(side, id, offer, who must be reported) of a random mixed load in the whole language."""
    rng = Random(seed)
    sides: dict[str, dict[int, Offer]] = {"event": {}, "subscription": {}}
    tells = {"event": MIXED.with_role("criteria"), "subscription": MIXED.with_role("information")}
    steps = []
    for _ in range(70):
        side, other = rng.sample(sorted(sides), 2)
        about = predicates.random_interval_event(rng, rng.sample(tells[side], rng.randint(1, 4)))
        asked = None if rng.random() < 0.1 else predicates.random_predicate(rng, tells[other], depth=2)
        id, offer = rng.randrange(30), (about, asked)
        pairs = {one: (offer, its) if side == "event" else (its, offer) for one, its in sides[other].items()}
        steps.append((side, id, offer, [one for one, pair in pairs.items() if meet(MIXED, *pair)]))
        sides[side][id] = offer
    return steps


@pytest.mark.parametrize("name", TAKES_INTERVALS)
@pytest.mark.parametrize("seed", only([0], range(6)))
@pytest.mark.filterwarnings("ignore::hitbox.errors.NeverMatches")
def test_equals_the_language_pair_by_pair(name: str, seed: int) -> None:
    exchange = Exchange(MIXED, matcher=name)
    for number, (side, id, (about, asked), want) in enumerate(script(seed)):
        if side == "event":
            got = exchange.publish(id, about, where=asked)
        else:
            got = exchange.subscribe(id, asked, about=about)
        assert sorted(got) == sorted(want), f"step {number}: {side} {about} asks {asked}"


@pytest.mark.parametrize("name", [name for name in TAKES_INTERVALS if name != "brute"])
@pytest.mark.parametrize("way", only([True], [False, True]))
def test_matchers_equal_brute_on_the_papers_workload(name: str, way: bool) -> None:
    work = workloads.get("symmetric", n=1500, m=6, information=3, selectivity=0.02, used=0.8, swapped=way)
    boxes, points = work.boxes(0, work.n), work.points(0, 40)
    numbers = np.arange(work.n)
    found = []
    for one in (name, "brute"):
        matcher = make(one, work.space)
        matcher.insert(numbers, boxes)
        matcher.delete(numbers[::3])
        matcher.insert(numbers[::6], boxes.take(numbers[::6]))
        hits = matcher.match(points)
        found.append([sorted(hits[i].tolist()) for i in range(len(points))])
    assert found[0] == found[1]
    assert sum(map(len, found[1])) > 100


@pytest.mark.parametrize("name", TAKES_INTERVALS)
def test_asymmetric_use_is_the_index(name: str) -> None:
    rng = Random(3)
    names = list(predicates.SCHEMA)
    exchange, plain = Exchange(predicates.SCHEMA, matcher=name), Index(predicates.SCHEMA, matcher=name)
    for id in range(60):
        where, priority = predicates.random_predicate(rng, names, depth=1), rng.randrange(10)
        try:
            plain.subscribe(id, where, priority=priority)
        except NeverMatches:
            continue
        exchange.subscribe(id, where, priority=priority)
    for number in range(60):
        event = predicates.random_event(rng, names)
        got, want = exchange.publish(f"e{number}", event), plain.match(event)
        assert sorted(got) == sorted(want)
        assert [plain.priority(id) for id in got] == [plain.priority(id) for id in want]


# ---- a mixed load against a plain dict

WHERE = [None, "salary > 3", "salary BETWEEN 2 AND 4 OR location = 'a'", "location LIKE '%b' AND salary <> 2"]
ASKED = [
    None,
    "age >= 3",
    "age IN (1, 4) OR skill IS NULL",
    "skill LIKE '_b%' OR age = 0",
    "skill > 'a' AND skill < 'b'",
]
SALARY = st.one_of(st.none(), st.integers(0, 5), st.tuples(st.integers(0, 2), st.integers(2, 5)))
WORDS = st.sampled_from([None, "a", "ab", "b", "cb", ("a", "b")])


class MixedLoad(RuleBasedStateMachine):
    @initialize(max_events=st.sampled_from([None, 3]), max_age=st.sampled_from([None, 5]))
    def start(self, max_events: int | None, max_age: int | None) -> None:
        self.now, self.max_events, self.max_age = 0.0, max_events, max_age
        self.exchange = Exchange(JOBS, max_events=max_events, max_age=max_age, clock=lambda: self.now)
        self.subscriptions: dict[int, Offer] = {}
        self.events: dict[int, tuple[Offer, float]] = {}

    @rule(id=st.integers(0, 5), where=st.sampled_from(WHERE), age=SALARY, skill=WORDS)
    def subscribe(self, id: int, where: str | None, age: Any, skill: Any) -> None:
        offer = ({"age": age, "skill": skill}, where)
        want = [event for event, (its, _) in self.events.items() if meet(JOBS, its, offer)]
        assert self.exchange.subscribe(id, where, about=offer[0]) == want
        self.subscriptions[id] = offer

    @rule(id=st.integers(0, 5), where=st.sampled_from(ASKED), salary=SALARY, location=WORDS)
    def publish(self, id: int, where: str | None, salary: Any, location: Any) -> None:
        offer = ({"salary": salary, "location": location}, where)
        want = [one for one, its in self.subscriptions.items() if meet(JOBS, offer, its)]
        assert sorted(self.exchange.publish(id, offer[0], where=where)) == sorted(want)
        self.events.pop(id, None)
        self.events[id] = offer, self.now
        if self.max_events:
            self.events = dict(list(self.events.items())[-self.max_events :])

    @rule(id=st.integers(0, 5))
    def withdraw(self, id: int) -> None:
        if self.events.pop(id, None):
            self.exchange.withdraw(id)
        else:
            with pytest.raises(UnknownEvent):
                self.exchange.withdraw(id)

    @rule(id=st.integers(0, 5))
    def unsubscribe(self, id: int) -> None:
        if self.subscriptions.pop(id, None):
            self.exchange.unsubscribe(id)
        else:
            with pytest.raises(UnknownSubscription):
                self.exchange.unsubscribe(id)

    @rule(seconds=st.integers(1, 4))
    def wait(self, seconds: int) -> None:
        self.now += seconds
        if self.max_age:
            self.events = {id: kept for id, kept in self.events.items() if self.now - kept[1] < self.max_age}

    @rule(event=st.integers(0, 5), subscription=st.integers(0, 5))
    def explain(self, event: int, subscription: int) -> None:
        if event in self.events and subscription in self.subscriptions:
            offer = self.events[event][0]
            reasons = self.exchange.explain(event, subscription)
            assert reasons.matched == meet(JOBS, offer, self.subscriptions[subscription])

    @invariant()
    def holds_the_same(self) -> None:
        assert sorted(self.exchange.events) == sorted(self.events)
        assert sorted(self.exchange.subscriptions) == sorted(self.subscriptions)


MixedLoad.TestCase.settings = settings(
    max_examples=settings.default.max_examples * 6 // 10,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestMixedLoad = MixedLoad.TestCase


# ---- expiry


def test_expiry_by_age() -> None:
    now = [0.0]
    exchange = Exchange(JOBS, max_age=timedelta(minutes=1), clock=lambda: now[0])
    exchange.publish("a", {"salary": 1})
    now[0] = 30
    exchange.publish("b", {"salary": 1})
    assert exchange.subscribe("s") == ["a", "b"]
    now[0] = 59.9
    assert exchange.subscribe("s") == ["a", "b"]
    now[0] = 60
    assert exchange.subscribe("s") == ["b"]
    with pytest.raises(UnknownEvent, match="'a'; it may have expired"):
        exchange.withdraw("a")
    exchange.publish("b", {"salary": 2})  # begins anew
    now[0] = 119
    assert list(exchange.events) == ["b"]
    now[0] = 120
    assert len(exchange.events) == 0
    assert "b" not in exchange.events
    assert len(exchange.subscriptions) == 1  # subscriptions stay


def test_expiry_by_count() -> None:
    exchange = Exchange(JOBS, max_events=3)
    for number in range(10):
        exchange.publish(number, {"salary": number})
        assert len(exchange.events) == min(number + 1, 3)
    assert exchange.subscribe("s") == [7, 8, 9]
    exchange.publish(7, {"salary": 7})  # replaced, none too many
    assert exchange.subscribe("s") == [8, 9, 7]
    exchange.withdraw(9)
    exchange.publish(11, {"salary": 0})
    assert exchange.subscribe("s") == [8, 7, 11]


@pytest.mark.parametrize("wrong", [None, "12:00", True, float("nan"), float("inf"), timedelta(seconds=3)])
def test_a_clock_that_returns_no_number(wrong: Any) -> None:
    """It is an error that says so, and changes nothing."""
    times: list[Any] = [5.0]
    exchange = Exchange(JOBS, max_age=10, clock=lambda: times[-1])
    exchange.publish("first", {"salary": 500})
    times.append(wrong)
    for call in (
        lambda: exchange.publish("second", {"salary": 500}),
        lambda: exchange.subscribe("s", "salary > 3"),
        lambda: len(exchange.events),
        lambda: copy.copy(exchange),
    ):
        with pytest.raises(ValueProblem, match="the clock of an exchange returns seconds as a number, not"):
            call()
    times.append(np.float32(6))
    assert list(exchange.events) == ["first"]
    assert list(exchange.subscriptions) == []


def test_many_expire_at_once() -> None:
    now = [0.0]
    exchange = Exchange(JOBS, max_age=1, clock=lambda: now[0])
    for number in range(300):
        exchange.publish(number, {"salary": number})
    now[0] = 0.5
    exchange.publish(1000, {"salary": 1})
    now[0] = 1
    assert exchange.subscribe("s") == [1000]


@pytest.mark.parametrize("wrong", [{"max_events": 0}, {"max_events": 1.5}, {"max_age": 0}, {"max_age": "1h"}])
def test_wrong_limits(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueProblem, match=next(iter(wrong))):
        Exchange(JOBS, **wrong)


# ---- bad input: clear errors, nothing stored

BAD: list[tuple[Callable[[Exchange], object], type[HitboxError], str]] = [
    (lambda x: x.subscribe("n", "age > 30"), UnknownAttribute, "'age' has the role 'information'"),
    (lambda x: x.subscribe("n", "salary > 1", about={"salary": 3}), ValueProblem, "'salary' has the role criteria"),
    (lambda x: x.subscribe("n", about={"age": (40, 30)}), ValueProblem, "swapped: low comes first"),
    (lambda x: x.subscribe("n", about={"age": "old"}), ValueProblem, "'age'"),
    (lambda x: x.subscribe("n", about={"agee": 3}), UnknownAttribute, "did you mean 'age'"),
    (lambda x: x.subscribe("n", about=[("age", 3)]), ValueProblem, "about is a mapping"),  # type: ignore[arg-type]
    (lambda x: x.subscribe("n", "salary >"), HitboxError, "salary >"),
    (lambda x: x.subscribe("n", ""), HitboxError, "empty"),
    (lambda x: x.subscribe("n", priority=10), ValueProblem, "0 to 9"),
    (lambda x: x.subscribe(3), ValueProblem, "ids of type int"),
    (lambda x: x.subscribe("s", "age > 30"), UnknownAttribute, "'age'"),
    (lambda x: x.subscribe("s", about={"age": (40, 30)}), ValueProblem, "swapped"),
    (lambda x: x.publish("n", {"salary": 3}, where="salary > 1"), UnknownAttribute, "'salary' has the role 'criteria'"),
    (lambda x: x.publish("n", {"age": 3}), ValueProblem, "'age' has the role information"),
    (lambda x: x.publish("n", {"salary": (600, 400)}), ValueProblem, "swapped: low comes first"),
    (lambda x: x.publish("n", {"salary": (600, None)}), ValueProblem, "both ends"),
    (lambda x: x.publish("n", {"salary": 3}, where="age > 'x'"), HitboxError, "age"),
    (lambda x: x.publish("n", ["salary"]), ValueProblem, "mapping"),  # type: ignore[arg-type]
    (lambda x: x.publish(3, {"salary": 3}), ValueProblem, "ids of type int"),
    (lambda x: x.publish(None, {"salary": 3}), ValueProblem, "an id is"),  # type: ignore[arg-type]
    (lambda x: x.publish("e", {"salary": (600, 400)}), ValueProblem, "swapped"),
    (lambda x: x.publish("e", {"salary": 3}, where="salary > 1"), UnknownAttribute, "'salary'"),
    (lambda x: x.withdraw("s"), UnknownEvent, "no event has the id 's'"),
    (lambda x: x.unsubscribe("e"), UnknownSubscription, "no subscription has the id 'e'"),
    (lambda x: x.explain("s", "s"), UnknownEvent, "'s'"),
    (lambda x: x.explain("e", "e"), UnknownSubscription, "'e'"),
]


@pytest.mark.parametrize("number", range(len(BAD)))
def test_bad_input_changes_nothing(number: int) -> None:
    call, error, message = BAD[number]
    exchange = Exchange(JOBS)
    exchange.subscribe("s", "salary > 5", about={"age": 35})
    exchange.publish("e", {"salary": 10}, where="age > 30")
    with pytest.raises(error, match=message.replace("(", r"\(")):
        call(exchange)
    assert list(exchange.subscriptions) == ["s"]
    assert list(exchange.events) == ["e"]
    assert exchange.publish("e2", {"salary": 6}, where="age = 35") == ["s"]
    assert exchange.subscribe("s2", "salary = 10", about={"age": 31}) == ["e"]


def test_unknown_role_and_unfit_matcher() -> None:
    with pytest.raises(SchemaError, match="'age': unknown role 'informaton'; did you mean 'information'"):
        Exchange({"age": {"type": "int", "role": "informaton"}})
    with pytest.raises(MatcherError, match="needs intervals; use matcher='hitbox'"):
        Exchange(JOBS, matcher=next(name for name in matchers() if name not in TAKES_INTERVALS))
    with pytest.raises(MatcherError, match="unknown matcher"):
        Exchange(JOBS, matcher="rain")


def test_what_can_never_match_is_kept_with_a_warning() -> None:
    exchange = Exchange(JOBS)
    with pytest.warns(NeverMatches, match="subscription 's' can never match"):
        exchange.subscribe("s", "salary > 3 AND salary < 2")
    with pytest.warns(NeverMatches, match="event 'e' can never match"):
        assert exchange.publish("e", {"salary": 3}, where="age > 3 AND age < 2") == []
    assert list(exchange.events) == ["e"]
    assert exchange.explain("e", "s").event.never


# ---- explain


def test_explain_shows_both_sides_in_one_tree() -> None:
    exchange = Exchange(JOBS)
    exchange.subscribe("S1", "salary > 500 AND location = 'Paris'", about={"age": 25})
    exchange.publish("E1", {"salary": (400, 600), "location": "Paris"}, where="age > 30")
    exchange.publish("E2", {"salary": 450, "location": "Paris"})
    reasons = exchange.explain("E1", "S1")
    assert str(reasons).splitlines() == [
        "no match",
        "✗ AND",
        "|- ✓ what the subscription asks of the event",
        "|  `- ✓ AND",
        "|     |- ✓ salary > 500              salary is 400 to 600",
        "|     `- ✓ location = 'Paris'        location is 'Paris'",
        "`- ✗ what the event asks of the subscription",
        "   `- ✗ age > 30                     age is 25",
        "nearest change of the subscription: age: 25 -> more than 30",
    ]
    told = reasons.to_dict()
    assert not told["matched"]
    assert [side["truth"] for side in told["tree"]["children"]] == ["true", "false"]
    other = exchange.explain("E2", "S1")
    assert other.event.matched
    assert "nearest change of the event: salary: 450 -> more than 500" in str(other)


# ---- threads


@pytest.mark.parametrize("name", ["auto", "brute"])
def test_every_pair_is_reported_once_under_threads(name: str) -> None:
    exchange = Exchange(JOBS, matcher=name)
    reports: Counter[tuple[int, int]] = Counter()
    guard, problems = threading.Lock(), []
    offers: dict[int, Offer] = {n: ({"salary": n % 7, "location": f"p{n % 11}"}, f"age > {n % 5}") for n in range(120)}
    seekers: dict[int, Offer] = {n: ({"age": n % 6}, f"salary > {n % 4} OR location = 'p{n}'") for n in range(120)}

    def publisher(part: int) -> None:
        for n in range(part, 120, 2):
            found = exchange.publish(n, offers[n][0], where=offers[n][1])
            with guard:
                reports.update((n, s) for s in found)

    def subscriber(part: int) -> None:
        for n in range(part, 120, 2):
            found = exchange.subscribe(n, seekers[n][1], about=seekers[n][0])
            with guard:
                reports.update((e, n) for e in found)

    def run(work: Callable[[int], None], part: int) -> None:
        try:
            work(part)
        except Exception as problem:
            problems.append(problem)

    threads = [threading.Thread(target=run, args=(work, part)) for work in (publisher, subscriber) for part in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems
    assert set(reports.values()) == {1}
    assert set(reports) == {(e, s) for e in offers for s in seekers if meet(JOBS, offers[e], seekers[s])}


# ---- nothing piles up


@pytest.mark.exhaustive  # `make test` mixes the same changes in TestMixedLoad
def test_a_long_mixed_load_stays_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers of boxes, slots and strings are used again: what is held depends on what lives, not on what was."""
    monkeypatch.setattr(changing, "MANY_WORDS", 300)
    exchange = Exchange(JOBS, max_events=50)
    rng, sizes = Random(5), []
    kept: dict[str, Offer] = {}
    for n in range(4000):
        name = f"{rng.random():.12f}"
        skills = ", ".join(f"'{name[: rng.randint(5, 12)]}'" for _ in range(rng.randint(1, 3)))
        kept[f"e{n}"] = {"salary": rng.randrange(100), "location": name}, f"skill IN ({skills}) OR age > 90"
        exchange.publish(f"e{n}", kept[f"e{n}"][0], where=kept[f"e{n}"][1])
        offer = {"age": rng.randrange(100), "skill": name}, f"salary < 50 OR location LIKE '{name[:4]}%'"
        exchange.subscribe(n % 40, offer[1], about=offer[0])
        if n % 1000 == 999:
            want = [f"e{k}" for k in range(n - 49, n + 1) if meet(JOBS, kept[f"e{k}"], offer)]
            assert exchange.subscribe(n % 40, offer[1], about=offer[0]) == want
            held = (exchange._events, exchange._subscriptions)
            sizes.append([len(base._state.catalog.owner) for base in held])
            assert all(len(words) <= 1200 for base in held for words in base._state.keys.dictionaries.values())
    assert max(max(size) for size in sizes) < 600


def test_strings_are_forgotten_without_a_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changing, "MANY_WORDS", 20)
    plain = Index({"s": "string"})
    for n in range(100):
        plain.subscribe("moving", f"s = 'w{n:03}'")
        plain.subscribe(f"kept {n % 3}", f"s > 'w{n:03}' AND s <= 'w{n:03}5' OR s LIKE 'q{n}%'")
    assert len(plain._state.keys.dictionaries[0]) < 60
    assert plain.match({"s": "w099"}) == ["moving"]
    assert plain.match({"s": "w0990"}) == ["kept 0"]
    assert plain.match({"s": "q98x"}) == ["kept 2"]
    assert plain.match({"s": "w050"}) == []


# ---- what the exchange stands on


def test_literals_without_labels_meet_ranges_of_strings() -> None:
    """Two unknown strings share one key; a range that lies between them must still be met."""
    base = Index(JOBS)
    base.subscribe("range", "TRUE", about={"skill": ("a", "z")})
    base.subscribe("point", "TRUE", about={"skill": "m"})
    cases = {
        "skill > 'b' AND skill < 'bb'": {"range"},
        "skill > 'b' AND skill < 'm'": {"range"},
        "skill > 'm' AND skill < 'n'": {"range"},
        "skill >= 'm' AND skill < 'n'": {"range", "point"},
        "skill LIKE 'b%' OR skill > 'z'": {"range"},
        "skill < 'a' OR skill > 'z'": set(),
        "skill NOT IN ('m', 'n')": {"range"},
    }
    for where, want in cases.items():
        assert set(base.match({}, where)) == want, where


def test_values_between_the_steps_of_a_grid() -> None:
    """A stored event keeps its place in the order, also where a LIKE has it checked on the tree."""
    schema = Schema(
        {
            "price": Attribute("float", domain=(0, 10), precision=1),
            "size": Attribute("int", domain=(-50, 50), precision=5),
            "name": "string",
            "age": Attribute("int", role="information"),
        }
    )
    exchange = Exchange(schema)
    exchange.publish("between", {"price": 3.5, "size": -7, "name": "xay"})
    exchange.publish("beyond", {"price": 11, "size": -99, "name": "xay"})
    for like in ("", " AND name LIKE '%a%'"):
        assert exchange.subscribe(1, f"price > 3 AND price < 4{like}") == ["between"]
        assert exchange.subscribe(1, f"size > -10 AND size < -5{like}") == ["between"]
        assert exchange.subscribe(1, f"price > 10 AND size < -50{like}") == ["beyond"]
        assert exchange.subscribe(1, f"price >= 4 AND size > -10{like}") == []


def test_a_batch_that_says_nothing_where_there_is_nothing_to_say() -> None:
    """A schema without criteria: a table of events needs no column of it, and their predicates decide."""
    base = Index({"salary": Attribute("int", role="information")})
    base.subscribe(1, "TRUE", about={"salary": 5})
    events = pa.table({"event_id": [1, 2, 3]}).select([])
    assert base.match_batch(events, where=["salary > 3", None, "salary > 7"]).counts.tolist() == [1, 1, 0]


def test_documentation() -> None:
    page = Path(__file__).parents[2] / "docs" / "symmetric.md"
    assert doctest.testfile(str(page), module_relative=False).failed == 0


def test_engine_keeps_two_sided_boxes_where_ranges_are_cheap() -> None:
    work = workloads.get("symmetric", n=5000)
    engine = make("hitbox", work.space)
    engine.insert(np.arange(work.n), work.boxes(0, work.n))
    assert {part["kind"] for part in engine.describe()["segments"]} == {"bitmap"}  # type: ignore[attr-defined]
