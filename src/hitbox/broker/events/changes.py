"""Changes: events with an old and a new image, {"old": {...}, "new": {...}}, and what they mean for subscriptions.

A subscriber with the option `changes` is told for each of its subscriptions whether the document enters, leaves or
stays; the others get what matches the new image. In deliveries, in memory and in the store, the change stands behind
the name of the subscription, "cheap enter": a name has no blank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

from hitbox.encoding.schema import Schema

Change = Literal["enter", "leave", "stay"]
Levels = dict[int, list[str]]
"""{priority: ids of subscriptions}."""
Image = Mapping[str, Any] | None


def images(schema: Schema, event: Mapping[str, Any]) -> tuple[Image, Image] | None:
    """The old and the new image of a change; None if the event is no change."""
    given = [name for name in ("old", "new") if name in event]
    declared = any(name in schema or name in schema.objects for name in given)
    if not given or declared or (schema.is_open and not event.keys() <= {"old", "new"}):
        return None
    old, new = event.get("old"), event.get("new")
    if not all(one is None or isinstance(one, Mapping) for one in (old, new)):
        return None
    return old, new


def transitions(before: Levels, after: Levels, wants: Callable[[str], bool]) -> Levels:
    """What matched the old and the new image, as what the change means. `wants`: whether to name the change for a
    subscription; of the others, those that match the new image stay as they are."""
    earlier = {id for ids in before.values() for id in ids}
    later = {id for ids in after.values() for id in ids}
    found: Levels = {}
    for level in sorted({*before, *after}, reverse=True):
        ids = [_named(id, "stay" if id in earlier else "enter") if wants(id) else id for id in after.get(level, [])] + [
            _named(id, "leave") for id in before.get(level, []) if id not in later and wants(id)
        ]
        if ids:
            found[level] = ids
    return found


def _named(id: str, change: Change) -> str:
    return f"{id} {change}"


def parted(names: Iterable[str]) -> tuple[list[str], dict[str, str]]:
    """The names of subscriptions, and the change for those that have one.

    >>> parted(["cheap enter", "near"])
    (['cheap', 'near'], {'cheap': 'enter'})
    """
    pairs = [name.partition(" ") for name in names]
    return [name for name, _, _ in pairs], {name: change for name, _, change in pairs if change}
