"""Connections to OPC UA servers: account, encryption, ids of nodes, values as JSON and as what a node takes."""

from __future__ import annotations

import base64
import datetime
import decimal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwater.connectors.jsonnumbers import json_number
from headwater.core.errors import RuntimeFailure, Unavailable
from headwater.dataflow.opcua import OpcuaSettings, server_of_opcua
from headwater.disk.credentials import read_secret
from headwater.disk.layout import full_path

if TYPE_CHECKING:
    from asyncua import Client, ua
    from asyncua.crypto.uacrypto import CertProperties

SECONDS = 10.0
"""Seconds for the server to answer a request."""
_HEALTH_SECONDS = 5.0  # between two checks of an idle connection
_SESSION_MS = 60_000  # that a server keeps the session of a client that is gone
_OVERFLOW = 0x480  # of a status: the server has discarded values before this one
_INTEGERS = {"SByte": 8, "Byte": 8, "Int16": 16, "UInt16": 16, "Int32": 32, "UInt32": 32, "Int64": 64, "UInt64": 64}
_UNSIGNED = ("Byte", "UInt16", "UInt32", "UInt64")


@dataclass(frozen=True, kw_only=True)
class OpcuaAddress:
    """A server, the names of the secrets with user and password, and the files of an encrypted connection."""

    url: str
    username_env: str | None = None
    password_env: str | None = None
    certificate: str | None = None
    key: str | None = None
    server_certificate: str | None = None
    where: str

    @classmethod
    def of(cls, settings: OpcuaSettings, *, where: str, location: str = "") -> OpcuaAddress:
        """Return the address of a source at a location, or of a sink."""
        return cls(
            url=settings.url.replace("{location}", location),
            username_env=settings.username_env,
            password_env=settings.password_env,
            certificate=settings.certificate,
            key=settings.key,
            server_certificate=settings.server_certificate,
            where=where,
        )

    @property
    def server(self) -> str:
        return server_of_opcua(self.url, where=self.where)

    @property
    def files(self) -> tuple[str, ...]:
        return tuple(full_path(f) for f in (self.certificate, self.key, self.server_certificate) if f is not None)

    def secrets(self) -> tuple[str | None, str | None]:
        """Read user and password; raise RuntimeFailure where a named secret is not set."""
        return (
            read_secret(self.username_env, where=self.where),
            read_secret(self.password_env, where=self.where),
        )


def require_library(where: str) -> None:
    """Raise Unavailable without asyncua."""
    try:
        import asyncua  # noqa: F401
    except ImportError:
        raise Unavailable("asyncua is not installed", where=where, hint="pip install headwater[opcua]") from None


@asynccontextmanager
async def connected(address: OpcuaAddress) -> AsyncIterator[Client]:
    """Connect to a server, and close the session at the end; raise the library's errors."""
    from asyncua import Client
    from asyncua.crypto.security_policies import SecurityPolicyBasic256Sha256

    client = Client(address.url, timeout=SECONDS, watchdog_intervall=_HEALTH_SECONDS)
    client.name = "Headwater"
    client.session_timeout = _SESSION_MS
    user, password = address.secrets()
    if user is not None:
        client.set_user(user)
        client.set_password(password or "")
    if address.files:
        certificate, key, server = (_pem_or_der(file, where=address.where) for file in address.files)
        client.application_uri = _application_uri(certificate, where=address.where) or client.application_uri
        await client.set_security(SecurityPolicyBasic256Sha256, certificate, key, server_certificate=server)
    await client.connect()
    try:
        yield client
    finally:
        await client.disconnect()


def _pem_or_der(file: str, *, where: str) -> CertProperties:
    """Read a file of a certificate or key, for the library, which else goes by the file's name."""
    from asyncua.crypto.uacrypto import CertProperties

    try:
        data = Path(file).read_bytes()
    except OSError as error:
        raise _unusable(f"{file}: {error.strerror}", where) from None
    return CertProperties(data, "pem" if data.startswith(b"-----") else "der")


def _application_uri(certificate: CertProperties, *, where: str) -> str | None:
    """Return the URI in a certificate, which the server compares with the client's."""
    from cryptography import x509

    data = certificate.path_or_content
    assert isinstance(data, bytes)
    read = x509.load_pem_x509_certificate if certificate.extension == "pem" else x509.load_der_x509_certificate
    try:
        names = read(data).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return None
    except ValueError as error:
        raise _unusable(str(error), where) from None
    return next(iter(names.get_values_for_type(x509.UniformResourceIdentifier)), None)


def _unusable(why: str, where: str) -> RuntimeFailure:
    return RuntimeFailure(
        f"a certificate or key cannot be used: {why}",
        where=where,
        hint="give PEM or DER files of the zone: certificate, its key without a passphrase, server_certificate",
    )


async def node_id(client: Client, text: str) -> ua.NodeId:
    """Return the id of a node: ``ns=2;s=Name``, or ``nsu=URI;s=Name`` with the URI of its namespace.

    Raise ValueError where it is none, or the server does not have the namespace.
    """
    from asyncua import ua
    from asyncua.ua.uaerrors import UaError

    if not text.startswith("nsu="):
        try:
            return ua.NodeId.from_string(text)
        except UaError as error:
            raise ValueError(f"'{text}' is not the id of a node: {error}") from None
    uri, _, rest = text.removeprefix("nsu=").partition(";")
    try:
        return ua.NodeId.from_string(f"ns={await client.get_namespace_index(uri)};{rest}")
    except (UaError, ValueError) as error:
        raise ValueError(f"'{text}' is not a node of this server: {error}") from None


# ---------------------------------------------------------------- values read


def status_name(code: int) -> str:
    """Return the name of a status, as ``BadSensorFailure``, without its flags."""
    from asyncua.ua.status_codes import get_name_and_doc

    name: str = get_name_and_doc(code & 0xFFFF0000)[0]
    return name if not name.startswith("Unknown") else f"0x{code & 0xFFFF0000:08X}"


def quality_of(code: int) -> str:
    """Return the quality that a status means.

    >>> [quality_of(code) for code in (0, 0x480, 0x40000000, 0x808B0000)]
    ['good', 'good', 'uncertain', 'bad']
    """
    return ("good", "uncertain", "bad", "bad")[code >> 30]


def has_overflown(code: int) -> bool:
    """Return whether the server has discarded values before the one with this status."""
    return code & _OVERFLOW == _OVERFLOW


def time_text(time: datetime.datetime | None) -> str | None:
    """Return a time of OPC UA, which is UTC, as text."""
    return None if time is None else time.replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def plain(value: Any) -> Any:
    """Return a value as JSON can hold it; what has no JSON becomes text."""
    if value is None or isinstance(value, bool | int | float | str):
        if isinstance(value, float):
            return json_number(value)
        return int(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if isinstance(value, datetime.datetime):
        return time_text(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if hasattr(value, "Text"):  # a text with its language
        return value.Text
    if is_dataclass(value) and not isinstance(value, type) and not hasattr(value, "to_string"):
        return plain(asdict(value))
    return value.to_string() if hasattr(value, "to_string") else str(value)


# ---------------------------------------------------------------- values written


def fitting(value: Any, type_: ua.VariantType) -> Any:
    """Return a row's value as a node of a type takes it; raise ValueError where it does not fit.

    Nothing is rounded: 2.0 is a whole number, 2.5 is none.
    """
    from asyncua import ua

    name = type_.name
    number = isinstance(value, int | float | decimal.Decimal) and not isinstance(value, bool)
    if name in _INTEGERS and number and value - value == 0 and value == int(value):
        bits, low = _INTEGERS[name], 0 if name in _UNSIGNED else -(2 ** (_INTEGERS[name] - 1))
        if low <= value < low + 2**bits:
            return int(value)
    elif name in ("Float", "Double") and number:
        return float(value)
    elif name == "Boolean" and isinstance(value, bool):
        return value
    elif name in ("String", "LocalizedText") and isinstance(value, str):
        return value if name == "String" else ua.LocalizedText(value)
    elif name == "DateTime" and isinstance(value, datetime.datetime):
        return value if value.tzinfo is None else value.astimezone(datetime.UTC)
    elif name == "ByteString" and isinstance(value, bytes):
        return value
    raise ValueError(f"it takes {name}, and the value is {value!r}")
