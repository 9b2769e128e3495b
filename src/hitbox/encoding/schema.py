"""Attributes and types: what events carry and subscriptions filter on.

    Schema({"price": "float", "qty": "int", "city": "string"})
    Schema({"salary": "int", "age": Attribute("int", role="information")})
    Schema({"x": Attribute("float", domain=(0, 1), precision="1e-6")})
    Schema({"order": {"customer": {"city": "string"}}, "tags": "string[]", "items": [{"sku": "string"}]})

A field of an object is an attribute with a dotted name (order.customer.city), and may be declared by that name, too. A
list has elements of one type, or objects with fields of their own.

A role is seen from the subscriber, as in the symmetric paper: `criteria` attributes are what subscriptions filter on
and events carry; `information` attributes are what subscriptions say about themselves and an event's `where` filters
on.

A declared domain and precision turn a number into a step on a grid, as in the papers. At subscribe time a value
outside the domain or between two steps is an error. At event time such a value keeps its exact place in the order: it
lies below, above or between the steps, equals none of them, and is never rounded.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np

from hitbox.encoding.values import brief, forbidden
from hitbox.errors import SchemaError, UnknownAttribute, nearest

TYPES = ("int", "float", "string", "bool", "timestamp")
LISTS = tuple(f"{type_}[]" for type_ in TYPES)
OBJECTS = "object[]"
EXTRA = ("ignore", "error")
ROLES = ("criteria", "information")
MAX_ATTRIBUTES = 1000
MAX_DEPTH = 50
MAX_STEPS = 2**48
MAX_DIGITS = 400
"""Digits that a number given as text may have."""


@dataclass(frozen=True, slots=True)
class Attribute:
    """One typed dimension. `domain` and `precision` go together, for numbers only; `fields` are those of a list of
    objects."""

    type: str
    role: str = "criteria"
    domain: tuple[Fraction, Fraction] | None = None
    precision: Fraction | None = None
    fields: Schema | None = None

    def __init__(
        self,
        type: str,
        role: str = "criteria",
        domain: tuple[Any, Any] | None = None,
        precision: Any | None = None,
        fields: Schema | Mapping[str, Any] | None = None,
    ):
        known = (*TYPES, *LISTS, OBJECTS)
        if not isinstance(type, str) or type not in known:
            raise SchemaError(
                f"unknown type {brief(type)}{nearest(type, known)} (have: {', '.join(TYPES)}, and lists: string[], ...)"
            )
        if (type == OBJECTS) != (fields is not None):
            raise SchemaError("a list of objects, and nothing else, has fields: write [{'sku': 'string', ...}]")
        if not isinstance(role, str) or role not in ROLES:
            raise SchemaError(f"unknown role {brief(role)}{nearest(role, ROLES)} (have: {', '.join(ROLES)})")
        if type not in TYPES and role != "criteria":
            raise SchemaError("subscriptions cannot say lists about themselves: a list has the role criteria")
        if fields is not None and not isinstance(fields, Schema):
            fields = Schema(fields)
        object.__setattr__(self, "type", type)
        object.__setattr__(self, "role", role)
        object.__setattr__(self, "fields", fields)
        low_high, step = _grid(type, domain, precision)
        object.__setattr__(self, "domain", low_high)
        object.__setattr__(self, "precision", step)

    @property
    def is_list(self) -> bool:
        return self.type.endswith("[]")

    @property
    def element(self) -> str:
        """The type of a list's elements: one of TYPES, or object."""
        return self.type.removesuffix("[]")

    def to_json(self) -> dict[str, Any]:
        found: dict[str, Any] = {"type": self.type, "role": self.role}
        if self.fields is not None:
            found["fields"] = self.fields.to_json()
        if self.domain and self.precision:
            found["domain"] = [str(self.domain[0]), str(self.domain[1])]
            found["precision"] = str(self.precision)
        return found


def _grid(
    kind: str, domain: tuple[Any, Any] | None, precision: Any | None
) -> tuple[tuple[Fraction, Fraction] | None, Fraction | None]:
    if domain is None and precision is None:
        return None, None
    if kind not in ("int", "float"):
        raise SchemaError(f"a domain and a precision are for int and float attributes, not for {kind}")
    if domain is None:
        raise SchemaError("a precision needs a domain: domain=(lowest, highest)")
    if precision is None and kind == "float":
        raise SchemaError("the domain of a float attribute needs a precision, e.g. precision='1e-6'")
    try:
        low, high = (_exact(v) for v in domain)
        step = Fraction(1) if precision is None else _exact(precision)
    except (TypeError, ValueError, ZeroDivisionError, OverflowError) as problem:
        raise SchemaError(
            f"domain {brief(domain)} with precision {brief(precision)} is not made of numbers"
        ) from problem
    if low > high or step <= 0:
        raise SchemaError(f"domain {brief(domain)} with precision {brief(precision)} is empty")
    if low % step or high % step:
        raise SchemaError(f"the ends of domain {brief(domain)} are not multiples of the precision {brief(precision)}")
    if kind == "int" and step.denominator != 1:
        raise SchemaError(f"the precision {brief(precision)} of an int attribute is not a whole number")
    if max(abs(low), abs(high)) / step > MAX_STEPS or max(abs(low), abs(high)) * step.denominator > 2**53:
        raise SchemaError(f"domain {brief(domain)} with precision {brief(precision)} has more steps than 2^48")
    return (low, high), step


def _exact(value: Any) -> Fraction:
    """A number as people write it: the float 1e-6 means the decimal 0.000001."""
    if isinstance(value, bool | np.timedelta64):
        raise TypeError(value)
    if isinstance(value, np.integer):
        value = int(value)  # a Fraction of an int8 would overflow
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(value)
        return Fraction(repr(value))
    if isinstance(value, str | Decimal):  # a fraction of 1e999999999 takes hours
        _check_short(str(value))
    return Fraction(value)


def _check_short(text: str) -> None:
    exponent = re.search(r"[eE]([+-]?[0-9_]+)\s*$", text)
    if len(text) > MAX_DIGITS or (exponent and abs(int(exponent[1])) > MAX_DIGITS):
        raise ValueError(f"{text[:MAX_DIGITS]} has too many digits")


class Schema(Mapping[str, Attribute]):
    """An ordered set of attributes by name.

    >>> schema = Schema({"price": "float", "city": "string"})
    >>> list(schema), schema["city"].type, schema.number("city")
    (['price', 'city'], 'string', 1)

    `extra` says what happens if an event has fields that are not declared, in mappings and in tables alike: "ignore",
    or "error". Without it they are ignored, unless one looks like a misspelt attribute, or there is nothing else.
    """

    is_open = False
    """Whether nothing is declared, and names and types come from the predicates."""

    def __init__(self, attributes: Mapping[str, Any], extra: str | None = None):
        if not isinstance(attributes, Mapping):
            raise SchemaError("a schema is made from a mapping of name to type, e.g. Schema({'price': 'float'})")
        if not attributes and not self.is_open:
            raise SchemaError("a schema needs at least one attribute")
        if extra is not None and extra not in EXTRA:
            raise SchemaError(f"extra is 'ignore' or 'error', not {brief(extra)}")
        self.extra = extra
        self._attributes: dict[str, Attribute] = {}
        self._declare(attributes, "", 0)
        self.objects = frozenset(
            name[:at] for name in self._attributes for at, c in enumerate(name) if c == "." and name[:at]
        ) - set(self._attributes)
        """The names of objects: what stands before a dot in the name of an attribute."""
        self._numbers = {name: number for number, name in enumerate(self._attributes)}
        self.names = list(self._attributes)

    def _declare(self, attributes: Mapping[str, Any], above: str, depth: int) -> None:
        """Declare the fields of an object, which is called `above`, or of the whole."""
        if depth > MAX_DEPTH:
            raise SchemaError(f"objects in objects, more than {MAX_DEPTH} deep")
        for part, of in attributes.items():
            name = f"{above}.{_name(part)}" if above else _name(part)
            if isinstance(of, Mapping) and not _is_attribute(of):
                if not of:
                    raise SchemaError(f"the object {name!r} has no fields")
                self._declare(of, name, depth + 1)
                continue
            if name in self._attributes:
                raise SchemaError(f"attribute {name!r} is given twice")
            made = _attribute(name, of)
            if made.fields is not None and self.extra is not None:
                made = Attribute(OBJECTS, fields=Schema(made.fields, self.extra))
            self._attributes[_name(name)] = made
            if len(self._attributes) > MAX_ATTRIBUTES:
                raise SchemaError(f"more than {MAX_ATTRIBUTES} attributes, which is the limit")

    def __getitem__(self, name: str) -> Attribute:
        return self._attributes[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._attributes)

    def __len__(self) -> int:
        return len(self._attributes)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Schema):
            return False
        return list(self.items()) == list(other.items()) and self.extra == other.extra

    def __hash__(self) -> int:
        return hash(tuple(self.items()))

    def __repr__(self) -> str:
        return f"Schema({ {name: a.type for name, a in self.items()} })"

    def number(self, name: str) -> int:
        """The place of an attribute; an unknown name is an error with the nearest valid one."""
        try:
            return self._numbers[name]
        except KeyError:
            raise UnknownAttribute(f"unknown attribute {brief(name)}{nearest(name, self.names)}") from None

    def with_role(self, role: str) -> list[str]:
        return [name for name, a in self.items() if a.role == role]

    def swapped(self) -> Schema:
        """The schema as the other side sees it: criteria become information, and information criteria."""
        other = dict(zip(ROLES, reversed(ROLES), strict=True))
        swapped = {name: replace(attribute, role=other[attribute.role]) for name, attribute in self.items()}
        return Schema(swapped, self.extra)

    def end_columns(self, name: str) -> tuple[str, ...]:
        """The two columns that hold the ends of an attribute's intervals in a table of values. None if another
        attribute has one of these names: then the column belongs to that attribute."""
        ends = f"{name}_low", f"{name}_high"
        return () if any(end in self for end in ends) else ends

    def to_json(self) -> Any:
        """A list with an object per attribute; where `extra` was given, {"extra": .., "attributes": that list}."""
        rows = [{"name": name, **a.to_json()} for name, a in self.items()]
        return rows if self.extra is None else {"extra": self.extra, "attributes": rows}

    @classmethod
    def from_json(cls, rows: Iterable[Mapping[str, Any]] | Mapping[str, Any]) -> Schema:
        extra = None
        if isinstance(rows, Mapping):
            if rows.get("open") is True:
                return OpenSchema()
            extra, rows = rows.get("extra"), rows.get("attributes", [])
        found: dict[str, Attribute] = {}
        for row in rows:
            if not isinstance(row, Mapping) or "name" not in row:
                raise SchemaError(f"an attribute needs a name: {row!r}")
            name = _name(row["name"])
            if name in found:
                raise SchemaError(f"attribute {name!r} is given twice")
            of = {key: value for key, value in row.items() if key != "name"}
            if "fields" in of:
                of["fields"] = cls.from_json(of["fields"])
            found[name] = _attribute(name, of)
        return cls(found, extra)


class OpenSchema(Schema):
    """No attribute is declared: names and types come from the predicates, and events may have any fields.

    >>> OpenSchema()
    OpenSchema()
    """

    is_open = True

    def __init__(self) -> None:
        super().__init__({}, "ignore")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OpenSchema)

    def __hash__(self) -> int:
        return hash(OpenSchema)

    def __repr__(self) -> str:
        return "OpenSchema()"

    def swapped(self) -> Schema:
        return self

    def to_json(self) -> Any:
        return {"open": True}


def _name(name: Any) -> str:
    if not isinstance(name, str) or not name or len(name) > 200:
        raise SchemaError(f"an attribute's name is a text of 1 to 200 characters, not {brief(name)}")
    if any(ch < " " for ch in name) or forbidden(name) is not None:
        raise SchemaError(f"attribute name {name!r} contains a control character or a lone surrogate")
    return str.__str__(name)


def _is_attribute(of: Mapping[str, Any]) -> bool:
    """Is this a description such as {"type": "int", "role": ..}? Otherwise it is an object with fields."""
    return isinstance(of.get("type"), str) and set(of) <= {"type", "role", "domain", "precision", "fields"}


def _attribute(name: str, of: Any) -> Attribute:
    try:
        if isinstance(of, Attribute):
            return of
        if isinstance(of, list) and len(of) == 1:  # a list of what is in it
            if isinstance(of[0], Mapping):
                return Attribute(OBJECTS, fields=Schema(of[0]))
            return Attribute(f"{of[0]}[]")
        return Attribute(**of) if isinstance(of, Mapping) else Attribute(of)
    except SchemaError as problem:
        raise SchemaError(f"attribute {name!r}: {problem}") from None
    except TypeError:
        raise SchemaError(f"attribute {name!r}: give type, role, domain, precision; got {of!r}") from None
