"""Event patterns of Amazon EventBridge and Event Ruler -> predicates.

    {"source": ["shop"], "detail": {"total": [{"numeric": [">", 10, "<=", 50]}]}}

All fields must fit, and one of the alternatives per field. If the event has a list where the pattern has a field, one
element must fit; a test of a list must therefore say everything about an element in one condition:

    known to be one value     total > 10 AND total <= 50
    a list, or unknown        ANY(total) BETWEEN 10.000000000000002 AND 50

Fields of objects in a list must fit in the same object (same_object.py).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Any

from hitbox.dialects.conditions import (
    FALSE,
    MAX_DEPTH,
    MAX_TEXT,
    Condition,
    as_schema,
    both,
    either,
    name,
    negation,
    predicate,
    test,
)
from hitbox.dialects.same_object import AllOf, AnyOf, Part, SameObject, exists
from hitbox.encoding.schema import Schema
from hitbox.encoding.values import brief, forbidden, forbidden_name
from hitbox.errors import DialectError, nearest
from hitbox.language.syntax.expressions import literal

OR = "$or"
OPERATORS = (
    "prefix",
    "suffix",
    "equals-ignore-case",
    "wildcard",
    "anything-but",
    "numeric",
    "cidr",
    "exists",
    "exactly",
)
RESERVED = frozenset(
    (
        *OPERATORS,
        *("=", "<", "<=", ">", ">=", "regex", "not-wildcard", "not-equals-ignore-case", "date-after"),
        *("date-on-or-after", "date-before", "date-on-or-before", "in-date-range", "ip-address-in-range"),
        "ip-address-not-in-range",
    )
)
"""Names that no field below a $or may have; if one has, the $or is a field itself."""
UNKNOWN = "unknown"
"""The type of a field if there is no schema: one value of any type, or a list."""
KINDS = {
    "string": ("{} >= ''",),
    "number": ("{} < 0", "{} >= 0"),
    "bool": ("{} IN (TRUE, FALSE)",),
    "timestamp": ("{} >= TIMESTAMP '0001-01-01'",),
}
"""What is true of every value of a kind. An object is of none."""
NUMBERS = ("int", "float")
IGNORE_CASE = "equals-ignore-case"
MAPPED = IPv6Network("::ffff:0:0/96")


def parse(pattern: str | bytes | Mapping[str, Any], schema: Schema | Mapping[str, Any] | None = None) -> str:
    """The predicate that is true where an event pattern matches. The pattern is JSON, or a mapping.

    A field is the attribute with the dotted name, `detail.state`. If `schema` is given, the predicate is made for it:
    names are checked, alternatives of another type than the attribute's are left out, lists are looked at with ANY and
    lists of objects with EXISTS. Without it, the predicate is for an index without a schema; there, each value and each
    object may be one or a list.

    Numbers are equal by value: 300 is 3.0e2. The case of letters is ignored by Unicode's simple mapping.

    >>> parse('{"source": ["shop"], "total": [{"numeric": ["<", 10]}]}', {"source": "string", "total": "float"})
    "source = 'shop' AND total < 10"
    >>> parse({"tags": [{"prefix": "a"}, "b"]}, {"tags": "string[]"})
    "ANY(tags) = 'b' OR ANY(tags) LIKE 'a%'"
    >>> parse({"source": ["shop", "store"]})
    "ANY(source) IN ('shop', 'store')"
    """
    known = as_schema(schema)
    if isinstance(pattern, (str, bytes)):
        pattern = _read(pattern)
    try:
        if not isinstance(pattern, Mapping):
            raise DialectError(f"a pattern is a JSON object, not {brief(pattern)}")
        return predicate(SameObject(known is None).condition([_Object(known).part(pattern, "$", 0)]))
    except RecursionError:
        raise DialectError("the pattern is nested too deeply for Python's stack: flatten it") from None


def _read(text: str | bytes) -> Any:
    if len(text) > MAX_TEXT:
        raise DialectError(f"the pattern has {len(text)} characters; the limit is {MAX_TEXT}: split it")
    try:
        if isinstance(text, bytes):
            text = text.decode()
        return json.loads(text, object_pairs_hook=_without_twins, parse_float=Decimal, parse_constant=_no_constant)
    except UnicodeDecodeError as problem:
        raise DialectError(f"the pattern is not UTF-8: {problem}") from None
    except json.JSONDecodeError as problem:
        raise DialectError(f"the pattern is not JSON: {problem.msg}", problem.doc, problem.pos) from None
    except RecursionError:
        raise DialectError(f"the pattern is nested more than {MAX_DEPTH} deep: flatten it") from None
    except DialectError:
        raise
    except ValueError as problem:  # an integer of thousands of digits
        raise DialectError(f"the pattern is not JSON that can be read: {problem}") from None


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise DialectError(f"the field {twice!r} is given twice in one object: merge their alternatives")
    return found


def _no_constant(word: str) -> Any:
    raise DialectError(f"{word} is no number of JSON")


class _Object:
    """The fields of the event, or of the objects of a list."""

    def __init__(
        self,
        schema: Schema | None,
        lists: tuple[str, ...] = (),
        above: str = "",
        seen: dict[tuple[str, ...], str] | None = None,
    ):
        """`lists` are those around, `above` is the path from the innermost to the object at hand; `seen` are the fields
        that were named, and where."""
        self._schema, self._lists, self._above = schema, lists, above
        self._seen = {} if seen is None else seen

    def part(self, pattern: Mapping[str, Any], place: str, depth: int) -> Part:
        """All fields of an object of the pattern; `place` is where it stands in the pattern."""
        if depth > MAX_DEPTH:
            raise DialectError(f"{place[:200]}: the pattern is nested more than {MAX_DEPTH} deep: flatten it")
        if not pattern:
            raise DialectError(f"{place}: an empty object matches nothing that can be named: remove it")
        found = []
        for key, value in pattern.items():
            where = f"{place}.{key}"[:300]
            if not isinstance(key, str) or not key:
                raise DialectError(f"{place}: the name of a field is a text that is not empty, not {brief(key)}")
            if key == OR and _is_or(value):
                found.append(self._any_of(value, where, depth))
            else:
                found.append(self._field(f"{self._above}{key}", value, where, depth))
        return AllOf(tuple(found))

    def _any_of(self, branches: list[Any], place: str, depth: int) -> Part:
        """Each branch may name a field again, but not one that stands beside the $or."""
        found, named = [], dict(self._seen)
        for number, branch in enumerate(branches):
            inner = _Object(self._schema, self._lists, self._above, dict(self._seen))
            found.append(inner.part(branch, f"{place}[{number}]", depth + 1))
            named |= inner._seen
        self._seen |= named
        return AnyOf(tuple(found))

    def _field(self, path: str, value: Any, place: str, depth: int) -> Part:
        if isinstance(value, Mapping):
            inner = _Object(self._schema, self._lists, f"{path}.", self._seen)
            if self._schema is not None and path in self._schema:
                of = self._schema[path]
                if of.fields is None:
                    raise DialectError(f"{place}: {path!r} is a {of.type} in the schema, and not an object")
                inner = _Object(of.fields, (*self._lists, path), "", self._seen)
            return inner.part(value, place, depth + 1)
        if not isinstance(value, list):
            raise DialectError(f"{place}: a field takes a list of alternatives, [{brief(value)}], or an object")
        if not value:
            raise DialectError(f"{place}: the list of alternatives is empty")
        type_, several = self._type(path, place)
        steps = _steps(path) if self._schema is None else (*self._lists, path)
        alternatives = [(f"{place}[{number}]", one) for number, one in enumerate(value)]
        found = _Field(steps, type_, several, alternatives)
        if steps in self._seen:
            raise DialectError(
                f"{place}: the field {'.'.join(steps)!r} was given at {self._seen[steps]}: merge their alternatives"
            )
        self._seen[steps] = place
        found.fits(len(steps) - 1)  # what is wrong with the alternatives is found here
        return found

    def _type(self, path: str, place: str) -> tuple[str, bool]:
        """The type of a field, and whether it may be a list."""
        _check_text(path, place)
        if self._schema is None:
            return UNKNOWN, True
        if path not in self._schema:
            if path in self._schema.objects:
                raise DialectError(f"{place}: {path!r} is an object in the schema: name its fields")
            hint = nearest(path, self._schema) or f" (have: {', '.join(list(self._schema)[:10])})"
            raise DialectError(f"{place}: the schema has no attribute {path!r}{hint}")
        found = self._schema[path]
        if found.fields is not None:
            raise DialectError(f"{place}: {path!r} is a list of objects in the schema: name their fields")
        return found.element, found.is_list


def _steps(path: str) -> tuple[str, ...]:
    """Without a schema, every object on the way may be a list."""
    steps = tuple(path.split("."))
    return steps if all(steps) else (path,)


@dataclass(frozen=True, eq=False)
class _Field:
    """A field of the pattern and its alternatives."""

    steps: tuple[str, ...]
    type: str
    several: bool
    """Whether it may be a list."""
    alternatives: list[tuple[str, Any]]
    """Each with its place in the pattern."""

    @property
    def may_be_absent(self) -> bool:
        return any(_asks_for_absence(one) for _, one in self.alternatives)

    def needed(self) -> _Field:
        return replace(self, alternatives=[one for one in self.alternatives if not _asks_for_absence(one[1])])

    def fits(self, level: int) -> Condition:
        """One of the alternatives fits."""
        tests = self._tests(level)
        found = tests.any_of(self.needed().alternatives)
        return either(found, tests.is_absent()) if self.may_be_absent else found

    def is_absent(self, level: int) -> Condition:
        """Of all objects that can be seen from there."""
        if self.type == UNKNOWN or level == len(self.steps) - 1:
            return self._tests(level).is_absent()
        of = self.steps[level]
        return either(test(f"{name(of)} IS NULL"), negation(exists(of, self._is_there(level + 1))))

    def _is_there(self, level: int) -> Condition:
        if level == len(self.steps) - 1:
            return self._tests(level).is_there()
        of = self.steps[level]
        return both(test(f"{name(of)} IS NOT NULL"), exists(of, self._is_there(level + 1)))

    def _tests(self, level: int) -> _Tests:
        return _Tests(self.steps[level:], self.type, self.several)


def _asks_for_absence(alternative: Any) -> bool:
    return isinstance(alternative, Mapping) and len(alternative) == 1 and alternative.get("exists") is False


class _Tests:
    """What may be asked of a field, which is the left side of all tests."""

    def __init__(self, steps: tuple[str, ...], type_: str, several: bool):
        """Where nothing is known, each of the steps may be a list."""
        self._steps, self._type, self._several = steps, type_, several
        self._name = name(".".join(steps))
        self._value = f"ANY({self._name})" if several else self._name

    def any_of(self, alternatives: list[tuple[str, Any]]) -> Condition:
        """One of the alternatives fits."""
        plain: dict[str, list[str]] = {}
        others: list[Condition] = []
        for place, one in alternatives:
            if isinstance(one, Mapping):
                others.append(self._operator(one, place))
            elif one is None:
                others.append(self._null())
            else:
                kind, text = _scalar(one, place)
                plain.setdefault(kind, []).append(text)
        return either(*(self._equal(kind, texts) for kind, texts in plain.items()), *others)

    def is_there(self) -> Condition:
        """Event Ruler sees no field where a list is empty, or where an object is."""
        if self._type == UNKNOWN:
            return test(f"({self._value_or_null()}) = TRUE")
        there = test(f"{self._name} IS NOT MISSING")
        if not self._several:
            return there
        return both(there, either(test(f"{self._name} IS NULL"), test(f"LENGTH({self._name}) > 0")))

    def is_absent(self) -> Condition:
        missing = test(f"{self._name} IS MISSING")
        if self._type == UNKNOWN:  # of an object, no test of a value is true or false
            there = self._value_or_null()
            no_lists = [test(f"LENGTH({of}) IS NULL") for of in self._around()]
            return either(both(*no_lists, missing), test(f"({there}) IS NULL"), test(f"({there}) = FALSE"))
        return either(missing, test(f"LENGTH({self._name}) = 0")) if self._several else missing

    def _around(self) -> list[str]:
        """The objects around, each of which may be a list."""
        return [name(".".join(self._steps[:end])) for end in range(1, len(self._steps))]

    def _value_or_null(self, but: str = "") -> str:
        """The predicate that holds of null and of values of all kinds but one. It is used as one value in a test, so
        that an index does not make a box of every kind."""
        values = [test(one.format(self._value)) for kind in KINDS if kind != but for one in KINDS[kind]]
        return predicate(either(self._null(), *values))

    # ---- alternatives

    def _fits(self, kind: str) -> bool:
        """Whether the field may hold a value of this kind: number, string, bool."""
        return self._type == UNKNOWN or kind == ("number" if self._type in NUMBERS else self._type)

    def _equal(self, kind: str, texts: list[str]) -> Condition:
        if not self._fits(kind):
            return FALSE
        return test(f"{self._value} {_among(texts)}")

    def _null(self) -> Condition:
        """The field is null, or a null is in its list."""
        there, null = test(f"{self._name} IS NOT MISSING"), test(f"{self._name} IS NULL")
        if not self._several:
            return both(null, there)
        found = both(there, either(null, test(f"{self._value} IS NULL")))
        if self._type != UNKNOWN or len(self._steps) == 1:
            return found
        is_list = either(*(test(f"LENGTH({of}) IS NOT NULL") for of in self._around()))
        inside = _Tests(self._steps[-1:], UNKNOWN, True)
        return either(found, both(is_list, exists(".".join(self._steps[:-1]), inside._null())))

    def _operator(self, expression: Mapping[str, Any], place: str) -> Condition:
        operator, value = _only(expression, place)
        where = f"{place}.{operator}"
        if operator == "anything-but":
            return self._anything_but(value, where)
        if operator == "exists":
            if not isinstance(value, bool):
                raise DialectError(f"{where}: exists takes true or false, not {brief(value)}")
            return self.is_there()
        if operator == "numeric":
            return self._numeric(value, where)
        if operator == "cidr":
            networks = _networks(value, where)
            tests = [test(f"{self._value} IN NETWORK {literal(str(one))}") for one in networks]
            return either(*tests) if self._fits("string") else FALSE
        if operator in ("prefix", "suffix") and isinstance(value, Mapping):
            inner, text = _only(value, where)
            if inner != IGNORE_CASE:
                raise DialectError(f"{where}: {operator} takes a text or {{{IGNORE_CASE!r}: text}}, not {inner!r}")
            tested = _like(operator, _text(text, f"{where}.{inner}"), where, any_case=True)
        elif operator in OPERATORS:
            tested = _like(operator, _text(value, where), where, any_case=operator == IGNORE_CASE)
        else:
            raise DialectError(
                f"{where}: unknown operator{nearest(operator, OPERATORS)} (have: {', '.join(OPERATORS)})"
            )
        return test(f"{self._value} {tested}") if self._fits("string") else FALSE

    def _numeric(self, value: Any, place: str) -> Condition:
        ranges = _range(value, place)
        if not self._fits("number"):
            return FALSE
        if len(ranges) == 1 or not self._several:
            return both(*(test(f"{self._value} {op} {literal(bound)}") for op, bound in ranges))
        (low_op, low), (high_op, high) = ranges  # of one element
        first = low if low_op == ">=" else _next(low, math.inf)
        last = high if high_op == "<=" else _next(high, -math.inf)
        return test(f"{self._value} BETWEEN {literal(first)} AND {literal(last)}")

    def _anything_but(self, value: Any, place: str) -> Condition:
        """A value that fits none of the alternatives; null is such a value, and so is one of another type."""
        tests, kind = _alternatives(value, place)
        if not self._fits(kind):
            return self.is_there()
        if len(tests) > 1 and self._several:  # all of them of one element
            tests = [f"REGEXP {literal('|'.join(_as_regular_expression(value)))}"]
        others = [f"{self._value} NOT {one}" if one[0] != "=" else f"{self._value} <>{one[1:]}" for one in tests]
        unlike = both(*map(test, others))
        if self._type != UNKNOWN:
            return either(unlike, self._null())
        return either(unlike, test(f"({self._value_or_null(but=kind)}) = TRUE"))


# ---- what operators say


def _is_or(value: Any) -> bool:
    """Whether a $or joins alternatives; otherwise it is a field of that name."""
    if not isinstance(value, list) or len(value) < 2 or not all(isinstance(one, Mapping) for one in value):
        return False
    return not any(key in RESERVED for one in value for key in one)


def _only(expression: Mapping[str, Any], place: str) -> tuple[str, Any]:
    if len(expression) != 1:
        raise DialectError(f"{place}: an alternative has one operator, not {len(expression)}")
    ((operator, value),) = expression.items()
    if not isinstance(operator, str):
        raise DialectError(f"{place}: an operator is a text, not {brief(operator)}")
    return operator, value


def _scalar(value: Any, place: str) -> tuple[str, str]:
    """The kind of a value, and its literal."""
    if isinstance(value, bool):
        return "bool", literal(value)
    if isinstance(value, str):
        return "string", literal(_text(value, place))
    if isinstance(value, (int, float, Decimal)):
        return "number", literal(_number(value, place))
    raise DialectError(f"{place}: an alternative is a text, a number, a bool, null or an operator, not {brief(value)}")


def _text(value: Any, place: str) -> str:
    if not isinstance(value, str):
        raise DialectError(f"{place}: write a text, not {brief(value)}")
    _check_text(value, place)
    return str.__str__(value)


def _check_text(value: str, place: str) -> None:
    bad = forbidden(value)
    if bad is not None:
        raise DialectError(f"{place}: {forbidden_name(value[bad])} cannot be part of a predicate: remove it")


def _number(value: Any, place: str) -> int | Decimal:
    if isinstance(value, bool) or not isinstance(value, (int, float, Decimal)):
        raise DialectError(f"{place}: write a number, not {brief(value)}")
    exact = Decimal(repr(value)) if isinstance(value, float) else value
    if isinstance(exact, Decimal) and not exact.is_finite():
        raise DialectError(f"{place}: {value} is no number of JSON")
    if isinstance(exact, int) and -(2**63) <= exact < 2**63:
        return int(exact)
    exact = Decimal(exact)
    if exact and (exact.adjusted() > 308 or exact.adjusted() < -400 or math.isinf(float(exact))):
        raise DialectError(f"{place}: the number {brief(value)} does not fit a 64-bit float")
    return exact or Decimal("0.0")


def _among(texts: list[str]) -> str:
    return f"= {texts[0]}" if len(texts) == 1 else f"IN ({', '.join(dict.fromkeys(texts))})"


def _range(value: Any, place: str) -> list[tuple[str, int | Decimal]]:
    """The bounds of a numeric operator: = x, or a lower one, an upper one, or both."""
    if not isinstance(value, list) or len(value) not in (2, 4):
        raise DialectError(f'{place}: numeric takes operators and numbers, as in [">", 0, "<=", 5], not {brief(value)}')
    found = []
    for at in range(0, len(value), 2):
        operator = value[at]
        wanted = ("=", "<", "<=", ">", ">=") if len(value) == 2 else ((">", ">="), ("<", "<="))[at // 2]
        if not isinstance(operator, str) or operator not in wanted:
            what = "then < or <=" if at else "first > or >=" if len(value) == 4 else "one of = < <= > >="
            raise DialectError(f"{place}[{at}]: {brief(operator)} does not belong here: {what}")
        found.append((operator, _number(value[at + 1], f"{place}[{at + 1}]")))
    return found


def _next(bound: int | Decimal, towards: float) -> int | Decimal:
    """The nearest bound beyond one that is excluded: no double, and no int that a double holds, lies between."""
    near = float(bound)
    if isinstance(bound, int) and near != bound and (near > bound) == (towards > 0):
        return Decimal(repr(near))
    return Decimal(repr(math.nextafter(near, towards)))


def _networks(value: Any, place: str) -> list[IPv4Network | IPv6Network]:
    """A network; without those of IPv4, which ours holds to be part of IPv6."""
    text = _text(value, place)
    try:
        if text.count("/") != 1 or "%" in text:
            raise ValueError("write an address, '/' and a number of bits, as in '10.0.0.0/8'")
        whole = ip_network(text, strict=False)
    except ValueError as problem:
        raise DialectError(f"{place}: {brief(text)} is no network: {problem}") from None
    if isinstance(whole, IPv6Network) and MAPPED.subnet_of(whole):
        return list(whole.address_exclude(MAPPED))
    return [whole]


def _like(operator: str, text: str, place: str, any_case: bool = False) -> str:
    """The test of prefix, suffix, wildcard, exactly or equals-ignore-case, without its left side."""
    if operator == "exactly":
        return f"= {literal(text)}"
    if operator == "wildcard":
        parts = ["%" if part is None else _escaped(part) for part in _wildcard(text, place)]
        pattern = "".join(parts)
    else:
        pattern = _escaped(text)
        pattern = f"{pattern}%" if operator == "prefix" else f"%{pattern}" if operator == "suffix" else pattern
    escape = f" ESCAPE {literal(ESCAPE)}" if ESCAPE in pattern else ""
    return f"{'ILIKE' if any_case else 'LIKE'} {literal(pattern)}{escape}"


ESCAPE = "\\"


def _escaped(text: str) -> str:
    return re.sub(r"[\\%_]", r"\\\g<0>", text)


def _wildcard(text: str, place: str) -> list[str | None]:
    """The parts of a wildcard pattern; None stands for an asterisk."""
    parts: list[str | None] = []
    characters = iter(text)
    for c in characters:
        if c == "\\":
            escaped = next(characters, "")
            if escaped not in ("*", "\\"):
                raise DialectError(
                    f"{place}: in {brief(text)} a backslash stands before {escaped or 'the end'!r}; "
                    "it escapes * and itself only"
                )
            parts.append(escaped)
        elif c == "*":
            if parts and parts[-1] is None:
                raise DialectError(f"{place}: {brief(text)} has two asterisks in a row: write one")
            parts.append(None)
        else:
            parts.append(c)
    return parts


def _alternatives(value: Any, place: str) -> tuple[list[str], str]:
    """What anything-but excludes, as tests without their left sides, and the kind of their values."""
    if isinstance(value, Mapping):
        operator, inner = _only(value, place)
        if operator not in ("prefix", "suffix", "wildcard", IGNORE_CASE):
            raise DialectError(
                f"{place}: anything-but takes values, prefix, suffix, wildcard or {IGNORE_CASE}, not {operator!r}"
            )
        where = f"{place}.{operator}"
        texts = [_text(one, where) for one in _listed(inner, where)]
        if operator in ("prefix", "suffix") and "" in texts:
            raise DialectError(f"{where}: every text has the empty {operator}, so nothing would be left")
        return [_like(operator, text, where, any_case=operator == IGNORE_CASE) for text in texts], "string"
    found = [_scalar(one, place) for one in _listed(value, place)]
    kinds = {kind for kind, _ in found}
    if len(kinds) > 1 or "bool" in kinds:
        raise DialectError(f"{place}: the values of anything-but are all texts, or all numbers")
    return [_among([text for _, text in found])], kinds.pop()


def _listed(value: Any, place: str) -> list[Any]:
    several = value if isinstance(value, list) else [value]
    if not several:
        raise DialectError(f"{place}: the list is empty")
    return several


def _as_regular_expression(value: Mapping[str, Any]) -> Iterable[str]:
    """The alternatives of anything-but with an operator, each as a regular expression that means the same."""
    ((operator, inner),) = value.items()
    for text in _listed(inner, ""):
        plain = re.escape(text) if operator != "wildcard" else ""
        if operator == "prefix":
            yield f"^{plain}"
        elif operator == "suffix":
            yield f"{plain}$"
        elif operator == "wildcard":
            parts = (".*" if part is None else re.escape(part) for part in _wildcard(text, ""))
            yield f"(?s:^{''.join(parts)}$)"
        else:
            yield f"(?i:^{plain}$)"
