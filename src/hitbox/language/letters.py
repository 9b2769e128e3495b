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
    if text.isascii():
        return text.lower()
    return "".join("i" if c == "\u0130" else c.lower() for c in text)


def upper(text: str) -> str:
    """
    >>> upper("àς\u1f80ß")
    'ÀΣ\u1f88ß'
    """
    return text.upper() if text.isascii() else "".join(map(_capital, text))


def _capital(c: str) -> str:
    for found in (c.upper(), c.title()):  # where the capital is several letters, the simple one is the title's
        if len(found) == 1:
            return found
    return c
