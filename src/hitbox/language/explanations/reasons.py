"""Reasons: the truth of each condition, and what it saw in an event, in words.

    LOWER(name) = 'alice'             LOWER(name) is 'bob' (name is 'Bob')
    ALL(scores) >= 3                  1 of 3 elements of scores does not fit: element 1 is 1
    INSIDE(lat, lon, 'POLYGON ..')    the place (48.8, 2.3) is outside the polygon; the nearest point of its border, ..

Of a list, the first element that decides is described; if none does, the one that comes nearest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import numpy as np

from hitbox.encoding.documents import ABSENT
from hitbox.encoding.values import brief, is_missing
from hitbox.language.conditions.letters import lower
from hitbox.language.conditions.networks import address
from hitbox.language.conditions.places import is_place
from hitbox.language.explanations.distances import Distances, nearest_place
from hitbox.language.explanations.phrases import what_is_absent
from hitbox.language.explanations.view import Place, View, coordinates, inputs, is_circle, is_of_place
from hitbox.language.syntax.expressions import Constant, Expression, Field, fold, literal
from hitbox.language.syntax.tree import Branch, Node, Quantifier, Test
from hitbox.language.truth import node_truth, truth, value_of

KINDS = {"number": "number", "string": "text", "bool": "bool", "timestamp": "timestamp"}
MAX_TEXT = 80


@dataclass(frozen=True, slots=True, repr=False)
class Reason:
    """One node of the predicate: an operator with its children, or a condition with what it saw (`note`)."""

    text: str
    truth: bool | None
    children: tuple[Reason, ...] = ()
    attribute: str | None = None
    value: object = None
    note: str = ""


class Reasons:
    def __init__(self, view: View, distances: Distances):
        self.view, self.distances = view, distances

    def of(self, root: Node) -> Reason:
        """The tree of a condition, with the truth of every node and what it saw."""

        def visit(node: Node, done: Sequence[Reason]) -> Reason:
            scope = self.view.scope
            held = truth(node, [reason.truth for reason in done], scope)
            scope.steps.spend(1)
            if isinstance(node, Branch):
                return Reason(node.op, held, tuple(done))
            if isinstance(node, Quantifier):
                return self._of_list(node, held)
            subject, value = self.view.subject(node)
            if isinstance(node, Test):
                note = self._of_test(node, held)
            else:
                remark = what_is_absent(node.pattern, value) if held is False and node.op == "LIKE" else ""
                note = f"{subject} is {show(value)}{remark}"
            return Reason(str(node), held, (), subject, plain(value), note)

        return fold(root, visit)

    def _of_test(self, test: Test, held: bool | None) -> str:
        if held is not None and test.op.endswith("INSIDE"):
            return self._of_area(test)
        if held is not None and is_circle(test):
            return self._of_circle(test, held)
        seen = [self._seen(operand) for operand in test.operands if not isinstance(operand, Constant)]
        return ", ".join(dict.fromkeys(seen)) + self._remark(test, held)

    def _seen(self, expression: Expression) -> str:
        text = f"{expression} is {show(self.view.value(expression))}"
        if isinstance(expression, Field):
            value = plain(self.view.scope.field(expression))
            if value is not None and value_of(expression, self.view.scope) is None:
                text += f", which is no {KINDS.get(expression.type, expression.type)}"
            return text
        sources = [source for source in inputs(expression) if source is not expression]
        inside = ", ".join(dict.fromkeys(f"{source} is {show(self.view.value(source))}" for source in sources))
        return f"{text} ({inside})" if inside else text

    def _remark(self, test: Test, held: bool | None) -> str:
        """What is wrong with a value, if that is not plain to see."""
        op = test.op.removeprefix("NOT ")
        if is_of_place(test):
            place = self.view.place(coordinates(test))[1]
            return ", which is no place" if place is not None and not is_place(place.lat, place.lon) else ""
        if op not in ("LIKE", "ILIKE", "IN NETWORK"):
            return ""
        value = value_of(test.operands[0], self.view.scope)
        if not isinstance(value, str):
            return ""
        if op == "IN NETWORK":
            return "" if address(value) is not None else ", which is no address"
        if held is not False or op != test.op:
            return ""
        return what_is_absent(test.machine, lower(value) if op == "ILIKE" else value)

    def _of_circle(self, test: Test, held: bool) -> str:
        far, limit = (float(value_of(operand, self.view.scope)) for operand in test.operands)
        text = f"the place {self.view.place(coordinates(test))[1]} is {metres(far)} away"
        if held or far == limit:
            return text
        return f"{text}: {metres(abs(far - limit))} too {'far' if far > limit else 'near'}"

    def _of_area(self, test: Test) -> str:
        place = self.view.place(test.operands)[1]
        nearest = nearest_place(test.machine, place)
        if nearest is None:
            return "the polygon is empty"
        far, point = nearest
        side = "inside" if test.machine.holds(place.lat, place.lon) else "outside"
        border = f"the nearest point of its border, {point}, is {metres(far)} away"
        return f"the place {place} is {side} the polygon; {border}"

    # ---- lists

    def _of_list(self, node: Quantifier, held: bool | None) -> Reason:
        name, elements = self.view.subject(node)
        if elements is None or elements is ABSENT:
            return Reason(str(node), held, (), name, None, f"{name} is {show(elements)}")
        if not elements:
            return Reason(str(node), held, (), name, elements, f"{name} is an empty list")
        look = partial(node_truth, node.condition, self.view.scope)
        truths = [self.view.at(node, number, element, look) for number, element in enumerate(elements)]
        best, text = self._best_element(node, str(name), elements, truths)
        if len(elements) > 1 and None in truths:
            text += f"; {truths.count(None)} of them unknown"
        children: tuple[Reason, ...] = ()
        if node.op.endswith("EXISTS"):
            children = (self.view.at(node, best, elements[best], partial(self.of, node.condition)),)
        return Reason(str(node), held, children, name, elements, text)

    def _best_element(
        self, node: Quantifier, name: str, elements: list[Any], truths: Sequence[bool | None]
    ) -> tuple[int, str]:
        """The element to be described, and how many fit."""
        needs_all, count = node.op == "ALL", len(elements)
        telling = [number for number, one in enumerate(truths) if (one is True) != needs_all]
        if count == 1:
            fits = "fits" if bool(telling) != needs_all else "does not fit"
            return 0, f"the only element of {name} {fits}: it is {show(elements[0])}"
        if telling:
            best, several = telling[0], len(telling) > 1
            fits = ("do not fit" if several else "does not fit") if needs_all else "fit" if several else "fits"
            return (
                best,
                f"{len(telling)} of {count} elements of {name} {fits}: element {best + 1} is {show(elements[best])}",
            )
        if needs_all:
            return 0, f"all {count} elements of {name} fit"
        best = self.distances.nearest_element(node, elements)
        return (
            best,
            f"none of {count} elements of {name} fits; the nearest, element {best + 1}, is {show(elements[best])}",
        )


# ---- values in words


def show(value: object) -> str:
    """An event's value in words."""
    if value is ABSENT:
        return "missing"
    if isinstance(value, Place):
        return str(value)
    if isinstance(value, tuple) and len(value) == 2:
        low, high = ("any" if end is None else show(end) for end in value)
        return f"{low} to {high}"
    if isinstance(value, list):
        return short(f"[{', '.join(map(show, value[:20]))}]")
    if isinstance(value, dict):
        return short(f"{{{', '.join(f'{name}: {show(part)}' for name, part in value.items())}}}")
    if is_missing(value):
        return "NULL"
    if isinstance(value, np.generic) and not isinstance(value, np.datetime64):
        value = value.item()
    try:
        return short(literal(value) if isinstance(value, (bool, str, datetime, timedelta)) else str(value))
    except OverflowError:  # a time in a zone, which is not one of the calendar in UTC
        return short(str(value))
    except Exception:  # a class that cannot show its values
        return brief(value)


def short(text: str) -> str:
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"


def plain(value: Any) -> Any:
    return None if value is ABSENT else value


def metres(length: float) -> str:
    """
    >>> metres(6656.49), metres(0.25)
    ('6,656 m', '0.25 m')
    """
    return f"{length:,.0f} m" if length >= 100 else f"{length:.3g} m"
