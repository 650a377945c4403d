"""The documentation site: pages that are made from the code, links between files, and the site as a whole."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

import docs_site
import headwater
import method_pages
import method_source
from headwater.algorithms import ALGORITHMS
from headwater.config import Config, catalog
from headwater.data.loading import open_data
from processes import output_of

ROOT = Path(__file__).parents[1]
SECTIONS = (
    "Where it comes from",
    "A round",
    "Options",
    "Cost",
    "What each party sees",
    "Differences from paper and code",
)


@pytest.mark.parametrize("name", ["fedhead+", "mtgc", "centralized"])
def test_the_page_of_a_method_has_every_part(name: str) -> None:
    page = method_pages.page(name, open_data(Config().data))
    assert re.findall(r"^## (.*)$", page, re.MULTILINE) == [*SECTIONS, "Our results"]
    assert "def round(self" in page
    assert all(f"| `{key}` |" in page for key in catalog.own("algorithm", name))
    assert all(what in page for what in ALGORITHMS[name].info.sees.values() if "`" not in what and what[0].isupper())
    assert ("cannot be deployed" in page) == (name == "centralized")


def test_a_variant_has_the_citation_and_differences_of_what_it_refers_to() -> None:
    page = method_pages.page("fedhead+", open_data(Config().data))
    assert "Chowdhury, Liang" in page
    assert "`sector.restore`: the code keeps the last epoch" in page
    assert "[`FedHead`](fedhead.md)" in page


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_docstring_tells_idea_source_and_differences(name: str) -> None:
    kind = ALGORITHMS.load(name)
    doc = method_source.doc_of(kind)
    basis = method_source.doc_of(ALGORITHMS.load(method_source.base_of(kind)))
    assert doc.idea.endswith(".")
    assert doc.source or basis.source
    if "Not from a paper" not in doc.source + doc.idea:
        assert doc.differences or basis.differences


def test_a_listing_has_what_a_round_uses_and_no_more() -> None:
    main, rest = method_source.listing(ALGORITHMS.load("fedgen"))
    assert main.startswith("def round(self")
    assert "def teach_generator(" in rest
    assert "def models(" not in rest  # a keyword of the round has the same name


def test_parts_of_a_docstring() -> None:
    class Method:
        """The idea.

        Somebody: A paper, 2020.

        Cost: y is not sent.

        Differences from the paper:
        * none.

        Args:
            mu: μ, a strength.
        """

    doc = method_source.doc_of(Method)
    assert (doc.idea, doc.source, doc.cost) == ("The idea.", "Somebody: A paper, 2020.", "y is not sent.")
    assert doc.differences == "Differences from the paper:\n\n* none."


@pytest.mark.parametrize(
    ("meaning", "symbol"),
    [
        ("μ, strength of the pull.", "μ"),
        ("N_align, public rows.", "N_align"),
        ("batches, copies.", ""),
        ("of SGD.", ""),
    ],
)
def test_symbols_stand_in_front_of_a_meaning(meaning: str, symbol: str) -> None:
    assert method_pages.symbol_of(meaning)[0] == symbol


def test_the_api_reference_has_every_public_name() -> None:
    listed = re.findall(r"^      heading: hw\.(\w+)$", docs_site.api(), re.MULTILINE)
    assert sorted([*listed, "__version__"]) == headwater.__all__


@pytest.mark.parametrize(
    ("link", "source", "here", "moved"),
    [
        ("../examples/01_first_run.py", "docs/own.md", "own.md", "repository/examples/01_first_run.py.md"),
        ("../experiments/quadratics", "docs/own.md", "own.md", "repository/experiments/quadratics/README.md"),
        ("docs/data.md#tables", "README.md", "index.md", "data.md#tables"),
        ("../../docs/theory.md", "experiments/quadratics/README.md", "repository/a/b/README.md", "../../../theory.md"),
        ("https://example.org", "README.md", "index.md", "https://example.org"),
        ("#here", "docs/own.md", "own.md", "#here"),
    ],
)
def test_links_lead_to_the_same_file_on_the_site(link: str, source: str, here: str, moved: str) -> None:
    text = f"[x]({link})\n```text\n[x]({link})\n```"
    assert docs_site.relinked(text, source, here) == f"[x]({moved})\n```text\n[x]({link})\n```"


@pytest.mark.thorough
def test_the_site_builds_without_a_warning_and_fetches_nothing(tmp_path: Path) -> None:
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(ROOT / "mkdocs.yml")]
    output_of([*command, "--site-dir", str(tmp_path)], 900, environment, ROOT)
    for name in ("index.html", "faq.html", "api.html", *(method_source.page_of(n)[:-3] + ".html" for n in ALGORITHMS)):
        assert (tmp_path / name).is_file()
    assert (tmp_path / "repository" / "experiments" / "cifar10_resnet8" / "curves.png").is_file()
    elsewhere = re.compile(
        r"""<(?:script|img|iframe)[^>]+src="?https?:|<link[^>]+rel="?(?:stylesheet|preconnect)[^>]+https?:"""
    )
    pages = [page for page in tmp_path.rglob("*.html") if elsewhere.search(page.read_text(encoding="utf-8"))]
    assert pages == []
    sheets = [sheet for sheet in tmp_path.rglob("*.css") if "@import url(http" in sheet.read_text(encoding="utf-8")]
    assert sheets == []
