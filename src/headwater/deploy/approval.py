"""Approvals: the public keys and link certificates of all parties that an authority has approved so far.

There is one file for all parties, signed by the authority. It holds nothing secret. Every approval has a larger number
than those before it, so that an old one is not taken for the latest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from headwater.deploy.authority import Authority
from headwater.deploy.enrolment import KINDS, NODE, role_of
from headwater.deploy.keys import is_signed, node_key_of
from headwater.deploy.signed_json import VERSION, as_text, from_base64, read_fields, signed_part, to_base64
from headwater.errors import ConfigError

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

FILE = "approval.json"
KIND = "headwater approval"
MOST_BYTES = 8 << 20
NUMBERS = 1 << 53  # larger ones are not exact in every JSON library
FIELDS = {"kind": str, "version": int, "federation": str, "made": str, "number": int, "parties": dict, "signature": str}


class ApprovedKeys(NamedTuple):
    """The keys of one party.

    Args:
        node: public key as a line of OpenSSH; empty for the server.
        link: certificate of its link as PEM; empty for a client.
    """

    node: str = ""
    link: str = ""


@dataclass(frozen=True)
class KeyApproval:
    """All that an authority has approved so far.

    Args:
        federation: SHA-256 of federation.json.
        number: 1 for the first approval; a later one has a larger number.
        parties: keys by party.
        content: of the file that it was read from.
    """

    federation: str
    number: int = 0
    parties: Mapping[str, ApprovedKeys] = field(default_factory=dict)
    content: bytes = field(default=b"", compare=False)

    def certificate(self, name: str) -> Certificate | None:
        """The certificate of a party's link; None if there is none that can be read."""
        from cryptography import x509

        try:
            text = self.parties.get(name, ApprovedKeys()).link.encode(errors="replace")
            return x509.load_pem_x509_certificate(text) if text else None
        except ValueError:
            return None

    def key(self, name: str, kind: str) -> Any:
        """A public key of a party; None if there is none."""
        if kind == NODE:
            return node_key_of(self.parties.get(name, ApprovedKeys()).node.encode(errors="replace"))
        return None if (certificate := self.certificate(name)) is None else certificate.public_key()


def approval_text(approval: KeyApproval, authority: Authority) -> bytes:
    """The content of an approval's file, signed by the authority."""
    fields: dict[str, Any] = {"kind": KIND, "version": VERSION, "federation": approval.federation}
    fields |= {"made": datetime.now(UTC).isoformat(timespec="seconds"), "number": approval.number}
    fields["parties"] = {
        name: {kind: text for kind, text in keys._asdict().items() if text} for name, keys in approval.parties.items()
    }
    return as_text(fields | {"signature": to_base64(authority.sign(signed_part(fields)))})


def read_approval(file: Path, authority: Certificate, federation: str) -> KeyApproval:
    """Read an approval.

    Args:
        file: the approval.
        authority: certificate of the authority that must have signed it.
        federation: SHA-256 of the federation.json that it must be for.

    Raises:
        ConfigError: says what is wrong with the file.
    """
    content, fields = read_fields(file, KIND, FIELDS, MOST_BYTES, "`headwater deploy approve`")
    signature = from_base64(fields.pop("signature"))
    if not is_signed(authority.public_key(), signed_part(fields), signature):
        raise ConfigError(
            f"{file} is not signed by the authority of this federation (keys/ca.crt), so it is of another one or was "
            "changed on its way; ask the operator of the federation for it again"
        )
    if fields["federation"] != federation:
        raise ConfigError(
            f"{file} is for another federation.json than the one in this folder; bring back the one that all parties "
            "have"
        )
    parties = {}
    for name, keys in fields["parties"].items():
        if not isinstance(keys, dict) or (role := role_of(name)) is None or set(keys) != {*KINDS[role]}:
            raise ConfigError(f"{file} has keys of {name[:20]!r} that no party has; ask for it again")
        parties[name] = ApprovedKeys(**{kind: str(text) for kind, text in keys.items()})
    if not 0 < fields["number"] < NUMBERS:
        raise ConfigError(f"{file} has the number {fields['number']}, which no approval has")
    return KeyApproval(fields["federation"], fields["number"], parties, content)
