"""The subscription language: text -> tree -> boxes, and why an event matched or did not.

    parse      text -> Predicate, checked against a schema           syntax/
    compile    Predicate -> boxes of keys, and what they leave open  boxes/, programs/
    evaluate   Predicate, event -> true, false or unknown            truth
    explain    Predicate, event -> a tree of reasons                 explanations/

What conditions compare with (patterns, networks, places) is in conditions/.

It is a subset of SQL's WHERE; ARCHITECTURE.md lists where it differs on purpose.
"""

from __future__ import annotations

from hitbox.encoding.schema import Schema
from hitbox.language.boxes.normal import Compiled, compile, derived, most_boxes, never, strings
from hitbox.language.conditions.patterns import Pattern
from hitbox.language.explanations.explanation import Explanation, explain
from hitbox.language.explanations.misses import Change
from hitbox.language.explanations.reasons import Reason
from hitbox.language.limits import DEFAULT_LIMITS, Limits
from hitbox.language.programs.programs import NO_PROGRAMS, Program, Programs
from hitbox.language.syntax.parser import parse
from hitbox.language.syntax.tree import Branch, Leaf, Predicate
from hitbox.language.truth import evaluate

__all__ = [
    "DEFAULT_LIMITS",
    "NO_PROGRAMS",
    "Branch",
    "Change",
    "Compiled",
    "Explanation",
    "Leaf",
    "Limits",
    "Pattern",
    "Predicate",
    "Program",
    "Programs",
    "Reason",
    "Schema",
    "compile",
    "derived",
    "evaluate",
    "explain",
    "most_boxes",
    "never",
    "parse",
    "strings",
]
