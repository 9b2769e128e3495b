"""Which versions of a snapshot stay, and which one was current when."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from hitbox import Index
from hitbox.errors import SnapshotError
from hitbox.storage import retention, snapshot

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


def index(mark: int = 0) -> Index:
    made = Index({"a": "int"})
    made.subscribe(mark, "a > 0")
    return made


class Clock:
    """The time, in hours from noon."""

    hours = 0.0

    def now(self) -> datetime:
        return NOON + timedelta(hours=self.hours)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(retention, "now", made.now)
    return made


@pytest.mark.parametrize(
    ("keep", "means"),
    [
        (3, 3),
        ("3", 3),
        ("7 days", timedelta(days=7)),
        ("12h", timedelta(hours=12)),
        (" 1 week, 2 Days 30min ", timedelta(days=9, minutes=30)),
        ("1.5 hours", timedelta(minutes=90)),
        ("0 s", timedelta()),
        (timedelta(minutes=1), timedelta(minutes=1)),
    ],
)
def test_keep(keep: Any, means: Any) -> None:
    assert retention.parsed(keep) == means


@pytest.mark.parametrize("keep", [0, -1, True, 1.5, "", "days", "7", "7 moons", "7 days ago", timedelta(-1), [3]])
def test_what_keep_is_not(tmp_path: Path, keep: Any) -> None:
    if keep == "7":
        assert retention.parsed(keep) == 7
        return
    with pytest.raises(SnapshotError, match=r"keep is a number of versions \(at least 1\) or an age such as '7 days'"):
        index().save(tmp_path / "x", keep=keep)
    assert not (tmp_path / "x").exists()


def test_keep_is_remembered(tmp_path: Path) -> None:
    for _ in range(3):
        index().save(tmp_path)
    assert snapshot.versions(tmp_path) == [2, 3], "two, if nobody said anything else"
    index().save(tmp_path, keep=4)
    for _ in range(3):
        index().save(tmp_path)
    assert snapshot.versions(tmp_path) == [4, 5, 6, 7]
    index().save(tmp_path, keep=1)
    assert snapshot.versions(tmp_path) == [8]


def test_keep_outlives_a_damaged_manifest(tmp_path: Path) -> None:
    for _ in range(3):
        index().save(tmp_path, keep=10)
    (tmp_path / "versions" / "00000003" / "manifest.json").write_text("?")
    index().save(tmp_path)
    assert snapshot.versions(tmp_path) == [1, 2, 3, 4]
    assert [set(facts) == {"version"} for facts in snapshot.history(tmp_path)] == [False, False, True, False]


def test_versions_stay_for_an_age(tmp_path: Path, clock: Clock) -> None:
    for clock.hours in (0, 1, 2, 10):
        index().save(tmp_path, keep="5 hours")
    assert snapshot.versions(tmp_path) == [3, 4], "version 3 was current until now, 2 until eight hours ago"
    clock.hours = 14.9
    assert snapshot.vacuum(tmp_path).versions == []
    clock.hours = 15
    done = snapshot.vacuum(tmp_path)
    assert done.versions == [3]
    assert done.files > 5
    assert done.bytes > 500
    assert Index.open(tmp_path).match({"a": 1}) == [0]


def test_an_age_and_versions_whose_time_is_unknown(tmp_path: Path, clock: Clock) -> None:
    """As an older hitbox wrote them: what may have been current until recently stays."""
    for clock.hours in (0, 1, 2, 3):
        index().save(tmp_path, keep="2 hours")
    assert snapshot.versions(tmp_path) == [2, 3, 4]
    forget(tmp_path, 3)
    clock.hours = 4.5  # 3 was published at 2: version 2 could go, but nobody knows that; version 4 came at 3
    assert snapshot.vacuum(tmp_path).versions == []
    clock.hours = 5.5
    assert snapshot.vacuum(tmp_path).versions == [2, 3]


def forget(path: Path, number: int) -> None:
    """Write a manifest as an older hitbox did."""
    file = path / "versions" / f"{number:08d}" / "manifest.json"
    facts = json.loads(file.read_text().partition("\n")[2])
    files = facts.pop("files")
    for name in ("format", "written_by", "time", "operation", "replaces", "keep"):
        del facts[name]
    file.write_text(snapshot.manifest_text(facts, files))


def test_time_does_not_go_back_by_a_little(tmp_path: Path, clock: Clock) -> None:
    for clock.hours in (5, 4.99, 6):
        index().save(tmp_path, keep=9)
    times = [retention.time_of(facts) for facts in snapshot.history(tmp_path)]
    five = NOON + timedelta(hours=5)
    assert times == [five, five + timedelta(microseconds=1), NOON + timedelta(hours=6)]


def test_a_clock_that_is_fast_once(tmp_path: Path, clock: Clock) -> None:
    """Version 2 is published at two by a clock that is a day ahead."""
    for clock.hours, at in ((1, 1), (26, 2)):
        index(at).save(tmp_path, keep="20 hours")
    for clock.hours in (2, 2.5):
        assert now(tmp_path, clock) == [2], "its time has not come yet, but it is there"
    for at in (3, 4):
        clock.hours = at
        index(at).save(tmp_path)
        clock.hours += 0.01
        assert now(tmp_path, clock) == [at]
    times = [retention.time_of(facts) for facts in snapshot.history(tmp_path)]
    assert times == [NOON + timedelta(hours=hours) for hours in (1, 26, 3, 4)]
    assert Index.open(tmp_path, as_of=NOON + timedelta(hours=3.5)).match({"a": 1}) == [3]
    clock.hours = 22.9
    assert snapshot.vacuum(tmp_path).versions == []
    clock.hours = 23
    assert snapshot.vacuum(tmp_path).versions == [1, 2], "the time of version 3 stands for that of version 2"
    clock.hours = 30
    assert now(tmp_path, clock) == [4]


def test_a_clock_that_is_slow_once(tmp_path: Path, clock: Clock) -> None:
    """Version 3 is published by a clock that is years behind: version 2 was current until then, or until version 4."""
    for clock.hours, at in ((1, 1), (2, 2), (-99_999, 3), (4, 4)):
        index(at).save(tmp_path, keep="5 hours")
    clock.hours = 6.5
    assert snapshot.vacuum(tmp_path).versions == []
    clock.hours = 7.5
    assert snapshot.vacuum(tmp_path).versions == [1]
    assert now(tmp_path, clock) == [4]
    clock.hours = 9
    assert snapshot.vacuum(tmp_path).versions == [2, 3]


def found_at(path: Path, hours: float) -> list[Any]:
    """What the version finds that was current at this time."""
    return Index.open(path, as_of=NOON + timedelta(hours=hours)).match({"a": 1})


@pytest.mark.parametrize("wrong", [-24, 24])
@pytest.mark.parametrize("at", [2, 3, 4])
def test_a_wrong_time_is_not_believed(tmp_path: Path, clock: Clock, wrong: int, at: int) -> None:
    """One version of four is published by a clock that is wrong. All others are found where they should be, now and
    when the time of a fast clock has come."""
    for number in range(1, 5):
        clock.hours = number + (wrong if number == at else 0)
        index(number).save(tmp_path, keep=9)
    for clock.hours in (5, 20) if wrong > 0 and at == 4 else (5, 20, 100):
        for number in {1, 2, 3, 4} - {at, at - 1}:
            assert found_at(tmp_path, number + 0.5) == [number]
        if (at, wrong) != (2, -24):  # which of the first two is wrong cannot be told
            assert found_at(tmp_path, at - 1) == [at - 1], "as of its own time"
        assert found_at(tmp_path, at - 0.5) == [at], "it counts from the time of the version before it"
        assert now(tmp_path, clock) == [4]


def test_a_first_version_from_a_fast_clock(tmp_path: Path, clock: Clock) -> None:
    for clock.hours, number in ((25, 1), (26, 2)):
        index(number).save(tmp_path)
        clock.hours = number
        assert now(tmp_path, clock) == [number]
        with pytest.raises(SnapshotError, match="cannot say which version"):
            found_at(tmp_path, number - 0.5)
    clock.hours = 30
    assert [found_at(tmp_path, hours) for hours in (25.5, 27)] == [[1], [2]]


def now(path: Path, clock: Clock) -> list[Any]:
    """What the version finds that is current now."""
    return Index.open(path, as_of=clock.now() - timedelta(milliseconds=1)).match({"a": 1})


def test_what_a_version_records(tmp_path: Path) -> None:
    before = datetime.now(UTC)
    index().save(tmp_path)
    index().save(tmp_path, keep="7 days")
    one, two = snapshot.history(tmp_path)
    assert (one["operation"], one["replaces"], one["keep"]) == ("save", None, None)
    assert (two["operation"], two["replaces"], two["keep"]) == ("save", 1, "604800.000000 seconds")
    first, second = retention.time_of(one), retention.time_of(two)
    assert first is not None
    assert second is not None
    assert before <= first < second


def test_an_index_as_of_a_time(tmp_path: Path, clock: Clock) -> None:
    for clock.hours in (1, 2, 3):
        index(int(clock.hours)).save(tmp_path, keep=9)
    for when, finds in (("2026-01-31 13:00", 1), ("2026-01-31T15:30:00+01:00", 2), (NOON + timedelta(hours=9), 3)):
        assert Index.open(tmp_path, as_of=when).match({"a": 1}) == [finds]
    with pytest.raises(SnapshotError, match=r"at 2026-01-31 12:59:00.* the oldest .*, 1, is of 2026-01-31 13:00:00"):
        Index.open(tmp_path, as_of="2026-01-31 12:59")
    with pytest.raises(SnapshotError, match="'yesterday' is not a point in time; write it as '2026-01-31 12:00:00'"):
        Index.open(tmp_path, as_of="yesterday")
    with pytest.raises(SnapshotError, match="not both"):
        Index.open(tmp_path, 1, as_of=NOON)


def test_a_version_that_is_gone_is_not_mistaken_for_the_one_before(tmp_path: Path, clock: Clock) -> None:
    clock.hours = 1
    index(1).save(tmp_path)
    snapshot.pin(tmp_path, "stream", 1)
    for clock.hours in (2, 3, 4):
        index(int(clock.hours)).save(tmp_path)
    assert snapshot.versions(tmp_path) == [1, 3, 4]
    with pytest.raises(SnapshotError, match=r"at 2026-01-31 14:30:00.* is gone: it came after 1 and before 3"):
        Index.open(tmp_path, as_of="2026-01-31 14:30")
    for number in (3, 4):
        forget(tmp_path, number)
    forget(tmp_path, 1)
    with pytest.raises(SnapshotError, match="none of its versions records its time"):
        Index.open(tmp_path, as_of=NOON)


def test_vacuum(tmp_path: Path) -> None:
    path = tmp_path / "ads"
    with pytest.raises(SnapshotError, match="there is none"):
        snapshot.vacuum(path)
    assert not path.exists()
    for _ in range(5):
        index().save(path, keep=9)
    snapshot.pin(path, "stream/00000007", 2)
    (path / ".draft-dead").mkdir()
    (path / ".draft-dead" / "x.npy").write_bytes(bytes(1000))
    (path / ".CURRENT-5").write_text("?")
    (path / "versions" / ".gone-1").mkdir()
    with snapshot.draft(path) as alive:
        assert snapshot.vacuum(path, keep=2)[0] == [1, 3]
        assert alive.exists()
    assert snapshot.versions(path) == [2, 4, 5]
    assert sorted(file.name for file in path.iterdir()) == ["CURRENT", "pins", "versions", "writer.lock"]
    assert snapshot.vacuum(path) == ([], 0, 0), "keep= of an earlier call to vacuum is not remembered"
    (path / "pins" / "stream" / "00000007.json").write_text("{")
    assert snapshot.vacuum(path, keep=1).versions == [], "nobody knows which version a damaged pin keeps"


def test_many_versions_cost_few_reads(clock: Clock) -> None:
    asked = []

    def published(number: int) -> datetime:
        asked.append(number)
        return NOON + timedelta(seconds=number)

    clock.hours = 100_000 / 3600
    kept = retention.kept(list(range(100_000)), timedelta(seconds=1000), published)
    assert kept == set(range(99_000, 100_000))
    assert len(asked) < 40
