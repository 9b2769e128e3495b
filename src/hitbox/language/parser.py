"""Tokens -> tree, by recursive descent, checked against the schema on the way.

    predicate  = conjunction {OR conjunction}
    conjunction= factor {AND factor}
    factor     = {NOT} ( "(" predicate ")" | TRUE | FALSE | leaf )
    leaf       = name                                             a bool attribute, short for name = TRUE
               | name op literal | literal op name                = <> != < <= > >=
               | name [NOT] BETWEEN literal AND literal
               | name [NOT] IN "(" literal {"," literal} ")"
               | name [NOT] LIKE string [ESCAPE string]
               | name IS [NOT] NULL
    literal    = number | string | TRUE | FALSE | TIMESTAMP string

Only parentheses recurse, and no deeper than the limit; chains of AND, OR and NOT are loops. The text is read
in one pass: an error names the first token that does not fit, and what would fit.
"""

from __future__ import annotations

from hitbox.encoding.schema import Schema
from hitbox.errors import LimitExceeded, SyntaxProblem, TypeProblem, UnknownAttribute, nearest
from hitbox.language.lexer import KEYWORDS, tokens
from hitbox.language.limits import DEFAULT_LIMITS, Limits
from hitbox.language.literals import number, right_kind, short, string, timestamp
from hitbox.language.patterns import Pattern
from hitbox.language.tree import Branch, Leaf, Literal, Node, Predicate, join

MIRRORED = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
TESTS = frozenset(["op", "IS", "IN", "BETWEEN", "LIKE"])
LITERALS = frozenset(["number", "string", "TRUE", "FALSE", "NULL"])


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
    __slots__ = ("at", "kinds", "limits", "role", "schema", "starts", "text", "texts")

    def __init__(self, text: str, schema: Schema, role: str | None, limits: Limits):
        self.text, self.schema, self.role, self.limits = text, schema, role, limits
        self.kinds, self.texts, self.starts = tokens(text)
        self.at = 0

    def whole(self) -> Node:
        if self.kinds[0] == "end":
            raise SyntaxProblem("the predicate is empty: write a condition, or TRUE to match everything")
        root = self.predicate(0)
        if self.kinds[self.at] != "end":
            if self.kinds[self.at] == ")":
                raise SyntaxProblem("this ')' has no '('", self.text, self.starts[self.at])
            raise self.unexpected("AND, OR or the end of the predicate")
        return root

    def predicate(self, depth: int) -> Node:
        kinds, start = self.kinds, self.starts[self.at]
        either: list[Node] = []
        while True:
            position = self.starts[self.at]
            both = [self.factor(depth)]
            while kinds[self.at] == "AND":
                self.at += 1
                both.append(self.factor(depth))
            either.append(both[0] if len(both) == 1 else join("AND", both, position))
            if kinds[self.at] != "OR":
                return either[0] if len(either) == 1 else join("OR", either, start)
            self.at += 1

    def factor(self, depth: int) -> Node:
        kind = self.kinds[self.at]
        if kind == "name":
            return self.leaf()
        first = self.at
        while self.kinds[self.at] == "NOT":
            self.at += 1
        depth += self.at - first
        outer = self.starts[first : self.at]
        if self.kinds[self.at] == "(":
            depth += 1
            self.check_depth(depth)
            self.at += 1
            node = self.predicate(depth)
            self.expect(")", "AND, OR or ')'")
        else:
            self.check_depth(depth)
            node = self.leaf()
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

    def leaf(self) -> Node:
        kind, position = self.kinds[self.at], self.starts[self.at]
        if kind in LITERALS or (kind == "name" and self.is_timestamp()):
            return self.literal_first(position)
        name, attribute_number, type_ = self.attribute()
        kind = self.kinds[self.at]
        if kind == "op":
            op = self.operator()
            place = self.starts[self.at]
            return Leaf(name, attribute_number, type_, op, (self.literal(name, type_),), position, (place,))
        if kind == "IS":
            return Leaf(name, attribute_number, type_, self.is_null(), (), position)
        negated = kind == "NOT"
        if negated:
            self.at += 1
            kind = self.kinds[self.at]
        op = f"NOT {kind}" if negated else kind
        if kind == "BETWEEN":
            values, places = self.between(name, type_)
        elif kind == "IN":
            values, places = self.in_list(name, type_)
        elif kind == "LIKE":
            values, places = self.like(name, type_)
        elif negated:
            raise self.unexpected("BETWEEN, IN or LIKE")
        elif type_ == "bool":
            return Leaf(name, attribute_number, type_, "=", (True,), position, (position,))
        else:
            raise self.unexpected(f"a comparison of the {type_} attribute {name!r}")
        return Leaf(name, attribute_number, type_, op, values, position, places)

    def literal_first(self, position: int) -> Node:
        """`10 < price`, or TRUE and FALSE as a whole condition."""
        start, kind = self.at, self.kinds[self.at]
        self.at += 2 if kind == "name" else 1
        if self.kinds[self.at] != "op":
            if kind in ("TRUE", "FALSE"):
                return Branch(kind, (), position)
            raise self.unexpected("an operator and an attribute after the literal")
        op = self.operator()
        if self.kinds[self.at] in LITERALS or self.is_timestamp():
            raise SyntaxProblem(
                "two literals are compared: one side must be an attribute", self.text, self.starts[self.at]
            )
        name, attribute_number, type_ = self.attribute()
        after, self.at = self.at, start
        value = self.literal(name, type_)
        self.at = after
        return Leaf(name, attribute_number, type_, MIRRORED[op], (value,), position, (position,))

    def operator(self) -> str:
        op = self.texts[self.at]
        self.at += 1
        return "<>" if op == "!=" else op

    def is_null(self) -> str:
        self.at += 1
        negated = self.kinds[self.at] == "NOT"
        self.at += negated
        self.expect("NULL", "NULL" if negated else "NULL or NOT NULL")
        return "IS NOT NULL" if negated else "IS NULL"

    def between(self, name: str, type_: str) -> tuple[tuple[Literal, ...], tuple[int, ...]]:
        self.at += 1
        first = self.starts[self.at]
        low = self.literal(name, type_)
        self.expect("AND", "AND and the upper bound of BETWEEN")
        second = self.starts[self.at]
        return (low, self.literal(name, type_)), (first, second)

    def in_list(self, name: str, type_: str) -> tuple[tuple[Literal, ...], tuple[int, ...]]:
        self.at += 1
        self.expect("(", "'(' and a list of literals")
        if self.kinds[self.at] == ")":
            raise self.unexpected("at least one literal: an IN list cannot be empty")
        values: list[Literal] = []
        places: list[int] = []
        while True:
            places.append(self.starts[self.at])
            values.append(self.literal(name, type_))
            if len(values) > self.limits.values:
                raise LimitExceeded(
                    f"the IN list has more than {self.limits.values} values: "
                    "split it into several subscriptions, or raise Limits(values=...)",
                    self.text,
                    places[-1],
                )
            if self.kinds[self.at] != ",":
                break
            self.at += 1
        self.expect(")", "',' or ')'")
        return tuple(values), tuple(places)

    def like(self, name: str, type_: str) -> tuple[tuple[Literal, ...], tuple[int, ...]]:
        if type_ != "string":
            raise TypeProblem(
                f"LIKE is for string attributes; {name!r} is of type {type_}", self.text, self.starts[self.at]
            )
        self.at += 1
        places = [self.starts[self.at]]
        self.expect("string", "a pattern in quotes")
        values = [string(self.texts[self.at - 1])]
        if len(values[0]) > self.limits.pattern:
            raise LimitExceeded(
                f"the pattern has {len(values[0])} characters; the limit is {self.limits.pattern}: "
                "shorten it, or raise Limits(pattern=...)",
                self.text,
                places[0],
            )
        if self.kinds[self.at] == "ESCAPE":
            self.at += 1
            places.append(self.starts[self.at])
            self.expect("string", "one character in quotes")
            values.append(string(self.texts[self.at - 1]))
            if len(values[1]) != 1:
                raise SyntaxProblem("the escape is exactly one character, as in ESCAPE '!'", self.text, places[1])
        if values[1:] and not Pattern.complete(values[0], values[1]):
            raise SyntaxProblem(
                f"the pattern ends with its escape character {values[1]!r}: write it twice", self.text, places[0]
            )
        return tuple(values), tuple(places)

    def attribute(self) -> tuple[str, int, str]:
        kind, name, position = self.kinds[self.at], self.texts[self.at], self.starts[self.at]
        if kind == "quoted":
            name = name[1:-1].replace('""', '"')
        elif kind != "name":
            raise self.unexpected("a condition" if self.at == 0 or self.kinds[self.at - 1] != "op" else "an attribute")
        found = self.schema.get(name)
        if found is None:
            hint = nearest(name, self.schema) or f" (have: {', '.join(self.schema.names[:10])})"
            raise UnknownAttribute(f"unknown attribute {name!r:.80}{hint}", self.text, position)
        if self.role is not None and found.role != self.role:
            allowed = ", ".join(self.schema.with_role(self.role)[:10]) or "none"
            raise UnknownAttribute(
                f"attribute {name!r} has the role {found.role!r}; here only {self.role!r} attributes may be named "
                f"(have: {allowed})",
                self.text,
                position,
            )
        self.at += 1
        return name, self.schema.number(name), found.type

    def is_timestamp(self) -> bool:
        """`TIMESTAMP '...'`: the word alone may be an attribute's name."""
        return (
            self.kinds[self.at] == "name"
            and self.kinds[self.at + 1] == "string"
            and self.texts[self.at].upper() == "TIMESTAMP"
        )

    def literal(self, name: str, type_: str) -> Literal:
        """One literal, of the right type for the attribute `name`."""
        kind, text, position = self.kinds[self.at], self.texts[self.at], self.starts[self.at]
        value: Literal
        if kind == "number":
            value = number(text, self.text, position)
        elif kind == "string":
            value = string(text)
        elif kind in ("TRUE", "FALSE"):
            value = kind == "TRUE"
        elif self.is_timestamp():
            self.at += 1
            value = timestamp(string(self.texts[self.at]), self.text, self.starts[self.at])
        else:
            raise self.no_literal(kind, text, position)
        self.at += 1
        right_kind(value, name, type_, self.text, position)
        return value

    def no_literal(self, kind: str, text: str, position: int) -> SyntaxProblem:
        if kind == "NULL":
            return SyntaxProblem("nothing compares with NULL: write IS NULL or IS NOT NULL", self.text, position)
        if kind == "name" and text.upper() in ("NAN", "INF", "INFINITY"):
            return SyntaxProblem(
                f"{text} is not a number that can be compared: write a finite one", self.text, position
            )
        if kind in ("name", "quoted"):
            return SyntaxProblem(
                f"expected a literal, found the name {short(text)}: attributes compare with literals only, "
                "and strings are written in single quotes",
                self.text,
                position,
            )
        return self.unexpected("a literal")

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
