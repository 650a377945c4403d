"""The page in a real browser, at the width of a desk and of a telephone. Skipped where there is no Chromium."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from browser import chromium
from headwater.report import write
from headwater.report.live import RunsPage
from headwater.report.method_table import tabulate
from headwater.report.runs import find

WIDTHS = (1280, 420)
TWELVE = tuple(
    {"method": f"m{at}", "label": f"Method {at}", "top": 0.7 + 0.02 * at, "distils": at % 2 == 0, "trips": 1 + at % 3}
    for at in range(12)
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    yield from chromium(tmp_path_factory.mktemp("profile"))


def waited(check: Callable[[], Any], seconds: float = 60) -> Any:
    """The first true answer."""
    until = time.monotonic() + seconds
    while not (found := check()) and time.monotonic() < until:
        time.sleep(0.05)
    return found


def drawn(browser) -> bool:
    return bool(browser.execute_script("return document.documentElement.dataset.drawn"))


def opened(browser, address: str, width: int, *, theme: str = "light") -> None:
    """The page at a width, when all its charts are drawn."""
    browser.get_log("browser"), browser.get_log("performance")
    scheme = {"name": "prefers-color-scheme", "value": theme}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get(address)
    assert waited(lambda: drawn(browser))


def check_quiet(browser, address: str) -> None:
    """Nothing but the page was asked for, and nothing complained of."""
    assert browser.get_log("browser") == []
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    sent = [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
    asked = {url for url in sent if not url.startswith(("chrome", "data:"))}
    assert {url for url in asked if not url.startswith("blob:")} <= {address}


def check_fits(browser, width: int) -> None:
    """Nothing scrolls sideways, all letters can be read, and every chart is inside its card."""
    page = "document.documentElement"
    wanted, room, window = browser.execute_script(f"return [{page}.scrollWidth, {page}.clientWidth, innerWidth]")
    assert window == width
    assert wanted <= room
    smallest = """
      let least = 99;
      for (const node of document.querySelectorAll('body *')) {
        const own = [...node.childNodes].some(each => each.nodeType === 3 && each.textContent.trim());
        if (own && !['SCRIPT', 'STYLE', 'NOSCRIPT'].includes(node.tagName))
          least = Math.min(least, parseFloat(getComputedStyle(node).fontSize));
      }
      return least"""
    assert browser.execute_script(smallest) >= 12
    outside = """
      return [...document.querySelectorAll('.chart')].filter(box => {
        const drawing = box.querySelector('svg')?.getBoundingClientRect();
        const card = box.parentElement.getBoundingClientRect();
        return drawing && drawing.width && (drawing.right > card.right || drawing.left < card.left);
      }).map(box => box.dataset.chart ?? box.dataset.curve)"""
    assert browser.execute_script(outside) == []


def lines(browser, key: str = "accuracy") -> list[str]:
    """The paths of the curves, without hidden ones."""
    find_ = f"[...document.querySelectorAll('[data-curve={key}] .mark-line path')].map(each => each.getAttribute('d'))"
    return [path for path in browser.execute_script(f"return {find_}") if path]


def ticks(browser, key: str = "accuracy") -> list[str]:
    texts = f"document.querySelectorAll('[data-curve={key}] .role-axis-label text')"
    return list(browser.execute_script(f"return [...{texts}].map(each => each.textContent)"))


def test_four_methods(browser, comparison, tmp_path):
    """Numbers, controls, widths and themes of one page, in one session."""
    from selenium.webdriver.common.action_chains import ActionChains

    runs_dir = comparison(tmp_path / "runs", clients=20)
    address = write([runs_dir], tmp_path / "report.html").as_uri()
    runs = find(runs_dir)
    for width, theme in ((420, "dark"), (420, "light"), (1280, "dark"), (1280, "light")):
        opened(browser, address, width, theme=theme)
        check_fits(browser, width)
        colour = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
        parts = [int(part) for part in colour.removeprefix("rgb(").removesuffix(")").split(",")]
        assert (sum(parts) < 3 * 128) == (theme == "dark")
        head = "return getComputedStyle(document.querySelector('.results thead')).display"
        assert (browser.execute_script(head) == "none") == (width == 420), "on a telephone, rows are cards"
        browser.execute_script("document.querySelectorAll('details').forEach(each => each.open = true)")
        waited(lambda: browser.execute_script("return document.querySelector('#values table') !== null"))
        check_fits(browser, width)

    # The table says what the files say.
    rows = browser.execute_script(
        "return [...document.querySelectorAll('.results tbody tr')].map(row => [...row.children].map(cell =>"
        "  [cell.textContent, cell.dataset.value ?? null, cell.className]))"
    )
    assert [row[0][0] for row in rows] == ["FedAvg", "FedDF", "FedHEAD", "FedHEAD+"]
    for row in rows:
        own = [run for run in runs if run.label == row[0][0]]
        mean = sum(json.loads((run.path / "result.json").read_text())["accuracy"] for run in own) / len(own)
        assert float(row[2][1]) == pytest.approx(mean)
        assert row[2][0].startswith(f"{100 * mean:.1f}\u00a0±\u00a0")
        sent = [run.result["ledger"]["server_sector"] for run in own]
        assert float(row[7][1]) == pytest.approx(sum(e["up_bytes"] + e["down_bytes"] for e in sent) / len(sent))
    assert [row[2][2] == "best" for row in rows] == [row.best for row in tabulate(runs).rows]
    values = browser.execute_script("return document.querySelector('#values').textContent")
    first = sum(run.rows[0]["accuracy"] for run in runs if run.label == "FedAvg") / 3
    assert f"{100 * first:.1f} %" in values

    # Every chart has a description and an element of its own.
    described = browser.execute_script(
        "return [...document.querySelectorAll('.chart')]"
        ".map(box => [box.getAttribute('role'), box.ariaLabel, box.querySelector('svg') !== null])"
    )
    assert all(role == "img" and len(label) > 30 and picture for role, label, picture in described)

    # Curves and their controls.
    def press(name: str, value: str = "") -> None:
        mark = f'[value="{value}"]' if value else ""
        browser.execute_script(f"document.querySelector('#controls [name={name}]{mark}').click()")

    before, marks = lines(browser), ticks(browser)
    assert len(before) == len(lines(browser, "loss")) == 4
    press("x", "bytes")
    assert waited(lambda: any(text.endswith("MB") for text in ticks(browser)))
    assert len(lines(browser)) == 4
    press("x", "time")
    assert waited(lambda: any(text.endswith(" s") for text in ticks(browser)))
    slow = lines(browser)
    browser.execute_script(
        "const far = document.querySelector('[name=far]'); far.value = 1;"
        "far.dispatchEvent(new Event('input', {bubbles: true}))"
    )
    assert waited(lambda: lines(browser) != slow), "a slower link moves the curves"
    press("x", "round")
    assert waited(lambda: ticks(browser) == marks)
    press("logy")
    assert waited(lambda: lines(browser) not in ([], before))
    assert lines(browser)[0].count("L") == before[0].count("L") == 7
    press("logy")
    assert waited(lambda: lines(browser) == before)
    press("shown", "FedDF")
    assert waited(lambda: len(lines(browser)) == len(lines(browser, "loss")) == 3)
    spread = "return document.querySelectorAll('#spread .mark-symbol path').length"
    assert waited(lambda: browser.execute_script(spread) == 60), "the clients of three methods"
    browser.execute_script(
        "const from = document.querySelector('[name=from]'); from.value = 5;"
        "from.dispatchEvent(new Event('input', {bubbles: true}))"
    )
    assert waited(lambda: lines(browser) and lines(browser)[0].count("L") == 3)
    browser.execute_script("document.querySelector('#controls [type=reset]').click()")
    assert waited(lambda: lines(browser) == before)

    # Values under the pointer.
    chart = browser.find_element("css selector", "[data-curve=accuracy] svg")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", chart)
    ActionChains(browser).move_to_element(chart).perform()
    tip = waited(
        lambda: browser.execute_script("return document.querySelector('#vg-tooltip-element.visible')?.textContent")
    )
    assert "FedHEAD+" in tip
    assert "Round" in tip

    # The table of runs can be sorted and filtered.
    shown = "return [...document.querySelectorAll('.runs tbody tr:not([hidden])')].map(e => e.cells[3].dataset.value)"
    browser.execute_script("document.querySelectorAll('.runs thead button')[3].click()")
    found = [float(value) for value in browser.execute_script(shown)]
    assert found == sorted(run.accuracy for run in runs)
    browser.execute_script("document.querySelectorAll('.runs thead button')[3].click()")
    assert [float(value) for value in browser.execute_script(shown)] == found[::-1]
    browser.find_element("css selector", "#filter").send_keys("feddf seed-1")
    assert len(browser.execute_script(shown)) == 1
    assert browser.execute_script("return document.querySelector('#matches').textContent") == "1 of 12"
    check_quiet(browser, address)


@pytest.mark.parametrize(
    "kind",
    [
        "odd names",
        pytest.param("stopped", marks=pytest.mark.thorough),
        pytest.param("twelve methods", marks=pytest.mark.thorough),
        pytest.param("a hundred clients", marks=pytest.mark.thorough),
        pytest.param("one client, one round", marks=pytest.mark.thorough),
        pytest.param("nothing sent", marks=pytest.mark.thorough),
        pytest.param("a sweep", marks=pytest.mark.thorough),
    ],
)
def test_other_runs_fit_too(browser, fake, comparison, tmp_path, kind):
    runs = tmp_path / "runs"
    name = 'a<b>&"c" ' + "very-long-name-without-a-break" * 3
    curves = 1
    if kind == "twelve methods":
        comparison(runs, seeds=(0, 1), methods=TWELVE, rounds=30)
        curves = 12
    elif kind == "a hundred clients":
        fake(clients=100, sectors=5, every=4, distils=True, method="fedhead").write(runs / "a")
    elif kind == "one client, one round":
        fake(clients=1, sectors=1, rounds=1).write(runs / "a")
    elif kind == "nothing sent":
        fake(model_bytes=0).write(runs / "a")
    elif kind == "odd names":
        fake(method=name, label=name, classes=(name, "<i>", "&amp;"), distils=True).write(runs / "a")
    elif kind == "a sweep":
        curves = 8
        for at in range(8):
            fake(algorithm={"mu": at % 2, "nu": at // 2 % 2, "xi": at // 4}, top=0.8 + at / 100).write(runs / str(at))
    else:
        comparison(runs, seeds=(0, 1))
        fake(seed=2, stop=3).write(runs / "fedavg" / "seed-2")
        curves = 4
    address = write([runs], tmp_path / "report.html").as_uri()
    for width in WIDTHS:
        opened(browser, address, width)
        check_fits(browser, width)
        expected = curves + (kind == "stopped")  # a pale end is a line of its own
        assert len(lines(browser)) == expected
        for x in ("bytes", "time", "round"):
            browser.execute_script(f"document.querySelector('[name=x][value={x}]').click()")
        assert waited(lambda expected=expected: len(lines(browser)) == expected)
        if kind == "odd names":
            assert name in browser.execute_script("return document.querySelector('h1').textContent")
            assert (
                browser.execute_script("return document.querySelectorAll('main i:not(.mix i, .classes i)').length") == 0
            )
        if kind == "stopped":
            assert "not finished" in browser.execute_script("return document.querySelector('.notices').textContent")
        check_quiet(browser, address)


@pytest.mark.thorough
def test_a_page_that_is_served_renews_itself_and_keeps_its_controls(browser, fake, tmp_path):
    path = fake(stop=2, rounds=6).write(tmp_path / "run")
    server = RunsPage(tmp_path)
    thread = threading.Thread(target=server.serve)
    thread.start()
    try:
        opened(browser, server.address, 1280)
        assert "2 of 6, unfinished" in browser.execute_script("return document.body.textContent")
        browser.execute_script("document.querySelector('[name=x][value=bytes]').click()")
        rows = [json.dumps(row) + "\n" for row in fake(rounds=6).rows()]
        (path / "rounds.jsonl").write_text("".join(rows[:5]), encoding="utf-8")
        text = "return document.querySelector('header').textContent"
        assert waited(lambda: "5 of 6, unfinished" in browser.execute_script(text))
        assert browser.execute_script("return document.querySelector('[name=x]:checked').value") == "bytes"
        assert waited(lambda: lines(browser) and lines(browser)[0].count("L") == 4)
        assert any(mark.endswith("B") for mark in ticks(browser))
        assert browser.get_log("browser") == []
    finally:
        server.close()
        thread.join()
    stale = "return document.querySelector('#live').textContent"
    assert waited(lambda: "has ended" in browser.execute_script(stale))


def test_without_script_the_text_and_the_tables_are_there(browser, fake, tmp_path):
    page: Path = write([fake().write(tmp_path / "run")], tmp_path / "report.html")
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.get(page.as_uri())
        body = browser.find_element("css selector", "body").text
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
    assert "reached an accuracy of" in body
    assert "The charts need JavaScript" in body
