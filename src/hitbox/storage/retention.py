"""How long versions of a snapshot stay, and which version was current when.

    keep=5             the last five versions that were current
    keep="7 days"      every version that was current at some time in the last seven days (or a timedelta)

The manifest of each version records `time`, `operation`, `replaces` (the version that was current before it) and
`keep`. A writer that says nothing about `keep` takes over what the version before it recorded. Manifests of an older
hitbox have none of these.

Times are those of the writers' clocks, which may disagree. Within AGREEMENT a time does not go back from one version to
the next. A version whose time is further ahead was published by a clock that is wrong: the next one records its own
time. So one wrong clock makes one wrong time, and whoever reads it can tell: it has not come yet, or it contradicts the
others.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from hitbox.errors import SnapshotError

KEPT_VERSIONS = 2
"""What `keep` is if nobody ever gave one."""

Keep = int | str | timedelta
Moment = str | datetime

AGREEMENT = timedelta(minutes=1)
"""How far the clocks of writers may differ."""

EVER = datetime.min.replace(tzinfo=UTC)

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_LENGTH = re.compile(
    r"(\d+(?:\.\d+)?)\s*(s|secs?|seconds?|m|mins?|minutes?|h|hours?|d|days?|w|weeks?)\b[\s,]*", re.IGNORECASE
)


def parsed(keep: Keep) -> int | timedelta:
    """A number of versions, or an age.

    >>> parsed("1 day 12 hours")
    datetime.timedelta(days=1, seconds=43200)
    """
    if isinstance(keep, str):
        text = keep.strip()
        if text.isascii() and text.isdigit():
            return parsed(int(text))
        seconds, at = 0.0, 0
        while at < len(text) and (length := _LENGTH.match(text, at)):
            seconds, at = seconds + float(length[1]) * _UNITS[length[2][0].lower()], length.end()
        if text and at == len(text):
            try:
                return timedelta(seconds=seconds)
            except OverflowError:
                pass
    elif isinstance(keep, timedelta):
        if keep >= timedelta():
            return keep
    elif not isinstance(keep, bool) and hasattr(keep, "__index__") and int(keep) >= 1:
        return int(keep)
    raise SnapshotError(
        f"keep is a number of versions (at least 1) or an age such as '7 days' or '12 hours', not {keep!r:.80}"
    )


def check_keep(keep: Keep | None) -> None:
    """Raise an error for what `parsed` does not take: before the work, not after it."""
    if keep is not None:
        parsed(keep)


def now() -> datetime:
    return datetime.now(UTC)


def recorded(last: Mapping[str, Any], before: int | None, operation: str, keep: Keep | None) -> dict[str, Any]:
    """What the manifest of the next version records. `last`: the manifest of the version before it, as far as known."""
    time, previous = now(), time_of(last)
    if previous is not None and time <= previous <= time + AGREEMENT:
        time = previous + timedelta(microseconds=1)
    text: Any = last.get("keep")
    if keep is not None:
        wanted = parsed(keep)
        text = wanted if isinstance(wanted, int) else f"{wanted.total_seconds():f} seconds"
    return {"time": time.isoformat(timespec="microseconds"), "operation": operation, "replaces": before, "keep": text}


def in_force(facts: Mapping[str, Any], keep: Keep | None = None) -> int | timedelta:
    """What is asked for; otherwise what a manifest records; otherwise the default."""
    if keep is not None:
        return parsed(keep)
    try:
        return parsed(facts.get("keep") or KEPT_VERSIONS)
    except SnapshotError:  # of a later hitbox
        return KEPT_VERSIONS


def time_of(facts: Mapping[str, Any]) -> datetime | None:
    """When a version was published; None where its manifest does not say."""
    try:
        return moment(facts["time"])
    except (KeyError, SnapshotError):
        return None


def kept(were_current: Sequence[int], keep: int | timedelta, time: Callable[[int], datetime | None]) -> set[int]:
    """Which versions stay, of all that were current, oldest first and the current one last.

    A version was current until the next one was published. If that moment is not known, or cannot be true, a later one
    stands for it.
    """
    if isinstance(keep, int):
        return set(were_current[-keep:])
    clock = now()
    try:
        since = clock - keep
    except OverflowError:
        return set(were_current)

    def ended_since(at: int) -> bool:
        began = time(were_current[at])
        first = EVER if began is None or began > clock else began
        times = map(time, were_current[at + 1 :])
        ended = next((time for time in times if time is not None and first <= time <= clock), None)
        return ended is None or ended > since

    return set(were_current[bisect_left(range(len(were_current)), True, key=ended_since) :])


def moment(when: Moment) -> datetime:
    """A point in time; without a time zone it is UTC."""
    try:
        time = when if isinstance(when, datetime) else datetime.fromisoformat(when.strip())
    except (ValueError, AttributeError):
        raise SnapshotError(
            f"{when!r:.80} is not a point in time; write it as '2026-01-31 12:00:00' (UTC) or give a datetime"
        ) from None
    if time.tzinfo is None:
        return time.replace(tzinfo=UTC)
    try:
        return time.astimezone(UTC)
    except OverflowError:  # its time zone takes it beyond the years 1 to 9999
        return (datetime.min if time.year == 1 else datetime.max).replace(tzinfo=UTC)


def check_choice(version: int | None, as_of: Moment | None) -> None:
    """Raise an error if both are given."""
    if version is not None and as_of is not None:
        raise SnapshotError("give version= or as_of=, not both")


def _believed(times: Sequence[datetime | None], clock: datetime) -> set[int]:
    """Which of these times can be true: as many as possible that have come and do not go back from one to the next. Of
    two that contradict each other, the later version's."""
    lasts: list[datetime] = []  # the earliest end of so many times that do not go back
    ends: list[int] = []
    before: dict[int, int] = {}
    for number, time in enumerate(times):
        if time is not None and time <= clock:
            at = bisect_right(lasts, time)
            lasts[at : at + 1], ends[at : at + 1] = [time], [number]
            if at:
                before[number] = ends[at - 1]
    believed = set(ends[-1:])
    last = next(iter(believed), -1)
    while last in before:
        last = before[last]
        believed.add(last)
    return believed


def current_at(path: object, when: Moment, history: Sequence[Mapping[str, Any]]) -> int:
    """The version that was current at a point in time. `history`: manifests, oldest first, the current one last.

    A version whose time cannot be true counts from right after that of the version before it.
    """
    asked, clock = moment(when), now()
    times = [time_of(facts) for facts in history]
    believed = _believed(times, clock)
    timed: list[tuple[int, datetime]] = []
    for number, time in enumerate(times):
        if time is None:
            continue
        if number in believed:
            timed.append((number, time))
        elif timed:
            timed.append((number, timed[-1][1] + timedelta.resolution))
        elif time > clock:  # the first one: it is there already, since when is unknown
            timed.append((number, clock - AGREEMENT))
    at = max((at for at, time in timed if time <= asked), default=None)
    if at is None:
        known = "none of its versions records its time"
        if timed:
            known = f"the oldest version whose time is known, {history[timed[0][0]]['version']}, is of {timed[0][1]}"
        raise SnapshotError(f"cannot say which version of the snapshot at {path} was current at {asked}: {known}")
    if at + 1 < len(history) and history[at + 1].get("replaces") != history[at]["version"]:
        raise SnapshotError(
            f"the version of the snapshot at {path} that was current at {asked} is gone: it came after "
            f"{history[at]['version']} and before {history[at + 1]['version']} (keep= says how long versions stay)"
        )
    return int(history[at]["version"])
