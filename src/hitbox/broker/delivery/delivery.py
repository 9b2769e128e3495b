"""Deliveries from sending to acknowledgement: what to send next, acknowledgements, refusals, time-outs and limits.

Sending may begin before a delivery is in the store: `record` stores it. Whatever happens to a delivery before that,
such as a quick acknowledgement, is applied to the store right after `record`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from hitbox.broker.clock import clock, time
from hitbox.broker.delivery.dispatcher import Row
from hitbox.broker.delivery.mailbox import FRAME_COUNT, Connection, Delivery, Mailbox
from hitbox.broker.fair_threads import FairThreads
from hitbox.broker.settings import Options, Settings
from hitbox.broker.stats import Statistics
from hitbox.broker.store.group_commit import RETRY_SECONDS, Writer
from hitbox.broker.store.store import Store

if TYPE_CHECKING:
    from hitbox.broker.telemetry import Telemetry  # an extra

FETCH_ROWS = 1_000
MOST_WITHOUT_ROOM = 1_000
"""Operations that may wait for room on a full disk before their connections wait, too."""
OLDEST_ROWS = 5_000
"""Deliveries beyond a limit that are removed at once, so that nobody waits long for the store. Fewer if the disk had no
room for so many dead letters: what fails makes the store full for everybody."""
OVER_LIMIT = "more pending than the subscriber's limit"
OVER_BYTES = "more bytes pending than max_pending_bytes or max_principal_pending_bytes"
TOO_OLD = "pending for longer than max_pending_seconds"

Key = tuple[int, int]
"""(level, seq) of a delivery."""


class AckGroup:
    """Acknowledgements that are deleted from the store together. The writer's thread closes it when its turn comes."""

    def __init__(self) -> None:
        self.mailboxes: dict[int, Mailbox] = {}
        self._keys: dict[int, list[Key]] = {}
        self._lock = threading.Lock()
        self._closed = False

    def add(self, mailbox: Mailbox, keys: list[tuple[int, int]]) -> bool:
        """Add (level, seq) of a subscriber; returns false if the group is closed."""
        number = mailbox.subscriber.number
        with self._lock:
            if self._closed:
                return False
            self.mailboxes[number] = mailbox
            self._keys.setdefault(number, []).extend(keys)
        return True

    def close(self) -> list[tuple[int, int, int]]:
        """(subscriber, level, seq) of all; the same again if the store has to repeat it."""
        with self._lock:
            self._closed = True
        return [(number, *key) for number, keys in self._keys.items() for key in keys]

    def seqs_of(self, subscriber: int) -> set[int]:
        return {seq for _, seq in self._keys.get(subscriber, ())}


class DeliveryTracker:
    """Records what happens to deliveries. Those of events up to `recorded` were given to the writer, those of events up
    to `stored` are in the store. On a full disk this differs for long: what removes stored deliveries makes room, so it
    goes ahead of records that find none."""

    def __init__(
        self, store: Store, writer: Writer, watch: Statistics, settings: Settings, telemetry: Telemetry | None = None
    ):
        self.store, self.writer, self.statistics, self.settings = store, writer, watch, settings
        self.telemetry = telemetry
        self.recorded: int = store.meta.get("matched", 0)
        self.stored = self.recorded
        self.incarnation = store.incarnation
        self.looks = FairThreads("hitbox-see", 2)
        """Where receivers find out what they may see."""
        self._after_next_record: list[Callable[[], object]] = []
        self._acks: dict[bool, AckGroup] = {}  # those that wait for the store, by whether all are stored; more may join
        self._unstored_acks: set[AckGroup] = set()  # on a full disk a fetch may come before them

    def record(self, rows: list[Row], matched: int, failed: Sequence[int] = ()) -> asyncio.Future[None]:
        done = self.writer.submit(lambda: self.store.deliveries.record(rows, matched, failed), mandatory=True)
        done.add_done_callback(partial(self._stored, matched))
        self.recorded = matched
        self._acks.pop(False, None)  # what is acknowledged from now on may belong to these rows: not before them
        early, self._after_next_record = self._after_next_record, []
        for step in early:
            step()
        return done

    def _stored(self, matched: int, done: asyncio.Future[None]) -> None:
        if not done.cancelled() and done.exception() is None:
            self.stored = matched

    def _are_stored(self, keys: Iterable[tuple[int, int]]) -> bool:
        return all(seq <= self.stored for _, seq in keys)

    def _after_record(self, seq: int, step: Callable[[], object]) -> None:
        """Run `step` now, or right after `record` if the deliveries of this event are not in the store yet."""
        if seq <= self.recorded:
            step()
        else:
            self._after_next_record.append(step)

    async def next(self, mailbox: Mailbox, connection: Connection, most: int = FRAME_COUNT) -> list[Delivery]:
        """Wait for the next deliveries, at most `most`; an empty list if the connection was closed or replaced."""
        while mailbox.is_served(connection):
            if mailbox.may_send():
                if found := self.ready(mailbox, connection, most):
                    return found
                if mailbox.has_next(connection):  # what was taken has expired: there may be any number of these
                    await asyncio.sleep(0)
                    continue
                if mailbox.needs_refill(connection):
                    await self._refill(mailbox, connection)
                    continue
            mailbox.rest(connection)
            mailbox.wake.clear()
            await mailbox.wake.wait()
        return []

    def ready(self, mailbox: Mailbox, connection: Connection, most: int = FRAME_COUNT) -> list[Delivery]:
        """The next deliveries of those in memory, at most `most`, without those that have expired."""
        return self.unexpired(mailbox, mailbox.take(connection, most))

    def unexpired(self, mailbox: Mailbox, deliveries: list[Delivery]) -> list[Delivery]:
        """Those of the deliveries whose time to live has not passed; the others are removed."""
        now = clock.now()
        late = [d for d in deliveries if d.expires and d.expires <= now]
        if not late:
            return deliveries
        self.expire(mailbox, [(d.level, d.seq) for d in late])
        gone = {d.seq for d in late}
        return [d for d in deliveries if d.seq not in gone]

    def expire(self, mailbox: Mailbox, keys: list[tuple[int, int]]) -> None:
        """Remove deliveries (level, seq) whose time to live has passed."""
        if mailbox.subscriber.ephemeral:
            self._count_expired(mailbox, len(keys))
            return
        mailbox.drop(seq for _, seq in keys)
        mailbox.wake.set()
        for some in ([key for key in keys if key[1] <= self.recorded], [key for key in keys if key[1] > self.recorded]):
            if some:
                self._after_record(some[0][1], partial(self._remove_expired, mailbox, some))

    def _remove_expired(self, mailbox: Mailbox, keys: list[tuple[int, int]]) -> asyncio.Future[int]:
        number = mailbox.subscriber.number

        def remove() -> int:
            count = sum(self.store.deliveries.acknowledge((number, *key) for key in keys).values())
            self.store.subscribers.add_losses(number, expired=count)
            return count

        gone = self.writer.submit(remove, mandatory=True, frees_space=self._are_stored(keys))
        self._count_removed(mailbox, gone).add_done_callback(
            lambda done: None if done.cancelled() or done.exception() else self._count_expired(mailbox, done.result())
        )
        return gone

    def _count_expired(self, mailbox: Mailbox, count: int) -> None:
        mailbox.expired += count
        self.statistics.counts["expired"] += count

    async def _refill(self, mailbox: Mailbox, connection: Connection) -> None:
        number, newest, before = mailbox.subscriber.number, mailbox.newest, mailbox.disk_level
        skip = mailbox.in_flight.keys() | mailbox.unstored_dead | mailbox.unstored_acks
        skip = skip.union(*(group.seqs_of(number) for group in self._unstored_acks))
        mailbox.gone, mailbox.spilled_to = set(), -1
        try:
            rows, more = await self.writer.submit(
                lambda: self.store.deliveries.fetch(number, skip, FETCH_ROWS),
                mandatory=True,
                frees_space=True,  # when they are acknowledged; so it may come before failed tries are stored
            )
            more_follow = newest > self.stored
            if more_follow and not rows and self.writer.full:  # they wait for room
                await asyncio.sleep(RETRY_SECONDS)
            if mailbox.is_connected(connection):
                left = rows[-1].level if more and rows else before if more else -1
                mailbox.fill(rows)
                mailbox.disk_level = max(left, mailbox.spilled_to, before if more_follow else -1)
        finally:
            mailbox.gone = None
            mailbox.wake.set()

    def sent(self, mailbox: Mailbox, deliveries: Sequence[Delivery]) -> None:
        """These were written to the connection: their time-out begins."""
        now = time.perf_counter_ns()
        for d in deliveries:
            d.sent_at = now
        if not mailbox.subscriber.ephemeral:
            mailbox.extend([d.seq for d in deliveries])
        name = mailbox.subscriber.name
        self.statistics.add_sent(name, deliveries, now)
        if self.telemetry is not None:
            began = min((d.determined for d in deliveries if d.live), default=now)
            bodies = [d.body for d in deliveries]
            self.telemetry.add("hitbox.send", began, now, bodies, subscriber=name, deliveries=len(deliveries))

    def acknowledge(self, mailbox: Mailbox, seqs: Sequence[int]) -> asyncio.Future[None] | None:
        """Delete acknowledged deliveries. An acknowledgement may come late, on another connection; then its number is
        not in memory, and the returned future is done when it was looked up on disk: wait for it before the next call.
        """
        if mailbox.subscriber.ephemeral:
            return None
        first = next((d for seq in seqs if (d := mailbox.in_flight.get(seq)) is not None), None)
        known, others = mailbox.acknowledge(seqs)
        if first is not None and first.sent_at:  # those of one message were sent at about the same time
            now, name = time.perf_counter_ns(), mailbox.subscriber.name
            self.statistics.sent_to_acked.observe((now - first.sent_at) / 1e9, len(known))
            if self.telemetry is not None:
                began, count = first.sent_at, len(known)
                self.telemetry.add("hitbox.acknowledge", began, now, [first.body], subscriber=name, deliveries=count)
        if mailbox.newest > self.recorded and (early := [key for key in known if key[1] > self.recorded]):
            self._after_next_record.append(partial(self._delete, mailbox, early))
            known = [key for key in known if key[1] <= self.recorded]
        self._delete(mailbox, known)
        last = self.store.events.table.next() - 1
        unknown = [seq for seq in others if 0 < seq <= last]
        return self._acknowledge_unknown(mailbox, unknown) if unknown else None

    def _delete(self, mailbox: Mailbox, keys: list[tuple[int, int]]) -> None:
        """Delete (level, seq) from the store, together with the acknowledgements of other subscribers that come before
        the store gets to it."""
        if self._are_stored(keys):
            self._delete_together(mailbox, keys, True)
        else:
            self._delete_together(mailbox, [key for key in keys if key[1] <= self.stored], True)
            self._delete_together(mailbox, [key for key in keys if key[1] > self.stored], False)

    def _delete_together(self, mailbox: Mailbox, keys: list[tuple[int, int]], stored: bool) -> None:
        if not keys:
            return
        waiting = self._acks.get(stored)
        if waiting is None or not waiting.add(mailbox, keys):
            self._acks[stored] = group = AckGroup()
            group.add(mailbox, keys)
            self._unstored_acks.add(group)
            acknowledge = self.store.deliveries.acknowledge
            done = self.writer.submit(lambda: acknowledge(group.close()), mandatory=True, frees_space=stored)
            done.add_done_callback(partial(self._acknowledged, group))

    def _acknowledged(self, group: AckGroup, done: asyncio.Future[dict[int, int]]) -> None:
        self._unstored_acks.discard(group)
        if not done.cancelled() and done.exception() is None:
            for number, count in done.result().items():
                group.mailboxes[number].pending -= count
                self.statistics.counts["acked"] += count

    def _acknowledge_unknown(self, mailbox: Mailbox, unknown: list[int]) -> asyncio.Future[None]:
        """Delete deliveries that are not in memory. The future is done when they were looked up on disk. Nobody waits
        for those that find no room on a full disk: more acknowledgements would make room."""
        number = mailbox.subscriber.number
        asked_for: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def delete(numbers: list[int]) -> int:
            found = self.store.deliveries.pending_levels(number, numbers)
            return sum(self.store.deliveries.acknowledge((number, level, seq) for level, seq in found).values())

        def step(numbers: list[int], last: bool) -> None:
            mailbox.unstored_acks.update(numbers)
            done = self.writer.submit(lambda: delete(numbers), mandatory=True, frees_space=numbers is stored)
            done.add_done_callback(lambda _: mailbox.unstored_acks.difference_update(numbers))
            gone = self._count_removed(mailbox, done, "acked")
            if last:
                gone.add_done_callback(lambda _: None if asked_for.done() else asked_for.set_result(None))

        # Rows in the store are deleted now, or the next fetch would find them again; the others after `record`.
        stored = [seq for seq in unknown if seq <= self.stored]
        early = [seq for seq in unknown if self.recorded < seq <= mailbox.newest]
        submitted = sorted(set(unknown).difference(stored, early))
        parts = [part for part in (stored, submitted, early) if part]
        no_room = self.writer.full and self.writer.waiting() < MOST_WITHOUT_ROOM
        awaited = stored if no_room else parts[-1]
        for part in parts:
            run = partial(step, part, part is awaited)
            if part is early:
                self._after_next_record.append(run)
            else:
                run()
        if not awaited:
            asked_for.set_result(None)
        return asked_for

    def _count_removed(self, mailbox: Mailbox, done: asyncio.Future[int], *counters: str) -> asyncio.Future[int]:
        """Update the counters when the deliveries have been deleted from the store."""

        def settle(done: asyncio.Future[int]) -> None:
            if not done.cancelled() and done.exception() is None:
                mailbox.pending -= done.result()
                for name in counters:
                    self.statistics.counts[name] += done.result()

        done.add_done_callback(settle)
        return done

    def refuse(
        self,
        mailbox: Mailbox,
        seqs: Iterable[int],
        connection: Connection | None = None,
        reason: str = "refused by the subscriber",
    ) -> None:
        """The subscriber could not handle these deliveries: they are sent again later, or become dead letters. Those
        that are not with `connection` are ignored; None: with any."""
        for seq in seqs:
            delivery = mailbox.in_flight.get(seq)
            if delivery is not None and mailbox.holds(connection, delivery):
                self._try_failed(mailbox, delivery, reason)

    def _try_failed(self, mailbox: Mailbox, d: Delivery, reason: str) -> None:
        seq, level = d.seq, d.level
        if d.expires and d.expires <= clock.now():
            self.expire(mailbox, [(level, seq)])
            return
        if mailbox.try_failed(d, time.monotonic()):
            mailbox.unstored_tries[seq] = d.tries
            self._after_record(seq, partial(self._store_tries, mailbox, (level, seq), d.tries))
        else:
            mailbox.unstored_dead.add(seq)
            self._after_record(seq, partial(self._make_dead_letter, mailbox, (level, seq), d.tries, reason))

    def _store_tries(self, mailbox: Mailbox, key: Key, tries: int) -> None:
        def stored(_: object) -> None:
            if mailbox.unstored_tries.get(key[1]) == tries:  # it has not failed again
                del mailbox.unstored_tries[key[1]]

        retry = partial(self.store.deliveries.retry, mailbox.subscriber.number, *key, tries)
        self.writer.submit(retry, mandatory=True).add_done_callback(stored)

    def _make_dead_letter(self, mailbox: Mailbox, key: Key, tries: int, reason: str) -> None:
        number, most = mailbox.subscriber.number, self._most_letters()
        made = self.writer.submit(
            lambda: self.store.deliveries.bury(number, [key], tries, reason, *most), mandatory=True
        )
        made.add_done_callback(lambda _: mailbox.unstored_dead.discard(key[1]))
        self._count_removed(mailbox, made).add_done_callback(
            lambda done: None if done.cancelled() or done.exception() else self._count_dead(mailbox, done.result())
        )

    def _most_letters(self) -> tuple[int, int]:
        """How many dead letters one subscriber, and all of one principal, may have."""
        return self.settings.max_dead_letters, self.settings.max_principal_dead_letters

    def _count_dead(self, mailbox: Mailbox, count: int) -> None:
        mailbox.dead += count
        self.statistics.counts["dead"] += count

    # ---- time and limits

    def enforce_limits(self, mailbox: Mailbox) -> None:
        """Handle time-outs and the limit of pending deliveries; called ten times per second."""
        if mailbox.connected is not None:
            for delivery in mailbox.timed_out(time.monotonic()):
                self._try_failed(mailbox, delivery, "not acknowledged in time")
        self._enforce_pending_limit(mailbox)

    def _enforce_pending_limit(self, mailbox: Mailbox) -> None:
        subscriber, options = mailbox.subscriber, mailbox.subscriber.options
        if mailbox.removal_due:
            mailbox.removal_due = False
            mailbox.wake.set()
        mailbox.within_limit |= mailbox.pending <= options.limit
        reason, frees = self._why_too_much(mailbox), options.policy == "drop_oldest"
        disconnects = options.policy == "disconnect" and reason == OVER_LIMIT
        if not reason or subscriber.ephemeral or mailbox.is_shrinking:
            pass
        elif not frees and not disconnects and self.writer.full:
            pass  # dead letters need space
        elif not disconnects and mailbox.gone is not None and not self.writer.full:
            mailbox.removal_due = True  # what is being fetched is the oldest: it is sent before more is removed
        elif not disconnects:
            mailbox.is_shrinking = True
            removal = self._removal_of_oldest(mailbox, options, reason)
            removed = self.writer.submit(removal, mandatory=frees, frees_space=frees)
            removed.add_done_callback(partial(self._oldest_removed, mailbox, options))
        elif mailbox.within_limit and mailbox.connected is not None and not subscriber.paused:
            mailbox.within_limit = False
            mailbox.close_slow_connections()

    def _why_too_much(self, mailbox: Mailbox) -> str:
        """Why the oldest deliveries of a subscriber are to go; empty: they may stay."""
        if not mailbox.subscriber.ephemeral:
            if self.store.deliveries.bytes.committed.get(mailbox.subscriber.number, 0) > mailbox.most_bytes:
                return OVER_BYTES
            if mailbox.oldest_seconds() > self.settings.max_pending_seconds and not clock.in_doubt():
                return TOO_OLD
        return OVER_LIMIT if mailbox.pending > mailbox.subscriber.options.limit else ""

    def _removal_of_oldest(
        self, mailbox: Mailbox, options: Options, reason: str
    ) -> Callable[[], tuple[list[Key], list[Key]]]:
        """The operation that removes the oldest deliveries of a durable subscriber, some at once. Those of them,
        or of the next ones, that have expired are removed first. Unless its policy is to drop them, the others become
        dead letters: also those of one that is only disconnected above its own limit."""
        now, most = clock.now(), self._most_letters()
        number, bytes_allowed, at_once = mailbox.subscriber.number, mailbox.most_bytes, _removed_at_once(mailbox)
        before = now - int(self.settings.max_pending_seconds * 1e6)

        def excess() -> int:
            if reason == OVER_BYTES:
                return self.store.retention.count_beyond(number, bytes_allowed, at_once)
            if reason == TOO_OLD:
                return self.store.retention.count_older(number, before, at_once)
            return self.store.deliveries.pending_of(number, options.limit + at_once) - options.limit

        def remove() -> tuple[list[Key], list[Key]]:
            """Returns those that have expired, and the others that were removed. What counts is the store at the moment
            when this runs: acknowledgements may have waited before it."""
            over = excess()
            if over <= 0:
                return [], []
            oldest = self.store.deliveries.oldest(number, over + FETCH_ROWS)
            late = self.store.deliveries.expired_of(oldest, now)
            expired = set(late)
            keys = [key for key in oldest if key not in expired][: max(over - len(late), 0)]
            spooled = options.policy != "drop_oldest"
            if spooled:
                self.store.deliveries.bury(number, keys, 0, reason, *most)
            self.store.deliveries.acknowledge((number, *key) for key in (late if spooled else late + keys))
            self.store.subscribers.add_losses(number, dropped=0 if spooled else len(keys), expired=len(late))
            return late, keys

        return remove

    def _oldest_removed(
        self, mailbox: Mailbox, options: Options, done: asyncio.Future[tuple[list[Key], list[Key]]]
    ) -> None:
        mailbox.is_shrinking, mailbox.oldest = False, None
        mailbox.wake.set()
        at_once = _removed_at_once(mailbox)
        if done.cancelled() or done.exception() is not None:
            mailbox.most_removed = max(at_once // 2, 1)
            return  # tried again later
        mailbox.most_removed = 2 * at_once
        late, keys = done.result()
        mailbox.drop(seq for _, seq in late + keys)
        mailbox.pending -= len(late) + len(keys)
        self._count_expired(mailbox, len(late))
        if options.policy != "drop_oldest":
            self._count_dead(mailbox, len(keys))
        else:
            mailbox.dropped += len(keys)
            self.statistics.counts["dropped"] += len(keys)
        there_are_more = len(late) + len(keys) >= at_once
        if there_are_more and (mailbox.connected is None or mailbox.subscriber.paused):
            self._enforce_pending_limit(mailbox)  # otherwise the connections have their turn, until the next look


def _removed_at_once(mailbox: Mailbox) -> int:
    return min(OLDEST_ROWS, mailbox.most_removed)
