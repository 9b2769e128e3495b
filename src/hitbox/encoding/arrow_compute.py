"""pyarrow.compute, imported when one of its functions is first used: `from hitbox.encoding import arrow_compute as pc`.

Importing pyarrow.compute takes half as long as all other imports together, and an index that subscribes and matches one
event at a time never needs it.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    if name.startswith("__"):  # what inspect and the import system ask of every module
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import pyarrow.compute

    found = globals()[name] = getattr(pyarrow.compute, name)
    return found
