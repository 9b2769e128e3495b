"""Draws docs/terminal.svg, the animated terminal of the README, from statements that are really run.

python tools/draw_terminal.py
"""

from __future__ import annotations

import contextlib
import html
import io
from pathlib import Path

STATEMENTS = [
    "import hitbox",
    "index = hitbox.Index({'price': 'float', 'city': 'string'})",
    "index.subscribe('alice', \"price BETWEEN 10 AND 20 AND city = 'Paris'\", priority=7)",
    "index.subscribe('bob', \"price < 15 OR city LIKE '%burg'\")",
    "index.match({'price': 12.5, 'city': 'Paris'})      # most urgent first",
    "print(index.explain({'price': 22, 'city': 'Paris'}, 'alice'))",
]
WIDTH, LINE, LEFT, TOP = 860, 21, 18, 44
PAUSE, END = 0.9, 6.0


def run() -> list[tuple[str, bool]]:
    """(line, is it typed?) of the session."""
    names: dict[str, object] = {}
    lines = []
    for statement in STATEMENTS:
        lines.append((f">>> {statement}", True))
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            try:
                value = eval(statement, names)
            except SyntaxError:
                exec(statement, names)
                value = None
        if value is not None:
            print(repr(value), file=printed)
        lines += [(line, False) for line in printed.getvalue().splitlines()]
    return lines


def draw(lines: list[tuple[str, bool]]) -> str:
    """An SVG in which the lines appear one after the other, then all of them stay for a while."""
    starts, now = [], 0.4
    for _, typed in lines:
        now += PAUSE if typed else 0.06
        starts.append(now)
    total = now + END
    height = TOP + LINE * len(lines) + 12
    rules, texts = [], []
    for number, ((text, typed), start) in enumerate(zip(lines, starts, strict=True)):
        share = 100 * start / total
        rules.append(f"@keyframes l{number}{{0%,{share:.2f}%{{opacity:0}}{share + 0.01:.2f}%,100%{{opacity:1}}}}")
        style = f"animation:l{number} {total:.1f}s infinite"
        kind = "typed" if typed else "good" if "✓" in text else "bad" if "✗" in text else "out"
        place = f'x="{LEFT}" y="{TOP + LINE * number}"'
        texts.append(f'<text class="{kind}" {place} style="{style}" xml:space="preserve">{html.escape(text)}</text>')
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img"'
            ' aria-label="A Python session: subscribe, match, explain">',
            "<style>text{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}"
            ".typed{fill:#e6edf3}.out{fill:#9fb3c8}.good{fill:#7ee787}.bad{fill:#ffa198}",
            "@media (prefers-reduced-motion:reduce){text{animation:none!important}}",
            *rules,
            "</style>",
            f'<rect width="{WIDTH}" height="{height}" rx="10" fill="#0d1117"/>',
            '<circle cx="20" cy="17" r="5" fill="#ff5f57"/><circle cx="38" cy="17" r="5" fill="#febc2e"/>'
            '<circle cx="56" cy="17" r="5" fill="#28c840"/>',
            *texts,
            "</svg>\n",
        ]
    )


if __name__ == "__main__":
    (Path(__file__).parent.parent / "docs" / "terminal.svg").write_text(draw(run()))
