"""Values in a predicate: literals, arithmetic, functions, and what stands in parentheses.

    (price - 1) * 2      LOWER(name)      TIMESTAMP '2026-01-31'      ANY(tags)      EXISTS(items WHERE price > 3)

A condition in parentheses may stand where a value may, and parentheses around a value are no condition yet. So what is
read here is an Item: either of them.
"""

from __future__ import annotations

from hitbox.errors import SyntaxProblem, nearest
from hitbox.language.conditions.durations import duration, zone
from hitbox.language.conditions.places import is_place
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
    Literal,
    Now,
    Verdict,
    binary,
    call,
    negative,
)
from hitbox.language.syntax.literals import as_double, number, short, string, timestamp
from hitbox.language.syntax.name_reader import NameReader
from hitbox.language.syntax.tree import MACHINES, NODES, Branch, Item, Node, Quantifier, Test
from hitbox.language.syntax.type_rules import compare, decided, operands, scalar, typed

SPECIAL = frozenset(["ANY", "ALL", "EXISTS", "NOW", "INSIDE"])
"""Functions whose arguments are not just values."""
MAX_OPERANDS = 100
"""Of one chain of + - * / %: such a chain is a deep tree."""


class ValueReader(NameReader):
    __slots__ = ()

    def predicate(self, depth: int) -> Item:
        """What stands in parentheses or as an argument: conditions, or a value. parser.py says how they are read."""
        raise NotImplementedError

    def condition(self, item: Item) -> Node:
        """An item as a condition; a bool is short for `= TRUE`."""
        if isinstance(item, NODES):
            return item
        if isinstance(item, Verdict):
            return item.condition  # type: ignore[no-any-return]
        if isinstance(item, Constant) and isinstance(item.literal, bool):
            return Branch("TRUE" if item.literal else "FALSE", (), item.position)
        item = typed(item, "bool", self.text)
        if item.type == "bool":
            return compare(item, "=", Constant(True, "bool", item.position), item.position, self.text)
        if isinstance(item, Field) and not item.old and not item.level:
            scalar(item, self.text)
            raise self.unexpected(f"a comparison of the {item.type} attribute {item.name!r}")
        raise self.unexpected(f"a comparison after {short(str(item))}")

    # ---- arithmetic

    def arithmetic(self, depth: int) -> Item:
        """Operands with + - * / % between them, without recursion."""
        first = self.operand(depth)
        if self.kinds[self.at] not in LOOSE:
            return first
        values = [scalar(first, self.text)]
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
                raise self.too_large(f"more than {MAX_OPERANDS} operators in one expression", place)
            values.append(scalar(self.operand(depth), self.text))
        while pending:
            self.apply(values, *pending.pop())
        return values[0]

    def apply(self, values: list[Expression], op: str, place: int) -> None:
        """Replace the last two values by what an operator makes of them."""
        right, left = values.pop(), values.pop()
        left, right = operands(left, op, right, self.text)
        result = binary(op, left, right, left.position)
        if result is None:
            raise self.wrong_type(
                f"{op} is not for {left.type} and {right.type}: it takes numbers, or times and intervals", place
            )
        values.append(result)

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
            raise self.wrong_syntax("nothing compares with NULL: write IS NULL or IS NOT NULL", position)
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
            literal = number(sign + self.texts[self.at], self.text, position)
            self.at += 1
            return Constant(literal, LITERAL_TYPES[type(literal)], position)
        value = typed(scalar(self.operand(depth), self.text), "number", self.text)
        opposite = negative(value, position)
        if opposite is None:
            raise self.wrong_type(f"a sign is for numbers, and {short(str(value))} is of type {value.type}", position)
        return opposite if minus else value

    def literal(self) -> Expression:
        value = self.literal_at(self.at)
        self.at += 1
        return Constant(value, LITERAL_TYPES[type(value)], self.starts[self.at - 1])

    def literal_at(self, at: int) -> Literal:
        kind = self.kinds[at]
        if kind == "number":
            return number(self.texts[at], self.text, self.starts[at])
        return string(self.texts[at]) if kind == "string" else kind == "TRUE"

    def named(self, depth: int) -> Item:
        """What starts with a word: TIMESTAMP '...', INTERVAL '...', a function or a path."""
        following, position = self.kinds[self.at + 1], self.starts[self.at]
        word = self.texts[self.at].upper()
        if following == "(":
            return self.function(word, depth, position)
        if following != "string" or word not in ("TIMESTAMP", "INTERVAL"):
            return self.path()
        text, place = self.texts[self.at + 1], self.starts[self.at + 1]
        self.at += 2
        if word == "TIMESTAMP":
            return Constant(timestamp(string(text), self.text, place), "timestamp", position)
        try:
            return Constant(duration(string(text)), "duration", position)
        except ValueError as problem:
            raise self.wrong_syntax(f"INTERVAL {short(text)}: {problem}", place) from None

    # ---- functions

    def function(self, name: str, depth: int, position: int) -> Item:
        if name not in FUNCTIONS and name not in SPECIAL:
            raise self.unknown_function(name, position)
        self.at += 2
        self.check_depth(depth + 1)
        if name == "NOW":
            self.expect(")", "')': NOW takes nothing")
            return Now(position)
        if name in ("ANY", "ALL"):
            return self.element(name, position)
        if name == "EXISTS":
            return self.exists(depth, position)
        if name == "LENGTH" and not self.scopes[-1].is_open and self.is_list():
            return self.length(position)
        arguments = self.arguments(depth)
        if name == "INSIDE":
            return self.inside(arguments, position)
        self.check_arguments(name, arguments, FUNCTIONS[name][0], FUNCTIONS[name][1], position)
        if name in ("HOUR", "DAY_OF_WEEK") and arguments[1:]:
            self.check_zone(arguments[1])
        if name == "DISTANCE":
            self.check_places(arguments)
        return call(name, tuple(arguments), position)

    def unknown_function(self, name: str, position: int) -> SyntaxProblem:
        as_written, known = self.texts[self.at], [*FUNCTIONS, *SPECIAL]
        hint = nearest(name, known) or f" (have: {', '.join(sorted(known))})"
        if as_written in self.scopes[-1]:
            hint = f": {as_written!r} is an attribute, and an operator has to come before the '('"
        return self.wrong_syntax(f"unknown function {short(as_written)}{hint}", position)

    def arguments(self, depth: int) -> list[Expression]:
        arguments: list[Expression] = []
        if self.kinds[self.at] != ")":
            arguments.append(scalar(self.predicate(depth + 1), self.text))
            while self.kinds[self.at] == ",":
                self.at += 1
                arguments.append(scalar(self.predicate(depth + 1), self.text))
        self.expect(")", "',' or ')'")
        return arguments

    def check_arguments(
        self, name: str, arguments: list[Expression], types: tuple[tuple[str, ...], ...], least: int, position: int
    ) -> None:
        """Their number and types. What is not declared takes the type that the function wants."""
        if not least <= len(arguments) <= len(types):
            count = str(least) if least == len(types) else f"{least} or {len(types)}"
            raise self.wrong_syntax(
                f"{name} takes {count} argument{'s' if count != '1' else ''}, not {len(arguments)}", position
            )
        for at, (argument, wanted) in enumerate(zip(arguments, types, strict=False)):
            if "any" not in wanted:
                argument = arguments[at] = typed(argument, wanted[0], self.text)
            if argument.type not in wanted:
                kind = "a number" if wanted == NUMBERS else f"a {wanted[0]}"
                raise self.wrong_type(
                    f"{name} takes {kind} here, and {short(str(argument))} is of type {argument.type}",
                    argument.position,
                )

    def check_zone(self, argument: Expression) -> None:
        if not isinstance(argument, Constant):
            raise self.wrong_type("the time zone is a text in quotes, as in 'Europe/Paris'", argument.position)
        try:
            zone(str(argument.literal))
        except ValueError as problem:
            raise self.wrong_syntax(str(problem), argument.position) from None

    def check_places(self, coordinates: list[Expression]) -> None:
        """Latitudes and longitudes that are literals must be in range."""
        for at, coordinate in enumerate(coordinates):
            if isinstance(coordinate, Constant):
                value = float(coordinate.plain)
                if not (is_place(value, 0) if at % 2 == 0 else is_place(0, value)):
                    what = "a latitude is from -90 to 90" if at % 2 == 0 else "a longitude is from -180 to 180"
                    raise self.wrong_type(f"{what}, and the latitude comes first", coordinate.position)

    def check_machine(self, name: str, text: str, place: int) -> None:
        """Check the text of a regular expression, a network or a polygon."""
        try:
            MACHINES[name](text)
        except ValueError as problem:
            raise self.wrong_syntax(f"{name} {short(repr(text))}: {problem}", place) from None

    def inside(self, arguments: list[Expression], position: int) -> Node:
        self.check_arguments("INSIDE", arguments, (NUMBERS, NUMBERS, ("string",)), 3, position)
        *place, area = arguments
        self.check_places(place)
        if not isinstance(area, Constant):
            raise self.wrong_type("the polygon is a text in quotes: 'POLYGON ((lon lat, ...))'", area.position)
        text = str(area.literal)
        self.check_machine("INSIDE", text, area.position)
        node = Test("INSIDE", tuple(map(as_double, place)), position, (text,))
        return decided(node) if all(isinstance(coordinate, Constant) for coordinate in place) else node

    # ---- functions of lists

    def element(self, name: str, position: int) -> Expression:
        """ANY or ALL of a list, or of a value, which is its only element then."""
        if self.is_value():
            value = self.path()
            self.expect(")", f"')': {name} takes a list or an attribute")
            return value
        path = self.list_path()
        self.expect(")", f"')': {name} takes a list")
        if path.type == "object":
            raise self.wrong_type(
                f"{path} is a list of objects: write EXISTS({path} WHERE ...), or {name}({path}.field)", path.position
            )
        self.crossing(path)
        return Element(name, path, len(self.scopes), position)

    def length(self, position: int) -> Expression:
        path = self.list_path()
        self.expect(")", "')'")
        if len(path.steps) > 1:
            raise self.wrong_type(
                f"LENGTH is for one list, and {path} is in every element of another one", path.position
            )
        return Length(path, position)

    def exists(self, depth: int, position: int) -> Node:
        path = self.list_path()
        if path.fields is None:
            raise self.wrong_type(f"EXISTS is for lists of objects: write ANY({path}) = ... for {path}", path.position)
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
