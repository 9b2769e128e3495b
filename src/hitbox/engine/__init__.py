"""The engine: the matcher `hitbox`, what `auto` picks. Kernels in C++ (src/engine), everything above them here."""

from hitbox.engine.engine import Engine

__all__ = ["Engine"]
