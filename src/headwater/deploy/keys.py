"""Certificates and keys of a federation: its own certificate authority, a certificate per link, a key per member.

The party that runs a link has a TLS certificate, which members verify; the connection is encrypted. A party that joins
a link signs its requests with its node key, and the link admits only the public keys it has on disk. Flower takes node
keys on the curve P-384, in the OpenSSH format.
"""

from __future__ import annotations

import ipaddress
import os
import shlex
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from headwater.deploy.folder import INIT_AGAIN
from headwater.deploy.transport import Address
from headwater.errors import ConfigError, MissingExtra

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.x509 import Certificate

    from headwater.deploy.folder import PartyFolder

LINK_DAYS, CA_DAYS = 825, 3650
EARLIER = timedelta(days=1)  # validity begins in the past, since clocks differ
SOON = timedelta(days=30)  # warn this long before a certificate expires
OTHER_USERS = stat.S_IRWXG | stat.S_IRWXO


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


class Authority:
    """A new certificate authority, which signs the link certificates of one federation."""

    def __init__(self) -> None:
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric import ec

        self._key = ec.generate_private_key(ec.SECP384R1())
        self._name = _named("Headwater federation")
        self._from = datetime.now(UTC) - EARLIER
        builder = _builder(self._name, self._name, self._key, self._from, CA_DAYS)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        self._certificate = builder.add_extension(_usage(ca=True), critical=True).sign(self._key, _sha384())

    @property
    def pair(self) -> KeyPair:
        return KeyPair(_pem(self._key), _certificate(self._certificate))

    def link(self, name: str, reach: Address) -> KeyPair:
        """Key and certificate of a link, valid for the host that members connect to and for loopback.

        Args:
            name: of the party that runs the link.
            reach: where members reach it.
        """
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import ExtendedKeyUsageOID

        key = ec.generate_private_key(ec.SECP384R1())
        builder = _builder(_named(name), self._name, key, self._from, LINK_DAYS)
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        parts: list[tuple[Any, bool]] = [
            (x509.BasicConstraints(ca=False, path_length=None), True),
            (_usage(ca=False), True),
            (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False),
            (x509.SubjectAlternativeName(_alternatives(reach)), False),
            (issuer, False),
        ]
        for part, critical in parts:
            builder = builder.add_extension(part, critical=critical)
        return KeyPair(_pem(key), _certificate(builder.sign(self._key, _sha384())))


def node_keys(name: str) -> KeyPair:
    """The keys of a party that joins a link."""
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.OpenSSH, form.NoEncryption())
    public = key.public_key().public_bytes(form.Encoding.OpenSSH, form.PublicFormat.OpenSSH)
    return KeyPair(private, public + f" {name}\n".encode())


def check_files(folder: PartyFolder) -> None:
    """Refuse a folder with missing key files, or with private ones that other users can read.

    Raises:
        ConfigError: names the file.
    """
    keys = folder.keys
    private = [keys / "link.key"] if folder.link else []
    public = [keys / "ca.crt"] + ([keys / "link.crt"] if folder.link else [])
    if folder.above:
        private.append(keys / "node.key")
        public.append(keys / "node.pub")
    for file in (*private, *public, *(keys / "members" / f"{name}.pub" for name in folder.members)):
        if not file.is_file():
            raise ConfigError(
                f"there is no {file}, which {folder.role} {folder.name} needs; bring it back, or {INIT_AGAIN}"
            )
    if os.name != "posix":
        return
    for file, mode in (*((key, "600") for key in private), (keys, "700")):
        if stat.S_IMODE(file.stat().st_mode) & OTHER_USERS:
            what = "other users can get into" if mode == "700" else "other users can read or change"
            raise ConfigError(f"{what} {file}, and it is private; do: chmod {mode} {shlex.quote(str(file))}")


def check(folder: PartyFolder) -> list[str]:
    """Check that the keys and certificates of a folder belong together and are valid.

    Returns:
        Warnings about certificates that expire soon.

    Raises:
        ConfigError: names the file.
    """
    if folder.insecure:
        return []
    need_cryptography()
    warnings: list[str] = []
    if folder.link is not None:
        warnings = _check_link(folder.keys, Address.parse(folder.link.reach or folder.link.address, "link.reach"))
    if folder.above is not None:
        public = _private(folder.keys / "node.key").public_key()
        if _public(folder.keys / "node.pub") != public:
            raise ConfigError(
                f"{folder.keys / 'node.pub'} is not the public half of {folder.keys / 'node.key'}; bring back the pair "
                "that belongs together"
            )
    for member in folder.members:
        _public(folder.keys / "members" / f"{member}.pub")
    return warnings


def _check_link(keys: Path, reach: Address) -> list[str]:
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    authority, certificate = _load(keys / "ca.crt"), _load(keys / "link.crt")
    try:
        key = load_pem_private_key((keys / "link.key").read_bytes(), None)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{keys / 'link.key'} holds no private key without a password ({error})") from None
    if key.public_key() != certificate.public_key():
        raise ConfigError(
            f"{keys / 'link.crt'} is the certificate of another key than {keys / 'link.key'}; bring back the pair that "
            "belongs together"
        )
    try:
        certificate.verify_directly_issued_by(authority)
    except (InvalidSignature, ValueError, TypeError):
        raise ConfigError(
            f"{keys / 'link.crt'} was not signed by {keys / 'ca.crt'}, so no member would trust this link; bring back "
            "the files that belong together"
        ) from None
    until = min(certificate.not_valid_after_utc, authority.not_valid_after_utc)
    left = until - datetime.now(UTC)
    if left <= timedelta():
        raise ConfigError(
            f"the certificate {keys / 'link.crt'} ran out on {until:%Y-%m-%d}; docs/deploy.md says how to renew it"
        )
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    hosts = {*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))}
    if not reach.wildcard and (str(reach.ip) if reach.ip else reach.host) not in hosts:
        raise ConfigError(
            f"the certificate {keys / 'link.crt'} is for {', '.join(sorted(hosts))}, but members reach this link at "
            f"{reach.host}; renew it for that host (docs/deploy.md says how)"
        )
    return [f"the certificate {keys / 'link.crt'} runs out on {until:%Y-%m-%d}; renew it soon"] if left < SOON else []


def _load(file: Path) -> Certificate:
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificate(file.read_bytes())
    except ValueError as error:
        raise ConfigError(f"{file} holds no certificate ({error}); bring back the one that was there") from None


def _private(file: Path) -> EllipticCurvePrivateKey:
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


def _public(file: Path) -> Any:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key

    try:
        key: Any = load_ssh_public_key(file.read_bytes())
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, EllipticCurvePublicKey):
        raise ConfigError(
            f"{file} holds no public key that Flower takes: it must be one line that begins with ecdsa-sha2-nistp384"
        )
    return key


def _alternatives(reach: Address) -> list[Any]:
    from cryptography import x509

    ips = {ipaddress.ip_address("127.0.0.1"), *([reach.ip] if reach.ip is not None and not reach.wildcard else [])}
    names = {"localhost", *([reach.host.lower()] if reach.ip is None else [])}
    return [*(x509.DNSName(name) for name in sorted(names)), *(x509.IPAddress(ip) for ip in sorted(ips, key=str))]


def _named(name: str) -> Any:
    from cryptography import x509

    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])


def _builder(subject: Any, issuer: Any, key: EllipticCurvePrivateKey, start: datetime, days: int) -> Any:
    from cryptography import x509

    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(start).not_valid_after(start + EARLIER + timedelta(days=days))
    return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)


def _usage(*, ca: bool) -> Any:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=ca,
        crl_sign=ca,
        encipher_only=False,
        decipher_only=False,
    )


def _sha384() -> Any:
    from cryptography.hazmat.primitives import hashes

    return hashes.SHA384()


def _pem(key: EllipticCurvePrivateKey) -> bytes:
    from cryptography.hazmat.primitives import serialization as form

    return key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption())


def _certificate(certificate: Certificate) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.PEM)
