"""The page of `headwater deploy watch`: one self-contained HTML document that renews its content every other second.

Everything on it that may come from another party is escaped, and its content security policy allows no script but its
own and no address but the one that it came from. Without JavaScript the browser reloads it as a whole.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from headwater.deploy.folder import listed
from headwater.deploy.overview import AWAY, DONE, ENDED, RUNNING, UNKNOWN, WAITING, NodeRow, Overview, ago, read
from headwater.report import style
from headwater.report.live import LivePage, Part
from headwater.report.numbers import NONE, count, percent, size
from headwater.report.page import MARK, esc

SECONDS = 2  # between two renewals
SIGNS = {RUNNING: "●", WAITING: "◐", AWAY: "✕", ENDED: "■", DONE: "✓", UNKNOWN: "○"}
TIERS = {
    "server_sector": "server – sectors",
    "sector_client": "sectors – clients",
    "relay": "inside sectors",
    "final": "final model",
}
WIDTH, HEIGHT = 240, 44  # of the curve, in pixels


def policy(nonce: str) -> str:
    """The content security policy of the page.

    Args:
        nonce: that the page's own script and style carry.
    """
    return (
        f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; img-src data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def page(overview: Overview, nonce: str) -> str:
    """The whole document."""
    here = Path(__file__).parent
    css, script = ((here / f"live_page.{kind}").read_text(encoding="utf-8") for kind in ("css", "js"))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark"><link rel="icon" href="data:,">'
        f'<noscript><meta http-equiv="refresh" content="{5 * SECONDS}"></noscript>'
        f"<title>{esc(overview.title)} · Headwater</title>"
        f'<style nonce="{nonce}">{style.variables()}{css}</style></head>'
        f'<body><p class="brand">{MARK}Headwater <span id="live" role="status">live</span></p>'
        f'<div id="content" data-seconds="{SECONDS}">{content(overview)}</div>'
        f'<script nonce="{nonce}">{script}</script></body></html>\n'
    )


def content(overview: Overview) -> str:
    """The part of the document that is renewed."""
    return "".join(
        (
            f"<header><h1>{esc(overview.title)}</h1>{''.join(_facts(overview))}</header>",
            f"<main>{_attention(overview)}",
            f"<section><h2>Parties</h2>{_tree(overview)}</section>",
            f"<section><h2>Sent</h2>{_sent(overview)}</section>",
            f"<section><h2>Log</h2>{''.join(_logs(overview))}</section></main>",
            f"<footer>Read at {time.strftime('%H:%M:%S', time.localtime(overview.now))} from folders of this machine."
            " Parties elsewhere are shown as the party above them sees them.</footer>",
        )
    )


def _facts(overview: Overview) -> Iterator[str]:
    done = overview.round / overview.rounds if overview.rounds else 0.0
    bar = f'<progress max="1" value="{min(1.0, done):.3f}" aria-label="rounds done"></progress>'
    yield '<dl class="facts">'
    yield _fact("Round", f"{overview.round}<small> of {overview.rounds}</small>{bar}")
    yield _fact("Accuracy", f"{esc(percent(overview.accuracy))}{_curve(overview)}")
    for name, counts in (("Refusals", overview.refusals), ("Faults", overview.faults)):
        total = sum(counts.values())
        where = [party for party, number in counts.items() if number]
        at = f"<small>at {esc(listed(where, 3))}</small>" if where else "<small>since the start</small>"
        yield _fact(name, f'<span class="{"bad" if total else ""}">{esc(count(total))}</span>{at}')
    yield "</dl>"


def _fact(name: str, value: str) -> str:
    return f"<div><dt>{name}</dt><dd>{value}</dd></div>"


def _curve(overview: Overview) -> str:
    if len(overview.curve) < 2:
        return ""
    first, last = overview.curve[0][0], overview.curve[-1][0]
    low = min(accuracy for _, accuracy in overview.curve)
    span = max(max(accuracy for _, accuracy in overview.curve) - low, 0.05)
    points = " ".join(
        f"{WIDTH * (at - first) / max(1, last - first):.1f},{HEIGHT - 2 - (HEIGHT - 4) * (value - low) / span:.1f}"
        for at, value in overview.curve
    )
    label = f"accuracy from round {first} to {last}"
    return (
        f'<svg class="curve" viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none" role="img" aria-label="{label}">'
        f'<polyline points="{points}"/></svg>'
    )


def _attention(overview: Overview) -> str:
    items = [f"<li>{esc(sentence)}</li>" for sentence in overview.stuck]
    items += [f'<li class="bad">{esc(sentence)}</li>' for sentence in overview.visitors]
    calm = '<p class="calm">No party is overdue, and no unknown party has tried to connect.</p>'
    notices = '<ul class="notices">' + "".join(items) + "</ul>" if items else calm
    return f"<section><h2>Waiting and visitors</h2>{notices}</section>"


def _tree(overview: Overview) -> str:
    rows = "".join(_row(node, overview.now) for node in overview.nodes)
    head = "".join(f'<th scope="col">{name}</th>' for name in ("Party", "State", "Last answer", "What"))
    return f'<table class="tree"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'


def _row(node: NodeRow, now: float) -> str:
    alias = f" <small>{esc(node.alias)}</small>" if node.alias else ""
    role = f" <small>{node.role}</small>" if node.role != node.name else ""
    last = NONE if node.last is None else f"{esc(ago(now - node.last))} ago"
    return (
        f'<tr class="d{node.depth}"><th scope="row">{esc(node.name)}{role}{alias}</th>'
        f'<td class="state {node.state}"><span aria-hidden="true">{SIGNS[node.state]}</span> {esc(node.says)}</td>'
        f'<td class="last">{last}</td><td class="what">{esc(node.detail)}</td></tr>'
    )


def _sent(overview: Overview) -> str:
    tiers = [tier for tier in TIERS if any(tier in sent for sent in overview.sent.values())]
    if not tiers:
        return '<p class="calm">Nothing was sent yet.</p>'
    head = "".join(f'<th scope="col">{TIERS[tier]}</th>' for tier in tiers)
    rows = []
    for party, sent in overview.sent.items():
        if not sent:
            continue
        cells = "".join(f"<td>{_ways(sent.get(tier, {}))}</td>" for tier in tiers)
        rows.append(f'<tr><th scope="row">{esc(party)}</th>{cells}</tr>')
    return (
        f'<div class="scroll" tabindex="0"><table class="sent"><thead><tr><th scope="col">Party</th>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _ways(ways: dict[str, int] | object) -> str:
    signs = {"up": "↑", "down": "↓"}
    sizes = ways if isinstance(ways, dict) else {}
    return "<br>".join(f"{sign} {esc(size(sizes[way]))}" for way, sign in signs.items() if way in sizes) or NONE


def _logs(overview: Overview) -> Iterator[str]:
    for at, (party, lines) in enumerate(overview.logs.items()):
        shown = "".join(
            f'<li class="{esc(line["level"])}"><time>{esc(line["time"][-8:])}</time> {esc(line["message"])}</li>'
            for line in reversed(lines)
        )
        rows = f"<ol>{shown}</ol>" if shown else '<p class="calm">Nothing yet.</p>'
        unfolded = " open" if at == 0 else ""
        yield f'<details id="log-{esc(party)}"{unfolded}><summary>{esc(party)}</summary>{rows}</details>'


class PageServer(LivePage):
    """Serves the page of a directory on loopback.

    Args:
        directory: a party's folder, or a directory of several.
        port: to listen at; 0 for any free one.

    Raises:
        ConfigError: if the port cannot be used.
    """

    def __init__(self, directory: Path, port: int = 0) -> None:
        parts: dict[str, Part] = {
            "": lambda nonce: page(read(directory), nonce),
            "content": lambda _: content(read(directory)),
        }
        super().__init__(parts, policy, port, "deploy watch")
