"""Checks of the keys in a party's folder: that they are there, private, valid, and belong together."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from headwater.deploy.folder import INIT_AGAIN
from headwater.deploy.keys import (
    NEXT,
    certificate_hosts,
    is_issued_by,
    need_cryptography,
    node_private,
    node_public,
    pem_private,
    read_certificate,
)
from headwater.deploy.private_files import check_private
from headwater.deploy.transport import Address
from headwater.errors import ConfigError

if TYPE_CHECKING:
    from headwater.deploy.folder import PartyFolder

SOON = timedelta(days=30)  # warn this long before a certificate expires


def check_files(folder: PartyFolder) -> None:
    """Refuse a folder with missing key files, or with private ones that other users can read.

    Raises:
        ConfigError: names the file.
    """
    keys, who, here = folder.keys, f"{folder.role} {folder.name}", shlex.quote(str(folder.path))
    kinds = (["link"] if folder.link else []) + (["node"] if folder.above else [])
    private = [keys / f"{kind}.key" for kind in kinds]
    certified = [keys / "link.crt"] if folder.link else []
    if not (keys / "ca.crt").is_file():
        raise ConfigError(f"there is no {keys / 'ca.crt'}, which {who} needs; bring it back, or {INIT_AGAIN}")
    for file in (*private, *certified, *([keys / "node.pub"] if folder.above else [])):
        if file.is_file():
            continue
        if any((keys / NEXT / f"{kind}.key").is_file() for kind in kinds):
            raise ConfigError(
                f"there is no {file}: the new keys of {who} are not approved yet; send its request to the operator of "
                f"the federation, and install the approval with: headwater deploy enrol {here} --approval FILE"
            )
        raise ConfigError(
            f"there is no {file}, which {who} needs; bring it back, or make a key of its own, which has to be approved "
            f"then, with: headwater deploy enrol {here}"
        )
    for member in folder.members:
        if not (file := keys / "members" / f"{member}.pub").is_file():
            raise ConfigError(
                f"there is no {file}, which {who} needs; bring it back, or when {member} has enrolled and is approved: "
                f"headwater deploy enrol {here} --approval FILE; to go on without it: headwater deploy revoke {member} "
                f"{here}"
            )
    for file in (*private, keys):
        check_private(file)


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
        public = node_private(folder.keys / "node.key").public_key()
        if node_public(folder.keys / "node.pub") != public:
            raise ConfigError(
                f"{folder.keys / 'node.pub'} is not the public half of {folder.keys / 'node.key'}; bring back the pair "
                "that belongs together"
            )
    for member in folder.members:
        node_public(folder.keys / "members" / f"{member}.pub")
    return warnings


def _check_link(keys: Path, reach: Address) -> list[str]:
    authority, certificate = read_certificate(keys / "ca.crt"), read_certificate(keys / "link.crt")
    renew = f"headwater deploy rotate {shlex.quote(str(keys.parent))} --only link"
    key = pem_private(keys / "link.key")
    if key.public_key() != certificate.public_key():
        raise ConfigError(
            f"{keys / 'link.crt'} is the certificate of another key than {keys / 'link.key'}; bring back the pair that "
            "belongs together"
        )
    if not is_issued_by(certificate, authority):
        raise ConfigError(
            f"{keys / 'link.crt'} was not signed by {keys / 'ca.crt'}, so no member would trust this link; bring back "
            "the files that belong together"
        )
    until = min(certificate.not_valid_after_utc, authority.not_valid_after_utc)
    left = until - datetime.now(UTC)
    if left <= timedelta():
        raise ConfigError(
            f"the certificate {keys / 'link.crt'} ran out on {until:%Y-%m-%d}; renew it, beginning with: {renew}"
        )
    hosts = certificate_hosts(certificate)
    if not reach.wildcard and (str(reach.ip) if reach.ip else reach.host.lower()) not in hosts:
        raise ConfigError(
            f"the certificate {keys / 'link.crt'} is for {', '.join(sorted(hosts))}, but members reach this link at "
            f"{reach.host}; renew it for that host, beginning with: {renew}"
        )
    if left >= SOON:
        return []
    return [f"the certificate {keys / 'link.crt'} runs out on {until:%Y-%m-%d}; renew it soon, beginning with: {renew}"]
