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
from datetime import date, datetime, timedelta
from typing import Any

import numpy as np

from hitbox.encoding.arrays import HIGHEST, MISSING
from hitbox.encoding.codecs import Codec
from hitbox.encoding.values import is_missing
from hitbox.language.expressions import Constant, fold, literal, quoted
from hitbox.language.normal import Term
from hitbox.language.phrases import Edges, distance
from hitbox.language.tree import Branch, Leaf, Node, Predicate, Quantifier, Test, leaves, without_not
from hitbox.language.truth import Facts, leaf_truth, truth, value_of

MARKS = {True: "✓", False: "✗", None: "?"}
WORDS = {True: "true", False: "false", None: "unknown"}
MAX_TEXT = 80


@dataclass(frozen=True, slots=True, repr=False)
class Reason:
    """One node of the predicate: an operator with its children, or a leaf with the event's value."""

    text: str
    truth: bool | None
    children: tuple[Reason, ...] = ()
    attribute: str | None = None
    value: object = None


@dataclass(frozen=True, slots=True)
class Change:
    """A value that would have to be different: `wanted` in words, `nearest` as a value if there is one."""

    attribute: str
    value: object
    wanted: str
    nearest: object = None

    def __str__(self) -> str:
        return f"{self.attribute}: {show(self.value)} -> {self.wanted}"


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
            lines.append(f"nearest change: {'; '.join(map(str, self.changes))}")
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
                {"attribute": c.attribute, "value": _json(c.value), "wanted": c.wanted, "nearest": _json(c.nearest)}
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
    root = _interval_reasons(predicate, facts) if intervals else _point_reasons(predicate.root, facts)
    if root.truth is True:
        return Explanation(str(predicate), True, root)
    if not facts.terms:
        return Explanation(str(predicate), root.truth, root, never=True, distance=math.inf)
    changes, far = _nearest_change(predicate, facts)
    return Explanation(str(predicate), root.truth, root, changes, far)


def show(value: object) -> str:
    """An event's value in words."""
    if isinstance(value, tuple):
        low, high = ("any" if end is None else show(end) for end in value)
        return f"{low} to {high}"
    if isinstance(value, list):
        return short(f"[{', '.join(map(show, value[:20]))}]")
    if isinstance(value, dict):
        return f"{{{', '.join(f'{name}: {show(one)}' for name, one in value.items())}}}"
    if is_missing(value):
        return "missing"
    if isinstance(value, np.generic) and not isinstance(value, np.datetime64):
        value = value.item()
    return short(literal(value) if isinstance(value, (bool, str, datetime, timedelta)) else str(value))


def _point_reasons(root: Node, facts: Facts) -> Reason:
    def visit(node: Node, done: Sequence[Reason]) -> Reason:
        return _reason(node, truth(node, [reason.truth for reason in done], facts.scope), done, facts)

    return fold(root, visit)


def _interval_reasons(predicate: Predicate, facts: Facts) -> Reason:
    """Each node is true if some point of the event makes it true; NOTs are pushed into the leaves."""

    def visit(node: Node, done: Sequence[Reason]) -> Reason:
        part = Facts(Predicate(node, predicate.text, predicate.schema, predicate.limits), facts.values, facts.scope.now)
        return _reason(node, part.holds(), done, facts)

    return fold(without_not(predicate.root), visit)


def _reason(node: Node, verdict: bool | None, done: Sequence[Reason], facts: Facts) -> Reason:
    if isinstance(node, Branch):
        return Reason(node.op, verdict, tuple(done))
    return Reason(str(node), verdict, (), *_subject(node, facts))


def _subject(node: Node, facts: Facts) -> tuple[str | None, object]:
    """What a condition looks at, and its value."""
    if isinstance(node, Leaf):
        return node.name, facts.value(node.name)
    if isinstance(node, Quantifier):
        return str(node.list), facts.scope.several(node.list)
    if not isinstance(node, Test) or any(isinstance(value, tuple) for value in facts.values.values()):
        return None, None
    subject = next((one for one in node.operands if not isinstance(one, Constant)), None)
    return (None, None) if subject is None else (str(subject), value_of(subject, facts.scope))


def _nearest_change(predicate: Predicate, facts: Facts) -> tuple[tuple[Change, ...], float]:
    edges: dict[int, Edges] = {}
    for number in range(len(facts.names)):
        edges[number] = Edges(facts.keys.codecs[number])
    for leaf in leaves(predicate.root):
        edges[leaf.number].add(leaf)
    wrong = [(facts.wrong(term), term) for term in facts.terms]
    fewest = min(len(faults) for faults, _ in wrong)
    candidates = [_changes(term, faults, facts, edges) for faults, term in wrong if len(faults) == fewest]
    changes, far = min(candidates, key=lambda found: found[1])
    return changes, fewest + far / (fewest + far + 1)


def _changes(
    term: Term, faults: Sequence[int | Node], facts: Facts, edges: Mapping[int, Edges]
) -> tuple[tuple[Change, ...], float]:
    found = [
        _change(term, fault, facts, edges[fault]) if isinstance(fault, int) else _condition_change(fault, facts)
        for fault in faults
    ]
    # an attribute that only has to lie where a test may hold at all has nothing to say beside that test
    return tuple(change for change, _ in found if change.wanted), sum(far for _, far in found)


def _condition_change(node: Node, facts: Facts) -> tuple[Change, float]:
    """What is wanted of a condition that is not one of a single attribute: that it holds."""
    subject, value = _subject(node, facts)
    text = str(node)
    if subject is None:
        return Change(text, None, "true"), 1.0
    return Change(subject, value, text.removeprefix(f"{subject} ")), 1.0


def _change(term: Term, number: int, facts: Facts, edges: Edges) -> tuple[Change, float]:
    """The smallest change of one attribute that suits a term, and how far it is."""
    name = facts.names[number]
    value = facts.value(name)
    rest = [leaf for leaf in term.rest if isinstance(leaf, Leaf) and leaf.number == number]
    wanted: list[str] = []
    nearest, far = None, 1.0
    if facts.meets(number, term.sets[number]):
        unlike = [leaf for leaf in rest if not facts.may_hold(leaf)]
    else:
        low, high = facts.interval(number)
        far, interval = min((_gap(edges.codec, low, high, one), one) for one in term.sets[number])
        phrase, nearest = edges.phrase(interval, low, high)
        wanted.append(phrase)
        unlike = [leaf for leaf in rest if nearest is None or not leaf_truth(leaf, nearest)]
    wanted += [str(leaf).removeprefix(f"{quoted(leaf.name)} ") for leaf in unlike]
    return Change(name, value, " and ".join(wanted), None if unlike else nearest), far


def _gap(codec: Codec, low: int, high: int, interval: tuple[int, int]) -> float:
    """How far the event's interval of keys lies from another one, from 0 to 1."""
    if low == MISSING or interval[1] == MISSING:
        return 1.0
    one, other = (high, interval[0]) if high < interval[0] else (low, min(interval[1], HIGHEST))
    return distance(codec.value(one), codec.value(other))


def lines_of(root: Reason) -> list[str]:
    """The tree, one node per line, with the event's values in a column of their own."""
    rows: list[tuple[str, str]] = []
    stack: list[tuple[Reason, str, str]] = [(root, "", "")]
    while stack:
        reason, first, rest = stack.pop()
        value = "" if reason.attribute is None else f"{reason.attribute} is {show(reason.value)}"
        rows.append((f"{first}{MARKS[reason.truth]} {short(reason.text)}", value))
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
        if reason.children:
            found["children"] = []
            stack.extend((child, found["children"]) for child in reversed(reason.children))
        place.append(found)
    return whole[0]


def _json(value: object) -> Any:
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


def short(text: str) -> str:
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"
