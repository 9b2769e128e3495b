"""One address for Spark and for hitbox: what an S3 address says after the `?`, and its keys, as settings of Spark.

    s3://key:secret@bucket/x?endpoint_override=host:9000&scheme=http&region=eu-west-1
    -> s3a://bucket/x   and   fs.s3a.bucket.NAME.endpoint, .access.key, ... in the session

The settings are of that one bucket, so they leave other stores alone. An address without them uses whatever Spark is
configured with. Spark hides keys and secrets in its UI and logs (`spark.redaction.regex`).
"""

from __future__ import annotations

import os
from urllib.parse import parse_qs, unquote

from pyspark.sql import SparkSession

from hitbox.storage.addresses import for_spark, is_remote, resolve, scheme_of

SIMPLE = "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider"


def spark_address(spark: SparkSession, address: str | os.PathLike[str]) -> str:
    """The address as Spark needs it, after its settings were given to the session."""
    spoken = for_spark(address)
    if scheme_of(spoken) == "s3a":
        for name, value in s3a_settings(resolve(address)).items():
            spark.conf.set(name, value)
    return spoken


def s3a_settings(resolved: str) -> dict[str, str]:
    """The settings of Hadoop that mean what an S3 address says.

    >>> s3a_settings("s3://ads/x?region=eu-west-1")
    {'fs.s3a.bucket.ads.endpoint.region': 'eu-west-1'}
    """
    if not is_remote(resolved):
        return {}
    place, _, query = resolved.partition("?")
    account, _, bucket = place.removeprefix("s3://").partition("/")[0].rpartition("@")
    options = {name: values[-1] for name, values in parse_qs(query).items()}
    found = {}
    if "region" in options:
        found["endpoint.region"] = options["region"]
    if "endpoint_override" in options:
        secure = options.get("scheme", "https") == "https"
        endpoint = options["endpoint_override"]
        found["endpoint"] = endpoint if "://" in endpoint else f"http{'s' if secure else ''}://{endpoint}"
        found["path.style.access"] = "true"
        found["connection.ssl.enabled"] = "true" if secure else "false"
    key, _, secret = account.partition(":")
    if key:
        found |= {"access.key": unquote(key), "secret.key": unquote(secret), "aws.credentials.provider": SIMPLE}
    return {f"fs.s3a.bucket.{bucket}.{name}": value for name, value in found.items()}
