"""The live broker."""

from hitbox.errors import require_extra

require_extra(
    "hitbox.broker", "broker", "apsw", "httpx", "msgspec", "prometheus_client", "starlette", "uvicorn", "websockets"
)
