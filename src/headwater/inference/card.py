"""The model card: what a trained model is, how it was made, and how to use it, as Markdown beside the model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headwater.algorithms import MethodInfo

FILE = "model.md"
PARTIES = {"server": "server", "host": "host of a sector", "leader": "leader of a sector", "client": "client"}


def card(
    result: Mapping[str, Any],
    scheme: str,
    info: MethodInfo,
    preparation: Mapping[str, Any],
) -> str:
    """The text of the card.

    Args:
        result: content of result.json.
        scheme: how the data was split.
        info: what the method says about itself.
        preparation: how inputs are read; see `headwater.data.reading`.
    """
    return "\n".join(_lines(result, scheme, info, preparation)) + "\n"


def _lines(
    result: Mapping[str, Any],
    scheme: str,
    info: MethodInfo,
    preparation: Mapping[str, Any],
) -> Iterator[str]:
    yield f"# {result['model']} trained with {result['label']} on {result['data']}"
    yield ""
    yield "| | |"
    yield "|---|---|"
    yield f"| method | {result['label']}: {_cell(info.summary)} |"
    yield f"| model | {result['model']}, {result['parameters']:,} parameters |"
    yield f"| data | {result['data']} |"
    if columns := preparation.get("columns"):
        yield f"| inputs | columns {_cell(', '.join(columns))} |"
    yield f"| split | {_split(result, scheme)} |"
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
    if info.sees:
        rows = "All training rows were pooled." if info.pooled else "Training rows never left their client."
        yield from ("", "## Who saw what", "", rows, "")
        yield from (f"- **{PARTIES.get(party, party)}**: {what}" for party, what in info.sees.items())
    if remarks := result.get("remarks"):
        yield from ("", "## Remarks", "", *(f"- {remark}" for remark in remarks))
    yield from ("", "## Use", "", "```python", "import headwater as hw", "")
    yield from ('model = hw.load("model.safetensors")', "model.predict(x), model.predict_proba(x)", "```", "")
    yield from ("The same run again, from the folder of this file:", "", "```sh", "headwater run config.toml", "```")


def _split(result: Mapping[str, Any], scheme: str) -> str:
    sectors = f"{result['sectors']} sector{'s' if result['sectors'] != 1 else ''}"
    return f"{result['clients']} clients in {sectors}, {scheme}"


def _accuracy(result: Mapping[str, Any]) -> str:
    interval = result.get("accuracy_ci95")
    between = f" (95 % interval {interval[0]:.2%} to {interval[1]:.2%})" if interval else ""
    return f"{result['accuracy']:.2%}{between}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
