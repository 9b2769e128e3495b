"""Text -> tree, by recursive descent, checked against the schema on the way.

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

from hitbox.encoding.schema import Schema
from hitbox.errors import LimitExceeded, SyntaxProblem
from hitbox.language.conditions.patterns import Pattern
from hitbox.language.limits import DEFAULT_LIMITS, Limits
from hitbox.language.syntax.expressions import Constant, Element, Expression, Field, Literal
from hitbox.language.syntax.literals import short
from hitbox.language.syntax.tree import Branch, Item, Leaf, Node, Predicate, as_value, join
from hitbox.language.syntax.type_rules import alike, comparable, compare, is_attribute, scalar, shown, test_node, typed
from hitbox.language.syntax.value_reader import ValueReader

PLAIN_LITERALS = frozenset(
    [("number", "float"), ("number", "int"), ("string", "string"), ("TRUE", "bool"), ("FALSE", "bool")]
)
"""Tokens that are literals, with the types of attributes that they may be compared with."""
ENDS = frozenset(["AND", "OR", ")", "end"])
"""What may follow a condition that has no more parts."""


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
        return Predicate(Parser(text, schema, role, limits).whole(), text, schema, limits)
    except RecursionError:  # the depth limit was raised, or the caller's stack is deep already
        raise LimitExceeded("the predicate is nested too deeply for Python's stack: flatten it") from None


class Parser(ValueReader):
    __slots__ = ()

    def whole(self) -> Node:
        if self.kinds[0] == "end":
            raise SyntaxProblem("the predicate is empty: write a condition, or TRUE to match everything")
        root = self.condition(self.predicate(0))
        if self.kinds[self.at] != "end":
            if self.kinds[self.at] == ")":
                raise self.wrong_syntax("this ')' has no '('")
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
        return self.literal_at(at) if (self.kinds[at], type_) in PLAIN_LITERALS else None

    def comparison(self, depth: int) -> Item:
        position = self.starts[self.at]
        if self.kinds[self.at] == "name":
            leaf = self.plain_leaf()
            if leaf is not None:
                return leaf
        left = self.arithmetic(depth)
        kind = self.kinds[self.at]
        if kind == "op":
            op = self.texts[self.at].replace("!=", "<>")
            self.at += 1
            node = compare(as_value(left), op, as_value(self.arithmetic(depth)), position, self.text)
            if self.kinds[self.at] == "op":
                raise self.wrong_syntax("comparisons do not chain: join them with AND, or put one in parentheses")
            return node
        if kind == "IS":
            return self.presence(as_value(left), position)
        negated = kind == "NOT"
        self.at += negated
        word = self.texts[self.at].upper()
        if word in TESTS:
            value = left if isinstance(left, Element) else scalar(left, self.text)
            self.at += 1
            return TESTS[word](self, value, f"NOT {word}" if negated else word, position, depth)
        if negated:
            raise self.unexpected("BETWEEN, IN, LIKE, ILIKE or REGEXP")
        return left

    def presence(self, value: Expression, position: int) -> Node:
        """IS [NOT] NULL, IS [NOT] MISSING."""
        self.at += 1
        negated = self.kinds[self.at] == "NOT"
        self.at += negated
        missing = self.is_word("MISSING")
        if not missing and self.kinds[self.at] != "NULL":
            raise self.unexpected("NULL or MISSING" if negated else "NULL, MISSING, NOT NULL or NOT MISSING")
        self.at += 1
        op = f"IS {'NOT ' if negated else ''}{'MISSING' if missing else 'NULL'}"
        if missing and not isinstance(value, Field):
            raise self.wrong_type(
                f"only an attribute can be missing, and {short(str(value))} is none: write IS NULL", value.position
            )
        if isinstance(value, Field) and is_attribute(value) and not missing:
            return Leaf(value.name, value.number, value.type, op, (), position)
        subject = value if isinstance(value, (Field, Element)) else scalar(value, self.text)
        return test_node(op, subject, (), position, ())

    def between(self, value: Expression, op: str, position: int, depth: int) -> Node:
        value, low = alike(value, scalar(self.arithmetic(depth), self.text), self.text)
        comparable(value, low, self.text)
        self.expect("AND", "AND and the upper bound of BETWEEN")
        value, high = alike(value, scalar(self.arithmetic(depth), self.text), self.text)
        value, low = alike(value, low, self.text)
        ends = comparable(value, low, self.text), comparable(value, high, self.text)
        return test_node(op, value, ends, position, ())

    def within(self, value: Expression, op: str, position: int, depth: int) -> Node:
        """IN a list of literals, or IN NETWORK."""
        if self.is_word("NETWORK") and self.kinds[self.at + 1] == "string":
            self.at += 1
            return self.text_test(value, f"{op} NETWORK", position, depth)
        self.expect("(", "'(' and a list of literals")
        if self.kinds[self.at] == ")":
            raise self.unexpected("at least one literal: an IN list cannot be empty")
        literals: list[Expression] = []
        while True:
            place = self.starts[self.at]
            literal = scalar(self.arithmetic(depth), self.text)
            if not isinstance(literal, Constant):
                raise self.wrong_syntax("an IN list holds literals only: compare with = and join with OR", place)
            value = typed(value, literal.type, self.text)
            literals.append(comparable(value, literal, self.text))
            if len(literals) > self.limits.values:
                raise self.too_large(
                    f"the IN list has more than {self.limits.values} values: "
                    "split it into several subscriptions, or raise Limits(values=...)",
                    place,
                )
            if self.kinds[self.at] != ",":
                break
            self.at += 1
        self.expect(")", "',' or ')'")
        return test_node(op, value, tuple(literals), position, ())

    def pattern(self, value: Expression, op: str, position: int, depth: int) -> Node:
        """LIKE and ILIKE, with or without an escape."""
        value = typed(value, "string", self.text)
        if value.type != "string":
            name = repr(shown(value)) if is_attribute(value) else shown(value)
            name = name if isinstance(value, Field) else short(name)
            raise self.wrong_type(
                f"{op.removeprefix('NOT ')} is for string attributes; {name} is of type {value.type}",
                self.starts[self.at - 1],
            )
        places = [self.starts[self.at]]
        texts = [self.quoted_text("a pattern in quotes")]
        self.check_length(texts[0], places[0])
        if self.kinds[self.at] == "ESCAPE":
            self.at += 1
            places.append(self.starts[self.at])
            texts.append(self.quoted_text("one character in quotes"))
            if len(texts[1]) != 1:
                raise self.wrong_syntax("the escape is exactly one character, as in ESCAPE '!'", places[1])
            if not Pattern.complete(texts[0], texts[1]):
                raise self.wrong_syntax(
                    f"the pattern ends with its escape character {texts[1]!r}: write it twice", places[0]
                )
        if isinstance(value, Field) and is_attribute(value) and op in ("LIKE", "NOT LIKE"):
            return Leaf(value.name, value.number, value.type, op, tuple(texts), position, tuple(places))
        return test_node(op, value, (), position, tuple(texts))

    def text_test(self, value: Expression, op: str, position: int, depth: int) -> Node:
        """A test of a string that has one text: REGEXP, IN NETWORK."""
        name = op.removeprefix("NOT ")
        value = typed(value, "string", self.text)
        if value.type != "string":
            raise self.wrong_type(f"{name} is for strings; {short(str(value))} is of type {value.type}", value.position)
        place = self.starts[self.at]
        text = self.quoted_text("a text in quotes")
        self.check_length(text, place)
        self.check_machine(name, text, place)
        return test_node(op, value, (), position, (text,))


TESTS: dict[str, Callable[[Parser, Expression, str, int, int], Node]] = {
    "BETWEEN": Parser.between,
    "IN": Parser.within,
    "LIKE": Parser.pattern,
    "ILIKE": Parser.pattern,
    "REGEXP": Parser.text_test,
}
"""How a test is read, by the word that it begins with."""
