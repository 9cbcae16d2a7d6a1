"""Verify a server before anything secret is sent to it.

A server is verified in one of three ways: by the fingerprint in its address; by the proof in its certificate, which
only a holder of the agent's credential can make; or by a certificate authority.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from headwater.core.address import PLAIN, Address
from headwater.core.errors import DeploymentError, Unavailable
from headwater.tls.certificate import OWN_NAME, NodeCredential, fingerprint_of, name_in, proofs_in

LOOK_SECONDS = 10.0
"""Timeout in seconds of the handshake in which a server is verified."""
_HINT_DOWN = "check that its agent runs and that the link is up"
_NOT_TLS = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG"})


@dataclass(frozen=True)
class Verified:
    """A verified server: the PEM of the roots to trust for it (None: the system's), and its name if not its host's.

    ``address`` has the fingerprint where a proof has verified it, so that others can be told.
    """

    address: Address
    roots: bytes | None
    name: str | None = None


def verify(
    address: Address,
    *,
    node: str,
    credential: NodeCredential | None = None,
    ca: Path | None = None,
    seconds: float = LOOK_SECONDS,
) -> Verified:
    """Verify the server at an address; raise Unavailable where another one answers, none, or one without TLS.

    ``credential``: that of the node, from which the proof in its certificate is checked; ``ca``: a PEM file.
    """
    shown = _shown(address, node, seconds)
    fingerprint = fingerprint_of(shown)
    if address.pin is not None:
        if fingerprint != address.pin:
            raise Unavailable(
                f"the certificate there is not the pinned one: it has {fingerprint}, and {address.pin} is expected; "
                "nothing was sent",
                where=f"{node} at {address.place}",
                hint="if the certificate was changed on purpose, correct the fingerprint in the continuum, or wait "
                "for the controller to announce it; otherwise find out which machine answers there",
            )
        return Verified(address, ssl.DER_cert_to_PEM_cert(shown).encode(), name_in(shown))
    digest, proofs = proofs_in(shown)
    if not proofs:
        return Verified(address, _checked_by_authority(address, node, ca, seconds))
    if credential is None:
        raise Unavailable(
            f"the fingerprint of its certificate is not known here; it has {fingerprint}; nothing was sent",
            where=f"{node} at {address.place}",
            hint="wait until the controller (`headwater up`) reaches both agents: it announces fingerprints",
        )
    if not credential.proves("certificate", digest, proofs):
        raise Unavailable(
            f"the certificate there was not made with the credential of {node}; it has {fingerprint}; nothing was sent",
            where=f"{node} at {address.place}",
            hint=f"give its agent what `headwater token {node}` prints, and restart it; if it has that, find out "
            "which machine answers there",
        )
    return Verified(address.pinned(fingerprint), ssl.DER_cert_to_PEM_cert(shown).encode(), OWN_NAME)


def _shown(address: Address, node: str, seconds: float) -> bytes:
    """Return the certificate that a server shows and has the key of; it is not trusted yet, and nothing is sent."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with _connecting(address, node), _connected(address, context, seconds) as connection:
        shown = connection.getpeercert(binary_form=True)
    assert shown is not None
    return shown


def _checked_by_authority(address: Address, node: str, ca: Path | None, seconds: float) -> bytes | None:
    """Check that a trusted authority has signed a server's certificate for this host; return the roots to trust."""
    try:
        roots = ca.read_bytes() if ca else None
        context = ssl.create_default_context(cadata=roots.decode() if roots else None)
    except (OSError, ValueError) as error:
        raise DeploymentError(
            f"cannot read the certificates of authorities: {error}", where=str(ca), hint="correct HEADWATER_CA"
        ) from error
    # Newer Pythons refuse authorities without extensions that gRPC does not need.
    context.verify_flags &= ~getattr(ssl, "VERIFY_X509_STRICT", ssl.VerifyFlags(0))
    try:
        with _connecting(address, node), _connected(address, context, seconds):
            return roots
    except ssl.SSLCertVerificationError as error:
        raise Unavailable(
            f"neither its node's credential nor a trusted authority vouches for the certificate there: "
            f"{error.verify_message}; nothing was sent",
            where=f"{node} at {address.place}",
            hint="name the authority's PEM file in HEADWATER_CA, or write the certificate's fingerprint behind the "
            "address: host:port#sha256:...",
        ) from error


def answers_with_tls(address: Address, seconds: float = 1.0) -> bool:
    """Return whether a server that was expected to speak clear text speaks TLS."""
    with contextlib.suppress(Unavailable):
        return bool(_shown(address, address.place, seconds))
    return False


@contextlib.contextmanager
def _connecting(address: Address, node: str) -> Iterator[None]:
    """Translate the errors of a connection, but for certificates that are not trusted."""
    try:
        yield
    except ssl.SSLCertVerificationError:
        raise
    except ssl.SSLError as error:
        if error.reason in _NOT_TLS:
            raise Unavailable(
                "the server there speaks no TLS; nothing was sent",
                where=f"{node} at {address.place}",
                hint="run the same version of Headwater there, without --insecure; to allow clear text, start it with "
                f"--insecure and write {PLAIN}{address.place} in the continuum",
            ) from error
        raise Unavailable(
            f"the TLS handshake failed: {error.reason or error}", where=f"{node} at {address.place}", hint=_HINT_DOWN
        ) from error
    except OSError as error:
        raise Unavailable(f"no answer from {node}", where="zone", hint=_HINT_DOWN) from error


@contextlib.contextmanager
def _connected(address: Address, context: ssl.SSLContext, seconds: float) -> Iterator[ssl.SSLSocket]:
    context.set_alpn_protocols(["h2"])  # gRPC's servers expect it
    with (
        socket.create_connection((address.host, address.port), seconds) as connection,
        context.wrap_socket(connection, server_hostname=address.host) as secured,
    ):
        yield secured
