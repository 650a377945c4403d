"""MkDocs hook: what the documentation site has beside the pages in docs/.

* README.md is the home page.
* Every method has a page, written by `method_pages`.
* The API reference lists everything in `headwater.__all__`, for mkdocstrings to fill in.
* Files of the repository that a page links to (examples, experiments, sources) are part of the site, under
  `repository/`, so that every link works without a network. A link is written as it works in the repository.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import headwater
import method_pages
import method_source
from docs_tables import ROOT
from headwater.algorithms import ALGORITHMS, FAMILIES

REPOSITORY = "repository"
TITLES: dict[str, str] = {}  # of pages by the name of their file, from the navigation
ALWAYS = {"CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"}  # also where no page links to them
COPIED = (".png", ".svg", ".csv", ".json", ".jsonl", ".ipynb")  # as they are; everything else is shown as text
LANGUAGES = {".py": "python", ".pyi": "python", ".toml": "toml", ".yml": "yaml", ".yaml": "yaml", ".css": "css"}
LINK = re.compile(r"(\]\()([^)\s#]*)(#[^)\s]*)?(\))")
TABLE = re.compile(r"(?<=<!-- table: )\w+ -->.*?(?=<!-- /table -->)", re.DOTALL)  # written by docs_tables
FENCE = re.compile(r"^( *)```.*?^\1```$", re.DOTALL | re.MULTILINE)

ERRORS = "headwater.errors."
# Sections of the API reference, and where a name belongs. What is not named here comes under the last heading.
API = {
    "Train": ("run", "compare", "Run", "Comparison"),
    "Before a run": ("plan", "partition", "Plan", "PartitionView"),
    "While it trains": ("Callback", "StopRun", "callbacks"),
    "Data and settings": ("Data", "Config", "LocalSpec", "DistillSpec"),
    "Use a trained model": ("load", "TrainedModel"),
    "Write a method": ("Method", "MethodInfo", "State"),
    "Errors": ("HeadwaterError", "UserError", "ConfigError", "DataError", "OutputError", "MissingExtra"),
    "Further names": (),
}


# -- links


def fenced(text: str) -> Iterator[tuple[str, bool]]:
    """Pieces of a page, and whether a piece is a code block."""
    end = 0
    for match in FENCE.finditer(text):
        yield text[end : match.start()], False
        yield match.group(), True
        end = match.end()
    yield text[end:], False


def target_of(link: str, source: str) -> str | None:
    """The file of the repository that a relative link of a file leads to. None for other addresses."""
    if not link or ":" in link:
        return None
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), link))
    readme = f"{path}/README.md"
    return readme if (ROOT / readme).is_file() else path


def uri_of(path: str) -> str:
    """Where a file of the repository is on the site."""
    if path == "README.md":
        return "index.md"
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if (ROOT / path).is_dir():
        return f"{REPOSITORY}/{path}/index.md"
    return f"{REPOSITORY}/{path}" + ("" if path.endswith((".md", *COPIED)) else ".md")


def relinked(text: str, source: str, here: str) -> str:
    """A page whose links between files of the repository lead to the same files on the site."""

    def moved(match: re.Match[str]) -> str:
        before, link, anchor, after = match.groups()
        path = target_of(link, source)
        if path is None or path.startswith("..") or not (ROOT / path).exists():
            return match.group()  # MkDocs complains if it should lead somewhere
        where = posixpath.relpath(uri_of(path), posixpath.dirname(here) or ".")
        return f"{before}{where}{anchor or ''}{after}"

    return "".join(part if code else LINK.sub(moved, part) for part, code in fenced(text))


def titled(text: str, titles: dict[str, str]) -> str:
    """A page in which a link whose text is the name of a page has that page's title instead."""

    def named(match: re.Match[str]) -> str:
        return f"[{titles.get(posixpath.basename(match.group(1)), match.group(1))}]("

    return "".join(part if code else re.sub(r"\[([\w./]+\.md)\]\(", named, part) for part, code in fenced(text))


def with_methods(text: str, here: str) -> str:
    """A page in whose generated tables the names of methods lead to their pages."""

    def link(match: re.Match[str]) -> str:
        if (name := match.group(1)) not in ALGORITHMS:
            return match.group()
        return f"[`{name}`]({posixpath.relpath(method_source.page_of(name), posixpath.dirname(here) or '.')})"

    return TABLE.sub(lambda table: re.sub(r"(?<=[| ])`([\w+-]+)`(?= )", link, table.group()), text)


def linked_files(text: str, source: str) -> set[str]:
    """Files of the repository outside docs/ that a page links to."""
    plain = "".join(part for part, code in fenced(text) if not code)
    paths = {target_of(match.group(2), source) for match in LINK.finditer(plain)}
    outside = {path for path in paths if path and not path.startswith(("docs/", "..")) and path != "README.md"}
    return {path for path in outside if (ROOT / path).exists()}


# -- pages


def as_text(path: str) -> str:
    """The Markdown of a file or folder of the repository."""
    file = ROOT / path
    if file.is_dir():
        names = sorted(each.name for each in file.iterdir() if each.is_file() and not each.name.startswith("."))
        return "\n".join([f"# {path}", "", *(f"* [{name}]({name})" for name in names)]) + "\n"
    text = file.read_text(encoding="utf-8")
    if path.endswith(".md"):
        return text
    language = LANGUAGES.get(file.suffix, "text")
    return f"---\nsearch:\n  exclude: true\n---\n\n# {path}\n\n````{language}\n{text.rstrip()}\n````\n"


def in_repository(path: str) -> str:
    """The path that links in the text of a file or folder start from."""
    return f"{path}/README.md" if (ROOT / path).is_dir() else path


def api() -> str:
    """The API reference: every public name, for mkdocstrings to fill in."""
    known = {name: home_of(name) for name in headwater.__all__ if name != "__version__"}
    methods = method_source.classes()
    placed = {name for names in API.values() for name in names}
    rest = [name for name in known if name not in placed and name not in methods]
    sections = API | {"Errors": (*API["Errors"], *(name for name in rest if known[name].startswith(ERRORS)))}
    sections["Further names"] = tuple(name for name in rest if not known[name].startswith(ERRORS))
    text = [
        "# API reference",
        "All public names of the package, as in `import headwater as hw`. Nothing else is public. "
        "`hw.__version__` is the version.",
    ]
    for heading, names in sections.items():
        if there := [name for name in names if name in known]:
            text += [f"## {heading}", *(entry(name, known[name]) for name in there)]
    text.append(
        "## Methods\n\nOne class per method; its options are arguments. [Choosing a method](methods.md) compares them."
    )
    for name, method in methods.items():
        text += [entry(name, known[name]), f"[Page of `{method}`]({method_source.page_of(method)})"]
    return "\n\n".join(text) + "\n"


def home_of(name: str) -> str:
    """The path of a public name in the sources; a module has its own."""
    value = getattr(headwater, name)
    if isinstance(value, ModuleType):
        return value.__name__
    return f"headwater.{vars(headwater)['_homes']()[name]}.{name}"


def entry(name: str, path: str) -> str:
    """What mkdocstrings is asked for. It does not see the arguments of pydantic's models, so it must not miss them."""
    text = f"::: {path}\n    options:\n      heading: hw.{name}\n      toc_label: {name}"
    if hasattr(getattr(headwater, name), "model_fields"):
        text += "\n      docstring_options: {warn_unknown_params: false, warn_missing_types: false}"
    return text


# -- events of MkDocs


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the pages of the methods into the navigation, by family, and note the titles of the other pages."""
    for section in config.nav or []:
        for entry in next(iter(section.values())) if isinstance(section, dict) else ():
            TITLES.update(
                {posixpath.basename(path): title for title, path in entry.items()} if isinstance(entry, dict) else {}
            )
    families: dict[str, list[dict[str, str]]] = {family: [] for family in FAMILIES}
    for name, part in ALGORITHMS.items():
        families[part.info.family].append({name: method_source.page_of(name)})
    pages: list[Any] = [{family.capitalize(): found} for family, found in families.items() if found]
    nav = config.nav or []
    for section in nav:
        if isinstance(section, dict) and "Methods" in section:
            section["Methods"] += pages
    unlisted = sorted(path.name for path in Path(config.docs_dir).glob("*.md") if path.name not in TITLES)
    if unlisted:
        nav.append({"Further pages": unlisted})
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not in docs/."""

    def add(uri: str, **content: Any) -> None:
        files.append(File.generated(config, uri, **content))

    add("api.md", content=api())
    readme = as_text("README.md")
    add("index.md", content=relinked(readme, "README.md", "index.md"))
    made = method_pages.pages()
    texts = {f"docs/{uri}": text for uri, text in made.items()} | {"README.md": readme}
    for file in files.documentation_pages():
        if file.generated_by is None:
            texts[f"docs/{file.src_uri}"] = file.content_string
    for uri, text in made.items():
        add(uri, content=relinked(text, f"docs/{uri}", uri))
    queue = ALWAYS | {path for source, text in texts.items() for path in linked_files(text, source)}
    seen: set[str] = set()
    while queue:
        path = queue.pop()
        seen.add(path)
        if path.endswith(COPIED):
            add(uri_of(path), abs_src_path=str(ROOT / path))
            continue
        text, source = as_text(path), in_repository(path)
        add(uri_of(path), content=relinked(text, source, uri_of(path)))
        if path.endswith(".md") or (ROOT / path).is_dir():
            queue |= linked_files(text, source) - seen
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links of pages in docs/ that lead out of it."""
    here = page.file.src_uri
    if page.file.generated_by is None:
        markdown = relinked(markdown, f"docs/{here}", here)
    return with_methods(titled(markdown, TITLES), here)
