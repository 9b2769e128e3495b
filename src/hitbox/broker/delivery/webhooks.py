"""Webhooks: deliveries are sent to subscribers by POST.

A webhook is a receiver like a WebSocket. A request carries up to `batch` deliveries:

    2xx                          they are acknowledged
    410                          the webhook is disabled; its deliveries stay
    anything else, or too late   they failed: tried again, and dead letters at last, as for every subscriber

After a failed request the target is left alone for a while, as long as a delivery that failed as often in a row would
be, or as long as Retry-After says, up to RETRY_AFTER_MOST.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Protocol
from urllib.parse import urlsplit

import httpcore
import msgspec

from hitbox.broker.access.directory import Directory
from hitbox.broker.access.rights import Caller
from hitbox.broker.clock import time
from hitbox.broker.delivery.delivery import DeliveryTracker
from hitbox.broker.delivery.mailbox import MOST_DOUBLINGS, Connection, Delivery, Mailbox
from hitbox.broker.delivery.receiver import Receiver
from hitbox.broker.delivery.target_address import CheckedNetwork
from hitbox.broker.fair_threads import Shares
from hitbox.broker.logs import without_message
from hitbox.broker.settings import Settings
from hitbox.broker.subscribers.webhook import Webhook, check_url, message_id, signed_headers
from hitbox.errors import HitboxError
from hitbox.protocol.errors import BadRequest, NotAllowed

RETRY_AFTER_MOST = 3600.0
REQUEST_SECONDS = 60.0
"""Most time for one request; less if the subscriber's visibility_seconds are fewer."""
ANSWER_BYTES, ANSWER_SECONDS = 64 * 1024, 1.0
"""How much of the body of an answer is read, and thrown away, and for how long at most."""
SHOWN = 200
"""Characters of an error that are kept."""
DRAIN_SECONDS = 5.0
AGAIN_SECONDS = 30.0
"""After this time a webhook is tried again that ended because its owner lacked a right, or by an error."""
log = logging.getLogger("hitbox.broker")


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a request ended: "ok", "status", "gone", "late", "unreachable" or "blocked", for the metrics."""

    kind: str
    says: str = ""
    retry_after: float = 0.0


class Requests:
    """Sends requests to targets; at most `max_webhook_requests` at a time, of which a principal has half at most: its
    targets may be slow, and the others' must not wait for them."""

    def __init__(self, settings: Settings):
        most = settings.max_webhook_requests
        self.network = CheckedNetwork(settings.allow_private_webhooks, most)
        self._turns = asyncio.Semaphore(most)
        self._share = max(most // 2, 1)
        self._shares = Shares()
        context = ssl.create_default_context()
        self._pool = httpcore.AsyncConnectionPool(
            context, max_connections=most, keepalive_expiry=30.0, network_backend=self.network
        )

    @asynccontextmanager
    async def turn(self, owner: str) -> AsyncIterator[None]:
        """Wait until a request may be sent for this principal; empty: the subscriber belongs to nobody."""
        async with self._shares.turn(owner, self._share) if owner else nullcontext(), self._turns:
            yield

    async def post(self, url: str, headers: dict[str, str], body: bytes, seconds: float) -> Outcome:
        try:
            check_url(url, self.network.allow_private)  # it may have been set while more was allowed
            async with asyncio.timeout(seconds) as limit:
                return await self._post(url, headers, body, limit)
        except TimeoutError:
            return Outcome("late", f"no answer within {seconds:g} seconds")
        except BadRequest as problem:  # also AddressNotAllowed
            return Outcome("blocked", str(problem))
        except httpcore.ProtocolError as problem:
            return Outcome("unreachable", f"no valid answer: {shortened(problem)}")
        except (httpcore.NetworkError, httpcore.TimeoutException, OSError) as problem:
            return Outcome("unreachable", f"no connection: {shortened(problem)}")

    async def _post(self, url: str, headers: dict[str, str], body: bytes, limit: asyncio.Timeout) -> Outcome:
        address, host = request_address(url)
        lines = [("host", host), *headers.items()]
        async with self._pool.stream("POST", address, headers=lines, content=body) as answer:
            left = (limit.when() or 0.0) - asyncio.get_running_loop().time()
            limit.reschedule(None)  # the status decides
            status = answer.status
            seconds = retry_after(answer.headers)
            await _throw_away(answer, min(ANSWER_SECONDS, max(left, 0.0) / 2))  # they are acknowledged in time
        if 200 <= status < 300:
            return Outcome("ok")
        if status == 410:
            return Outcome("gone", "the target answered 410 Gone")
        more = ": redirects are not followed" if 300 <= status < 400 else ""
        return Outcome("status", f"the target answered {status}{more}", seconds)

    async def close(self) -> None:
        await self._pool.aclose()
        self.network.close()


def shortened(problem: Exception) -> str:
    """What is wrong. It may repeat what the target sent, and becomes a part of the log and of each dead letter."""
    text = str(problem) or type(problem).__name__
    return text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"


def request_address(url: str) -> tuple[httpcore.URL, str]:
    """The parts of a url, unchanged, and the header Host for it. httpcore's own way loses what follows a semicolon, and
    the brackets of an IPv6 address.

    >>> address, host = request_address("https://[2606:4700::1]:8443/hook;v=1?x=2")
    >>> address.host, address.port, address.target, host
    (b'2606:4700::1', 8443, b'/hook;v=1?x=2', '[2606:4700::1]:8443')
    """
    parts = urlsplit(url)
    name = parts.hostname or ""
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    host = f"[{name.partition('%')[0]}]" if ":" in name else name
    return httpcore.URL(scheme=parts.scheme, host=name, port=parts.port, target=target), (
        host if parts.port is None else f"{host}:{parts.port}"
    )


async def _throw_away(answer: httpcore.Response, seconds: float) -> None:
    """Read the body, so that the connection can be used again. One that is long, slow or broken changes nothing: the
    status has decided, and the connection is closed."""
    size = 0
    try:
        async with asyncio.timeout(seconds):
            async for part in answer.aiter_stream():
                size += len(part)
                if size > ANSWER_BYTES:
                    return
    except (OSError, httpcore.NetworkError, httpcore.ProtocolError):  # also TimeoutError, and errors of TLS
        return


def retry_after(headers: list[tuple[bytes, bytes]]) -> float:
    """The seconds of Retry-After, which is a number or a date; 0 if there is none that can be read."""
    text = next((value for name, value in headers if name.lower() == b"retry-after"), b"").decode("latin-1").strip()
    try:
        if text.isascii() and text.isdigit():
            seconds = float(text[:10])
        else:
            seconds = parsedate_to_datetime(text).timestamp() - time.time()
    except (ValueError, OverflowError):
        return 0.0
    return min(max(seconds, 0.0), RETRY_AFTER_MOST)


class WebhookSession(Receiver):
    """Sends the deliveries of one subscriber to its webhook, as long as it is the subscriber's connection."""

    def __init__(self, tracker: DeliveryTracker, caller: Caller, requests: Requests, mailbox: Mailbox):
        super().__init__(tracker, caller)
        found = mailbox.subscriber.webhook
        assert found is not None
        self.webhook: Webhook = found
        self.owner = mailbox.subscriber.owner
        self.mailbox, self.requests = mailbox, requests
        self.gone = False
        self._slots = asyncio.Semaphore(found.max_requests)
        self._pushing: set[asyncio.Task[None]] = set()
        self._failures = 0  # requests in a row
        self._timer: asyncio.TimerHandle | None = None  # while the target is left alone

    @property
    def window(self) -> int:
        return self.webhook.batch * self.webhook.max_requests

    async def run(self) -> None:
        """Until it is closed or replaced. Raises what ended it otherwise, such as the loss of a right."""
        self.caller.check(self.need)
        self.caller.receiver(self.mailbox.subscriber.name)
        tasks = [asyncio.create_task(self._take()), asyncio.ensure_future(self.ended.wait())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            tasks[0].cancel()  # what comes from now on is not for this target
            if self._pushing:
                await asyncio.wait(self._pushing, timeout=DRAIN_SECONDS)
        finally:
            self._stop_timer()
            for task in (*tasks, *self._pushing):
                task.cancel()
            found = await asyncio.gather(*tasks, *self._pushing, return_exceptions=True)
            problems = [one for one in found if isinstance(one, Exception)]
        if problems:
            raise problems[0]

    async def _take(self) -> None:
        while not self.ended.is_set():
            await self._slots.acquire()
            deliveries: list[Delivery] = []
            try:
                deliveries = await self.next(self.mailbox, self.webhook.batch)
            finally:
                if not deliveries:
                    self._slots.release()
            if not deliveries:
                return
            task = asyncio.create_task(self._push(deliveries))
            self._pushing.add(task)
            task.add_done_callback(self._pushed)

    def _pushed(self, task: asyncio.Task[None]) -> None:
        self._slots.release()
        if task.cancelled() or task.exception() is None:
            self._pushing.discard(task)
        else:
            self.ended.set()  # `run` raises it

    async def _push(self, deliveries: list[Delivery]) -> None:
        async with self.requests.turn(self.owner):
            if not self.ended.is_set():  # again: it may have waited for its turn
                deliveries = await self.seen(self.mailbox, self.tracker.unexpired(self.mailbox, deliveries))
            if self.ended.is_set() or not deliveries:
                return  # they go to whoever is next
            if self.mailbox.subscriber.paused:
                self.mailbox.put_back(deliveries)
                return
            seqs = [d.seq for d in deliveries]
            body = self._body(await self.encoded(deliveries, Delivery.encode))
            id = message_id(self.tracker.incarnation, self.mailbox.subscriber.name, seqs)
            self.tracker.sent(self.mailbox, deliveries)
            headers = signed_headers(self.webhook, id, time.time(), body)
            headers |= {"content-type": "application/json", "user-agent": "hitbox"}
            seconds = min(REQUEST_SECONDS, self.mailbox.subscriber.options.visibility_seconds)
            started = time.perf_counter_ns()
            outcome = await self.requests.post(self.webhook.url, headers, body, seconds)
        self.mailbox.webhook_requests += 1
        statistics = self.tracker.statistics
        statistics.webhook_requests[outcome.kind] += 1
        statistics.webhook_time.observe((time.perf_counter_ns() - started) / 1e9)
        if outcome.kind == "ok":
            self._failures, self.mailbox.webhook_problem = 0, ""
            self.tracker.acknowledge(self.mailbox, seqs)
        elif outcome.kind == "gone":
            self.gone = True
            self.close(4410, outcome.says)
        else:
            self._failed(outcome)
            self.tracker.refuse(self.mailbox, seqs, self, f"webhook: {outcome.says}")

    def _body(self, deliveries: list[bytes]) -> bytes:
        now = datetime.fromtimestamp(time.time(), UTC).isoformat().replace("+00:00", "Z").encode()
        name = msgspec.json.encode(self.mailbox.subscriber.name)
        store = self.tracker.incarnation.encode()
        head = b'{"type":"hitbox.deliveries","timestamp":"%b","data":{"subscriber":%b,"incarnation":"%b","deliveries":['
        head %= (now, name, store)
        return head + b",".join(deliveries) + b"]}}"

    def _failed(self, outcome: Outcome) -> None:
        """Leave the target alone for a while."""
        options, name = self.mailbox.subscriber.options, self.mailbox.subscriber.name
        self.mailbox.webhook_problem = outcome.says
        if not self._failures:
            log.warning("the webhook of subscriber %r failed, and is tried again: %s", name, outcome.says)
        doubled = 2.0 ** min(self._failures, MOST_DOUBLINGS)
        self._failures += 1
        pause = max(min(options.backoff_seconds * doubled, options.max_backoff_seconds), outcome.retry_after)
        loop = asyncio.get_running_loop()
        if self._timer is None or self._timer.when() < loop.time() + pause:
            self._stop_timer()
            self._timer = loop.call_later(pause, self._resume)
        self.mailbox.set_window(self, 0)

    def _resume(self) -> None:
        self._timer = None
        self.mailbox.set_window(self, self.window)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Host(Protocol):
    """What the webhooks need of the broker."""

    closing: bool
    directory: Directory
    tracker: DeliveryTracker
    mailboxes: dict[int, Mailbox]
    settings: Settings

    def connect(self, mailbox: Mailbox, connection: Connection, window: int) -> None: ...

    async def disable_webhook(self, name: str, used: Webhook, reason: str) -> None: ...

    def acting_for(self, owner: str) -> Caller: ...


class Webhooks:
    """The sessions of all subscribers that have a webhook. `update` makes them agree with the settings. The first of
    them makes `requests`; the simulator brings its own."""

    def __init__(self, host: Host):
        self.host = host
        self.requests: Requests | None = None
        self._sessions: dict[int, WebhookSession] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopped = False

    def update(self, mailbox: Mailbox) -> None:
        """Start, restart or end the webhook of a subscriber, if its settings ask for it and no other connection
        receives its deliveries."""
        subscriber = mailbox.subscriber
        session, wanted = self._sessions.get(subscriber.number), subscriber.webhook
        usable = wanted is not None and not wanted.disabled and not self.host.closing and not self._stopped
        if session is not None:
            if not usable or session.webhook != wanted or session.owner != subscriber.owner:
                session.close(1000, "its settings were changed")  # comes back here when it has ended
            return
        taken = mailbox.connected is not None and not subscriber.options.shared
        if not usable or taken or self.host.mailboxes.get(subscriber.number) is not mailbox:
            return
        if self.requests is None:
            self.requests = Requests(self.host.settings)
        caller = self.host.acting_for(subscriber.owner)
        session = WebhookSession(self.host.tracker, caller, self.requests, mailbox)
        self._sessions[subscriber.number] = session
        self.host.connect(mailbox, session, session.window)
        mailbox.webhook_session = session
        task = asyncio.create_task(self._serve(mailbox, session))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, mailbox: Mailbox, session: WebhookSession) -> None:
        name, wait = mailbox.subscriber.name, 0.0
        try:
            with self.host.directory.watched(session):
                await session.run()
        except NotAllowed as problem:
            if mailbox.webhook_problem != str(problem):  # once, not at every try
                log.warning("the webhook of subscriber %r may not be used now: %s", name, problem)
            mailbox.webhook_problem, wait = str(problem), AGAIN_SECONDS
        except Exception as problem:
            log.error("the webhook of subscriber %r failed", name, exc_info=without_message(problem))
            mailbox.webhook_problem, wait = "unexpected error; see the broker's log", AGAIN_SECONDS
        finally:
            self._sessions.pop(mailbox.subscriber.number, None)
            mailbox.disconnect(session)
            mailbox.webhook_session = None
        if session.gone:
            try:
                await self.host.disable_webhook(name, session.webhook, "the target answered 410 Gone")
            except HitboxError as problem:  # the disk is full, or the subscriber was removed
                log.warning("the webhook of subscriber %r could not be disabled: %s", name, problem)
                wait = AGAIN_SECONDS
        if wait:
            asyncio.get_running_loop().call_later(wait, self.update, mailbox)
        else:
            self.update(mailbox)

    async def stop(self) -> None:
        """Finish the requests in flight, for some seconds."""
        self._stopped = True
        for session in list(self._sessions.values()):
            session.close(1012, "the broker is shutting down")
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=DRAIN_SECONDS + 1)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self.requests is not None:
            await self.requests.close()
