"""The page in a real browser, at the width of a session and of a telephone. Skipped where there is no Chromium."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headwater.report import write
from headwater.report.method_table import tabulate
from headwater.report.runs import find

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
WIDTHS = (1280, 400)
TWELVE = tuple(
    {
        "method": f"method{at}",
        "label": f"Method {at}",
        "top": 0.7 + 0.02 * at,
        "distils": at % 2 == 0,
        "trips": 1 + at % 3,
    }
    for at in range(12)
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """One Chromium for all tests here; paths are given, so that nothing looks for a driver elsewhere."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    binary = next(
        (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
    )
    driver = shutil.which("chromedriver")
    if binary is None or driver is None:
        pytest.skip("no chromium with chromedriver was found on this machine")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    started = webdriver.Chrome(options=options, service=webdriver.ChromeService(executable_path=driver))
    yield started
    started.quit()


@contextmanager
def opened(browser, page: Path, width: int, *, theme: str = "light", script: bool = True) -> Iterator[None]:
    """The page at a width; at the end nothing but the file may have been asked for, and nothing be complained of."""
    browser.get_log("browser"), browser.get_log("performance")
    scheme = {"name": "prefers-color-scheme", "value": theme}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": not script})
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get(page.as_uri())
    yield
    assert browser.get_log("browser") == []
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    sent = [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
    asked = [url for url in sent if not url.startswith("chrome")]  # pages of the browser itself, such as its first tab
    assert {each for each in asked if not each.startswith("data:")} <= {page.as_uri()}
    assert page.as_uri() in asked
    assert browser.execute_script("return performance.getEntriesByType('resource').map(each => each.name)") in (
        [],
        ["data:,"],
    )


def fits(browser, width: int) -> bool:
    """Whether nothing scrolls sideways. The room beside an upright scroll bar is less than the window's width."""
    page = "document.documentElement"
    wanted, room, window = browser.execute_script(f"return [{page}.scrollWidth, {page}.clientWidth, innerWidth]")
    assert window == width
    return bool(wanted <= room <= window)


def count(browser, selector: str) -> int:
    return int(browser.execute_script("return document.querySelectorAll(arguments[0]).length", selector))


@pytest.fixture
def four(comparison, tmp_path):
    return write([comparison(tmp_path / "runs", clients=20)], tmp_path / "report.html")


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_sticks_out_and_every_letter_is_readable(browser, four, width):
    unfold = "document.querySelectorAll('details').forEach(each => each.open = true)"
    smallest = """
      let least = 99;
      for (const node of document.querySelectorAll('body *')) {
        const own = [...node.childNodes].some(each => each.nodeType === 3 && each.textContent.trim());
        if (own && !['SCRIPT', 'STYLE', 'title', 'desc'].includes(node.tagName))
          least = Math.min(least, parseFloat(getComputedStyle(node).fontSize));
      }
      return least"""
    with opened(browser, four, width):
        assert fits(browser, width)
        browser.execute_script(unfold)
        assert fits(browser, width)
        assert browser.execute_script(smallest) >= 12
        scaled = "return [...document.querySelectorAll('.plot > svg')].some(each => each.hasAttribute('viewBox'))"
        assert browser.execute_script(scaled) is False, "a scaled picture would have smaller letters than it says"


@pytest.mark.parametrize(("width", "columns"), [(1280, 2), (400, 1)])
def test_charts_stand_in_two_columns_or_one(browser, four, width, columns):
    places = "return [...document.querySelector('.pair').children].map(each => each.getBoundingClientRect().top)"
    with opened(browser, four, width):
        first, second = browser.execute_script(places)
        assert (first == second) == (columns == 2)


@pytest.mark.parametrize("width", WIDTHS)
def test_as_many_curves_as_methods(browser, four, comparison, tmp_path, width):
    with opened(browser, four, width):
        for chart in ("by-round", "by-bytes"):
            inside = f"figure:has(#{chart}-t)"
            assert count(browser, f"{inside} polyline.curve") == 4
            assert count(browser, f"{inside} .legend li") == 4
            assert count(browser, f"{inside} polygon.band") == 4
        boxes = (
            "return [...document.querySelectorAll('polyline.curve')].map(each => each.getBoundingClientRect().width)"
        )
        assert min(browser.execute_script(boxes)) >= 0
        assert max(browser.execute_script(boxes)) > width / 5


def test_the_table_tells_what_the_runs_say(browser, four, tmp_path):
    rows = """
      return [...document.querySelectorAll('.results tbody tr')].map(row =>
        [...row.children].map(cell => [cell.textContent, cell.dataset.value ?? null, cell.className]))"""
    runs = find(tmp_path / "runs")
    with opened(browser, four, 1280):
        shown = browser.execute_script(rows)
    assert [row[0][0] for row in shown] == ["FedAvg", "FedDF", "FedHEAD", "FedHEAD+"]
    for row in shown:
        own = [run for run in runs if run.label == row[0][0]]
        mean = sum(json.loads((run.path / "result.json").read_text())["accuracy"] for run in own) / len(own)
        assert float(row[2][1]) == pytest.approx(mean)
        assert row[2][0].startswith(f"{100 * mean:.1f}\u00a0±\u00a0")
        sent = [run.result["ledger"]["server_sector"] for run in own]
        total = sum(each["up_bytes"] + each["down_bytes"] for each in sent) / len(sent)
        assert float(row[6][1]) == pytest.approx(total)
        assert float(row[7][1]) == pytest.approx(sum(each["round_trips"] for each in sent) / len(sent))
    best = [row.best for row in tabulate(runs).rows]
    assert [row[2][2] == "best" for row in shown] == best


def test_values_appear_under_the_pointer(browser, four, tmp_path):
    from selenium.webdriver.common.action_chains import ActionChains

    runs = [run for run in find(tmp_path / "runs") if run.label == "FedAvg"]
    with opened(browser, four, 1280):
        glass = browser.find_element("css selector", ".glass")
        browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", glass)
        half = glass.size["width"] / 2
        ActionChains(browser).move_to_element_with_offset(glass, 1 - int(half), 0).perform()
        tip = browser.find_element("css selector", ".tip").text
        first = sum(run.curve()[0][1] for run in runs) / len(runs)
        assert tip.splitlines()[0] == "round 1"
        assert f"FedAvg: {100 * first:.1f}\u00a0%" in tip.replace(" %", "\u00a0%")
        assert len(tip.splitlines()) == 5
        assert fits(browser, 1280)


def test_a_legend_switches_a_curve_in_every_chart(browser, four):
    visible = """
      return [...document.querySelectorAll('.series[data-series="m1"]')]
        .filter(each => getComputedStyle(each).display !== 'none').length"""
    with opened(browser, four, 1280):
        button = browser.find_elements("css selector", ".legend button")[1]
        assert browser.execute_script(visible) == 2
        button.click()
        assert browser.execute_script(visible) == 0
        pressed = [
            each.get_attribute("aria-pressed") for each in browser.find_elements("css selector", ".legend button")
        ]
        assert pressed[:8] == ["true", "false", "true", "true"] * 2
        button.click()
        assert browser.execute_script(visible) == 2


def test_complete_without_script(browser, four):
    with opened(browser, four, 400, script=False):
        assert count(browser, "polyline.curve") > 8
        assert count(browser, ".legend button") == 0
        assert fits(browser, 400)


@pytest.mark.parametrize(("theme", "dark"), [("light", False), ("dark", True)])
def test_both_themes(browser, four, theme, dark):
    with opened(browser, four, 1280, theme=theme):
        colour = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
        parts = [int(part) for part in colour.removeprefix("rgb(").removesuffix(")").split(",")]
        assert (sum(parts) < 3 * 128) == dark


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(
    "kind", ["twelve methods", "a hundred clients", "one client, one round", "odd names", "stopped"]
)
def test_other_runs_fit_too(browser, fake, comparison, tmp_path, kind, width):
    runs = tmp_path / "runs"
    name = 'a<b>&"c" ' + "very-long-name-without-a-break" * 3
    if kind == "twelve methods":
        comparison(runs, seeds=(0, 1), methods=TWELVE, rounds=30)
    elif kind == "a hundred clients":
        fake(clients=100, sectors=5, every=4, distils=True, method="fedhead").write(runs / "a")
    elif kind == "one client, one round":
        fake(clients=1, sectors=1, rounds=1).write(runs / "a")
    elif kind == "odd names":
        fake(method=name, label=name, classes=(name, "<i>", "&amp;"), distils=True).write(runs / "a")
    else:
        comparison(runs, seeds=(0, 1))
        fake(seed=2, stop=3).write(runs / "fedavg" / "seed-2")
    with opened(browser, write([runs], tmp_path / "report.html"), width):
        assert fits(browser, width)
        methods = {"twelve methods": 12, "stopped": 4, "one client, one round": 0}.get(kind, 1)
        assert count(browser, "figure:has(#by-round-t) polyline.curve:not(.tail)") == methods
        assert count(browser, "figure:has(#by-bytes-t) .dots circle") >= 1
        if kind == "odd names":
            assert name in browser.execute_script("return document.querySelector('h1').textContent")
            assert count(browser, "main i:not(.tip i)") == 0
        if kind == "stopped":
            assert "not finished" in browser.execute_script("return document.querySelector('.notices').textContent")
            assert count(browser, "polyline.tail") == 2
