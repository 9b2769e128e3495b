"""The broker's clock: jumps of the system's clock, ahead and back, while the broker runs, is down, and is suspended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path

import pytest

from hitbox.broker import clock as clock_module
from hitbox.broker import metrics
from hitbox.broker.broker import Broker
from hitbox.broker.clock import SETTLE_SECONDS, BrokerClock, Mark, time
from hitbox.broker.events.published_event import PublishedEvent
from hitbox.broker.settings import Settings
from hitbox.client import Client
from support.broker_kit import SCHEMA, Listener, item, running, serving, sub, until

DAY = 86_400.0
NEW_YEAR = 1_767_225_600.0


def run(scenario: Coroutine[None, None, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 180))


class System:
    """The clocks of a machine. `wall`: what its clock says that it is, in seconds since 1970."""

    def __init__(self, patch: pytest.MonkeyPatch, begins: float, runs: Callable[[], float]):
        self.wall, self.up, self.started, self._runs = begins, 1_000.0, "first", runs
        patch.setattr(time, "elapsed_ns", lambda: int((self.up + self._runs()) * 1e9))
        patch.setattr(time, "time_ns", lambda: int((self.wall + self._runs()) * 1e9))
        patch.setattr(time, "time", lambda: self.wall + self._runs())
        patch.setattr(time, "boot", lambda: self.started)

    def passes(self, seconds: float) -> None:
        self.wall += seconds
        self.up += seconds

    def jumps(self, seconds: float) -> None:
        self.wall += seconds

    def restarts(self, off: float) -> None:
        """The machine is off for so long."""
        self.wall += off
        self.up = 5.0
        self.started += "+"


@pytest.fixture
def still(monkeypatch: pytest.MonkeyPatch) -> System:
    """Its clocks move only when they are told to."""
    return System(monkeypatch, NEW_YEAR, lambda: 0.0)


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch) -> Iterator[System]:
    real, begin = time.monotonic, time.monotonic()
    yield System(monkeypatch, time.time(), lambda: real() - begin)
    clock_module.clock.stop()


def begun(newest: float = 0.0, mark: Mark | None = None, hold: float = DAY) -> BrokerClock:
    clock = BrokerClock()
    clock.start(int(newest * 1e6), mark, 60.0, hold)
    return clock


def told(clock: BrokerClock) -> float:
    clock.step()
    return clock.seconds() - NEW_YEAR


# ---- the clock alone


def test_it_is_the_clock_of_the_system_until_a_broker_starts_it(still: System) -> None:
    clock = BrokerClock()
    still.jumps(1_000)
    assert (told(clock), clock.problem(), clock.accept()) == (1_000, "", 0)


@pytest.mark.parametrize("far", [8 * DAY, -8 * DAY])
def test_a_jump_that_is_taken_back_leaves_no_trace(still: System, far: float) -> None:
    clock = begun()
    still.jumps(far)
    still.passes(8)
    assert told(clock) == 8
    assert clock.ahead() == far
    assert "691,200 seconds" in clock.problem()
    still.jumps(-far)
    still.passes(1)
    assert (told(clock), clock.problem(), clock.ahead()) == (9, "", 0)


@pytest.mark.parametrize("far", [-59, 0.5, 59])
def test_small_corrections_are_followed(still: System, far: float) -> None:
    clock = begun()
    still.jumps(far)
    assert (told(clock), clock.problem()) == (far, "")


def test_time_in_suspension_counts(still: System) -> None:
    clock = begun()
    still.passes(3 * DAY)
    assert (told(clock), clock.problem(), clock.in_doubt()) == (3 * DAY, "", False)


@pytest.mark.parametrize("far", [8 * DAY, -8 * DAY])
def test_a_jump_that_stands_is_followed_in_the_end(still: System, far: float) -> None:
    clock = begun(hold=100)
    still.jumps(far)
    assert told(clock) == 0
    still.passes(99)
    assert told(clock) == 99
    still.jumps(500)  # another one: it has not stood for long
    assert told(clock) == 99
    still.passes(99)
    assert told(clock) == 198
    still.passes(2)
    assert (told(clock), clock.problem()) == (200 + far + 500, "")


def test_an_operator_accepts_the_new_time(still: System) -> None:
    clock = begun()
    still.jumps(8 * DAY)
    assert told(clock) == 0
    assert clock.accept() == 8 * DAY
    assert (told(clock), clock.problem()) == (8 * DAY, "")


@pytest.mark.parametrize("far", [8 * DAY, -8 * DAY])
def test_a_jump_while_the_broker_is_down(still: System, far: float) -> None:
    mark = begun().mark()
    still.passes(3 * DAY)
    still.jumps(far)
    clock = begun(NEW_YEAR, mark)
    assert told(clock) == 3 * DAY
    assert "seconds" in clock.problem()
    still.jumps(-far)
    assert (told(clock), clock.problem()) == (3 * DAY, "")


def test_a_machine_that_was_off_for_a_moment_is_not_in_doubt(still: System) -> None:
    mark = begun().mark()
    still.restarts(off=600)
    clock = begun(NEW_YEAR, mark)
    assert (told(clock), clock.problem(), clock.in_doubt()) == (600, "", False)


def test_a_machine_that_was_off_for_long_is_in_doubt_for_a_while(still: System) -> None:
    mark = begun().mark()
    still.restarts(off=8 * DAY)
    clock = begun(NEW_YEAR, mark)
    assert (told(clock), clock.in_doubt()) == (8 * DAY, True)
    assert "192.0 hours ago" in clock.problem()
    still.passes(SETTLE_SECONDS)
    assert (told(clock), clock.in_doubt()) == (8 * DAY + SETTLE_SECONDS, False)
    assert clock.problem() == ""


@pytest.mark.parametrize("accept", [False, True])
def test_a_doubt_ends_when_the_clock_is_set_or_accepted(still: System, accept: bool) -> None:
    mark = begun().mark()
    still.restarts(off=8 * DAY)
    clock = begun(NEW_YEAR, mark)
    assert clock.in_doubt()
    if accept:
        assert clock.accept() == 0
    else:
        still.jumps(60 - 8 * DAY)
    assert (told(clock), clock.in_doubt()) == (8 * DAY if accept else 60, False)
    assert clock.problem() == ""


@pytest.mark.parametrize(("off", "doubt"), [(60.0, False), (8 * DAY, True)])
def test_a_machine_whose_clock_begins_anew(still: System, off: float, doubt: bool) -> None:
    """It is behind what is stored, until the network sets it."""
    mark = begun().mark()
    still.passes(DAY)
    still.restarts(off)
    still.jumps(-20 * DAY)
    clock = begun(NEW_YEAR + DAY, mark)
    assert told(clock) == DAY
    assert "behind the broker's" in clock.problem()
    still.passes(10)
    assert told(clock) == DAY + 10
    still.jumps(20 * DAY)
    assert told(clock) == DAY + 10 + off
    assert clock.in_doubt() == doubt
    still.passes(SETTLE_SECONDS)
    told(clock)
    assert not clock.in_doubt()
    assert clock.problem() == ""


def test_without_a_mark_the_newest_event_counts(still: System) -> None:
    still.jumps(-DAY)
    assert told(begun(NEW_YEAR)) == 0
    still.jumps(3 * DAY)
    assert begun(NEW_YEAR).in_doubt()
    assert not begun().in_doubt()  # a new store


# ---- a broker


KEEP = {"keep_seconds": 3 * DAY}


async def filled(broker: Broker) -> None:
    """100 events and one with a time to live, all pending for ann; one that is delayed."""
    await broker.subscribe("ann", [sub("all", "qty > 0")])
    await broker.publish([item(qty=1)] * 100)
    await broker.publish([PublishedEvent({"qty": 2}, ttl_seconds=DAY)])
    await broker.publish([PublishedEvent({"qty": 3}, delay_seconds=DAY)])
    await until(broker.caught_up)


def state(broker: Broker) -> tuple[int, int, int]:
    """Events, pending deliveries and delayed events."""
    return broker.store.events.table.rows(), broker.store.deliveries.unacknowledged(), broker.store.delayed.table.rows()


async def housekeeping(broker: Broker) -> None:
    """Everything that looks at the time has looked at it."""
    lines = broker.statistics.history
    for _ in range(2):
        latest = lines[-1] if lines else None
        await until(lambda latest=latest: lines and lines[-1] is not latest)
    await broker._trim()


@pytest.mark.parametrize("far", [8 * DAY, -8 * DAY])
def test_nothing_is_lost_when_the_clock_jumps(tmp_path: Path, system: System, far: float) -> None:
    async def scenario() -> None:
        async with running(tmp_path, max_pending_seconds=4 * DAY, **KEEP) as broker:
            await filled(broker)
            system.jumps(far)
            await housekeeping(broker)
            assert state(broker) == (101, 101, 1)
            assert abs(broker.describe()["clock_ahead_seconds"] - far) < 5
            assert [one for one in broker.problems() if "hitbox admin clock accept" in one]
            assert b"hitbox_clock_ahead_seconds" in metrics.exposition(broker, lambda _: True, True)
            listener = await Listener(broker).attach("ann")
            await until(lambda: len(listener.got) == 101)
            assert broker.statistics.counts["expired"] == 0
            system.jumps(-far)
            await housekeeping(broker)
            assert (list(broker.problems()), state(broker)) == ([], (101, 0, 1))

    run(scenario())


def test_what_is_stored_during_a_jump_has_the_time_of_before(tmp_path: Path, system: System) -> None:
    async def scenario() -> None:
        async with running(tmp_path, **KEEP) as broker:
            await filled(broker)
            system.jumps(8 * DAY)
            await filled(broker)
            system.jumps(-8 * DAY)
            await housekeeping(broker)
            times = [when for (when,) in broker.store.reader.read("SELECT time FROM events")]
            due = [row[1] for row in broker.store.delayed.table.scan()]
            assert max(times) - min(times) < 1000 * 1e6
            assert max(due) - min(due) < 1000 * 1e6

    run(scenario())


def test_time_that_passes_counts(tmp_path: Path, system: System) -> None:
    async def scenario() -> None:
        async with running(tmp_path, **KEEP) as broker:
            await filled(broker)
            system.passes(DAY + 1)
            await until(lambda: state(broker) == (102, 101, 0))  # one has expired, one was delayed
            system.passes(3 * DAY)
            await housekeeping(broker)
            await until(lambda: state(broker)[0] == 0)
            await until(lambda: list(broker.problems()))  # of what is pending, not of the clock
            assert not [one for one in broker.problems() if "clock" in one]

    run(scenario())


def test_a_restart_during_a_jump_believes_it_no_more(tmp_path: Path, system: System) -> None:
    async def scenario() -> None:
        async with running(tmp_path, **KEEP) as broker:
            await filled(broker)
            await until(lambda: broker.store.clock_mark() is not None)
        system.passes(100)
        system.jumps(8 * DAY)
        async with running(tmp_path, None, **KEEP) as broker:
            await housekeeping(broker)
            assert state(broker) == (101, 101, 1)
            assert broker.accept_clock()["moved_seconds"] == pytest.approx(8 * DAY, abs=5)
            await housekeeping(broker)
            await until(lambda: state(broker)[2] == 0)
            assert broker.store.events.table.rows() == 1  # the one that was delayed

    run(scenario())


def test_a_start_in_doubt_removes_and_releases_nothing(tmp_path: Path, system: System) -> None:
    async def scenario() -> None:
        async with running(tmp_path, **KEEP) as broker:
            await filled(broker)
        system.restarts(off=8 * DAY)
        async with running(tmp_path, None, max_pending_seconds=4 * DAY, **KEEP) as broker:
            await housekeeping(broker)
            assert state(broker) == (101, 101, 1)
            assert broker.health()[0]["status"] == "degraded"
            system.passes(SETTLE_SECONDS)
            await housekeeping(broker)
            await until(lambda: state(broker)[2] == 0)
            assert broker.store.events.table.rows() == 1

    run(scenario())


def test_the_command_of_an_operator(tmp_path: Path, system: System) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, SCHEMA) as (broker, url), Client(url) as client:
            system.jumps(8 * DAY)
            await until(broker.problems)
            assert (await client.accept_clock())["moved_seconds"] == pytest.approx(8 * DAY, abs=5)
            assert list(broker.problems()) == []
            assert abs((await client.stats())["clock_ahead_seconds"]) < 5

    run(scenario())


def test_the_mark_is_stored_again_when_the_clock_moved(tmp_path: Path, system: System) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as broker:
            await until(lambda: broker.store.clock_mark() is not None)
            first = broker.store.clock_mark()
            system.jumps(30)
            await until(lambda: broker.store.clock_mark() != first)

    run(scenario())
    assert Settings().clock_jump_seconds == 60
