"""Secure sums between processes, and a client that is killed in each step of a sum.

    python experiments/deployment/secure.py [--only WORD]

FedEED with two cohorts and hierarchical FedAvg, `privacy.secure = "both"`, six clients in two sectors, every party a
process of its own on loopback with keys and certificates. A client is killed (SIGKILL) in round 2, when it is about to
carry out one of the five steps of a sum, and does not come back. Each run is held against a simulation that loses the
same client in the same step; who is in a sum is found out from the models that the parties made, and single models are
looked for in all that other parties received or stored. One more run is without secure sums: there, single models have
to be found. Writes secure.json and secure_table.md beside this file after each run; what is in runs/secure is not run
again.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(ROOT / "tools"), str(HERE)]
from run import SPLIT, machine  # noqa: E402

from federation import Federation, charged  # noqa: E402
from headwater.config import Config  # noqa: E402
from secure_trial import STEPS, Loss, Trial, carry_out, exposed, kinds_sent_up, simulated, sums  # noqa: E402

METHODS: dict[str, tuple[str, ...]] = {"fedeed": ("algorithm.cohorts=2",), "hfedavg": ()}
ROUNDS, CLIENT, ROUND = 3, "c0", 2  # the client that is killed, and when
BEFORE = {
    "advertise_keys": "before its keys",
    "share_seeds": "before its shares",
    "open_shares": "before it opens shares",
    "mask_value": "before its masked value",
    "reveal_shares": "before it reveals shares",
}
ALL, PLAIN = "all must remain", "without secure sums"  # cases in which a sum is lost, and in which models are seen
SHORT = ("local.epochs=1", "deploy.deadline=120")

Case = tuple[str, str, str]  # method, task before which the client is killed or nothing, what is special


def cases() -> list[Case]:
    found = [(method, task, "") for method in METHODS for task in ("", *STEPS)]
    return found + [(method, "mask_value", ALL) for method in METHODS] + [("fedeed", "", PLAIN)]


def _name(case: Case) -> str:
    return "-".join(filter(None, (case[0], case[1] or "nobody", {ALL: "all", PLAIN: "plain"}.get(case[2], ""))))


def config(method: str, special: str) -> Config:
    sets = [f"rounds={ROUNDS}", *SPLIT, *SHORT, f"algorithm.name={method}", *METHODS[method]]
    sets.append(f"privacy.secure={'none' if special == PLAIN else 'both'}")
    return Config.load(None, [*sets, *(["privacy.secure_share=0.9"] if special == ALL else [])])


def federation(out: Path, asked: Config, loss: Loss | None) -> tuple[Trial, dict[str, Any]]:
    """A federation that has finished, now or before, and the code that it ran."""
    seen, done = out.parent / f"{out.name}-seen", out / "done.json"
    if done.exists():
        return Trial(Federation(out), seen), json.loads(done.read_text(encoding="utf-8"))
    for path in (out, seen):
        shutil.rmtree(path, ignore_errors=True)
    trial = carry_out(out, asked, loss)
    code = {key: value for key, value in machine("", {}).items() if key in ("commit", "date")}
    done.write_text(json.dumps(code), encoding="utf-8")
    return trial, code


def carried_out(case: Case, out: Path) -> dict[str, Any]:
    """What came of a case."""
    method, task, special = case
    loss = Loss(CLIENT, task, ROUND) if task else None
    asked = config(method, special)
    wanted = simulated(asked, loss)
    trial, code = federation(out, asked, loss)
    seen, looked = exposed(trial)
    result, sent = trial.federation.result(), trial.federation.sent()
    rows = [json.loads(line) for line in (trial.federation.run / "rounds.jsonl").read_text("utf-8").splitlines()]
    names = [loss.client] if loss else trial.federation.names("client")
    return {
        "method": method,
        "lost": BEFORE.get(task, "nobody"),
        "special": special,
        "model_sha256": result["model_sha256"],
        "simulation": wanted.result["model_sha256"],
        "accuracy": rows[-1]["accuracy"],
        "sums": [[round, place, list(members)] for round, place, members in sums(trial)],
        "too_few": {str(row["round"]): row["secure_too_few"] for row in rows if "secure_too_few" in row},
        "simulation_too_few": {
            str(row["round"]): row["secure_too_few"] for row in wanted.history if "secure_too_few" in row
        },
        "said": said(trial, names),
        "exposed": seen,
        "looked_through": looked,
        **code,
        "kinds_sent_by_clients": sorted(kinds_sent_up(trial)),
        "ledger": {f"{tier} {way}": size for (tier, way), size in charged(result).items()},
        "payload": {f"{tier} {way}": sent[tier, way] for tier, way in charged(result)},
    }


def said(trial: Trial, names: list[str]) -> list[str]:
    """Sentences of the host about these clients, and of the server about sums that were lost."""
    federation = trial.federation
    hosts = [line for host in federation.names("sector") for line in federation.said(host) if "left out" in line]
    server = [line for line in federation.said("server") if "secure sum" in line]
    return [line for line in hosts if any(f" {name} " in line for name in names)] + server


def wrong(row: dict[str, Any]) -> list[str]:
    """What is not as it should be."""
    if row["special"] == PLAIN:
        single = {f"{place} holds the model of {CLIENT} of round {ROUND}" for place in ("server", "s0")}
        return [] if single <= set(row["exposed"]) else ["models that were sent are not found where they are"]
    told = list(row["exposed"])
    if row["model_sha256"] != row["simulation"]:
        told.append("the model is not that of the simulation")
    if row["too_few"] != row["simulation_too_few"]:
        told.append("other sums were lost than in the simulation")
    if "model" in row["kinds_sent_by_clients"]:
        told.append("a client has sent a model")
    late = row["lost"] == BEFORE["reveal_shares"]
    for round, place, members in row["sums"]:
        if row["lost"] != "nobody" and CLIENT in members and (round > ROUND or (round == ROUND and not late)):
            told.append(f"{CLIENT} is in a sum of round {round} at {place}")
    inside = [CLIENT in members for round, _, members in row["sums"] if round == ROUND]
    if (row["lost"] == "nobody" or late) and not any(inside):
        told.append(f"{CLIENT} is in no sum of round {ROUND}")
    if row["special"] == ALL and not row["too_few"]:
        told.append("no sum was lost")
    for key, size in row["ledger"].items():  # what the server sends to a lost client ends at its host, and is charged
        if row["payload"][key] != size and (row["lost"] == "nobody" or key != "sector_client down"):
            told.append(f"{key}: the ledger has {size}, the parties sent {row['payload'][key]}")
    return told


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        f"| method | {CLIENT} is killed in round {ROUND} | sums of round {ROUND} | sums of round {ROUNDS} | model | |"
    ]
    lines.append("|---|---|---|---|---|---|")
    secure, control = ([row for row in rows if (row["special"] == PLAIN) is plain] for plain in (False, True))
    for row in secure:
        shown = []
        for at in (ROUND, ROUNDS):
            inside = [f"{place}: {' '.join(members)}" for round, place, members in row["sums"] if round == at]
            few = [f"{place}: lost, {left} left" for place, left in row["too_few"].get(str(at), {}).items()]
            shown.append("; ".join(inside + few))
        same = "the simulation's" if row["model_sha256"] == row["simulation"] else "**another one**"
        special = f", {row['special']}" if row["special"] else ""
        when = row["lost"] if row["lost"] != "nobody" else "not killed"
        verdict = "; ".join(wrong(row)) or "as it should be"
        lines.append(f"| {row['method']}{special} | {when} | {' | '.join(shown)} | {same} | {verdict} |")
    keys = ("models", "arrays", "bytes", "masked")
    models, arrays, size, masked = (sum(row["looked_through"][key] for row in secure) for key in keys)
    lines += [
        "",
        f"In these {len(secure)} runs, every single model was looked for at every other party, {models:,} times: in "
        f"the {arrays:,} arrays that parties received and in all files of their folders, {size / 1e6:,.0f} MB, and by "
        f"{masked:,} correlations with masked arrays. Found: {sum(len(row['exposed']) for row in secure) or 'none'}.",
    ]
    lines += [f"In the same run {PLAIN}, {len(row['exposed'])} were found." for row in control]
    return "\n".join(lines) + "\n"


def main() -> int:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--only", default="", help="cases whose name has this word, such as fedeed or mask_value")
    words = asked.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # whatever was started is to end, too
    out = ROOT / "runs" / "secure"
    out.mkdir(parents=True, exist_ok=True)
    file = HERE / "secure.json"
    rows: dict[str, dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))["runs"] if file.exists() else {}
    named = {_name(case): case for case in cases()}
    for name, case in named.items():
        if words.only not in name:
            continue
        rows[name] = carried_out(case, out / name)
        rows = {each: rows[each] for each in named if each in rows}
        print(f"{name}: {'; '.join(wrong(rows[name])) or 'as it should be'}", flush=True)
        told = machine("make secure-check", {})
        told = {key: told[key] for key in ("command", "machine", "versions")}
        file.write_text(json.dumps(told | {"runs": rows}, indent=1) + "\n", encoding="utf-8")
        (HERE / "secure_table.md").write_text(table(list(rows.values())), encoding="utf-8")
    print(table(list(rows.values())))
    return int(any(map(wrong, rows.values())))


if __name__ == "__main__":
    sys.exit(main())
