"""The files in deploy/ can be read, and name only settings and metrics that exist."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

from hitbox.broker import metrics
from hitbox.broker.commands import configuration
from hitbox.broker.commands.cli import app
from support.broker_kit import item, running, sub, until

ROOT = Path(__file__).parent.parent.parent
DEPLOY = ROOT / "deploy"


@pytest.fixture(scope="module")
def exposed(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The names of all samples in /metrics."""

    async def scenario() -> str:
        async with running(tmp_path_factory.mktemp("data")) as broker:
            await broker.subscribe("ann", [sub("s", "qty > 0")])
            await broker.publish([item(qty=1)])
            await until(broker.caught_up)
            return metrics.exposition(broker, lambda one: True, True).decode()

    text = asyncio.run(scenario())
    return {sample.name for family in text_string_to_metric_families(text) for sample in family.samples}


def expressions(value: Any) -> list[str]:
    """All values of the keys "expr" and "query", at any depth."""
    if isinstance(value, dict):
        own = [one for key, one in value.items() if key in ("expr", "query") and isinstance(one, str)]
        return own + [one for part in value.values() for one in expressions(part)]
    return [one for part in value for one in expressions(part)] if isinstance(value, list) else []


@pytest.mark.parametrize(("name", "most"), [("grafana.json", 20), ("alerts.yaml", 8)])
def test_the_metrics_that_a_file_names_exist(name: str, most: int, exposed: set[str]) -> None:
    text = (DEPLOY / name).read_text()
    found = expressions(json.loads(text) if name.endswith("json") else yaml.safe_load(text))
    assert len(found) >= most
    named = {metric for one in found for metric in re.findall(r"\bhitbox_\w+", one)}
    assert len(named) >= most // 2
    assert named <= exposed, named - exposed
    for one in found:
        assert one.count("(") == one.count(")")


def test_the_metrics_in_the_docs_exist(exposed: set[str]) -> None:
    named = set(re.findall(r"`(hitbox_\w+)`", (ROOT / "docs" / "operations.md").read_text()))
    families = exposed | {re.sub("_(bucket|sum|count)$", "", name) for name in exposed}
    assert len(named) > 10
    assert named <= families, named - families


def test_alerts_have_what_prometheus_needs() -> None:
    (group,) = yaml.safe_load((DEPLOY / "alerts.yaml").read_text())["groups"]
    names = [rule["alert"] for rule in group["rules"]]
    assert len(names) == len(set(names)) >= 8
    for rule in group["rules"]:
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"]["summary"].endswith(".")
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}


def test_the_panels_of_the_dashboard_do_not_overlap() -> None:
    panels = json.loads((DEPLOY / "grafana.json").read_text())["panels"]
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken, panel["title"]
        assert all(x < 24 for x, _ in cells)
        taken |= cells
    assert len({panel["id"] for panel in panels}) == len(panels)


def variables(text: str) -> set[str]:
    return set(re.findall(r"HITBOX_SERVE_\w+", text))


@pytest.mark.parametrize("name", ["Dockerfile", "compose.yaml", "hitbox.service"])
def test_the_variables_that_a_file_names_are_settings(name: str) -> None:
    named = variables((DEPLOY / name).read_text())
    assert named
    assert named <= {one.variable for one in configuration.SETTINGS.values()}


def test_the_settings_file_is_valid(tmp_path: Path) -> None:
    arguments = ["serve", "--check", "--config", str(DEPLOY / "hitbox.toml"), "--data", str(tmp_path), "--port", "0"]
    done = CliRunner().invoke(app, arguments)
    assert (done.exit_code, done.stderr) == (0, "")


def test_compose_file() -> None:
    broker = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["broker"]
    context = (DEPLOY / broker["build"]["context"]).resolve()
    assert context == ROOT
    assert (context / broker["build"]["dockerfile"]).is_file()
    docker = shutil.which("docker")
    if docker is not None and subprocess.run([docker, "compose", "version"], capture_output=True).returncode == 0:
        command = [docker, "compose", "-f", str(DEPLOY / "compose.yaml"), "config", "--quiet"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def test_the_health_check_of_the_image_is_a_command() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    (check,) = re.findall(r"^HEALTHCHECK .* CMD (\[.*\])$", text, re.MULTILINE)
    python, option, program = json.loads(check)
    assert (python, option) == ("python", "-c")
    compile(program, "HEALTHCHECK", "exec")
    assert "/readyz" in program
    for line in re.findall(r"^(?:ENTRYPOINT|CMD) (.*)$", text, re.MULTILINE):
        json.loads(line)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_the_unit_is_valid(tmp_path: Path) -> None:
    text = (DEPLOY / "hitbox.service").read_text()
    program = tmp_path / "hitbox"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m hitbox "$@"\n')
    program.chmod(0o755)
    (tmp_path / "hitbox.service").write_text(text.replace("/opt/hitbox/bin/hitbox", str(program)))
    command = ["systemd-analyze", "verify", "--man=no", str(tmp_path / "hitbox.service")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "hitbox.service" not in done.stderr, done.stderr
