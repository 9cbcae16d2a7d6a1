"""Own certificates of listeners: made at the first start, kept with their key in the listener's directory.

An agent's certificate carries a proof, made with the agent's credential, that its key belongs to the agent. So the
controller verifies it without a certificate authority, and without a fingerprint that somebody has to copy.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from headwater.core.address import fingerprint_form
from headwater.core.errors import DeploymentError
from headwater.disk.durable import write_atomically

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding

OWN_NAME = "headwater"
"""The name in every own certificate: clients that pin it verify this name, whatever its address."""
_PROOFS = "2.25.150284417329850416352418970112645803377"
"""Identifier of the extension with the proofs; arc 2.25 holds numbers that anyone may draw."""
# They are trusted by their fingerprint, on machines whose clocks may be wrong: their dates must refuse nobody.
_FROM, _UNTIL = datetime(1970, 1, 1), datetime(9999, 12, 31, 23, 59, 59)


class NodeCredential(Protocol):
    """The credential of an agent, as far as certificates need it."""

    def proofs(self, purpose: str, content: str) -> tuple[str, ...]:
        """Return proofs that a holder of this credential states a content."""
        ...

    def proves(self, purpose: str, content: str, proofs: Iterable[str]) -> bool:
        """Return whether one of the proofs is by a holder of this credential."""
        ...


@dataclass(frozen=True)
class Certificate:
    """A listener's certificate and its key. ``file`` holds both, ``public`` the certificate alone."""

    file: Path
    public: Path

    @property
    def fingerprint(self) -> str:
        import ssl

        return fingerprint_of(ssl.PEM_cert_to_DER_cert(self.public.read_text()))


def fingerprint_of(der: bytes) -> str:
    """Return the SHA-256 fingerprint of a certificate."""
    return fingerprint_form(hashlib.sha256(der).hexdigest())


def own_certificate(
    directory: Path, *, names: Sequence[str] = (), credential: NodeCredential | None = None
) -> Certificate:
    """Return the certificate in a directory; make key and certificate at the first use.

    ``names``: further names and addresses of the listener. A certificate without them, or without the proof of this
    credential, is replaced by one with the same key. Refuse a key that other users can read.
    """
    found = Certificate(directory / "tls.pem", directory / "certificate.pem")
    every = list(dict.fromkeys([OWN_NAME, *names]))
    key = _key_in(found.file) if found.file.exists() else None
    if key is not None and _serves(found, every, credential):
        return found
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    secret, shown = _issued(key, every, credential)
    write_atomically(found.file, secret + shown, mode=0o600)
    write_atomically(found.public, shown)
    return found


def proofs_in(der: bytes) -> tuple[str, list[str]]:
    """Return the digest of a certificate's public key, and the proofs that it carries."""
    from cryptography import x509

    certificate = x509.load_der_x509_certificate(der)
    try:
        found = certificate.extensions.get_extension_for_oid(x509.ObjectIdentifier(_PROOFS)).value
        proofs = json.loads(found.value) if isinstance(found, x509.UnrecognizedExtension) else []
    except (x509.ExtensionNotFound, ValueError):
        proofs = []
    return _digest(certificate), [str(p) for p in proofs] if isinstance(proofs, list) else []


def name_in(der: bytes) -> str | None:
    """Return a name for which a certificate is made."""
    from cryptography import x509

    certificate = x509.load_der_x509_certificate(der)
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return None
    dns = names.get_values_for_type(x509.DNSName)
    return next((str(name) for name in (*dns, *names.get_values_for_type(x509.IPAddress))), None)


def _key_in(file: Path) -> EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    found = file.stat()
    if found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise DeploymentError(
            "other users may know this key", where=str(file), hint="delete the file: a new key and certificate are made"
        )
    try:
        key = load_pem_private_key(file.read_bytes(), None)
    except (ValueError, TypeError):
        key = None
    if not isinstance(key, EllipticCurvePrivateKey):
        raise DeploymentError(
            "it holds no key as this program makes them",
            where=str(file),
            hint="delete the file: a new key and certificate are made; give your own with --tls-cert and --tls-key",
        )
    return key


def _serves(found: Certificate, names: Sequence[str], credential: NodeCredential | None) -> bool:
    """Return whether a stored certificate has these names, and the proofs of this credential alone."""
    from cryptography import x509

    try:
        shown = found.public.read_text()
        certificate = x509.load_pem_x509_certificate(shown.encode())
        held = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (OSError, ValueError, x509.ExtensionNotFound):
        return False
    digest, proofs = proofs_in(certificate.public_bytes(_der()))
    wanted = list(credential.proofs("certificate", digest)) if credential else []
    return found.file.read_text().endswith(shown) and proofs == wanted and list(held) == _general(names)


def _issued(
    key: EllipticCurvePrivateKey | None, names: Sequence[str], credential: NodeCredential | None
) -> tuple[str, str]:
    """Return the PEM texts of a key and of a certificate signed by itself."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = key or ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, OWN_NAME)])
    draft = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_FROM)
        .not_valid_after(_UNTIL)
        .add_extension(x509.SubjectAlternativeName(_general(names)), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    )
    if credential is not None:
        public = key.public_key().public_bytes(_der(), serialization.PublicFormat.SubjectPublicKeyInfo)
        proofs = json.dumps(credential.proofs("certificate", hashlib.sha256(public).hexdigest())).encode()
        draft = draft.add_extension(x509.UnrecognizedExtension(x509.ObjectIdentifier(_PROOFS), proofs), critical=False)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return private.decode(), draft.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()


def _digest(certificate: x509.Certificate) -> str:
    from cryptography.hazmat.primitives.serialization import PublicFormat

    public = certificate.public_key().public_bytes(_der(), PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(public).hexdigest()


def _der() -> Encoding:
    from cryptography.hazmat.primitives.serialization import Encoding

    return Encoding.DER


def _general(names: Sequence[str]) -> list[x509.GeneralName]:
    from cryptography import x509

    found: list[x509.GeneralName] = []
    for name in names:
        try:
            found.append(x509.IPAddress(ipaddress.ip_address(name)))
        except ValueError:
            found.append(x509.DNSName(name))
    return found
