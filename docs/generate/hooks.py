"""Events of mkdocs: pages and pictures from code, tables in pages, and files outside docs/ that pages link to.

A line `{{ name }}` of a page is replaced by a text of `TABLES`. README.md is the site's first page. A link that leads
out of docs/ finds its file below `repository/`; one to a folder leads to its README.md, or becomes plain text.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from docs.generate import commands, environments, problems, rewards
from docs.generate.markdown import CODE
from rank_emulator import coverage

ROOT = Path(__file__).resolve().parents[2]
TABLES: dict[str, Callable[[], str]] = {
    "arguments": environments.arguments,
    "captures": problems.captures,
    "commands": commands.reference,
    "cuda_functions": coverage.cuda_functions_table,
    "observation": environments.observation,
    "reward_components": rewards.component_table,
    "reward_credits": rewards.credit_table,
    "reward_presets": rewards.preset_table,
    "reward_typical": rewards.typical_table,
    "problems": problems.listing,
    "samplers": environments.samplers,
    "split": problems.split_rule,
}
PICTURES: dict[str, Callable[[], str]] = {
    "problems/coverage.svg": problems.coverage,
    "rewards/default.svg": rewards.default_picture,
    "rewards/episode.svg": rewards.episode_picture,
    "rewards/speed.svg": rewards.speed_picture,
}
LINK = re.compile(r"(!?)\[((?:[^]\[]|\[[^]]*\])*)\]\(([^)\s:#]+)(#[^)\s]*)?\)")
TEST_MARK = re.compile(r"^( *```\w+) (?!title=)\w+=.*$", re.MULTILINE)
"""A fence whose block a test looks for."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds what is made from code, and every file outside docs/ that a page leads to."""
    made = {f"problems/{name}": text for name, text in problems.pages().items()}
    made |= {name: draw() for name, draw in PICTURES.items()}
    for name, text in made.items():
        files.append(File.generated(config, name, content=text))
    _add(files, config, "README.md")
    waiting = list(files.documentation_pages())
    while waiting:
        page = waiting.pop()
        added = [_add(files, config, target) for target in _outside(_home(page), page.content_string)]
        waiting += [file for file in added if file is not None and file.is_documentation_page()]
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Fills in the tables, and leads links to where the site has their files."""
    home = _home(page.file)
    text = re.sub(r"^\{\{ (\w+) \}\}$", lambda found: _table(found[1], page), markdown, flags=re.MULTILINE)
    text = TEST_MARK.sub(r"\1", text)

    def led(found: re.Match[str]) -> str:
        mark, words, target, anchor = found.groups(default="")
        path = _resolved(home, target)
        if not path or not (ROOT / path).exists():
            return found[0]
        if (ROOT / path).is_dir():
            if not (ROOT / path / "README.md").is_file():
                return words
            path = f"{path}/README.md"
        link = posixpath.relpath(_uri(path), posixpath.dirname(page.file.src_uri) or ".")
        return f"{mark}[{words}]({link}{anchor})"

    parts = CODE.split(text)
    parts[::2] = [LINK.sub(led, part) for part in parts[::2]]
    # GitHub wants a backslash before the bar of a code span in a table, Python-Markdown shows it.
    parts[1::2] = [code if code.lstrip().startswith("```") else code.replace("\\|", "|") for code in parts[1::2]]
    return "".join(parts)


def _table(name: str, page: Page) -> str:
    if name not in TABLES:
        raise PluginError(f"{page.file.src_uri}: no table {name!r}; there are {', '.join(TABLES)}")
    return TABLES[name]()


def _outside(home: str, text: str) -> list[str]:
    """Paths, from the root, of the files outside docs/ that a page links to."""
    links = [target for part in CODE.split(text)[::2] for _, _, target, _ in LINK.findall(part)]
    paths = [_resolved(home, target) for target in links]
    paths = [f"{path}/README.md" if (ROOT / path).is_dir() else path for path in paths if path]
    return [path for path in paths if not path.startswith("docs/") and (ROOT / path).is_file()]


def _resolved(home: str, target: str) -> str:
    """A link's path from the root; empty where it leads out of the repository."""
    path = posixpath.normpath(posixpath.join(posixpath.dirname(home), target))
    return "" if path.startswith("..") else path


def _home(file: File) -> str:
    """The path from the root of a page's text."""
    if file.src_uri == "index.md":
        return "README.md"
    outside = file.src_uri.removeprefix("repository/")
    return outside if outside != file.src_uri else f"docs/{file.src_uri}"


def _uri(path: str) -> str:
    """The place on the site of a file of the repository."""
    if path == "README.md":
        return "index.md"
    inside = path.removeprefix("docs/")
    return inside if inside != path else f"repository/{path}"


def _add(files: Files, config: MkDocsConfig, path: str) -> File | None:
    """The file of the repository, unless the site has it."""
    if files.get_file_from_path(_uri(path)) is not None:
        return None
    file = File.generated(config, _uri(path), abs_src_path=str(ROOT / path))
    files.append(file)
    return file
