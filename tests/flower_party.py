"""Parties for tests of Flower links: folders with keys, and programs that run a member or the owner of a link."""

from __future__ import annotations

import datetime
import ipaddress
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives import serialization as form
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from headwater.deploy.flower import FlowerDownlink, FlowerUplink
from headwater.deploy.folder import LinkSettings, PartyFolder
from headwater.deploy.transport import Message, RawArray, Unanswered

NOTHING: Any = None  # in place of the agreement, which links do not use


def free_port() -> int:
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        return int(trial.getsockname()[1])


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _certificate(
    subject: str, key: ec.EllipticCurvePrivateKey, ca: ec.EllipticCurvePrivateKey, is_ca: bool
) -> x509.Certificate:
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(_name(subject))
        .issuer_name(_name("ca"))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca.public_key()), critical=False)
        .add_extension(x509.KeyUsage(not is_ca, False, False, False, False, is_ca, is_ca, False, False), critical=True)
    )
    if not is_ca:
        names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        made = made.add_extension(x509.SubjectAlternativeName(names), critical=False)
        made = made.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    return made.sign(ca, hashes.SHA256())


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.write_bytes(data)
    path.chmod(0o600)


def _pem(key: ec.EllipticCurvePrivateKey, kind: form.PrivateFormat) -> bytes:
    return key.private_bytes(form.Encoding.PEM, kind, form.NoEncryption())


def parties(root: Path, members: tuple[str, ...], strangers: tuple[str, ...] = (), insecure: bool = False) -> None:
    """Write folders of a server and of parties below it. Strangers trust the CA, but their keys are not admitted."""
    ca, link = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    ca_crt = _certificate("ca", ca, ca, True).public_bytes(form.Encoding.PEM)
    server = root / "server"
    _write(server / "keys/ca.crt", ca_crt)
    _write(server / "keys/link.crt", _certificate("link", link, ca, False).public_bytes(form.Encoding.PEM))
    _write(server / "keys/link.key", _pem(link, form.PrivateFormat.PKCS8))
    _write(root / "address", f"127.0.0.1:{free_port()}".encode())
    _write(root / "insecure", b"yes" if insecure else b"")
    _write(root / "members", ",".join(members).encode())
    for name in members + strangers:
        node = ec.generate_private_key(ec.SECP384R1())
        public = node.public_key().public_bytes(form.Encoding.OpenSSH, form.PublicFormat.OpenSSH)
        _write(root / name / "keys/ca.crt", ca_crt)
        _write(root / name / "keys/node.key", _pem(node, form.PrivateFormat.OpenSSH))
        _write(root / name / "keys/node.pub", public)
        if name in members:
            _write(server / f"keys/members/{name}.pub", public)


def folder(root: Path, name: str) -> PartyFolder:
    address, insecure = (root / "address").read_text(), bool((root / "insecure").read_text())
    if name == "server":
        members = tuple((root / "members").read_text().split(","))
        return PartyFolder(root / name, name, "server", insecure, None, LinkSettings(address, members), None, NOTHING)
    return PartyFolder(root / name, name, "client", insecure, address, None, None, NOTHING)


def answer(message: Message) -> Message:
    """How members answer in tests: with their process id, the head of the request, and its arrays in reverse order."""
    match message.head.get("do"):
        case "fail":
            raise ValueError("there is no such thing")
        case "sleep":
            time.sleep(message.head["seconds"])
        case "much":
            return Message({}, (RawArray("int8", (1,), os.urandom(message.head["bytes"])),))
    return Message({"pid": os.getpid(), "was": message.head}, message.parts[::-1])


def member(root: Path, name: str) -> None:
    """Run a member until it is killed."""
    FlowerUplink(folder(root, name)).serve(answer, threading.Event())


def owner(root: Path) -> None:
    """Run a link, exchange one message with each member, print the outcome, and wait until it is killed."""
    link = FlowerDownlink(folder(root, "server"))
    names = set(folder(root, "server").link.members)  # type: ignore[union-attr]
    while link.present() != names:
        time.sleep(0.1)
    for name in names:
        link.send(name, Message({"do": "echo"}))
    replies: list[tuple[int, Message | Unanswered]] = []
    while len(replies) < len(names):
        replies += link.replies(1.0)
    print("all well" if all(isinstance(reply, Message) for _, reply in replies) else replies, flush=True)
    time.sleep(600)


def until(condition: Callable[[], object], what: str) -> None:
    from process_tree import until as wait_until  # a program of its own does not find it

    wait_until(condition, what, 600.0)


def exchange(link: FlowerDownlink, to: str, message: Message) -> Message | Unanswered:
    number = link.send(to, message)
    return collect(link, number)[number]


def collect(link: FlowerDownlink, *numbers: int) -> dict[int, Message | Unanswered]:
    came: dict[int, Message | Unanswered] = {}
    until(lambda: came.update(link.replies(0.2)) or came.keys() >= set(numbers), f"answers to {numbers}")
    assert came.keys() == set(numbers)
    return came


@contextmanager
def serving(root: Path, name: str) -> Iterator[FlowerUplink]:
    """A member in a thread of this process."""
    uplink, stop = FlowerUplink(folder(root, name)), threading.Event()
    thread = threading.Thread(target=uplink.serve, args=(answer, stop))
    thread.start()
    try:
        yield uplink
    finally:
        stop.set()
        thread.join()
        uplink.close()


if __name__ == "__main__":
    if sys.argv[1] == "owner":
        owner(Path(sys.argv[2]))
    else:
        member(Path(sys.argv[2]), sys.argv[3])
