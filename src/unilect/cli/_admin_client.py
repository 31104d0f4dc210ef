"""A client of the admin API of a running server, at a unix socket or an address."""

import json
import re
import socket
import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from http.client import (
    HTTPConnection,
    HTTPException,
    HTTPResponse,
    HTTPSConnection,
    IncompleteRead,
)
from pathlib import Path
from typing import Any, NamedTuple

from unilect.config.admin import Address
from unilect.config.server import is_loopback
from unilect.core.errors import ConfigError

_CERTIFICATE = re.compile("-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)


class AdminClient(NamedTuple):
    """
    A client of one server.

    Attributes:
        place: The path of its unix socket, or a host and a port.
        keys: The keys of its admin API; the first is sent.
        tls_cert: The file of its certificate, at an address with TLS.
    """

    place: Path | Address
    keys: Sequence[str] = ()
    tls_cert: str | None = None

    def ask(self, method: str, path: str, timeout_s: float | None = None) -> Any:
        """
        Return the JSON of an answer. Without a timeout it waits: a reload may load a model.

        Raises:
            ConfigError: There is no answer, or the server refuses; the message is for the user.
        """
        with self._answer(method, path, timeout_s) as response:
            return json.loads(response.read())

    def follow(self, path: str) -> Iterator[str]:
        """
        Yield the lines of a text as they come, until it ends or the server does.

        Raises:
            ConfigError: As of `ask`.
        """
        with self._answer("GET", path, None) as response, suppress(IncompleteRead):
            for line in response:
                yield line.decode(errors="replace").rstrip("\n")

    @contextmanager
    def _answer(self, method: str, path: str, timeout_s: float | None) -> Iterator[HTTPResponse]:
        """
        Yield an answer, to be read.

        Raises:
            ConfigError: There is none, or the server refuses, or what is read of it is no answer of unilect's.
        """
        connection = self._connection(timeout_s)
        headers = {"Authorization": f"Bearer {self.keys[0]}"} if self.keys else {}
        try:
            connection.request(method, path, headers=headers)
            response = connection.getresponse()
            if response.status != 200:
                why = json.loads(response.read())["error"]["message"]
                raise ConfigError(f"the server at {self.where} refused this: {why}")
            yield response
        except (OSError, HTTPException) as error:
            raise ConfigError(
                f"no server answers at {self.where} ({error}). Start it with this configuration, or name another one with --server."
            ) from error
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"what answers at {self.where} is not unilect's admin API. Correct `listen` in [admin], or --server."
            ) from error
        finally:
            connection.close()

    @property
    def where(self) -> str:
        """The place, in words."""
        return str(self.place) if isinstance(self.place, Path) else f"{self.place[0]}:{self.place[1]}"  # fmt: skip

    def _connection(self, timeout_s: float | None) -> HTTPConnection:
        if isinstance(self.place, Path):
            return _UnixConnection(self.place, timeout_s)
        host, port = self.place
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        if self.tls_cert is None:
            return HTTPConnection(host, port, timeout_s)
        return _TlsConnection(host, port, self.tls_cert)


class _UnixConnection(HTTPConnection):
    """A connection to a unix socket."""

    def __init__(self, path: Path, timeout_s: float | None) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        """Connect."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


class _TlsConnection(HTTPSConnection):
    """
    A connection to the server of this configuration: it is known by its certificate, which names what clients call it. On loopback it needs
    none, as without TLS: a renewed certificate is read by the reload that is asked for.
    """

    def __init__(self, host: str, port: int, file: str) -> None:
        self._certificate = None if is_loopback(host) else _certificate(file)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        super().__init__(host, port, context=context)

    def connect(self) -> None:
        """
        Connect; nothing is sent to a server that has another certificate.

        Raises:
            ConfigError: It has another one.
        """
        super().connect()
        if self._certificate not in (None, self.sock.getpeercert(binary_form=True)):
            raise ConfigError(
                f"the server at {self.host}:{self.port} has another certificate than the file `tls_cert`; where it still has an "
                "older one, run `unilect reload --pid PID` or restart it."
            )


def _certificate(file: str) -> bytes:
    """
    Return the server's certificate, the first in a file.

    Raises:
        ConfigError: There is none.
    """
    try:
        found = _CERTIFICATE.search(Path(file).read_text("utf-8", "replace"))
        return ssl.PEM_cert_to_DER_cert(found[0] if found else "")
    except OSError as error:
        raise ConfigError(f"tls_cert: {file} cannot be read ({error.strerror}). Name a file in PEM.") from error  # fmt: skip
    except ValueError as error:
        raise ConfigError(f"tls_cert: {file} has no certificate. Name a file in PEM.") from error
