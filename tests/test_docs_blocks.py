"""Every code block of the documentation runs, or says why not."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

import page_blocks
from processes import output_of

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
QUICK = ()  # each takes many seconds
UNMARKED = ("deploy.md",)  # its blocks are commands for several machines; the tests of `deploy` run the same steps
SECONDS = 900


def marked(page: Path) -> object:
    return pytest.param(page, id=page.name, marks=() if page.name in QUICK else pytest.mark.thorough)


@pytest.mark.parametrize("page", [marked(p) for p in PAGES if any(b.runs for b in page_blocks.blocks(p))])
def test_the_blocks_of_a_page_run_in_order(page: Path, tmp_path: Path) -> None:
    folder = tmp_path / "page"
    folder.mkdir()
    environment = {key: value for key, value in os.environ.items() if key != "HEADWATER_DATA"}
    source = os.pathsep.join([str(ROOT / "src"), environment.get("PYTHONPATH", "")])
    call = [sys.executable, str(ROOT / "tests" / "page_blocks.py"), str(page)]
    printed = output_of(call, SECONDS, environment | {"PYTHONPATH": source, "OMP_NUM_THREADS": "1"}, folder)
    assert printed.splitlines()[-1] == "done"


@pytest.mark.parametrize("page", [pytest.param(p, id=p.name) for p in PAGES if p.name not in UNMARKED])
def test_every_block_has_a_language(page: Path) -> None:
    unknown = [(b.line, b.language) for b in page_blocks.blocks(page) if b.language not in page_blocks.KNOWN]
    assert unknown == []


@pytest.mark.parametrize("page", [pytest.param(p, id=p.name) for p in PAGES if p.name not in UNMARKED])
def test_no_command_hides_in_a_block_that_is_not_run(page: Path) -> None:
    """A block of commands is `sh` or `console`, or is excluded with a reason."""
    hidden = [
        b.line for b in page_blocks.blocks(page) if b.language == "text" and b.text.startswith(("headwater ", "$ "))
    ]
    assert hidden == []


class TestTheRunner:
    @staticmethod
    def page(folder: Path, text: str) -> Path:
        file = folder / "page.md"
        file.write_text(text, encoding="utf-8")
        return file

    def call(self, folder: Path, text: str) -> str:
        call = [sys.executable, str(ROOT / "tests" / "page_blocks.py"), str(self.page(folder, text))]
        return output_of(call, 60, os.environ, folder)

    def test_blocks_share_names_and_folder(self, tmp_path: Path) -> None:
        text = "```python\nx = 3\n```\n```sh\necho 4 > y\n```\n```python\nprint(x, open('y').read())\n```\n"
        assert self.call(tmp_path, text).splitlines()[0] == "3 4"

    @pytest.mark.parametrize(
        "block",
        [
            "```python\nassert False\n```",
            "```sh\nfalse\ntrue\n```",
            "```console\n$ echo 1\n2\n```",
            "```toml\na = \n```",
        ],
    )
    def test_a_block_that_fails_fails(self, block: str, tmp_path: Path) -> None:
        with pytest.raises(AssertionError):
            self.call(tmp_path, block)
        assert self.call(tmp_path, f"<!-- not run: a test -->\n{block}\n").strip() == "done"

    def test_a_command_may_have_several_lines(self) -> None:
        text = '$ echo "1\n2"\n1\n2\n$ true\n'
        assert list(page_blocks.exchanges(text)) == [('echo "1\n2"', "1\n2"), ("true", "")]
