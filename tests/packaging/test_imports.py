"""Imports run one way, heavy libraries stay where they belong, and names do not shadow one another."""

import ast
from pathlib import Path

import pytest

import costmodel
from tests.packaging.layout import FLOORS, FOLDERS, Module, floor, imports, modules

HOMES = {
    "click": ("costmodel.cli",),
    "matplotlib": ("costmodel.cli",),
    "mpl_toolkits": ("costmodel.cli",),
    "sympy": ("costmodel.symbolic", "costmodel.validation.fitting"),
    "scipy": ("costmodel.validation.fitting",),
    "vllm": ("costmodel.validation.backends",),
    "torch": ("costmodel.validation.backends",),
    "pynvml": ("costmodel.validation.backends",),
}
"""Library → the packages that may import it, at whatever depth."""

DEFERRED = {
    "numpy": (
        "costmodel.symbolic",
        "costmodel.cli.figures",
        "costmodel.explaining",
        "costmodel.simulation.quantiles",
        "costmodel.sweeping",
        "costmodel.validation",
    ),
    "matplotlib": ("costmodel.cli.figures",),
    "mpl_toolkits": ("costmodel.cli.figures",),
    "pandas": (),
    "pyarrow": (),
    "distributed": (),
    "huggingface_hub": (),
    "aiconfigurator_core": (),
    "vllm": (),
    "torch": (),
    "pynvml": (),
}
"""Library → the packages that may import it as they load; all others import it inside the function that needs it."""


def within(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == package or module.startswith(package + ".") for package in packages)


def write(folder: Path, name: str, source: str) -> Module:
    path = folder / f"{name.rpartition('.')[2]}.py"
    path.write_text(source, encoding="utf-8")
    return Module(name, path)


def upward(module: Module) -> list[str]:
    """Return the imports of a module that climb to a floor above its own."""
    own = floor(module.name)
    assert own is not None
    found = []
    for each in imports(module):
        target = floor(each.name)
        if target is not None and target > own:
            found.append(f"{module.name}:{each.line} (on {FLOORS[own]}) imports {each.name}")
    return found


def test_imports_run_downwards(repo_root: Path) -> None:
    assert [line for module in modules(repo_root) for line in upward(module)] == []


@pytest.mark.parametrize(
    ("name", "source", "climbs"),
    [
        ("costmodel.hardware.x", "from costmodel.errors import InputError", True),
        ("costmodel.hardware.x", "def f():\n    import costmodel.prediction", True),
        ("costmodel.hardware.x", "from .errors import InputError", False),
        ("costmodel.hardware.x", "from ..prediction import predict", True),
        ("costmodel.x", "from costmodel import cli", True),
        ("costmodel.x", "from costmodel import hardware, predict", False),
        (
            "costmodel.x",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import costmodel.validation.fit",
            True,
        ),
        ("costmodel.x", "HOMES = {'fit': 'costmodel.validation.fit'}", True),
        ("costmodel.x", "'''See costmodel.validation.fit for more.'''", False),
        ("costmodel.validation.x", "import costmodel.cli.main", True),
        ("costmodel.validation.x", "import costmodel.prediction, costmodel.hardware.catalog", False),
        ("costmodel.cli.x", "from costmodel.validation import fit", False),
    ],
)
def test_direction_check_sees_every_form(tmp_path: Path, name: str, source: str, climbs: bool) -> None:
    assert bool(upward(write(tmp_path, name, source))) == climbs


def test_libraries_stay_in_their_homes(repo_root: Path) -> None:
    strays = [
        f"{module.name}:{each.line} imports {each.name}"
        for module in modules(repo_root)
        for each in imports(module)
        if not within(module.name, HOMES.get(each.name.partition(".")[0], (module.name,)))
    ]
    assert strays == []


def test_heavy_libraries_are_not_imported_on_load(repo_root: Path) -> None:
    early = [
        f"{module.name}:{each.line} imports {each.name}"
        for module in modules(repo_root)
        for each in imports(module)
        if each.on_load and not within(module.name, DEFERRED.get(each.name.partition(".")[0], (module.name,)))
    ]
    assert early == []


@pytest.mark.parametrize(
    ("source", "on_load"),
    [
        ("import numpy as np", True),
        ("try:\n    from numpy import array\nexcept ImportError:\n    pass", True),
        ("class C:\n    import numpy", True),
        ("def f():\n    import numpy", False),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import numpy\nelse:\n    numpy = None", False),
    ],
)
def test_load_check_sees_every_form(tmp_path: Path, source: str, on_load: bool) -> None:
    module = write(tmp_path, "costmodel.x", source)
    assert any(each.on_load for each in imports(module) if each.name.startswith("numpy")) == on_load


def test_equations_know_no_pydantic(repo_root: Path) -> None:
    equations = [module for module in modules(repo_root) if within(module.name, ("costmodel.equations",))]
    assert equations
    assert [m.name for m in equations for each in imports(m) if each.name.partition(".")[0] == "pydantic"] == []


def test_folders_are_imported_under_the_package(repo_root: Path) -> None:
    folders = {folder for folder in FOLDERS.values() if folder != "costmodel"}
    sources = [
        path
        for top in (*FOLDERS.values(), "tests", "benchmarks", "examples")
        for path in (repo_root / top).rglob("*.py")
        if "__pycache__" not in path.parts
    ]
    wrong = []
    for path in sources:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module or ""]
            wrong += [f"{path.relative_to(repo_root)}: {name}" for name in names if name.partition(".")[0] in folders]
    assert wrong == []


def test_no_module_shadows_a_public_name(repo_root: Path) -> None:
    inside = {path.stem if path.is_file() else path.name for path in (repo_root / "costmodel").iterdir()}
    assert inside & set(costmodel.__all__) == set()
    assert {"cli", "hardware", "validation"} & set(costmodel.__all__) == set()


def test_every_public_name_is_there() -> None:
    assert costmodel.__all__ == sorted(costmodel.__all__)
    missing = [name for name in costmodel.__all__ if getattr(costmodel, name, None) is None]
    assert missing == []
