"""Parties that make their keys themselves: requests, approvals, rotation, and what is refused on the way."""

from __future__ import annotations

import base64
import json
import os
import shutil
import stat
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cryptography")

from cryptography.hazmat.primitives.asymmetric import ec

from headwater.cli.app import main
from headwater.config import Config
from headwater.deploy import approval, authority, enrolment, key_check, keys, signed_json
from headwater.deploy.approving import ApprovalLock, approve
from headwater.deploy.authority import Authority
from headwater.deploy.enrolling import enrol, install, rotate
from headwater.deploy.enrolment import certificate_hash, make_request, read_request
from headwater.deploy.folder import PartyFolder
from headwater.deploy.init import init
from headwater.deploy.revocation import revoke, revoked
from headwater.deploy.transport import Address
from headwater.errors import ConfigError, OutputError
from headwater.training.experiment import prepare

SETS = ["partition.clients=4", "partition.sectors=2", "partition.alpha=1.0", "partition.assign=[0, 1, 1, 0]"]
SETS += ["rounds=2", "data.fraction=0.1", "deploy.sector_addresses=['north.example.org:9101', '127.0.0.1:9102']"]
NODE, LINK = enrolment.NODE, enrolment.LINK
NAMES = ("server", "s0", "s1", "c0", "c1", "c2", "c3")


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A federation `plain` with keys from `init`, `bare` before and `ready` after all parties have enrolled."""
    place = tmp_path_factory.mktemp("enrolment")
    made = prepare(Config.load("fedavg", SETS))
    init(made, place / "plain")
    init(made, place / "bare", enrol=True)
    shutil.copytree(place / "bare", place / "ready")
    requests = [enrol(place / "ready" / name).file for name in NAMES]
    done = approve(place / "ready", requests)
    for name in NAMES:
        install(place / "ready" / name, done.file)
    return place


@pytest.fixture
def bare(places: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(places / "bare", tmp_path / "f"))


@pytest.fixture
def ready(places: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(places / "ready", tmp_path / "f"))


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(ConfigError) as caught:
        call()
    return str(caught.value)


def contents(place: Path) -> dict[str, bytes]:
    return {str(path.relative_to(place)): path.read_bytes() for path in place.rglob("*") if path.is_file()}


def private_files(place: Path) -> set[str]:
    return {name for name, content in contents(place).items() if b"PRIVATE KEY" in content}


def member_key(host: Path, member: str) -> bytes:
    return (host / "keys" / "members" / f"{member}.pub").read_bytes()


# -- enrolment as it should go


def test_two_operators_do_not_approve_at_the_same_time(bare: Path) -> None:
    """Each would write an approval of the same number, and the later one would lack what the other approved."""
    request = enrol(bare / "c0").file
    before = contents(bare / "ca")
    with ApprovalLock(bare / "ca"), pytest.raises(OutputError, match=rf"ca is being written by process {os.getpid()} "):
        approve(bare, [request])
    assert contents(bare / "ca") == before
    assert approve(bare, [request]).number == 2
    assert not list((bare / "ca").glob("*.lock"))


def test_no_private_key_of_a_party_is_ever_outside_its_folder(places: Path, tmp_path: Path) -> None:
    """Every party has a place of its own, which gets its folder, and exchanges requests and approvals only."""
    desk = Path(shutil.copytree(places / "bare", tmp_path / "desk"))
    assert private_files(desk) == {"ca/ca.key"}
    requests = []
    for name in NAMES:
        (tmp_path / "at" / name).mkdir(parents=True)
        shutil.move(desk / name, tmp_path / "at" / name / name)
        requests.append(Path(shutil.copy(enrol(tmp_path / "at" / name / name).file, desk)))
    sent = Path(shutil.copy(approve(desk, requests).file, tmp_path / "sent.json"))
    for name in NAMES:
        install(tmp_path / "at" / name / name, sent)
        assert key_check.check(PartyFolder.open(tmp_path / "at" / name / name)) == []
    assert private_files(desk) == {"ca/ca.key"}
    own = {name: {NODE} if name[0] == "c" else {LINK} if name == "server" else {NODE, LINK} for name in NAMES}
    found = private_files(tmp_path)
    assert found == {"desk/ca/ca.key", *(f"at/{name}/{name}/keys/{kind}.key" for name in NAMES for kind in own[name])}
    everything = b"".join(contents(tmp_path).values())
    for file in found:
        secret = b"".join((tmp_path / file).read_bytes().split(b"\n")[1:-2])
        assert b"".join(everything.split(b"\n")).count(secret) == 1


def test_enrolled_parties_have_what_init_makes(places: Path) -> None:
    plain, ready = contents(places / "plain"), contents(places / "ready")
    more = {"approval.json", *(f"{name}/{name}.request.json" for name in NAMES)}
    assert ready.keys() - plain.keys() == more | {f"{name}/keys/approval.json" for name in NAMES}
    assert plain.keys() <= ready.keys()
    differ = {name for name in plain if plain[name] != ready[name]}
    assert {name for name in differ if "/keys/" not in name and not name.endswith("README.md")} == {
        "ca/approval.json",
        "ca/ca.crt",
        "ca/ca.key",
    }
    for name in NAMES:
        one, other = (PartyFolder.open(places / kind / name) for kind in ("plain", "ready"))
        assert key_check.check(one) == key_check.check(other) == []
        assert (one.federation, one.link, one.above, one.members) == (
            other.federation,
            other.link,
            other.above,
            other.members,
        )
    for name in ("server", "s0", "s1"):
        certificates = [
            keys.read_certificate(places / kind / name / "keys" / "link.crt") for kind in ("plain", "ready")
        ]
        assert len({keys.certificate_hosts(certificate) for certificate in certificates}) == 1
        assert len({tuple(type(e.value) for e in certificate.extensions) for certificate in certificates}) == 1
    for path in (places / "ready").rglob("*"):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600 if path.suffix in (".key", ".npz") else 0o644), path


def test_the_agreed_address_of_a_link_is_where_init_puts_it(places: Path) -> None:
    for name in ("server", "s0", "s1"):
        folder = PartyFolder.open(places / "plain" / name)
        assert folder.link is not None
        assert str(folder.federation.address_of(name)) == (folder.link.reach or folder.link.address)
    other = folder.federation.config.merged({"deploy": {"sector_addresses": ()}})
    from dataclasses import replace

    assert str(replace(folder.federation, config=other).address_of("s1")) == "127.0.0.1:9102"


def test_a_second_enrolment_keeps_the_key(bare: Path) -> None:
    first = enrol(bare / "s0")
    made = private_files(bare / "s0")
    assert made == {"keys/next/node.key", "keys/next/link.key"}
    before = contents(bare / "s0")
    again = enrol(bare / "s0")
    assert (first.made, again.made) == ([NODE, LINK], [])
    assert again.fingerprints == first.fingerprints
    assert {name: content for name, content in contents(bare / "s0").items() if name in made} == {
        name: before[name] for name in made
    }
    install(bare / "s0", approve(bare, [first.file]).file)
    after = contents(bare / "s0")
    assert after["keys/node.key"] == before["keys/next/node.key"]
    assert private_files(bare / "s0") == {"keys/node.key", "keys/link.key"}
    assert enrol(bare / "s0").fingerprints == first.fingerprints, "when it is approved, too"


def test_the_fingerprint_is_that_of_ssh_keygen(bare: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if shutil.which("ssh-keygen") is None:
        pytest.skip("ssh-keygen is not installed")
    assert main(["deploy", "enrol", str(bare / "c0"), "--quiet"]) == 0
    printed = capsys.readouterr().out
    assert main(["deploy", "approve", str(bare), str(bare / "c0" / "c0.request.json")]) == 0
    assert printed.strip() in capsys.readouterr().out
    install(bare / "c0", bare / "approval.json")
    file = bare / "c0" / "keys" / "node.pub"
    shown = subprocess.run(["ssh-keygen", "-lf", str(file)], capture_output=True, text=True, check=True).stdout
    assert shown == printed


def test_the_commands_say_what_comes_next(bare: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def call(*words: object, status: int = 0) -> str:
        assert main(["deploy", *map(str, words)]) == status
        told = capsys.readouterr()
        return told.out if status == 0 else told.err

    for role, name, file in (
        ("client", "c0", "node.key"),
        ("sector", "s0", "link.key"),
        ("server", "server", "link.key"),
    ):
        told = call(role, bare / name, status=2)
        assert f"there is no {bare / name / 'keys' / file}" in told
        assert f"headwater deploy enrol {bare / name}" in told
    assert "Compare the fingerprint above" in (told := call("enrol", bare / "c0"))
    assert str(bare / "c0" / "c0.request.json") in told
    assert "are not approved yet" in call("client", bare / "c0", status=2)
    assert "its request is not approved yet" in call(
        "enrol", bare / "c0", "--approval", bare / "ca/approval.json", status=2
    )
    enrol(bare / "s0")
    told = call("approve", bare, bare / "c0/c0.request.json", bare / "s0/s0.request.json")
    assert "compare the fingerprints by phone with c0, s0." in told
    assert "Not approved yet: server, s1, c3, c1, c2." in told
    told = call("enrol", bare / "s0", "--approval", bare / "approval.json")
    assert "c0 (ECDSA) admitted" in told
    assert "No key is approved yet of c3" in told
    told = call("sector", bare / "s0", status=2)
    assert "when c3 has enrolled and is approved" in told
    assert f"headwater deploy revoke c3 {bare / 's0'}" in told
    call("revoke", "c3", bare / "s0")
    assert PartyFolder.open(bare / "s0").members == ("c0",), "it goes on without"


def test_approvals_grow(bare: Path) -> None:
    """A host that installs a later approval keeps what it has and gets the rest."""
    for name in ("s0", "c0"):
        enrol(bare / name)
    first = approve(bare, [bare / "s0" / "s0.request.json", bare / "c0" / "c0.request.json"])
    assert first.number == 2
    assert install(bare / "s0", first.file).missing == ["c3"]
    again = approve(bare, [bare / "c0" / "c0.request.json"])
    assert (again.number, again.decisions[0].how) == (2, "as before"), "nothing has changed"
    later = approve(bare, [enrol(bare / "c3").file])
    assert later.number == 3
    done = install(bare / "s0", later.file)
    assert ([*done.members], done.missing, done.own) == (["c3"], [], [])
    assert install(bare / "s0", later.file).members == {}, "it may be repeated"


# -- requests that are refused


def signed(ready: Path, of: str = "c0", **changes: Any) -> bytes:
    """A request with any content, signed with its own key."""
    folder = PartyFolder.open(ready / of)
    facts: dict[str, Any] = {
        "name": of,
        "federation": folder.federation.origin,
        "authority": certificate_hash(keys.read_certificate(folder.keys / "ca.crt")),
        "keys": {NODE: ec.generate_private_key(ec.SECP384R1())},
        "before": {NODE: keys.node_private(folder.keys / "node.key")},
        "reach": None,
    }
    return make_request(**facts | changes)


def edited(content: bytes, **fields: Any) -> bytes:
    return json.dumps(json.loads(content) | fields).encode()


def on_day(days: float) -> str:
    return (datetime.now(UTC) + timedelta(days=days)).isoformat()


def link_asked(ready: Path, host: str, csr_of: str = "s0") -> bytes:
    """A request of s0 for a certificate of its own link key."""
    key, reach = keys.link_private(ready / "s0" / "keys" / "link.key"), Address(host, 9101)
    content = signed(ready, "s0", keys={LINK: key}, before={}, reach=reach)
    return signed_again(content, key, LINK, keys={LINK: authority.link_request(key, csr_of, reach).decode()})


def signed_again(content: bytes, key: Any, kind: str = NODE, **changes: Any) -> bytes:
    """A request with other fields, signed with its key as if it had been made so."""
    fields = json.loads(content) | changes
    del fields["signatures"]
    proof = base64.b64encode(keys.signed_with(key, signed_json.signed_part(fields))).decode()
    return json.dumps(fields | {"signatures": {kind: proof}}).encode()


def at(ready: Path, made: str) -> bytes:
    key = ec.generate_private_key(ec.SECP384R1())
    return signed_again(signed(ready, keys={NODE: key}), key, made=made)


OTHER = "0" * 64
REFUSED: dict[str, tuple[Callable[[Path], bytes], str]] = {
    "party changed": (lambda f: edited(signed(f), party="c3"), "is not signed with the node key in it"),
    "time changed": (lambda f: edited(signed(f), made=on_day(0)), "is not signed with the node key in it"),
    "key changed": (
        lambda f: edited(signed(f), keys={NODE: keys.node_keys("c0").public.decode()}),
        "is not signed with the node key in it",
    ),
    "no signature": (lambda f: edited(signed(f), signatures={}), "is not signed with the node key in it"),
    "a signature of another type": (
        lambda f: edited(signed(f), signatures={NODE: 7}),
        "is not signed with the node key in it",
    ),
    "another federation": (lambda f: signed(f, federation=OTHER), "federation.json has the SHA-256 0000000000000000…"),
    "another authority": (lambda f: signed(f, authority=OTHER), "keys/ca.crt has the SHA-256 0000000000000000…"),
    "a stranger": (lambda f: signed(f, name="c9"), "is of c9, which is not in this federation"),
    "a path": (lambda f: signed(f, name="../c0"), "is of '../c0', and no party has such a name"),
    "a long name": (lambda f: signed(f, name="c" + "0" * 40), "and no party has such a name"),
    "digits of another script": (lambda f: signed(f, name="c٣"), "and no party has such a name"),
    "too old": (lambda f: at(f, on_day(-31)), "a request is valid for 30 days"),
    "from the future": (lambda f: at(f, on_day(2)), "a request is valid for 30 days"),
    "no time": (lambda f: at(f, "soon"), "was made at 'soon', which is no time"),
    "too large": (lambda f: signed(f) + b" " * enrolment.MOST_BYTES, "it is larger than 32 KiB"),
    "nested": (lambda f: b"[" * 20_000, "is not what `headwater deploy enrol` or `rotate` has written"),
    "not JSON": (lambda f: b"\xff\x00", "is not what `headwater deploy enrol` or `rotate` has written"),
    "an approval": (lambda f: (f / "approval.json").read_bytes(), "is not what `headwater deploy enrol`"),
    "a later version": (lambda f: edited(signed(f), version=2), "was written by another version of Headwater"),
    "true for one": (lambda f: edited(signed(f), version=True), "it needs kind, version,"),
    "another type": (lambda f: edited(signed(f), party=["c0"]), "it needs kind, version,"),
    "one field more": (lambda f: edited(signed(f), more=1), "it needs kind, version,"),
    "no keys": (lambda f: signed(f, keys={}, before={}), "names no key"),
    "a key of another kind": (lambda f: edited(signed(f), keys={LINK: "x"}), "which a client does not have"),
    "a key that is none": (lambda f: edited(signed(f), keys={NODE: "\ud800"}), "is not on the curve P-384"),
    "another curve": (
        lambda f: signed(f, keys={NODE: ec.generate_private_key(ec.SECP256R1())}),
        "is not on the curve P-384",
    ),
    "key of another party": (
        lambda f: signed(f, keys={NODE: keys.node_private(f / "c1" / "keys" / "node.key")}),
        "its node key is the node key of c1 already",
    ),
    "a second key": (lambda f: signed(f, before={}), "c0 has another approved node key, 384 SHA256:"),
    "signed with a stranger's key": (
        lambda f: signed(f, before={NODE: ec.generate_private_key(ec.SECP384R1())}),
        "its owner has not signed",
    ),
    "host of another party": (
        lambda f: link_asked(f, "fl.example.org"),
        "asks for a certificate for 127.0.0.1, fl.example.org, localhost, but members reach s0 at north.example.org",
    ),
    "certificate in another name": (
        lambda f: link_asked(f, "north.example.org", "server"),
        "is not one that s0 has signed for itself",
    ),
    "a signing request that is none": (
        lambda f: edited(link_asked(f, "north.example.org"), keys={LINK: "-----BEGIN"}),
        "its certificate signing request cannot be read",
    ),
    "every host": (
        lambda f: link_asked(f, "*.example.org"),
        "is for '*.example.org', which is no host",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_request_is_refused(case: str, places: Path, tmp_path: Path) -> None:
    make, sentence = REFUSED[case]
    ready, file = places / "ready", tmp_path / "asked.json"
    file.write_bytes(make(ready))
    before = contents(ready)
    told = refusal(lambda: approve(ready, [file]))
    assert sentence in told
    assert str(file) in told
    assert contents(ready) == before


def test_files_that_are_no_requests(ready: Path) -> None:
    for file in (ready / "nowhere.json", ready / "c0"):
        assert f"there is no file {file}" in refusal(lambda file=file: approve(ready, [file]))  # type: ignore[misc]
    assert "there is no" in refusal(lambda: approve(ready / "c0", [ready / "c0" / "c0.request.json"]))
    request = ready / "c0" / "c0.request.json"
    (ready / "again.json").write_bytes(signed(ready))
    assert "are both of c0" in refusal(lambda: approve(ready, [request, ready / "again.json"]))
    (ready / "ca" / "ca.key").chmod(0o640)
    assert "other users can read or change" in refusal(lambda: approve(ready, [request]))


def test_one_refused_request_refuses_all(bare: Path) -> None:
    good, bad = enrol(bare / "c0").file, enrol(bare / "c1").file
    bad.write_bytes(edited(bad.read_bytes(), made=on_day(0)))
    before = contents(bare)
    assert str(bad) in refusal(lambda: approve(bare, [good, bad]))
    assert contents(bare) == before


def test_a_first_request_names_all_keys_of_a_party(bare: Path) -> None:
    key = ec.generate_private_key(ec.SECP384R1())
    folder = PartyFolder.open(bare / "s0", keys_needed=False)
    known = folder.federation.origin, certificate_hash(keys.read_certificate(folder.keys / "ca.crt"))
    (bare / "half.json").write_bytes(make_request("s0", *known, {NODE: key}, {}, None))
    assert "has no link key, and none of s0 is approved yet" in refusal(lambda: approve(bare, [bare / "half.json"]))


def test_private_keys_that_others_can_read_are_not_used(bare: Path) -> None:
    enrol(bare / "c0")
    (bare / "c0" / "keys" / "next" / "node.key").chmod(0o644)
    assert "other users can read or change" in refusal(lambda: enrol(bare / "c0"))
    (bare / "c0" / "keys").chmod(0o755)
    assert "other users can get into" in refusal(lambda: enrol(bare / "c0"))


def test_enrolment_needs_a_secure_folder_with_its_authority(bare: Path) -> None:
    (bare / "c0" / "keys" / "ca.crt").unlink()
    assert "the certificate of the federation's authority" in refusal(lambda: enrol(bare / "c0"))
    file = bare / "c1" / "party.toml"
    file.write_text(file.read_text().replace("insecure = false", "insecure = true"))
    assert "has insecure = true, which uses no keys" in refusal(lambda: enrol(bare / "c1"))
    assert "there is no directory" in refusal(lambda: enrol(bare / "c9"))


# -- approvals that are refused


def approved(
    ready: Path, change: Callable[[approval.Approval], approval.Approval], by: Authority | None = None
) -> bytes:
    """The approval with other content, signed by its authority or by another."""
    signer = Authority.load(ready / "ca")
    held = approval.read_approval(
        ready / "approval.json", signer.certificate, PartyFolder.open(ready / "c0").federation.origin
    )
    return approval.approval_text(change(held), by or signer)


def changed(**fields: Any) -> Callable[[approval.Approval], approval.Approval]:
    from dataclasses import replace

    return lambda held: replace(held, **fields)


def with_keys(name: str, **fields: str) -> Callable[[approval.Approval], approval.Approval]:
    return lambda held: changed(number=9, parties={**held.parties, name: held.parties[name]._replace(**fields)})(held)


def expired(ready: Path) -> str:
    signer, key = Authority.load(ready / "ca"), keys.link_private(ready / "s0" / "keys" / "link.key")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(authority, "LINK_DAYS", 0)
        return signer.certify("s0", key.public_key(), frozenset({"localhost"})).decode()


def by_a_stranger(ready: Path) -> str:
    key = keys.link_private(ready / "s0" / "keys" / "link.key")
    return Authority().certify("s0", key.public_key(), frozenset({"localhost"})).decode()


NOT_INSTALLED: dict[str, tuple[Callable[[Path], bytes], str]] = {
    "changed": (
        lambda f: edited((f / "approval.json").read_bytes(), number=7),
        "is not signed by the authority of this federation",
    ),
    "no signature": (
        lambda f: edited((f / "approval.json").read_bytes(), signature=""),
        "is not signed by the authority of this federation",
    ),
    "another authority": (
        lambda f: approved(f, changed(), Authority()),
        "is not signed by the authority of this federation",
    ),
    "another federation": (lambda f: approved(f, changed(federation=OTHER)), "is for another federation.json"),
    "an older one": (lambda f: approved(f, changed(number=1)), "is approval 1 of this federation, and s0 has number 2"),
    "another with its number": (lambda f: approved(f, changed(parties={})), "and s0 has number 2 already"),
    "no number": (lambda f: approved(f, changed(number=-3)), "has the number -3"),
    "another node key": (
        lambda f: approved(f, with_keys("s0", node=keys.node_keys("s0").public.decode())),
        "approves another node key of s0 than those in",
    ),
    "a key that is none": (lambda f: approved(f, with_keys("s0", node="x")), "approves another node key of s0"),
    "a certificate that is none": (lambda f: approved(f, with_keys("s0", link="x")), "approves another link key of s0"),
    "an expired certificate": (lambda f: approved(f, with_keys("s0", link=expired(f))), "ran out on"),
    "a certificate of a stranger": (
        lambda f: approved(f, with_keys("s0", link=by_a_stranger(f))),
        "is not signed by keys/ca.crt",
    ),
    "a path as a name": (
        lambda f: approved(f, changed(number=9, parties={"../c0": approval.ApprovedKeys("x")})),
        "has keys of '../c0' that no party has",
    ),
    "keys that a client does not have": (
        lambda f: approved(f, changed(number=9, parties={"c0": approval.ApprovedKeys("x", "y")})),
        "has keys of 'c0' that no party has",
    ),
    "a request": (lambda f: (f / "c0" / "c0.request.json").read_bytes(), "is not what `headwater deploy approve`"),
    "too large": (
        lambda f: (f / "approval.json").read_bytes() + b" " * approval.MOST_BYTES,
        "it is larger than 8192 KiB",
    ),
}


@pytest.mark.parametrize("case", NOT_INSTALLED)
def test_an_approval_is_refused(case: str, places: Path, tmp_path: Path) -> None:
    make, sentence = NOT_INSTALLED[case]
    ready, file = places / "ready", tmp_path / "given.json"
    file.write_bytes(make(ready))
    before = contents(ready)
    told = refusal(lambda: install(ready / "s0", file))
    assert sentence in told
    assert str(file) in told
    assert contents(ready) == before


# -- rotation


def test_a_rotated_key_is_used_when_its_approval_is_installed(ready: Path, capsys: pytest.CaptureFixture[str]) -> None:
    client, host = ready / "c0", ready / "s0"
    old_private, old_public = (client / "keys" / "node.key").read_bytes(), member_key(host, "c0")
    assert main(["deploy", "rotate", str(client)]) == 0
    assert "no phone call is needed" in capsys.readouterr().out
    file = client / "c0.request.json"
    first = read_request(file).keys[NODE]
    assert rotate(client).made == [], "the key that was made is kept"
    assert read_request(file).keys[NODE] == first
    assert (client / "keys" / "node.key").read_bytes() == old_private, "it runs with the old key meanwhile"
    assert key_check.check(PartyFolder.open(client)) == []
    assert main(["deploy", "approve", str(ready), str(file)]) == 0
    assert "signed with the key before" in (told := capsys.readouterr().out)
    assert "by phone" not in told
    assert [*install(host, ready / "approval.json").members] == ["c0"]
    assert member_key(host, "c0") != old_public
    assert install(client, ready / "approval.json").own == [NODE]
    assert member_key(host, "c0") == (client / "keys" / "node.pub").read_bytes()
    assert key_check.check(PartyFolder.open(client)) == []
    assert not any(old_private == content for content in contents(ready).values())
    assert private_files(client) == {"keys/node.key"}
    for other in ("server", "s1", "c3"):
        install(ready / other, ready / "approval.json")  # nothing in it concerns them
        assert key_check.check(PartyFolder.open(ready / other)) == []


def test_after_its_approval_the_old_key_can_do_nothing_more(ready: Path) -> None:
    stolen = keys.node_private(ready / "c0" / "keys" / "node.key")
    (ready / "before.json").write_bytes(signed(ready))
    old = (ready / "approval.json").read_bytes()
    install(ready / "c0", approve(ready, [rotate(ready / "c0").file]).file)
    (ready / "again.json").write_bytes(signed(ready, before={NODE: stolen}))
    for file in (ready / "before.json", ready / "again.json"):
        assert "has another approved node key" in refusal(lambda file=file: approve(ready, [file]))  # type: ignore[misc]
    (ready / "old.json").write_bytes(old)
    install(ready / "s0", ready / "approval.json")
    assert "is approval 2 of this federation, and s0 has number 3" in refusal(
        lambda: install(ready / "s0", ready / "old.json")
    )


def test_the_certificate_of_a_link_is_renewed_alone(ready: Path) -> None:
    host = ready / "s0"
    before = contents(host)
    assert [*rotate(host, "link").fingerprints] == [LINK]
    assert [each.kind for each in approve(ready, [host / "s0.request.json"]).decisions] == [LINK]
    assert install(host, ready / "approval.json").own == [LINK]
    after = contents(host)
    assert {name for name in before if after[name] != before[name]} == {
        "s0.request.json",
        "keys/approval.json",
        "keys/link.crt",
        "keys/link.key",
    }
    assert key_check.check(PartyFolder.open(host)) == []


def test_an_expired_certificate_can_still_be_renewed(ready: Path) -> None:
    host = ready / "s0"
    (host / "keys" / "link.crt").write_text(expired(ready))
    told = refusal(lambda: key_check.check(PartyFolder.open(host)))
    assert f"headwater deploy rotate {host} --only link" in told
    install(host, approve(ready, [rotate(host, "link").file]).file)
    assert key_check.check(PartyFolder.open(host)) == []


def test_a_link_that_moves_needs_the_operators_word(ready: Path) -> None:
    host = ready / "s0"
    file = host / "party.toml"
    file.write_text(file.read_text().replace("north.example.org:9101", "south.example.org:9101"))
    assert "but members reach this link at south.example.org" in refusal(
        lambda: key_check.check(PartyFolder.open(host))
    )
    request = rotate(host, "link").file
    assert "if its link has moved, approve it with --replace" in refusal(lambda: approve(ready, [request]))
    install(host, approve(ready, [request], replaced=True).file)
    assert key_check.check(PartyFolder.open(host)) == []
    install(host, approve(ready, [rotate(host, "link").file]).file)  # the new host is the known one now
    assert key_check.check(PartyFolder.open(host)) == []


def test_a_lost_key_is_replaced(ready: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (ready / "c0" / "keys" / "node.key").unlink()
    assert "no node key to replace" in refusal(lambda: rotate(ready / "c0"))
    request = enrol(ready / "c0").file
    assert "approve it with --replace" in refusal(lambda: approve(ready, [request]))
    assert main(["deploy", "approve", str(ready), str(request), "--replace"]) == 0
    told = capsys.readouterr().out
    assert "in place of another key" in told
    assert "compare the fingerprints by phone with c0" in told
    for name in ("s0", "c0"):
        install(ready / name, ready / "approval.json")
    assert member_key(ready / "s0", "c0") == (ready / "c0" / "keys" / "node.pub").read_bytes()
    assert key_check.check(PartyFolder.open(ready / "c0")) == []


def test_keys_that_init_made_are_rotated_as_well(places: Path, tmp_path: Path) -> None:
    out = Path(shutil.copytree(places / "plain", tmp_path / "f"))
    for name in ("server", "s1", "c2"):
        done = approve(out, [rotate(out / name).file])
        assert {each.how for each in done.decisions} == {"signed with the key before"}
        assert done.missing == []
    for name in NAMES:
        install(out / name, out / "approval.json")
        assert key_check.check(PartyFolder.open(out / name)) == []
    assert member_key(out / "s1", "c2") == (out / "c2" / "keys" / "node.pub").read_bytes()
    assert member_key(out / "s1", "c1") == member_key(places / "plain" / "s1", "c1")


def test_a_federation_without_a_register_gets_one(places: Path, tmp_path: Path) -> None:
    """As an earlier version of Headwater made it."""
    out = Path(shutil.copytree(places / "plain", tmp_path / "f"))
    for name in ("approval.json", "federation.json"):
        (out / "ca" / name).unlink()
    done = approve(out, [rotate(out / "c0").file])
    assert (done.number, done.decisions[0].how) == (1, "is new"), "it has to be compared, since no key before is known"
    for name in ("s0", "c0"):
        install(out / name, done.file)
    assert member_key(out / "s0", "c0") == (out / "c0" / "keys" / "node.pub").read_bytes()
    assert key_check.check(PartyFolder.open(out / "s0")) == [], "the others keep their keys"


def test_what_can_be_rotated(ready: Path) -> None:
    assert "--only must be node for a client, got 'link'" in refusal(lambda: rotate(ready / "c0", "link"))
    assert "--only must be node or link for a sector, got 'both'" in refusal(lambda: rotate(ready / "s0", "both"))


def test_an_approval_that_was_half_installed_is_repaired(ready: Path) -> None:
    """The private key was moved, and then the power failed."""
    file = approve(ready, [rotate(ready / "c0").file]).file
    (ready / "c0" / "keys" / "next" / "node.key").replace(ready / "c0" / "keys" / "node.key")
    assert "is not the public half of" in refusal(lambda: key_check.check(PartyFolder.open(ready / "c0")))
    assert install(ready / "c0", file).own == [NODE]
    assert key_check.check(PartyFolder.open(ready / "c0")) == []


# -- revoked parties


def test_a_revoked_client_does_not_come_back_by_rotating(ready: Path, capsys: pytest.CaptureFixture[str]) -> None:
    host = ready / "s0"
    revoke(host, "c3")
    request = rotate(ready / "c3").file
    assert "c3 was revoked at s0" in refusal(lambda: approve(ready, [request]))
    approve(ready, [request], replaced=True)
    assert main(["deploy", "enrol", str(host), "--approval", str(ready / "approval.json")]) == 0
    assert "Not admitted, since revoked here: c3." in capsys.readouterr().out
    assert revoked(PartyFolder.open(host)) == {"c3"}
    assert not (host / "keys" / "members" / "c3.pub").exists()
    (host / "keys" / "revoked" / "c3.pub").unlink()  # as the sentence says
    assert [*install(host, ready / "approval.json").members] == ["c3"]
    install(ready / "c3", ready / "approval.json")
    assert member_key(host, "c3") == (ready / "c3" / "keys" / "node.pub").read_bytes()
    assert revoked(PartyFolder.open(host)) == set()


def test_what_hosts_reported_to_the_server_counts_too(ready: Path) -> None:
    (ready / "server" / "state").mkdir(exist_ok=True)
    (ready / "server" / "state" / "revoked.json").write_text('["c1"]')
    assert "c1 was revoked at s1" in refusal(lambda: approve(ready, [rotate(ready / "c1").file]))
    (ready / "server" / "state" / "revoked.json").write_text("{")
    approve(ready, [ready / "c1" / "c1.request.json"])


# -- a client that was added later


def test_an_added_client_enrols_like_the_others(ready: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["deploy", "add", str(ready), "c4", "--sector", "s0"]
    assert main([*words, "--enrol", "--request", "x"]) == 2
    assert main([*words, "--enrol"]) == 0
    assert "c4 makes its key with `headwater deploy enrol DIR`" in capsys.readouterr().err
    assert private_files(ready / "c4") == set()
    shutil.copy(ready / "c0" / "data.npz", ready / "c4")
    assert "when c4 has enrolled and is approved" in refusal(lambda: PartyFolder.open(ready / "s0"))
    done = approve(ready, [enrol(ready / "c4").file])
    assert (done.decisions[0].party, done.decisions[0].how, done.missing) == ("c4", "is new", [])
    for name in (*NAMES, "c4"):  # whose approvals are from before the amendment
        install(ready / name, done.file)
        assert key_check.check(PartyFolder.open(ready / name)) == []
    assert member_key(ready / "s0", "c4") == (ready / "c4" / "keys" / "node.pub").read_bytes()
    install(ready / "s1", approve(ready, [rotate(ready / "s1", "link").file]).file)


def test_a_file_that_only_looks_amended_is_of_another_federation(ready: Path) -> None:
    """The origin is computed from what the file says, not taken from its records."""
    from headwater.deploy.agreement import Agreement
    from headwater.deploy.amendment import amended

    file = ready / "c0" / "federation.json"
    before = Agreement.read(file)
    assert before.origin == before.sha256
    content = amended(file.read_bytes(), "c4", "s0", "")
    file.write_bytes(content)
    assert (Agreement.read(file).origin, Agreement.read(file).sha256 == before.sha256) == (before.origin, False)
    file.write_bytes(content.replace(b"rounds = 2", b"rounds = 3"))
    assert Agreement.read(file).origin != before.origin
