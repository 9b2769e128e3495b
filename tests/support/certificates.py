"""Certificates for the tests of TLS."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class Authority:
    """A certificate authority in a folder."""

    def __init__(self, folder: Path, name: str):
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.name = folder, x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.cert = folder / f"{name}.pem"
        ca = x509.BasicConstraints(ca=True, path_length=None)
        self.cert.write_bytes(self._pem(self._signed(self.name, self.key, ca)))

    def _signed(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, *more: x509.ExtensionType
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        builder = x509.CertificateBuilder(self.name, subject, key.public_key(), x509.random_serial_number())
        builder = builder.not_valid_before(now - datetime.timedelta(days=1))
        builder = builder.not_valid_after(now + datetime.timedelta(days=1))
        for one in more:
            builder = builder.add_extension(one, critical=isinstance(one, x509.BasicConstraints))
        return builder.sign(self.key, hashes.SHA256())

    @staticmethod
    def _pem(cert: x509.Certificate) -> bytes:
        return cert.public_bytes(serialization.Encoding.PEM)

    def issue(self, name: str, password: bytes = b"") -> tuple[Path, Path]:
        """A certificate for 127.0.0.1, and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        cert_file, key_file = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        cert_file.write_bytes(self._pem(self._signed(subject, key, address)))
        lock = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
        form = serialization.PrivateFormat.PKCS8
        key_file.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, lock))
        return cert_file, key_file
