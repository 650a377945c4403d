"""Keys of a federation: a TLS certificate per link, a node key per member; how they are made, read and used.

The party that runs a link has a TLS certificate, which members verify; the connection is encrypted. A party that joins
a link signs its requests with its node key, and the link admits only the public keys it has on disk. Flower takes node
keys on the curve P-384, in the OpenSSH format.
"""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from headwater.errors import ConfigError, MissingExtra

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey
    from cryptography.x509 import Certificate, CertificateSigningRequest

NEXT = "next"  # in `keys`: private keys that were made here and are not approved yet


class KeyPair(NamedTuple):
    """A private key and its public key or certificate, as the content of files."""

    private: bytes
    public: bytes


def need_cryptography() -> None:
    """Raise MissingExtra unless `cryptography` is installed, which the extra `flower` brings."""
    try:
        import cryptography  # noqa: F401
    except ImportError:
        raise MissingExtra("making keys for a federation", "flower") from None


def node_keys(name: str) -> KeyPair:
    """New keys of a party that joins a link."""
    from cryptography.hazmat.primitives import serialization as form

    key = _new_key()
    private = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.OpenSSH, form.NoEncryption())
    return KeyPair(private, node_line(key.public_key(), name).encode())


def link_key() -> bytes:
    """A new private key of a party that runs a link, as PEM."""
    return link_pem(_new_key())


def link_pem(key: EllipticCurvePrivateKey) -> bytes:
    """A private key as PEM."""
    from cryptography.hazmat.primitives import serialization as form

    return key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption())


def node_line(key: EllipticCurvePublicKey, name: str) -> str:
    """A public key as a line of OpenSSH, with the party's name as its comment."""
    from cryptography.hazmat.primitives import serialization as form

    return f"{key.public_bytes(form.Encoding.OpenSSH, form.PublicFormat.OpenSSH).decode()} {name}\n"


def _new_key() -> EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP384R1())


def signed_with(key: EllipticCurvePrivateKey, content: bytes) -> bytes:
    """An ECDSA signature."""
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    return key.sign(content, ec.ECDSA(hashes.SHA384()))


def is_signed(key: Any, content: bytes, signature: bytes) -> bool:
    """Whether a signature is that of a key under this content."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    try:
        key.verify(signature, content, ec.ECDSA(hashes.SHA384()))
        return True
    except InvalidSignature:
        return False


def fingerprint(public_key: bytes) -> str:
    """SHA-256 of a public key in PEM or OpenSSH format, as `ssh-keygen -l` prints it; of other bytes, of these."""
    from cryptography.hazmat.primitives import serialization

    data = public_key
    try:
        pem = public_key.startswith(b"-----")
        key = (serialization.load_pem_public_key if pem else serialization.load_ssh_public_key)(public_key)
        text = key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
        data = base64.b64decode(text.split()[1])
    except Exception:  # a key of a kind that OpenSSH does not know
        pass
    return f"SHA256:{base64.b64encode(hashlib.sha256(data).digest()).decode().rstrip('=')}"


def fingerprint_line(key: EllipticCurvePublicKey, name: str) -> str:
    """The line that `ssh-keygen -lf` prints for a public key."""
    return f"{key.key_size} {fingerprint(node_line(key, name).encode())} {name} (ECDSA)"


def certificate_hosts(certificate: Certificate | CertificateSigningRequest) -> frozenset[str]:
    """Names and addresses of hosts that a certificate is for, or is asked for."""
    from cryptography import x509

    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return frozenset([*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))])


def is_issued_by(certificate: Certificate, authority: Certificate) -> bool:
    """Whether an authority has signed a certificate."""
    from cryptography.exceptions import InvalidSignature

    try:
        certificate.verify_directly_issued_by(authority)
        return True
    except (InvalidSignature, ValueError, TypeError):
        return False


def link_private(file: Path) -> EllipticCurvePrivateKey:
    """Read the private key of a link or of an authority, as `headwater deploy` makes them."""
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

    key = pem_private(file)
    if not isinstance(key, EllipticCurvePrivateKey):
        raise ConfigError(f"{file} holds a private key that is not on a NIST curve, as `headwater deploy` makes them")
    return key


def pem_private(file: Path) -> Any:
    """Read a private key of any kind."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        return load_pem_private_key(file.read_bytes(), None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"{file} holds no private key without a password ({error})") from None


def read_certificate(file: Path) -> Certificate:
    """Read a certificate."""
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificate(file.read_bytes())
    except ValueError as error:
        raise ConfigError(f"{file} holds no certificate ({error}); bring back the one that was there") from None


def node_private(file: Path) -> EllipticCurvePrivateKey:
    """Read the private key of a member."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    try:
        key: Any = load_ssh_private_key(file.read_bytes(), None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, EllipticCurvePrivateKey):
        raise ConfigError(
            f"{file} holds no key that Flower takes: it must be on a NIST curve, in OpenSSH's form and without a "
            "password, as `ssh-keygen -t ecdsa -b 384` makes it"
        )
    return key


def node_public(file: Path) -> EllipticCurvePublicKey:
    """Read the public key of a member."""
    if (key := node_key_of(file.read_bytes())) is None:
        raise ConfigError(
            f"{file} holds no public key that Flower takes: it must be one line that begins with ecdsa-sha2-nistp384"
        )
    return key


def node_key_of(line: bytes) -> EllipticCurvePublicKey | None:
    """The public key in a line of OpenSSH; None if it is none on a NIST curve."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key

    try:
        key: Any = load_ssh_public_key(line)
    except (ValueError, UnsupportedAlgorithm):
        return None
    return key if isinstance(key, EllipticCurvePublicKey) else None
