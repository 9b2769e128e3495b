"""Lower and upper case: Unicode's simple mappings, one code point for one.

So the length of a text stays, a text has one lower case whatever stands beside a letter (no final sigma), and native
code can do the same with a table. A letter whose capital is several letters stays as it is: the capital of ß is ß.
"""

from __future__ import annotations


def lower(text: str) -> str:
    """
    >>> lower("ÀΣß"), lower("\u0130")
    ('àσß', 'i')
    """
    if not text.isascii():  # the only two letters whose lower case, to Python, depends on more than the letter
        text = text.replace("\u0130", "i").replace("\u03a3", "\u03c3")
    return text.lower()


def upper(text: str) -> str:
    """
    >>> upper("àς\u1f80ß")
    'ÀΣ\u1f88ß'
    """
    found = text.upper()
    if len(found) == len(text):  # no capital is shorter than its letter, so each is one letter
        return found
    capitals = {c: _capital(c) for c in set(text)}
    return "".join(map(capitals.__getitem__, text))


def folded(text: str, capitals: bool) -> str:
    return upper(text) if capitals else lower(text)


def _capital(c: str) -> str:
    for found in (c.upper(), c.title()):  # where the capital is several letters, the simple one is the title's
        if len(found) == 1:
            return found
    return c
