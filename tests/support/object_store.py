"""An object store for tests: as much of S3 as pyarrow asks for, in memory, on a port of this machine.

with ObjectStore() as s3:
    s3.address("bucket/ads")        's3://key:secret@bucket/ads?endpoint_override=...'
    s3.objects                      {"bucket/ads/CURRENT": b"..."}
"""

from __future__ import annotations

import threading
from email.utils import formatdate
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs, unquote, urlsplit
from xml.etree import ElementTree
from xml.sax.saxutils import escape


class ObjectStore:
    def __init__(self, conditional: bool = True) -> None:
        self.conditional = conditional
        """Whether If-Match and If-None-Match are heeded, as S3 does, or ignored, as some imitations do."""
        self.unanswered: list[str] = []
        """Ends of names: the next object of such a name is written, and the answer is an error."""
        self.refused: list[str] = []
        """Ends of names of which no object can be written."""
        self.objects: dict[str, bytes] = {}
        self.uploads: dict[str, dict[int, bytes]] = {}
        self.lock = threading.Lock()
        store = self

        class Handler(S3):
            shared = store

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True

    def __enter__(self) -> Self:
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()

    def address(self, path: str, scheme: str = "s3") -> str:
        port = self.server.server_address[1]
        return f"{scheme}://key:secret@{path}?endpoint_override=127.0.0.1:{port}&scheme=http&region=us-east-1"

    def take(self, folder: Path, name: str) -> None:
        """Copy a folder into the store."""
        for file in folder.rglob("*"):
            if file.is_file():
                self.objects[f"{name}/{file.relative_to(folder)}"] = file.read_bytes()

    def names(self, prefix: str = "") -> list[str]:
        with self.lock:
            return sorted(name for name in self.objects if name.startswith(prefix) and not name.endswith("/"))


class S3(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    shared: ObjectStore

    def log_message(self, *_: Any) -> None:
        pass

    def setup(self) -> None:
        super().setup()
        self.connection.setsockopt(6, 1, 1)  # TCP_NODELAY: the answer is written in two pieces

    @property
    def asked(self) -> tuple[str, dict[str, str]]:
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
        return unquote(parts.path).lstrip("/"), query

    def answer(self, status: int, body: bytes = b"", **headers: Any) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), str(value))
        if "Content_Length" not in headers:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def body(self) -> bytes:
        if "chunked" in (self.headers.get("Transfer-Encoding") or ""):
            data = b"".join(iter(self.chunk, b""))
        else:
            data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if "chunked" not in (self.headers.get("Content-Encoding") or ""):
            return data
        whole, at = b"", 0  # aws-chunked: size in hex, line, data, line; ends with size 0
        while True:
            end = data.index(b"\r\n", at)
            size = int(data[at:end].split(b";")[0], 16)
            if not size:
                return whole
            whole += data[end + 2 : end + 2 + size]
            at = end + 4 + size

    def chunk(self) -> bytes:
        size = int(self.rfile.readline().split(b";")[0], 16)
        data = self.rfile.read(size)
        self.rfile.readline()
        return data

    def do_HEAD(self) -> None:
        name, _ = self.asked
        if "/" not in name.rstrip("/"):
            self.answer(200)
            return
        with self.shared.lock:
            found = self.shared.objects.get(name)
        if found is None:
            self.answer(404)
        else:
            self.answer(200, Content_Length=len(found), Last_Modified=formatdate(usegmt=True), ETag=etag(found))

    def do_GET(self) -> None:
        name, query = self.asked
        if "list-type" in query:
            self.answer(200, self.listing(name.rstrip("/"), query))
            return
        with self.shared.lock:
            found = self.shared.objects.get(name)
        if found is None:
            self.answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
            return
        span = self.headers.get("Range")
        status, headers = 200, {}
        if span:
            first, _, last = span.partition("=")[2].partition("-")
            end = min(int(last or len(found)), len(found) - 1)
            status, headers = 206, {"Content_Range": f"bytes {first}-{end}/{len(found)}"}
            found = found[int(first) : end + 1]
        self.answer(status, found, Last_Modified=formatdate(usegmt=True), ETag=etag(found), **headers)

    def listing(self, bucket: str, query: dict[str, str]) -> bytes:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter")
        keys, folders = [], set()
        with self.shared.lock:
            there = {name.partition("/")[2]: len(data) for name, data in self.shared.objects.items()
                     if name.startswith(f"{bucket}/")}  # fmt: skip
        for key in sorted(there):
            if not key.startswith(prefix):
                continue
            head, mark, _ = key[len(prefix) :].partition(delimiter or "\0")
            if delimiter and mark:
                folders.add(prefix + head + delimiter)
            else:
                keys.append(key)
        moment = "2026-01-01T00:00:00.000Z"
        text = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{there[key]}</Size><LastModified>{moment}</LastModified></Contents>"
            for key in keys
        ) + "".join(f"<CommonPrefixes><Prefix>{escape(one)}</Prefix></CommonPrefixes>" for one in sorted(folders))
        count = len(keys) + len(folders)
        return (
            f"<ListBucketResult><Name>{bucket}</Name><Prefix>{escape(prefix)}</Prefix><KeyCount>{count}</KeyCount>"
            f"<MaxKeys>1000</MaxKeys><IsTruncated>false</IsTruncated>{text}</ListBucketResult>"
        ).encode()

    def do_PUT(self) -> None:
        name, query = self.asked
        body = self.body()
        source = self.headers.get("x-amz-copy-source")
        if any(map(name.endswith, self.shared.refused)):
            self.answer(403, b"<Error><Code>AccessDenied</Code></Error>")
            return
        with self.shared.lock:
            there = self.shared.objects.get(name)
            wanted, unwanted = (self.headers.get(header) for header in ("If-Match", "If-None-Match"))
            changed = (unwanted and there is not None) or (wanted and (there is None or etag(there) != wanted))
            if changed and self.shared.conditional:
                self.answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
                return
            if source:
                found = self.shared.objects.get(unquote(source).lstrip("/"))
                if found is not None:
                    self.shared.objects[name] = found
            elif "uploadId" in query:
                self.shared.uploads[query["uploadId"]][int(query["partNumber"])] = body
            elif "/" in name:
                self.shared.objects[name] = body
            for end in filter(name.endswith, list(self.shared.unanswered)):
                self.shared.unanswered.remove(end)
                self.answer(500, b"<Error><Code>InternalError</Code></Error>")
                return
        if source:
            xml = b"<CopyObjectResult><ETag>x</ETag></CopyObjectResult>"
            self.answer(*((200, xml) if found is not None else (404, b"<Error><Code>NoSuchKey</Code></Error>")))
        else:
            self.answer(200, ETag=etag(body))

    def do_POST(self) -> None:
        name, query = self.asked
        body = self.body()
        with self.shared.lock:
            if "delete" in query:
                for key in ElementTree.fromstring(body).iter():
                    if key.tag.endswith("Key"):
                        self.shared.objects.pop(f"{name.rstrip('/')}/{key.text}", None)
                reply = "<DeleteResult></DeleteResult>"
            elif "uploads" in query:
                upload = f"upload-{len(self.shared.uploads)}"
                self.shared.uploads[upload] = {}
                reply = f"<InitiateMultipartUploadResult><UploadId>{upload}</UploadId></InitiateMultipartUploadResult>"
            else:
                parts = self.shared.uploads[query["uploadId"]]
                self.shared.objects[name] = b"".join(parts[number] for number in sorted(parts))
                reply = "<CompleteMultipartUploadResult><ETag>x</ETag></CompleteMultipartUploadResult>"
        self.answer(200, reply.encode())

    def do_DELETE(self) -> None:
        with self.shared.lock:
            self.shared.objects.pop(self.asked[0], None)
        self.answer(204)


def etag(data: bytes) -> str:
    return f'"{md5(data, usedforsecurity=False).hexdigest()}"'
