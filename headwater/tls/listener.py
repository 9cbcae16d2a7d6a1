"""The TLS of a listener: whether it speaks it, and its certificate."""

from __future__ import annotations

import socket
import ssl
from dataclasses import dataclass
from pathlib import Path

from headwater.core.address import is_loopback, needs_tls
from headwater.core.errors import DeploymentError
from headwater.tls.certificate import NodeCredential, fingerprint_of, own_certificate


@dataclass(frozen=True)
class ListenerTls:
    """The TLS of a listener: the files of certificate and key, the fingerprint, and whether it was made here."""

    certificate: Path
    key: Path
    fingerprint: str
    own: bool

    @property
    def pair(self) -> tuple[str, str]:
        """The PEM texts of certificate and key."""
        return self.certificate.read_text(), self.key.read_text()


def listener_tls(
    host: str,
    directory: Path,
    *,
    asked: bool | None,
    certificate: Path | None = None,
    key: Path | None = None,
    credential: NodeCredential | None = None,
) -> ListenerTls | None:
    """Choose the TLS of a listener at a host; None: clear text.

    ``asked``: of the options --tls and --insecure; ``certificate``, ``key``: of the user. Without them, those in
    ``directory`` are used, which are made at the first use.
    """
    if (certificate is None) != (key is None):
        raise DeploymentError("one of them is missing", where="--tls-cert, --tls-key", hint="give both, or none")
    if certificate is not None and key is not None:
        if asked is False:
            raise DeploymentError("there is a certificate", where="--insecure", hint="leave out one of the options")
        return ListenerTls(certificate, key, _fingerprint_in(certificate, key), own=False)
    if not needs_tls(host, asked):
        return None
    # Clients of an agent pin its certificate: another address of it must not change the fingerprint.
    names = () if credential is not None else _names(host)
    own = own_certificate(directory, names=names, credential=credential)
    return ListenerTls(own.public, own.file, own.fingerprint, own=True)


def _fingerprint_in(certificate: Path, key: Path) -> str:
    """Return the fingerprint of a user's certificate; raise DeploymentError where it cannot be used with its key."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password=lambda: "")
        begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
        first = certificate.read_text().partition(begin)[2].partition(end)[0]
        return fingerprint_of(ssl.PEM_cert_to_DER_cert(begin + first + end))
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
        raise DeploymentError(
            f"they cannot be used: {reason}",
            where=f"--tls-cert {certificate}, --tls-key {key}",
            hint="give a PEM file with the certificate and those that signed it, and one with its key, without a "
            "passphrase",
        ) from error


def _names(host: str) -> tuple[str, ...]:
    """Return the names under which clients may ask for a listener."""
    bare = host.strip("[]")
    return (bare,) if bare not in ("", "0.0.0.0", "::") else (socket.gethostname(),)


def clear_text_warning(host: str) -> str | None:
    """Return the warning for a listener without TLS; None where only its own machine reaches it."""
    if is_loopback(host):
        return None
    return "in clear text (--insecure): whoever reads the network reads its data and tokens, and may use them"
