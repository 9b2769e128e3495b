"""A server of moto's, which imitates S3 more fully than object_store.py: on a port of this machine, in memory.

with S3Server("ads") as s3:
    s3.address("ads/snapshot")      's3://key:secret@ads/snapshot?endpoint_override=...'
"""

from __future__ import annotations

import logging
from typing import Any, Self
from urllib.parse import quote


class S3Server:
    def __init__(self, *buckets: str):
        self.buckets = buckets

    def __enter__(self) -> Self:
        import boto3
        from moto.server import ThreadedMotoServer

        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self.server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        self.server.start()
        self.host = "{}:{}".format(*self.server.get_host_and_port())
        keys = {"aws_access_key_id": "key", "aws_secret_access_key": "secret", "region_name": "us-east-1"}
        self.client: Any = boto3.client("s3", endpoint_url=f"http://{self.host}", **keys)
        for bucket in self.buckets:
            self.client.create_bucket(Bucket=bucket)
        return self

    def __exit__(self, *_: object) -> None:
        self.server.stop()

    def address(self, path: str, scheme: str = "s3") -> str:
        return f"{scheme}://key:secret@{quote(path)}?endpoint_override={self.host}&scheme=http&region=us-east-1"

    def names(self, bucket: str) -> list[str]:
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=bucket)
        return [found["Key"] for page in pages for found in page.get("Contents", [])]
