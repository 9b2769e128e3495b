"""Why an event matched or did not: the tree with the truth of every node, and the nearest change that would match.

    no match: price BETWEEN 10 AND 20 AND city = 'Paris'
    ✗ AND
    |- ✗ price BETWEEN 10 AND 20      price is 9.5
    `- ✓ city = 'Paris'               city is 'Paris'
    nearest change: price: 9.5 -> at least 10

The nearest change comes from the normal form: of all terms the one with the fewest attributes to change, then the one
with the smallest steps. Before anybody is told, the change is made on a copy of the event, which must then match
(trials.py); otherwise the search goes on, within a bound. Cost: one compilation, and the trials.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from functools import partial
from typing import Any

import numpy as np

from hitbox.encoding.arrays import HIGHEST, LOWEST, MISSING
from hitbox.encoding.codecs import Codec
from hitbox.encoding.documents import Document, lookup
from hitbox.encoding.values import is_missing
from hitbox.language.boxes.normal import EXACT_BOXES, Term, settled, terms
from hitbox.language.boxes.sets import ABSENT as ABSENT_KEYS
from hitbox.language.boxes.sets import EVERYTHING
from hitbox.language.explanations.distances import Distances, distance
from hitbox.language.explanations.misses import STEPS_OF_WORDS, Change, Miss, Misses
from hitbox.language.explanations.phrases import Edges, leaf_words
from hitbox.language.explanations.reasons import Reason, Reasons, short, show
from hitbox.language.explanations.trials import MAX_TRIALS, Spot, Trial, examples, fitting, near, with_values
from hitbox.language.explanations.view import Place, View
from hitbox.language.steps import UNLIMITED, OutOfSteps, Steps
from hitbox.language.syntax.expressions import fold
from hitbox.language.syntax.tree import Branch, Leaf, Node, Predicate, leaves, names, without_not
from hitbox.language.truth import SET_ENDS, Facts, has_intervals, leaf_truth

MARKS = {True: "✓", False: "✗", None: "?"}
WORDS = {True: "true", False: "false", None: "unknown"}
MAX_CHANGES = 8
UNKNOWN_CHANGE = "nearest change: none is known that leads to a match"
MAX_MULTIPLIED = 64
"""Terms to which a conjunction is multiplied out; conditions are looked at one by one beyond."""
MAX_TERMS = 16
"""Terms of a predicate of which the changes are tried."""
MAX_REPAIRS = 3
"""How often what a change breaks is changed, too."""
MAX_LENGTH = 10_000
"""Of a list that is made for a trial."""
MAX_INTERVALS = 8
"""Of a set of keys, the intervals whose ends are tried."""


@dataclass(frozen=True, slots=True, repr=False)
class Explanation:
    """`truth` of the whole (only True is a match), the reasons, and for a miss the changes. `never`: no event matches.
    `out_of_steps`: the steps that did not suffice; `truth` is unknown then, or what would have to change.

    `distance` orders misses: whole part, how many attributes are wrong; fraction, how far they are off.
    """

    predicate: str
    truth: bool | None
    root: Reason
    changes: tuple[Change, ...] = ()
    distance: float = 0.0
    never: bool = False
    out_of_steps: int | None = None

    @property
    def matched(self) -> bool:
        return self.truth is True

    def __str__(self) -> str:
        verdict = "match" if self.matched else "no match" if self.truth is False else "no match (unknown)"
        lines = [f"{verdict}: {short(self.predicate)}", *lines_of(self.root)]
        if self.out_of_steps is not None:
            lines.append(f"nearest change: {too_expensive(self.out_of_steps)}")
        elif self.never:
            lines.append("no event can match this predicate")
        elif self.changes:
            lines.append(f"nearest change: {in_words(self.changes)}")
        elif not self.matched:
            lines.append(UNKNOWN_CHANGE)
        return "\n".join(lines)

    __repr__ = __str__

    def to_dict(self) -> dict[str, Any]:
        """Plain dicts, lists and values, ready for JSON."""
        return {
            "predicate": self.predicate,
            "matched": self.matched,
            "truth": WORDS[self.truth],
            "never": self.never,
            "out_of_steps": self.out_of_steps,
            "changes": [
                {name: _json(getattr(change, name)) for name in ("attribute", "value", "wanted", "nearest")}
                | {"text": str(change)}
                for change in self.changes
            ],
            "tree": reason_dict(self.root),
        }


def explain(
    predicate: Predicate, values: Mapping[str, object], now: datetime | None = None, *, steps: int = UNLIMITED
) -> Explanation:
    """Why `values` make the predicate true, false or unknown; `now` is what NOW() is. It takes no more than so many
    steps; what would take more is left out, and the explanation says so.

    >>> from hitbox.language import Schema, parse
    >>> print(explain(parse("qty > 3 AND ok", Schema({"qty": "int", "ok": "bool"})), {"qty": 2, "ok": True}))
    no match: qty > 3 AND ok = TRUE
    ✗ AND
    |- ✗ qty > 3          qty is 2
    `- ✓ ok = TRUE        ok is TRUE
    nearest change: qty: 2 -> more than 3
    """
    intervals = has_intervals(predicate.schema, values)
    text = str(predicate)
    try:
        facts = Facts(predicate, values, now, Steps(steps), EXACT_BOXES if intervals else MAX_MULTIPLIED)
        if intervals:
            misses, root = None, _interval_reasons(predicate, facts)
        else:
            view = View(facts.scope)
            distances = Distances(view)
            misses, root = Misses(view, distances), Reasons(view, distances).of(predicate.root)
    except OutOfSteps:
        root = Reason(short(text), None, note=too_expensive(steps))
        return Explanation(text, None, root, distance=math.inf, out_of_steps=steps)
    if root.truth is True:
        return Explanation(text, True, root)
    if not facts.terms:
        return Explanation(text, root.truth, root, never=True, distance=math.inf)
    try:
        changes, far = _nearest_change(predicate, facts, misses)
    except OutOfSteps:
        return Explanation(text, root.truth, root, distance=math.inf, out_of_steps=steps)
    return Explanation(text, root.truth, root, changes, far)


def _interval_reasons(predicate: Predicate, facts: Facts) -> Reason:
    """Each node is true if some point of the event makes it true; NOTs are pushed into the leaves."""
    root, steps = without_not(predicate.root), facts.scope.steps
    of_nodes: dict[int, list[Term]] = {}
    terms(predicate, facts.keys, EXACT_BOXES, EXACT_BOXES, root, of_nodes, steps)

    def visit(node: Node, done: Sequence[Reason]) -> Reason:
        part = settled(of_nodes[id(node)], predicate, facts.keys, steps)
        return _interval_reason(node, facts.hold(part), done, facts)

    return fold(root, visit)


def _interval_reason(node: Node, verdict: bool | None, done: Sequence[Reason], facts: Facts) -> Reason:
    if isinstance(node, Branch):
        return Reason(node.op, verdict, tuple(done))
    if isinstance(node, Leaf):
        note = f"{node.name} is {show(lookup(facts.values, node.name))}"
        return Reason(str(node), verdict, (), node.name, facts.value(node.name), note)
    seen = ", ".join(f"{name} is {show(lookup(facts.values, name))}" for name in dict.fromkeys(names(node)))
    return Reason(str(node), verdict, (), note=seen)


def too_expensive(steps: int) -> str:
    return f"too expensive: more than {steps:,} steps"


def _nearest_change(predicate: Predicate, facts: Facts, misses: Misses | None) -> tuple[tuple[Change, ...], float]:
    """The nearest changes that were tried and led to a match, none if none is known; and how far the event is off."""
    search = _Search(predicate, facts, misses)
    ranked = search.ranked()
    far = _distance(ranked[0][0])
    for miss, term in ranked[:MAX_TERMS]:
        for found in search.variants(miss, term):
            changes = search.tried(found)
            if changes:
                return changes, _distance(replace(found, changes=changes))
    return (), far


def _distance(miss: Miss) -> float:
    count = len(miss.changes)
    return count + miss.far / (count + miss.far + 1)


class _Search:
    """Looks for changes of an event after which a predicate holds, term by term."""

    def __init__(self, predicate: Predicate, facts: Facts, misses: Misses | None):
        """misses: of the event; None of one with intervals"""
        self.predicate, self.facts, self.misses = predicate, facts, misses
        leaves_ = leaves(predicate.root)
        self.compared = {leaf.number for leaf in leaves_}
        self.edges = {number: Edges(facts.keys.codecs[number]) for number in self.compared}
        for leaf in leaves_:
            self.edges[leaf.number].add(leaf)

    def ranked(self) -> list[tuple[Miss, Term]]:
        """The terms with the fewest wrong attributes, those that are least wrong first; then some others."""
        faults = [_without_covers(self.facts.wrong(term), self.compared, self.facts) for term in self.facts.terms]
        order = sorted(range(len(faults)), key=lambda n: len(faults[n]))
        fewest = len(faults[order[0]])
        chosen = [n for at, n in enumerate(order) if len(faults[n]) == fewest or at < MAX_TERMS]
        found = [(self.miss(self.facts.terms[n], faults[n]), self.facts.terms[n]) for n in chosen]
        return sorted(found, key=lambda one: one[0].rank)

    def miss(self, term: Term, faults: Sequence[int | Node], facts: Facts | None = None) -> Miss:
        """What makes a term hold."""
        facts, misses = facts or self.facts, []
        for fault in faults:
            if isinstance(fault, int):
                edges = self.edges.setdefault(fault, Edges(facts.keys.codecs[fault]))
                misses.append(_change(term, fault, facts, edges))
            elif self.misses is None:
                misses.append(Miss((Change(str(fault), None, "true"),), 1.0, False))
            else:
                misses.append(self.misses.miss(fault))
        changes = [change for one in misses for change in one.changes if change.wanted]
        unlike = tuple(change for n, change in enumerate(changes) if change not in changes[:n])
        return Miss(unlike, sum(one.far for one in misses), all(one.sure for one in misses))

    def variants(self, miss: Miss, term: Term) -> Iterator[Miss]:
        """A miss; the same by other operands; and with what must change, too, once the first change is made."""
        yield miss
        if self.misses is None:
            return
        view, first = self.misses.view, _first(miss.changes)
        view.frozen = frozenset(first)
        yield self.miss(term, self.facts.wrong(term))
        made, scope = miss, view.scope
        for _ in range(MAX_REPAIRS):
            if not first:
                break
            view.scope = with_values(scope, first)
            facts = Facts(self.predicate, view.scope.values, scope.now, scope.steps, MAX_MULTIPLIED, paid=True)
            more = self.miss(term, [one for one in facts.wrong(term) if not isinstance(one, int)], facts)
            made = Miss(made.changes + more.changes, made.far + more.far, made.sure and more.sure)
            if not more.changes:
                break
            first |= _first(more.changes)
            view.frozen = frozenset(first)
            yield made
        view.scope, view.frozen = scope, frozenset()

    def tried(self, miss: Miss) -> tuple[Change, ...]:
        """The changes if they lead to a match, those of one attribute as one; otherwise none."""
        changes = _merged(miss.changes)
        if not miss.sure or not changes:
            return ()
        if self.misses is None:
            values = {spot[1]: value for spot, value in _first(changes).items()}
            known = all(one.trials() for one in changes)
            return changes if known and self._holds_with(values) else ()
        several = [(one.trials(), one.condition) for one in miss.changes]
        trial = self.misses.trials.succeed(self.predicate.root, self.facts.scope, several)
        return () if trial is None else tuple(_as_tried(one, trial) for one in changes)

    def _holds_with(self, values: Mapping[str, Any]) -> bool:
        """Whether the predicate is true of the event, which has intervals, with other values."""
        scope, old = self.facts.scope, self.facts.values
        changed: Mapping[str, Any] = {**old, **values}
        if isinstance(old, Document):
            changed = Document(changed, old.old)
        return Facts(self.predicate, changed, scope.now, scope.steps, paid=True).holds()


def _merged(changes: Sequence[Change]) -> tuple[Change, ...]:
    """One change for each attribute."""
    found: dict[str, Change] = {}
    for one in changes:
        other = found.get(one.attribute)
        if other is not None and one.wanted != other.wanted:
            one = replace(other, wanted=f"{other.wanted} and {one.wanted}", nearest=None)
        found[one.attribute] = one
    return tuple(found.values())


def _first(changes: Sequence[Change]) -> dict[Spot, Any]:
    """The values that are tried first."""
    return {spot: value for one in changes for trial in one.trials()[:1] for spot, value in trial.items()}


def _as_tried(change: Change, trial: Trial) -> Change:
    """If a value is named as the nearest one, it is one that leads to a match."""
    own = _first([change])
    return replace(change, nearest=trial[next(iter(own))]) if change.nearest is not None and len(own) == 1 else change


def _without_covers(faults: Sequence[int | Node], compared: set[int], facts: Facts) -> list[int | Node]:
    """An attribute that only has to lie where a condition may hold at all has nothing to say beside that condition."""
    named = {name for fault in faults if not isinstance(fault, int) for name in names(fault)}
    return [one for one in faults if not isinstance(one, int) or one in compared or facts.names[one] not in named]


def _change(term: Term, number: int, facts: Facts, edges: Edges) -> Miss:
    """The smallest change of one attribute that suits a term, and how far it is."""
    name = facts.names[number]
    value = lookup(facts.values, name)
    facts.scope.steps.spend(STEPS_OF_WORDS + len(term.sets.get(number, ())) // SET_ENDS)
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
    trials = partial(_set_trials, term, number, facts, nearest, rest)
    return Miss((Change.of(name, value, " and ".join(wanted), None if unlike else nearest, trials),), far)


def _set_trials(term: Term, number: int, facts: Facts, nearest: object, rest: Sequence[Leaf]) -> tuple[Trial, ...]:
    """Values of an attribute that suit a term."""
    name, codec, one = facts.names[number], facts.keys.codecs[number], term.sets.get(number, ())
    value = facts.value(name)
    if codec.is_list:
        length = next((max(start, 0) for start, end in one if end != MISSING), 0)
        if length > MAX_LENGTH:
            return ()
        some = list(value) if isinstance(value, list) else []
        return ({(0, name): (some + [None] * length)[:length] if one != ABSENT_KEYS else None},)
    values: list[Any] = [] if nearest is None else [nearest]
    for leaf in rest:
        values += examples(leaf.pattern, value)
    for start, end in one[:MAX_INTERVALS]:
        ends = (key for key in (start, start - 1, end, end + 1) if LOWEST < key < HIGHEST)
        values += (each for key in ends for each in near(codec.value(key)))
        values += [None] if end == MISSING else []
    values += [0, 0.0, "", True, datetime(2000, 1, 1, tzinfo=UTC)]
    found = []
    for each in fitting(codec.type, values):
        key = codec.key(each)
        if any(start <= key <= end for start, end in one or EVERYTHING) and all(
            leaf_truth(leaf, each) for leaf in rest
        ):
            found.append({(0, name): each})
        if len(found) == MAX_TRIALS:
            break
    return tuple(found)


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
    if isinstance(value, tuple) and len(value) == 2:
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
