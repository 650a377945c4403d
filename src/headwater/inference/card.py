"""The model card: what a trained model is, how it was made, and how to use it, as Markdown beside the model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

FILE = "model.md"
PARTIES = {"server": "server", "host": "host of a sector", "leader": "leader of a sector", "client": "client"}


def card(
    result: Mapping[str, Any],
    partition: Mapping[str, Any],
    sees: Mapping[str, str],
    summary: str,
    preparation: Mapping[str, Any],
) -> str:
    """The text of the card.

    Args:
        result: content of result.json.
        partition: content of partition.json.
        sees: party → what it gets to see, from the method's description.
        summary: one line about the method.
        preparation: how inputs are read; see `headwater.data.reading`.
    """
    return "\n".join(_lines(result, partition, sees, summary, preparation)) + "\n"


def _lines(
    result: Mapping[str, Any],
    partition: Mapping[str, Any],
    sees: Mapping[str, str],
    summary: str,
    preparation: Mapping[str, Any],
) -> Iterator[str]:
    yield f"# {result['model']} trained with {result['label']} on {result['data']}"
    yield ""
    yield "| | |"
    yield "|---|---|"
    yield f"| method | {result['label']}: {summary} |"
    yield f"| model | {result['model']}, {result['parameters']:,} parameters |"
    yield f"| data | {result['data']} |"
    if columns := preparation.get("columns"):
        yield f"| inputs | columns {_cell(', '.join(columns))} |"
    yield f"| split | {_split(result, partition)} |"
    yield f"| rounds | {result['rounds']}, seed {result['seed']} |"
    yield f"| test accuracy | {_accuracy(result)} |"
    if "local_accuracy" in result:
        yield f"| accuracy at clients | {result['local_accuracy']:.2%}, mean over clients on their own test rows |"
    yield f"| privacy | {_cell(result.get('privacy', {}).get('sentence', 'no noise was added'))} |"
    for tier, words in (("server_sector", "server – sectors"), ("sector_client", "sectors – clients")):
        moved = result["ledger"][tier]
        yield f"| sent, {words} | {moved['up_bytes']:,} bytes up, {moved['down_bytes']:,} bytes down |"
    yield f"| model_sha256 | `{result['model_sha256']}` |"
    yield f"| partition_sha256 | `{result['partition_sha256']}` |"
    yield f"| versions | {', '.join(f'{name} {number}' for name, number in result['versions'].items())} |"
    if sees:
        yield from ("", "## Who saw what", "", "Training rows never leave their client.", "")
        yield from (f"- **{PARTIES.get(party, party)}**: {what}" for party, what in sees.items())
    if remarks := result.get("remarks"):
        yield from ("", "## Remarks", "", *(f"- {remark}" for remark in remarks))
    yield from ("", "## Use", "", "```python", "import headwater as hw", "")
    yield from ('model = hw.load("model.safetensors")', "model.predict(x), model.predict_proba(x)", "```", "")
    yield from ("The same run again, from the folder of this file:", "", "```sh", "headwater run config.toml", "```")


def _split(result: Mapping[str, Any], partition: Mapping[str, Any]) -> str:
    scheme = partition.get("scheme") or partition.get("made_with", {}).get("scheme", "")
    clients = f"{result['clients']} clients in {result['sectors']} sector{'s' if result['sectors'] != 1 else ''}"
    return f"{clients}, {scheme}" if scheme else clients


def _accuracy(result: Mapping[str, Any]) -> str:
    interval = result.get("accuracy_ci95")
    between = f" (95 % interval {interval[0]:.2%} to {interval[1]:.2%})" if interval else ""
    return f"{result['accuracy']:.2%}{between}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
