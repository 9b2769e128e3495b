"""Names in a predicate: which attribute, field or list a path means.

order.city                      an attribute of the event
OLD.price                       that of the event's old image
EXISTS(items WHERE sku = 'A')   inside, `sku` is a field of an item; what an item does not have is the event's
ANY(items.tags)                 a list in each object of a list
"""

from __future__ import annotations

from hitbox.encoding.schema import Attribute, Schema
from hitbox.errors import PredicateError, UnknownAttribute, nearest
from hitbox.language.limits import Limits
from hitbox.language.syntax.expressions import Expression, Field, ListPath, quoted
from hitbox.language.syntax.lexer import KEYWORDS
from hitbox.language.syntax.token_reader import TokenReader

MAX_SEGMENTS = 200
"""Of a path: no name of an attribute is longer."""
MAX_CROSSED = 1
"""Lists that are no part of the element in whose condition they stand, inside each other."""


class NameReader(TokenReader):
    __slots__ = ("crossed", "role", "scopes")

    def __init__(self, text: str, schema: Schema, role: str | None, limits: Limits):
        super().__init__(text, limits)
        self.role = role
        self.scopes = [schema]
        """The schema, and that of the objects of each list around."""
        self.crossed = 0
        """How many of the lists around are no part of the element that they stand in."""

    # ---- paths

    def segments(self) -> tuple[list[str], bool]:
        """The parts of a path, and whether the first one is quoted."""
        is_quoted = self.kinds[self.at] == "quoted"
        segments = [self.segment()]
        while self.kinds[self.at] == ".":
            self.at += 1
            if len(segments) > MAX_SEGMENTS:
                raise self.too_large(f"a path of more than {MAX_SEGMENTS} names")
            segments.append(self.segment())
        return segments, is_quoted

    def segment(self) -> str:
        kind, text = self.kinds[self.at], self.texts[self.at]
        if kind == "quoted":
            text = text[1:-1].replace('""', '"')
        elif kind != "name" and not (kind in KEYWORDS and self.at and self.kinds[self.at - 1] == "."):
            raise self.unexpected("a name")
        self.at += 1
        return text

    def path(self) -> Expression:
        """The attribute or field that a path means: of the innermost element that has it."""
        position = self.starts[self.at]
        segments, is_quoted = self.segments()
        if self.scopes[0].is_open:
            segments, level, image = self.open_path(segments, is_quoted, position)
            return Field(".".join(segments), -1, "any", position, level, image)
        name = ".".join(segments)
        for level in range(len(self.scopes) - 1, -1, -1):
            if name in self.scopes[level]:
                return self.field(name, level, "", position)
        rest, image = _without_image(segments, is_quoted)
        if image:
            name_in_image = ".".join(rest)
            if name_in_image in self.scopes[0]:
                return self.field(name_in_image, 0, image, position)
            if segments[0] not in self.scopes[0].objects:
                segments, name = rest, name_in_image
        raise self.unknown(segments, name, position)

    def field(self, name: str, level: int, image: str, position: int) -> Field:
        schema = self.scopes[level]
        attribute = schema[name]
        if not level:
            self.check_role(name, attribute, position)
        return Field(name, schema.number(name), attribute.type, position, level, self.image(image))

    def image(self, word: str) -> str:
        """How an image is kept: NEW is what is meant anyway, but inside EXISTS it may have to be said."""
        return "OLD" if word == "OLD" else "NEW" if word and len(self.scopes) > 1 else ""

    def check_role(self, name: str, attribute: Attribute, position: int) -> None:
        if self.role is not None and attribute.role != self.role:
            allowed = ", ".join(self.scopes[0].with_role(self.role)[:10]) or "none"
            raise UnknownAttribute(
                f"attribute {name!r} has the role {attribute.role!r}; here only {self.role!r} attributes may be named "
                f"(have: {allowed})",
                self.text,
                position,
            )

    def is_value(self) -> bool:
        """Whether a path to a declared attribute that is no list comes next."""
        start = self.at
        try:
            if self.kinds[start] not in ("name", "quoted") or self.is_list():
                return False
            field = self.path()
            return isinstance(field, Field) and field.number >= 0 and not field.type.endswith("[]")
        except PredicateError:
            return False
        finally:
            self.at = start

    # ---- names that no schema declares

    def open_path(self, segments: list[str], is_quoted: bool, position: int) -> tuple[list[str], int, str]:
        """The names, level and image of a path. Inside EXISTS it starts at the element, unless OLD or NEW is said."""
        segments, image = _without_image(segments, is_quoted)
        name = ".".join(segments)
        self.check_finite(name, position)
        if self.role == "information":
            raise UnknownAttribute(
                f"unknown attribute {name!r:.80}: without a schema, subscriptions say nothing about themselves",
                self.text,
                position,
            )
        return segments, 0 if image else len(self.scopes) - 1, self.image(image)

    def check_finite(self, name: str, position: int) -> None:
        if name.upper() in ("NAN", "INF", "INFINITY"):
            raise self.wrong_syntax(f"{name} is not a number that can be compared: write a finite one", position)

    # ---- lists

    def list_path(self) -> ListPath:
        """The list that a path means, or the error that it is none."""
        position = self.starts[self.at]
        segments, is_quoted = self.segments()
        if self.scopes[0].is_open:
            segments, level, image = self.open_path(segments, is_quoted, position)
            return ListPath(tuple(segments), -1, "any", position, level, image, self.scopes[0])
        path = self.any_list(segments, is_quoted, position)
        if path is None:
            name = ".".join(segments)
            if any(name in scope for scope in self.scopes):
                raise self.wrong_type(f"{quoted(name)} is not a list", position)
            raise self.unknown(segments, name, position)
        if not path.level:
            self.check_role(path.steps[0], self.scopes[0][path.steps[0]], position)
        return path

    def is_list(self) -> bool:
        """Whether a path to a list comes next."""
        start = self.at
        if self.kinds[start] not in ("name", "quoted") or self.kinds[start + 1] == "(":
            return False
        try:
            return self.any_list(*self.segments(), self.starts[start]) is not None
        finally:
            self.at = start

    def any_list(self, segments: list[str], is_quoted: bool, position: int) -> ListPath | None:
        """The list that a path leads to or through, perhaps in an image of the event."""
        path = self.find_list(segments, "", position)
        if path is None:
            rest, image = _without_image(segments, is_quoted)
            path = self.find_list(rest, image, position) if image else None
        return path

    def find_list(self, segments: list[str], image: str = "", position: int = 0) -> ListPath | None:
        for level in range(0 if image else len(self.scopes) - 1, -1, -1):
            schema: Schema | None = self.scopes[level]
            steps: list[str] = []
            rest = ".".join(segments).split(".")  # a quoted segment may be a path
            number = -1
            while schema is not None and rest:
                lengths = (length for length in range(len(rest), 0, -1) if ".".join(rest[:length]) in schema)
                length = next(lengths, None)
                if length is None:
                    break
                name, rest = ".".join(rest[:length]), rest[length:]
                attribute = schema[name]
                if not steps:
                    number = schema.number(name)
                    if not attribute.is_list:
                        break
                steps.append(name)
                if not rest:
                    where = self.image(image)
                    return ListPath(tuple(steps), number, attribute.element, position, level, where, attribute.fields)
                schema = attribute.fields
        return None

    def crossing(self, path: ListPath) -> bool:
        """Whether a list is no part of the element around it, so that each element meets each. Three such lists inside
        each other would take the product of their lengths per event."""
        crosses = path.level < len(self.scopes) - 1
        if self.crossed + crosses > MAX_CROSSED:
            raise self.too_large(
                f"{path} is the third list of which every element meets every one of two others: "
                "ask for it outside of the EXISTS around it",
                path.position,
            )
        return crosses

    # ---- what leads nowhere

    def unknown(self, segments: list[str], name: str, position: int) -> PredicateError:
        """The error of a path that leads to no attribute."""
        self.check_finite(name, position)
        schema = self.scopes[-1]
        path = self.find_list(segments)
        if path is not None:
            outer = quoted(path.steps[0])
            return self.wrong_type(
                f"{outer} is a list: write ANY({quoted(name)}), or EXISTS({outer} WHERE ...)", position
            )
        if name in schema.objects:
            fields = [known for known in schema if known.startswith(f"{name}.")]
            return self.wrong_type(
                f"{quoted(name)} is an object: name one of its fields ({', '.join(fields[:5])})", position
            )
        names = [known for scope in self.scopes for known in scope]
        hint = nearest(name, names) or f" (have: {', '.join(list(schema)[:10])})"
        if self.at >= 2 and self.kinds[self.at - 2] == "op":
            hint += " (a string is written in single quotes)"
        return UnknownAttribute(f"unknown attribute {name!r:.80}{hint}", self.text, position)


def _without_image(segments: list[str], is_quoted: bool) -> tuple[list[str], str]:
    """A path without the OLD or NEW at its start, and that word; "" if there is none."""
    if not is_quoted and len(segments) > 1 and segments[0].upper() in ("OLD", "NEW"):
        return segments[1:], segments[0].upper()
    return segments, ""
