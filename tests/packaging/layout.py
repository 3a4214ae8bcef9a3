"""The source tree as the package it becomes: which folder is which package, which file is which module, and what imports what."""

import ast
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDERS = {
    "costmodel.cli": "cli",
    "costmodel.validation": "validation",
    "costmodel.hardware": "hardware",
    "costmodel": "costmodel",
}
"""Package → top-level folder, the longer names before the one they begin with."""

FLOORS = ("costmodel.hardware", "costmodel", "costmodel.validation", "costmodel.cli")
"""The house from the ground up: a module may import from its own floor and from those below."""

DATA_SUFFIXES = (".csv", ".toml", ".json", ".typed")
"""Suffixes of the files that are installed beside the modules."""


@dataclass(frozen=True)
class Module:
    """One source file and the name it is imported by."""

    name: str
    path: Path

    @property
    def is_package(self) -> bool:
        """Whether the file is an ``__init__.py``."""
        return self.path.name == "__init__.py"

    def tree(self) -> ast.Module:
        """Return the parsed source."""
        return ast.parse(self.path.read_text(encoding="utf-8"), str(self.path))


@dataclass(frozen=True)
class Import:
    """One imported name, where it stands, and whether it is executed when the module is loaded."""

    name: str
    line: int
    on_load: bool


def project(root: Path) -> dict[str, Any]:
    """Return the content of ``pyproject.toml``."""
    return tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))


def packaged_files(root: Path) -> dict[str, Path]:
    """Return every module and data file of the four folders by its path in the wheel."""
    found = {}
    for package, folder in FOLDERS.items():
        for path in sorted((root / folder).rglob("*")):
            if "__pycache__" not in path.parts and (path.suffix == ".py" or path.name.endswith(DATA_SUFFIXES)):
                found["/".join((*package.split("."), *path.relative_to(root / folder).parts))] = path
    return found


def modules(root: Path) -> list[Module]:
    """Return every module of the package."""
    found = []
    for installed, path in packaged_files(root).items():
        if path.suffix == ".py":
            parts = installed.removesuffix(".py").split("/")
            found.append(Module(".".join(parts[:-1] if parts[-1] == "__init__" else parts), path))
    return found


def floor(name: str) -> int | None:
    """Return the floor of a module or of a name in it; None outside the package."""
    for package in FOLDERS:
        if name == package or name.startswith(package + "."):
            return FLOORS.index(package)
    return None


def imports(module: Module) -> Iterator[Import]:
    """Yield what a module imports, at any depth; strings that are exactly a dotted name in the package count, as they load lazily."""
    yield from _imports(module, module.tree(), on_load=True)


def _imports(module: Module, node: ast.AST, on_load: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield Import(alias.name, child.lineno, on_load)
        elif isinstance(child, ast.ImportFrom):
            source = _absolute(module, child)
            for alias in child.names:
                yield Import(f"{source}.{alias.name}", child.lineno, on_load)
        elif isinstance(child, ast.Constant) and isinstance(child.value, str):
            if re.fullmatch(r"costmodel(\.\w+)+", child.value):
                yield Import(child.value, child.lineno, False)
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            for part in child.body:
                yield from _imports(module, ast.Module([part], []), on_load=False)
            for part in child.orelse:
                yield from _imports(module, ast.Module([part], []), on_load)
        else:
            deferred = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            yield from _imports(module, child, on_load and not deferred)


def _absolute(module: Module, node: ast.ImportFrom) -> str:
    if node.level == 0:
        return node.module or ""
    parts = module.name.split(".")
    base = parts[: len(parts) - node.level + (1 if module.is_package else 0)]
    return ".".join([*base, *([node.module] if node.module else [])])
