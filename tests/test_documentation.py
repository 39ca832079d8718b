"""README and docs must not promise what the code does not do."""

from __future__ import annotations

import functools
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
FENCE = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[([^\]]+)\]\(([^)\s]+)\)")

documents = pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())


def blocks(path: Path, *languages: str) -> Iterator[str]:
    """The fenced blocks of a document that are in one of the languages."""
    for _, language, content in FENCE.findall(path.read_text(encoding="utf-8")):
        if language in languages:
            yield content


def commands(path: Path) -> list[list[str]]:
    """The `foredraft ...` commands in a document's shell blocks, as lists of words."""
    found: list[list[str]] = []
    for block in blocks(path, "console", "bash", "sh", "shell"):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line.removeprefix("$ "), comments=True) if "foredraft" in line else []
            while words and re.fullmatch(r"\w+=.*", words[0]):
                del words[0]
            if "|" in words and words[0] != "foredraft":
                words = words[words.index("|") + 1 :]
            if words and words[0] == "foredraft":
                found.append(list(until_redirection(words[1:])))
    return found


def until_redirection(words: list[str]) -> Iterator[str]:
    for word in words:
        if word in ("|", ">", ">>", "2>", "<", "&&", ";"):
            return
        yield word


COMMANDS = {" ".join(words): words for path in DOCUMENTS for words in commands(path)}


@functools.cache
def help_text(*words: str) -> str:
    """What `foredraft WORDS --help` prints."""
    code = "import sys; from foredraft.cli.main import main; sys.argv[0] = 'foredraft'; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", code, *words, "--help"],
        capture_output=True,
        text=True,
        encoding="utf-8",
        env={**os.environ, "COLUMNS": "200", "TERM": "dumb", "NO_COLOR": "1", "PYTHONIOENCODING": "utf-8"},
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, f"foredraft {' '.join(words)} --help failed: {done.stderr or done.stdout}"
    return done.stdout


def names(text: str) -> set[str]:
    """Option names in a help text."""
    return set(re.findall(r"(?<![\w-])--?[a-z][a-z0-9-]*", text))


@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS.keys())
def test_documented_commands_exist(words: list[str]):
    """A reader who copies a command would be told that it, or one of its options, does not exist."""
    if words[0].startswith("-"):
        known = names(help_text())
    else:
        assert re.search(rf"^\W*{re.escape(words[0])}\b", help_text(), re.MULTILINE), f"no command {words[0]}"
        known = names(help_text(words[0]))
    options = {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)}
    assert options <= known | {"--help"}


def test_the_commands_of_the_start_are_documented():
    """A README without a command to run, or a pattern that finds none, would test nothing."""
    first_words = {words[0] for words in commands(ROOT / "README.md")}
    assert {"generate", "chat", "verify"} <= first_words


@documents
def test_python_blocks_compile(path: Path):
    """An example that is not even Python cannot have been run."""
    for block in blocks(path, "python", "py"):
        compile(block, str(path), "exec")


@documents
def test_python_blocks_use_public_names(path: Path):
    """An example must not import what is not there, or what may change between releases."""
    import foredraft

    for block in blocks(path, "python", "py"):
        for names_imported in re.findall(r"^from foredraft import (.+)$", block, re.MULTILINE):
            imported = {name.strip() for name in names_imported.strip("()").split(",")}
            assert imported <= set(foredraft.__all__)


@documents
def test_relative_links_resolve(path: Path):
    """A dead link sends the reader nowhere."""
    text = FENCE.sub("", path.read_text(encoding="utf-8"))
    for label, target in LINK.findall(text):
        if re.match(r"\w+:", target):
            continue
        name, _, anchor = target.partition("#")
        linked = (path.parent / name).resolve() if name else path
        assert linked.exists(), f"[{label}]({target})"
        if anchor and linked.suffix == ".md":
            assert anchor in anchors(linked), f"[{label}]({target})"


def anchors(path: Path) -> set[str]:
    """The anchors that headings of a document get."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@documents
def test_names_linked_to_source_are_in_it(path: Path):
    """A page that names a function which has gone describes a program that has gone."""
    text = FENCE.sub("", path.read_text(encoding="utf-8"))
    for label, target in LINK.findall(text):
        linked = path.parent / target
        if linked.suffix != ".py":
            continue
        for name in re.findall(r"`(?:\w+\.)*((?!py`)\w+)`", label):
            assert re.search(rf"\b{name}\b", linked.read_text(encoding="utf-8")), f"{name} not in {target}"


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def requirements() -> dict[str, Requirement]:
    """Everything that pyproject.toml asks for, by name: to run, for extras, and to build."""
    data = project()
    lines = [
        *data["project"]["dependencies"],
        *(line for extra in data["project"]["optional-dependencies"].values() for line in extra),
        *data["build-system"]["requires"],
    ]
    found = [Requirement(line) for line in lines]
    return {requirement.name.lower(): requirement for requirement in found if requirement.name != "foredraft"}


def test_every_dependency_has_its_reason():
    """A dependency without a reason is one that nobody can remove; a reason without it is stale."""
    text = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^- `([\w.-]+)`", text, re.MULTILINE))
    assert listed == set(requirements())


def test_pins_are_within_the_declared_ranges():
    """Continuous integration must test versions that users may have."""
    declared = requirements()
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines():
        if not line or line.startswith("#"):
            continue
        pin = Requirement(line)
        (version,) = (specifier.version for specifier in pin.specifier)
        assert pin.name in declared, f"{pin.name} is pinned but not asked for"
        assert declared[pin.name].specifier.contains(version), f"{line} is outside {declared[pin.name]}"


def test_the_version_is_written_once_per_place():
    """Package, metadata and changelog must speak of one version."""
    from foredraft import __version__

    assert project()["project"]["version"] == __version__
    assert f"## [{__version__}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
