"""The pipeline on S3: snapshot, events, matches and checkpoint at one address, on a server of moto's.

    python tests/support/spark_s3.py

Spark reads and writes through Hadoop's S3A, hitbox through pyarrow and boto3. The jars come from Maven Central, once; a
line that begins with "skipped" says that they cannot be had.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.s3_server import S3Server

AWS = "2.35.4"
PACKAGES = [
    f"software.amazon.awssdk:{name}:{AWS}" for name in ("s3", "s3-transfer-manager", "sts", "apache-client")
] + ["software.amazon.s3.analyticsaccelerator:analyticsaccelerator-s3:1.3.0"]
EXCLUDED = ["software.amazon.awssdk:bundle", "org.slf4j:slf4j-api"]  # the bundle has 600 MB, of which 10 are needed


def session() -> Any:
    import pyspark

    from hitbox import spark as hs

    jars = [file.stem for file in Path(pyspark.__file__).parent.glob("jars/hadoop-client-api-*.jar")]
    hadoop = jars[0].removeprefix("hadoop-client-api-")
    settings = {
        "spark_jars_packages": ",".join([f"org.apache.hadoop:hadoop-aws:{hadoop}", *PACKAGES]),
        "spark_jars_excludes": ",".join(EXCLUDED),
        "spark_sql_shuffle_partitions": 2,
        "spark_driver_extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }
    try:
        return hs.session("local[2]", **settings)
    except Exception as problem:
        print(f"skipped: the jars of S3A cannot be had: {problem}")
        raise SystemExit(0) from None


def main() -> None:
    from hitbox import Index
    from hitbox import spark as hs
    from hitbox.spark.store_settings import spark_address

    with S3Server("ads") as s3, tempfile.TemporaryDirectory() as cache:
        os.environ["HITBOX_CACHE"] = cache
        spark = session()
        path, out, checkpoint, source = (
            s3.address(f"ads/one place/{n}") for n in ("snapshot", "out", "noted", "events")
        )
        index = Index({"a": "int"})
        for id in range(9):
            index.subscribe(id, f"a > {id}")
        rows = [(id, f"a > {id}") for id in range(9)]
        hs.build(spark.createDataFrame(rows, "id long, where string"), path, {"a": "int"}, parts=2)
        events = spark.createDataFrame([(n, n) for n in range(20)], "event_id long, a long")
        events.write.parquet(spark_address(spark, source))
        stream = spark.readStream.schema(events.schema).parquet(spark_address(spark, source))
        for _ in range(2):  # the second query finds in the checkpoint that nothing is left to do
            query = hs.match_stream(stream, path, out, checkpoint, trigger={"availableNow": True})
            query.awaitTermination()
        found = spark.read.parquet(spark_address(spark, out)).collect()
        assert {row.event_id: sorted(row.subscriptions) for row in found} == {
            n: sorted(index.match({"a": n})) for n in range(20)
        }
        assert len(found) == 20
        assert {row.snapshot_version for row in found} == {1}
        (done,) = hs.progress(checkpoint)
        assert done["events"] == 20
        folders = {name.split("/")[1] for name in s3.names("ads")} - {""}
        assert folders == {"snapshot", "out", "noted", "events"}, folders
        spark.stop()
    print("right")


if __name__ == "__main__":
    main()
