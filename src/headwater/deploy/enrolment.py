"""Requests: how a party names the keys that it has made itself, and that nobody else has ever had.

A request has the party's public keys, the SHA-256 of its `federation.json` and of the authority's certificate. It is
signed with every key in it and, where they take the place of others, with those. It holds nothing secret. The answer
is an approval, `headwater.deploy.approval`. Both are checked completely before anything in them is used.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwater.deploy.authority import link_request
from headwater.deploy.folder import NAMES
from headwater.deploy.keys import certificate_hosts, fingerprint_line, is_signed, node_key_of, node_line, signed_with
from headwater.deploy.signed_json import VERSION, as_text, from_base64, read_fields, signed_part, to_base64
from headwater.deploy.transport import NAME, Address
from headwater.errors import ConfigError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey
    from cryptography.x509 import Certificate

NODE, LINK = "node", "link"
KINDS = {"server": (LINK,), "sector": (NODE, LINK), "client": (NODE,)}  # keys of a party, by role
KIND = "headwater request"
MOST_BYTES, MOST_LETTERS = 32 << 10, 16  # of a request, and of a party's name
VALID = timedelta(days=30)  # of a request
CLOCKS = timedelta(days=1)  # that a party's clock may be ahead
BEFORE = " before"  # after the kind of a key: signed with the one that was approved before
FIELDS = {"kind": str, "version": int, "federation": str, "made": str}
FIELDS |= {"party": str, "authority": str, "keys": dict, "signatures": dict}


@dataclass(frozen=True)
class KeyRequest:
    """A request that was read: well formed, and signed with every key in it.

    Args:
        name: of the party.
        role: of the party.
        federation: SHA-256 of its federation.json.
        authority: SHA-256 of the certificate of its authority.
        made: when.
        keys: public keys by kind, `node` and `link`.
        hosts: that the certificate of its link is to be valid for.
        body: what was signed.
        before: signatures with earlier keys, by kind; not checked yet.
    """

    name: str
    role: str
    federation: str
    authority: str
    made: datetime
    keys: Mapping[str, EllipticCurvePublicKey]
    hosts: frozenset[str]
    body: bytes
    before: Mapping[str, bytes]

    def continues(self, kind: str, key: EllipticCurvePublicKey) -> bool:
        """Whether the owner of an earlier key has signed it too."""
        return kind in self.before and is_signed(key, self.body, self.before[kind])


def make_request(
    name: str,
    federation: str,
    authority: str,
    keys: Mapping[str, EllipticCurvePrivateKey],
    before: Mapping[str, EllipticCurvePrivateKey],
    reach: Address | None,
) -> bytes:
    """The content of a request.

    Args:
        name: of the party.
        federation: SHA-256 of its federation.json.
        authority: SHA-256 of the certificate of its authority, from `certificate_hash`.
        keys: private keys by kind.
        before: keys that these take the place of, by kind.
        reach: where members reach its link; None without one.
    """
    public: dict[str, str] = {}
    if NODE in keys:
        public[NODE] = node_line(keys[NODE].public_key(), name).strip()
    if LINK in keys and reach is not None:
        public[LINK] = link_request(keys[LINK], name, reach).decode()
    made = datetime.now(UTC).isoformat(timespec="seconds")
    fields: dict[str, Any] = {"kind": KIND, "version": VERSION, "party": name, "federation": federation}
    fields |= {"authority": authority, "made": made, "keys": public}
    body = signed_part(fields)
    signed = {kind: to_base64(signed_with(key, body)) for kind, key in keys.items()}
    signed |= {f"{kind}{BEFORE}": to_base64(signed_with(key, body)) for kind, key in before.items()}
    return as_text(fields | {"signatures": signed})


def read_request(file: Path) -> KeyRequest:
    """Read a request and check all that can be checked without knowing the federation.

    Raises:
        ConfigError: says what is wrong with the file.
    """
    _, fields = read_fields(file, KIND, FIELDS, MOST_BYTES, "`headwater deploy enrol` or `rotate`")
    signatures = {kind: from_base64(text) for kind, text in fields.pop("signatures").items()}
    name = fields["party"]
    if (role := role_of(name)) is None:
        raise ConfigError(f"{file} is of {name[:20]!r}, and no party has such a name (server, s0, c0, …)")
    keys, hosts = {}, frozenset[str]()
    for kind, text in fields["keys"].items():
        if kind not in KINDS[role] or not isinstance(text, str):
            raise ConfigError(f"{file} names a key of the kind {kind[:20]!r}, which a {role} does not have")
        key: Any = node_key_of(text.encode(errors="replace")) if kind == NODE else None
        if kind == LINK:
            key, hosts = _signing_request(file, text, name)
        if key is None or key.curve.name != "secp384r1":
            raise ConfigError(f"{file}: its {kind} key is not on the curve P-384, on which Headwater makes keys")
        keys[kind] = key
    if not keys:
        raise ConfigError(f"{file} names no key; make it anew with: headwater deploy enrol DIR")
    body = signed_part(fields)
    for kind, key in keys.items():
        if not is_signed(key, body, signatures.get(kind) or b""):
            raise ConfigError(
                f"{file} is not signed with the {kind} key in it, so it was changed, or made by somebody who does not "
                f"have that key; ask {name} for its request again"
            )
    before = {kind: signature for kind in keys if (signature := signatures.get(f"{kind}{BEFORE}"))}
    made = _time(file, fields["made"])
    return KeyRequest(name, role, fields["federation"], fields["authority"], made, keys, hosts, body, before)


def check_request(request: KeyRequest, file: Path, federation: str, authority: str) -> None:
    """Check that a request is for a federation, and not too old.

    Args:
        file: where it was read from.
        federation: SHA-256 of federation.json.
        authority: SHA-256 of the authority's certificate.

    Raises:
        ConfigError: says what differs.
    """
    for what, theirs, ours in (
        ("federation.json", request.federation, federation),
        ("keys/ca.crt", request.authority, authority),
    ):
        if theirs != ours:
            raise ConfigError(
                f"{file} belongs to another federation, or the folder of {request.name} was changed on its way: "
                f"{what} has the SHA-256 {theirs[:16]}… there and {ours[:16]}… here; send {request.name} its folder "
                "again"
            )
    now = datetime.now(UTC)
    if not now - VALID <= request.made <= now + CLOCKS:
        raise ConfigError(
            f"{file} was made on {request.made:%Y-%m-%d}, and a request is valid for {VALID.days} days; ask "
            f"{request.name} to give the same command again, which keeps its key"
        )


def _signing_request(file: Path, text: str, name: str) -> tuple[Any, frozenset[str]]:
    """Key and hosts of a certificate signing request; the key is None if it is not on an elliptic curve."""
    from cryptography import x509
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

    try:
        asked = x509.load_pem_x509_csr(text.encode(errors="replace"))
        key = asked.public_key()
        signed = asked.is_signature_valid
        names = [str(part.value) for part in asked.subject]
        hosts = certificate_hosts(asked)
    except (ValueError, TypeError, UnsupportedAlgorithm, x509.ExtensionNotFound) as error:
        raise ConfigError(f"{file}: its certificate signing request cannot be read ({error})") from None
    if not signed or names != [name]:
        raise ConfigError(f"{file}: its certificate signing request is not one that {name} has signed for itself")
    for host in hosts:
        if Address(host, 0).ip is None and NAME.fullmatch(host) is None:
            raise ConfigError(f"{file}: its certificate signing request is for {host[:60]!r}, which is no host")
    return (key if isinstance(key, EllipticCurvePublicKey) else None), hosts


def _time(file: Path, text: str) -> datetime:
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        raise ConfigError(f"{file} was made at {text[:40]!r}, which is no time") from None


def shown(key: EllipticCurvePublicKey, name: str, kind: str) -> str:
    """The fingerprint of a party's key, as `ssh-keygen -lf` prints it, for two people to compare."""
    return fingerprint_line(key, name if kind == NODE else f"{name}-{kind}")


def role_of(name: str) -> str | None:
    """The role of a party with this name; None if no party can have it."""
    if len(name) > MOST_LETTERS:
        return None
    return next((role for role, like in NAMES.items() if re.fullmatch(like, name, re.ASCII)), None)


def certificate_hash(certificate: Certificate) -> str:
    """SHA-256 of a certificate."""
    from cryptography.hazmat.primitives.serialization import Encoding

    return hashlib.sha256(certificate.public_bytes(Encoding.DER)).hexdigest()
