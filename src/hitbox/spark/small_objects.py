"""Small objects of a store that several writers may write: whole, and where the store allows it, only if unchanged.

    read(address)                 text and tag; (None, ABSENT) where there is no such object
    write(address, text, tag)     only if the object is still the one that was read; otherwise Overtaken. Writers must
                                  not write the same text, unless it does not matter which of them wrote it

S3 has conditional puts (If-Match, If-None-Match), pyarrow does not use them. So for s3:// addresses the objects are
written through boto3, if it is installed. Some stores that imitate S3 ignore the condition. That is tried out once per
process and place. Everywhere else `conditional` is False, tags mean nothing, and writers need a lease that settles
(writer_lease.py).
"""

from __future__ import annotations

import contextlib
import uuid
from typing import Any, Protocol
from urllib.parse import parse_qs, unquote

from pyarrow.fs import FileType

from hitbox.errors import SnapshotError
from hitbox.storage.addresses import connect, join, scheme_of, without_passwords

ABSENT = ""
"""The tag of an object that is not there."""
ANY = "*"
"""Write whatever the object is now."""

OVERTAKEN = {"PreconditionFailed", "ConditionalRequestConflict", "412", "409"}
MISSING = {"NoSuchKey", "404"}


class Overtaken(SnapshotError):
    """Another writer wrote the object first."""


class SmallObjects(Protocol):
    conditional: bool

    def read(self, address: str) -> tuple[str | None, str]: ...

    def write(self, address: str, text: str, tag: str) -> str:
        """The new tag."""


def of(path: str) -> SmallObjects:
    """How small objects below an address are read and written."""
    found = _conditional(path) if scheme_of(path) == "s3" else None
    return found or PlainObjects()


class PlainObjects:
    """Through pyarrow: the last writer wins."""

    conditional = False

    def read(self, address: str) -> tuple[str | None, str]:
        system, base = connect(address)
        try:
            with system.open_input_stream(base) as opened:
                return bytes(opened.read()).decode(errors="replace"), ANY
        except FileNotFoundError:
            return None, ABSENT
        except Exception as problem:
            if _is_gone(system, base):  # between its opening and its reading
                return None, ABSENT
            raise _failed("read", address, problem) from None

    def write(self, address: str, text: str, tag: str) -> str:
        put(address, text.encode())
        return ANY


def put(address: str, content: Any) -> None:
    """Write an object in one go, through pyarrow."""
    system, base = connect(address)
    try:
        system.create_dir(base.rpartition("/")[0])
        with system.open_output_stream(base) as out:
            out.write(content)
    except Exception as problem:
        raise _failed("write", address, problem) from None


class S3Objects:
    """Through boto3, with conditional puts."""

    conditional = True

    def __init__(self, client: Any):
        self._client = client

    def read(self, address: str) -> tuple[str | None, str]:
        bucket, key = _place(address)
        try:
            found = self._client.get_object(Bucket=bucket, Key=key)
            return found["Body"].read().decode(errors="replace"), str(found["ETag"])
        except Exception as problem:
            if _code(problem) in MISSING:
                return None, ABSENT
            raise _failed("read", address, problem) from None

    def write(self, address: str, text: str, tag: str) -> str:
        bucket, key = _place(address)
        condition = {} if tag == ANY else {"IfNoneMatch": "*"} if tag == ABSENT else {"IfMatch": tag}
        try:
            return str(self._client.put_object(Bucket=bucket, Key=key, Body=text.encode(), **condition)["ETag"])
        except Exception as problem:
            # an object that was to be replaced and is gone is missing, not changed
            if condition and _code(problem) in OVERTAKEN | MISSING:
                found, written = self.read(address)
                if found == text:  # the answer to a first attempt was lost, and the client repeated it
                    return written
                raise Overtaken(f"another writer wrote {without_passwords(address)} first") from None
            raise _failed("write", address, problem) from None

    def remove(self, address: str) -> None:
        bucket, key = _place(address)
        self._client.delete_object(Bucket=bucket, Key=key)


_known: dict[str, S3Objects | None] = {}


def _conditional(path: str) -> S3Objects | None:
    """None without boto3, with a store that ignores conditions, or where boto3 finds no valid credentials."""
    if path not in _known:
        try:
            objects = S3Objects(_client(path))
        except Exception:  # boto3 is not installed, or its configuration is broken: pyarrow may still work
            return None
        probe = join(path, f".probe-{uuid.uuid4().hex}")
        try:
            objects.write(probe, "", '"there is no object with this tag"')
        except Overtaken:
            _known[path] = objects
        except SnapshotError:  # not settled: asked again the next time
            return None
        else:
            _known[path] = None
            with contextlib.suppress(Exception):
                objects.remove(probe)
    return _known[path]


def _client(path: str) -> Any:
    """A client with the options that pyarrow takes from an address: keys, region, endpoint."""
    import boto3
    from botocore.config import Config

    place, _, query = path.partition("?")
    options = {name: values[-1] for name, values in parse_qs(query).items()}
    account = place.removeprefix("s3://").partition("/")[0].rpartition("@")[0]
    key, _, secret = account.partition(":")
    endpoint = options.get("endpoint_override")
    if endpoint and "://" not in endpoint:
        endpoint = f"{options.get('scheme', 'https')}://{endpoint}"
    given = {"aws_access_key_id": unquote(key), "aws_secret_access_key": unquote(secret)} if key else {}
    config = Config(
        s3={"addressing_style": "path"} if endpoint else {},
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        connect_timeout=10,
        read_timeout=30,
    )
    return boto3.session.Session().client(
        "s3", endpoint_url=endpoint, region_name=options.get("region"), config=config, **given
    )


def _place(address: str) -> tuple[str, str]:
    host, _, key = address.partition("?")[0].removeprefix("s3://").partition("/")
    return host.rpartition("@")[2], unquote(key)


def _code(problem: Exception) -> str:
    answer = getattr(problem, "response", None)
    return str(answer.get("Error", {}).get("Code", "")) if isinstance(answer, dict) else ""


def _is_gone(system: Any, base: str) -> bool:
    try:
        return bool(system.get_file_info(base).type == FileType.NotFound)
    except Exception:
        return False


def _failed(what: str, address: str, problem: Exception) -> SnapshotError:
    return SnapshotError(f"cannot {what} {without_passwords(address)}: {problem}")
