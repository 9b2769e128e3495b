"""Fields of a filter that must fit in the same object of a list.

    {"items": {"sku": A, "price": B}}     EXISTS(items WHERE sku fits A AND price fits B)

Event Ruler goes through the fields in the order of their names. The first one that is there decides in which object the
others are looked for. A field may also be asked to be absent: before that, from all objects, and after it, from this
one. So a field that may be absent makes two cases:

    {"items": {"a": A, "b": absent or B}}     EXISTS(items WHERE a fits A AND (b is absent OR b fits B))
    {"items": {"a": absent or A, "b": B}}     EXISTS(items WHERE a fits A AND b fits B)
                                              OR no object has an a, AND EXISTS(items WHERE b fits B)

Alternatives are cases, too, if only some of them are about the same list.

Without a schema, every object around a field may be a list. Then the event is first looked at as if there were no
lists, which an index is good at. Where there is one, an object of it must fit as well:

    {"d": {"a": A, "b": B}}     d.a fits A AND d.b fits B
                                AND (LENGTH(d) IS NULL OR EXISTS(d WHERE a fits A AND b fits B))
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from hitbox.dialects.conditions import FALSE, TRUE, Condition, both, either, limited, name, predicate, test
from hitbox.errors import DialectError

MAX_CASES = 1000
"""EventBridge allows as many."""


class Field(Protocol):
    """A field, and what is asked of it. `level` says from where it is seen: 0 is the event, 1 an object of the first
    list on the way to it."""

    @property
    def steps(self) -> tuple[str, ...]:
        """The lists on the way, each as an object of the one before knows it, and the field itself."""

    @property
    def may_be_absent(self) -> bool: ...

    def needed(self) -> Field:
        """This field, which may not be absent now."""

    def fits(self, level: int) -> Condition: ...

    def is_absent(self, level: int) -> Condition: ...


@dataclass(frozen=True)
class AllOf:
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class AnyOf:
    parts: tuple[Part, ...]


Part = Field | AllOf | AnyOf


class SameObject:
    """The condition that a filter fits. `is_open`: there is no schema that says what is a list."""

    def __init__(self, is_open: bool):
        self._is_open, self._cases = is_open, 1

    def condition(self, parts: Iterable[Part], level: int = 0) -> Condition:
        """All parts fit, seen from `level`."""
        parts = list(_flat(parts))
        groups: dict[str | int, list[Part]] = {}
        for at, part in enumerate(parts):
            others = [*parts[:at], *parts[at + 1 :]]
            own = _lists([part], level)
            is_shared = not own.isdisjoint(_lists(others, level) - {None})
            if isinstance(part, AnyOf) and is_shared and (len(own) > 1 or _may_be_absent(parts, own, level)):
                self._count(len(part.parts) - 1)
                return either(*(self.condition([*parts[:at], one, *parts[at + 1 :]], level) for one in part.parts))
            (first, *_) = own
            together = first is not None and (is_shared or not isinstance(part, AnyOf))
            groups.setdefault(first if together and first is not None else at, []).append(part)
        return both(*(self._group(of, several, level) for of, several in groups.items()))

    def _group(self, of: str | int, parts: list[Part], level: int) -> Condition:
        if isinstance(of, str):
            return self._of_list(of, parts, level)
        (part,) = parts
        if isinstance(part, AnyOf):
            return either(*(self.condition([one], level) for one in part.parts))
        assert not isinstance(part, AllOf)
        return part.fits(level)

    def _of_list(self, of: str, parts: list[Part], level: int) -> Condition:
        fields = list(_fields(parts))
        if not self._is_open or level or len(fields) == 1:
            return self._one_object(of, parts, level)
        certain = [_of_event(one) for one in parts if not _may_be_absent([one], {of}, level)]
        rest = [one.fits(0) for one in fields if one.may_be_absent]
        return both(*certain, either(both(*_no_lists(fields), *rest), self._one_object(of, parts, level)))

    def _one_object(self, of: str, parts: list[Part], level: int) -> Condition:
        """Fields of one list. They fit in one object, except for those that are absent before it is chosen."""
        if not _may_be_absent(parts, {of}, level):
            return self._exists(of, parts, level)
        fields = sorted(_fields(parts), key=lambda one: one.steps)  # all of them must fit: alternatives became cases
        chosen = next((at for at, one in enumerate(fields) if not one.may_be_absent), len(fields))
        self._count(chosen)
        found = self._exists(of, fields[chosen:], level) if chosen < len(fields) else TRUE
        for at in reversed(range(chosen)):
            there = self._exists(of, [fields[at].needed(), *fields[at + 1 :]], level)
            found = limited(either(there, both(fields[at].is_absent(level), found)))
        return found

    def _exists(self, of: str, parts: Sequence[Part], level: int) -> Condition:
        """An object fits. The first field is there, so that there is an object."""
        fields = list(_fields(parts))
        if self._is_open and len(fields) == 1:  # any object will do
            return fields[0].fits(level)
        return exists(of, self.condition(parts, level + 1))

    def _count(self, more: int) -> None:
        self._cases += more
        if self._cases > MAX_CASES:
            raise DialectError(f"the pattern makes more than {MAX_CASES} cases: split it into several")


def exists(of: str, inner: Condition) -> Condition:
    """An object of a list fits."""
    return FALSE if inner is FALSE else test(f"EXISTS({name(of)} WHERE {predicate(inner)})")


def _of_event(part: Part) -> Condition:
    """A part as if the event had no lists."""
    if isinstance(part, (AllOf, AnyOf)):
        return (both if isinstance(part, AllOf) else either)(*map(_of_event, part.parts))
    return part.fits(0)


def _no_lists(fields: Sequence[Field]) -> list[Condition]:
    """None of the objects that several fields are in is a list."""
    around = Counter(one.steps[:end] for one in fields for end in range(1, len(one.steps)))
    return [test(f"LENGTH({name('.'.join(steps))}) IS NULL") for steps, times in around.items() if times > 1]


def _flat(parts: Iterable[Part]) -> Iterator[Part]:
    for part in parts:
        if isinstance(part, AllOf):
            yield from _flat(part.parts)
        else:
            yield part


def _fields(parts: Iterable[Part]) -> Iterator[Field]:
    for part in parts:
        if isinstance(part, (AllOf, AnyOf)):
            yield from _fields(part.parts)
        else:
            yield part


def _lists(parts: Iterable[Part], level: int) -> set[str | None]:
    """The lists that the fields are in; None stands for none."""
    return {one.steps[level] if len(one.steps) > level + 1 else None for one in _fields(parts)}


def _may_be_absent(parts: Iterable[Part], lists: set[str | None], level: int) -> bool:
    return any(one.may_be_absent and not lists.isdisjoint(_lists([one], level)) for one in _fields(parts))
