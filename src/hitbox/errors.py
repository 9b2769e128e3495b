"""Every error that hitbox raises, with the place in the text and, for a name, the nearest valid one.

All derive from `HitboxError`, so one `except` catches them. Errors are raised before any state changes.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec


class HitboxError(Exception):
    """Base of all hitbox errors."""


class HitboxWarning(UserWarning):
    """Base of all hitbox warnings."""


class NeverMatches(HitboxWarning):
    """A predicate was accepted that can never be true."""


class PredicateError(HitboxError):
    """A predicate's text is wrong; carries the position and prints a caret under it."""

    def __init__(self, message: str, text: str = "", position: int | None = None):
        self.message, self.text, self.position = message, text, position
        super().__init__(message if position is None else f"{message}\n{caret(text, position)}")

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.message, self.text, self.position))


class SyntaxProblem(PredicateError):
    """The text is not in the language."""


class TypeProblem(PredicateError):
    """A literal does not fit the attribute that it is compared with."""


class LimitExceeded(PredicateError):
    """A predicate is longer, deeper or wider than the limits allow."""


class UnknownAttribute(PredicateError):
    """A name that the schema does not have."""


class DialectError(PredicateError):
    """A filter of another system is wrong, or says what our language cannot."""


class SchemaError(HitboxError):
    """A schema, role, domain or precision is wrong."""


class ValueProblem(HitboxError):
    """An event's or a subscription's value does not fit its attribute."""


class TooExpensive(HitboxError):
    """A subscription takes more steps on an event than it may, so whether it matches is not known. `event` is the
    event's number in its batch, or a text that names it; None of a single event. `steps` are those that it was allowed.
    `id` is None if the event's own `where` takes too many, for all subscriptions together: those that were left do not
    match."""

    def __init__(self, id: int | str | None, event: int | str | None, steps: int):
        self.id, self.event, self.steps = id, event, steps
        which = "this event" if event is None else event if isinstance(event, str) else f"event {event} of the batch"
        if id is None:
            super().__init__(
                f"the `where` of {which} is too expensive: {steps:,} steps did not decide which subscriptions it "
                "wants; simplify it, or raise Limits(match_steps=...)"
            )
            return
        super().__init__(
            f"subscription {id!r:.200} is too expensive: {steps:,} steps did not decide whether it matches {which}; "
            "simplify its predicate, send shorter lists or texts, or raise Limits(match_steps=...)"
        )

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.id, self.event, self.steps))


class MissingExtra(HitboxError, ImportError):
    """A part of hitbox needs a package that is not installed."""


class UnknownId(HitboxError, KeyError):
    """An id that does not exist."""

    def __str__(self) -> str:  # KeyError would print the repr
        return str(self.args[0])


class UnknownSubscription(UnknownId):
    """No subscription of the index has this id."""


class UnknownEvent(UnknownId):
    """No stored event of the exchange has this id."""


class MatcherError(HitboxError):
    """A matcher is unknown, not installed, or asked for something that it cannot do."""


class WorkloadError(HitboxError):
    """A workload, or a parameter of one, is unknown or out of range, or a rule file is unreadable."""


class TableError(HitboxError):
    """A table's columns or rows do not fit; `rows` lists (row number, message)."""

    def __init__(self, message: str, rows: list[tuple[int, str]] | None = None):
        self.message, self.rows = message, rows or []
        super().__init__(message)

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.message, self.rows))


class SnapshotError(HitboxError):
    """A snapshot is damaged, newer than this version, or cannot be written."""


class DamagedArray(SnapshotError):
    """An array of a snapshot holds impossible values. The caller that knows its file adds the path."""

    def __init__(self, name: str, reason: str):
        self.name, self.reason = name, reason
        super().__init__(f"the array {name} is damaged: {reason}")

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.name, self.reason))


class WriterConflict(SnapshotError):
    """Another writer is writing the snapshot, or has changed it since this one read it; nothing was written."""


def caret(text: str, position: int, width: int = 72) -> str:
    """The line of `text` around `position` with a caret below it.

    >>> print(caret("price > > 3", 8))
      price > > 3
              ^
    """
    start = text.rfind("\n", 0, position) + 1
    end = text.find("\n", position)
    end = len(text) if end < 0 else end
    column = position - start
    left = max(0, column - width // 2)
    right = left + width
    line = printable(text[start:end][left:right])
    head, tail = "…" if left else "", "…" if start + right < end else ""
    return f"  {head}{line}{tail}\n  {' ' * (len(head) + column - left)}^"


def printable(text: str) -> str:
    """The text with a mark in place of each control or invisible character; a tab becomes a space."""
    return "".join(c if c.isprintable() else " " if c == "\t" else "\N{REPLACEMENT CHARACTER}" for c in text)


def warn(message: str) -> None:
    """Give a HitboxWarning that points at the line of the caller's own code."""
    import inspect  # takes long to import, and is needed for a warning only
    import warnings

    frame, level = inspect.currentframe(), 1
    while frame is not None and frame.f_globals.get("__name__", "").split(".")[0] == "hitbox":
        frame, level = frame.f_back, level + 1
    warnings.warn(HitboxWarning(message), stacklevel=level)


def counted(count: int, one: str, many: str) -> str:
    """A number and what it counts.

    >>> counted(1, "change does", "changes do"), counted(2000, "change does", "changes do")
    ('1 change does', '2,000 changes do')
    """
    return f"{count:,} {one if count == 1 else many}"


def nearest(name: object, known: Iterable[str]) -> str:
    """A trailing hint, `; did you mean 'price'?`, or "" where no known name is similar.

    >>> nearest("prise", ["price", "qty"])
    "; did you mean 'price'?"
    """
    close = closest(name, known) if isinstance(name, str) else None
    return "" if close is None else f"; did you mean {close!r}?"


def closest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is most similar, if one is."""
    import difflib  # only after a mistyped name

    names = list(known)
    close = difflib.get_close_matches(name[:200], names, n=1, cutoff=0.6)
    return next(iter(close), None) or next((one for one in names if one.lower() == name.lower()), None)


def require_extra(module: str, extra: str, *packages: str) -> None:
    """Raise MissingExtra if a package that `module` needs is not installed; the message names the extra to install."""
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        raise MissingExtra(f"{module} needs {' and '.join(missing)}: pip install 'hitbox[{extra}]'", name=missing[0])
