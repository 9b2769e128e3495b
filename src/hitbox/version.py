"""The version of hitbox; below everything else, so that any room may ask for it."""

from __future__ import annotations

__version__ = "0.1.0"
