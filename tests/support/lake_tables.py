"""Delta and Iceberg for the tests, where Spark is the line that their jars are for (`tools/need tables`)."""

from __future__ import annotations

from pathlib import Path

import pyspark

LINE = "4.0"
"""Of Spark; see tools/tables."""
HOME = Path.home() / ".cache" / "hitbox" / "tables"
FORMATS = ("delta", "iceberg")
WAREHOUSE = "spark.sql.catalog.lake.warehouse"
SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension,"
    "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
    "spark.sql.catalog.lake.type": "hadoop",
    "spark.databricks.delta.snapshotPartitions": "1",  # of its own metadata; 50 by default
}


def right_spark() -> bool:
    return pyspark.__version__.startswith(f"{LINE}.")


def available() -> bool:
    return right_spark() and all(any((HOME / name).glob("*.jar")) for name in FORMATS)


def jars() -> str:
    """For the setting `spark.jars`."""
    return ",".join(str(file) for name in FORMATS for file in sorted((HOME / name).glob("*.jar")))
