"""A connection to a broker: publish, manage, and make subscribers."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import IO, Any

import httpx
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidURI
from websockets.typing import Subprotocol

from hitbox.client.errors import error_of
from hitbox.client.management import Management
from hitbox.client.payload import cloudevent_fields, payload_fields
from hitbox.client.publish_socket import LARGEST, ConnectionLost, PublishSocket
from hitbox.client.subscriber import StateCallback, Subscriber
from hitbox.client.sync import SyncClient
from hitbox.client.wire import (
    LONGEST_PAUSE,
    PROTOCOL,
    BadEventReport,
    Progress,
    checked_token,
    checked_url,
    decoded,
    encoded,
    https_hint,
    no_progress,
    pauses,
    tls_context,
)
from hitbox.encoding import inputs
from hitbox.encoding.fitting import FOR_EVENTS, check_on_error, fitted, misfit
from hitbox.encoding.values import for_json
from hitbox.protocol.errors import BadRequest, NoAnswer, Overloaded, StoreFailed
from hitbox.protocol.payload import BATCHED

NO_SOCKET = (400, 403, 404, 405, 426)
"""The status with which /v1/publish is refused where there are no sockets: by a proxy that does not pass them."""


class Client(Management):
    """A connection to the broker at `url`; `token` if the broker requires one.

    `timeout`: seconds to wait for an answer. `connect_seconds`: how long to wait for a connection, and to try for a
    subscriber's first one; None means forever. For an https address, `ca` is a file with the certificates (PEM) to
    trust instead of the system's, and `client_cert` a file with the client's own certificate and key, or a pair of
    files.

    Every method raises a BrokerError: `NoAnswer` if none came within `timeout`, `Overloaded` if the broker has no room
    now, `Forbidden` without the right, `BadRequest`, `BadEvent` or `BadPredicate` for what it cannot take::

        async with hitbox.Client("http://127.0.0.1:8400", token) as client:
            await client.put_subscriber("ann")
            await client.put_subscription("ann", "cheap", "price < 20", priority=7)
            number = await client.publish({"price": 12.5, "city": "Paris"})
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1:8400",
        token: str | None = None,
        timeout: float = 30.0,
        connect_seconds: float | None = 5.0,
        ca: str | os.PathLike[str] | None = None,
        client_cert: str | os.PathLike[str] | tuple[str | os.PathLike[str], str | os.PathLike[str]] | None = None,
    ):
        self.url, self._token = checked_url(url), checked_token(token)
        self._tls = tls_context(ca, client_cert) if self.url.startswith("https:") else None
        self.timeout, self.connect_seconds = timeout, connect_seconds
        headers = {"authorization": f"Bearer {token}"} if token else {}
        self._publishing = PublishSocket(lambda: self.open_socket("/v1/publish", timeout))
        self._publish_by_http = False
        wait = httpx.Timeout(timeout, connect=timeout if connect_seconds is None else min(timeout, connect_seconds))
        self._http = httpx.AsyncClient(
            base_url=self.url, headers=headers, timeout=wait, trust_env=False, verify=self._tls or False
        )

    def __repr__(self) -> str:
        return f"Client({self.url!r})"

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Disconnect, for good. A publish without an answer raises NoAnswer, also if it has an id."""
        await self._publishing.close()
        await self._http.aclose()

    async def request(self, method: str, path: str, body: Any = None, **query: Any) -> Any:
        """Send any request of the HTTP API; an error of the broker becomes an exception."""
        return await self._send(method, path, None if body is None else encoded(body), "application/json", query)

    async def _send(
        self, method: str, path: str, content: bytes | None, kind: str, query: Mapping[str, Any] | None = None
    ) -> Any:
        headers = {"content-type": kind} if content is not None else {}
        response = await self._answer(method, path, content=content, headers=headers, params=query)
        answer, status = decoded(response.content), response.status_code
        if answer is None and response.content:
            raise StoreFailed(
                f"the server at {self.url} is not a broker: {method} {path} returned no JSON (status {status})"
            )
        if status >= 400:
            raise error_of(answer, status)
        return answer

    def _check_open(self) -> None:
        if self._publishing.closed:
            raise StoreFailed("the client is closed")

    async def _answer(self, method: str, path: str, **request: Any) -> httpx.Response:
        self._check_open()
        try:
            return await self._http.request(method, path, **request)
        except httpx.HTTPError as problem:
            why = f"{problem or type(problem).__name__}{https_hint(self.url, problem)}"
            raise NoAnswer(f"no answer from the broker at {self.url}: {why}") from problem

    async def metrics(self) -> str:
        """The figures for Prometheus, as text."""
        response = await self._answer("GET", "/metrics")
        if response.status_code >= 400:
            raise error_of(decoded(response.content), response.status_code)
        return response.text

    async def health(self) -> dict[str, Any]:
        """What /readyz says: "ok", "status", "reason", "checks"; also if the broker cannot be used."""
        response = await self._answer("GET", "/readyz")
        state = decoded(response.content)
        if not isinstance(state, dict) or "checks" not in state:
            raise self._no_broker("GET /readyz", response)
        return state

    async def alive(self) -> bool:
        """What /livez says: false if only a restart helps."""
        response = await self._answer("GET", "/livez")
        if response.status_code not in (200, 503):
            raise self._no_broker("GET /livez", response)
        return response.status_code == 200

    def _no_broker(self, asked: str, response: httpx.Response) -> StoreFailed:
        return StoreFailed(
            f"there is no broker at {self.url}: {asked} was answered with status {response.status_code}. The "
            "address of a broker is like http://127.0.0.1:8400, without a path"
        )

    async def live(self, where: str = "") -> AsyncIterator[dict[str, Any]]:
        """Once per second {"stats": .., "events": .., "arrived": ..}: the figures and the latest events, or those for
        which the predicate holds. Ends when the broker ends it."""
        params = {"where": where} if where else {}
        self._check_open()
        try:
            timeout = httpx.Timeout(self.timeout, read=None)
            async with self._http.stream("GET", "/v1/live", params=params, timeout=timeout) as response:
                if response.status_code >= 400:
                    raise error_of(decoded(await response.aread()), response.status_code)
                async for line in response.aiter_lines():
                    if line.startswith("data: ") and isinstance(figures := decoded(line[6:].encode()), dict):
                        yield figures
        except httpx.HTTPError as problem:
            raise StoreFailed(
                f"the broker at {self.url} sends no more: {problem or type(problem).__name__}"
            ) from problem

    async def backup(self, folder: str | os.PathLike[str], progress: Progress = no_progress) -> list[str]:
        """Copy the broker's store, as of one moment, into a new folder, and check it; returns what `hitbox admin check`
        would report. `progress` gets (done, total), in bytes."""
        from hitbox.broker.upkeep.backup import receive

        loop = asyncio.get_running_loop()
        downloads: list[Future[None]] = []

        def fetch(file: IO[bytes]) -> None:
            work = self.download("POST", "/v1/backup", file, progress)
            downloads.append(asyncio.run_coroutine_threadsafe(work, loop))
            downloads[0].result()

        try:
            return await asyncio.to_thread(receive, fetch, Path(folder))
        except asyncio.CancelledError:
            for download in downloads:  # so that the thread ends, and removes what it has made
                download.cancel()
            raise

    async def download(self, method: str, path: str, file: IO[bytes], progress: Progress = no_progress) -> None:
        """Write the answer to a file. `progress` gets (done, total), in bytes."""
        done = total = 0
        self._check_open()
        try:
            timeout = httpx.Timeout(self.timeout, read=None)  # the broker may need long to prepare the answer
            async with self._http.stream(method, path, timeout=timeout) as response:
                if response.status_code >= 400:
                    raise error_of(decoded(await response.aread()), response.status_code)
                total = int(response.headers.get("content-length", 0))
                async for chunk in response.aiter_bytes():
                    file.write(chunk)
                    done += len(chunk)
                    progress(done, total)
        except httpx.HTTPError as problem:
            raise StoreFailed(
                f"no complete answer from the broker at {self.url}: {problem or type(problem).__name__}"
            ) from problem
        if done != total:
            raise StoreFailed(f"the answer of the broker at {self.url} ended after {done} of {total} bytes")

    async def publish(
        self,
        event: Any,
        where: str | None = None,
        *,
        payload: Any = None,
        content_type: str | None = None,
        id: str | None = None,
        ttl_seconds: float | None = None,
        delay_seconds: float | None = None,
    ) -> int:
        """Publish one event; returns its number once it is durable. `payload` is delivered with it, but not matched:
        anything that JSON can hold, or bytes with a `content_type`. With an `id` that no other event has, such as a
        UUID, the event is stored once, however often it is published, and the client tries again if it gets no
        answer. After `ttl_seconds` it is not delivered any more. With `delay_seconds` it is matched and delivered that
        much later; the number is then its number among the delayed events, for `cancel_delayed`, or 0 if the id belongs
        to an event whose delay has passed."""
        more: dict[str, Any] = {"payloads": [payload], "content_types": [content_type], "ids": [id]}
        times: dict[str, Any] = {"ttl_seconds": ttl_seconds, "delay_seconds": delay_seconds}
        return await self.publish_many([event], [where], **more, **times)

    async def publish_many(
        self,
        events: Any,
        where: Sequence[str | None] | None = None,
        *,
        payloads: Sequence[Any] | None = None,
        content_types: Sequence[str | None] | None = None,
        ids: Sequence[str | None] | None = None,
        ttl_seconds: float | None = None,
        delay_seconds: float | None = None,
        on_error: str = "raise",
        report: BadEventReport | None = None,
    ) -> int:
        """Publish events, all or none; returns the number of the first. Retries if the broker is overloaded, unless it
        would have to wait longer than `timeout`. They are a list or a table, as in `Index.match_batch`. `where`,
        `payloads`, `content_types` and `ids` have one entry per event; with ids, the events need not have numbers that
        follow each other. `ttl_seconds` and `delay_seconds` are for all of them.

        Many calls may be in progress; they share one connection, and what arrives together is stored together.

        With `on_error="null"` an event whose values do not fit is published with null in their place; with "return" it
        is left out. `report` is called with the number of each such event and the reason; "return" needs it.
        """
        check_on_error(on_error, FOR_EVENTS)
        if on_error == "return" and report is None:
            raise BadRequest("on_error='return' needs report=, a function of the number of a bad event and the reason")
        rows = inputs.rows(events)
        given = {"where": where, "payloads": payloads, "content_types": content_types, "ids": ids}
        columns = [_column(name, column, len(rows)) for name, column in given.items()]
        errors: dict[int, str] = {}
        items: dict[int, dict[str, Any]] = {}
        for number, (event, text, payload, kind, id) in enumerate(zip(rows, *columns, strict=True)):
            if on_error != "raise" and (problem := misfit(_sendable, event)):
                errors[number] = problem
                if on_error == "return":
                    continue
                event = fitted(_sendable, event)
            items[number] = {
                "event": for_json(event),
                **_given(where=text, id=id, delay_seconds=delay_seconds, ttl_seconds=ttl_seconds),
                **payload_fields(payload, kind),
            }
        sent, repeatable = list(items.values()), all("id" in item for item in items.values())
        if on_error == "raise":
            return await self._publish_until_accepted(lambda: self._publish(sent), repeatable)

        async def publish() -> Any:
            answer = await self.request("POST", "/v1/events", sent, on_error=on_error)
            numbers = list(items)
            bad.update({numbers[error["event"]]: error["error"] for error in answer["errors"]})
            return answer

        bad: dict[int, str] = {}
        first = await self._publish_until_accepted(publish, repeatable)
        if report is not None:
            for number, reason in sorted((bad | errors).items()):
                report(number, reason)
        return first

    async def publish_cloudevents(self, *events: Mapping[str, Any]) -> int:
        """Publish CloudEvents in JSON format, all or none; returns the number of the first. Their `data` may be bytes:
        it is sent as `data_base64`."""
        content = encoded([cloudevent_fields(event) for event in events])
        return await self._publish_until_accepted(lambda: self._send("POST", "/v1/events", content, BATCHED), True)

    async def _publish_until_accepted(self, publish: Callable[[], Awaitable[Any]], repeatable: bool) -> int:
        """The number of the first event. Tries again while the broker is overloaded, unless it says to wait longer than
        `timeout` seconds. Without an answer it tries again, for `timeout` seconds, if the events have ids."""
        until = time.monotonic() + self.timeout
        for pause in pauses():
            try:
                answer = await publish()
                return int(answer["delayed"] if "delayed" in answer else answer["first"])
            except (KeyError, TypeError, ValueError):
                raise StoreFailed(f"the server at {self.url} is not a broker: it returned no event number") from None
            except Overloaded as problem:
                if pause >= LONGEST_PAUSE / 2 or problem.retry_after > self.timeout:
                    raise
                await asyncio.sleep(max(pause, problem.retry_after))
            except NoAnswer:
                if not repeatable or self._publishing.closed or time.monotonic() + pause >= until:
                    raise
                await asyncio.sleep(pause)
        raise AssertionError("pauses do not end")

    async def _publish(self, items: list[dict[str, Any]]) -> Any:
        """Publish over the socket. If there is none, publish by HTTP, which also says what is wrong."""
        content, by_http = encoded(items), partial(self.request, "POST", "/v1/events", items)
        self._check_open()
        if self._publish_by_http or len(content) > LARGEST:
            return await by_http()
        try:
            async with asyncio.timeout(self.timeout):
                try:
                    await self._publishing.open()
                except (OSError, InvalidHandshake, ConnectionClosed, InvalidURI) as problem:
                    status = getattr(getattr(problem, "response", None), "status_code", 0)
                    answer = await by_http()
                    self._publish_by_http = status in NO_SOCKET  # it has no sockets; the client's rights were enough
                    return answer
                if len(content) > self._publishing.largest:
                    return await by_http()
                answer = await self._publishing.publish(content)
        except (ConnectionLost, TimeoutError) as problem:
            reason = str(problem) or f"waited for {self.timeout:g} s"
            raise NoAnswer(
                f"no answer from the broker at {self.url}: {reason}. The events may have been accepted"
            ) from problem
        if answer["type"] == "error":
            raise error_of(answer, answer["status"])
        return answer

    def subscriber(
        self,
        name: str = "",
        *,
        ephemeral: bool = False,
        auto: bool = True,
        window: int = 256,
        handler_seconds: float = 600.0,
        subscriptions: Iterable[Mapping[str, Any]] = (),
        cloudevents: bool = False,
        on_state: StateCallback | None = None,
        **options: Any,
    ) -> Subscriber:
        """A subscriber; `async with` connects it. `options`: its options (policy, limit, visibility_seconds, ...).

        `window`: how many unacknowledged deliveries the client may have. `handler_seconds`: how long the client asks
        for more time for a delivery in the handler. `subscriptions` (name, where, priority, about) are created together
        with the subscriber, all or none. `cloudevents`: deliver whole CloudEvents, in `Delivery.cloudevent`.
        `on_state` is called when the connection changes: ("connected", ""), and ("lost", reason), ("reconnecting",
        reason) before each attempt, ("closed", reason) when it is over.
        """
        hello: dict[str, Any] = {"type": "hello", "subscriber": name, "ephemeral": ephemeral}
        if options:
            hello["options"] = options
        if cloudevents:
            hello["format"] = "cloudevents"
        return Subscriber(
            self, hello, auto, window, handler_seconds, [dict(subscription) for subscription in subscriptions], on_state
        )

    def open_socket(self, path: str, seconds: float | None) -> Any:
        address = "ws" + self.url[len("http") :] + path
        headers = {"authorization": f"Bearer {self._token}"} if self._token else {}
        unlimited: dict[str, Any] = {"max_size": None, "compression": None, "proxy": None, "open_timeout": seconds}
        wanted = [Subprotocol(PROTOCOL)]
        return connect(address, additional_headers=headers, ssl=self._tls, subprotocols=wanted, **unlimited)

    @classmethod
    def sync(cls, *args: Any, **named: Any) -> SyncClient:
        """A client for programs without an event loop."""
        return SyncClient(lambda: cls(*args, **named))


def _sendable(event: Any) -> None:
    """Raise an error for an event that cannot be sent as JSON."""
    encoded(for_json(event))


def _given(**fields: Any) -> dict[str, Any]:
    """The fields that have a value."""
    return {name: value for name, value in fields.items() if value is not None}


def _column(name: str, given: Sequence[Any] | None, count: int) -> Sequence[Any]:
    """One value per event; None for each if nothing is given."""
    if given is None:
        return [None] * count
    if len(given) != count:
        raise BadRequest(f"{name} has {len(given)} entries for {count} events")
    return given
