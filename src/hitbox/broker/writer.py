"""One thread that writes: whatever has queued up while the last commit was synced goes into the next one.

    submit(op) -> future        op(db) runs inside a transaction, together with the others of its group
                                the future is done when the group is durable

A disk that is full fails the operations that were asked to fail; those that must not be lost (acknowledgements, the
matches of an event that was accepted) stay at the head of the queue and are tried again until there is room. An
operation checks before it changes anything: a HitboxError fails it alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import apsw

from hitbox.broker.errors import StoreFailed, StoreFull
from hitbox.errors import HitboxError

GROUP = 4096
RETRY_SECONDS = 0.2
NO_ROOM = (apsw.FullError, OSError)


class Transaction(Protocol):
    """What the writer needs of a store."""

    def begin(self) -> None: ...

    def commit(self) -> None: ...

    def rollback(self) -> None: ...


@dataclass(slots=True)
class Job:
    op: Callable[[], Any]
    future: asyncio.Future[Any]
    must: bool
    result: Any = None
    error: BaseException | None = field(default=None)


class Writer:
    def __init__(self, store: Transaction, loop: asyncio.AbstractEventLoop, relief: Callable[[], Any] | None = None):
        self._store, self._loop, self._relief = store, loop, relief
        self._jobs: deque[Job] = deque()
        self._wake = threading.Condition()
        self._closing = False
        self.broken: BaseException | None = None
        self.full = False
        self.commits = 0
        self._thread = threading.Thread(target=self._run, name="hitbox-writer", daemon=True)
        self._thread.start()

    def submit(self, op: Callable[[], Any], *, must: bool = False) -> asyncio.Future[Any]:
        """Queue an operation from the event loop; `must` ones outlive a full disk."""
        job = Job(op, self._loop.create_future(), must)
        with self._wake:
            if self._closing or self.broken:
                job.future.set_exception(StoreFailed(f"the store is closed{f': {self.broken}' if self.broken else ''}"))
            else:
                self._jobs.append(job)
                self._wake.notify()
        return job.future

    def waiting(self) -> int:
        return len(self._jobs)

    async def close(self) -> None:
        """Finish what is queued and end."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        while True:
            with self._wake:
                while not self._jobs and not self._closing:
                    self._wake.wait()
                if not self._jobs:
                    return
                group = [self._jobs.popleft() for _ in range(min(len(self._jobs), GROUP))]
            self._work(group)

    def _work(self, group: list[Job]) -> None:
        try:
            left = self._commit(group)
        except NO_ROOM as problem:
            left = self._no_room(group, problem)
        except BaseException as problem:  # nothing is known of the store any more: refuse everything from here on
            self.broken = problem
            for job in group:
                job.error = StoreFailed(f"the store failed: {problem!r}")
            left = []
        waiting = {id(job) for job in left}
        done = [job for job in group if id(job) not in waiting]
        if done:
            self._loop.call_soon_threadsafe(_settle, done)
        if left:
            with self._wake:
                self._jobs.extendleft(reversed(left))
                if self._closing:  # no room and no time: what must stay is derived again at the next start
                    self._jobs.clear()
                self._wake.wait(RETRY_SECONDS)
            self._relieve()

    def _relieve(self) -> None:
        """Let retention make room, if it can."""
        if self._relief is not None:
            with contextlib.suppress(apsw.Error, OSError):
                self._store.begin()
                try:
                    self._relief()
                    self._store.commit()
                finally:
                    self._store.rollback()

    def _commit(self, group: list[Job]) -> list[Job]:
        """Run and commit a group; an operation that fails unexpectedly is taken out and the others run again."""
        while True:
            self._store.begin()
            try:
                for job in group:
                    if job.error is None:
                        self._try(job)
                self._store.commit()
            except _Culprit:
                self._store.rollback()
            except BaseException:
                self._store.rollback()
                raise
            else:
                self.commits += 1
                self.full = False
                return []

    def _try(self, job: Job) -> None:
        try:
            job.result = job.op()
        except HitboxError as problem:
            job.error = problem
        except (apsw.FullError, apsw.IOError, apsw.CorruptError, OSError):
            raise  # not the operation's fault
        except Exception as problem:
            job.error = problem
            raise _Culprit from problem

    def _no_room(self, group: list[Job], problem: BaseException) -> list[Job]:
        """Fail what may fail; what must not is left."""
        self.full = True
        for job in group:
            if not job.must and job.error is None:
                job.error = StoreFull(f"the disk is full ({problem}); nothing was accepted, make room and try again")
        left = [job for job in group if job.must and job.error is None]
        if not left or len(left) == len(group):
            return left
        try:
            return self._commit(left)
        except NO_ROOM:
            return left


class _Culprit(Exception):
    """An operation failed in a way that nobody foresaw."""


def _settle(jobs: list[Job]) -> None:
    for job in jobs:
        if job.future.done():
            continue
        if job.error is not None:
            job.future.set_exception(job.error)
        else:
            job.future.set_result(job.result)
