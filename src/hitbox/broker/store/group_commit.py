"""Group commit: one writer thread commits all operations together that queued up during the last commit.

    submit(op) -> future        op() runs in a transaction, together with the other operations of its group;
                                the future is done when the group is durable

When the disk is full, ordinary operations fail. Mandatory ones (acknowledgements, the deliveries of an accepted event)
stay at the head of the queue and are tried again until there is space. Operations that only free space go ahead of
them. The store has a reserve of disk space for this. After any other failure of the store the writer stops for good:
what is on disk is unknown until a restart reads it. An operation must check everything before its first change: a
HitboxError makes that operation fail alone. So does an unexpected exception, which is logged.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import apsw

from hitbox.broker.store.store import Store
from hitbox.errors import HitboxError
from hitbox.protocol.errors import StoreFailed, StoreFull

GROUP = 4096
RETRY_SECONDS = 0.2
REFUSED = "%s: publishing is refused until there is room"
log = logging.getLogger("hitbox.broker")


@dataclass(slots=True)
class Job:
    op: Callable[[], Any]
    future: asyncio.Future[Any]
    mandatory: bool
    frees_space: bool
    result: Any = None
    error: BaseException | None = field(default=None)


class Writer:
    """The writer thread. `full`: the disk is full. `broken`: the error after which nothing can be written.

    `free_space` is called in a transaction while the disk is full, to delete what may be deleted.
    """

    def __init__(self, store: Store, loop: asyncio.AbstractEventLoop, free_space: Callable[[], Any] | None = None):
        self._store, self._loop, self._free_space = store, loop, free_space
        self._jobs: deque[Job] = deque()
        self._wake = threading.Condition()
        self._closing = False
        self.broken: BaseException | None = None
        self.full = not store.has_room
        self.reason = store.space.what_is_full() if self.full else ""
        self.commits = self.unexpected_errors = 0
        if self.full:
            log.error(REFUSED, self.reason)
        self._begin()

    def _begin(self) -> None:
        self._thread = threading.Thread(target=self._run, name="hitbox-writer", daemon=True)
        self._thread.start()

    def submit(
        self, op: Callable[[], Any], *, mandatory: bool = False, frees_space: bool = False
    ) -> asyncio.Future[Any]:
        """Queue an operation, on the event loop. `mandatory`: keep it while the disk is full. `frees_space`: it only
        deletes, or leads to deletes, and runs even then."""
        job = Job(op, self._loop.create_future(), mandatory, frees_space)
        with self._wake:
            if self._closing or self.broken:
                job.future.set_exception(
                    StoreFailed(f"the store is closed{f': {self.broken!r}' if self.broken else ''}")
                )
            else:
                self._jobs.append(job)
                self._wake.notify()
        return job.future

    def waiting(self) -> int:
        return len(self._jobs)

    def problem(self) -> str:
        """Why nothing can be written; empty if writing works."""
        return f"the store failed: {self.broken!r}" if self.broken is not None else self.reason

    async def close(self) -> None:
        """Finish the queue and end the thread."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        while True:
            with self._wake:
                while not self._jobs and not self._closing and not self.full:
                    self._wake.wait()
                if not self._jobs and self._closing:
                    return
            if self.commit_group():
                with self._wake:
                    self._wake.wait(RETRY_SECONDS)

    def commit_group(self) -> bool:
        """Commit what has queued up; returns whether to pause before the next group."""
        with self._wake:
            group = [self._jobs.popleft() for _ in range(min(len(self._jobs), GROUP))]
        left: list[Job] = []
        try:
            left = self._work(group)
            if self.full:
                self._recover(bool(left))
        except BaseException as problem:
            self._break(problem)
        if self.broken is not None:
            with self._wake:
                group += self._jobs  # nothing in the queue can be written any more
                self._jobs.clear()
            left = []
            self._fail(group, StoreFailed(self.problem()))
        if left and self._closing:  # shutting down without space: the next start computes these deliveries again
            self._fail(left, StoreFull(self.reason))
            left = []
        waiting = {id(job) for job in left}
        done = [job for job in group if id(job) not in waiting]
        if done:
            self._answer(done)
        with self._wake:
            self._jobs.extendleft(reversed(left))
        return self.full

    def _answer(self, jobs: list[Job]) -> None:
        self._loop.call_soon_threadsafe(resolve_futures, jobs)

    def _work(self, group: list[Job]) -> list[Job]:
        """Commit a group; returns the jobs to try again later."""
        if self.broken is not None or not group:
            return []
        if self.full:
            self._refuse(group)
        try:
            self._commit(group)
        except Exception as problem:
            if not self._temporary(problem):
                raise
            return self._no_room(group, problem)
        return []

    def _temporary(self, problem: BaseException) -> bool:
        return isinstance(problem, apsw.BusyError) or self._store.is_full(problem)

    def _break(self, problem: BaseException) -> None:
        if self.broken is None:
            self.broken, self.full = problem, False
            log.critical("the store failed; nothing more is accepted, restart the broker", exc_info=problem)

    def _fail(self, jobs: list[Job], problem: StoreFailed) -> None:
        for job in jobs:
            job.error = job.error or problem

    def _refuse(self, group: list[Job]) -> None:
        problem = StoreFull(f"{self.reason}; nothing was accepted, make room and try again")
        self._fail([job for job in group if not job.mandatory and not job.frees_space], problem)

    def _no_room(self, group: list[Job], problem: BaseException) -> list[Job]:
        """The disk is full: fail ordinary jobs, and write the others with the reserve. Returns those left."""
        busy = isinstance(problem, apsw.BusyError)
        why = "the store is locked by another program" if busy else self._store.space.what_is_full()
        self.reason = f"{why} ({problem})"
        if not self.full:
            self.full = True
            log.error(REFUSED, self.reason)
        self._refuse(group)
        self._store.space.release()
        wanted = [job for job in group if job.error is None]
        left: list[Job] = []
        if wanted and not self._fits(wanted):
            for job in wanted:  # in order, but jobs that only free space go ahead of those that wait
                if job.frees_space:
                    self._store.space.release(all=True)
                if (left and not job.frees_space) or not self._fits([job]):
                    left.append(job)
        return left

    def _fits(self, jobs: list[Job]) -> bool:
        try:
            self._commit(jobs)
        except Exception as problem:
            if not self._temporary(problem):
                raise
            return False
        return True

    def _recover(self, waiting: bool) -> None:
        """Try to free space, and check whether there is enough."""
        if not self._freed():
            self._store.space.release(all=True)
            self._freed()
        if self._store.space.restore_reserve() and not waiting:
            self.full, self.reason = False, ""
            log.warning("the store has room again")

    def _freed(self) -> bool:
        """Delete what may be deleted; returns false if there was no room for this."""
        try:
            if self._free_space is not None:
                self._store.begin()
                self._free_space()
                self._store.commit()
            return True
        except Exception as problem:
            if not self._temporary(problem):
                raise
            return False
        finally:
            self._store.rollback()

    def _commit(self, group: list[Job]) -> None:
        """Run and commit a group. If an operation fails unexpectedly, the others run again without it."""
        while any(job.error is None for job in group):
            try:
                self._store.begin()
                for job in group:
                    if job.error is None:
                        self._try(job)
                self._store.commit()
            except _UnexpectedError:
                self._store.rollback()
            except BaseException:
                self._store.rollback()
                raise
            else:
                self.commits += 1
                return

    def _try(self, job: Job) -> None:
        try:
            job.result = job.op()
        except HitboxError as problem:
            job.error = problem
        except (apsw.FullError, apsw.IOError, apsw.CorruptError, apsw.BusyError, OSError, MemoryError):
            raise  # a failure of the store, not of the operation
        except Exception as problem:
            job.error = problem
            self.unexpected_errors += 1
            log.error("an operation of the store failed unexpectedly", exc_info=problem)
            raise _UnexpectedError from problem


class _UnexpectedError(Exception):
    """An operation raised an exception that is neither a HitboxError nor a failure of the store."""


def resolve_futures(jobs: list[Job]) -> None:
    """Set results and errors of the futures; on the event loop."""
    for job in jobs:
        if job.future.done():
            continue
        if job.error is not None:
            job.future.set_exception(job.error)
        else:
            job.future.set_result(job.result)
