"""/livez and /readyz: whether to restart the broker, and whether to send it requests.

They need no token, so they name no subscriber: the log and /v1/stats do.
"""

from __future__ import annotations

from typing import Any

from hitbox.broker.broker import Broker


def liveness(broker: Broker) -> tuple[dict[str, Any], int]:
    """Body and status of /livez: 503 if only a restart helps."""
    fault = broker.fault()
    return {"ok": not fault, "reason": fault}, 503 if fault else 200


def readiness(broker: Broker) -> tuple[dict[str, Any], int]:
    """Body and status of /readyz: 200 if events can be published, and each check with its reason."""
    state, status = broker.health()
    writer = broker.writer
    faults = {
        "started": "" if broker.started else "the broker is starting",
        "open": "the broker is shutting down" if broker.closing else "",
        "writer": broker.fault(),
        "room": writer.problem() if writer.full else "",
    }
    checks = {name: {"ok": not reason, "reason": reason} for name, reason in faults.items()}
    return {**state, "checks": checks}, status
