"""Published sets of network traffic: flows with numeric features, standardised by sums over all clients."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from annotated_types import Ge

from headwater.core.rng import stream
from headwater.data import DatasetInfo
from headwater.data.base import Data, held_for_tests, held_out
from headwater.data.files import Array, Published, PublishedFile, absent, broken, first_file, root
from headwater.data.table_columns import Columns, Encoded, parse, parse_in_pieces
from headwater.errors import DataError

if TYPE_CHECKING:
    from pandas import DataFrame


Cap = Annotated[int, Ge(0)]
VPN = "VPN-"

# Columns that identify a flow or reveal its class are no features: addresses, times, output of the labelling tool.
NO_FEATURES_75 = ("Flow.ID", "Source.IP", "Destination.IP", "Timestamp", "Label", "L7Protocol", "ProtocolName")
NO_FEATURES_141 = (
    *("flow_key", "src_ip", "src_ip_numeric", "dst_ip", "flowStart", "flowEnd"),
    *("category", "application_protocol", "web_service"),
)

GROUPS = {
    "normal": "normal",
    "DoS": "back land neptune pod smurf teardrop apache2 udpstorm processtable worm mailbomb",
    "Probe": "satan ipsweep nmap portsweep mscan saint",
    "R2L": "guess_passwd ftp_write imap phf multihop warezmaster warezclient spy xlock xsnoop snmpguess snmpgetattack "
    "httptunnel sendmail named",
    "U2R": "buffer_overflow loadmodule rootkit perl sqlattack xterm ps",
}
GROUP_OF = {attack: group for group, attacks in GROUPS.items() for attack in attacks.split()}
_COLUMNS = (
    "duration protocol_type service flag src_bytes dst_bytes land wrong_fragment urgent hot num_failed_logins "
    "logged_in num_compromised root_shell su_attempted num_root num_file_creations num_shells num_access_files "
    "num_outbound_cmds is_host_login is_guest_login count srv_count serror_rate srv_serror_rate rerror_rate "
    "srv_rerror_rate same_srv_rate diff_srv_rate srv_diff_host_rate dst_host_count dst_host_srv_count "
    "dst_host_same_srv_rate dst_host_diff_srv_rate dst_host_same_src_port_rate dst_host_srv_diff_host_rate "
    "dst_host_serror_rate dst_host_srv_serror_rate dst_host_rerror_rate dst_host_srv_rerror_rate label difficulty"
)
KDD = _COLUMNS.split(" ")
PUBLISHED = {
    "iscx_vpn2016": Published(
        "https://www.unb.ca/cic/datasets/vpn.html",
        (),
        {"flows_15s.csv.gz": PublishedFile("346e506aa7c62a6cbabdd25b289170dcca27d62d2ab41f5bf37eff9a511a7839")},
    ),
    "unicauca75": Published("https://www.kaggle.com/datasets/jsrojas/ip-network-traffic-flows-labeled-with-87-apps"),
    "unicauca141": Published("https://www.kaggle.com/datasets/jsrojas/labeled-network-traffic-flows-114-applications"),
    "nsl_kdd": Published(
        "https://www.unb.ca/cic/datasets/nsl.html",
        (),
        {
            "train_20percent.csv.gz": PublishedFile("f182a564db57650c74fedabddd0d021c7dab3a57e7980160159ef0f320cffb4d"),
            "test.csv.gz": PublishedFile("d392e5890856a080d11043084d59f2c9fd29d878f7ca04a816b1b4e9630717e6"),
        },
    ),
}


@DatasetInfo("iscx_vpn2016", "18 758 traffic flows, 23 features, 14 classes (classes, cap)")
def iscx_vpn2016(
    data_dir: Path | None = None, *, classes: Literal["all", "applications", "vpn"] = "all", cap: Cap = 0
) -> Data:
    """Flows of seven kinds of application, each with and without a VPN: all 14 classes, the 7 kinds, or VPN or not.

    There is no published split: a fixed fifth is the test part.

    Args:
        data_dir: the data directory; None for the default one.
        classes: "all", "applications" or "vpn".
        cap: the largest number of flows per class; 0 keeps all.
    """
    path = root(data_dir) / "iscx_vpn2016" / "flows_15s.csv.gz"
    if not path.is_file():
        original = "the flows of scenario A2 as one table with that name"
        raise absent("iscx_vpn2016", path, PUBLISHED["iscx_vpn2016"].source, original)
    frame = parse(path)
    label = _label(frame, "label", path)
    if classes == "applications":
        label = np.array([name.removeprefix(VPN) for name in label])
    elif classes == "vpn":
        label = np.array(["VPN" if name.startswith(VPN) else "no VPN" for name in label])
    kept = _capped(label, cap)
    return _flows(frame.drop(columns="label").iloc[kept], label[kept], "iscx_vpn2016", path)


@DatasetInfo("unicauca75", "traffic flows by application, 75 classes (cap)")
def unicauca75(data_dir: Path | None = None, *, cap: Cap = 5000) -> Data:
    """Flows of a university's network by application (75), at most `cap` of each; a fixed fifth is the test part.

    Args:
        data_dir: the data directory; None for the default one.
        cap: the largest number of flows per class; 0 keeps all.
    """
    return _unicauca(
        "unicauca75", data_dir, "Dataset-Unicauca-Version2-87Atts.csv", "ProtocolName", cap, NO_FEATURES_75
    )


@DatasetInfo("unicauca141", "traffic flows by web service, 141 classes (cap)")
def unicauca141(data_dir: Path | None = None, *, cap: Cap = 2000) -> Data:
    """Flows of the same network, two years later, by web service (141 of them), at most `cap` of each.

    Args:
        data_dir: the data directory; None for the default one.
        cap: the largest number of flows per class; 0 keeps all.
    """
    file = "Unicauca-dataset-April-June-2019-Network-flows.csv"
    return _unicauca("unicauca141", data_dir, file, "web_service", cap, NO_FEATURES_141)


@DatasetInfo("nsl_kdd", "connections, 41 features, 5 classes: normal and 4 kinds of attack (classes)")
def nsl_kdd(data_dir: Path | None = None, *, classes: Literal["groups", "attack"] = "groups") -> Data:
    """Connections of the intrusion benchmark: five groups (normal and four kinds of attack), or attack or not.

    The published test part has attacks that no training row has, so single attacks are not offered as classes.

    Args:
        data_dir: the data directory; None for the default one.
        classes: "groups" or "attack".
    """
    folder = root(data_dir) / "nsl_kdd"
    pairs = [
        (folder / "train_20percent.csv.gz", folder / "test.csv.gz"),
        *((folder / name, folder / "KDDTest+.txt") for name in ("KDDTrain+.txt", "KDDTrain+_20Percent.txt")),
    ]
    files = next((pair for pair in pairs if pair[0].is_file()), None)
    if files is None:
        raise absent("nsl_kdd", pairs[0][0], PUBLISHED["nsl_kdd"].source, "KDDTrain+.txt and KDDTest+.txt")
    parts = []
    for path in files:
        if not path.is_file():
            raise DataError(f"{path.parent} has no {path.name}, the other part of this data set; put it there")
        frame = parse(path, KDD if path.suffix == ".txt" else None)
        if frame.empty:
            raise broken(path, "it has no rows")
        if set(frame.columns) != set(KDD):
            raise broken(path, "its columns are not those of NSL-KDD")
        attacks = _label(frame, "label", path)
        odd = next((attack for attack in attacks if attack not in GROUP_OF), None)
        if odd is not None:
            raise broken(path, f"there is no attack called {odd!r}")
        group = np.array([GROUP_OF[attack] for attack in attacks])
        label = group if classes == "groups" else np.where(group == "normal", "normal", "attack")
        parts.append((frame.drop(columns=["label", "difficulty"]), label))
    names = list(GROUPS) if classes == "groups" else ["normal", "attack"]
    kinds = Columns.of(parts[0][0], str(files[0]))
    x, x_test = (
        kinds.encode(frame[list(kinds.names)], str(path)) for (frame, _), path in zip(parts, files, strict=True)
    )
    y, y_test = (np.array([names.index(name) for name in label]) for _, label in parts)
    return Data(x, y, x_test, y_test, name="nsl_kdd", class_names=names, preparation=Encoded(kinds))


def _unicauca(name: str, data_dir: Path | None, file: str, column: str, cap: int, without: Sequence[str]) -> Data:
    """Flows with the label in `column`, from a .csv file that may be gzipped. Columns of `without` are no features."""
    folder = root(data_dir) / name
    path = first_file(folder, (file, f"{file}.gz"))
    if path is None:
        raise absent(name, folder / file, PUBLISHED[name].source, "the same with .gz")
    frame = _few_of_each(path, column, cap)
    features = frame[[feature for feature in frame.columns if feature not in without]]
    return _flows(features, _label(frame, column, path), name, path)


def _flows(features: DataFrame, label: Array, name: str, path: Path) -> Data:
    """A set of numeric columns, a fixed fifth of whose rows is the test part."""
    words = [column for column in features.columns if features[column].dtype.kind not in "biuf"]
    if words:
        raise broken(path, f"column {words[0]!r} must hold numbers")
    kinds = Columns.of(features, str(path))
    x = kinds.encode(features.replace([np.inf, -np.inf], np.nan), str(path))  # rates of flows without length
    names, y = np.unique(label, return_inverse=True)
    held = held_for_tests(None, len(y), str(path))
    return held_out(x, y, held, name=name, class_names=names, preparation=Encoded(kinds))


def _label(frame: DataFrame, column: str, path: Path) -> Array:
    if column not in frame.columns:
        raise broken(path, f"it has no column {column!r}")
    if frame[column].isna().any():
        raise broken(path, f"column {column!r} has empty cells")
    return frame[column].astype(str).str.strip().to_numpy()


def _capped(label: Array, cap: int) -> Array:
    """Numbers of at most `cap` rows per class, always the same ones."""
    order = stream(0, "cap").permutation(len(label))
    if not cap:
        return np.arange(len(label))
    kept = [order[label[order] == name][:cap] for name in np.unique(label)]
    return np.sort(np.concatenate(kept))


def _few_of_each(path: Path, column: str, cap: int) -> DataFrame:
    """At most `cap` rows per class of a file that may not fit into memory.

    A random number is drawn for every row, and each class keeps the rows with its smallest numbers.
    """
    import pandas as pd

    draw = stream(0, "cap")
    kept: DataFrame | None = None
    for piece in parse_in_pieces(path):
        if column not in piece.columns:
            raise broken(path, f"it has no column {column!r}")
        piece = piece.assign(drawn=draw.random(len(piece)))
        both = piece if kept is None else pd.concat([kept, piece], ignore_index=True)
        kept = both if not cap else both.sort_values("drawn", kind="stable").groupby(column, sort=False).head(cap)
    if kept is None:
        raise broken(path, "it has no rows")
    return kept.sort_values("drawn", kind="stable").drop(columns="drawn").reset_index(drop=True)
