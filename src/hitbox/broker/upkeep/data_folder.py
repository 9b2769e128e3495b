"""The folder in which a broker keeps its data: what may lie there, and errors that name it."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from hitbox.errors import HitboxError

OWN_FILES = re.compile(
    r"hitbox\.db(-wal|-shm)?|beacon|reserve|lock|snapshots|backup\.partial(\.lock)?"
    r"|backup-.*|damaged-.*\.json|lost\+found|\..*"
)
"""What a broker writes into its folder, what a new disk has (lost+found), and hidden files of shells and desktops."""


def has_store(folder: Path) -> bool:
    return (folder / "hitbox.db").exists()


def check_folder(folder: Path) -> None:
    """Raise BadFolder for a file, and for a folder with the files of another program instead of a broker's."""
    if folder.exists() and not folder.is_dir():
        raise BadFolder(f"cannot use the folder {folder}: it is a file; name a new folder, or that of a broker")
    if not folder.exists() or has_store(folder):
        return
    strange = sorted(name for name in os.listdir(folder) if not OWN_FILES.fullmatch(name))
    if strange:
        some = ", ".join(strange[:3]) + (", ..." if len(strange) > 3 else "")
        raise BadFolder(
            f"cannot use the folder {folder}: it holds no broker, but other files ({some}); name a new or an empty "
            "folder, or that of a broker"
        )


@contextlib.contextmanager
def folder_errors(data: Path) -> Iterator[None]:
    """Turn errors of the file system and the database into BadFolder, which names the folder."""
    import apsw  # only where a folder is used: importing it takes time

    try:
        yield
    except OSError as problem:
        where = f" ({problem.filename})" if problem.filename not in (None, str(data)) else ""
        raise BadFolder(f"cannot use the folder {data}: {problem.strerror or problem}{where}") from problem
    except UnicodeEncodeError:
        raise BadFolder(f"cannot use the folder {str(data)!a}: its name is not UTF-8, which SQLite needs") from None
    except apsw.Error as problem:
        raise BadFolder(f"cannot use the store in the folder {data}: {problem}") from problem


class BadFolder(HitboxError):
    """The broker's folder cannot be read or written."""
