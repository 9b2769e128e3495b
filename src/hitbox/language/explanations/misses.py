"""The smallest change after which a condition would hold, in words and as values to try.

    LOWER(name) = 'alice'             LOWER(name): 'bob' -> 'alice'
    ALL(scores) >= 3                  element 1 of scores: 1 -> at least 3
    INSIDE(lat, lon, 'POLYGON ..')    lat, lon: (48.8, 2.3) -> (48.8, 2.4), 11,112 m away

A change is found for a condition and for its opposite at once, as distances are (distances.py). Distances tell which
elements of a list are worth words and trials.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Self

from hitbox.encoding.documents import ABSENT
from hitbox.language.explanations.distances import NO_CHANGE, Distances, Rank, nearest_place, of_branch
from hitbox.language.explanations.phrases import COMPARED, condition_words, leaf_words
from hitbox.language.explanations.reasons import metres, plain, show
from hitbox.language.explanations.trials import (
    MAX_TRIALS,
    Trial,
    Trials,
    examples,
    fitting,
    near,
    spot_of,
    spots,
    through,
    with_values,
)
from hitbox.language.explanations.view import Place, View, coordinates, inputs, is_circle, is_of_place
from hitbox.language.syntax.expressions import Constant, fold, literal
from hitbox.language.syntax.tree import Branch, Leaf, Node, Quantifier, Test
from hitbox.language.truth import Scope, leaf_truth, test_truth, truth, value_of

MAX_ELEMENTS_TRIED = 8
"""Elements for which the smallest change is tried, before none is known."""
STEPS_OF_WORDS = 20
"""Steps in which a change is put into words."""


@dataclass(frozen=True, slots=True)
class Change:
    """A value that would have to be different: `wanted` in words, `nearest` as a value if there is one. `missing`: the
    event does not even have the attribute; `value` is None then, as for NULL.

    Before anybody is told, it is tried with `trials()`; without any, `condition` is taken to hold (trials.py).
    """

    attribute: str
    value: object
    wanted: str
    nearest: object = None
    missing: bool = False
    trials: Callable[[], tuple[Trial, ...]] = field(default=tuple, repr=False, compare=False)
    condition: Node | None = field(default=None, repr=False, compare=False)

    @classmethod
    def of(cls, attribute: str, value: Any, wanted: str, nearest: object = None, *tried_with: Any) -> Self:
        """`value`: that of the event, or ABSENT. `tried_with`: the trials, and the condition."""
        return cls(attribute, plain(value), wanted, nearest, value is ABSENT, *tried_with)

    def __str__(self) -> str:
        return f"{self.attribute}: {'missing' if self.missing else show(self.value)} -> {self.wanted}"


@dataclass(frozen=True, slots=True)
class Miss:
    """The changes after which a condition would hold, and how far they are: each counts from 0 to 1. `sure`: within the
    elements of lists they were tried."""

    changes: tuple[Change, ...] = ()
    far: float = 0.0
    sure: bool = True

    @property
    def rank(self) -> Rank:
        return len(self.changes), self.far


class Misses:
    def __init__(self, view: View, distances: Distances):
        self.view, self.distances, self.trials = view, distances, Trials()

    def miss(self, node: Node) -> Miss:
        """The smallest change after which a condition would hold."""
        return self._both(node)[0]

    def _both(self, root: Node) -> tuple[Miss, Miss]:
        """What makes a condition true, and what makes it false."""

        def visit(node: Node, done: Sequence[tuple[Miss, Miss]]) -> tuple[Miss, Miss]:
            if isinstance(node, Branch):
                never = Miss((Change(node.op, None, "a condition that can hold"),), 1.0)
                return of_branch(node, done, _all, _least, Miss(), never)
            if isinstance(node, Quantifier):
                return self._of_list(node)
            return self._of_condition(node), self._of_condition(node.negated())

        return fold(root, visit)

    # ---- one condition

    def _of_condition(self, node: Leaf | Test) -> Miss:
        scope = self.view.scope
        if isinstance(node, Test):
            return Miss() if test_truth(node, scope) else self._of_test(self.view.turned(node))
        if truth(node, (), scope):
            return Miss()
        value = scope.attribute(node.name)
        scope.steps.spend(STEPS_OF_WORDS)
        change = Change.of(node.name, value, leaf_words(node), None, partial(leaf_trials, node, value), node)
        return Miss((change,), self.distances.of_condition(node))

    def _of_test(self, test: Test) -> Miss:
        subject, value = self.view.subject(test)
        if subject is None:
            return Miss((Change(str(test), None, "true"),), 1.0)
        self.view.scope.steps.spend(STEPS_OF_WORDS)
        wanted, nearest = self._wanted(test, value)
        trials = partial(self._trials, test, nearest, self.view.scope.copied())
        change = Change.of(subject, value, wanted, nearest, trials, test)
        return Miss((change,), self.distances.of_condition(test))

    def _wanted(self, test: Test, value: Any) -> tuple[str, object]:
        """What the subject of a test should be, in words; the nearest such value if it is known."""
        if test.op.endswith("INSIDE"):
            return _wanted_place(test, value)
        others = test.operands[1:]
        ends = [value_of(operand, self.view.scope) for operand in others]
        if is_circle(test):
            phrase = f"{COMPARED[test.op] or 'exactly '}{metres(float(ends[0]))} away"
            centre = [part.plain for part in test.operands[0].children if isinstance(part, Constant)]
            return phrase + (f" from {Place(*map(float, centre))}" if len(centre) == 2 else ""), None
        texts = [
            literal(operand.literal) if isinstance(operand, Constant) else f"{operand} ({show(end)})"
            for operand, end in zip(others, ends, strict=True)
        ]
        exact = others[0].plain if test.op == "=" and isinstance(others[0], Constant) else None
        return condition_words(test, texts), exact

    def _trials(self, test: Test, nearest: Any, scope: Scope) -> tuple[Trial, ...]:
        """New values of what a test looks at first, with which it holds; none if no such value is known."""
        chosen: list[Trial] = []
        for trial in _values_to_try(test, nearest, scope):
            self.trials.left -= 1
            if test_truth(test, with_values(scope, trial)):
                chosen.append(trial)
            if len(chosen) == MAX_TRIALS or self.trials.left < 0:
                break
        return tuple(chosen)

    # ---- lists

    def _of_list(self, node: Quantifier) -> tuple[Miss, Miss]:
        name, elements = self.view.subject(node)
        telling = node.op != "ALL"  # what one element decides alone: that it fits, or that it does not
        if elements is None or elements is ABSENT or not elements:
            is_no_list = elements is None or elements is ABSENT
            change = Change.of(str(name), elements, "a list with such an element")
            least = Miss((change,), 1.0, self._has_such(node, telling))
            most = Miss((Change.of(str(name), elements, "a list"),), 1.0) if is_no_list else Miss()
        else:
            ranks = self.distances.ranks_of_elements(node, elements)
            least = self._one_of(node, elements, [yes if telling else no for yes, no in ranks], telling)
            most = self._all_of(node, elements, [no if telling else yes for yes, no in ranks], not telling)
        yes, no = (least, most) if node.op in ("ANY", "EXISTS") else (most, least)
        return _from_outside(yes, node), _from_outside(no, node.negated())

    def _has_such(self, node: Quantifier, telling: bool) -> bool:
        """Whether an element that decides alone can be made of nothing."""
        nothing: Any = {} if node.op.endswith("EXISTS") else None
        return self._tried(node, 0, nothing, self._of_element(node, 0, nothing, telling), telling).sure

    def _of_element(self, node: Quantifier, number: int, element: Any, holds: bool) -> Miss:
        """What makes the condition on an element hold, or not."""
        return self.view.at(node, number, element, partial(self._both, node.condition))[not holds]

    def _one_of(self, node: Quantifier, elements: Sequence[Any], ranks: Sequence[Rank], holds: bool) -> Miss:
        """The nearest element for which the condition holds, or does not, after a change; a tried one, if any."""
        nearest = sorted(range(len(ranks)), key=ranks.__getitem__)[:MAX_ELEMENTS_TRIED]
        misses = [(self._of_element(node, number, elements[number], holds), number) for number in nearest]
        misses.sort(key=lambda pair: pair[0].rank)
        for miss, number in misses:
            tried = self._tried(node, number, elements[number], miss, holds)
            if tried.sure:
                return tried
        return replace(misses[0][0], sure=False)

    def _all_of(self, node: Quantifier, elements: Sequence[Any], ranks: Sequence[Rank], holds: bool) -> Miss:
        misses = [
            Miss() if rank == NO_CHANGE else self._of_element(node, number, elements[number], holds)
            for number, rank in enumerate(ranks)
        ]
        tried = [self._tried(node, number, elements[number], miss, holds) for number, miss in enumerate(misses)]
        alone = sum(bool(miss.changes) for miss in tried) < 2 or not any(map(self._leads_outside, tried))
        whole = _all(tried)
        return whole if alone and len(misses) == len(elements) else replace(whole, sure=False)

    def _tried(self, node: Quantifier, number: int, element: Any, miss: Miss, holds: bool) -> Miss:
        """The miss, which is sure if the condition on this element holds, or does not, after its changes."""
        if not miss.changes or not isinstance(node.condition, Branch):
            return miss
        root = node.condition if holds else Branch("NOT", (node.condition,), node.position)
        changes = [(change.trials(), change.condition) for change in miss.changes]
        succeed = partial(self.trials.succeed, root, self.view.scope, changes)
        return replace(miss, sure=miss.sure and self.view.at(node, number, element, succeed) is not None)

    def _leads_outside(self, miss: Miss) -> bool:
        """Whether a change is one of something that other elements see, too."""
        conditions = [change.condition for change in miss.changes if change.condition is not None]
        depth = len(self.view.scope.elements)
        return any(level <= depth for condition in conditions for level, _ in spots(condition))


def _from_outside(miss: Miss, node: Quantifier) -> Miss:
    """Changes within a list, seen from outside: after them the condition on the list holds."""
    return replace(miss, changes=tuple(replace(change, trials=tuple, condition=node) for change in miss.changes))


def _all(misses: Sequence[Miss]) -> Miss:
    changes = {(change.attribute, change.wanted): change for miss in misses for change in miss.changes}
    return Miss(tuple(changes.values()), sum(miss.far for miss in misses), all(miss.sure for miss in misses))


def _least(misses: Sequence[Miss]) -> Miss:
    return min(misses, key=lambda miss: miss.rank)


def _wanted_place(test: Test, value: Place | None) -> tuple[str, object]:
    """Which place the subject should be, in words and as a value if it is known."""
    inside = test.op == "INSIDE"
    nearest = nearest_place(test.machine, value)
    if nearest is None:
        return f"a place {'inside' if inside else 'outside'} the polygon", None
    far, point = nearest
    phrase = f"{point}, {metres(far)} away"
    return (phrase, point) if inside else (f"beyond {phrase}", None)


# ---- which values to try


def _values_to_try(test: Test, nearest: Any, scope: Scope) -> Iterator[Trial]:
    if is_of_place(test):
        lat, lon = map(spot_of, coordinates(test))
        if lat is not None and lon is not None and isinstance(nearest, Place):
            yield {lat: nearest.lat, lon: nearest.lon}
        return
    subject = next(operand for operand in test.operands if not isinstance(operand, Constant))
    sources = {spot_of(source): source for source in inputs(subject)}
    spot, source = next(iter(sources.items()), (None, subject))
    if len(sources) != 1 or spot is None:
        return
    current, known = value_of(source, scope), value_of(subject, scope)
    ends = [value_of(operand, scope) for operand in test.operands if operand is not subject]
    values: list[Any] = [None, ABSENT] if test.op.startswith("IS") else []
    for end in ends:
        values += near(end)
        if subject is not source:
            values += through(known, end, current)
    if test.op.endswith("LIKE"):
        values += examples(test.machine, current)
    elif test.op.endswith("IN NETWORK"):
        values += [test.texts[0].partition("/")[0], "0.0.0.0", "255.255.255.255", "::"]
    values += ["", 0, 1, True, False, datetime(2000, 1, 1, tzinfo=UTC)]
    for value in fitting(source.type, values):
        yield {spot: value}


def leaf_trials(leaf: Leaf, current: Any) -> tuple[Trial, ...]:
    """Values with which a leaf holds; none if no such value is known."""
    if leaf.type.endswith("[]"):
        return ({(0, leaf.name): None if leaf.op == "IS NULL" else []},)
    values = [neighbour for value in leaf.values for neighbour in near(value)]
    if leaf.op.endswith("LIKE"):
        values = [*examples(leaf.pattern, current), *values]
    if leaf.op.startswith("IS"):
        values = [None, 0, True, "", datetime(2000, 1, 1, tzinfo=UTC)]
    chosen = [value for value in fitting(leaf.type, values) if leaf_truth(leaf, value)]
    return tuple({(0, leaf.name): value} for value in chosen[:MAX_TRIALS])
