"""The authority's side of enrolment: requests are held against the agreement and what was approved before, and signed.

The register of approved keys is `ca/approval.json`. A copy of it beside `ca/` is for all parties.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from headwater.core.records import parse_json
from headwater.deploy import approval
from headwater.deploy.approval import ApprovedKeys, KeyApproval, read_approval
from headwater.deploy.authority import Authority, link_hosts
from headwater.deploy.enrolment import (
    KINDS,
    LINK,
    NODE,
    KeyRequest,
    certificate_hash,
    check_request,
    read_request,
    shown,
)
from headwater.deploy.folder import FEDERATION, find, listed, revoked_key
from headwater.deploy.key_check import SOON
from headwater.deploy.keys import certificate_hosts, need_cryptography, node_line
from headwater.deploy.party_files import CA
from headwater.deploy.private_files import replace as write_file
from headwater.deploy.revocation import FILE as REVOKED
from headwater.errors import ConfigError, nearest
from headwater.training.run_lock import RunLock

if TYPE_CHECKING:
    from headwater.deploy.agreement import Agreement

NEW, SAME, ROTATED, REPLACED = "is new", "as before", "signed with the key before", "in place of another key"


class Decision(NamedTuple):
    """One key that was approved.

    Args:
        party: its owner.
        kind: `node` or `link`.
        fingerprint: as `ssh-keygen -lf` prints it.
        how: is new, as before, signed with the key before, in place of another key.
    """

    party: str
    kind: str
    fingerprint: str
    how: str

    @property
    def to_confirm(self) -> bool:
        """Whether nothing but the request itself says that it is the party's key."""
        return self.how in (NEW, REPLACED)


class Approved(NamedTuple):
    """What `approve` did.

    Args:
        file: the approval, for all parties.
        number: of the approval.
        decisions: one for each key in the requests.
        missing: parties that have no approved keys yet.
    """

    file: Path
    number: int
    decisions: list[Decision]
    missing: list[str]


class ApprovalLock(RunLock):
    """The lock of `ca/`: two approvals at the same time would have one number, and the second would lack the first."""

    file = "approve.lock"
    otherwise = ", then approve again: nothing was changed"

    def _take_over(self) -> str:
        return f"delete {self._path}"


def approve(
    out: Path, files: Sequence[Path], *, replaced: bool = False, agreement: Agreement | None = None
) -> Approved:
    """Approve the keys in requests, all or none.

    Args:
        out: directory with `ca/`, as `init` wrote it.
        files: requests.
        replaced: accept keys in place of others that have not signed the request, hosts that were not agreed, and
            parties that were revoked.
        agreement: whose parties may enrol; `ca/federation.json` if left out.

    Raises:
        ConfigError: says which request was refused and why; nothing is changed then.
        OutputError: another process approves requests here at this moment.
    """
    need_cryptography()
    authority = Authority.load(out / CA)
    with ApprovalLock(out / CA):
        return _approve(out, authority, agreement or _agreement(out), files, replaced)


def _approve(out: Path, authority: Authority, agreement: Agreement, files: Sequence[Path], replaced: bool) -> Approved:
    register = _register(out / CA / approval.FILE, authority, agreement.origin)
    desk = ApprovalDesk(out, authority, agreement, register, replaced)
    decisions: list[Decision] = []
    for file in files:
        decisions += desk.decide(file)
    parties = desk.register.parties
    if parties != register.parties:
        desk.register = replace(desk.register, number=register.number + 1)
        text = approval.approval_text(desk.register, authority)
        write_file(out / CA / approval.FILE, text)
    write_file(out / approval.FILE, (out / CA / approval.FILE).read_bytes())
    known = ["server", *agreement.sectors, *agreement.sector_of]
    missing = [name for name in known if name not in parties]
    return Approved(out / approval.FILE, desk.register.number, decisions, missing)


def _agreement(out: Path) -> Agreement:
    from headwater.deploy.agreement import Agreement

    file = out / CA / FEDERATION
    if not file.is_file():  # of a federation that an earlier version made
        file = find(out)[0].path / FEDERATION
    return Agreement.read(file)


def _register(file: Path, authority: Authority, federation: str) -> KeyApproval:
    return read_approval(file, authority.certificate, federation) if file.exists() else KeyApproval(federation)


class ApprovalDesk:
    """Decides about requests one after the other. Nothing is written.

    Args:
        out: directory with `ca/`.
        register: what was approved before; has the new keys afterwards.
        replaced: as for `approve`.
    """

    def __init__(
        self, out: Path, authority: Authority, agreement: Agreement, register: KeyApproval, replaced: bool
    ) -> None:
        self.out, self.authority, self.agreement, self.register = out, authority, agreement, register
        self._replaced = replaced
        self._from: dict[str, Path] = {}  # file by party
        self._owners = {  # party and kind by key
            node_line(register.key(name, kind), ""): (name, kind)
            for name, keys in register.parties.items()
            for kind, text in keys._asdict().items()
            if text
        }

    def decide(self, file: Path) -> list[Decision]:
        """Enter the keys of a request into the register.

        Raises:
            ConfigError: says why it is refused.
        """
        request = read_request(file)
        check_request(request, file, self.agreement.origin, certificate_hash(self.authority.certificate))
        self._check_party(request, file)
        how = {kind: self._check_key(request, file, kind) for kind in request.keys}
        old = self.register.parties.get(request.name, ApprovedKeys())
        lacking = [kind for kind in KINDS[request.role] if kind not in request.keys and not getattr(old, kind)]
        if lacking:
            raise ConfigError(
                f"{file} has no {lacking[0]} key, and none of {request.name} is approved yet; make it with: "
                "headwater deploy enrol DIR"
            )
        new = old
        if NODE in request.keys:
            new = new._replace(node=node_line(request.keys[NODE], request.name))
        if LINK in request.keys:
            new = new._replace(link=self._certificate(request))
        self.register = replace(self.register, parties={**self.register.parties, request.name: new})
        return [
            Decision(request.name, kind, shown(key, request.name, kind), how[kind])
            for kind, key in request.keys.items()
        ]

    def _check_party(self, request: KeyRequest, file: Path) -> None:
        name, agreement = request.name, self.agreement
        known = ["server", *agreement.sectors, *agreement.sector_of]
        if name not in known:
            raise ConfigError(
                f"{file} is of {name}, which is not in this federation{nearest(name, known)}; {FEDERATION} knows "
                f"{listed(known)}"
            )
        if name in self._from:
            raise ConfigError(
                f"{file} and {self._from[name]} are both of {name}; give the one whose fingerprint {name} confirms"
            )
        self._from[name] = file
        host = "server" if name in agreement.sectors else agreement.sector_of.get(name, "")
        if host and not self._replaced and self._is_revoked(name, host):
            raise ConfigError(
                f"{name} was revoked at {host}, so {file} is not approved; if {name} is to come back, approve it with "
                f"--replace, and have {host} remove {revoked_key(Path(host, 'keys'), name)} before it installs the "
                "approval"
            )

    def _is_revoked(self, name: str, host: str) -> bool:
        """Whether a party was revoked, as far as folders in this directory know."""
        revoked: object = None
        with suppress(OSError, ValueError):
            revoked = parse_json((self.out / "server" / "state" / REVOKED).read_text(encoding="utf-8"))
        return revoked_key(self.out / host / "keys", name).exists() or (isinstance(revoked, list) and name in revoked)

    def _check_key(self, request: KeyRequest, file: Path, kind: str) -> str:
        """How a key came to be approved."""
        name, key = request.name, request.keys[kind]
        owner = self._owners.setdefault(node_line(key, ""), (name, kind))
        if owner != (name, kind):
            raise ConfigError(
                f"{file}: its {kind} key is the {owner[1]} key of {owner[0]} already; every party makes keys of its own"
            )
        approved = self.register.key(name, kind)
        if kind == LINK:
            self._check_hosts(request, file)
        if approved is None:
            return NEW
        if approved == key:
            return SAME
        if request.continues(kind, approved):
            return ROTATED
        if not self._replaced:
            raise ConfigError(
                f"{name} has another approved {kind} key, {shown(approved, name, kind)}, and its owner has not "
                f"signed {file}, whose key is {shown(key, name, kind)}; if {name} confirms the new one, by phone, "
                "approve it with --replace"
            )
        return REPLACED

    def _check_hosts(self, request: KeyRequest, file: Path) -> None:
        """A certificate for another party's host would let its owner pass for that party."""
        before = self.register.certificate(request.name)
        agreed = {link_hosts(self.agreement.address_of(request.name))}
        agreed |= set() if before is None else {certificate_hosts(before)}
        if request.hosts not in agreed and not self._replaced:
            raise ConfigError(
                f"{file} asks for a certificate for {', '.join(sorted(request.hosts))}, but members reach "
                f"{request.name} at {self.agreement.address_of(request.name).host}; if its link has moved, approve it "
                "with --replace"
            )

    def _certificate(self, request: KeyRequest) -> str:
        """A new certificate, or the one before if it does for long enough."""
        before = self.register.certificate(request.name)
        if (
            before is not None
            and before.public_key() == request.keys[LINK]
            and certificate_hosts(before) == request.hosts
            and before.not_valid_after_utc - datetime.now(UTC) > SOON
        ):
            return self.register.parties[request.name].link
        return self.authority.certify(request.name, request.keys[LINK], request.hosts).decode()
