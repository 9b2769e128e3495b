"""Every way to write a place has one meaning, and what has none is refused before anything is written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hitbox import Index
from hitbox.errors import HitboxError, SnapshotError
from hitbox.storage import addresses
from hitbox.storage.addresses import connect, for_spark, is_remote, join, local_folder, resolve, without_passwords

HERE, HOME = os.getcwd(), os.path.expanduser("~")

MEANS = [
    ("/data/x", "/data/x"),
    ("/data/x/", "/data/x"),
    ("/data/a%20b", "/data/a%20b"),
    ("/data/a:b://c", "/data/a:b:/c"),
    ("x/y", f"{HERE}/x/y"),
    ("./x:y", f"{HERE}/x:y"),
    (Path("x"), f"{HERE}/x"),
    ("~/x", f"{HOME}/x"),
    ("file:/data/x", "/data/x"),
    ("file:///data/x", "/data/x"),
    ("FILE:///data/x/", "/data/x"),
    ("file://localhost/data/x", "/data/x"),
    ("file:///data/a%20b", "/data/a b"),
    (Path("file:/data/x"), "/data/x"),
    ("s3://bucket/x/y/", "s3://bucket/x/y"),
    ("s3a://bucket/x", "s3://bucket/x"),
    ("s3n://bucket/x", "s3://bucket/x"),
    ("s3://bucket", "s3://bucket"),
    ("s3://bucket/a b", "s3://bucket/a%20b"),
    ("s3://bucket/a%20b", "s3://bucket/a%20b"),
    ("s3://bucket/100%", "s3://bucket/100%25"),
    (
        "s3a://bucket/x/?endpoint_override=host:9000&scheme=http",
        "s3://bucket/x?endpoint_override=host:9000&scheme=http",
    ),
    ("gs://bucket/x", "gs://bucket/x"),
    ("gcs://bucket/x", "gs://bucket/x"),
    ("abfss://c@account.dfs.core.windows.net/x", "abfss://c@account.dfs.core.windows.net/x"),
    ("hdfs:/x", "hdfs:///x"),
    ("hdfs:///x", "hdfs:///x"),
    ("hdfs://host:8020/x", "hdfs://host:8020/x"),
    ("viewfs://cluster/x", "viewfs://cluster/x"),
    ("fsspec+memory://x", "fsspec+memory://x"),
]

REFUSED = [
    ("", "not a path"),
    ("foo://bucket/x", r"the scheme 'foo'; it supports a path, file:, .*s3://.*abfss://"),
    ("s4:/x", "the scheme 's4'"),
    ("https://host/x", "the scheme 'https'"),
    ("data:2024/x", r"write \./data:2024/x"),
    ("C:\\data\\x", "Windows path"),
    ("C:/data/x", "Windows path"),
    ("file:x", "neither an absolute path"),
    ("file://server/share", "names the host 'server'"),
    ("s3:/bucket/x", r"names no bucket; write s3://bucket/path \(a Path object loses"),
    (Path("s3://bucket/x"), "names no bucket"),
    ("gs:x", "names no bucket"),
    ("abfss://account.dfs.core.windows.net/x", "names no container@account"),
    ("dbfs:/x", "Databricks.*no /dbfs here"),
]


@pytest.mark.parametrize(("written", "meant"), MEANS, ids=str)
def test_one_spelling(written: str | Path, meant: str) -> None:
    assert resolve(written) == meant
    assert resolve(meant) == meant
    assert is_remote(meant) == (not meant.startswith("/"))
    below = join(meant, "versions", "00000001")
    assert resolve(below) == below
    place, mark, query = meant.partition("?")
    assert below == f"{place}/versions/00000001{mark}{query}"


@pytest.mark.parametrize(("written", "says"), REFUSED, ids=str)
def test_what_has_no_meaning_is_refused(written: str | Path, says: str) -> None:
    if str(written).startswith("dbfs") and os.path.isdir("/dbfs"):
        pytest.skip("on Databricks")
    with pytest.raises(SnapshotError, match=says):
        resolve(written)


def test_databricks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os.path, "isdir", lambda _: True)
    assert resolve("dbfs:/x/y") == resolve("dbfs:///x/y") == "/dbfs/x/y"


def test_what_spark_is_given() -> None:
    assert for_spark("s3a://key:secret@bucket/a%20b/?region=eu") == "s3a://bucket/a b"
    assert for_spark("s3n://bucket") == "s3a://bucket"
    assert for_spark("s3://bucket/x") == "s3a://bucket/x"
    assert for_spark("abfss://c@account.dfs.core.windows.net/x") == "abfss://c@account.dfs.core.windows.net/x"
    assert for_spark("hdfs:/x") == "hdfs:///x"
    assert for_spark("file:/x%20y/") == "file:///x y"
    assert for_spark("~/x") == f"{HOME}/x"
    assert for_spark("x") == f"{HERE}/x"
    assert for_spark("wasbs://c@a/x/") == "wasbs://c@a/x"
    with pytest.raises(SnapshotError, match="support the scheme"):
        for_spark("foo://x")


def test_an_index_takes_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    index = Index({"a": "int"})
    index.subscribe(1, "a = 1")
    for number, place in enumerate([f"file:{tmp_path}/s", f"file://{tmp_path}/s", f"{tmp_path}/s", "~/s", "s"], 1):
        assert index.save(place) == number
        assert Index.open(place).match({"a": 1}) == [1]
    assert sorted(one.name for one in tmp_path.iterdir()) == ["s"]
    for place in ("s3://bucket/s", "abfss://c@account.dfs.core.windows.net/s", "hdfs:/s", "foo://s"):
        for call in (index.save, Index.open):
            with pytest.raises(SnapshotError, match=r"hitbox\.spark\.build|support the scheme"):
                call(place)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["s"]
    assert local_folder("~/x") == tmp_path / "x"


def test_passwords_are_not_shown() -> None:
    address = "s3://key:pass@bucket/x?secret_key=abc&region=eu&sas_token=t"
    assert without_passwords(address) == "s3://key:...@bucket/x?secret_key=...&region=eu&sas_token=..."
    assert without_passwords("abfss://c@account.dfs.core.windows.net/x") == "abfss://c@account.dfs.core.windows.net/x"


def test_a_store_that_cannot_be_opened_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARROW_LIBHDFS_DIR", "/nowhere")
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    for address in ("fsspec+memory://x", "hdfs://host/x"):
        with pytest.raises(SnapshotError, match="cannot open"):
            connect(address)


def test_azure_without_credentials_does_not_abort_the_process(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom hitbox.storage import addresses\nfrom hitbox.errors import SnapshotError\n"
        "try:\n    system, base = addresses.connect(sys.argv[1])\n    system.open_input_stream(base).read()\n"
        "except SnapshotError as problem:\n    print('error:', problem)\n"
    )
    clean = {name: value for name, value in os.environ.items() if not name.startswith("AZURE_")}
    done = subprocess.run(
        [sys.executable, "-c", code, "abfss://c@nowhere.dfs.core.windows.net/x"],
        capture_output=True,
        text=True,
        timeout=100,
        env=clean | {"HOME": str(tmp_path), "PATH": "/nowhere"},
    )
    assert done.returncode == 0, done.stderr
    assert "error: cannot open abfss://c@nowhere" in done.stdout


def test_errors_are_of_hitbox() -> None:
    assert issubclass(SnapshotError, HitboxError)
    assert addresses.scheme_of("S3A://b") == "s3a"


@pytest.mark.parametrize("written", ["", "a\0b", "file:/a%00b", "\ud800", "s3://b/\ud800", b"x", None, 5, "C:/x"])
def test_what_no_filesystem_can_have_is_refused_everywhere(written: Any) -> None:
    index = Index({"a": "int"})
    for use in (resolve, for_spark, index.save, Index.open, lambda place: Index.open(place, 7)):
        with pytest.raises(SnapshotError):
            use(written)


def test_odd_names_of_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    index = Index({"a": "int"})
    index.subscribe(1, "a > 1")
    for name in ("./ab:cd", "~nobody-of-this-name/x", "with space/%20"):
        assert index.save(name) == 1
        assert len(Index.open(name)) == 1
    assert (tmp_path / "ab:cd" / "CURRENT").exists()
    with pytest.raises(SnapshotError):
        Index.open("x" * 5000, 7)
