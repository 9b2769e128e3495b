"""JMS message selectors (JMS 2.0, Jakarta Messaging 3.1) -> predicates.

Selectors have the three-valued logic of SQL, as our language has. They differ in two ways:

- Literals are Java's: 0x1F, 017, 0b11, 1_000L, 7., .5F, 1e3D.
- Properties have the types of their values. A comparison of unlike types is false, not unknown; so NOT of it is true. A
  condition is therefore kept with its opposite: `when` it is true, and `unless`, when it is false.

Arithmetic has Java's numeric promotion, as ours has: of whole numbers, 7 / 2 is 3. It is of numbers only, and so is
every order. Where the type of a property is not known, `+ 0` makes NULL of what is no number.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

from hitbox.dialects.conditions import FALSE, TRUE, Condition, as_schema, both, either, name, predicate, test
from hitbox.dialects.scanner import Scanner
from hitbox.encoding.schema import Schema
from hitbox.errors import DialectError, nearest
from hitbox.language.conditions.patterns import Pattern
from hitbox.language.syntax.expressions import literal

KEYWORDS = frozenset(["AND", "OR", "NOT", "BETWEEN", "IN", "LIKE", "ESCAPE", "IS", "NULL", "TRUE", "FALSE"])
HEADERS = ("JMSDeliveryMode", "JMSPriority", "JMSMessageID", "JMSTimestamp", "JMSCorrelationID", "JMSType")
"""The header fields that a selector may name."""
OTHER_HEADERS = ("JMSDestination", "JMSReplyTo", "JMSExpiration", "JMSRedelivered", "JMSDeliveryTime")
STRENGTH = {"OR": 1, "AND": 2, "NOT": 3, "+": 5, "-": 5, "*": 6, "/": 6}
TESTS = frozenset(["=", "<>", "<", "<=", ">", ">=", "IS", "IN", "LIKE", "BETWEEN"])
COMPARISON, SIGN = 4, 7
OPPOSITE = {"=": "<>", "<>": "=", "<": ">=", "<=": ">", ">": "<=", ">=": "<"}
COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": lambda a, b: a == b,
    "<>": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}
KINDS = {"int": "number", "float": "number", "string": "string", "bool": "bool"}
ANY = "any"
"""The kind of an identifier if there is no schema."""

_TOKEN = re.compile(
    r"""[ \t\f\r\n]*+(?:
        (?P<name>(?:[^\W\d]|\$)[\w$]*+)
      | (?P<string>'[^']*+(?:''[^']*+)*+')
      | (?P<number>0[xX][0-9a-fA-F_.]+(?:[pP][+-]?[0-9]+)?[fFdDlL]?(?![\w.])
          | (?:[0-9]|\.[0-9])(?:[0-9a-zA-Z_.]|(?<=[eE])[+-](?=[0-9]))*+)
      | (?P<mark><=|>=|<>|[=<>(),+*/-])
      | (?P<end>\Z)
      | (?P<bad>.)
    )""",
    re.VERBOSE | re.DOTALL,
)
_WHOLE = re.compile(r"(0[xX](?P<hex>[0-9a-fA-F]+)|0[bB](?P<bin>[01]+)|0(?P<oct>[0-7]+)|(?P<dec>0|[1-9][0-9]*))[lL]?")
_DECIMAL = re.compile(r"((?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)([fFdD]?)")
_HEX_FLOAT = re.compile(r"(0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?[0-9]+)([fFdD]?)")
_HINTS = {
    "'": "the string that starts here has no closing quote (a quote inside a string is written twice)",
    '"': "strings stand in single quotes, and names are not quoted",
    "!=": "JMS writes <>, not !=",
    "%": "JMS has no remainder",
    ".": "a name has no dots, and a number has digits on one side of the point",
    "?": "selectors have no parameters",
    ":": "selectors have no parameters",
    ";": "a selector is one condition, without a ';' at its end",
}


@dataclass(frozen=True, slots=True)
class Value:
    """A number, string or bool. `kind` says which, or ANY; `strength` is that of the loosest operator in the text."""

    text: str
    kind: str
    position: int
    strength: int = 9
    identifier: str = ""
    constant: Any = None

    @property
    def calculated(self) -> bool:
        """Whether it is the result of an operator."""
        return self.kind == "number" and not self.identifier and self.constant is None


@dataclass(frozen=True, slots=True)
class Truth:
    """A condition: `when` it is true, and `unless`, when it is false. Where neither holds, it is unknown."""

    when: Condition
    unless: Condition
    position: int
    chained: bool = False
    """Whether it is a comparison without parentheses, which cannot be compared again."""


def parse(selector: str, schema: Schema | Mapping[str, Any] | None = None) -> str:
    """The predicate that is true where a JMS message selector is.

    Properties and header fields are attributes of the same name: numbers int or float, strings string, bools bool
    (JMSTimestamp is an int, the milliseconds; JMSDeliveryMode is a string). An empty selector accepts everything.

    If `schema` is given, the predicate is made for it: names are checked, and a comparison of unlike types is false, as
    in JMS. Without it, the predicate suits an index without a schema, or one whose types are those of the literals.

    >>> parse("JMSType = 'car' AND colour = 'blue' AND weight > 0x9C4")
    "JMSType = 'car' AND colour = 'blue' AND weight > 2500"
    >>> parse("NOT (age BETWEEN 15 and 19)", schema={"age": "int"})
    'age NOT BETWEEN 15 AND 19'
    >>> parse("age = '15'", schema={"age": "int"})
    'FALSE'
    """
    known = as_schema(schema)
    scanner = Scanner(selector, "selector", _TOKEN, KEYWORDS, _HINTS)
    if scanner.kind == "end":
        return "TRUE"
    try:
        parser = _Parser(scanner, known)
        found = parser.truth(parser.expression(0))
        if scanner.kind != "end":
            raise scanner.unexpected("AND, OR or the end of the selector")
        return predicate(found.when)
    except RecursionError:
        raise DialectError("the selector is nested too deeply for Python's stack: flatten it") from None


class _Parser:
    def __init__(self, scanner: Scanner, schema: Schema | None):
        self._next, self._schema = scanner, schema

    # ---- expressions

    def expression(self, least: int) -> Value | Truth:
        """What stands here, with the operators that bind at least so tightly."""
        left = self._first(least)
        while True:
            kind = self._next.kind
            test_here = kind in TESTS or (kind == "NOT" and self._next.following() in ("BETWEEN", "IN", "LIKE"))
            strength = COMPARISON if test_here else STRENGTH.get(kind, 0)
            if (kind == "NOT" and not test_here) or not strength or strength < least:
                return left
            if test_here:
                left = self._test(left)
                continue
            self._next.advance()
            right = self.expression(strength + 1)
            if kind in ("AND", "OR"):
                one, two = self.truth(left), self.truth(right)
                joins = (both, either) if kind == "AND" else (either, both)
                left = Truth(joins[0](one.when, two.when), joins[1](one.unless, two.unless), one.position)
            else:
                left = self._calculated(kind, strength, left, right)

    def _first(self, least: int) -> Value | Truth:
        start = self._next.position
        if self._next.kind == "NOT":
            if least > STRENGTH["NOT"]:
                raise self._next.unexpected("a value (put a condition with NOT in parentheses)")
            odd = False
            while self._next.take("NOT"):
                odd = not odd
            of = self.truth(self.expression(STRENGTH["NOT"]))
            return Truth(of.unless, of.when, start) if odd else of
        if self._next.kind in ("+", "-"):
            return self._signed()
        return self._operand()

    def _signed(self) -> Value:
        start, minus = self._next.position, False
        while self._next.kind in ("+", "-"):
            minus ^= self._next.advance() == "-"
        if self._next.kind == "number":
            return self._number("-" if minus else "", start)
        of = self._numeric(self.expression(SIGN))
        if not minus:
            return _number_only(of)
        inner = _wrapped(of, SIGN)
        inner = f"({inner})" if inner.startswith("-") else inner  # -- would be a comment
        return Value(f"-{inner}", "number", start, SIGN)

    def _operand(self) -> Value | Truth:
        following, start = self._next, self._next.position
        if following.kind == "name":
            return self._identifier(following.advance(), start)
        if following.kind == "string":
            text = following.advance()[1:-1].replace("''", "'")
            return Value(literal(text), "string", start, constant=text)
        if following.kind == "number":
            return self._number("", start)
        if following.kind in ("TRUE", "FALSE"):
            value = following.advance().upper() == "TRUE"
            return Value(literal(value), "bool", start, constant=value)
        if following.take("("):
            following.deeper()
            found = self.expression(0)
            following.expect(")", "AND, OR or ')'")
            following.shallower()
            return Truth(found.when, found.unless, start) if isinstance(found, Truth) else found
        if following.kind == "NULL":
            raise following.error("nothing compares with NULL: write IS NULL or IS NOT NULL")
        raise following.unexpected("a name, a literal or '('")

    def _identifier(self, identifier: str, start: int) -> Value:
        if self._next.kind == "(":
            raise self._next.error(f"selectors have no functions, and {identifier} would be one", start)
        if identifier in OTHER_HEADERS:
            raise self._next.error(
                f"{identifier} cannot be used in a selector: of the header fields only {', '.join(HEADERS)} can", start
            )
        if self._schema is None:
            return Value(name(identifier), ANY, start, identifier=identifier)
        if identifier not in self._schema:
            hint = nearest(identifier, self._schema) or f" (have: {', '.join(list(self._schema)[:10])})"
            raise self._next.error(f"the schema has no attribute {identifier!r}{hint}", start)
        type_ = self._schema[identifier].type
        if type_ not in KINDS:
            raise self._next.error(
                f"attribute {identifier!r} is of type {type_}, and properties are numbers, strings and bools", start
            )
        return Value(name(identifier), KINDS[type_], start, identifier=identifier)

    def _number(self, sign: str, start: int) -> Value:
        token = self._next.piece
        try:
            value = _java_number(token)
        except ValueError as problem:
            raise self._next.error(f"the number {token[:40]} {problem}") from None
        self._next.advance()
        value = value.copy_negate() if sign and isinstance(value, Decimal) else -value if sign else value
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise self._next.error(f"the number {token[:40]} does not fit a long", start)
        return Value(literal(value), "number", start, SIGN if value < 0 else 9, constant=value)

    def _calculated(self, op: str, strength: int, left: Value | Truth, right: Value | Truth) -> Value:
        one, two = self._numeric(left), self._numeric(right)
        second = _wrapped(two, strength + 1)
        second = f"({second})" if second.startswith("-") else second
        return Value(f"{_wrapped(one, strength)} {op} {second}", "number", one.position, strength)

    def _numeric(self, of: Value | Truth) -> Value:
        if isinstance(of, Value) and of.kind in ("number", ANY):
            return of
        what = f"{of.text[:40]} is a {of.kind}" if isinstance(of, Value) else "this is a condition"
        raise self._next.error(f"arithmetic takes numbers, and {what}", of.position)

    def truth(self, of: Value | Truth) -> Truth:
        """A value as a condition: only a bool is one."""
        if isinstance(of, Truth):
            return of
        if of.kind == "bool" and of.constant is not None:
            return Truth(*((TRUE, FALSE) if of.constant else (FALSE, TRUE)), of.position)
        if of.identifier and of.kind in ("bool", ANY):
            return Truth(test(f"{of.text} = TRUE"), test(f"{of.text} = FALSE"), of.position)
        what = "arithmetic" if of.calculated else of.text[:40]
        raise self._next.error(f"{what} is no condition: compare it with something", of.position)

    # ---- tests

    def _test(self, left: Value | Truth) -> Truth:
        op, start = self._next.kind, left.position
        negated = self._next.take("NOT")
        op = self._next.kind
        self._next.advance()
        if op in OPPOSITE:
            if isinstance(left, Truth) and left.chained:
                raise self._next.error("comparisons do not chain: join them with AND", start)
            return self._compare(left, op, self.expression(COMPARISON + 1))
        if op == "BETWEEN":
            low, high = self._bounds()
            found = self._between(self._numeric(left), low, high)
        else:
            if not isinstance(left, Value) or not left.identifier:
                raise self._next.error(f"{op} tests a property, which is a name alone", start)
            if op == "IS":
                return self._null(left)
            found = self._listed(left) if op == "IN" else self._pattern(left)
        return Truth(found.unless, found.when, start) if negated else found

    def _compare(self, left: Value | Truth, op: str, right: Value | Truth) -> Truth:
        start = left.position
        if isinstance(left, Truth) or isinstance(right, Truth):
            if op not in ("=", "<>"):
                raise self._next.error(f"conditions are compared with = and <> only, not with {op}", start)
            one, two = self.truth(left), self.truth(right)
            same = either(both(one.when, two.when), both(one.unless, two.unless))
            other = either(both(one.when, two.unless), both(one.unless, two.when))
            return Truth(*((same, other) if op == "=" else (other, same)), start, True)
        for side in (left, right):
            if op not in ("=", "<>") and side.kind in ("string", "bool"):
                raise self._next.error(f"JMS compares a {side.kind} with = and <> only, not with {op}", side.position)
        for side, beside in ((left, right), (right, left)):
            if side.calculated and beside.kind in ("string", "bool"):
                what = f"arithmetic gives a number, and {beside.text[:40]} is a {beside.kind}"
                raise self._next.error(f"{what}: compare it with a number", side.position)
        if left.constant is not None and right.constant is not None:
            holds = left.kind == right.kind and COMPARE[op](left.constant, right.constant)
            return Truth(*((TRUE, FALSE) if holds else (FALSE, TRUE)), start, True)
        if ANY not in (left.kind, right.kind) and left.kind != right.kind:
            return Truth(FALSE, _present(left, right), start, True)
        ordered = op not in ("=", "<>") and left.kind == right.kind == ANY
        first = _wrapped(_number_only(left) if ordered else left, COMPARISON + 1)
        second = _wrapped(right, COMPARISON + 1)
        made = f"{first} {op} {second}"
        unlike = FALSE
        if ANY in (left.kind, right.kind):
            unlike = both(_present(left, right), test(f"({made}) IS NULL"))
        return Truth(test(made), either(test(f"{first} {OPPOSITE[op]} {second}"), unlike), start, True)

    def _bounds(self) -> tuple[Value, Value]:
        low = self._numeric(self.expression(COMPARISON + 1))
        self._next.expect("AND", "AND and the upper bound of BETWEEN")
        return low, self._numeric(self.expression(COMPARISON + 1))

    def _between(self, of: Value, low: Value, high: Value) -> Truth:
        if ANY in (low.kind, high.kind):
            of = _number_only(of)
        rest = f"BETWEEN {low.text} AND {high.text}"
        return Truth(test(f"{of.text} {rest}"), test(f"{of.text} NOT {rest}"), of.position)

    def _null(self, of: Value) -> Truth:
        negated = self._next.take("NOT")
        self._next.expect("NULL", "NULL or NOT NULL")
        tests = [test(f"{of.text} IS NULL"), test(f"{of.text} IS NOT NULL")]
        return Truth(tests[negated], tests[not negated], of.position)

    def _listed(self, of: Value) -> Truth:
        self._next.expect("(", "'(' and a list of strings")
        by_kind: dict[str, list[str]] = {}
        while True:
            start = self._next.position
            value = self.expression(COMPARISON + 1)
            if not isinstance(value, Value) or value.constant is None:
                raise self._next.error("an IN list holds literals", start)
            by_kind.setdefault(value.kind, []).append(value.text)
            if not self._next.take(","):
                break
        self._next.expect(")", "',' or ')'")
        if of.kind != ANY:
            by_kind = {kind: texts for kind, texts in by_kind.items() if kind == of.kind}
        if not by_kind:
            return Truth(FALSE, _present(of), of.position)
        lists = [f"({', '.join(texts)})" for texts in by_kind.values()]
        found = either(*(test(f"{of.text} IN {texts}") for texts in lists))
        if len(lists) == 1:
            return Truth(found, test(f"{of.text} NOT IN {lists[0]}"), of.position)
        # of another type than a list, the property is not in that list
        absent = [either(test(f"{of.text} NOT IN {texts}"), test(f"({of.text} IN {texts}) IS NULL")) for texts in lists]
        return Truth(found, both(_present(of), *absent), of.position)

    def _pattern(self, of: Value) -> Truth:
        start = self._next.position
        pattern = self._next.expect("string", "a pattern in single quotes")
        rest = f"LIKE {pattern}"
        if self._next.take("ESCAPE"):
            place = self._next.position
            escape = self._next.expect("string", "one character in single quotes")
            character = escape[1:-1].replace("''", "'")
            if len(character) != 1:
                raise self._next.error("the escape is exactly one character, as in ESCAPE '!'", place)
            if not Pattern.complete(pattern[1:-1].replace("''", "'"), character):
                raise self._next.error("the pattern ends with its escape character: write it twice", start)
            rest = f"{rest} ESCAPE {escape}"
        if of.kind not in ("string", ANY):
            return Truth(FALSE, _present(of), of.position)
        return Truth(test(f"{of.text} {rest}"), test(f"{of.text} NOT {rest}"), of.position)


def _present(*values: Value) -> Condition:
    """All values are there, so that a comparison of them is not unknown."""
    return both(*(test(f"{_wrapped(of, COMPARISON + 1)} IS NOT NULL") for of in values if of.constant is None))


def _number_only(of: Value) -> Value:
    """A value as an operator takes it, which no longer is a name alone."""
    if of.kind != ANY:
        return replace(of, identifier="")
    return Value(f"{of.text} + 0", "number", of.position, STRENGTH["+"])


def _wrapped(of: Value, strength: int) -> str:
    return f"({of.text})" if of.strength < strength else of.text


def _java_number(token: str) -> int | Decimal:
    """The value of a literal of Java; a ValueError says what is wrong with it."""
    plain = token
    if "_" in token:
        if not re.fullmatch(r"\w*[0-9a-fA-F](?:_+(?=[0-9a-fA-F])|[\w.+-])*", token) or token.endswith("_"):
            raise ValueError("has an underscore in the wrong place")
        plain = token.replace("_", "")
    if len(plain) > 1000:
        raise ValueError("has more than 1,000 digits")
    whole = _WHOLE.fullmatch(plain)
    if whole:
        for group, base in (("hex", 16), ("bin", 2), ("oct", 8), ("dec", 10)):
            if whole[group] is not None:
                return int(whole[group], base)
    decimal = None if plain.isdigit() else _DECIMAL.fullmatch(plain)
    found = decimal or _HEX_FLOAT.fullmatch(plain)
    if found is None:
        raise ValueError("is not one of Java's: write 57, 0x1F, 017, 57L, 7.5, 7E3")
    digits, suffix = found.groups()
    try:
        value = float(digits) if decimal else float.fromhex(digits)
        if suffix in ("f", "F"):
            value = struct.unpack("f", struct.pack("f", value))[0]
    except OverflowError:
        value = math.inf
    if math.isinf(value):
        raise ValueError("is beyond the range of its type")
    exact = Decimal(digits) if decimal and suffix not in ("f", "F") else Decimal(repr(value))
    return exact if exact and exact.adjusted() >= -400 else Decimal("0.0")
