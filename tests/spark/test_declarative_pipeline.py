"""The declarative pipeline of the documentation runs twice: the second run has new events and a new version."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame

from hitbox import Index
from hitbox import spark as hs
from hitbox.errors import TableError

ROOT = Path(__file__).parent.parent.parent
EXAMPLE = ROOT / "examples" / "declarative_pipeline"

PIPELINE = ["spark-pipelines", "run", "--conf", "spark.sql.catalogImplementation=hive"]


def run(folder: Path, *command: str) -> None:
    places = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", "PATH": places}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def rows(folder: Path, table: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in pq.read_table(folder / "spark-warehouse" / table).to_pylist())


@pytest.mark.exhaustive  # `make test` runs the functions that it calls
def test_the_example_runs_twice(tmp_path: Path) -> None:
    pytest.importorskip("yaml", reason="pip install 'pyspark[pipelines]'")
    pytest.importorskip("pyspark.pipelines", reason="Spark 4.1 or newer")
    folder = tmp_path / "example"
    shutil.copytree(EXAMPLE, folder)
    file = folder / "spark-pipeline.yml"
    file.write_text(file.read_text().replace("file:///tmp/price-alerts", (folder / "storage").as_uri()))

    run(folder, sys.executable, "subscriptions.py")
    run(folder, *PIPELINE)
    first = [(1, "ACME", 85.0, "ann", 1), (3, "UMBR", 120.0, "bob", 1)]
    assert rows(folder, "alerts") == first
    assert rows(folder, "alerts_per_subscription") == [("ann", 1), ("bob", 1)]

    index = Index.open(folder / "snapshot")
    index.subscribe("cyd", "symbol = 'UMBR'")
    index.save(folder / "snapshot")
    (folder / "quotes" / "tuesday.json").write_text('{"quote": 4, "symbol": "UMBR", "price": 130.0}\n')
    run(folder, *PIPELINE)
    assert rows(folder, "alerts") == [*first, (4, "UMBR", 130.0, "bob", 2), (4, "UMBR", 130.0, "cyd", 2)]
    assert rows(folder, "alerts_per_subscription") == [("ann", 1), ("bob", 2), ("cyd", 1)]


def test_the_page_shows_the_files_that_run() -> None:
    page = (ROOT / "docs" / "how-to" / "declarative-pipelines.md").read_text()
    for file in (EXAMPLE / "spark-pipeline.yml", EXAMPLE / "transformations" / "alerts.py"):
        assert file.read_text() in page, file.name


def test_inside_a_query_function_the_error_says_what_to_do() -> None:
    class Unknown(DataFrame):
        @property
        def schema(self) -> Any:
            raise RuntimeError("[ATTEMPT_ANALYSIS_IN_PIPELINE_QUERY_FUNCTION] Operations that trigger ...")

    with pytest.raises(TableError, match="call match before the function"):
        hs.match(object.__new__(Unknown), "snapshot")
