"""Keys: the codecs of a schema, one an attribute, and the dictionaries behind its strings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hitbox.encoding.arrays import Space
from hitbox.encoding.codecs import (
    BoolCodec,
    Codec,
    FloatCodec,
    GridCodec,
    IntCodec,
    ListCodec,
    StringCodec,
    TimestampCodec,
)
from hitbox.encoding.schema import Attribute, Schema
from hitbox.encoding.string_dictionary import Dictionary, Relabel, Texts
from hitbox.errors import DamagedArray, SchemaError

PLAIN: dict[str, Callable[[], Codec]] = {
    "int": IntCodec,
    "float": FloatCodec,
    "bool": BoolCodec,
    "timestamp": TimestampCodec,
}


class Keys:
    """The codecs of a schema, one an attribute."""

    def __init__(self, schema: Schema, dictionaries: Mapping[str, Dictionary] | None = None):
        self.schema = schema
        self.shared = False
        """Several indexes hold keys of these dictionaries: none of them may forget a string."""
        found = dictionaries or {}
        self.codecs = [_codec(attribute, found.get(name)) for name, attribute in schema.items()]

    @cached_property
    def space(self) -> Space:
        domains = [codec.domain() for codec in self.codecs]
        information = tuple(i for i, a in enumerate(self.schema.values()) if a.role == "information")
        low = np.array([low for low, _ in domains], np.int64)
        return Space(low, np.array([high for _, high in domains], np.int64), information)

    @cached_property
    def dictionaries(self) -> dict[str, Dictionary]:
        named = zip(self.schema, self.codecs, strict=True)
        return {name: codec.dictionary for name, codec in named if isinstance(codec, StringCodec)}

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The dictionaries as flat arrays."""
        words = enumerate(self.dictionaries.values())
        return {f"dictionary{n}.{name}": array for n, d in words for name, array in d.arrays().items()}

    @classmethod
    def from_arrays(cls, schema: Schema, arrays: Mapping[str, NDArray[Any]]) -> Keys:
        names = [name for name, attribute in schema.items() if attribute.type == "string"]
        words = {}
        for n, name in enumerate(names):
            prefix = f"dictionary{n}."
            parts = {key.removeprefix(prefix): array for key, array in arrays.items() if key.startswith(prefix)}
            try:
                words[name] = Dictionary.from_arrays(parts)
            except DamagedArray as problem:
                raise DamagedArray(prefix + problem.name, problem.reason) from None
        return cls(schema, words)

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
