"""Subscriptions that take too many steps: they fail alone, and are suspended when that happens too often."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections import OrderedDict
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from hitbox import Schema
from hitbox.broker import admin
from hitbox.broker.access.directory import Predicates
from hitbox.broker.access.principals import Principal
from hitbox.broker.broker import Broker
from hitbox.broker.clock import time
from hitbox.broker.commands.cli import app
from hitbox.broker.delivery.dispatcher import LOOP_STEPS
from hitbox.broker.settings import Options
from hitbox.broker.store.store import Store
from hitbox.broker.subscribers.subscriptions import MATCHES_OF_STEP
from hitbox.broker.subscribers.suspensions import FORGET_SECONDS, MatchCosts, Suspension, Suspensions
from hitbox.broker.upkeep.repair import repair
from hitbox.client import Client, SyncClient
from hitbox.errors import UnknownSubscription
from hitbox.index.match_budget import UsedUp
from hitbox.protocol.errors import StoreFull, Unknown
from support.broker_kit import Listener, item, running, serving, sub, token_of, until

SCHEMA = Schema({"n": "int", "a": [{"x": "int"}], "b": [{"y": "int"}]})
PAIRS = "EXISTS(a WHERE EXISTS(b WHERE y * x = 7919))"
NATIVE = "ALL(a.x) >= 0 AND ANY(a.x) < 0"
"""Native code decides it."""
LARGE: dict[str, Any] = {"n": 1, "a": [{"x": x} for x in range(100)], "b": [{"y": y} for y in range(100)]}
SMALL: dict[str, Any] = {"n": 1, "a": [{"x": 1}], "b": [{"y": 7919}]}
FEW = {"match_steps": 2_000, "principal_steps": 10_000}


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 120))


async def publish(broker: Broker, *events: dict[str, Any]) -> None:
    last = await broker.publish([item(**event) for event in events]) + len(events) - 1
    await until(lambda: broker.tracker.recorded >= last)


def names(listener: Listener) -> list[tuple[int, list[str]]]:
    return [(one["seq"], sorted(one["subscriptions"])) for one in listener.got]


def suspended(broker: Broker) -> list[str]:
    return sorted(broker.registry.suspensions.ids())


def test_who_takes_too_many_steps_fails_alone_and_is_suspended(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with running(tmp_path, SCHEMA, **FEW) as broker:
            await broker.put_subscriber("ann")
            await broker.put_subscriber("bob")
            await broker.subscribe("ann", [sub("bad", PAIRS), sub("good", "n = 1")])
            await broker.subscribe("bob", [sub("lists", "EXISTS(a WHERE x = 99)"), sub("good", "n = 1")])
            ann, bob = await Listener(broker).attach("ann"), await Listener(broker).attach("bob")
            await publish(broker, SMALL)
            for _ in range(3):
                assert suspended(broker) == []
                await publish(broker, LARGE)
            assert suspended(broker) == ["ann/bad"]
            await publish(broker, SMALL, LARGE)
            await until(lambda: len(ann.got) == len(bob.got) == 6)
            good = [(seq, ["good"]) for seq in range(2, 7)]
            assert names(ann) == [(1, ["bad", "good"]), *good]
            assert names(bob) == [(1, ["good"]), *((s, ["good", "lists"] if s != 5 else ["good"]) for s in range(2, 7))]
            assert broker.describe()["too_expensive"] == 3
            assert broker.describe()["suspended"] == 1
            assert broker.describe()["errors"] == 0
            assert not list(broker.problems())

    with caplog.at_level(logging.WARNING, "hitbox.broker"):
        run(scenario())
    assert [one.getMessage() for one in caplog.records] == [
        *(f"subscriptions that took too many steps do not get event {seq}: ann/bad" for seq in (2, 3, 4)),
        "the subscription ann/bad is suspended: too expensive: change it, or resume it",
    ]


def test_a_suspension_lasts_until_the_subscription_is_changed_or_resumed(tmp_path: Path) -> None:
    async def suspend() -> None:
        async with running(tmp_path, SCHEMA, **FEW) as broker:
            await broker.put_subscriber("ann")
            await broker.subscribe("ann", [sub(name, PAIRS) for name in ("changed", "gone", "resumed", "stays")])
            await publish(broker, LARGE, LARGE, LARGE)
            assert len(suspended(broker)) == 4

    async def use() -> None:
        async with running(tmp_path, SCHEMA, **FEW) as broker:
            assert len(suspended(broker)) == 4
            await broker.subscribe("ann", [sub("changed", PAIRS)])
            await broker.subscribe("ann", [], ["gone"])
            await broker.resume_subscription("ann", "resumed")
            assert suspended(broker) == ["ann/stays"]
            ann = await Listener(broker).attach("ann")
            await publish(broker, SMALL, LARGE)
            await until(lambda: names(ann) == [(4, ["changed", "resumed"])])
            with pytest.raises(UnknownSubscription, match="no subscription 'gone'"):
                await broker.resume_subscription("ann", "gone")
            with pytest.raises(Unknown, match="no subscriber 'eve'"):
                await broker.resume_subscription("eve", "s")

    async def remove() -> None:
        async with running(tmp_path, SCHEMA, **FEW) as broker:
            assert suspended(broker) == ["ann/stays"]
            await broker.remove_subscriber("ann")
            assert suspended(broker) == []
            await broker.subscribe("ann", [sub("stays", PAIRS)])
            assert suspended(broker) == []
            assert broker.store.subscribers.suspended.rows() == 0

    for step in (suspend, use, remove):
        run(step())


def test_a_change_that_the_store_refuses_leaves_it_suspended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with running(tmp_path, SCHEMA, **FEW) as broker:
            await broker.put_subscriber("ann")
            await broker.subscribe("ann", [sub("bad", PAIRS)])
            await publish(broker, LARGE, LARGE, LARGE)

            def refuse(changes: Any) -> None:
                raise StoreFull("no room")

            with monkeypatch.context() as patch:
                patch.setattr(broker.store.subscribers, "change", refuse)
                with pytest.raises(StoreFull, match="no room"):
                    await broker.subscribe("ann", [sub("bad", "n = 1")])
            assert suspended(broker) == ["ann/bad"]

    run(scenario())


def test_ephemeral_subscriptions_are_suspended_in_memory(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, SCHEMA, **FEW) as broker:
            tmp = await Listener(broker).attach_ephemeral("tmp", Options("drop_oldest"))
            await broker.subscribe("tmp", [sub("bad", PAIRS), sub("good", "n = 1")])
            await publish(broker, LARGE, LARGE, LARGE)
            await publish(broker, SMALL)
            await until(lambda: names(tmp) == [(seq, ["good"]) for seq in (1, 2, 3, 4)])
            assert suspended(broker) == ["tmp/bad"]
            assert broker.store.subscribers.suspended.rows() == 0
            await broker.resume_subscription("tmp", "bad")
            await publish(broker, SMALL)
            await until(lambda: names(tmp)[-1] == (5, ["bad", "good"]))
            await publish(broker, LARGE, LARGE, LARGE)
            await tmp.leave()
            assert suspended(broker) == []

    run(scenario())


def test_one_principal_pays_for_all_of_its_subscriptions(tmp_path: Path) -> None:
    """Each stays within its own steps, and all together take too many: those that took the most are suspended, one
    after the other, until the others have enough."""

    async def scenario() -> None:
        few = {"match_steps": 100_000, "principal_steps": 150_000, "suspend_after": 1}
        async with serving(tmp_path, SCHEMA, ["a", "b"], **few) as (broker, _):
            for name, owner in (("a.one", "a"), ("a.two", "a"), ("b.one", "b")):
                await broker.put_subscriber(name, owner=owner)
            for name in ("a.one", "a.two"):
                await broker.subscribe(name, [sub(f"s{number}", PAIRS) for number in range(4)])
                await broker.subscribe(name, [sub("cheap", "EXISTS(a WHERE x = 1)"), sub("plain", "n = 1")])
            await broker.subscribe("b.one", [sub("s", PAIRS), sub("plain", "n = 1")])
            b = await Listener(broker).attach("b.one")
            before = -1
            for _ in range(5):
                if before == len(suspended(broker)):
                    break
                before = len(suspended(broker))
                await publish(broker, LARGE)
            left = {id for id in broker.registry.index if id not in broker.registry.suspensions}
            assert {"a.one/plain", "a.two/plain", "a.one/cheap", "a.two/cheap", "b.one/s", "b.one/plain"} <= left
            assert 0 < before < 8
            await publish(broker, SMALL)
            await until(lambda: b.got and b.got[-1]["event"] == SMALL)
            assert names(b)[-1][1] == ["plain", "s"]

    run(scenario())


def test_what_an_event_asks_suspends_nobody(tmp_path: Path) -> None:
    schema = Schema({"n": "int", "text": {"type": "string", "role": "information"}})

    async def scenario() -> None:
        async with running(tmp_path, schema, match_steps=100, principal_steps=200) as broker:
            await broker.put_subscriber("ann")
            await broker.subscribe("ann", [sub("long", "n = 1", text="ab" * 10_000), sub("short", "n = 1", text="ab")])
            ann = await Listener(broker).attach("ann")
            for _ in range(4):
                await broker.publish([item("text NOT LIKE '%a_c%d%'", n=1)])
            await broker.publish([item(n=1)])
            await until(lambda: len(ann.got) == 5)
            assert names(ann) == [*((seq, ["short"]) for seq in (1, 2, 3, 4)), (5, ["long", "short"])]
            assert suspended(broker) == []
            assert broker.describe()["too_expensive"] == 4

    run(scenario())


def test_who_cannot_be_told_of_a_change_is_told_nothing(tmp_path: Path) -> None:
    """One of the two images was too much: whether the document enters or leaves is not known."""

    async def scenario() -> None:
        async with running(tmp_path, SCHEMA, **FEW, suspend_after=0) as broker:
            await broker.put_subscriber("ann", Options(changes=True))
            await broker.put_subscriber("bob")
            for name in ("ann", "bob"):
                await broker.subscribe(name, [sub("bad", PAIRS), sub("good", "n = 1")])
            ann, bob = await Listener(broker).attach("ann"), await Listener(broker).attach("bob")
            await publish(broker, {"old": LARGE, "new": SMALL}, {"old": SMALL, "new": LARGE}, {"old": {}, "new": SMALL})
            await until(lambda: len(ann.got) == len(bob.got) == 3)
            assert [one["changes"] for one in ann.got] == [
                {"good": "stay"},
                {"good": "stay"},
                {"bad": "enter", "good": "enter"},
            ]
            assert [set(one["subscriptions"]) for one in bob.got] == [{"bad", "good"}, {"good"}, {"bad", "good"}]
            assert suspended(broker) == []

    run(scenario())


def test_it_is_shown_wherever_subscriptions_are(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            serving(tmp_path, SCHEMA, ["ann"], **FEW) as (broker, url),
            Client(url, token=token_of("ann")) as client,
        ):
            await client.put_subscriptions("a", [{"name": "bad", "where": PAIRS}, {"name": "good", "where": "n = 1"}])
            found = await client.try_event(LARGE)
            assert (found["count"], found["too_expensive"]) == (1, ["a/bad"])
            await publish(broker, LARGE, LARGE, LARGE)
            every = {one["name"]: one["suspended"] for one in await client.subscriptions()}
            assert every == {"bad": "too expensive", "good": ""}
            assert [one["name"] for one in await client.subscriptions(suspended=True)] == ["bad"]
            why = await client.explain(SMALL, "a/bad")
            assert why["matched"] is False
            assert why["text"].startswith("a/bad is suspended: too expensive; otherwise:\n")
            assert (await client.try_event(SMALL))["count"] == 1
            stats = await client.stats()
            assert (stats["suspended"], stats["too_expensive"]) == (1, 3)
            async with httpx.AsyncClient(headers={"Authorization": f"Bearer {token_of('ann')}"}) as http:
                metrics = (await http.get(f"{url}/metrics")).text
                assert "hitbox_suspended 1.0" in metrics
                assert "hitbox_too_expensive_total 3.0" in metrics
            await asyncio.to_thread(command_line, url)
            assert await client.subscriptions(suspended=True) == []
            assert (await client.try_event(SMALL))["count"] == 2

    def command_line(url: str) -> None:
        runner, options = CliRunner(), ["--url", url, "--token", token_of("ann")]
        listed = runner.invoke(app, ["admin", "subscriptions", "list", "--suspended", *options])
        assert "too expensive" in listed.output
        assert "good" not in listed.output
        resumed = runner.invoke(app, ["admin", "subscriptions", "resume", "a", "bad", *options])
        assert resumed.output == "resumed a/bad\n"
        everything = runner.invoke(app, ["admin", "subscriptions", "list", "--json", *options])
        assert {one["suspended"] for one in json.loads(everything.output)["subscriptions"]} == {""}
        with SyncClient(lambda: Client(url, token=token_of("ann"))) as client:
            client.resume_subscription("a", "bad")
            assert client.subscriptions(suspended=True) == []

    run(scenario())


def test_repair_keeps_suspensions(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "d", SCHEMA, **FEW) as broker:
            await broker.put_subscriber("ann")
            await broker.subscribe("ann", [sub("bad", PAIRS), sub("worse", PAIRS)])
            await publish(broker, LARGE, LARGE, LARGE)

    run(scenario())
    store = Store(tmp_path / "d")
    with store.transaction():
        store.subscribers.subscriptions.delete([(2, "worse"), (1, "worse")])
    store.close()
    store = Store(tmp_path / "d")
    assert store.problems == ["1 suspensions of subscriptions that do not exist (such as 'worse')"]
    store.close()
    repair(tmp_path / "d")
    store = Store(tmp_path / "d")
    assert not store.problems
    assert [row[1] for row in store.subscribers.suspended.scan()] == ["bad"]
    store.close()


def test_failures_are_forgotten_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Suspensions(3)
    for _ in range(2):
        assert found.blame("a/s") is None
    real = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: real() + FORGET_SECONDS + 1)
    for _ in range(2):
        assert found.blame("a/s") is None
    assert found.blame("a/s")
    assert found.blame("a/s") is None
    found.forget(["a/s"])
    assert len(found) == 0
    for _ in range(2):
        assert found.blame("a/s") is None
    assert found.blame("a/s")
    found.forget_subscriber("a")
    assert len(found) == 0
    assert all(Suspensions(0).blame("a/s") is None for _ in range(9))


@pytest.mark.parametrize("fails", [False, True])
def test_what_takes_many_steps_is_matched_beside_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """The first group as well: it is begun on the event loop, given up, and matched in the thread from its beginning.
    What the given up call had found is forgotten, so everything counts once; also where one event cannot be matched."""
    here, beside = list[MatchCosts](), list[MatchCosts]()

    async def scenario() -> None:
        async with running(tmp_path, SCHEMA, match_steps=2_000, principal_steps=10_000, suspend_after=0) as broker:
            await broker.put_subscriber("ann")
            await broker.subscribe("ann", [sub("bad", PAIRS), sub("good", "n > 0", 9), sub("lists", "ANY(a.x) = 99")])
            ann = await Listener(broker).attach("ann", 1000)
            match, levels = broker.registry.match, broker.registry.levels

            def watched(events: Any, where: Any, costs: MatchCosts) -> Any:
                (here if threading.current_thread() is threading.main_thread() else beside).append(costs)
                if fails and any(event["n"] == 77 for event in events):
                    raise ZeroDivisionError
                return match(events, where, costs)

            def first_level(event: Any, *rest: Any) -> Any:
                yield next(levels(event, *rest))
                raise ZeroDivisionError

            monkeypatch.setattr(broker.registry, "match", watched)
            monkeypatch.setattr(broker.registry, "levels", first_level)
            events = [{**(LARGE if n % 2 else SMALL), "n": n} for n in range(1, 151)]
            await publish(broker, *events)
            await until(lambda: len(ann.got) == 150)
            assert ann.seqs() == list(range(1, 151))
            for n, (_, found) in enumerate(names(ann), 1):
                both = ["good"] if fails and n == 77 else ["good", "lists"]
                assert found == (both if n % 2 else ["bad", "good"])
            assert broker.describe()["too_expensive"] == 75 - fails
            await until(lambda: broker.store.events.failed() == [77] * fails)
            assert sum(costs.spent for costs in beside) > 74 * 2_000
            assert max(costs.spent for costs in here) < LOOP_STEPS + 2_000
            before = len(beside)
            await publish(broker, SMALL, SMALL)
            assert len(beside) == before

    run(scenario())


def test_what_principals_may_see_is_found_beside_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its steps count as those of the call that asks for it, also where it is asked who gets what nobody wants. Where
    one principal is asked for, what others may see takes nothing."""
    calls = list[tuple[bool, bool]]()
    names = Predicates.names

    def watched(*of: Any, **named: Any) -> Any:
        here = threading.current_thread() is threading.main_thread()
        try:
            found = names(*of, **named)
        except UsedUp:
            calls.append((here, False))
            raise
        calls.append((here, True))
        return found

    async def scenario() -> None:
        async with running(tmp_path, SCHEMA) as broker:
            directory = broker.directory
            directory.principals["eve"] = Principal(["subscribe"], see=f"NOT {PAIRS}")
            directory.principals["ann"] = Principal(["subscribe"], see="n > 0")
            directory.adopt(directory.compile(SCHEMA))
            await broker.subscribe("e", [sub("s", "n = 1")], owner="eve")
            await broker.put_subscriber("a", Options(unmatched=True), owner="ann")
            eve, ann = await Listener(broker).attach("e"), await Listener(broker).attach("a")
            monkeypatch.setattr(Predicates, "names", watched)
            await publish(broker, LARGE)
            assert calls == [(True, False), (False, True)] * 2
            calls.clear()
            await publish(broker, {**LARGE, "n": 2})
            assert calls == [(False, True), (True, False), (False, True)]
            await until(lambda: eve.seqs() == [1] and ann.seqs() == [1, 2])
            assert "ann" in names(
                directory.predicates, directory.predicates.see, LARGE, "ann", broker.registry.costs(5)
            )

    run(scenario())


class NeverWalked(OrderedDict[str, Any]):
    def __iter__(self) -> Any:
        raise AssertionError("all of them are looked at")

    keys = items = values = __iter__


def test_a_subscriber_is_forgotten_without_a_look_at_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hitbox.broker.subscribers.suspensions.MOST_FAILING", 100)
    found = Suspensions(2)
    found._failures = NeverWalked()
    for name in ("a", "b", "a.b"):
        for number in range(20):
            found.blame(f"{name}/s{number}")
    for number in range(5):
        assert found.blame(f"a/s{number}")
    found.load({"a/loaded": Suspension(1, "too expensive"), "b/loaded": Suspension(1, "too expensive")})
    found.forget_subscriber("a")
    assert list(found.ids()) == ["b/loaded"]
    assert (len(found._failures), set(found._of)) == (40, {"b", "a.b"})
    assert not found.blame("a/s7")
    for number in range(200):  # those that failed longest ago are forgotten
        found.blame(f"c/s{number}")
    assert (len(found._failures), set(found._of)) == (100, {"b", "c"})
    assert found._of["b"] == {"b/loaded"}
    for name in ("b", "c"):
        found.forget_subscriber(name)
    assert (len(found), len(found._failures), found._of) == (0, 0, {})


def test_whose_fault_it_is() -> None:
    costs = MatchCosts(100, 300, lambda id: id.partition("/")[0])
    for id, steps in (("a/alone", 100), ("a/fine", 90), ("b/much", 90), ("b/little", 3), ("b/some", 8), ("c/s", 99)):
        costs.took(id, 0, steps)
    for id in ("a/alone", "b/little", "b/none"):
        costs.exceeded(id, 0, 100)
    assert sorted(costs.blamed()) == [("a/alone", 0), ("b/much", 0)]
    equal = MatchCosts(100, 300, lambda id: "")
    for number in range(5):
        equal.took(f"a/{number}", None, 60)
    equal.exceeded("a/5", None, 100)
    assert len(equal.blamed()) == 5
    assert equal.allowed("a/1", 0) == 100


def test_what_is_suspended_takes_no_steps(tmp_path: Path) -> None:
    """Not even the few that nobody is asked to pay."""

    async def scenario() -> None:
        async with running(tmp_path, SCHEMA, match_steps=5) as broker:
            await broker.put_subscriber("ann")
            await broker.subscribe("ann", [sub("bad", NATIVE), sub("few", "NOT ALL(a.x) > 1"), sub("s", "n = 1")])
            event = {"n": 1, "a": [{"x": 1}] * 2_000}
            await publish(broker, event, event, event)
            assert suspended(broker) == ["ann/bad"]
            costs = broker.registry.costs()
            for found in broker.registry.match([event] * 2, [None] * 2, costs):
                assert sorted(found[4]) == ["ann/few", "ann/s"]
            assert (costs.spent, costs.ran_out) == (4 // MATCHES_OF_STEP, []), "what lists the matches"

    run(scenario())


def test_the_steps_that_nobody_pays_are_no_more_than_a_principal_has(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, SCHEMA, principal_steps=100, suspend_after=0) as broker:
            await broker.put_subscriber("ann")
            await broker.subscribe("ann", [sub(f"s{n}", NATIVE) for n in range(100)])
            await publish(broker, {"a": [{"x": 1}] * 500})
            assert broker.describe()["too_expensive"] > 90

    run(scenario())


def test_a_replay_is_bounded_too(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, SCHEMA, **FEW) as broker:
            await broker.put_subscriber("ann")
            await publish(broker, LARGE, SMALL)
            await broker.subscribe("ann", [sub("bad", PAIRS), sub("good", "n = 1")])
            assert await admin.replay(broker, "ann", 1) == 2
            ann = await Listener(broker).attach("ann")
            await until(lambda: names(ann) == [(1, ["good"]), (2, ["bad", "good"])])

    run(scenario())
