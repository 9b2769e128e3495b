"""What one subscription may take on one event: counted alike everywhere, and nobody else notices where it runs out."""

from __future__ import annotations

import pickle
import random
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import hitbox
from hitbox import Exchange, Index, Limits
from hitbox.encoding.arrays import I32, I64
from hitbox.encoding.documents import open_elements
from hitbox.errors import HitboxError, TooExpensive, ValueProblem
from hitbox.index.match_budget import MatchBudget, UsedUp
from hitbox.language import evaluate, parse
from hitbox.language.steps import OutOfSteps, Steps
from support.random_documents import SCHEMA, Writer, nested, random_image
from support.tiers import only

LISTS: dict[str, Any] = {
    "a": [{"x": "int"}],
    "b": [{"y": "int"}],
    "n": "int[]",
    "text": "string",
    "name": "string",
    "price": "float",
}
PAIRS = "EXISTS(a WHERE EXISTS(b WHERE y * x = -5))"
"""Python evaluates it for each pair."""
ALL_PAIRS = {"a": [{"x": number} for number in range(2000)], "b": [{"y": number} for number in range(2000)]}
FEW = {"a": [{"x": 1}], "b": [{"y": -5}]}


class Accounts(MatchBudget):
    """Notes what each look has taken."""

    counts = True

    def __init__(self, steps: int = 10**12):
        super().__init__(steps, lambda problem: self.problems.append(problem))
        self.problems: list[TooExpensive] = []
        self.taken: dict[tuple[Any, int | None], int] = {}
        self.asked: list[tuple[Any, int | None]] = []

    def allowed(self, id: Any, event: int | None) -> int:
        self.asked.append((id, event))
        return super().allowed(id, event)

    def took(self, id: Any, event: int | None, steps: int) -> None:
        self.taken[id, event] = self.taken.get((id, event), 0) + steps


def made(texts: dict[str, str], steps: int = 20_000, schema: Any = LISTS, matcher: str = "auto") -> Index:
    index = Index(schema, matcher, limits=Limits(match_steps=steps))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hitbox.HitboxWarning)
        for id, text in texts.items():
            index.subscribe(id, text)
    return index


def steps_of(text: str, event: dict[str, Any], schema: Any = LISTS) -> int:
    accounts = Accounts()
    made({"s": text}, schema=schema).match(event, budget=accounts)
    assert not accounts.problems
    return accounts.taken.get(("s", None), 0)


@pytest.mark.parametrize("matcher", ["hitbox", "brute"])
def test_pairs_of_long_lists_are_an_error_that_names_the_subscription(matcher: str) -> None:
    index = made({"bad": PAIRS, "good": "EXISTS(a WHERE x = 3)", "other": "price > 3"}, matcher=matcher)
    assert sorted(index.match(FEW)) == ["bad"]
    for call in (index.match, index.match_array, lambda event: list(index.match_levels(event))):
        with pytest.raises(
            TooExpensive, match=r"subscription 'bad' is too expensive: 20,000 steps .* this event"
        ) as caught:
            call(ALL_PAIRS)
        assert (caught.value.id, caught.value.event, caught.value.steps) == ("bad", None, 20_000)
    for old, new in ((ALL_PAIRS, FEW), (FEW, ALL_PAIRS)):
        with pytest.raises(TooExpensive):
            index.match_change(old, new)
    with pytest.raises(TooExpensive) as caught:
        index.match_batch([FEW, {}, ALL_PAIRS])
    assert caught.value.event == 2
    assert "event 2 of the batch" in str(caught.value)
    assert isinstance(caught.value, HitboxError)


def test_the_error_travels_between_processes() -> None:
    again = pickle.loads(pickle.dumps(TooExpensive("a", 7, 5000)))
    assert (again.id, again.event, again.steps) == ("a", 7, 5000)
    assert str(again) == str(TooExpensive("a", 7, 5000))


@pytest.mark.parametrize("matcher", ["hitbox", "brute"])
def test_a_report_beside_the_result(matcher: str) -> None:
    texts = {"bad": PAIRS, "good": "EXISTS(a WHERE x = 3)", "late": "EXISTS(b WHERE y = 1999)", "text": "price > 3"}
    index = made(texts, matcher=matcher)
    problems: list[TooExpensive] = []
    assert sorted(index.match(ALL_PAIRS, on_expensive=problems.append)) == ["good", "late"]
    assert sorted(index.match_array(ALL_PAIRS, on_expensive=problems.append).to_pylist()) == ["good", "late"]
    assert [(one.id, one.event) for one in problems] == [("bad", None)] * 2
    problems.clear()
    events = [FEW, ALL_PAIRS, {"price": 4.0}, ALL_PAIRS | {"price": 5.0}]
    found = index.match_batch(events, on_expensive=problems.append)
    assert [sorted(found[at]) for at in range(4)] == [["bad"], ["good", "late"], ["text"], ["good", "late", "text"]]
    assert [(one.id, one.event) for one in problems] == [("bad", 1), ("bad", 3)]


def test_events_keep_their_numbers_when_a_batch_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hitbox.index.matching, "FIRST_CHUNK", 2)
    monkeypatch.setattr(hitbox.index.matching, "CHUNK", 3)
    index, accounts = made({"bad": PAIRS}), Accounts(20_000)
    events = [ALL_PAIRS if number % 4 == 3 else FEW for number in range(12)]
    found = index.match_batch(events, budget=accounts)
    assert [list(found[at]) for at in range(12)] == [[] if at % 4 == 3 else ["bad"] for at in range(12)]
    assert [one.event for one in accounts.problems] == [3, 7, 11]
    accounts = Accounts(20_000)
    table = pa.table({name: [event[name] for event in events] for name in ("a", "b")})
    matches, levels = index.match_with_priorities(table, None, 1, budget=accounts)
    assert matches.offsets.tolist() == found.offsets.tolist()
    assert len(levels) == 9
    assert [one.event for one in accounts.problems] == [3, 7, 11]


def test_only_what_ran_out_is_missing_from_a_change() -> None:
    index, accounts = made({"bad": PAIRS, "old": "ANY(n) = 1", "new": "ANY(n) = 2"}), Accounts(20_000)
    change = index.match_change(FEW | {"n": [1]}, ALL_PAIRS | {"n": [2]}, budget=accounts)
    assert (change.enter, change.leave, change.stay) == (["new"], ["old"], [])
    assert [one.id for one in accounts.problems] == ["bad"]


def test_a_look_that_ran_out_is_reported_once() -> None:
    """With a limit the engine looks again where several boxes belong to one subscription, and after a change a reader
    asks again."""
    index = made({f"bad{number}": f"{PAIRS} AND n IS NOT NULL" for number in range(3)}, steps=500)
    for number in range(60):
        index.subscribe(f"s{number}", f"price > {number} OR n IS NOT NULL OR EXISTS(a WHERE x = {number})")
    accounts, event = Accounts(500), ALL_PAIRS | {"n": [1], "price": 100.0}
    assert len(index.match(event, limit=58, budget=accounts)) == 58
    assert len({one.id for one in accounts.problems}) == len(accounts.problems) <= 3
    index.subscribe("most urgent", "price > 1", priority=9)
    accounts = Accounts(500)
    levels = index.match_levels(event, budget=accounts)
    assert next(levels) == (9, ["most urgent"])
    assert len(next(levels)[1]) == 60
    index.subscribe("more", "price > 2", priority=2)
    assert next(levels) == (2, ["more"])
    assert sorted(one.id for one in accounts.problems) == ["bad0", "bad1", "bad2"]


def test_what_an_event_asks_is_paid_by_the_pair() -> None:
    schema = LISTS | {"tags": hitbox.Attribute("string", role="information")}
    index = Index(schema, limits=Limits(match_steps=2000))
    index.subscribe("long", "price > 1", about={"tags": "ab" * 50_000})
    index.subscribe("short", "price > 1", about={"tags": "abab"})
    problems: list[TooExpensive] = []
    asked = "tags LIKE '%a_a%c_c%' OR tags LIKE '%b_b%'"
    assert index.match({"price": 2.0}, asked, on_expensive=problems.append) == ["short"]
    assert index.match({"price": 2.0}, "tags LIKE '%a_a%'", on_expensive=problems.append) == ["short"]
    assert {one.id for one in problems} == {"long"}


def test_an_exchange_that_cannot_tell_changes_nothing() -> None:
    text = hitbox.Attribute("string", role="information")
    exchange = Exchange({"name": "string", "text": text}, limits=Limits(match_steps=100))
    exchange.subscribe("bad", "name NOT LIKE '%a_c%d%'")
    with pytest.raises(TooExpensive, match="subscription 'bad'"):
        exchange.publish("e", {"name": "ab" * 50_000})
    assert len(exchange.events) == 0
    assert exchange.publish("e", {"name": "ab"}, where="text NOT LIKE '%a_c%d%'") == []
    with pytest.raises(TooExpensive):
        exchange.subscribe("late", "name = 'ab'", about={"text": "ab" * 50_000})
    assert len(exchange.subscriptions) == 1


def test_a_budget_may_say_less_for_some() -> None:
    class Half(Accounts):
        def allowed(self, id: Any, event: int | None) -> int:
            return {"none": 0, "little": 10}.get(id, self.steps)

    texts = {"none": "text LIKE '%a_c%'", "little": PAIRS, "all": f"{PAIRS} OR price > 1"}
    index, budget = made(texts), Half()
    event = {"a": [{"x": 1}] * 9, "b": [{"y": 1}] * 9, "text": "abc", "price": 1.0}
    assert index.match(event, budget=budget) == []
    assert sorted((one.id, one.steps) for one in budget.problems) == [("little", 10), ("none", 0)]
    assert budget.taken["little", None] == 10
    assert budget.taken["all", None] > 81
    assert ("none", None) not in budget.taken


@pytest.mark.parametrize("text", [PAIRS, "ALL(n) > 0 AND ANY(n) < 0 OR price = 5"])
def test_looks_may_share_an_account(text: str) -> None:
    """Natively and in Python: when the account is used up, those that share it run out, and nobody else."""

    class Shared(Accounts):
        def accounts(self, ids: Sequence[Any], event: int | None) -> tuple[I32, I64]:
            return np.array([0 if str(id).startswith("a") else -1 for id in ids], np.int32), self.left

        left = np.array([0], np.int64)

    event = {"a": [{"x": 1}] * 400, "b": [{"y": 1}] * 4, "price": 1.0, "n": [1] * 100_000}
    alone = steps_of(text, event)
    index = made({f"{kind}{number}": text for kind in "ab" for number in range(8)} | {"a": "price = 1"}, 10**6)
    budget = Shared()
    budget.left = np.array([alone * 5 // 2], np.int64)
    assert index.match(event, budget=budget) == ["a"]
    assert {str(one.id)[0] for one in budget.problems} == {"a"}
    assert len(budget.problems) == 6
    assert sum(steps for (id, _), steps in budget.taken.items() if id.startswith("a")) <= alone * 5 // 2
    assert budget.left[0] >= 0
    assert all(budget.taken[f"b{number}", None] == alone for number in range(8))


def test_what_an_event_asks_has_an_end_of_its_own() -> None:
    schema = LISTS | {"tags": hitbox.Attribute("string", role="information")}
    index = Index(schema, limits=Limits(match_steps=2000))
    for number in range(300):
        index.subscribe(f"s{number}", "price > 1", about={"tags": "ab" * 500})
    index.subscribe("short", "price > 1", about={"tags": "abab"}, priority=9)
    problems: list[TooExpensive] = []
    asked = "tags NOT LIKE '%a_c%' AND tags NOT LIKE '%c_c%'"
    found = index.match({"price": 2.0}, asked, on_expensive=problems.append)
    assert found[0] == "short"
    assert len(found) == 101  # each of the others uses up a hundredth
    assert [one.id for one in problems] == [None]
    with pytest.raises(TooExpensive, match="`where` of event 1 of the batch is too expensive: 20,000 steps"):
        index.match_batch([{"price": 0.5}, {"price": 2.0}], where=[asked, asked])
    [again] = [pickle.loads(pickle.dumps(one)) for one in problems]
    assert (str(again), again.id) == (str(problems[0]), None)


@pytest.mark.parametrize(("subscriptions", "ran_out"), [(100, False), (101, True)])
def test_the_last_step_of_what_an_event_asks_may_be_taken(subscriptions: int, ran_out: bool) -> None:
    """Each subscription takes a hundredth: with a hundred of them nothing is left, and all is decided."""
    index = Index(LISTS | {"tags": hitbox.Attribute("string", role="information")}, limits=Limits(match_steps=2000))
    for number in range(subscriptions):
        index.subscribe(f"s{number}", "price > 1", about={"tags": "ab" * 500})
    asked, problems = "tags NOT LIKE '%a_c%' AND tags NOT LIKE '%c_c%'", list[TooExpensive]()
    assert len(index.match({"price": 2.0}, asked, on_expensive=problems.append)) == 100
    assert [one.id for one in problems] == [None] * ran_out


def test_texts_and_lists_are_made_once_per_event(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often the subscriptions are looked at: here together first, and then each with an account."""

    class Together(Accounts):
        together = 10

    calls: list[Any] = []
    right = hitbox.index.resolver.details

    def counted(*args: Any) -> Any:
        calls.append(args)
        return right(*args)

    monkeypatch.setattr(hitbox.index.resolver, "details", counted)
    index = made({"list": "ALL(n) > 0 AND ANY(n) < 0 OR price = 1", "text": "text NOT LIKE '%a_c%d%'"})
    event = {"n": [1] * 20_000, "price": 1.0, "text": "ab" * 2000}
    budget = Together()
    assert sorted(index.match(event, budget=budget)) == ["list", "text"]
    assert min(budget.taken.values()) > 10
    assert len(calls) == 1


@pytest.mark.parametrize("matcher", only(["hitbox"], ["hitbox", "brute"]))
@pytest.mark.parametrize("asked", [None, "tags NOT LIKE '%a_c%'"])
def test_a_call_that_may_take_so_many_steps_in_all(matcher: str, asked: str | None) -> None:
    """It is given up, or its answer is that of a call without this bound."""

    class InAll(Accounts):
        def __init__(self, in_all: int | None, together: int):
            super().__init__(150)
            self.in_all, self.together = in_all, together

    texts = {"few": "ANY(n) = 3", "native": "ALL(n) > 0 AND ANY(n) < 0", "much": "text NOT LIKE '%a_c%d%'"}
    schema = LISTS | {"tags": hitbox.Attribute("string", role="information")}
    index = made(texts | {"python": PAIRS}, schema=schema, matcher=matcher)
    for id, text in [*texts.items(), ("python", PAIRS)]:
        index.subscribe(id, text, about={"tags": "ab" * 20})
    event = {"n": [1, 3] * 1000, "text": "ab" * 1000, "a": [{"x": 1}] * 4, "b": [{"y": -5}] * 4}
    events = [event, {"n": [3]}, event | {"text": "ab" * 20_000}, event]
    where = [asked] * len(events)
    for together in (0, 20, 10_000):
        free = InAll(None, together)
        right = index.match_batch(events, where, budget=free).to_lists()
        assert [(one.id, one.event) for one in free.problems] == [("much", 2)]
        given_up = 0
        for in_all in (*range(1, 3000, 17), 100_000):
            budget = InAll(in_all, together)
            try:
                found = index.match_batch(events, where, budget=budget).to_lists()
            except UsedUp:
                given_up += 1
                assert in_all <= budget.spent < 2 * in_all  # as a native look may be made twice
                continue
            assert budget.spent < in_all
            assert found == right
            assert [(one.id, one.event) for one in budget.problems] == [("much", 2)]
        assert 10 < given_up < 170


def test_no_look_is_made_at_what_is_excluded() -> None:
    texts = {"bad": PAIRS, "worse": PAIRS, "lists": "EXISTS(a WHERE x = 1)", "plain": "price > 3"}
    index, budget = made(texts), Accounts(50)
    budget.excluded = {"bad", "plain"}
    event = {"a": [{"x": x} for x in range(100)], "b": [{"y": 1}], "price": 4.0}
    assert sorted(index.match(event, budget=budget)) == ["lists", "plain"]
    assert [one.id for one in budget.problems] == ["worse"]
    budget = Accounts(50)
    budget.excluded = texts.keys()
    assert sorted(index.match(event, budget=budget)) == ["lists", "plain"]  # keys decide them
    assert not budget.asked
    assert budget.spent == 0


def test_accounts_are_kept_only_where_keys_leave_something_open() -> None:
    index, accounts = made({"s": "price > 3", "t": "price > 3 AND name <> 'x'"}), Accounts()
    assert len(index.match({"price": 4.0, "name": "y"}, budget=accounts)) == 2
    assert not accounts.asked
    assert not accounts.taken


def test_a_report_and_a_budget_exclude_each_other() -> None:
    index = made({"s": "price > 3"})
    with pytest.raises(ValueProblem, match="not both"):
        index.match({}, on_expensive=print, budget=MatchBudget(1))
    with pytest.raises(ValueProblem, match="a function"):
        index.match_batch([{}], on_expensive="yes")  # type: ignore[arg-type]
    for wrong in (0, -1, None, True, 1.5):
        with pytest.raises(HitboxError, match="match_steps is a whole number of at least 1"):
            Limits(match_steps=wrong)  # type: ignore[arg-type]


# ---- what is counted


@pytest.mark.parametrize("seed", range(3))
def test_with_enough_steps_nothing_changes(seed: int) -> None:
    """Whatever the budget is: what is decided is decided as without one, and only what ran out is missing."""
    rng = random.Random(300 + seed)
    texts = {f"s{id}": Writer(rng).predicate(rng.randint(1, 3)) for id in range(120)}
    indexes = [made(texts, steps, SCHEMA) for steps in (10**9, 40, 5)]
    for _ in range(15):
        event = nested(rng, random_image(rng))
        right = {id for id, text in texts.items() if evaluate(indexes[0].parse(text), event) is True}
        for index in indexes:
            problems: list[TooExpensive] = []
            found = set(index.match(event, on_expensive=problems.append))
            assert found == right - {one.id for one in problems}
            assert problems == [] or index.limits.match_steps < 100


GROWING: list[tuple[str, str, Callable[[int], dict[str, Any]]]] = [
    ("pairs", PAIRS, lambda n: {"a": [{"x": 1}] * n, "b": [{"y": 1}] * n}),
    ("all pairs", "NOT EXISTS(a WHERE EXISTS(b WHERE y < x))", lambda n: {"a": [{"x": 5}] * n, "b": [{"y": 6}] * n}),
    ("functions", "EXISTS(a WHERE EXISTS(b WHERE ABS(x - y) + x * y < -1))", lambda n: {"a": [{}] * n, "b": [{}] * n}),
    ("elements", "ALL(n) > 0 AND ANY(n) < 0", lambda n: {"n": [1] * n * n * 64}),
    ("lower case", "EXISTS(a WHERE LOWER(text) = 'x')", lambda n: {"text": "é" * n * n * 8, "a": [{}]}),
    ("nested functions", "LOWER(UPPER(LOWER(text))) = 'x'", lambda n: {"text": "é" * n * n * 8}),
    ("regular expression", "text REGEXP 'a[bc]{5}d'", lambda n: {"text": "abc" * n * n}),
    (
        "wildcards",
        "EXISTS(a WHERE x = 1 AND text LIKE '%a_c%d_f%')",
        lambda n: {"text": "abc" * n * n, "a": [{"x": 1}]},
    ),
    (
        "comparisons",
        "EXISTS(a WHERE text < name OR x > 1)",
        lambda n: {"a": [{}] * n, "text": "y" * n * 999, "name": "x"},
    ),
]


@pytest.mark.parametrize(("text", "event"), [one[1:] for one in GROWING], ids=[one[0] for one in GROWING])
def test_steps_grow_with_the_work(text: str, event: Callable[[int], dict[str, Any]]) -> None:
    few, many = steps_of(text, event(20)), steps_of(text, event(40))
    assert few >= 20
    assert 3 * few <= many <= 5 * few


def test_native_code_and_python_count_alike() -> None:
    """Of the same condition: Python takes more steps for an element, as it takes longer, but not by magnitudes."""
    event = {"n": [1] * 100_000}
    native = steps_of("ALL(n) > 0 AND ANY(n) < 0", event)
    steps = Steps()
    evaluate(parse("ALL(n) > 0 AND ANY(n) < 0", Index(LISTS).schema), event, None, steps)
    assert 1000 < native < steps.taken < 1000 * native


def test_what_is_decided_takes_no_more_steps() -> None:
    first = {"a": [{"x": 5}] + [{"x": 1}] * 1000, "b": [{"y": -1}] + [{"y": 1}] * 1000}
    assert steps_of(PAIRS, first) < 20
    assert steps_of("EXISTS(a WHERE x > 0 OR EXISTS(b WHERE y = x))", first) < 20
    assert steps_of("EXISTS(a WHERE x < 0 AND EXISTS(b WHERE y = x)) OR price > 1", first) < 5000


def test_evaluation_stops_by_itself() -> None:
    tree = parse(PAIRS, Index(LISTS).schema)
    steps = Steps(1000)
    with pytest.raises(OutOfSteps, match="more than 1,000 steps"):
        evaluate(tree, ALL_PAIRS, None, steps)
    assert steps.taken == 1000
    interval = parse("price > 3 AND EXISTS(a WHERE EXISTS(b WHERE y * x = -5))", Index(LISTS).schema)
    with pytest.raises(OutOfSteps):
        evaluate(interval, ALL_PAIRS | {"price": (1, 5)}, None, Steps(1000))


@pytest.mark.parametrize("text", ["text REGEXP 'x.{900}y'", "EXISTS(a WHERE x = 1 AND text LIKE '%a_a_b%')"])
def test_a_megabyte_of_text(text: str) -> None:
    """It is not even begun where it may take longer than it is allowed to."""
    event = {"text": "xa" * 500_000, "a": [{"x": 1}]}
    index = made({"bad": text, "plain": "text LIKE '%b%' OR text LIKE '%ax%'", "good": "ANY(n) = 1 OR price IS NULL"})
    problems: list[TooExpensive] = []
    assert sorted(index.match(event, on_expensive=problems.append)) == ["good", "plain"]
    assert [one.id for one in problems] == ["bad"]


def test_many_patterns_times_a_long_text() -> None:
    patterns = " AND ".join(f"text NOT LIKE '%{number}x%y%'" for number in range(500))
    event = {"text": "ab" * 50_000}
    accounts = Accounts()
    assert made({"s": patterns}).match(event, budget=accounts) == ["s"]
    assert 40_000 < accounts.taken["s", None] < 100_000  # a kilobyte per step
    with pytest.raises(TooExpensive):
        made({"s": patterns}).match(event)


def test_long_texts_that_are_no_addresses() -> None:
    index = Index({"ip": "string", "a": [{"ip": "string"}]}, limits=Limits(match_steps=10_000))
    index.subscribe("s", "ANY(a.ip) IN NETWORK '10.0.0.0/8'")
    assert index.match({"a": [{"ip": "1." * 500_000}, {"ip": ":" * 500_000}, {"ip": "10.0.0.1"}]}) == ["s"]


def test_lists_of_an_open_index_are_not_copied() -> None:
    """Each test of a list inside EXISTS asks for it, and may need its first element only."""
    values = [1] * 1000
    assert open_elements({"a": {"t": values}}, ("a", "t")) is values
    visited: list[int] = []
    assert open_elements({"t": frozenset([1, 2])}, ("t",), visited.append) == [1, 2]
    assert visited == [2]
