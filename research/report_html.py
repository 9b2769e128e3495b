"""Pieces of HTML that all pages of the report share, and the stylesheet and the script beside them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources

from research import plots
from research.rules import DIRECTION, FACTOR, FAILS, NOT_COMPARABLE, UNDECIDED

STYLE, SCRIPT = "report.css", "report.js"
SIGNS = {FACTOR: "✓", DIRECTION: "→", FAILS: "✗", UNDECIDED: "?", NOT_COMPARABLE: "–"}
CSS = {FACTOR: "factor", DIRECTION: "direction", FAILS: "fails", UNDECIDED: "undecided", NOT_COMPARABLE: "incomparable"}
MEANINGS = {
    FACTOR: "The direction is the paper's, and our number is near the paper's.",
    DIRECTION: "The direction is the paper's. It gives no number, or ours is another one.",
    FAILS: "The opposite holds here.",
    UNDECIDED: "The interval straddles the threshold, or the two are within the margin.",
    NOT_COMPARABLE: "An absolute time of other hardware, or not measured.",
}


def document(heading: str, links: Iterable[tuple[str, str]], here: str, body: str) -> str:
    """A page, with the files of `shared` beside it; `links`: (file, text) of all pages, `here` the file of this one."""
    entries = "".join(
        f"<li><a href='{file}'{' aria-current=page' if file == here else ''}>{escape(text)}</a></li>"
        for file, text in links
    )
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        f"<title>hitbox: {escape(heading)}</title><link rel='icon' href='data:,'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<link rel='stylesheet' href='{STYLE}'></head><body>"
        "<a class='skip' href='#main'>Skip to the content</a>"
        f"<nav aria-label='Papers'><ul>{entries}</ul></nav>"
        f"<main id='main'>{body}</main><script src='{SCRIPT}'></script></body></html>\n"
    )


def shared() -> dict[str, str]:
    """File name -> what all pages link to."""
    return {STYLE: _asset(STYLE) + plots.style_sheet(), SCRIPT: _asset(SCRIPT)}


def _asset(name: str) -> str:
    return resources.files("research").joinpath(name).read_text("utf-8")


def table(head: Sequence[str], rows: str, caption: str = "", css: str = "") -> str:
    """`head`: texts, or cells that are made already; `rows` are made already."""
    cells = "".join(text if text.startswith("<th") else f"<th scope='col'>{escape(text)}</th>" for text in head)
    words = f"<caption>{escape(caption)}</caption>" if caption else ""
    kind = f" class='{css}'" if css else ""
    return f"<table{kind}>{words}<thead><tr>{cells}</tr></thead><tbody>{rows}</tbody></table>"


def scroll(label: str, wide: str) -> str:
    """A wide table scrolls by itself, by keyboard too; the page does not."""
    return f"<div class='scroll' role='region' tabindex='0' aria-label='{escape(label, quote=True)}'>{wide}</div>"


def details(summary: str, body: str, css: str = "", opened: bool = False) -> str:
    kind = f" class='{css}'" if css else ""
    return f"<details{kind}{' open' * opened}><summary>{escape(summary)}</summary>{body}</details>"


def items(entries: Iterable[str]) -> str:
    """A list of texts that are HTML already."""
    return "<ul>" + "".join(f"<li>{entry}</li>" for entry in entries) + "</ul>"


def verdict(name: str) -> str:
    return f"<span class='verdict {CSS[name]}'>{SIGNS[name]} {name}</span>"


def count(number: int, noun: str) -> str:
    """
    >>> count(1, "claim"), count(1200, "claim")
    ('1 claim', '1,200 claims')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]
