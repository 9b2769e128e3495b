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
        self._db, self._table = db, table
        self.counts, self.bytes = Tally[int](), Tally[int]()

    def load(self) -> None:
        """Count what there is, at a start."""
        found = list(self._db.execute(f"SELECT subscriber, count(*), sum({SIZE}) FROM dead GROUP BY subscriber"))
        self.counts.load({subscriber: count for subscriber, count, _ in found})
        self.bytes.load({subscriber: size for subscriber, _, size in found})

    def add(self, rows: Sequence[Row]) -> None:
        self._table.insert(rows)
        for _, subscriber, _, _, ids, *_, body in rows:
            self.counts.more[subscriber] += 1
            self.bytes.more[subscriber] += len(ids) + len(body or b"") + LETTER_BYTES

    def delete(self, condition: str, values: Row) -> int:
        """Delete letters; returns how many there were."""
        query = f"SELECT subscriber, count(*), sum({SIZE}) FROM dead WHERE {condition} GROUP BY subscriber"
        for subscriber, count, size in self._db.execute(query, values):
            self.counts.more[subscriber] -= count
            self.bytes.more[subscriber] -= size
        return self._table.delete_where(condition, values)

    def limit(self, subscriber: int, most: int, most_of_principal: int) -> None:
        """Keep the newest `most` letters of a subscriber, and so many of all that belong to its principal, or to nobody
        as it does. Those with the most letters lose first."""
        self._drop_oldest(subscriber, self.counts.now(subscriber) - most)
        if self._table.rows() <= most_of_principal:
            return  # no principal has more
        counts = next((some for some in self._by_owner(self.counts) if subscriber in some), {})
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
        owners = self._by_owner(self.bytes)
        over = sum(sum(sizes.values()) for sizes in owners) - most
        if over <= 0:
            return 0
        sizes, step, count = max(owners, key=lambda some: sum(some.values())), over // len(owners), 0
        largest = max(sizes, key=lambda n: (sizes[n], n))
        query = f"SELECT {SIZE} FROM dead WHERE subscriber = ? ORDER BY number LIMIT ?"
        for (size,) in self._db.execute(query, (largest, TRIMMED)):
            step, count = step - size, count + (step >= 0)
        return self._drop_oldest(largest, count)

    def _by_owner(self, tally: Tally[int]) -> list[dict[int, int]]:
        """The numbers of subscribers, those of each principal and of nobody together."""
        found: dict[str | None, dict[int, int]] = {}
        numbers = {n: tally.now(n) for n in tally.committed.keys() | tally.more.keys()}
        query = "SELECT subscriber, principal FROM owners WHERE subscriber IN (SELECT value FROM json_each(?))"
        owners = dict(self._db.execute(query, (msgspec.json.encode(list(numbers)).decode(),)))
        for subscriber, number in numbers.items():
            found.setdefault(owners.get(subscriber), {})[subscriber] = number
        return list(found.values())

    def _drop_oldest(self, subscriber: int, count: int) -> int:
        oldest = "number IN (SELECT number FROM dead WHERE subscriber = ? ORDER BY number LIMIT ?)"
        return self.delete(oldest, (subscriber, count)) if count > 0 else 0
