"""Paths and addresses: one spelling for every way to write a place, and one way to open it.

    /data/x   x   ~/x   file:/x   file:///x     a folder of this machine, in every host's own filesystem
    dbfs:/x                                     the same: Databricks mounts it at /dbfs/x
    s3://b/x  s3a://b/x  s3n://b/x              S3; endpoint, region and the like as a query: ?endpoint_override=...
    gs://b/x  gcs://b/x                         Google Cloud Storage
    abfs://container@account.dfs.core.windows.net/x     Azure (abfss:// as well)
    hdfs:/x   hdfs://host:8020/x   viewfs://...         Hadoop, as the environment configures it
    fsspec+NAME://...   hf://...                        what fsspec supports, if it is installed

`resolve` gives each place one spelling: an absolute local path, or `scheme://...`. An address is a URI, so `%20` means
a space there; a plain path is taken as it is. Anything else that looks like `scheme:` is an error before anything is
written.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from hitbox.errors import SnapshotError

SAME = {"s3a": "s3", "s3n": "s3", "gcs": "gs"}
NEED_HOST = {"s3": "bucket", "gs": "bucket", "abfs": "container@account", "abfss": "container@account"}
REMOTE = ("s3", "gs", "abfs", "abfss", "hdfs", "viewfs", "hf")
KNOWN = (
    "a path",
    "file:",
    "dbfs:",
    "s3:// (s3a, s3n)",
    "gs:// (gcs)",
    "abfss:// (abfs)",
    "hdfs:",
    "viewfs://",
    "hf://",
)
ONLY_SPARK = (
    "adl",
    "alluxio",
    "cosn",
    "ftp",
    "obs",
    "ofs",
    "oss",
    "sftp",
    "swebhdfs",
    "swift",
    "wasb",
    "wasbs",
    "webhdfs",
)
"""Schemes that Hadoop supports and pyarrow does not: for tables that Spark writes, not for snapshots."""

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9.+-]+):")
_SECRET = re.compile(r"((?:key|secret|token|password|sig)[^=&]*=)[^&]*", re.IGNORECASE)


def resolve(address: str | os.PathLike[str]) -> str:
    """The one spelling of a place: an absolute path, or an address that `connect` opens.

    >>> resolve("file:/data/my%20ads")
    '/data/my ads'
    >>> resolve("s3a://bucket/ads/?region=eu-west-1")
    's3://bucket/ads?region=eu-west-1'
    """
    text = checked(address)
    scheme = scheme_of(text)
    if scheme is None:
        return os.path.abspath(os.path.expanduser(text))
    if scheme in ("file", "dbfs"):
        return _mounted(text, scheme)
    scheme = SAME.get(scheme, scheme)
    if scheme not in REMOTE and not scheme.startswith("fsspec+"):
        raise SnapshotError(
            f"{without_passwords(text)}: hitbox does not support the scheme {scheme!r}; it supports {', '.join(KNOWN)} "
            f"and fsspec+NAME:// (for a local folder of that name write ./{text})"
        )
    host, path, query = _split(text)
    if scheme in NEED_HOST and (not host or (scheme.startswith("abfs") and "@" not in host)):
        raise SnapshotError(
            f"{without_passwords(text)} names no {NEED_HOST[scheme]}; write {scheme}://{NEED_HOST[scheme]}/path"
            " (a Path object loses one of the two slashes: give a string)"
        )
    quoted = quote(path, safe="/%:@!$&'()*+,;=~") if re.fullmatch(r"(?:[^%]|%[0-9A-Fa-f]{2})*", path) else quote(path)
    return f"{scheme}://{host}{quoted.rstrip('/')}{query}"


def checked(address: str | os.PathLike[str]) -> str:
    """The text of a path or address, checked for what no filesystem accepts."""
    text = os.fspath(address) if isinstance(address, str | os.PathLike) else address
    if not isinstance(text, str):
        raise SnapshotError(f"a path is a text or a Path, not {type(address).__name__}")
    if not text:
        raise SnapshotError("an empty text is not a path; give a path or an address")
    plain = unquote(text, errors="surrogateescape") if scheme_of(text) else text
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        raise SnapshotError(f"{text!a} is not a path: it contains half of a character") from None
    if "\0" in plain:
        raise SnapshotError(f"{text!a} is not a path: it contains a NUL character")
    if re.match(r"[A-Za-z]:[\\/]", text) and os.name != "nt":
        raise SnapshotError(f"{text} is a Windows path, and this is not Windows; give a path of this system")
    return text


def scheme_of(text: str) -> str | None:
    """What stands before the colon, in lower case; None for a plain path."""
    scheme = _SCHEME.match(text)
    return scheme[1].lower() if scheme else None


def is_remote(resolved: str) -> bool:
    """Whether a place that `resolve` gave lies outside this machine's own filesystem."""
    return scheme_of(resolved) is not None


def join(resolved: str, *names: str) -> str:
    """A path below another; what follows a `?` stays at the end.

    >>> join("s3://bucket/ads?region=eu-west-1", "versions", "00000001")
    's3://bucket/ads/versions/00000001?region=eu-west-1'
    """
    if not is_remote(resolved):
        return os.path.join(resolved, *names)
    place, mark, query = resolved.partition("?")
    return "/".join([place.rstrip("/"), *[quote(name, safe="/=~") for name in names]]) + mark + query


def local_folder(path: str | os.PathLike[str]) -> Path:
    """The folder that a path or a `file:` address names; an address elsewhere is an error that says what to do."""
    text = checked(path)
    if scheme_of(text) is None:  # absolute: Path makes x:y of ./x:y, which would be an address the next time
        return Path(os.path.expanduser(text)).absolute()
    resolved = resolve(text)
    if is_remote(resolved):
        raise SnapshotError(
            f"{without_passwords(resolved)} is not a folder on this machine, which Index.save and Index.open need: "
            "hitbox.spark.build, match and apply_changes take addresses; or copy the whole folder, CURRENT last"
        )
    return Path(resolved)


def for_spark(address: str | os.PathLike[str]) -> str:
    """An address as Spark needs it: Hadoop does not support `~`, `%20`, passwords or options after a `?`."""
    text = checked(address)
    scheme = scheme_of(text)
    if scheme in ONLY_SPARK:
        return text.rstrip("/")
    resolved = resolve(text)
    if scheme is None:
        return resolved
    if not is_remote(resolved):
        return f"file://{resolved}" if scheme == "file" else f"dbfs:{resolved.removeprefix('/dbfs')}"
    host, path, _ = _split(resolved)
    host = host.rpartition("@")[2] if resolved.startswith("s3:") else host
    # s3a is Hadoop's own name for S3, which Databricks and EMR understand, too; plain Spark does not understand s3
    spoken = {"s3": "s3a", "s3n": "s3a", "gcs": "gs"}.get(scheme, scheme)
    return f"{spoken}://{host}{unquote(path)}"


def connect(resolved: str) -> tuple[Any, str]:
    """The filesystem of a remote place, and the path there."""
    import pyarrow as pa
    from pyarrow import fs

    try:
        system, base = fs.FileSystem.from_uri(resolved)
        if resolved.startswith("abfs"):  # without credentials, reading aborts the process; asking for facts raises
            system.get_file_info(base)
    except (pa.ArrowException, OSError, ValueError, ImportError) as problem:
        reason = _hidden(str(problem), resolved).strip().partition("\n")[0]
        raise SnapshotError(f"cannot open {without_passwords(resolved)}: {reason}") from None
    return system, str(base).rstrip("/")


def without_passwords(address: str) -> str:
    """An address without its passwords, for messages."""
    place, mark, query = address.partition("?")
    place = re.sub(r"(//[^/@]*?:)[^/@]*@", r"\1...@", place)
    return place + mark + _SECRET.sub(r"\1...", query)


def _hidden(message: str, address: str) -> str:
    return message.replace(address, without_passwords(address))


def _mounted(text: str, scheme: str) -> str:
    host, path, _ = _split(text)
    if host and host != "localhost" and scheme == "file":
        raise SnapshotError(f"{text} names the host {host!r}; write file:///{host}{path} for a path on this machine")
    if not path.startswith("/"):
        raise SnapshotError(f"{text} is neither an absolute path nor an address; write {scheme}:/{path}")
    path = os.path.abspath(unquote(path))
    if scheme == "file":
        return path
    if not os.path.isdir("/dbfs"):
        raise SnapshotError(f"{text} is on Databricks, which mounts it at /dbfs; there is no /dbfs here")
    return f"/dbfs{path}"


def _split(text: str) -> tuple[str, str, str]:
    """(host, path, ?query) of an address."""
    rest = text.partition(":")[2]
    rest, mark, query = rest.partition("?")
    if not rest.startswith("//"):
        return "", rest, mark + query
    host, slash, path = rest[2:].partition("/")
    return host, slash + path, mark + query
