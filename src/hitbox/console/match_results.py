"""Matches as a table, under the events' own ids and in the forms that `hitbox match --spark` writes, too.

arrays    one row per event: its id, the columns to keep, `subscriptions`
pairs     one row per match: the same with `subscription`
counts    one row per event: the same with the number of its `matches`

If events that do not fit come back, there is one more column, `error`; their rows have the reason there, and no result.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from hitbox.errors import TableError, ValueProblem, nearest
from hitbox.index.matches import ERROR, RESULTS, Matches

ID_COLUMNS = ("event_id", "id")
"""The first of these columns identifies an event, if no other is named; without any, it is the number of its row."""
ROW = "event"


def labels(events: pa.Table, event_id: str | None, keep: Sequence[str], form: str, on_error: str) -> pa.Table:
    """The columns of the events that go with the matches: what identifies an event, and those to keep."""
    if form not in RESULTS:
        raise ValueProblem(f"--form is one of {', '.join(RESULTS)}, not {form!r}{nearest(form, RESULTS)}")
    columns = events.column_names
    id = event_id or next((name for name in ID_COLUMNS if name in columns), None)
    names = list(dict.fromkeys([*([id] if id else []), *keep]))
    for name in names:
        if name not in columns:
            raise TableError(f"the events have no column {name!r}{nearest(name, columns)}")
        if name in (RESULTS[form], *([ERROR] if on_error == "return" else [])) or (id is None and name == ROW):
            raise TableError(f"the events have a column {name!r}, which is the name of a result: rename it")
    chosen = events.select(names)
    return chosen if id else chosen.add_column(0, ROW, pa.array(range(len(events)), pa.int64()))


def limited(matches: Matches, most: int | None) -> Matches:
    """At most so many matches per event, the most urgent ones."""
    if most is None:
        return matches
    if most < 0:
        raise ValueProblem(f"--limit is a whole number from 0 on, not {most}")
    counts = np.minimum(matches.counts, most)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    kept = np.arange(offsets[-1]) + np.repeat(matches.offsets[:-1] - offsets[:-1], counts)
    return Matches(offsets, matches.ids.take(pa.array(kept)), matches.errors)


def as_table(matches: Matches, events: pa.Table, form: str, on_error: str) -> pa.Table:
    """`events`: the labels of the events."""
    numbers = np.arange(len(matches))
    if form == "pairs":
        numbers = np.repeat(numbers, matches.counts)
        table = events.take(pa.array(numbers)).append_column(RESULTS[form], matches.ids)
    else:
        results = matches.to_list_array() if form == "arrays" else pa.array(matches.counts)
        table = events.append_column(RESULTS[form], results)
    if on_error != "return":
        return table
    bad = np.array([number for number, _ in matches.errors], np.int64)
    fits = ~np.isin(numbers, bad)
    reasons = pa.array([reason for _, reason in matches.errors], pa.string())
    fitting = table.filter(pa.array(fits)).append_column(ERROR, pa.nulls(int(fits.sum()), pa.string()))
    returned = events.take(pa.array(bad)).append_column(RESULTS[form], pa.nulls(len(bad), table[RESULTS[form]].type))
    both = pa.concat_tables([fitting, returned.append_column(ERROR, reasons)])
    return both.take(pa.array(np.argsort(np.concatenate([numbers[fits], bad]), kind="stable")))
