"""Keys: the codecs of a schema, one an attribute, and the dictionaries behind its strings.

Attributes have numbers: first those of the schema, then those that are derived from them, which come and go with the
subscriptions that need them. A number of the second kind that nobody uses is used again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hitbox.encoding.arrays import Space
from hitbox.encoding.codecs import PLAIN, AnyCodec, Codec, DurationCodec, GridCodec, ListCodec, NumberCodec, StringCodec
from hitbox.encoding.documents import Document
from hitbox.encoding.schema import Attribute, Schema
from hitbox.encoding.string_dictionary import Dictionary, Relabel, Texts
from hitbox.errors import DamagedArray, SchemaError

DERIVED: dict[str, Callable[[], Codec]] = PLAIN | {"duration": DurationCodec, "number": NumberCodec, "any": AnyCodec}
"""The codecs of derived attributes, which may be of more types."""


class Derived(Protocol):
    """A function of some attributes that has keys of its own (derived.py)."""

    @property
    def text(self) -> str:
        """What it is called: equal texts mean equal functions."""

    @property
    def type(self) -> str: ...

    @property
    def attributes(self) -> Mapping[str, int]:
        """The attributes that it cannot do without, and their numbers."""

    @property
    def value(self) -> Callable[[Document], Any]:
        """Its plain value for an event; None for NULL, and SOMETHING if it depends on one (documents.py)."""

    @property
    def is_attribute(self) -> bool:
        """Whether it is an attribute itself, which nobody declared."""

    @property
    def is_detail(self) -> bool:
        """Whether it has no key in a point: it is a list of plain values, or a text."""

    @property
    def native(self) -> tuple[Any, ...] | None:
        """How native code computes it (engine/document_plan.py); None if it cannot."""

    def to_json(self) -> Any: ...


class _Nothing:
    """Holds the place of the first attribute of an open schema: no space is without attributes."""

    text, type, attributes = "NULL", "any", MappingProxyType[str, int]({})
    is_attribute, is_detail, native = True, False, None

    @staticmethod
    def value(values: Document) -> None:
        return None

    def to_json(self) -> Any:
        return None


NOTHING = _Nothing()


class Keys:
    """The codecs of a schema, one an attribute, and of what is derived from its attributes."""

    def __init__(
        self, schema: Schema, dictionaries: Mapping[int, Dictionary] | None = None, derived: Sequence[Derived] = ()
    ):
        self.schema = schema
        self.shared = False
        """Several indexes hold keys of these dictionaries: none of them may forget a string."""
        found = dictionaries or {}
        if schema.is_open and not derived:
            derived = [NOTHING]
        self.codecs = [_codec(attribute, found.get(n)) for n, attribute in enumerate(schema.values())]
        self.codecs += [derived_codec(one, found.get(n)) for n, one in enumerate(derived, len(schema))]
        self._set_derived(list(derived))

    def _set_derived(self, derived: list[Derived]) -> None:
        self.derived = derived
        self._numbers = {one.text: number for number, one in enumerate(derived, len(self.schema))}
        domains = [codec.domain() for codec in self.codecs]
        information = tuple(i for i, a in enumerate(self.schema.values()) if a.role == "information")
        low = np.array([low for low, _ in domains], np.int64)
        self.space = Space(low, np.array([high for _, high in domains], np.int64), information)
        self.dictionaries = {
            n: codec.dictionary for n, codec in enumerate(self.codecs) if isinstance(codec, StringCodec)
        }
        """By the number of the attribute."""

    def number_of(self, derived: Derived) -> int | None:
        """The number of a derived attribute, if it has keys here."""
        return self._numbers.get(derived.text)

    def with_derived(self, places: Mapping[int, Derived]) -> Keys:
        """These keys, and those of more derived attributes, by their numbers: new ones, or ones that nobody uses."""
        other = copy(self)
        other.codecs, derived = list(self.codecs), list(self.derived)
        for number, one in sorted(places.items()):
            at = number - len(self.schema)
            derived[at : at + 1] = [one]
            other.codecs[number : number + 1] = [derived_codec(one, None)]
        other._set_derived(derived)
        return other

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The dictionaries as flat arrays."""
        words = enumerate(self.dictionaries.values())
        return {f"dictionary{n}.{name}": array for n, d in words for name, array in d.arrays().items()}

    @classmethod
    def from_arrays(cls, schema: Schema, arrays: Mapping[str, NDArray[Any]], derived: Sequence[Derived] = ()) -> Keys:
        types = [attribute.type for attribute in schema.values()] + [one.type for one in derived]
        words = {}
        for n, number in enumerate(number for number, type_ in enumerate(types) if type_ == "string"):
            prefix = f"dictionary{n}."
            parts = {key.removeprefix(prefix): array for key, array in arrays.items() if key.startswith(prefix)}
            try:
                words[number] = Dictionary.from_arrays(parts)
            except DamagedArray as problem:
                raise DamagedArray(prefix + problem.name, problem.reason) from None
        return cls(schema, words, derived)

    def knows(self, strings: Mapping[int, Texts]) -> bool:
        """Do all of these strings have labels?"""
        return all(
            self.codecs[number].key(text) % 2 == 0
            for number, texts in strings.items()
            for text in (texts.to_pylist() if isinstance(texts, pa.Array) else texts)
        )

    def admit(self, strings: Mapping[int, Texts]) -> dict[int, Relabel]:
        """Give labels to the strings that predicates speak of; what comes back must be applied to the keys held."""
        relabels, commit = self.admitting(strings)
        commit()
        return relabels

    def admitting(self, strings: Mapping[int, Texts]) -> tuple[dict[int, Relabel], Callable[[], None]]:
        """Prepare to `admit`: what is to be applied to the keys held, and the commit, which must be alone."""
        relabels: dict[int, Relabel] = {}
        commits: list[Callable[[], None]] = []
        for number, texts in strings.items():
            codec = self.codecs[number]
            if not isinstance(codec, StringCodec):
                raise SchemaError(f"attribute {self.schema.names[number]!r} is not a string attribute")
            relabel, commit = codec.dictionary.admitting(texts)
            commits.append(commit)
            if relabel:
                relabels[number] = relabel

        def commit_all() -> None:
            for commit in commits:
                commit()

        return relabels, commit_all


def _codec(attribute: Attribute, dictionary: Dictionary | None) -> Codec:
    if attribute.is_list:
        return ListCodec(attribute)
    if attribute.domain:
        return GridCodec(attribute)
    if attribute.type == "string":
        return StringCodec(dictionary)
    return PLAIN[attribute.type]()


def derived_codec(one: Derived, dictionary: Dictionary | None) -> Codec:
    if one.type == "string":
        return StringCodec(dictionary)
    return DERIVED[one.type]()
