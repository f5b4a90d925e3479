"""Between a client and a server of this host: a proxy that can speak TLS and cut connections."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import ssl
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass(frozen=True)
class Certificate:
    """PEM files. `ca_file` is what a client must trust."""

    ca_file: Path
    cert_file: Path
    key_file: Path


def certificate(folder: Path, *, address: str = "127.0.0.1") -> Certificate:
    """For the server at the IP `address`, good for a day."""
    now = datetime.datetime.now(datetime.UTC)
    ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    ca_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test authority")])

    def sign(name: x509.Name, of: ec.EllipticCurvePrivateKey, *, ca: bool) -> x509.Certificate:
        names = [x509.IPAddress(ipaddress.ip_address(address))]
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(ca_name)
            .public_key(of.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .sign(ca_key, hashes.SHA256())
        )

    folder.mkdir(parents=True, exist_ok=True)
    server_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test server")])
    files = Certificate(folder / "ca.pem", folder / "server.pem", folder / "server.key")
    pem = serialization.Encoding.PEM
    files.ca_file.write_bytes(sign(ca_name, ca_key, ca=True).public_bytes(pem))
    files.cert_file.write_bytes(sign(server_name, key, ca=False).public_bytes(pem))
    files.key_file.write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return files


class Proxy:
    """Passes bytes on to `target_port` of 127.0.0.1, ending TLS first with `files`. `port` once
    entered. It cuts the connection that the next `cut_answers` answers come on, in their place."""

    def __init__(self, target_port: int, files: Certificate | None = None) -> None:
        self.port = 0
        self.cut_answers = 0
        self._target_port = target_port
        self._context = None
        if files is not None:
            self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._context.load_cert_chain(files.cert_file, files.key_file)
        self._loop = asyncio.new_event_loop()
        # A client that hangs up, or doesn't like the certificate, is what tests are about.
        self._loop.set_exception_handler(lambda *_: None)
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Proxy:
        self._thread.start()
        starting = asyncio.run_coroutine_threadsafe(
            asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._context), self._loop
        )
        self._server = starting.result(10)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)
        self._loop.close()

    async def _stop(self) -> None:
        self._server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, there = await asyncio.open_connection("127.0.0.1", self._target_port)
        await asyncio.gather(self._ask(reader, there), self._answer(answers, writer))

    async def _ask(self, reader: asyncio.StreamReader, there: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                there.write(data)
                await there.drain()
        there.close()

    async def _answer(self, answers: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await answers.read(65536):
                if self.cut_answers:
                    self.cut_answers -= 1
                    break
                writer.write(data)
                await writer.drain()
        writer.close()
