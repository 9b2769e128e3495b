"""One Spark session for all tests of the pipeline; they are marked `spark`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.object_store import ObjectStore

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker("spark")
            item.add_marker(
                pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")
            )


@pytest.fixture
def s3() -> Iterator[ObjectStore]:
    with ObjectStore() as store:
        yield store


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from hitbox import spark as hs
    from hitbox.spark import kafka_server
    from support import lake_tables

    settings: dict[str, Any] = {
        "spark_driver_memory": "1g",
        "spark_sql_shuffle_partitions": 2,
        "spark_driver_extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark_ui_enabled": "false",
        "spark_sql_ansi_doubleQuotedIdentifiers": "true",
    }
    jars = [kafka_server.connector()] if kafka_server.available() else []
    if lake_tables.available():
        jars.append(lake_tables.jars())
        settings |= lake_tables.SETTINGS | {lake_tables.WAREHOUSE: str(tmp_path_factory.mktemp("lake"))}
    if jars:
        settings["spark_jars"] = ",".join(jars)
    session = hs.session("local[2]", "hitbox-tests", **settings)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Kafka that runs as long as the tests."""
    from hitbox.spark import kafka_server

    if not kafka_server.available():
        pytest.skip("NO KAFKA: run tools/need kafka")
    with kafka_server.KafkaServer(tmp_path_factory.mktemp("kafka")) as server:
        yield server.address
