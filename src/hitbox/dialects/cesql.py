"""CloudEvents SQL expressions (CESQL 1.0) -> predicates.

CESQL has strings, 32-bit integers and bools, and casts between them where an operator needs it. What fails (a missing
attribute, a cast, a division by zero) is an error, and an event whose evaluation has an error does not pass. Errors are
not the unknown of our logic: `missing = 1 OR TRUE` fails, since the left side is evaluated first. So a condition is
kept as three: `when` it is true, `unless`, when it is false, and `sound`, when it has no error.

NOT and - bind tightest, then LIKE and IN, arithmetic, and comparisons. AND, OR and XOR bind equally, from the right:
`a AND b OR c` is `a AND (b OR c)`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from hitbox.dialects.conditions import FALSE, TRUE, Condition, as_schema, both, either, name, predicate, test
from hitbox.dialects.scanner import Scanner
from hitbox.encoding.schema import Schema
from hitbox.errors import DialectError, nearest
from hitbox.language.conditions.letters import lower, upper
from hitbox.language.syntax.expressions import divide, literal, remainder

KEYWORDS = frozenset(["AND", "OR", "XOR", "NOT", "LIKE", "EXISTS", "IN", "TRUE", "FALSE"])
REQUIRED = frozenset(["id", "source", "specversion", "type"])
"""Attributes that every CloudEvent has."""
LOGIC = ("AND", "OR", "XOR")
OPPOSITE = {"=": "<>", "<>": "=", "<": ">=", "<=": ">", ">": "<=", ">=": "<"}
STRENGTH = {**dict.fromkeys(OPPOSITE, 2), "+": 3, "-": 3, "*": 4, "/": 4, "%": 4}
SIGN = 6
SMALLEST, GREATEST = -(2**31), 2**31 - 1
WHITESPACE = " \t\n\r\f\v"
ANY = "any"
"""The kind of an attribute if there is no schema: a string, unless it is used as something else."""
KINDS = {"string": "string", "int": "int", "bool": "bool", "timestamp": "timestamp"}
CASTS = {"string": "STRING", "int": "INT", "bool": "BOOL"}
FAILED: Any = object()
"""The constant of a value that is an error."""

_TOKEN = re.compile(
    r"""\s*+(?:
        (?P<number>[0-9]++(?![a-zA-Z_]))
      | (?P<name>[a-zA-Z0-9][a-zA-Z0-9_]*+)
      | (?P<string>'(?:[^'\\]|\\.)*+'|"(?:[^"\\]|\\.)*+")
      | (?P<mark><=|>=|<>|!=|[=<>(),+*/%-])
      | (?P<end>\Z)
      | (?P<bad>.)
    )""",
    re.VERBOSE | re.DOTALL,
)
_HINTS = {
    "'": r"the string that starts here has no closing quote (a quote inside a string is written \')",
    '"': r"the string that starts here has no closing quote (a quote inside a string is written \")",
    "_": "names of attributes are made of letters and digits",
    ".": "an expression sees the attributes of an event, not its data; and numbers are whole",
}


@dataclass(frozen=True, slots=True)
class Value:
    """A string, an integer or a bool: `kind` says which, or ANY. An error makes it NULL; a `sure` one has none."""

    text: str
    kind: str
    position: int
    strength: int = 9
    constant: Any = None
    sure: bool = False
    attribute: bool = False


@dataclass(frozen=True, slots=True)
class Truth:
    """A condition: `when` it is true, `unless`, when it is false, and `sound`, when it is one of the two."""

    when: Condition
    unless: Condition
    sound: Condition
    position: int

    def opposite(self) -> Truth:
        return replace(self, when=self.unless, unless=self.when)


def parse(expression: str, schema: Schema | Mapping[str, Any] | None = None) -> str:
    """The predicate that is true where a CESQL expression is TRUE, without an error.

    Context attributes are attributes of the same name in small letters. They are strings, unless an operator casts them
    (`INT(x)`, `BOOL(x)`), which is right for attributes of type string, int and bool. If `schema` is given, names are
    checked, and every cast is made exactly for the types there.

    Integers have 64 bits where they come from an event. CONCAT, CONCAT_WS, TRIM, LEFT, RIGHT and SUBSTRING of
    attributes have no equivalent, and are errors.

    >>> parse("source LIKE 'https://%' AND sequence = 5")
    "source LIKE 'https://%' AND INT(sequence) = 5"
    >>> parse("firstname = 'Ann' OR EXISTS subject")
    "firstname = 'Ann' OR firstname IS NOT NULL AND subject IS NOT NULL"
    """
    known = as_schema(schema)
    scanner = Scanner(expression, "expression", _TOKEN, KEYWORDS, _HINTS)
    try:
        parser = _Parser(scanner, known)
        whole = parser.expression()
        if scanner.kind != "end":
            raise scanner.unexpected("an operator or the end of the expression")
        if isinstance(whole, Value) and not whole.attribute and whole.constant is not FAILED and whole.kind != "bool":
            raise scanner.error(f"the expression is of type {whole.kind}, and a filter is a Boolean", whole.position)
        return predicate(parser.truth(whole).when)
    except RecursionError:
        raise DialectError("the expression is nested too deeply for Python's stack: flatten it") from None


class _Parser:
    def __init__(self, scanner: Scanner, schema: Schema | None):
        self._next, self._schema = scanner, schema

    # ---- logic

    def expression(self) -> Value | Truth:
        """Operands of AND, OR and XOR, joined from the right."""
        operands, operators = [self._calculation(2)], []
        while self._next.kind in LOGIC:
            operators.append(self._next.advance().upper())
            operands.append(self._calculation(2))
        if not operators:
            return operands[0]
        found = self.truth(operands.pop())
        while operators:
            found = _joined(operators.pop(), self.truth(operands.pop()), found)
        return found

    def truth(self, of: Value | Truth) -> Truth:
        """A value as a condition, cast to a bool."""
        if isinstance(of, Truth):
            return of
        as_bool = self._cast(of, "bool")
        if as_bool.constant is FAILED:
            return Truth(FALSE, FALSE, FALSE, of.position)
        if as_bool.constant is not None:
            return Truth(*((TRUE, FALSE) if as_bool.constant else (FALSE, TRUE)), TRUE, of.position)
        return Truth(
            test(f"{as_bool.text} = TRUE"), test(f"{as_bool.text} = FALSE"), self._sound(as_bool), as_bool.position
        )

    def _sound(self, *values: Value) -> Condition:
        """No value is an error."""
        return both(
            *(
                test(f"{_wrapped(of, STRENGTH['='] + 1)} IS NOT NULL")
                for of in values
                if of.constant is None and not of.sure
            )
        )

    # ---- values

    def _calculation(self, least: int) -> Value | Truth:
        """What stands here, with the arithmetic and the comparisons that bind at least so tightly."""
        left = self._tested()
        while STRENGTH.get(op := "<>" if self._next.kind == "!=" else self._next.kind, 0) >= least:
            self._next.advance()
            right = self._calculation(STRENGTH[op] + 1)
            left = self._compare(left, op, right) if op in OPPOSITE else self._calculated(left, op, right)
        return left

    def _calculated(self, left: Value | Truth, op: str, right: Value | Truth) -> Value:
        one, two = self._cast(left, "int"), self._cast(right, "int")
        start = one.position
        if FAILED in (one.constant, two.constant) or (one.constant is not None and two.constant is not None):
            return _whole(_arithmetic(op, one.constant, two.constant), start)
        strength = STRENGTH[op]
        second = _wrapped(two, strength + 1)
        second = f"({second})" if second.startswith("-") else second
        return Value(f"{_wrapped(one, strength)} {op} {second}", "int", start, strength)

    def _compare(self, left: Value | Truth, op: str, right: Value | Truth) -> Truth:
        if op not in ("=", "<>"):
            return self._comparison(self._cast(left, "int"), op, self._cast(right, "int"))
        kind = "bool" if isinstance(right, Truth) else "string" if right.kind == "timestamp" else right.kind
        if kind == ANY:  # a string, unless the left side is an attribute or a condition
            if isinstance(left, Value) and left.kind == ANY:
                return self._comparison(left, op, right)  # type: ignore[arg-type]
            kind = "bool" if isinstance(left, Truth) else "string"
        if kind != "bool":
            return self._comparison(self._cast(left, kind), op, self._cast(right, kind))
        one, two = self.truth(left), self.truth(right)
        same = either(both(one.when, two.when), both(one.unless, two.unless))
        other = either(both(one.when, two.unless), both(one.unless, two.when))
        made = Truth(same, other, both(one.sound, two.sound), one.position)
        return made if op == "=" else made.opposite()

    def _comparison(self, one: Value, op: str, two: Value) -> Truth:
        """Two values of one kind, or two attributes."""
        if FAILED in (one.constant, two.constant):
            return Truth(FALSE, FALSE, FALSE, one.position)
        if one.constant is not None and two.constant is not None:
            holds = COMPARE[op](one.constant, two.constant)
            return Truth(*((TRUE, FALSE) if holds else (FALSE, TRUE)), TRUE, one.position)
        tight = STRENGTH["="] + 1
        first, second = _wrapped(one, tight), _wrapped(two, tight)
        return Truth(
            test(f"{first} {op} {second}"),
            test(f"{first} {OPPOSITE[op]} {second}"),
            self._sound(one, two),
            one.position,
        )

    def _tested(self) -> Value | Truth:
        """An operand, and LIKE and IN after it."""
        left = self._signed()
        while self._next.kind in ("LIKE", "IN") or (
            self._next.kind == "NOT" and self._next.following() in ("LIKE", "IN")
        ):
            negated = self._next.take("NOT")
            found = self._like(left) if self._next.advance().upper() == "LIKE" else self._in(left)
            left = found.opposite() if negated else found
        return left

    def _like(self, left: Value | Truth) -> Truth:
        of = self._cast(left, "string")
        if self._next.kind != "string":
            raise self._next.unexpected("a pattern, which is a string in quotes")
        parts = _pattern(_unquoted(self._next.advance()))
        if of.constant is FAILED:
            return Truth(FALSE, FALSE, FALSE, of.position)
        if of.constant is not None:
            expression = "".join({"%": ".*", "_": "."}[c] if wild else re.escape(c) for c, wild in parts)
            holds = re.fullmatch(expression, of.constant, re.DOTALL) is not None
            return Truth(*((TRUE, FALSE) if holds else (FALSE, TRUE)), TRUE, of.position)
        escaped = any(not wild and c in "%_" for c, wild in parts)
        pattern = "".join(f"\\{c}" if escaped and not wild and c in "%_\\" else c for c, wild in parts)
        rest = f"LIKE {literal(pattern)}" + (" ESCAPE '\\'" if escaped else "")
        return Truth(test(f"{of.text} {rest}"), test(f"{of.text} NOT {rest}"), self._sound(of), of.position)

    def _in(self, left: Value | Truth) -> Truth:
        """One element is equal, cast to the type of the left side."""
        self._next.expect("(", "'(' and a set of values")
        self._next.deeper()
        elements = [self.expression()]
        while self._next.take(","):
            elements.append(self.expression())
        self._next.expect(")", "',' or ')'")
        self._next.shallower()
        kind = "bool" if isinstance(left, Truth) else "string" if left.kind in (ANY, "timestamp") else left.kind
        found = Truth(FALSE, TRUE, TRUE, left.position)
        for element in reversed(self._runs(elements, kind)):
            found = _joined("OR", self._within(left, kind, element), found)
        return found

    def _runs(self, elements: list[Value | Truth], kind: str) -> list[list[Value | Truth]]:
        """The elements, with constants that follow each other together: they become one list."""
        runs: list[list[Value | Truth]] = []
        for element in elements:
            cast = element if kind == "bool" else self._cast(element, kind)
            plain = isinstance(cast, Value) and cast.constant is not None and cast.constant is not FAILED
            before = runs[-1][-1] if runs else None
            if plain and isinstance(before, Value) and before.constant not in (None, FAILED):
                runs[-1].append(cast)
            else:
                runs.append([cast])
        return runs

    def _within(self, left: Value | Truth, kind: str, run: list[Value | Truth]) -> Truth:
        if kind == "bool" or isinstance(left, Truth):
            found = Truth(FALSE, TRUE, TRUE, left.position)
            for element in reversed(run):
                found = _joined("OR", self._compare(self.truth(left), "=", self.truth(element)), found)
            return found
        of = self._cast(left, kind)
        values = [element for element in run if isinstance(element, Value)]
        if len(values) == 1 or of.constant is not None:
            found = Truth(FALSE, TRUE, TRUE, left.position)
            for value in reversed(values):
                found = _joined("OR", self._comparison(of, "=", value), found)
            return found
        texts = f"({', '.join(dict.fromkeys(value.text for value in values))})"
        shown = _wrapped(of, STRENGTH["="] + 1)
        return Truth(test(f"{shown} IN {texts}"), test(f"{shown} NOT IN {texts}"), self._sound(of), of.position)

    # ---- operands

    def _signed(self) -> Value | Truth:
        """An operand with NOT and - before it."""
        signs: list[tuple[str, int]] = []
        while self._next.kind in ("NOT", "-", "+"):
            if self._next.kind == "+" and self._next.following() != "number":
                raise self._next.error("a + stands before an integer, or between two values")
            signs.append((self._next.kind, self._next.position))
            self._next.advance()
        number_next = self._next.kind == "number"
        negative = number_next and bool(signs) and signs[-1][0] == "-"
        if number_next and signs and signs[-1][0] != "NOT":
            _, start = signs.pop()
            found: Value | Truth = self._integer("-" if negative else "", start)
        else:
            found = self._operand()
        for sign, start in reversed(signs):
            found = self._not(found, start) if sign == "NOT" else self._negative(found, start)
        return found

    def _not(self, of: Value | Truth, start: int) -> Truth:
        if isinstance(of, Value) and of.kind == "int" and of.constant is not FAILED:
            # a cast that fails, which gives false; its opposite is true
            return Truth(self._sound(of), FALSE, self._sound(of), start)
        return replace(self.truth(of).opposite(), position=start)

    def _negative(self, of: Value | Truth, start: int) -> Value:
        value = self._cast(of, "int")
        if value.constant is not None:
            return _whole(FAILED if value.constant is FAILED else -value.constant, start)
        inner = _wrapped(value, SIGN)
        return Value(f"-({inner})" if inner.startswith("-") else f"-{inner}", "int", start, SIGN)

    def _operand(self) -> Value | Truth:
        scanner, start = self._next, self._next.position
        if scanner.kind == "number":
            return self._integer("", start)
        if scanner.kind == "string":
            return _constant(_unquoted(scanner.advance()), start)
        if scanner.kind in ("TRUE", "FALSE"):
            return _constant(scanner.advance().upper() == "TRUE", start)
        if scanner.take("("):
            scanner.deeper()
            found = self.expression()
            scanner.expect(")", "an operator or ')'")
            scanner.shallower()
            return found
        if scanner.take("EXISTS"):
            place = scanner.position
            word = scanner.expect("name", "the name of an attribute")
            return self._exists(word, place)
        if scanner.kind != "name":
            raise scanner.unexpected("a value")
        word = scanner.advance()
        return self._function(word, start) if scanner.kind == "(" else self._attribute(word, start)

    def _exists(self, word: str, start: int) -> Truth:
        if word.lower() in REQUIRED:
            return Truth(TRUE, FALSE, TRUE, start)
        of = self._attribute(word, start)
        return Truth(test(f"{of.text} IS NOT NULL"), test(f"{of.text} IS NULL"), TRUE, start)

    def _integer(self, sign: str, start: int) -> Value:
        digits = self._next.advance()
        if len(digits) > 1000 or not SMALLEST <= int(sign + digits) <= GREATEST:
            raise self._next.error(f"the integer {sign}{digits[:40]} does not fit 32 bits", start)
        return _constant(int(sign + digits), start)

    def _attribute(self, word: str, start: int) -> Value:
        if "_" in word:
            raise self._next.error(f"{word[:40]} is no name of an attribute: letters and digits only", start)
        attribute = word.lower()
        sure = attribute in REQUIRED
        if self._schema is None:
            return Value(name(attribute), ANY, start, sure=sure, attribute=True)
        if attribute not in self._schema:
            hint = nearest(attribute, self._schema) or f" (have: {', '.join(list(self._schema)[:10])})"
            raise self._next.error(f"the schema has no attribute {attribute!r}{hint}", start)
        type_ = self._schema[attribute].type
        if type_ not in KINDS:
            raise self._next.error(f"attribute {attribute!r} is of type {type_}, which CloudEvents do not have", start)
        return Value(name(attribute), KINDS[type_], start, sure=sure, attribute=True)

    # ---- functions and casts

    def _function(self, word: str, start: int) -> Value | Truth:
        arguments = self._arguments()
        function = word.upper()
        known = [one for one in FUNCTIONS if one.split("/")[0] == function]
        if not known:
            names = sorted({one.split("/")[0] for one in FUNCTIONS})
            hint = nearest(function, names) or f" (have: {', '.join(names)})"
            raise self._next.error(f"unknown function {word[:40]}{hint}", start)
        made = next((FUNCTIONS[one] for one in known if FUNCTIONS[one].takes(len(arguments))), None)
        if made is None:
            raise self._next.error(f"{function} does not take {len(arguments)} arguments", start)
        kinds = [made.kinds[min(at, len(made.kinds) - 1)] for at in range(len(arguments))]
        if function in ("INT", "STRING", "BOOL"):
            found = self.truth(arguments[0]) if function == "BOOL" else self._cast(arguments[0], kinds[0])
            return replace(found, position=start)
        values = [self._cast(argument, kind) for argument, kind in zip(arguments, kinds, strict=True)]
        if any(value.constant is FAILED for value in values):
            return Value("", made.result, start, constant=FAILED)
        if all(value.constant is not None for value in values):
            result = made.apply(*(value.constant for value in values))
            return Value("", made.result, start, constant=FAILED) if result is None else _constant(result, start)
        if not made.ours:
            raise self._next.error(f"{function} of an attribute cannot be expressed: it takes constants only", start)
        return Value(f"{function}({values[0].text})", made.result, start, sure=values[0].sure)

    def _arguments(self) -> list[Value | Truth]:
        self._next.expect("(", "'('")
        self._next.deeper()
        found: list[Value | Truth] = []
        if self._next.kind != ")":
            found.append(self.expression())
            while self._next.take(","):
                found.append(self.expression())
        self._next.expect(")", "',' or ')'")
        self._next.shallower()
        return found

    def _cast(self, of: Value | Truth, kind: str) -> Value:
        if isinstance(of, Truth):
            if of.when in (TRUE, FALSE) and of.unless in (TRUE, FALSE):
                failed = of.when is of.unless
                return self._cast(Value("", "bool", of.position, constant=FAILED if failed else of.when is TRUE), kind)
            raise self._next.error(f"a condition as a {kind} cannot be expressed: compare it with TRUE", of.position)
        if of.kind == kind:
            return of
        if of.constant is FAILED:
            return replace(of, kind=kind)
        if of.constant is not None:
            value = CAST[kind](of.constant)
            return Value("", kind, of.position, constant=FAILED) if value is None else _constant(value, of.position)
        if of.kind == ANY and kind == "string":
            return replace(of, kind="string")
        if of.kind == "timestamp" and kind != "string":
            return Value("", kind, of.position, constant=FAILED)
        return Value(f"{CASTS[kind]}({of.text})", kind, of.position, sure=of.sure and kind == "string")


def _joined(op: str, one: Truth, two: Truth) -> Truth:
    """AND, OR or XOR; the left side is evaluated first, and may decide alone."""
    if op == "AND":
        return Truth(
            both(one.when, two.when),
            either(one.unless, both(one.sound, two.unless)),
            both(one.sound, either(one.unless, two.sound)),
            one.position,
        )
    if op == "OR":
        return _joined("AND", one.opposite(), two.opposite()).opposite()
    return Truth(
        either(both(one.when, two.unless), both(one.unless, two.when)),
        either(both(one.when, two.when), both(one.unless, two.unless)),
        both(one.sound, two.sound),
        one.position,
    )


COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": lambda a, b: a == b,
    "<>": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


def _constant(value: Any, start: int) -> Value:
    kind = "bool" if isinstance(value, bool) else "int" if isinstance(value, int) else "string"
    negative = kind == "int" and value < 0
    return Value(literal(value), kind, start, SIGN if negative else 9, constant=value)


def _whole(value: Any, start: int) -> Value:
    """An integer, if it has 32 bits."""
    if value is None or value is FAILED or not SMALLEST <= value <= GREATEST:
        return Value("", "int", start, constant=FAILED)
    return _constant(value, start)


def _arithmetic(op: str, a: Any, b: Any) -> Any:
    if FAILED in (a, b):
        return FAILED
    if op in "/%":
        return (divide if op == "/" else remainder)(a, b)
    return a + b if op == "+" else a - b if op == "-" else a * b


def _wrapped(of: Value, strength: int) -> str:
    return f"({of.text})" if of.strength < strength else of.text


def _unquoted(token: str) -> str:
    return token[1:-1].replace(f"\\{token[0]}", token[0])


def _pattern(text: str) -> list[tuple[str, bool]]:
    r"""The characters of a LIKE pattern, and whether each is a wildcard; \% and \_ are not."""
    found: list[tuple[str, bool]] = []
    at = 0
    while at < len(text):
        if text[at] == "\\" and text[at + 1 : at + 2] in ("%", "_"):
            at += 1
            found.append((text[at], False))
        else:
            found.append((text[at], text[at] in "%_"))
        at += 1
    return found


# ---- constants


def _to_int(value: Any) -> int | None:
    if isinstance(value, str):
        if not re.fullmatch(r"[+-]?[0-9]{1,100}", value, re.ASCII):
            return None
        value = int(value)
    return int(value) if SMALLEST <= value <= GREATEST else None


def _to_bool(value: Any) -> bool | None:
    return {"true": True, "false": False}.get(value.lower()) if isinstance(value, str) else bool(value)


def _to_string(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


CAST: dict[str, Callable[[Any], Any]] = {"int": _to_int, "bool": _to_bool, "string": _to_string}


def _part(text: str, position: int, length: int | None = None) -> str | None:
    """SUBSTRING: positions count from 1, or from the end if they are negative."""
    if abs(position) > len(text) or (length is not None and length < 0):
        return None
    if position == 0:
        return ""
    start = position - 1 if position > 0 else len(text) + position
    return text[start:] if length is None else text[start : start + length]


@dataclass(frozen=True, slots=True)
class Function:
    """The kinds of its arguments (the last one may be repeated if it is `open`), that of its result, and what it does
    with constants; None is an error. `ours`: our language has it, under the same name."""

    kinds: tuple[str, ...]
    result: str
    apply: Callable[..., Any]
    ours: bool = False
    open: bool = False

    def takes(self, count: int) -> bool:
        return count >= len(self.kinds) - 1 if self.open else count == len(self.kinds)


FUNCTIONS = {
    "INT": Function(("int",), "int", _to_int, ours=True),
    "BOOL": Function(("bool",), "bool", _to_bool, ours=True),
    "STRING": Function(("string",), "string", _to_string, ours=True),
    "ABS": Function(("int",), "int", lambda a: abs(a) if a != SMALLEST else None, ours=True),
    "LENGTH": Function(("string",), "int", len, ours=True),
    "LOWER": Function(("string",), "string", lower, ours=True),
    "UPPER": Function(("string",), "string", upper, ours=True),
    "TRIM": Function(("string",), "string", lambda text: text.strip(WHITESPACE)),
    "CONCAT": Function(("string",), "string", lambda *texts: "".join(texts), open=True),
    "CONCAT_WS": Function(("string", "string"), "string", lambda mark, *texts: mark.join(texts), open=True),
    "LEFT": Function(("string", "int"), "string", lambda text, n: None if n < 0 else text[:n]),
    "RIGHT": Function(("string", "int"), "string", lambda text, n: None if n < 0 else text[max(0, len(text) - n) :]),
    "SUBSTRING/2": Function(("string", "int"), "string", _part),
    "SUBSTRING/3": Function(("string", "int", "int"), "string", _part),
}
