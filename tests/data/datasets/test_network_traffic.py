"""Traffic sets: what becomes of their columns, the cap on a class, and the published parts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from headwater.config import Config
from headwater.data.datasets.network_traffic import GROUP_OF, KDD, NO_FEATURES_75
from headwater.data.loading import load
from headwater.errors import DataError
from headwater.training.experiment import prepare


def unicauca75(folder: Path, count: int = 120) -> Path:
    """A few columns of each kind that the published file has."""
    rng = np.random.default_rng(0)
    kinds = rng.choice(["GOOGLE", "SSL", "DNS"], count, p=[0.7, 0.2, 0.1])
    frame = pd.DataFrame(
        {"Flow.ID": [f"10.0.0.1-{n}" for n in range(count)], "Source.IP": "10.0.0.1", "Source.Port": 80}
    )
    frame["Destination.IP"], frame["Protocol"], frame["Timestamp"] = "10.0.0.2", 6, "26/04/201711:11:17"
    frame["Flow.Duration"] = rng.integers(1, 10**8, count)
    frame["Flow.Bytes.s"] = rng.random(count)
    frame["Label"], frame["L7Protocol"], frame["ProtocolName"] = "BENIGN", 126, kinds
    (folder / "unicauca75").mkdir(parents=True, exist_ok=True)
    path = folder / "unicauca75" / "Dataset-Unicauca-Version2-87Atts.csv"
    frame.to_csv(path, index=False)
    return path


def unicauca141(folder: Path, count: int = 60) -> Path:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"flow_key": [f"{n:x}" for n in range(count)], "src_ip_numeric": 1, "src_ip": "10.0.0.1"})
    frame["src_port"], frame["dst_ip"], frame["proto"] = 443, "10.0.0.2", 6
    frame["pktTotalCount"] = rng.integers(1, 99, count)
    frame["flowStart"], frame["flowEnd"], frame["flowDuration"] = 1.5e9, 1.5e9, rng.random(count)
    frame["category"], frame["application_protocol"] = "Web", "TLS"
    frame["web_service"] = np.array(["Google", "Skype", "YouTube"])[np.arange(count) % 3]
    (folder / "unicauca141").mkdir(parents=True, exist_ok=True)
    path = folder / "unicauca141" / "Unicauca-dataset-April-June-2019-Network-flows.csv"
    frame.to_csv(path, index=False)
    return path


def nsl_kdd(folder: Path) -> Path:
    """As published: no header, the attack and how hard it is in the last two columns."""
    (folder / "nsl_kdd").mkdir(parents=True, exist_ok=True)
    attacks = ["normal", "neptune", "satan", "guess_passwd", "rootkit", "mailbomb"]
    for name, count in (("KDDTrain+.txt", 50), ("KDDTest+.txt", 12)):
        rows = []
        for n in range(count):
            values = {column: str(n % 7) for column in KDD}
            values |= {"protocol_type": ("tcp", "udp")[n % 2], "service": "http", "flag": "SF"}
            values |= {"label": attacks[n % 5 if "Train" in name else n % 6], "difficulty": "20"}
            rows.append(",".join(values[column] for column in KDD))
        (folder / "nsl_kdd" / name).write_text("\n".join(rows) + "\n", encoding="ascii")
    return folder / "nsl_kdd" / "KDDTrain+.txt"


class TestUnicauca:
    def test_no_address_no_time_and_nothing_that_gives_the_class_away(self, tmp_path: Path) -> None:
        unicauca75(tmp_path)
        data = load("unicauca75", tmp_path)
        assert data.preparation.columns.names == ("Source.Port", "Protocol", "Flow.Duration", "Flow.Bytes.s")
        assert not set(data.preparation.columns.names) & set(NO_FEATURES_75)
        assert data.class_names == ("DNS", "GOOGLE", "SSL")

    def test_the_cap_keeps_so_many_of_each_class(self, tmp_path: Path) -> None:
        frame = pd.read_csv(unicauca75(tmp_path))
        data = load("unicauca75", tmp_path, {"cap": 20})
        together = torch.bincount(torch.cat([data.train.y, data.test.y])).tolist()
        assert together == [min(20, int((frame.ProtocolName == name).sum())) for name in data.class_names]
        again = load("unicauca75", tmp_path, {"cap": 20})
        assert torch.equal(data.train.x, again.train.x)
        assert len(data.test) == sum(together) // 5

    def test_a_file_in_pieces_is_the_same_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        from headwater.data import table_columns
        from headwater.data.datasets import network_traffic

        unicauca75(tmp_path)
        whole = load("unicauca75", tmp_path, {"cap": 15})
        monkeypatch.setattr(
            network_traffic, "parse_in_pieces", lambda path: table_columns.parse_in_pieces(path, rows=7)
        )
        assert torch.equal(whole.train.x, load("unicauca75", tmp_path, {"cap": 15}).train.x)

    def test_the_later_set(self, tmp_path: Path) -> None:
        unicauca141(tmp_path)
        data = load("unicauca141", tmp_path)
        assert data.class_names == ("Google", "Skype", "YouTube")
        assert data.preparation.columns.names == ("src_port", "proto", "pktTotalCount", "flowDuration")

    def test_standardised_by_what_clients_tell(self, tmp_path: Path) -> None:
        unicauca75(tmp_path)
        made = prepare(Config(data={"name": "unicauca75", "dir": str(tmp_path), "validation": 0, "reference_size": 0},
                              partition={"clients": 4, "sectors": 2}, algorithm={"name": "fedavg"}))  # fmt: skip
        x = made.split.train.x
        np.testing.assert_allclose(x[:, 2:].mean(0), 0, atol=1e-6)
        np.testing.assert_allclose(x[:, 2:].std(0, unbiased=False), 1, atol=1e-5)
        assert torch.equal(x[:, :2], torch.zeros(len(x), 2))  # one port, one protocol
        assert set(made.exchange.up.values()) == {4 * 3 * 8}


class TestIntrusions:
    def test_published_parts_in_groups(self, tmp_path: Path) -> None:
        nsl_kdd(tmp_path)
        data = load("nsl_kdd", tmp_path)
        assert data.class_names == ("normal", "DoS", "Probe", "R2L", "U2R")
        assert (len(data), len(data.test), data.shape) == (50, 12, (41,))
        assert torch.bincount(data.test.y, minlength=5).tolist() == [2, 4, 2, 2, 2]  # mailbomb is a denial of service
        assert load("nsl_kdd", tmp_path, {"classes": "attack"}).class_names == ("normal", "attack")

    def test_every_attack_is_in_one_group(self) -> None:
        assert len(GROUP_OF) == 39 + 1  # and the normal case
        assert GROUP_OF["smurf"] == "DoS"

    def test_an_attack_that_there_is_not(self, tmp_path: Path) -> None:
        path = nsl_kdd(tmp_path)
        path.write_text(path.read_text().replace("satan", "saturn"))
        with pytest.raises(DataError, match=r"no attack called 'saturn'"):
            load("nsl_kdd", tmp_path)


class TestWrong:
    @pytest.mark.parametrize("name", ["unicauca75", "unicauca141", "iscx_vpn2016", "nsl_kdd"])
    def test_absent(self, tmp_path: Path, name: str) -> None:
        with pytest.raises(DataError, match=f"{name} is not in the data directory.*get it from http"):
            load(name, tmp_path)

    @pytest.mark.parametrize(("make", "name"), [(unicauca75, "unicauca75"), (unicauca141, "unicauca141")])
    def test_another_table(self, tmp_path: Path, make: object, name: str) -> None:
        path = make(tmp_path)  # type: ignore[operator]
        path.write_text("a,b\n1,2\n")
        with pytest.raises(DataError, match=r"is damaged.*has no column"):
            load(name, tmp_path)
