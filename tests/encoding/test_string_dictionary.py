"""The ordered dictionary: order kept through growth in every pattern, until gaps run out and beyond."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from hitbox.encoding import string_dictionary
from hitbox.encoding.arrays import HIGHEST, LOWEST, MISSING
from hitbox.encoding.string_dictionary import Dictionary
from hitbox.errors import ValueProblem

TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=4)


def assert_ordered(words: Dictionary, known: set[str], others: list[str]) -> None:
    everything = sorted(known | set(others))
    keys = [words.key(text) for text in everything]
    for text, key in zip(everything, keys, strict=True):
        assert LOWEST <= key <= HIGHEST
        assert (key % 2 == 0) == (text in known)
        if text in known:
            assert words.string(key) == text
    for (one, low), (two, high) in zip(
        zip(everything, keys, strict=True), list(zip(everything, keys, strict=True))[1:], strict=False
    ):
        assert low < high or (low == high and one not in known and two not in known)
    column = pa.array([*everything, None])
    assert words.column(column).tolist() == [*keys, MISSING]
    assert words.column(column.dictionary_encode()).tolist() == [*keys, MISSING]


@given(st.lists(st.lists(TEXTS, max_size=5), max_size=8), st.lists(TEXTS, max_size=8))
def test_any_growth_keeps_the_order(batches: list[list[str]], others: list[str]) -> None:
    words, known = Dictionary(), set()
    for batch in batches:
        words.admit(batch)
        known |= set(batch)
        assert_ordered(words, known, others)
    again = Dictionary.from_arrays(words.arrays())
    assert_ordered(again, known, others)


class Bounds(RuleBasedStateMachine):
    """Bounds cut before a relabelling mean the same after it."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.known = Dictionary(), {"m"}
        self.words.admit(["m"])
        self.cuts: list[tuple[str, int, int]] = []

    @rule(texts=st.lists(st.text("abmz", max_size=12), min_size=1, max_size=3))
    def admit(self, texts: list[str]) -> None:
        relabel = self.words.admit(texts)
        self.known |= set(texts)
        if relabel and self.cuts:
            lows = relabel.lows(np.array([low for _, low, _ in self.cuts]))
            highs = relabel.highs(np.array([high for _, _, high in self.cuts]))
            names = [text for text, _, _ in self.cuts]
            self.cuts = list(zip(names, lows.tolist(), highs.tolist(), strict=True))

    @rule(data=st.data())
    def cut(self, data: st.DataObject) -> None:
        text = data.draw(st.sampled_from(sorted(self.known)))
        label = self.words.key(text)
        self.cuts += [(text, label, label), (text, label + 1, label - 1)]

    @invariant()
    def bounds_hold(self) -> None:
        for text, low, high in self.cuts[-20:]:
            for other in sorted(self.known)[:50]:
                key = self.words.key(other)
                if low <= high:  # text itself
                    assert (low <= key <= high) == (other == text)
                else:  # low is "> text", high is "< text"
                    assert (key >= low) == (other > text)
                    assert (key <= high) == (other < text)


@pytest.fixture(autouse=True)
def small_gaps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gaps of 16, so that they run out at once."""
    monkeypatch.setattr(string_dictionary, "LABEL_STRIDE", 16)
    monkeypatch.setattr(string_dictionary, "RUN_STEP", 4)


TestBounds = Bounds.TestCase


def test_gaps_run_out_in_the_middle() -> None:
    words, moved = Dictionary(), 0
    known = {"a", "z"}
    words.admit(known)
    for i in range(200):
        text = "a" + "b" * i + "c"
        moved += words.admit([text]) is not None
        known.add(text)
    assert moved > 3
    assert_ordered(words, known, ["", "a\U0001f600", "ab"])


def test_strings_in_order_take_small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    words = Dictionary()
    words.admit(["a", "z"])
    assert not any(words.admit([f"m{i:05d}"]) for i in range(3000))
    assert not any(words.admit([f"k{i:05d}"]) for i in range(3000, 0, -1))


def test_bulk_growth_between_neighbours() -> None:
    words = Dictionary()
    words.admit(["a", "b"])
    many = [f"a{i:04d}" for i in range(500)]
    assert words.admit(many) is not None
    assert_ordered(words, {"a", "b", *many}, ["a00005"])


def test_lone_surrogates_are_refused() -> None:
    with pytest.raises(ValueProblem, match="surrogate"):
        Dictionary().admit(["\udfff"])


def test_empty_columns() -> None:
    words = Dictionary()
    assert words.column(pa.array([], pa.string())).tolist() == []
    assert words.column(pa.chunked_array([], pa.string())).tolist() == []
    assert words.key("x") == LOWEST
