"""The import direction of docs/architecture.md, read from the source itself."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import foredraft

PACKAGE = Path(foredraft.__file__).parent
MAX_LINES = 500

SHARED = {"errors", "figures", "params"}
"""What every part may import."""

MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "figures": set(),
    "params": set(),
    "laws": set(),
    "text": set(),
    "execution": set(),
    "models": set(),
    "drafters": {"execution", "laws"},
    "engine": {"drafters", "execution", "laws"},
    "inferencer": {"engine", "drafters", "execution", "laws", "models", "text"},
}
"""What each part may import of the others."""

FACES = {"certificate", "bench", "server", "distill"}
"""These stand on the inferencer, and not on each other."""

MAY_IMPORT |= {face: {"inferencer", *MAY_IMPORT["inferencer"]} for face in FACES}
MAY_IMPORT["cli"] = {*FACES, "inferencer", *MAY_IMPORT["inferencer"]}

SOURCES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")
"""All modules but the package's own, which lists the public names of all parts."""


def part_of(path: Path) -> str:
    """The folder, or the module beside the folders, that a file belongs to."""
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


def imported_parts(path: Path) -> Iterator[tuple[int, str]]:
    """Line and part of each import from foredraft; imports inside functions count as well."""
    package = ("foredraft", *path.relative_to(PACKAGE).parent.parts)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) + 1 - node.level]) if node.level else ""
            module = ".".join(filter(None, (base, node.module)))
            modules = [f"{module}.{alias.name}" for alias in node.names]
        else:
            continue
        for module in modules:
            names = module.split(".")
            if names[0] == "foredraft" and len(names) > 1 and names[1] != "__version__":
                # A public name taken from the package comes from the part that defines it.
                yield node.lineno, foredraft._MODULE_OF.get(names[1], names[1])


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_imports_point_one_way(path: Path):
    """A part that imports what stands on it can no longer be read, tested or replaced alone."""
    part = part_of(path)
    if part == "__main__":
        part = "cli"
    assert part in MAY_IMPORT, f"{part} is new: give it a place in MAY_IMPORT and in docs/architecture.md"
    allowed = {part, *SHARED, *MAY_IMPORT[part]}
    wrong = [f"line {line}: {other}" for line, other in imported_parts(path) if other not in allowed]
    assert not wrong, f"{part} must not import {', '.join(wrong)}"


def test_relative_and_deferred_imports_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A checker that overlooks a spelling of an import would let it pass."""
    monkeypatch.setattr(sys.modules[__name__], "PACKAGE", tmp_path)
    path = tmp_path / "laws" / "noise.py"
    path.parent.mkdir()
    path.write_text(
        "import foredraft.engine\n"
        "from foredraft import models\n"
        "from ..text import stream\n"
        "from .. import drafters\n"
        "from foredraft import Inferencer, __version__\n"
        "from . import sampling\n"
        "def later():\n"
        "    from foredraft.cli.main import main\n"
    )
    assert [part for _, part in imported_parts(path)] == [
        "engine", "models", "text", "drafters", "inferencer", "laws", "cli",
    ]  # fmt: skip


def test_only_the_command_line_imports_itself():
    """Whatever imports the command line drags its options and its printing into a library."""
    importers = [path for path in SOURCES if any(part == "cli" for _, part in imported_parts(path))]
    assert {part_of(path) for path in importers} <= {"cli", "__main__"}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_files_are_short(path: Path):
    """A file that outgrows this holds more than one idea."""
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MAX_LINES


def test_import_is_light():
    """Help, option errors and downloads would wait seconds for libraries that they do not need."""
    heavy = ("torch", "transformers", "scipy", "numpy", "openvino")
    code = f"import sys, foredraft; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", foredraft.__all__)
def test_public_names_resolve(name: str):
    """A public name that cannot be imported is a broken promise."""
    assert getattr(foredraft, name) is not None
