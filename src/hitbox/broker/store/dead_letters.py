"""Dead letters: how many each subscriber has, and whose oldest are removed beyond a limit: of who has the most."""

from __future__ import annotations

from collections.abc import Sequence

import apsw
import msgspec

from hitbox.broker.store.checked_table import CheckedTable, Row
from hitbox.broker.store.tally import Tally

LETTER_BYTES = 128
"""Of a dead letter, about, without its names and its event."""
SIZE = f"length(ids) + ifnull(length(body), 0) + {LETTER_BYTES}"
TRIMMED = 1_000


class DeadLetters:
    """`counts` and `bytes` of the letters of each subscriber. Changed by the writer's thread only."""

    def __init__(self, db: apsw.Connection, table: CheckedTable):
        self._db, self.table = db, table
        self.counts, self.bytes = Tally[int](), Tally[int]()
        self._groups: dict[str, set[int]] | None = None  # subscribers with letters, by owner; None: not known

    def load(self) -> None:
        """Count what there is, at a start."""
        found = list(self._db.execute(f"SELECT subscriber, count(*), sum({SIZE}) FROM dead GROUP BY subscriber"))
        self.counts.load({subscriber: count for subscriber, count, _ in found})
        self.bytes.load({subscriber: size for subscriber, _, size in found})

    def add(self, rows: Sequence[Row]) -> None:
        self.table.insert(rows)
        for subscriber in {row[1] for row in rows if self._groups is not None and not self.counts.now(row[1])}:
            self._by_owner().setdefault(self._owner(subscriber), set()).add(subscriber)
        for _, subscriber, _, _, ids, *_, body in rows:
            self.counts.more[subscriber] += 1
            self.bytes.more[subscriber] += len(ids) + len(body or b"") + LETTER_BYTES

    def delete(self, condition: str, values: Row) -> int:
        """Delete letters; returns how many there were."""
        query = f"SELECT subscriber, count(*), sum({SIZE}) FROM dead WHERE {condition} GROUP BY subscriber"
        for subscriber, count, size in self._db.execute(query, values):
            self.counts.more[subscriber] -= count
            self.bytes.more[subscriber] -= size
        return self.table.delete_where(condition, values)

    def drop(self, numbers: Sequence[int]) -> int:
        """Delete dead letters; returns how many there were."""
        return sum(self.delete("number = ?", (number,)) for number in numbers)

    def limit(self, subscriber: int, most: int, most_of_principal: int) -> None:
        """Keep the newest `most` letters of a subscriber, and so many of all that belong to its principal, or to nobody
        as it does. Those with the most letters lose first."""
        self._drop_oldest(subscriber, self.counts.now(subscriber) - most)
        if self.table.rows() <= most_of_principal:
            return  # no principal has more
        group = self._by_owner().get(self._owner(subscriber), set())
        counts = {n: count for n in group if (count := self.counts.now(n)) > 0}
        group.intersection_update(counts)
        over, total = sum(counts.values()) - most_of_principal, 0
        largest = sorted(counts, key=lambda n: (counts[n], n), reverse=True)
        for rank, number in enumerate(largest, 1) if over > 0 else ():
            total += counts[number]
            if rank == len(largest) or total - rank * counts[largest[rank]] >= over:
                kept, more = divmod(total - over, rank)  # all of these keep so many, and some of them one more
                for place, one in enumerate(largest[:rank]):
                    self._drop_oldest(one, counts[one] - kept - (place < more))
                return

    def trim(self, most: int) -> int:
        """If all letters take more than `most` bytes, remove some of the oldest, of the subscriber with the most of the
        principal with the most. Returns how many."""
        groups = ({n: size for n in one if (size := self.bytes.now(n)) > 0} for one in self._by_owner().values())
        owners = list(filter(None, groups))
        over = sum(sum(sizes.values()) for sizes in owners) - most
        if over <= 0:
            return 0
        sizes, step, count = max(owners, key=lambda some: sum(some.values())), over // len(owners), 0
        largest = max(sizes, key=lambda n: (sizes[n], n))
        query = f"SELECT {SIZE} FROM dead WHERE subscriber = ? ORDER BY number LIMIT ?"
        for (size,) in self._db.execute(query, (largest, TRIMMED)):
            step, count = step - size, count + (step >= 0)
        return self._drop_oldest(largest, count)

    def hand_over(self, subscriber: int, owner: str) -> None:
        """The subscriber is about to belong to this principal, or to nobody (empty)."""
        if self._groups is not None:
            before = self._owner(subscriber)
            self._groups.get(before, set()).discard(subscriber)
            if not self._groups.get(before):
                self._groups.pop(before, None)
            if self.counts.now(subscriber) > 0:
                self._groups.setdefault(owner, set()).add(subscriber)

    def forget_owners(self) -> None:
        """A transaction was rolled back."""
        self._groups = None

    def _by_owner(self) -> dict[str, set[int]]:
        """The subscribers with letters, those of each principal and of nobody (empty) together."""
        if self._groups is None:
            numbers = list(self.counts.committed.keys() | self.counts.more.keys())
            query = "SELECT subscriber, principal FROM owners WHERE subscriber IN (SELECT value FROM json_each(?))"
            owners = dict(self._db.execute(query, (msgspec.json.encode(numbers).decode(),)))
            self._groups = {}
            for subscriber in numbers:
                self._groups.setdefault(owners.get(subscriber, ""), set()).add(subscriber)
        return self._groups

    def _owner(self, subscriber: int) -> str:
        found = list(self._db.execute("SELECT principal FROM owners WHERE subscriber = ?", (subscriber,)))
        return found[0][0] if found else ""

    def _drop_oldest(self, subscriber: int, count: int) -> int:
        oldest = "number IN (SELECT number FROM dead WHERE subscriber = ? ORDER BY number LIMIT ?)"
        return self.delete(oldest, (subscriber, count)) if count > 0 else 0
