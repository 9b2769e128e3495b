"""How large a predicate may be, checked when a subscription is made; and how much work it may take on one event."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from hitbox.errors import HitboxError

UNBOUNDED = 2**62


@dataclass(frozen=True, slots=True)
class Limits:
    """The most characters of `text`, `depth` of nested parentheses and NOTs, `values` in one IN list, and characters of
    one `pattern`. `boxes` is not the most that is accepted, but the most that a predicate is multiplied out to: what
    needs more is covered by fewer boxes and checked on the candidates. A long text may have one box per literal.
    `derived` is the most functions of attributes, such as LOWER(name), that an index computes for every event:
    conditions on any more of them are checked on the candidates. `match_steps` is the only one that an event meets: the
    most steps that one subscription may take on one event, each about a microsecond. It stops what multiplies, such as
    lists inside lists; see TooExpensive."""

    text: int = 500_000
    depth: int = 100
    boxes: int = 16
    values: int = 10_000
    pattern: int = 10_000
    derived: int = 64
    match_steps: int = 5_000_000

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise HitboxError(f"limit {field.name} is a whole number of at least 1, not {value!r}")

    def for_stored(self) -> Limits:
        """Limits for a predicate that was accepted before, perhaps under others: it may be of any size."""
        return replace(self, text=UNBOUNDED, depth=UNBOUNDED, values=UNBOUNDED, pattern=UNBOUNDED)


DEFAULT_LIMITS = Limits()
