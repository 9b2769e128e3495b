"""Tokens -> tree, by recursive descent, checked against the schema on the way.

    predicate  = conjunction {(OR | XOR) conjunction}                 XOR binds tighter than OR, AND tighter than XOR
    conjunction= factor {AND factor}
    factor     = {NOT} condition
    condition  = value                                                of type bool: short for value = TRUE
               | value op value                                       = <> != < <= > >=
               | value [NOT] BETWEEN value AND value
               | value [NOT] IN "(" literal {"," literal} ")"
               | value [NOT] IN NETWORK string
               | value [NOT] (LIKE | ILIKE) string [ESCAPE string]
               | value [NOT] REGEXP string
               | value IS [NOT] NULL | path IS [NOT] MISSING
    value      = term {(+ | -) term};  term = factor {(* | / | %) factor}
    operand    = literal | path | function "(" arguments ")" | "(" predicate ")" | ("+" | "-") operand
               | ANY "(" list ")" | ALL "(" list ")" | LENGTH "(" list ")" | EXISTS "(" list WHERE predicate ")"
    path       = [OLD "." | NEW "."] name {"." name}
    literal    = number | string | TRUE | FALSE | TIMESTAMP string | INTERVAL string

Only parentheses recurse, and no deeper than the limit; chains of operators are loops. The text is read in one pass: an
error names the first token that does not fit, and what would fit. What compares one attribute with literals becomes a
Leaf; a function of literals becomes a literal, and a comparison of literals TRUE or FALSE.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from hitbox.encoding.schema import Attribute, Schema
from hitbox.errors import LimitExceeded, PredicateError, SyntaxProblem, TypeProblem, UnknownAttribute, nearest
from hitbox.language.conditions.durations import duration, zone
from hitbox.language.conditions.patterns import Pattern
from hitbox.language.conditions.places import is_place
from hitbox.language.limits import DEFAULT_LIMITS, Limits
from hitbox.language.syntax.expressions import (
    FUNCTIONS,
    LITERAL_TYPES,
    LOOSE,
    NUMBERS,
    Constant,
    Element,
    Expression,
    Field,
    Length,
    ListPath,
    Literal,
    Now,
    Verdict,
    as_double,
    as_times,
    binary,
    call,
    negative,
    quoted,
)
from hitbox.language.syntax.lexer import KEYWORDS, tokens
from hitbox.language.syntax.literals import number, right_kind, short, string, timestamp
from hitbox.language.syntax.tree import MACHINES, Branch, Leaf, Node, Predicate, Quantifier, Test, join
from hitbox.language.truth import constant_truth

MIRRORED = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
OPEN_TYPES = ("number", "string", "bool", "timestamp")
"""The types that an attribute may have if it is not declared."""
TESTS = frozenset(["op", "IS", "IN", "BETWEEN", "LIKE"])
WORDS = frozenset(["ILIKE", "REGEXP"])
"""Tests whose names are no keywords."""
SPECIAL = frozenset(["ANY", "ALL", "EXISTS", "NOW", "INSIDE"])
MAX_OPERANDS = 100
"""Of one chain of + - * / %: such a chain is a deep tree."""
MAX_SEGMENTS = 200
"""Of a path: no name of an attribute is longer."""
MAX_CROSSED = 1
"""Lists that are no part of the element in whose condition they stand, inside each other."""
ENDS = frozenset(["AND", "OR", ")", "end"])
"""What may follow a condition that has no more parts."""
Item = Expression | Node


def parse(text: str, schema: Schema, role: str | None = None, limits: Limits = DEFAULT_LIMITS) -> Predicate:
    """The tree of `text`. `role` restricts which attributes may be named: "criteria", "information" or None for any.

    >>> schema = Schema({"price": "float", "city": "string"})
    >>> print(parse("not (10 < price or city in ('Paris'))", schema))
    NOT (price > 10 OR city IN ('Paris'))
    """
    if not isinstance(text, str):
        raise SyntaxProblem(f"a predicate is a text, not {type(text).__name__}")
    if len(text) > limits.text:
        raise LimitExceeded(
            f"the predicate has {len(text)} characters; the limit is {limits.text}: "
            "split it into several subscriptions, or raise Limits(text=...)"
        )
    try:
        return Predicate(_Parser(text, schema, role, limits).whole(), text, schema, limits)
    except RecursionError:  # the depth limit was raised, or the caller's stack is deep already
        raise LimitExceeded("the predicate is nested too deeply for Python's stack: flatten it") from None


class _Parser:
    __slots__ = ("at", "crossed", "kinds", "limits", "role", "scopes", "starts", "text", "texts")

    def __init__(self, text: str, schema: Schema, role: str | None, limits: Limits):
        self.text, self.role, self.limits = text, role, limits
        self.scopes = [schema]
        """The schema, and that of the objects of each list around."""
        self.kinds, self.texts, self.starts = tokens(text)
        self.at = 0
        self.crossed = 0
        """How many of the lists around are no part of the element that they stand in."""

    def whole(self) -> Node:
        if self.kinds[0] == "end":
            raise SyntaxProblem("the predicate is empty: write a condition, or TRUE to match everything")
        root = self.condition(self.predicate(0))
        if self.kinds[self.at] != "end":
            if self.kinds[self.at] == ")":
                raise SyntaxProblem("this ')' has no '('", self.text, self.starts[self.at])
            raise self.unexpected("AND, OR or the end of the predicate")
        return root

    # ---- logic

    def predicate(self, depth: int) -> Item:
        kinds, start = self.kinds, self.starts[self.at]
        either: list[Node] = []
        while True:
            odd: list[Node] = []
            middle = self.starts[self.at]
            while True:
                position = self.starts[self.at]
                item = self.factor(depth)
                if kinds[self.at] == "AND":
                    both = [self.condition(item)]
                    while kinds[self.at] == "AND":
                        self.at += 1
                        both.append(self.condition(self.factor(depth)))
                    item = join("AND", both, position)
                if not self.is_word("XOR"):
                    break
                odd.append(self.condition(item))
                self.at += 1
            if odd:
                item = join("XOR", [*odd, self.condition(item)], middle)
            if kinds[self.at] != "OR" and not either:
                return item
            either.append(self.condition(item))
            if kinds[self.at] != "OR":
                return join("OR", either, start)
            self.at += 1

    def factor(self, depth: int) -> Item:
        if self.kinds[self.at] != "NOT":
            return self.comparison(depth)
        first = self.at
        while self.kinds[self.at] == "NOT":
            self.at += 1
        outer = self.starts[first : self.at]
        self.check_depth(depth + len(outer))
        node = self.condition(self.comparison(depth + len(outer)))
        for position in reversed(outer):
            node = Branch("NOT", (node,), position)
        return node

    def check_depth(self, depth: int) -> None:
        if depth > self.limits.depth:
            raise LimitExceeded(
                f"the predicate is nested more than {self.limits.depth} deep: flatten it, or raise Limits(depth=...)",
                self.text,
                self.starts[self.at],
            )

    def condition(self, item: Item) -> Node:
        """An item as a condition; a bool is short for `= TRUE`."""
        if isinstance(item, (Leaf, Test, Quantifier, Branch)):
            return item
        if isinstance(item, Verdict):
            found: Node = item.condition
            return found
        if isinstance(item, Constant) and isinstance(item.literal, bool):
            return Branch("TRUE" if item.literal else "FALSE", (), item.position)
        item = self.typed(item, "bool")
        if item.type == "bool":
            return self.compare(item, "=", Constant(True, "bool", item.position), item.position)
        if isinstance(item, Field) and not item.old and not item.level:
            self.scalar(item)
            raise self.unexpected(f"a comparison of the {item.type} attribute {item.name!r}")
        raise self.unexpected(f"a comparison after {short(str(item))}")

    def value(self, item: Item) -> Expression:
        """An item as a value; a condition is a bool."""
        if isinstance(item, Branch) and item.op in ("TRUE", "FALSE"):
            return Constant(item.op == "TRUE", "bool", item.position)
        if isinstance(item, (Leaf, Test, Quantifier, Branch)):
            return Verdict(item, item.position)
        return item

    def scalar(self, item: Item) -> Expression:
        """An item as a value of a type that can be compared and computed with."""
        of = self.value(item)
        if isinstance(of, (Field, ListPath)) and of.type.endswith("[]"):
            shown = str(of)
            ways = f"EXISTS({shown} WHERE ...)" if of.type == "object[]" else f"ANY({shown}), ALL({shown})"
            raise TypeProblem(f"{shown} is a list: write {ways} or LENGTH({shown})", self.text, of.position)
        if isinstance(of, Element):
            raise TypeProblem(
                f"{of} stands alone on one side of a test, as in {of} = ...: it is not one value",
                self.text,
                of.position,
            )
        return of

    # ---- attributes that are not declared: what they are compared with says their type

    def typed(self, of: Expression, type_: str) -> Expression:
        """An attribute that is not declared, as one of this type; everything else stays as it is."""
        if of.type != "any" or not isinstance(of, (Field, Element)):
            return of
        if type_ in NUMBERS:
            type_ = "number"
        if type_ not in OPEN_TYPES:
            raise TypeProblem(f"no value of an event is of type {type_}: {short(str(of))}", self.text, of.position)
        if isinstance(of, Element):
            return replace(of, list=replace(of.list, type=type_))
        return replace(of, type=type_)

    def alike(self, left: Expression, right: Expression) -> tuple[Expression, Expression]:
        """Two values that are compared: one says the type of the other. Two attributes may both be of any type."""
        if right.type == "duration":
            left = as_times(left)
        elif left.type == "duration":
            right = as_times(right)
        if right.type != "any":
            left = self.typed(left, right.type)
        if left.type != "any":
            right = self.typed(right, left.type)
        return left, right

    def operands(self, left: Expression, op: str, right: Expression) -> tuple[Expression, Expression]:
        """Two values of arithmetic: an attribute is a number, unless it stands beside a time."""
        if op in "+-":
            left = as_times(left) if right.type == "duration" else left
            right = as_times(right) if left.type == "duration" else right
        times = ("timestamp", "duration")
        kinds = ["timestamp" if other.type in times and op in "+-" else "number" for other in (right, left)]
        return self.typed(left, kinds[0]), self.typed(right, kinds[1])

    # ---- conditions

    def plain_leaf(self) -> Leaf | None:
        """An attribute, a test and literals, which is what most conditions are; None for everything else. Nothing is
        decided here: it is what the general way makes of them, in a third of the time."""
        at, kinds = self.at, self.kinds
        name = self.texts[at]
        if name not in self.scopes[0] or len(self.scopes) > 1:
            return None
        attribute = self.scopes[0][name]
        if self.role is not None and attribute.role != self.role:
            return None
        type_, kind, most = attribute.type, kinds[at + 1], 2
        if kind == "op":
            op, after, least, mark = self.texts[at + 1], at + 2, 1, "end"
            op = "<>" if op == "!=" else op
        elif kind == "BETWEEN":
            op, after, least, mark = kind, at + 2, 2, "AND"
        elif kind == "IN" and kinds[at + 2] == "(":
            op, after, least, mark, most = kind, at + 3, 1, ",", self.limits.values
        else:
            return None
        values: list[Literal] = []
        places: list[int] = []
        while True:
            value = self.plain_literal(after, type_)
            if value is None:
                return None
            values.append(value)
            places.append(self.starts[after])
            after += 1
            if kinds[after] != mark or mark == "end" or (mark == "AND" and len(values) == 2):
                break
            after += 1
        if not least <= len(values) <= most:
            return None
        if kind == "IN":
            if kinds[after] != ")":
                return None
            after += 1
        if kinds[after] not in ENDS:
            return None
        self.at = after
        return Leaf(name, self.scopes[0].number(name), type_, op, tuple(values), self.starts[at], tuple(places))

    def plain_literal(self, at: int, type_: str) -> Literal | None:
        """The literal at a token, if it is one of this type."""
        kind = self.kinds[at]
        if kind == "number" and (type_ == "float" or type_ == "int"):
            return number(self.texts[at], self.text, self.starts[at])
        if kind == "string" and type_ == "string":
            return string(self.texts[at])
        return kind == "TRUE" if type_ == "bool" and (kind == "TRUE" or kind == "FALSE") else None

    def comparison(self, depth: int) -> Item:
        position = self.starts[self.at]
        if self.kinds[self.at] == "name":
            leaf = self.plain_leaf()
            if leaf is not None:
                return leaf
        left = self.arithmetic(depth)
        kind = self.kinds[self.at]
        if kind == "op":
            op = self.operator()
            node = self.compare(self.value(left), op, self.value(self.arithmetic(depth)), position)
            if self.kinds[self.at] == "op":
                raise SyntaxProblem(
                    "comparisons do not chain: join them with AND, or put one in parentheses",
                    self.text,
                    self.starts[self.at],
                )
            return node
        if kind == "IS":
            return self.presence(self.value(left), position)
        negated = kind == "NOT"
        if negated:
            self.at += 1
            kind = self.kinds[self.at]
        if kind == "name" and self.texts[self.at].upper() in WORDS:
            kind = self.texts[self.at].upper()
        tests: dict[str, Callable[[Expression, str, int, int], Node]] = {
            "BETWEEN": self.between,
            "IN": self.within,
            "LIKE": self.pattern,
            "ILIKE": self.pattern,
            "REGEXP": self.pattern,
        }
        if kind in tests:
            of = self.value(left)
            if not isinstance(of, Element):
                of = self.scalar(of)
            self.at += 1
            return tests[kind](of, f"NOT {kind}" if negated else kind, position, depth)
        if negated:
            raise self.unexpected("BETWEEN, IN, LIKE, ILIKE or REGEXP")
        return left

    def compare(self, left: Expression, op: str, right: Expression, position: int) -> Node:
        if isinstance(right, Element):
            left, op, right = right, MIRRORED[op], left
        if isinstance(left, Element):
            left, right = self.alike(left, self.scalar(right))
            return self.test(op, left, (self.comparable(left, right),), position)
        left, right = self.alike(self.scalar(left), self.scalar(right))
        if isinstance(left, Constant) and not isinstance(right, Constant):
            left, op, right = right, MIRRORED[op], left
        return self.test(op, left, (self.comparable(left, right),), position)

    def comparable(self, left: Expression, right: Expression) -> Expression:
        """`right`, if it may be compared with `left`."""
        one, two = left.type, right.type
        if one != two and not (one in NUMBERS and two in NUMBERS):
            if isinstance(right, Constant):
                right_kind(right.literal, _shown(left), one, self.text, right.position)
            raise TypeProblem(
                f"{short(str(left))} is of type {one}: it cannot be compared with {short(str(right))}, "
                f"which is of type {two}",
                self.text,
                right.position,
            )
        return as_double(right) if one in ("float", "number") and not self.is_attribute(left) else right

    def is_attribute(self, of: Expression) -> bool:
        """Whether an expression is a plain attribute of the event: compared with literals, it is a Leaf."""
        return isinstance(of, Field) and not of.level and not of.image and of.number >= 0

    def test(
        self, op: str, left: Expression, others: tuple[Expression, ...], position: int, texts: tuple[str, ...] = ()
    ) -> Node:
        """The test of some values: a Leaf, a quantifier, a constant, or a Test."""
        constant = all(isinstance(one, Constant) for one in others)
        if others and constant and isinstance(left, Field) and self.is_attribute(left):
            values = tuple(one.literal for one in others if isinstance(one, Constant))
            places = tuple(one.position for one in others)
            return Leaf(left.name, left.number, left.type, op, values, position, places)
        if left.type in ("float", "number") or any(one.type in ("float", "number") for one in others):
            left, others = as_double(left), tuple(map(as_double, others))
        made = Test(op, (left, *others), position, texts)
        if isinstance(left, Element):
            return Quantifier(left.quantifier, left.list, made, position, left.level)
        if constant and isinstance(left, Constant):
            truth = constant_truth(made)
            if truth is not None:
                return Branch("TRUE" if truth else "FALSE", (), position)
        return made

    def operator(self) -> str:
        op = self.texts[self.at]
        self.at += 1
        return "<>" if op == "!=" else op

    def presence(self, of: Expression, position: int) -> Node:
        """IS [NOT] NULL, IS [NOT] MISSING."""
        self.at += 1
        negated = self.kinds[self.at] == "NOT"
        self.at += negated
        missing = self.is_word("MISSING")
        if not missing and self.kinds[self.at] != "NULL":
            raise self.unexpected("NULL or MISSING" if negated else "NULL, MISSING, NOT NULL or NOT MISSING")
        self.at += 1
        op = f"IS {'NOT ' if negated else ''}{'MISSING' if missing else 'NULL'}"
        if missing and not isinstance(of, Field):
            raise TypeProblem(
                f"only an attribute can be missing, and {short(str(of))} is none: write IS NULL",
                self.text,
                of.position,
            )
        if isinstance(of, Field) and self.is_attribute(of) and not missing:
            return Leaf(of.name, of.number, of.type, op, (), position)
        return self.test(op, of if isinstance(of, (Field, Element)) else self.scalar(of), (), position)

    def between(self, of: Expression, op: str, position: int, depth: int) -> Node:
        of, low = self.alike(of, self.scalar(self.arithmetic(depth)))
        self.comparable(of, low)
        self.expect("AND", "AND and the upper bound of BETWEEN")
        of, high = self.alike(of, self.scalar(self.arithmetic(depth)))
        of, low = self.alike(of, low)
        return self.test(op, of, (self.comparable(of, low), self.comparable(of, high)), position)

    def within(self, of: Expression, op: str, position: int, depth: int) -> Node:
        """IN a list of literals, or IN NETWORK."""
        if self.is_word("NETWORK") and self.kinds[self.at + 1] == "string":
            self.at += 1
            return self.text_test(of, f"{op} NETWORK", position)
        self.expect("(", "'(' and a list of literals")
        if self.kinds[self.at] == ")":
            raise self.unexpected("at least one literal: an IN list cannot be empty")
        values: list[Expression] = []
        while True:
            place = self.starts[self.at]
            value = self.scalar(self.arithmetic(depth))
            if not isinstance(value, Constant):
                raise SyntaxProblem("an IN list holds literals only: compare with = and join with OR", self.text, place)
            of = self.typed(of, value.type)
            values.append(self.comparable(of, value))
            if len(values) > self.limits.values:
                raise LimitExceeded(
                    f"the IN list has more than {self.limits.values} values: "
                    "split it into several subscriptions, or raise Limits(values=...)",
                    self.text,
                    place,
                )
            if self.kinds[self.at] != ",":
                break
            self.at += 1
        self.expect(")", "',' or ')'")
        return self.test(op, of, tuple(values), position)

    def pattern(self, of: Expression, op: str, position: int, depth: int) -> Node:
        if op.endswith("REGEXP"):
            return self.text_test(of, op, position)
        of = self.typed(of, "string")
        if of.type != "string":
            shown = _shown(of) if isinstance(of, Field) else short(str(of))
            shown = f"{shown!r}" if self.is_attribute(of) else shown
            raise TypeProblem(
                f"{op.removeprefix('NOT ')} is for string attributes; {shown} is of type {of.type}",
                self.text,
                self.starts[self.at - 1],
            )
        places = [self.starts[self.at]]
        values = [self.quoted_text("a pattern in quotes")]
        self.check_length(values[0], places[0])
        if self.kinds[self.at] == "ESCAPE":
            self.at += 1
            places.append(self.starts[self.at])
            values.append(self.quoted_text("one character in quotes"))
            if len(values[1]) != 1:
                raise SyntaxProblem("the escape is exactly one character, as in ESCAPE '!'", self.text, places[1])
        if values[1:] and not Pattern.complete(values[0], values[1]):
            raise SyntaxProblem(
                f"the pattern ends with its escape character {values[1]!r}: write it twice", self.text, places[0]
            )
        if isinstance(of, Field) and self.is_attribute(of) and op in ("LIKE", "NOT LIKE"):
            return Leaf(of.name, of.number, of.type, op, tuple(values), position, tuple(places))
        return self.test(op, of, (), position, tuple(values))

    def text_test(self, of: Expression, op: str, position: int) -> Node:
        """A test of a string that has one text: REGEXP, IN NETWORK."""
        name = op.removeprefix("NOT ")
        of = self.typed(of, "string")
        if of.type != "string":
            raise TypeProblem(f"{name} is for strings; {short(str(of))} is of type {of.type}", self.text, of.position)
        place = self.starts[self.at]
        text = self.quoted_text("a text in quotes")
        self.check_length(text, place)
        self.made(name, (text,), place)
        return self.test(op, of, (), position, (text,))

    def made(self, name: str, texts: tuple[str, ...], place: int) -> None:
        """Check a text that is more than a text."""
        try:
            MACHINES[name](*texts)
        except ValueError as problem:
            raise SyntaxProblem(f"{name} {short(repr(texts[0]))}: {problem}", self.text, place) from None

    def check_length(self, text: str, place: int) -> None:
        if len(text) > self.limits.pattern:
            raise LimitExceeded(
                f"the pattern has {len(text)} characters; the limit is {self.limits.pattern}: "
                "shorten it, or raise Limits(pattern=...)",
                self.text,
                place,
            )

    # ---- values

    def arithmetic(self, depth: int) -> Item:
        """Operands with + - * / % between them, without recursion."""
        first = self.operand(depth)
        if self.kinds[self.at] not in LOOSE:
            return first
        values = [self.scalar(first)]
        pending: list[tuple[str, int]] = []
        count = 0
        while self.kinds[self.at] in LOOSE:
            op, place = self.kinds[self.at], self.starts[self.at]
            while pending and LOOSE[pending[-1][0]] >= LOOSE[op]:
                self.apply(values, *pending.pop())
            pending.append((op, place))
            self.at += 1
            count += 1
            if count > MAX_OPERANDS:
                raise LimitExceeded(f"more than {MAX_OPERANDS} operators in one expression", self.text, place)
            values.append(self.scalar(self.operand(depth)))
        while pending:
            self.apply(values, *pending.pop())
        return values[0]

    def apply(self, values: list[Expression], op: str, place: int) -> None:
        right, left = values.pop(), values.pop()
        left, right = self.operands(left, op, right)
        made = binary(op, left, right, left.position)
        if made is None:
            raise TypeProblem(
                f"{op} is not for {left.type} and {right.type}: it takes numbers, or times and intervals",
                self.text,
                place,
            )
        values.append(made)

    def operand(self, depth: int) -> Item:
        kind, position = self.kinds[self.at], self.starts[self.at]
        if kind == "name":
            return self.named(depth)
        if kind == "number" or kind == "string" or kind == "TRUE" or kind == "FALSE":
            return self.literal()
        if kind == "quoted":
            return self.path()
        if kind == "(":
            self.at += 1
            self.check_depth(depth + 1)
            item = self.predicate(depth + 1)
            self.expect(")", "AND, OR or ')'")
            return item
        if kind == "+" or kind == "-":
            return self.signed(depth)
        if kind == "NULL":
            raise SyntaxProblem("nothing compares with NULL: write IS NULL or IS NOT NULL", self.text, position)
        before = self.kinds[self.at - 1] if self.at else ""
        if before == "op" or before in LOOSE or before in ("BETWEEN", ","):
            raise self.unexpected("a value")
        raise self.unexpected("a condition")

    def signed(self, depth: int) -> Item:
        position, minus = self.starts[self.at], False
        while self.kinds[self.at] in ("+", "-"):
            minus ^= self.kinds[self.at] == "-"
            self.at += 1
        if self.kinds[self.at] == "number":
            sign = "-" if minus else ""
            value = number(sign + self.texts[self.at], self.text, position)
            self.at += 1
            return Constant(value, LITERAL_TYPES[type(value)], position)
        of = self.typed(self.scalar(self.operand(depth)), "number")
        made = negative(of, position)
        if made is None:
            raise TypeProblem(f"a sign is for numbers, and {short(str(of))} is of type {of.type}", self.text, position)
        return made if minus else of

    def literal(self) -> Expression:
        kind, text, position = self.kinds[self.at], self.texts[self.at], self.starts[self.at]
        value: Literal
        if kind == "number":
            value = number(text, self.text, position)
        elif kind == "string":
            value = string(text)
        else:
            value = kind == "TRUE"
        self.at += 1
        return Constant(value, LITERAL_TYPES[type(value)], position)

    def named(self, depth: int) -> Item:
        """What starts with a word: TIMESTAMP '...', INTERVAL '...', a function or a path."""
        following, position = self.kinds[self.at + 1], self.starts[self.at]
        word = self.texts[self.at].upper()
        if following == "string" and word == "TIMESTAMP":
            self.at += 2
            value = timestamp(string(self.texts[self.at - 1]), self.text, self.starts[self.at - 1])
            return Constant(value, "timestamp", position)
        if following == "string" and word == "INTERVAL":
            self.at += 2
            try:
                length = duration(string(self.texts[self.at - 1]))
            except ValueError as problem:
                place = self.starts[self.at - 1]
                raise SyntaxProblem(f"INTERVAL {short(self.texts[self.at - 1])}: {problem}", self.text, place) from None
            return Constant(length, "duration", position)
        if following == "(":
            return self.function(word, depth, position)
        return self.path()

    def function(self, name: str, depth: int, position: int) -> Item:
        if name not in FUNCTIONS and name not in SPECIAL:
            shown = self.texts[self.at]
            have = ", ".join(sorted([*FUNCTIONS, *SPECIAL]))
            hint = nearest(name, [*FUNCTIONS, *SPECIAL]) or f" (have: {have})"
            if shown in self.scopes[-1]:
                hint = f": {shown!r} is an attribute, and an operator has to come before the '('"
            raise SyntaxProblem(f"unknown function {short(shown)}{hint}", self.text, position)
        self.at += 2
        self.check_depth(depth + 1)
        if name == "NOW":
            self.expect(")", "')': NOW takes nothing")
            return Now(position)
        if name in ("ANY", "ALL"):
            if self.is_value():  # it is its only element
                value = self.path()
                self.expect(")", f"')': {name} takes a list or an attribute")
                return value
            path = self.list_path()
            self.expect(")", f"')': {name} takes a list")
            if path.type == "object":
                raise TypeProblem(
                    f"{path} is a list of objects: write EXISTS({path} WHERE ...), or {name}({path}.field)",
                    self.text,
                    path.position,
                )
            self.crossing(path)
            return Element(name, path, len(self.scopes), position)
        if name == "EXISTS":
            return self.exists(depth, position)
        if name == "LENGTH" and not self.scopes[-1].is_open and self.is_list():
            path = self.list_path()
            self.expect(")", "')'")
            if len(path.steps) > 1:
                raise TypeProblem(
                    f"LENGTH is for one list, and {path} is in every element of another one", self.text, path.position
                )
            return Length(path, position)
        arguments = self.arguments(depth)
        if name == "INSIDE":
            return self.inside(arguments, position)
        self.check_arguments(name, arguments, FUNCTIONS[name][0], FUNCTIONS[name][1], position)
        if name in ("HOUR", "DAY_OF_WEEK") and arguments[1:]:
            self.check_zone(arguments[1])
        if name == "DISTANCE":
            self.check_places(arguments)
        return call(name, tuple(arguments), position)

    def arguments(self, depth: int) -> list[Expression]:
        found: list[Expression] = []
        if self.kinds[self.at] != ")":
            found.append(self.scalar(self.predicate(depth + 1)))
            while self.kinds[self.at] == ",":
                self.at += 1
                found.append(self.scalar(self.predicate(depth + 1)))
        self.expect(")", "',' or ')'")
        return found

    def check_arguments(
        self, name: str, arguments: list[Expression], types: tuple[tuple[str, ...], ...], least: int, position: int
    ) -> None:
        if not least <= len(arguments) <= len(types):
            count = str(least) if least == len(types) else f"{least} or {len(types)}"
            raise SyntaxProblem(
                f"{name} takes {count} argument{'s' if count != '1' else ''}, not {len(arguments)}",
                self.text,
                position,
            )
        for at, (argument, wanted) in enumerate(zip(arguments, types, strict=False)):
            if "any" not in wanted:
                argument = arguments[at] = self.typed(argument, wanted[0])
            if argument.type not in wanted:
                kind = "a number" if wanted == NUMBERS else f"a {wanted[0]}"
                raise TypeProblem(
                    f"{name} takes {kind} here, and {short(str(argument))} is of type {argument.type}",
                    self.text,
                    argument.position,
                )

    def check_zone(self, of: Expression) -> None:
        if not isinstance(of, Constant):
            raise TypeProblem("the time zone is a text in quotes, as in 'Europe/Paris'", self.text, of.position)
        try:
            zone(str(of.literal))
        except ValueError as problem:
            raise SyntaxProblem(str(problem), self.text, of.position) from None

    def check_places(self, coordinates: list[Expression]) -> None:
        """Latitudes and longitudes that are literals must be in range."""
        for at, of in enumerate(coordinates):
            if isinstance(of, Constant):
                value = float(of.plain)
                if not (is_place(value, 0) if at % 2 == 0 else is_place(0, value)):
                    what = "a latitude is from -90 to 90" if at % 2 == 0 else "a longitude is from -180 to 180"
                    raise TypeProblem(f"{what}, and the latitude comes first", self.text, of.position)

    def inside(self, arguments: list[Expression], position: int) -> Node:
        self.check_arguments("INSIDE", arguments, (NUMBERS, NUMBERS, ("string",)), 3, position)
        *place, area = arguments
        self.check_places(place)
        if not isinstance(area, Constant):
            raise TypeProblem("the polygon is a text in quotes: 'POLYGON ((lon lat, ...))'", self.text, area.position)
        text = str(area.literal)
        self.made("INSIDE", (text,), area.position)
        made = Test("INSIDE", tuple(map(as_double, place)), position, (text,))
        if all(isinstance(of, Constant) for of in place):
            return Branch("TRUE" if constant_truth(made) else "FALSE", (), position)
        return made

    # ---- names

    def is_list(self) -> bool:
        """Whether a path to a list comes next."""
        start = self.at
        if self.kinds[start] not in ("name", "quoted") or self.kinds[start + 1] == "(":
            return False
        try:
            return self.any_list(*self.segments(), self.starts[start]) is not None
        finally:
            self.at = start

    def is_value(self) -> bool:
        """Whether a path to a declared attribute that is no list comes next."""
        start = self.at
        try:
            if self.kinds[start] not in ("name", "quoted") or self.is_list():
                return False
            found = self.path()
            return isinstance(found, Field) and found.number >= 0 and not found.type.endswith("[]")
        except PredicateError:
            return False
        finally:
            self.at = start

    def segments(self) -> tuple[list[str], bool]:
        """The parts of a path, and whether the first one is quoted."""
        first = self.kinds[self.at] == "quoted"
        found = [self.segment()]
        while self.kinds[self.at] == ".":
            self.at += 1
            if len(found) > MAX_SEGMENTS:
                raise LimitExceeded(f"a path of more than {MAX_SEGMENTS} names", self.text, self.starts[self.at])
            found.append(self.segment())
        return found, first

    def segment(self) -> str:
        kind, text = self.kinds[self.at], self.texts[self.at]
        if kind == "quoted":
            text = text[1:-1].replace('""', '"')
        elif kind != "name" and not (kind in KEYWORDS and self.at and self.kinds[self.at - 1] == "."):
            raise self.unexpected("a name")
        self.at += 1
        return text

    def path(self) -> Expression:
        position = self.starts[self.at]
        segments, is_quoted = self.segments()
        name = ".".join(segments)
        if self.scopes[0].is_open:
            return self.open_field(segments, is_quoted, position)
        for level in range(len(self.scopes) - 1, -1, -1):
            if name in self.scopes[level]:
                return self.field(name, level, "", position)
        schema = self.scopes[0]
        if not is_quoted and len(segments) > 1 and segments[0].upper() in ("OLD", "NEW"):
            rest = ".".join(segments[1:])
            if rest in schema:
                return self.field(rest, 0, segments[0].upper(), position)
            if segments[0] not in schema.objects:
                segments, name = segments[1:], rest
        raise self.unknown(segments, name, position)

    def open_field(self, segments: list[str], is_quoted: bool, position: int) -> Field:
        """An attribute that is not declared. Inside EXISTS it is a field of the element, unless OLD or NEW is said."""
        segments, image = self.without_image(segments, is_quoted)
        name = ".".join(segments)
        self.check_open(name, position)
        level = 0 if image else len(self.scopes) - 1
        return Field(name, -1, "any", position, level, self.image(image))

    def open_list(self, segments: list[str], is_quoted: bool, position: int) -> ListPath:
        segments, image = self.without_image(segments, is_quoted)
        self.check_open(".".join(segments), position)
        level = 0 if image else len(self.scopes) - 1
        return ListPath(tuple(segments), -1, "any", position, level, self.image(image), self.scopes[0])

    def without_image(self, segments: list[str], is_quoted: bool) -> tuple[list[str], str]:
        if not is_quoted and len(segments) > 1 and segments[0].upper() in ("OLD", "NEW"):
            return segments[1:], segments[0].upper()
        return segments, ""

    def check_open(self, name: str, position: int) -> None:
        if name.upper() in ("NAN", "INF", "INFINITY"):
            raise SyntaxProblem(f"{name} is not a number that can be compared: write a finite one", self.text, position)
        if self.role == "information":
            raise UnknownAttribute(
                f"unknown attribute {name!r:.80}: without a schema, subscriptions say nothing about themselves",
                self.text,
                position,
            )

    def image(self, word: str) -> str:
        """How an image is kept: NEW is what is meant anyway, but inside EXISTS it may have to be said."""
        return "OLD" if word == "OLD" else "NEW" if word and len(self.scopes) > 1 else ""

    def field(self, name: str, level: int, image: str, position: int) -> Field:
        schema = self.scopes[level]
        found = schema[name]
        if not level:
            self.check_role(name, found, position)
        return Field(name, schema.number(name), found.type, position, level, self.image(image))

    def check_role(self, name: str, found: Attribute, position: int) -> None:
        if self.role is not None and found.role != self.role:
            allowed = ", ".join(self.scopes[0].with_role(self.role)[:10]) or "none"
            raise UnknownAttribute(
                f"attribute {name!r} has the role {found.role!r}; here only {self.role!r} attributes may be named "
                f"(have: {allowed})",
                self.text,
                position,
            )

    def unknown(self, segments: list[str], name: str, position: int) -> PredicateError:
        """The error of a path that leads to no attribute."""
        schema = self.scopes[-1]
        if name.upper() in ("NAN", "INF", "INFINITY"):
            return SyntaxProblem(
                f"{name} is not a number that can be compared: write a finite one", self.text, position
            )
        path = self.find_list(segments)
        if path is not None:
            outer = quoted(path.steps[0])
            return TypeProblem(
                f"{outer} is a list: write ANY({quoted(name)}), or EXISTS({outer} WHERE ...)", self.text, position
            )
        if name in schema.objects:
            fields = [one for one in schema if one.startswith(f"{name}.")]
            return TypeProblem(
                f"{quoted(name)} is an object: name one of its fields ({', '.join(fields[:5])})", self.text, position
            )
        known = [one for scope in self.scopes for one in scope]
        hint = nearest(name, known) or f" (have: {', '.join(list(schema)[:10])})"
        if self.at >= 2 and self.kinds[self.at - 2] == "op":
            hint += " (a string is written in single quotes)"
        return UnknownAttribute(f"unknown attribute {name!r:.80}{hint}", self.text, position)

    def any_list(self, segments: list[str], is_quoted: bool, position: int) -> ListPath | None:
        """The list that a path leads to or through, perhaps in an image of the event."""
        found = self.find_list(segments, position=position)
        if found is None and not is_quoted and len(segments) > 1 and segments[0].upper() in ("OLD", "NEW"):
            found = self.find_list(segments[1:], segments[0].upper(), position)
        return found

    def find_list(self, segments: list[str], image: str = "", position: int = 0) -> ListPath | None:
        for level in range(0 if image else len(self.scopes) - 1, -1, -1):
            schema: Schema | None = self.scopes[level]
            steps: list[str] = []
            rest = ".".join(segments).split(".")  # a quoted segment may be a path
            number = -1
            while schema is not None and rest:
                lists = (end for end in range(len(rest), 0, -1) if ".".join(rest[:end]) in schema)
                end = next(lists, None)
                if end is None:
                    break
                name = ".".join(rest[:end])
                found, rest = schema[name], rest[end:]
                if not steps:
                    number = schema.number(name)
                if not steps and not found.is_list:
                    break
                steps.append(name)
                if not rest:
                    where = self.image(image)
                    return ListPath(tuple(steps), number, found.element, position, level, where, found.fields)
                schema = found.fields
        return None

    def list_path(self) -> ListPath:
        position = self.starts[self.at]
        segments, is_quoted = self.segments()
        if self.scopes[0].is_open:
            return self.open_list(segments, is_quoted, position)
        found = self.any_list(segments, is_quoted, position)
        if found is None:
            name = ".".join(segments)
            if any(name in scope for scope in self.scopes):
                raise TypeProblem(f"{quoted(name)} is not a list", self.text, position)
            raise self.unknown(segments, name, position)
        if not found.level:
            self.check_role(found.steps[0], self.scopes[0][found.steps[0]], position)
        return found

    def exists(self, depth: int, position: int) -> Node:
        path = self.list_path()
        if path.fields is None:
            raise TypeProblem(
                f"EXISTS is for lists of objects: write ANY({path}) = ... for {path}", self.text, path.position
            )
        if not self.is_word("WHERE"):
            raise self.unexpected("WHERE and a condition on one element")
        self.at += 1
        crossing = self.crossing(path)
        self.scopes.append(path.fields)
        self.crossed += crossing
        try:
            condition = self.condition(self.predicate(depth + 1))
        finally:
            self.scopes.pop()
            self.crossed -= crossing
        self.expect(")", "AND, OR or ')'")
        return Quantifier("EXISTS", path, condition, position, len(self.scopes))

    def crossing(self, path: ListPath) -> bool:
        """Whether a list is no part of the element around it, so that each element meets each. Three such lists inside
        each other would take the product of their lengths per event."""
        crosses = path.level < len(self.scopes) - 1
        if self.crossed + crosses > MAX_CROSSED:
            raise LimitExceeded(
                f"{path} is the third list of which every element meets every one of two others: "
                "ask for it outside of the EXISTS around it",
                self.text,
                path.position,
            )
        return crosses

    # ---- tokens

    def is_word(self, word: str) -> bool:
        """Whether this word, which is no keyword, comes next."""
        return self.kinds[self.at] == "name" and self.texts[self.at].upper() == word

    def quoted_text(self, what: str) -> str:
        self.expect("string", what)
        return string(self.texts[self.at - 1])

    def expect(self, kind: str, what: str) -> None:
        if self.kinds[self.at] != kind:
            raise self.unexpected(what)
        self.at += 1

    def unexpected(self, wanted: str) -> SyntaxProblem:
        kind, text = self.kinds[self.at], self.texts[self.at]
        if kind == "end":
            found = "the end of the predicate"
        elif kind in KEYWORDS:
            found = f"the keyword {kind}"
            if wanted == "a condition" and self.kinds[self.at + 1] in TESTS:
                found += f' (an attribute of that name is written "{text}")'
        else:
            found = short(text)
        return SyntaxProblem(f"expected {wanted}, found {found}", self.text, self.starts[self.at])


def _shown(of: Expression) -> str:
    return of.name if isinstance(of, Field) and not of.old else str(of)
