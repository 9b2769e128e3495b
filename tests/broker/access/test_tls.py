"""TLS: certificates made here, the client's side, client certificates, and a reload."""

from __future__ import annotations

import asyncio
import signal
import socket
import ssl
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID
from typer.testing import CliRunner
from websockets.asyncio.client import connect

from hitbox.broker.broker import Broker
from hitbox.broker.commands.cli import app
from hitbox.broker.delivery.mailbox import Mailbox
from hitbox.broker.http.app import serve
from hitbox.broker.http.auth import AccessControl
from hitbox.broker.http.connections import QUEUED_MESSAGES
from hitbox.broker.http.tls import Tls
from hitbox.broker.http.websocket import Session
from hitbox.client import Client
from hitbox.protocol.errors import BadRequest, CannotListen, NotAllowed, StoreFailed
from support.broker_kit import SCHEMA, serving, until
from support.certificates import Authority
from support.served import served


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 180))


def test_publish_and_subscribe_over_tls(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path / "ca", "authority"), Authority(tmp_path / "ca", "other")

    async def scenario() -> None:
        async with serving(tmp_path / "data", tls=Tls(*authority.issue("server"))) as (_, url):
            async with Client(url, ca=authority.cert) as client, client.subscriber("ann") as ann:
                await ann.subscribe("s", "qty > 0")
                await client.publish({"qty": 1})
                assert (await ann.next()).event == {"qty": 1}
                assert client._publishing._socket is not None  # it was published over the socket, not by HTTP
                assert client._publishing._socket.transport.get_extra_info("ssl_object") is not None
            async with Client(url, ca=other.cert) as stranger:
                with pytest.raises(StoreFailed, match="certificate verify failed"):
                    await stranger.publish({"qty": 1})
                with pytest.raises(StoreFailed, match="certificate verify failed"):
                    await stranger.whoami()
            async with Client(url) as stranger:
                with pytest.raises(StoreFailed, match="certificate verify failed"):
                    await stranger.whoami()
            async with httpx.AsyncClient() as plain:
                with pytest.raises(httpx.HTTPError):
                    await plain.get(url.replace("https", "http") + "/livez")

    run(scenario())


def test_messages_that_wait_when_a_connection_over_tls_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """So many that reading is paused: those that were read are handled, and the end of the connection is no error."""
    authority = Authority(tmp_path / "ca", "authority")

    async def scenario() -> None:
        async with serving(tmp_path / "data", tls=Tls(*authority.issue("server"))) as (broker, url):
            looked_up: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            sizes: list[int] = []
            monkeypatch.setattr(broker.tracker, "acknowledge", lambda *_: looked_up)
            monkeypatch.setattr(Mailbox, "set_window", lambda _, __, size: sizes.append(size))
            context = ssl.create_default_context(cafile=str(authority.cert))
            async with connect(f"ws{url[4:]}/v1/connect", ssl=context) as socket:
                await socket.send('{"type": "hello", "subscriber": "ann"}')
                assert "welcome" in str(await socket.recv())
                await socket.send('{"type": "ack", "seqs": [1]}')
                for n in range(1, 41):
                    await socket.send(f'{{"type": "window", "size": {n}}}')
                socket.transport.close()  # without a word
            session = broker.mailbox("ann").connected
            assert isinstance(session, Session)
            await until(lambda: session._line.disconnected)
            session._line.transport.close()  # again, as uvicorn does after a regular end; how this one ended varies
            looked_up.set_result(None)
            await until(lambda: broker.mailbox("ann").connected is None)
            assert len(sizes) >= QUEUED_MESSAGES  # what was read; the rest is lost with the connection
            assert sizes == list(range(1, len(sizes) + 1))
            assert not caplog.records

    run(scenario())


def test_client_certificates(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path / "ca", "authority"), Authority(tmp_path / "ca", "other")
    tls = Tls(*authority.issue("server"), authority.cert)

    async def scenario() -> None:
        async with serving(tmp_path / "data", tls=tls) as (_, url):
            async with Client(url, ca=authority.cert, client_cert=authority.issue("ann")) as ann:
                assert (await ann.whoami())["name"] == "local"
            for cert in (None, other.issue("bob")):
                async with Client(url, ca=authority.cert, client_cert=cert) as stranger:
                    with pytest.raises(StoreFailed):
                        await stranger.whoami()

    run(scenario())


def _served(url: str) -> str:
    """The name in the certificate of a server."""
    port = int(url.rpartition(":")[2])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection(("127.0.0.1", port)) as plain, context.wrap_socket(plain) as wrapped:
        cert = x509.load_der_x509_certificate(wrapped.getpeercert(binary_form=True) or b"")
    return str(cert.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)


def test_a_reload_keeps_connections(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca", "authority")
    cert, key = authority.issue("server")
    tls = Tls(cert, key)

    async def scenario() -> None:
        async with serving(tmp_path / "data", tls=tls) as (_, url):
            client = Client(url, ca=authority.cert)
            async with client, client.subscriber("ann") as ann:
                await ann.subscribe("s", "qty > 0")
                new = authority.issue("second")
                cert.write_bytes(new[0].read_bytes())
                assert not tls.reload()  # the key does not fit yet: the old one stays
                assert await asyncio.to_thread(_served, url) == "server"
                key.write_bytes(new[1].read_bytes())
                assert tls.reload()
                assert await asyncio.to_thread(_served, url) == "second"
                await client.publish({"qty": 1})
                assert (await ann.next()).event == {"qty": 1}
                assert ann.connections == 1

    run(scenario())


def test_sighup_reloads(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca", "authority")
    cert, key = authority.issue("server")

    async def scenario() -> None:
        broker = Broker(tmp_path / "data", SCHEMA)
        bound: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        served = serve(broker, AccessControl(True), "127.0.0.1", 0, bound.set_result, tls=Tls(cert, key))
        task = asyncio.create_task(served)
        url = f"https://127.0.0.1:{await bound}"
        new = authority.issue("second")
        cert.write_bytes(new[0].read_bytes())
        key.write_bytes(new[1].read_bytes())
        assert await asyncio.to_thread(_served, url) == "server"
        signal.raise_signal(signal.SIGHUP)
        await asyncio.sleep(0)
        while await asyncio.to_thread(_served, url) != "second":
            await asyncio.sleep(0.01)
        signal.raise_signal(signal.SIGTERM)
        await task

    run(scenario())


def test_a_silent_handshake_ends(tmp_path: Path) -> None:
    tls = Tls(*Authority(tmp_path / "ca", "authority").issue("server"))

    async def scenario() -> None:
        async with serving(tmp_path / "data", tls=tls, request_seconds=0.3) as (_, url):
            reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
            assert await reader.read() == b""
            writer.close()

    run(scenario())


def test_files_that_cannot_be_used(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca", "authority")
    cert, key = authority.issue("server")
    with pytest.raises(CannotListen, match=r"--tls-cert.*cannot be read"):
        Tls(tmp_path / "none", key)
    with pytest.raises(CannotListen, match="no certificate and its key"):
        Tls(cert, authority.issue("other")[1])
    with pytest.raises(CannotListen, match="has a password"):
        Tls(*authority.issue("locked", b"secret"))
    with pytest.raises(CannotListen, match="--tls-client-ca"):
        Tls(cert, key, key)
    with pytest.raises(BadRequest, match="ca or client_cert"):
        Client("https://127.0.0.1:1", ca=tmp_path / "none")


def test_plain_text_off_loopback_needs_a_flag(tmp_path: Path) -> None:
    async def scenario() -> None:
        broker = Broker(tmp_path, SCHEMA)
        broker.directory.protected = True
        with pytest.raises(NotAllowed, match="--allow-plain-text"):
            await serve(broker, AccessControl(False), "0.0.0.0", 0, lambda _: None, asyncio.Event())

    run(scenario())


def test_the_commands_take_their_files_from_the_environment(tmp_path: Path) -> None:
    """Every command, `backup` included, with an authority of its own and a certificate that the broker asks for."""
    authority = Authority(tmp_path / "ca", "authority")
    cert, key = authority.issue("server")
    both = tmp_path / "ann.pem"
    both.write_bytes(b"".join(path.read_bytes() for path in authority.issue("ann")))
    environment = {"HITBOX_CA": str(authority.cert), "HITBOX_CLIENT_CERT": str(both)}
    tls = ["--tls-cert", str(cert), "--tls-key", str(key), "--tls-client-ca", str(authority.cert)]
    with served(tmp_path / "data", "--schema", "qty:int", *tls) as url:
        for command in (
            ["publish", '{"qty": 1}', "--url", url],
            ["admin", "stats", "--url", url],
            ["admin", "backup", url, str(tmp_path / "copy")],
        ):
            done = CliRunner().invoke(app, command, env=environment)
            assert done.exit_code == 0, done.stderr
            refused = CliRunner().invoke(app, [one if one != str(tmp_path / "copy") else "no" for one in command])
            assert "name the certificate of an authority of your own in HITBOX_CA" in refused.stderr
        plain = ["--url", url.replace("https", "http")]
        for command in (["admin", "stats"], ["publish", '{"qty": 1}'], ["subscribe", "qty > 0", "--wait", "0.3"]):
            assert "does it want https://?" in CliRunner().invoke(app, [*command, *plain]).stderr
    assert (tmp_path / "copy" / "hitbox.db").is_file()
