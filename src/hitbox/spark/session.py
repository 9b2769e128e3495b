"""A Spark session with few log messages and this Python in its workers; errors say what is not installed."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from hitbox.errors import HitboxError, ValueProblem, warn

LOG4J = """rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n
logger.repl.name = org.apache.spark.api.python.PythonGatewayServer
logger.repl.level = error
logger.loader.name = org.apache.hadoop.util.NativeCodeLoader
logger.loader.level = off
logger.shutdown.name = org.apache.spark.util.ShutdownHookManager
logger.shutdown.level = off
"""

HARMLESS = b"WARNING: Using incubator modules: jdk.incubator.vector"

DEFAULTS = {"spark.sql.session.timeZone": "UTC", "spark.sql.execution.arrow.pyspark.enabled": "true"}


def session(master: str | None = None, name: str | None = None, **settings: Any) -> SparkSession:
    """The session that is running, or a new one. Settings are Spark's, with `_` for `.`: spark_driver_memory="4g". A
    name with dots, such as "spark.sql.catalog.my_catalog", is taken as it is.

    Without a master: Spark Connect where SPARK_REMOTE is set, otherwise all cores of this machine. If a session is
    running, a warning lists the settings that it does not have.
    """
    given = {key if "." in key else key.replace("_", "."): value for key, value in settings.items()}
    for key, dotted in zip(settings, given, strict=True):
        if not dotted.startswith("spark."):
            raise ValueProblem(f"{key!r} is not a setting of Spark; did you mean {f'spark_{key}'!r}?")
    running = active()
    if running is not None:
        _warn_ignored(running, given | _known({"spark.app.name": name, "spark.master": master}))
        return running
    os.environ.setdefault("PYSPARK_PYTHON", given.get("spark.pyspark.python", sys.executable))
    builder = SparkSession.builder.appName(name or "hitbox")
    remote = os.environ.get("SPARK_REMOTE")
    if (master and master.startswith("sc://")) or (remote and not master):
        return builder.remote(master or remote or "").getOrCreate()
    _require_java()
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    bar = "true" if at_prompt() else "false"  # as in the pyspark shell; elsewhere hitbox draws its own
    options = DEFAULTS | {"spark.driver.memory": "2g", "spark.ui.showConsoleProgress": bar} | given
    flags = options.get("spark.driver.extraJavaOptions", "")
    options["spark.driver.extraJavaOptions"] = f"-Dlog4j2.configurationFile={_log4j()} {flags}".strip()
    options["spark.master"] = master or "local[*]"
    for key, value in options.items():
        builder = builder.config(key, str(value))
    with _jvm_messages_filtered():
        return builder.getOrCreate()


def _warn_ignored(running: SparkSession, given: dict[str, Any]) -> None:
    """Say which settings the session that is running does not have."""
    ignored = []
    for key, value in given.items():
        try:
            same = running.conf.get(key, None) == str(value)
        except Exception:  # a Connect server does not say everything
            same = False
        if not same:
            ignored.append(f"{key}={value}")
    if ignored:
        one = len(ignored) == 1
        warn(
            f"a Spark session is running already, so {', '.join(ignored)} {'is' if one else 'are'} ignored: "
            f"stop that session first (spark.stop()), or leave {'this setting' if one else 'these settings'} out"
        )


def _known(settings: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if value is not None}


def active() -> SparkSession | None:
    """The session of this process, classic or Connect."""
    found = SparkSession.getActiveSession()
    if found is None and "pyspark.sql.connect.session" in sys.modules:
        found = sys.modules["pyspark.sql.connect.session"].SparkSession.getActiveSession()
    return found


def is_connect(spark: Any) -> bool:
    return getattr(spark, "_jsparkSession", None) is None


def at_prompt() -> bool:
    """Whether a person types into a terminal. A line that a thread draws there would end too late and erase the prompt;
    Spark's own bar ends in time."""
    return hasattr(sys, "ps1") and sys.stderr.isatty()


@contextlib.contextmanager
def _jvm_messages_filtered() -> Iterator[None]:
    """A JVM that starts in the body writes to stderr through a filter, which drops the line that Java prints because of
    an option that Spark's launcher always sets."""
    try:
        screen = os.dup(2)
    except OSError:  # a process without stderr
        yield
        return
    read, write = os.pipe()
    threading.Thread(target=_pass_on, args=(read, screen), daemon=True, name="hitbox-jvm-messages").start()
    os.dup2(write, 2)
    os.close(write)
    try:
        yield
    finally:
        os.dup2(screen, 2)


def _pass_on(messages: int, screen: int) -> None:
    """Copy at once what comes, for Spark's progress bar is a line without an end."""
    held = b""
    while chunk := os.read(messages, 65_536):
        *lines, held = (held + chunk).split(b"\n")
        for line in lines:
            if not line.startswith(HARMLESS):
                os.write(screen, line + b"\n")
        if not HARMLESS.startswith(held):
            os.write(screen, held)
            held = b""
    os.write(screen, held)


def _require_java() -> None:
    home = os.environ.get("JAVA_HOME")
    there = Path(home, "bin", "java").exists() if home else shutil.which("java") is not None
    if not there:
        where = f"JAVA_HOME={home} has no bin/java" if home else "there is no `java` on the PATH"
        raise HitboxError(f"Spark needs Java 17 or newer, but {where}: install a JDK or set JAVA_HOME")


@lru_cache(maxsize=1)
def _log4j() -> str:
    """The log settings that Spark reads as it starts. The file is the same for all sessions, so it stays."""
    file = Path(tempfile.gettempdir()) / f"hitbox-log4j2-{os.getuid()}.properties"
    if not file.exists() or file.read_text() != LOG4J:
        beside = file.with_suffix(f".{os.getpid()}")
        beside.write_text(LOG4J)
        beside.replace(file)
    return str(file)
