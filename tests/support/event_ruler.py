"""Event Ruler as its documents and tests describe it, as plain as possible: the judge of translated patterns.

An event is a list of fields: the path, the value, and which element of which list it stands in. A pattern is a list of
rules, one per combination of the branches of its $or; a rule asks one thing per path. The paths of a rule are gone
through in order. Each takes a field that fits and that stands in the same elements as those before; or, if that is
asked for, no field, if there is none in the same elements.
"""

from __future__ import annotations

import ipaddress
import itertools
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

Elements = dict[int, int]
"""The number of a list -> the number of the element."""


class Field(NamedTuple):
    path: str
    value: Any
    elements: Elements


def matches(pattern: dict[str, Any], event: dict[str, Any]) -> bool:
    fields = list(_fields(event, "", {}, itertools.count()))
    return any(_fits(sorted(rule.items()), fields, {}) for rule in _rules(pattern, ""))


def _fields(value: Any, path: str, elements: Elements, lists: Iterator[int]) -> Iterator[Field]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _fields(inner, f"{path}.{key}" if path else key, elements, lists)
    elif isinstance(value, list):
        number = next(lists)
        for at, one in enumerate(value):
            inside = elements | {number: at} if isinstance(one, (dict, list)) else elements
            yield from _fields(one, path, inside, lists)
    else:
        yield Field(path, value, elements)


def _rules(pattern: dict[str, Any], path: str) -> list[dict[str, list[Any]]]:
    found: list[dict[str, list[Any]]] = [{}]
    for key, value in pattern.items():
        full = f"{path}.{key}" if path else key
        if key == "$or":
            more = [rule for branch in value for rule in _rules(branch, path)]
        elif isinstance(value, dict):
            more = _rules(value, full)
        else:
            more = [{full: value}]
        found = [one | other for one in found for other in more]
    return found


def _fits(rule: list[tuple[str, list[Any]]], fields: list[Field], chosen: Elements) -> bool:
    if not rule:
        return True
    (path, alternatives), *rest = rule
    here = [one for one in fields if one.path == path and _agree(one.elements, chosen)]
    if {"exists": False} in alternatives and not here and _fits(rest, fields, chosen):
        return True
    return any(
        _fits(rest, fields, chosen | one.elements)
        for one in here
        if any(value_fits(alternative, one.value) for alternative in alternatives)
    )


def _agree(one: Elements, other: Elements) -> bool:
    return all(other.get(number, at) == at for number, at in one.items())


def value_fits(alternative: Any, value: Any) -> bool:
    """Whether a value of an event fits an alternative."""
    if not isinstance(alternative, dict):
        return isinstance(alternative, bool) == isinstance(value, bool) and alternative == value
    ((operator, of),) = alternative.items()
    if operator == "exists":
        return bool(of)
    if operator == "anything-but":
        if isinstance(of, dict):
            ((inner, several),) = of.items()
            several = several if isinstance(several, list) else [several]
            return not any(value_fits({inner: one}, value) for one in several)
        return not any(value_fits(one, value) for one in (of if isinstance(of, list) else [of]))
    if operator == "numeric":
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return False
        compare = {"=": "__eq__", "<": "__lt__", "<=": "__le__", ">": "__gt__", ">=": "__ge__"}
        pairs = zip(of[::2], of[1::2], strict=True)
        return all(getattr(float(value), compare[op])(float(bound)) for op, bound in pairs)
    return isinstance(value, str) and _text_fits(operator, of, value)


def _text_fits(operator: str, of: Any, value: str) -> bool:
    if operator == "cidr":
        try:
            return ipaddress.ip_address(value) in ipaddress.ip_network(of)
        except ValueError:
            return False
    if isinstance(of, dict):
        of, value = of["equals-ignore-case"].lower(), value.lower()
    if operator == "prefix":
        return value.startswith(of)
    if operator == "suffix":
        return value.endswith(of)
    if operator == "equals-ignore-case":
        return value.lower() == of.lower()
    return re.fullmatch(".*".join(map(re.escape, of.split("*"))), value, re.DOTALL) is not None
