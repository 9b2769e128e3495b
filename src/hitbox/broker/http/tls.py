"""TLS of the broker: a certificate and its key, read again on SIGHUP, and optionally the authority of its clients."""

from __future__ import annotations

import logging
import os
import ssl
from dataclasses import dataclass, field
from pathlib import Path

from hitbox.protocol.errors import CannotListen

log = logging.getLogger("hitbox.broker")


@dataclass(slots=True)
class Tls:
    """The files, all in PEM. With `client_ca`, only clients with a certificate of that authority get in."""

    cert: Path
    key: Path
    client_ca: Path | None = None
    context: ssl.SSLContext = field(init=False)

    @classmethod
    def of(cls, cert: str, key: str, client_ca: str) -> Tls | None:
        """TLS with these files; None where none is named."""
        if bool(cert) != bool(key) or (client_ca and not cert):
            raise CannotListen("TLS needs both --tls-cert and --tls-key")
        return cls(Path(cert), Path(key), Path(client_ca) if client_ca else None) if cert else None

    def __post_init__(self) -> None:
        self.context = self._read()

    def _read(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._load_cert(context)
        if self.client_ca is not None:
            try:
                context.load_verify_locations(self.client_ca)
            except (OSError, ssl.SSLError) as problem:
                raise CannotListen(f"the certificates in {self.client_ca} (--tls-client-ca): {_why(problem)}") from None
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def _load_cert(self, context: ssl.SSLContext) -> None:
        for path, option in ((self.cert, "--tls-cert"), (self.key, "--tls-key")):
            if not os.access(path, os.R_OK) or path.is_dir():
                raise CannotListen(f"the file {path} ({option}) cannot be read")
        try:  # a password is refused, instead of asked for on the terminal
            context.load_cert_chain(self.cert, self.key, password=_no_password)
        except (OSError, ssl.SSLError, ValueError) as problem:
            raise CannotListen(
                f"{self.cert} (--tls-cert) and {self.key} (--tls-key) are no certificate and its key: {_why(problem)}"
            ) from None

    def reload(self) -> bool:
        """Read certificate and key again, for new connections; open ones stay. If they cannot be used, nothing changes.
        Returns whether they were read."""
        try:
            self._read()  # everything is checked before the context in use changes
            self._load_cert(self.context)
        except CannotListen as problem:
            log.error("SIGHUP: %s; the old certificate stays in use", problem)
            return False
        log.warning("SIGHUP: the certificate in %s was read again", self.cert)
        return True


def _no_password() -> str:
    raise ValueError("the key has a password; give it one without")


def _why(problem: Exception) -> str:
    return getattr(problem, "reason", None) or str(problem)
