"""Amendments of the agreement: a client is added, and nothing else is changed.

An amendment is a record at the end of `federation.json`: the new client, its sector, the fingerprint of its key and the
SHA-256 of the file before. The new file follows from the old one and the record alone. So a party that has the old
file needs only the records, which come with every message: if its own file with them has the SHA-256 that the message
names, the new file differs from its own in added clients only, and it takes that over. The host of the client's sector
does not: it would admit a new key, which is for its operator to decide (`headwater deploy add` in its folder).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headwater.deploy.folder import FEDERATION
from headwater.deploy.payload import Refused
from headwater.training.checkpoint import write_whole

KEY = "amendments"
FINGERPRINT = re.compile(r"SHA256:[A-Za-z0-9+/=]{20,64}")
MOST = 1000  # of one federation


def amended(content: bytes, client: str, sector: str, key: str) -> bytes:
    """The content of federation.json with one more client.

    Args:
        content: of the file before.
        client: name of the new client.
        sector: that it is in.
        key: fingerprint of its public key; empty without keys.
    """
    fields = json.loads(content)
    record = {"client": client, "sector": sector, "key": key, "before": hashlib.sha256(content).hexdigest()}
    fields["sectors"][sector].append(client)
    fields[KEY] = [*fields.get(KEY, []), record]
    return as_file(fields)


def unamended(content: bytes) -> bytes:
    """The content of federation.json as `init` wrote it."""
    fields = json.loads(content)
    rows = fields.pop(KEY, [])
    added = {row["client"] for row in rows}
    fields["sectors"] = {name: [c for c in team if c not in added] for name, team in fields["sectors"].items()}
    return as_file(fields) if rows else content


def as_file(fields: Mapping[str, Any]) -> bytes:
    """The content of federation.json, in the one form that all parties write."""
    return (json.dumps(fields, indent=1, ensure_ascii=False) + "\n").encode()


def next_client(fields: Mapping[str, Any], clients: int) -> str:
    """The name of the client that can be added next.

    Args:
        fields: of federation.json.
        clients: `partition.clients` of the agreed configuration.
    """
    numbers = [int(client[1:]) for team in fields["sectors"].values() for client in team]
    return f"c{max(clients, 1 + max(numbers))}"


def followed(content: bytes, head: Mapping[str, Any], name: str, clients: int) -> tuple[bytes, list[dict[str, str]]]:
    """The file that a message is of, derived from an older one.

    Args:
        content: of this party's federation.json.
        head: of the message, with the SHA-256 of the file and its amendments.
        name: of this party.
        clients: `partition.clients` of the agreed configuration.

    Returns:
        The content of the new file, and the amendments that are new.

    Raises:
        Refused: it is not this party's file with further clients, or this party would have to admit one of them.
    """
    rows, own = head.get(KEY), json.loads(content).get(KEY, [])
    if not isinstance(rows, list) or not len(own) < len(rows) <= MOST or rows[: len(own)] != own:
        raise Refused("its federation.json is another one")
    more = rows[len(own) :]
    for row in more:
        fields = json.loads(content)
        if not _is_valid(row, fields["sectors"], next_client(fields, clients)):
            raise Refused("its federation.json is another one, and not only by added clients")
        if row["sector"] == name:
            raise Refused(
                f"it adds {row['client']} to {name}, whose operator has to admit its key first: headwater deploy add"
            )
        content = amended(content, row["client"], row["sector"], row["key"])
    if hashlib.sha256(content).hexdigest() != head.get("federation"):
        raise Refused("its federation.json is another one, and not only by added clients")
    return content, more


def _is_valid(row: Any, sectors: Mapping[str, Sequence[str]], client: str) -> bool:
    if not isinstance(row, dict) or not all(isinstance(value, str) for value in row.values()):
        return False
    known = row.keys() == {"client", "sector", "key", "before"} and row["client"] == client and row["sector"] in sectors
    return known and (not row["key"] or FINGERPRINT.fullmatch(row["key"]) is not None)


def replace_agreement(folder: Path, content: bytes) -> Path:
    """Write a new federation.json. Returns where the old one is kept."""
    file = folder / FEDERATION
    before = file.read_bytes()
    old = file.with_name(f"federation-{len(json.loads(before).get(KEY, []))}.json")
    write_whole(old, before)
    write_whole(file, content)
    return old
