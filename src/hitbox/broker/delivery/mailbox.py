"""The pending deliveries of one subscriber.

    offer ->  ready[9] ... ready[0]  -> take ->  in_flight (sent, not acknowledged)  -> acknowledge
                  ^   in memory, bounded             |  time-out or refusal: a pause, or a dead letter
    spool --------+   on disk, in the same order     +-> front of ready, after the pause

The time-out of a delivery starts when it is written to the connection, and starts again at each `extend`.

A subscriber has one connection, or several if it is `shared`. Then each delivery in flight is held by one of them, each
has a window of its own, and what a connection held when it ended returns to the front of `ready`, for the others.

A durable subscriber's deliveries are in the store. Only the next ones are in memory, and only while it is connected. If
memory is full, or there is no connection, new deliveries go to disk only, and are fetched in order, most urgent first,
once `ready` is empty. `disk_level` is the highest level of which there may be such deliveries: what is more urgent does
not wait behind them. An ephemeral subscriber's deliveries are in memory only.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import msgspec

from hitbox.broker.clock import clock, time
from hitbox.broker.events.changes import parted
from hitbox.broker.events.published_event import expires_at
from hitbox.broker.settings import MOST
from hitbox.broker.store.tables import StoredDelivery
from hitbox.broker.subscribers.subscriptions import Sight, Subscriber
from hitbox.encoding.arrays import LEVELS

MEMORY_ROWS = 1_000
"""Deliveries in memory; beyond, others go to disk. Twice as many if the others are more urgent than some that wait."""
FRAME_BYTES = 256 * 1024
FRAME_COUNT = 500
NAME_BYTES = 24
"""That the name of a subscription counts of a frame."""
MANY_NAMES = 5_000
"""Of subscriptions: more of them are encoded in a thread, so many at once."""
_encode = msgspec.json.Encoder().encode
MOST_DOUBLINGS = 60  # of a pause: more would overflow, and every limit is reached earlier


class Connection(Protocol):
    """A connection that sends deliveries. Its methods must not block."""

    def close(self, code: int, reason: str) -> None: ...

    def send_now(self, mailbox: Mailbox) -> bool:
        """Send what is ready, if it can be sent at once; returns whether the task that sends need not wake up."""
        ...


@dataclass(slots=True, eq=False)
class Consumer:
    """A connection in its mailbox. `window`: how many deliveries it may hold. `held`: how many it holds."""

    connection: Connection
    window: int
    held: int = 0
    resting: bool = False
    """It waits for deliveries: what it got before is written."""
    closing: bool = False
    """It was too slow, and gets nothing more."""


class Delivery(msgspec.Struct, eq=False):
    """One event for one subscriber, with all the subscriptions that matched."""

    seq: int
    level: int
    ids: list[str]
    time: int
    body: bytes
    sent: bool = False
    tries: int = 0
    accepted: int = 0
    determined: int = 0
    live: bool = True
    committed: int = 0
    deadline: float = 0.0
    retry_at: float = 0.0
    holder: Consumer | None = None
    sent_at: int = 0
    """When it was written to the connection, in nanoseconds of the clock of `accepted`."""
    expires: int = 0
    """When it is not to be sent any more, in microseconds since 1970; 0: never."""
    sight: Sight | None = None
    """Whoever has this sight may see it; None: that is to be found out."""

    def encode(self, body: bytes | None = None) -> bytes:
        """As JSON; the event's text is copied unchanged. `body`: another text to send instead."""
        if len(self.ids) <= MANY_NAMES:
            names, changes = _names(self.ids)
        else:
            parts = [_names(self.ids[at : at + MANY_NAMES]) for at in range(0, len(self.ids), MANY_NAMES)]
            names, changes = (b",".join(filter(None, some)) for some in zip(*parts, strict=True))
        names += b'],"changes":{%b}' % changes if changes else b"]"
        again = b"true" if self.sent else b"false"
        return b'{"seq":%d,"level":%d,"time":%d,"attempt":%d,"redelivered":%b,"subscriptions":[%b,%b' % (
            self.seq, self.level, self.time, self.tries + 1, again, names, (body or self.body)[1:],
        )  # fmt: skip


def _names(ids: list[str]) -> tuple[bytes, bytes]:
    """The names of subscriptions, and what a change means to those that are told, as JSON without brackets."""
    text = _encode(ids)
    if b" " not in text:  # changes stand behind names
        return text[1:-1], b""
    plain, by_name = parted(ids)
    return _encode(plain)[1:-1], _encode(by_name)[1:-1]


class Mailbox:
    """The queue of one subscriber. `busy`: where a mailbox with pending
    deliveries adds itself, by the number of its subscriber, so that nobody has to look at all the idle ones."""

    def __init__(self, subscriber: Subscriber, pending: int = 0, busy: dict[int, Mailbox] | None = None):
        self.subscriber = subscriber
        self._busy = {} if busy is None else busy
        if pending:
            self._busy[subscriber.number] = self
        self.pending = pending  # durable subscriber: number of its rows in the store
        self.pending_bytes = 0  # of these in the store; told now and then, as the next two
        self.most_bytes = MOST
        """How many bytes of them there may be."""
        self.oldest: tuple[int, int] | None = None
        """(number, time) of the oldest pending event, if it is known."""
        self.dropped = self.dead = self.resent = self.expired = 0
        self._consumers: dict[int, Consumer] = {}  # by the id of the connection, the newest last
        self.gone: set[int] | None = None  # while one of them fetches from disk: what was removed meanwhile
        self.is_shrinking = False  # the oldest deliveries are being removed, because there are more than the limit
        self.most_removed = MOST  # of these at once: fewer after a try that the disk had no room for
        self.removal_due = False  # this is to be done before the next fetch from disk
        self.wake, self.idle = asyncio.Event(), asyncio.Event()
        self.disk_level = LEVELS - 1 if pending else -1
        """The highest level of which deliveries may be on disk only; -1: all are in memory."""
        self.spilled_to = -1
        """The highest level of the deliveries that went to disk since the latest fetch began; -1: there are none."""
        self.newest = 0
        self._ready: list[deque[Delivery]] = [deque() for _ in range(LEVELS)]
        self.ready = 0
        self.in_flight: dict[int, Delivery] = {}  # by deadline, except those without one (being sent, or in a pause)
        self.paused = 0  # how many in flight failed and wait for their next try
        self._retry_heap: list[tuple[float, int]] = []
        self.unstored_tries: dict[int, int] = {}
        """The number of tries of deliveries that failed, by event, until the store has it."""
        self.unstored_dead: set[int] = set()
        """Events whose deliveries are dead letters, until the store has these."""
        self.unstored_acks: set[int] = set()
        """Events that were acknowledged when they were not in memory, until the store has removed their deliveries."""
        self._latest_deadline = 0.0  # of any delivery in flight
        self.written: deque[tuple[float, int]] = deque()
        """(time, seq) of what was written to the latest event stream and is not acknowledged, in this order."""
        self.webhook_problem = ""  # why its latest request failed
        self.webhook_session: Connection | None = None  # that of the webhook, while it receives the deliveries
        self.webhook_requests = 0  # since it was set, or the broker started
        self.within_limit = True  # has been within its limit since it was disconnected for exceeding it

    # ---- in

    def offer(self, deliveries: list[Delivery]) -> int:
        """Add deliveries of one level, in the order of their events; returns how many of them, from the first on, will
        be sent from memory (the others from disk, or not at all)."""
        if self.subscriber.ephemeral and not self._consumers:
            return 0
        self.pending += len(deliveries)
        self._busy[self.subscriber.number] = self
        self.newest = max(self.newest, deliveries[-1].seq)  # a batch comes level by level, so not in order of number
        if self.subscriber.ephemeral:
            self._push(deliveries)
            self._drop_oldest(self.ready - self.subscriber.options.limit)
            return len(deliveries)
        level, room = deliveries[0].level, 0
        if self._consumers and level > self.disk_level:
            overtakes = self.spilled or any(self._ready[:level])
            room = max((2 * MEMORY_ROWS if overtakes else MEMORY_ROWS) - self.ready, 0)
        if len(deliveries) > room:
            self._spill(level)
            deliveries = deliveries[:room]
        self._push(deliveries)
        return len(deliveries)

    @property
    def spilled(self) -> bool:
        """Whether deliveries may be on disk only."""
        return self.disk_level >= 0

    def _spill(self, level: int) -> None:
        """Deliveries of this level are on disk only."""
        self.disk_level = max(self.disk_level, level)
        self.spilled_to = max(self.spilled_to, level)

    def _drop_oldest(self, count: int) -> None:
        """An ephemeral subscriber has so many deliveries more than its limit."""
        if count > 0 and self.subscriber.options.policy == "disconnect":
            self.close_slow_connections()
        for _ in range(count):
            oldest = min((queue for queue in self._ready if queue), key=lambda queue: queue[0].seq)
            oldest.popleft()
            self.ready -= 1
            self.pending -= 1
            self.dropped += 1

    def _push(self, deliveries: list[Delivery]) -> None:
        """Add deliveries of one level to its queue."""
        if deliveries:
            self._ready[deliveries[0].level].extend(deliveries)
            self.ready += len(deliveries)
            self.idle.clear()
            if self._sent_now() and not self.spilled:
                return
        self.wake.set()

    def _sent_now(self) -> bool:
        """Send what is ready over the only connection, if that waits for something to send: it takes half the time of
        waking its task up."""
        if len(self._consumers) != 1:
            return False
        (one,) = self._consumers.values()
        return one.resting and not one.closing and self.may_send() and one.connection.send_now(self)

    def fill(self, stored: Iterable[StoredDelivery]) -> None:
        """Add deliveries that were fetched from disk, except those that are gone."""
        by_level: dict[int, list[Delivery]] = {}
        gone = self.gone or ()
        for s in stored:
            if s.seq in gone:
                continue
            expires = expires_at(s.time, s.body)
            tries = self.unstored_tries.get(s.seq, s.tries)
            one = Delivery(s.seq, s.level, s.ids, s.time, s.body, s.sent, tries, live=False, expires=expires)
            by_level.setdefault(s.level, []).append(one)
        for level in sorted(by_level, reverse=True):  # the first may be sent at once
            self._push(by_level[level])

    def rows_added(self, count: int) -> None:
        """Deliveries were added to the store directly (a replay)."""
        self.pending += count
        self._busy[self.subscriber.number] = self
        if count:
            self._spill(LEVELS - 1)
        self.wake.set()

    # ---- out

    def window_left(self, connection: Connection) -> int:
        """How many more may be sent. A delivery in its pause is not with the client, so it does not count."""
        consumer = self._consumers[id(connection)]
        return consumer.window - consumer.held - max(self.paused - MEMORY_ROWS, 0)

    def set_window(self, connection: Connection, size: int) -> None:
        if self.is_connected(connection):
            self._consumers[id(connection)].window = size
            self.wake.set()

    def take(self, connection: Connection, most: int = FRAME_COUNT) -> list[Delivery]:
        """The next deliveries for one frame, most urgent first, within the window. They are in flight from now on."""
        found: list[Delivery] = []
        size = 0
        consumer = self._consumers[id(connection)]
        consumer.resting = False
        most = min(most, self.window_left(connection)) if not self.subscriber.ephemeral else most
        until_written = math.inf
        for queue in reversed(self._ready):
            while queue and len(found) < most and size < FRAME_BYTES:
                delivery = queue.popleft()
                size += len(delivery.body) + NAME_BYTES * len(delivery.ids)
                delivery.deadline = until_written
                delivery.holder = consumer
                found.append(delivery)
        self.ready -= len(found)
        if self.subscriber.ephemeral:
            self.pending -= len(found)
        else:
            consumer.held += len(found)
            self.in_flight.update([(d.seq, d) for d in found])
        return found

    def has_next(self, connection: Connection) -> bool:
        """Whether `take` finds something."""
        return self.ready > 0 and (self.subscriber.ephemeral or self.window_left(connection) > 0)

    def may_send(self) -> bool:
        """Not while the oldest deliveries are being removed: those that come next may be dead letters already."""
        return not self.subscriber.paused and not self.is_shrinking

    def rest(self, connection: Connection) -> None:
        """A connection has written everything that it got, and waits."""
        self._consumers[id(connection)].resting = True
        if all(one.resting for one in self._consumers.values()):
            self.idle.set()

    def needs_refill(self, connection: Connection) -> bool:
        wanted = self.spilled and not self.ready and self.gone is None and not self.removal_due
        return wanted and not self.subscriber.ephemeral and self.window_left(connection) > 0

    def holds(self, connection: Connection | None, delivery: Delivery) -> bool:
        """Whether a delivery in flight is with this connection; None: with any."""
        if delivery.holder is None:
            return False
        return connection is None or delivery.holder.connection is connection

    def extend(self, seqs: Iterable[int], connection: Connection | None = None) -> None:
        """Restart the time-out of these deliveries. Those that are not with the client are ignored."""
        deadline = time.monotonic() + self.subscriber.options.visibility_seconds
        in_flight = self.in_flight
        for seq in seqs:
            delivery = in_flight.get(seq)
            if delivery is not None and self.holds(connection, delivery):
                del in_flight[seq]  # move it to the end: in_flight is in order of deadline
                delivery.deadline = deadline
                in_flight[seq] = delivery
        if deadline < self._latest_deadline:  # visibility_seconds became shorter: some have more time than these
            self.in_flight = dict(sorted(self.in_flight.items(), key=lambda one: one[1].deadline))
        self._latest_deadline = max(self._latest_deadline, deadline)

    def acknowledge(self, seqs: Iterable[int]) -> tuple[list[tuple[int, int]], list[int]]:
        """Remove deliveries; returns (level, seq) of those in memory, and the other numbers, which may be on disk."""
        known, unknown = [], []
        for seq in dict.fromkeys(seqs):
            delivery = self._remove_in_flight(seq)
            if delivery is not None:
                known.append((delivery.level, seq))
            else:
                unknown.append(seq)
        self._discard(unknown)
        if self.ready or self.spilled:  # there is room in the window
            self.wake.set()
        return known, unknown

    def _remove_in_flight(self, seq: int) -> Delivery | None:
        delivery = self.in_flight.pop(seq, None)
        if delivery is not None:
            holder = delivery.holder
            if holder is None:
                self.paused -= 1
            else:
                holder.held -= 1
                delivery.holder = None
        return delivery

    def _discard(self, seqs: Iterable[int]) -> None:
        """Remove these from the queues, in one pass, and from what is being fetched."""
        gone = set(seqs)
        if self.gone is not None:
            self.gone |= gone
        if not gone or not self.ready:
            return
        for level, queue in enumerate(self._ready):
            if any(delivery.seq in gone for delivery in queue):
                self._ready[level] = deque(delivery for delivery in queue if delivery.seq not in gone)
        self.ready = sum(map(len, self._ready))

    def is_with_client(self, seq: int) -> bool:
        """Whether a delivery was given to a connection, and neither acknowledged nor returned."""
        delivery = self.in_flight.get(seq)
        return delivery is not None and delivery.holder is not None

    def outstanding(self) -> set[int]:
        """The events whose deliveries are in memory: sent, in a pause, or ready. What was given to a connection that is
        still there, and is pending, is among them."""
        return self.in_flight.keys() | {delivery.seq for queue in self._ready for delivery in queue}

    def drop(self, seqs: Iterable[int]) -> None:
        """Forget deliveries that were deleted from the store."""
        seqs = list(seqs)
        for seq in seqs:
            self._remove_in_flight(seq)
        self._discard(seqs)

    # ---- time

    def timed_out(self, now: float) -> list[Delivery]:
        """The deliveries in flight that are past their time-out. Those whose pause is over return to their queue."""
        while self._retry_heap and self._retry_heap[0][0] <= now:
            at, seq = heapq.heappop(self._retry_heap)
            delivery = self.in_flight.get(seq)
            # An entry with another time belongs to an earlier delivery of this event, acknowledged and then replayed.
            if delivery is not None and not delivery.deadline and delivery.retry_at == at:
                self._remove_in_flight(delivery.seq)
                self._return(delivery)
        late = []
        for delivery in self.in_flight.values():
            if now < delivery.deadline < math.inf:
                break
            if 0 < delivery.deadline <= now:
                late.append(delivery)
        return late

    def _return(self, delivery: Delivery) -> None:
        """Put a delivery that was sent at the front of its queue."""
        delivery.sent, delivery.live = True, False
        self._ready[delivery.level].appendleft(delivery)
        self.ready += 1
        self.resent += 1
        self.wake.set()

    def put_back(self, deliveries: list[Delivery]) -> None:
        """These were taken, and not sent: they return to their places, as if they had not been taken."""
        for delivery in reversed(deliveries):
            if self.subscriber.ephemeral:
                self.pending += 1
            if self.subscriber.ephemeral or self._remove_in_flight(delivery.seq) is not None:
                queue = self._ready[delivery.level]
                at = next((i for i, other in enumerate(queue) if other.seq > delivery.seq), len(queue))
                queue.insert(at, delivery)
                self.ready += 1
        self.wake.set()

    def try_failed(self, delivery: Delivery, now: float) -> bool:
        """Count a failed try; returns whether there will be another one, after a pause."""
        options = self.subscriber.options
        delivery.tries += 1
        self.wake.set()
        if delivery.tries >= options.max_tries:
            self._remove_in_flight(delivery.seq)
            return False
        delivery.deadline = 0.0
        if delivery.holder is not None:
            delivery.holder.held -= 1
            delivery.holder = None
        self.paused += 1
        doubled = 2.0 ** min(delivery.tries - 1, MOST_DOUBLINGS)
        pause = min(options.backoff_seconds * doubled, options.max_backoff_seconds)
        delivery.retry_at = now + pause
        heapq.heappush(self._retry_heap, (delivery.retry_at, delivery.seq))
        return True

    # ---- connections

    @property
    def connected(self) -> Connection | None:
        """The newest connection."""
        return next((one.connection for one in reversed(self._consumers.values())), None)

    def connections(self) -> list[Connection]:
        """All of them, the newest last."""
        return [one.connection for one in self._consumers.values()]

    def connection_count(self) -> int:
        return len(self._consumers)

    def is_reached(self) -> bool:
        """Whether somebody gets the deliveries: a webhook whose latest request failed does not."""
        failing = self.webhook_session if self.webhook_problem else None
        return any(one.connection is not failing for one in self._consumers.values())

    def is_connected(self, connection: Connection) -> bool:
        return id(connection) in self._consumers

    def is_served(self, connection: Connection) -> bool:
        """Whether a connection may get deliveries: it was neither closed nor replaced."""
        consumer = self._consumers.get(id(connection))
        return consumer is not None and not consumer.closing

    def close_slow_connections(self) -> None:
        """More deliveries wait than the limit: close the connections of now, also those whose client does not read."""
        for one in self._consumers.values():
            if not one.closing:
                one.closing = True
                one.connection.close(1013, "too slow: more deliveries are waiting than the subscriber's limit")
        self.wake.set()

    def connect(self, connection: Connection, window: int) -> None:
        self._consumers[id(connection)] = Consumer(connection, window)
        self.wake.set()

    def disconnect(self, connection: Connection | None) -> None:
        """What a connection holds goes to the others. If there are none, forget what is in memory; a durable
        subscriber's deliveries are on disk."""
        consumer = self._consumers.pop(id(connection), None)
        if consumer is None:
            return
        self.subscriber.used = time.monotonic()
        if self._consumers:
            for delivery in reversed([d for d in self.in_flight.values() if d.holder is consumer]):
                self._remove_in_flight(delivery.seq)
                self._return(delivery)
            self.wake.set()
            return
        for queue in self._ready:
            queue.clear()
        self.ready = 0
        self.in_flight.clear()
        self.paused = 0
        self._retry_heap.clear()
        if self.subscriber.ephemeral:
            self.pending = 0
        else:
            self.disk_level = LEVELS - 1 if self.pending > 0 else -1
        self.idle.set()
        self.wake.set()

    def unused_seconds(self) -> float:
        """How long the subscriber has had no connection, no webhook that is in use, and no change of its subscriptions
        or options. Called every second if it can expire."""
        now, s = time.monotonic(), self.subscriber
        if self._consumers or (s.webhook is not None and not s.webhook.disabled):
            s.used = now
        return now - s.used

    def oldest_seconds(self) -> float:
        """The age of the oldest pending event, as far as it is known."""
        return max(clock.seconds() - self.oldest[1] / 1e6, 0.0) if self.pending and self.oldest is not None else 0.0

    def webhook_state(self) -> str:
        """For the metrics: "ok", "failing" (its latest request failed) or "disabled"; empty: it has no webhook."""
        webhook = self.subscriber.webhook
        if webhook is None:
            return ""
        return "disabled" if webhook.disabled else "failing" if self.webhook_problem else "ok"

    def describe(self) -> dict[str, object]:
        """State of the subscriber for the API and the page."""
        s = self.subscriber
        webhook = None
        if s.webhook is not None:
            webhook = {**s.webhook.describe(time.time()), "problem": s.webhook.disabled or self.webhook_problem}
            webhook["requests"] = self.webhook_requests
        return {
            "name": s.name, "ephemeral": s.ephemeral, "connected": self.is_reached(),
            "connections": len(self._consumers), "paused": s.paused,
            "unused_seconds": round(self.unused_seconds(), 1) if s.options.expires_seconds else None,
            "subscriptions": s.subscriptions, "pending": self.pending,
            "pending_bytes": self.pending_bytes if self.pending else 0,
            "oldest_pending_seconds": round(self.oldest_seconds(), 1), "held": len(self.in_flight),
            "spooled": self.spilled, "dropped": self.dropped, "expired": self.expired, "dead": self.dead,
            "redelivered": self.resent, "webhook": webhook, "options": msgspec.to_builtins(s.options),
        }  # fmt: skip
