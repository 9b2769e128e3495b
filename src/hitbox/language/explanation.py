"""Why an event matched or did not: the tree with the truth of every node, and the nearest change that would match.

    no match: price BETWEEN 10 AND 20 AND city = 'Paris'
    ✗ AND
    |- ✗ price BETWEEN 10 AND 20      price is 9.5
    `- ✓ city = 'Paris'               city is 'Paris'
    nearest change: price: 9.5 -> at least 10

The nearest change comes from the normal form, not from single leaves, so that it really leads to a match: of all terms
the one with the fewest attributes to change, then the one with the smallest steps. Cost: one compilation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

import numpy as np

from hitbox.encoding.arrays import HIGHEST, MISSING
from hitbox.encoding.codecs import Codec
from hitbox.encoding.documents import ABSENT, lookup
from hitbox.encoding.values import is_missing
from hitbox.language.expressions import fold
from hitbox.language.normal import Term
from hitbox.language.phrases import Edges, distance
from hitbox.language.reasons import Change, Miss, Place, Reason, View, leaf_words, short, show
from hitbox.language.tree import Branch, Leaf, Node, Predicate, leaves, names, without_not
from hitbox.language.truth import Facts, leaf_truth

MARKS = {True: "✓", False: "✗", None: "?"}
WORDS = {True: "true", False: "false", None: "unknown"}
MAX_CHANGES = 8


@dataclass(frozen=True, slots=True, repr=False)
class Explanation:
    """`truth` of the whole (only True is a match), the reasons, and for a miss the changes. `never`: no event matches.

    `distance` orders misses: whole part, how many attributes are wrong; fraction, how far they are off.
    """

    predicate: str
    truth: bool | None
    root: Reason
    changes: tuple[Change, ...] = ()
    distance: float = 0.0
    never: bool = False

    @property
    def matched(self) -> bool:
        return self.truth is True

    def __str__(self) -> str:
        verdict = "match" if self.matched else "no match" if self.truth is False else "no match (unknown)"
        lines = [f"{verdict}: {short(self.predicate)}", *lines_of(self.root)]
        if self.never:
            lines.append("no event can match this predicate")
        elif self.changes:
            lines.append(f"nearest change: {in_words(self.changes)}")
        return "\n".join(lines)

    __repr__ = __str__

    def to_dict(self) -> dict[str, Any]:
        """Plain dicts, lists and values, ready for JSON."""
        return {
            "predicate": self.predicate,
            "matched": self.matched,
            "truth": WORDS[self.truth],
            "never": self.never,
            "changes": [
                {
                    "attribute": c.attribute,
                    "value": _json(c.value),
                    "wanted": c.wanted,
                    "nearest": _json(c.nearest),
                    "text": str(c),
                }
                for c in self.changes
            ],
            "tree": reason_dict(self.root),
        }


def explain(predicate: Predicate, values: Mapping[str, object], now: datetime | None = None) -> Explanation:
    """Why `values` make the predicate true, false or unknown; `now` is what NOW() is.

    >>> from hitbox.language import Schema, parse
    >>> print(explain(parse("qty > 3 AND ok", Schema({"qty": "int", "ok": "bool"})), {"qty": 2, "ok": True}))
    no match: qty > 3 AND ok = TRUE
    ✗ AND
    |- ✗ qty > 3          qty is 2
    `- ✓ ok = TRUE        ok is TRUE
    nearest change: qty: 2 -> more than 3
    """
    facts = Facts(predicate, values, now)
    intervals = any(isinstance(value, tuple) for value in values.values())
    root = _interval_reasons(predicate, facts) if intervals else View(facts.scope).reason(predicate.root)
    if root.truth is True:
        return Explanation(str(predicate), True, root)
    if not facts.terms:
        return Explanation(str(predicate), root.truth, root, never=True, distance=math.inf)
    changes, far = _nearest_change(predicate, facts, intervals)
    return Explanation(str(predicate), root.truth, root, changes, far)


def _interval_reasons(predicate: Predicate, facts: Facts) -> Reason:
    """Each node is true if some point of the event makes it true; NOTs are pushed into the leaves."""

    def visit(node: Node, done: Sequence[Reason]) -> Reason:
        part = Facts(Predicate(node, predicate.text, predicate.schema, predicate.limits), facts.values, facts.scope.now)
        return _interval_reason(node, part.holds(), done, facts)

    return fold(without_not(predicate.root), visit)


def _interval_reason(node: Node, verdict: bool | None, done: Sequence[Reason], facts: Facts) -> Reason:
    if isinstance(node, Branch):
        return Reason(node.op, verdict, tuple(done))
    if isinstance(node, Leaf):
        value = facts.value(node.name)
        return Reason(
            str(node), verdict, (), node.name, value, f"{node.name} is {show(lookup(facts.values, node.name))}"
        )
    seen = ", ".join(f"{name} is {show(lookup(facts.values, name))}" for name in dict.fromkeys(names(node)))
    return Reason(str(node), verdict, (), note=seen)


def _nearest_change(predicate: Predicate, facts: Facts, intervals: bool) -> tuple[tuple[Change, ...], float]:
    edges: dict[int, Edges] = {}
    for number in range(len(facts.names)):
        edges[number] = Edges(facts.keys.codecs[number])
    compared = {leaf.number for leaf in leaves(predicate.root)}
    for leaf in leaves(predicate.root):
        edges[leaf.number].add(leaf)
    wrong = [(_without_covers(facts.wrong(term), compared, facts), term) for term in facts.terms]
    fewest = min(len(faults) for faults, _ in wrong)
    view = None if intervals else View(facts.scope)
    candidates = [_changes(term, faults, facts, edges, view) for faults, term in wrong if len(faults) == fewest]
    best = min(candidates, key=lambda miss: miss.rank)
    count = len(best.changes)
    return best.changes, count + best.far / (count + best.far + 1)


def _without_covers(faults: Sequence[int | Node], compared: set[int], facts: Facts) -> list[int | Node]:
    """An attribute that only has to lie where a condition may hold at all has nothing to say beside that condition."""
    named = {name for fault in faults if not isinstance(fault, int) for name in names(fault)}
    return [one for one in faults if not isinstance(one, int) or one in compared or facts.names[one] not in named]


def _changes(
    term: Term, faults: Sequence[int | Node], facts: Facts, edges: Mapping[int, Edges], view: View | None
) -> Miss:
    changes: list[Change] = []
    far = 0.0
    for fault in faults:
        if isinstance(fault, int):
            found = _change(term, fault, facts, edges[fault])
        else:
            found = Miss((Change(str(fault), None, "true"),), 1.0) if view is None else view.miss(fault)
        changes += (change for change in found.changes if change.wanted and change not in changes)
        far += found.far
    return Miss(tuple(changes), far)


def _change(term: Term, number: int, facts: Facts, edges: Edges) -> Miss:
    """The smallest change of one attribute that suits a term, and how far it is."""
    name = facts.names[number]
    value = lookup(facts.values, name)
    rest = [leaf for leaf in term.rest if isinstance(leaf, Leaf) and leaf.number == number]
    wanted: list[str] = []
    nearest, far = None, 1.0
    if facts.meets(number, term.sets[number]):
        unlike = [leaf for leaf in rest if not facts.may_hold(leaf)]
    else:
        low, high = facts.interval(number)
        far, interval = min((_gap(edges.codec, low, high, one), one) for one in term.sets[number])
        phrase, nearest = edges.phrase(interval, low, high)
        if low == high != MISSING and {low - 1, high + 1} <= {end for one in term.sets[number] for end in one}:
            phrase = f"anything but {show(value)}"
        wanted.append(phrase)
        unlike = [leaf for leaf in rest if nearest is None or not leaf_truth(leaf, nearest)]
    wanted += [leaf_words(leaf) for leaf in unlike]
    return Miss((Change(name, value, " and ".join(wanted), None if unlike else nearest),), far)


def _gap(codec: Codec, low: int, high: int, interval: tuple[int, int]) -> float:
    """How far the event's interval of keys lies from another one, from 0 to 1."""
    if low == MISSING or interval[1] == MISSING:
        return 1.0
    one, other = (high, interval[0]) if high < interval[0] else (low, min(interval[1], HIGHEST))
    return distance(codec.value(one), codec.value(other))


def in_words(changes: Sequence[Change]) -> str:
    more = f"; and {len(changes) - MAX_CHANGES} more" if len(changes) > MAX_CHANGES else ""
    return "; ".join(map(str, changes[:MAX_CHANGES])) + more


def lines_of(root: Reason) -> list[str]:
    """The tree, one node per line, with the event's values in a column of their own."""
    rows: list[tuple[str, str]] = []
    stack: list[tuple[Reason, str, str]] = [(root, "", "")]
    while stack:
        reason, first, rest = stack.pop()
        rows.append((f"{first}{MARKS[reason.truth]} {short(reason.text)}", reason.note))
        last = len(reason.children) - 1
        for n in range(last, -1, -1):
            branch = ("`- ", "   ") if n == last else ("|- ", "|  ")
            stack.append((reason.children[n], rest + branch[0], rest + branch[1]))
    width = max((len(text) for text, value in rows if value), default=0) + 8
    return [f"{text:<{width}}{value}" if value else text for text, value in rows]


def reason_dict(root: Reason) -> dict[str, Any]:
    whole: list[dict[str, Any]] = []
    stack = [(root, whole)]
    while stack:
        reason, place = stack.pop()
        found: dict[str, Any] = {"text": reason.text, "truth": WORDS[reason.truth]}
        if reason.attribute is not None:
            found |= {"attribute": reason.attribute, "value": _json(reason.value)}
        if reason.note:
            found["note"] = reason.note
        if reason.children:
            found["children"] = []
            stack.extend((child, found["children"]) for child in reversed(reason.children))
        place.append(found)
    return whole[0]


def _json(value: object) -> Any:
    if isinstance(value, Place):
        return {"lat": _json(value.lat), "lon": _json(value.lon)}
    if value is ABSENT:
        return None
    if isinstance(value, tuple):
        return {"low": _json(value[0]), "high": _json(value[1])}
    if isinstance(value, list):
        return [_json(one) for one in value]
    if isinstance(value, dict):
        return {name: _json(one) for name, one in value.items()}
    if is_missing(value):
        return None
    if isinstance(value, np.generic) and not isinstance(value, np.datetime64):
        value = value.item()
    if isinstance(value, (bool, int, str)) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return value.isoformat() if isinstance(value, date) else str(value)
