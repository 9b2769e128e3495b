"""A join with bins on Spark, which tests and benchmarks compare matches with."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from hitbox.spark.demo import wanted


def range_join(events: DataFrame, subscriptions: DataFrame, attributes: list[str], on: str, bins: int) -> DataFrame:
    """The join that people write instead: cut the values of one attribute into bins, repeat a subscription for every
    bin that it covers, join on the bin, test the rest (as the range-join optimisation of Databricks does)."""
    least, most = events.agg(F.min(on), F.max(on)).collect()[0]
    size = max((most - least) / bins, 1e-9)

    def bin_of(value: Any) -> Any:
        return F.least(F.greatest(F.floor((value - F.lit(least)) / F.lit(size)), F.lit(0)), F.lit(bins))

    low, high = F.col(f"{on}_low"), F.col(f"{on}_high")
    first, last = bin_of(F.coalesce(low, F.lit(least))), bin_of(F.coalesce(high, F.lit(most)))
    covered = F.when(first <= last, F.sequence(first, last))
    any_value = F.sequence(F.lit(-1).cast("long"), F.lit(bins).cast("long"))  # -1: an event without a value
    covered = F.when(low.isNull() & high.isNull(), any_value).otherwise(covered)
    repeated = subscriptions.withColumn("_bin", F.explode(covered))
    placed = events.withColumn("_bin", F.coalesce(bin_of(F.col(on)), F.lit(-1).cast("long")))
    return placed.join(repeated, "_bin").where(wanted(attributes)).drop("_bin")
