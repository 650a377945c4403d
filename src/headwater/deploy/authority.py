"""The certificate authority of a federation: signs the certificates of links, and approvals of the parties' keys."""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwater.deploy.keys import KeyPair, link_pem, link_private, read_certificate, signed_with
from headwater.deploy.private_files import check_private
from headwater.deploy.transport import Address
from headwater.errors import ConfigError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey
    from cryptography.x509 import Certificate

LINK_DAYS, CA_DAYS = 825, 3650
EARLIER = timedelta(days=1)  # validity begins in the past, since clocks differ


class Authority:
    """A certificate authority, which signs for one federation. Without arguments, a new one."""

    def __init__(self, key: EllipticCurvePrivateKey | None = None, certificate: Certificate | None = None) -> None:
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric import ec

        self._key = key or ec.generate_private_key(ec.SECP384R1())
        if certificate is None:
            name = _named("Headwater federation")
            builder = _builder(name, name, self._key.public_key(), CA_DAYS)
            builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            certificate = builder.add_extension(_usage(ca=True), critical=True).sign(self._key, _sha384())
        self.certificate = certificate

    @staticmethod
    def load(folder: Path) -> Authority:
        """Read the authority that `headwater deploy init` wrote.

        Args:
            folder: with `ca.crt` and `ca.key`.

        Raises:
            ConfigError: names the file that is missing, readable by others, damaged or has run out.
        """
        for file in (folder / "ca.crt", folder / "ca.key"):
            if not file.is_file():
                raise ConfigError(
                    f"there is no {file}; this is done where the authority of the federation is: name the directory "
                    "that `headwater deploy init` wrote, with ca/ in it"
                )
        check_private(folder / "ca.key")
        key, certificate = link_private(folder / "ca.key"), read_certificate(folder / "ca.crt")
        if key.public_key() != certificate.public_key():
            raise ConfigError(
                f"{folder / 'ca.crt'} is the certificate of another key than ca.key; bring back the pair that belongs "
                "together"
            )
        if (until := certificate.not_valid_after_utc) <= datetime.now(UTC):
            raise ConfigError(
                f"the certificate {folder / 'ca.crt'} ran out on {until:%Y-%m-%d}, and with it all that it signed; "
                "`headwater deploy init` makes a new federation"
            )
        return Authority(key, certificate)

    @property
    def pair(self) -> KeyPair:
        return KeyPair(link_pem(self._key), _certificate(self.certificate))

    def link(self, name: str, reach: Address) -> KeyPair:
        """A new key with a certificate for a link; only for federations whose parties do not make their own.

        Args:
            name: of the party that runs the link.
            reach: where members reach it.
        """
        from cryptography.hazmat.primitives.asymmetric import ec

        key = ec.generate_private_key(ec.SECP384R1())
        return KeyPair(link_pem(key), self.certify(name, key.public_key(), link_hosts(reach)))

    def certify(self, name: str, key: EllipticCurvePublicKey, hosts: frozenset[str]) -> bytes:
        """The certificate of a link, as PEM.

        Args:
            name: of the party that runs the link.
            key: of the link.
            hosts: names and addresses that it is valid for.
        """
        from cryptography import x509
        from cryptography.x509.oid import ExtendedKeyUsageOID

        builder = _builder(_named(name), self.certificate.subject, key, LINK_DAYS)
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        parts: list[tuple[Any, bool]] = [
            (x509.BasicConstraints(ca=False, path_length=None), True),
            (_usage(ca=False), True),
            (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False),
            (alternative_names(hosts), False),
            (issuer, False),
        ]
        for part, critical in parts:
            builder = builder.add_extension(part, critical=critical)
        return _certificate(builder.sign(self._key, _sha384()))

    def sign(self, content: bytes) -> bytes:
        """The signature of the authority under something else than a certificate."""
        return signed_with(self._key, content)


def link_request(key: EllipticCurvePrivateKey, name: str, reach: Address) -> bytes:
    """A certificate signing request for a link, as PEM.

    Args:
        key: of the link.
        name: of the party that runs it.
        reach: where members reach it.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import Encoding

    builder = x509.CertificateSigningRequestBuilder().subject_name(_named(name))
    builder = builder.add_extension(alternative_names(link_hosts(reach)), critical=False)
    return builder.sign(key, _sha384()).public_bytes(Encoding.PEM)


def link_hosts(reach: Address) -> frozenset[str]:
    """Hosts that the certificate of a link is valid for: the one that members connect to, and loopback."""
    own = {str(reach.ip) if reach.ip is not None else reach.host.lower()} if not reach.wildcard else set()
    return frozenset({"127.0.0.1", "localhost", *own})


def alternative_names(hosts: frozenset[str]) -> Any:
    """These hosts as the subject alternative names of a certificate: host names first."""
    from cryptography import x509

    ips = {host: ip for host in hosts if (ip := Address(host, 0).ip) is not None}
    names = [x509.DNSName(host) for host in sorted(hosts - ips.keys())]
    return x509.SubjectAlternativeName([*names, *(x509.IPAddress(ipaddress.ip_address(ips[ip])) for ip in sorted(ips))])


def _named(name: str) -> Any:
    from cryptography import x509

    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])


def _builder(subject: Any, issuer: Any, key: EllipticCurvePublicKey, days: int) -> Any:
    from cryptography import x509

    now = datetime.now(UTC)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now - EARLIER).not_valid_after(now + timedelta(days=days))
    return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)


def _usage(*, ca: bool) -> Any:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=True,  # of an authority: under approvals
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


def _certificate(certificate: Certificate) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.PEM)
