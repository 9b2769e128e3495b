"""Quotes in, alerts out: two datasets of a declarative pipeline, the first of them made by hitbox."""

from pathlib import Path

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

from hitbox import spark as hs

HERE = Path(__file__).resolve().parent.parent
spark = SparkSession.active()

# Inside a query function Spark says nothing about columns, and match checks them: so it is called here.
quotes = spark.readStream.schema("quote long, symbol string, price double").json(f"{HERE}/quotes")
matches = hs.match(quotes, f"{HERE}/snapshot", "quote", form="pairs", keep=["symbol", "price"])


@dp.table
def alerts() -> DataFrame:
    """One row per quote and subscription that wants it; each run adds those of the new quotes."""
    return matches


@dp.materialized_view
def alerts_per_subscription() -> DataFrame:
    return spark.read.table("alerts").groupBy("subscription").count()
