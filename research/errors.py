"""The error that users of the benchmarks see."""

from __future__ import annotations

from hitbox.errors import HitboxError


class BenchError(HitboxError):
    """A benchmark cannot be run as asked, or a matcher gave a wrong answer."""
