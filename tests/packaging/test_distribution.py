"""The wheel and the sdist, built from a copy of the tree: what is in them, and that the wheel works alone."""

import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from packaging.version import Version

import costmodel
from tests.packaging.layout import FOLDERS, packaged_files, project

NOT_COPIED = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist", "venv")


@dataclass(frozen=True)
class Built:
    """The two files that a release is made of."""

    wheel: Path
    sdist: Path

    def wheel_names(self) -> set[str]:
        with zipfile.ZipFile(self.wheel) as archive:
            return set(archive.namelist())

    def sdist_names(self) -> set[str]:
        with tarfile.open(self.sdist) as archive:
            return {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}


def run(*command: str | Path, cwd: Path | None = None, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run a command and return what it wrote; a failure shows it."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=plain,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        check=False,
        timeout=300,
    )
    assert not check or done.returncode == 0, f"{command}: {done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done


def isolation() -> list[str]:
    """Return the option that builds without fetching anything, where this environment has the build backend."""
    try:
        recent = Version(importlib.metadata.version("setuptools")) >= Version("77")
    except importlib.metadata.PackageNotFoundError:
        recent = False
    return ["--no-isolation"] if recent else []


@pytest.fixture(scope="session")
def built(repo_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Build the sdist and, from it, the wheel."""
    if importlib.util.find_spec("build") is None:
        pytest.fail("the package `build` is not installed; it comes with the extra `test`")
    source = tmp_path_factory.mktemp("build") / "source"
    shutil.copytree(repo_root, source, ignore=NOT_COPIED)
    target = source.parent / "dist"
    run(sys.executable, "-m", "build", *isolation(), "--outdir", target, source, cwd=source.parent)
    (wheel,), (sdist,) = target.glob("*.whl"), target.glob("*.tar.gz")
    return Built(wheel, sdist)


@pytest.fixture(scope="session")
def installed(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel alone into a new environment that finds the dependencies in this one, and return its folder of commands."""
    folder = tmp_path_factory.mktemp("installed") / "environment"
    venv.create(folder, with_pip=False)
    scripts = folder / ("Scripts" if os.name == "nt" else "bin")
    python = scripts / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index", built.wheel)
    # A path file appends this environment's packages after the new one's, and runs none of this one's own path files.
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").stdout.strip())
    paths = dict.fromkeys((sysconfig.get_path("purelib"), sysconfig.get_path("platlib")))
    (site / "dependencies.pth").write_text("\n".join(paths) + "\n", encoding="utf-8")
    return scripts


def test_every_package_is_listed(repo_root: Path) -> None:
    tool = project(repo_root)["tool"]["setuptools"]
    assert {name: str(folder) for name, folder in tool["package-dir"].items()} == FOLDERS
    modules = {name: path for name, path in packaged_files(repo_root).items() if path.suffix == ".py"}
    assert sorted(tool["packages"]) == sorted({name.rpartition("/")[0].replace("/", ".") for name in modules})
    for path in modules.values():
        assert (path.parent / "__init__.py").is_file(), f"{path.parent} has no __init__.py"


def test_wheel_has_every_file_and_nothing_else(repo_root: Path, built: Built) -> None:
    info = re.sub(r"-py3-none-any\.whl$", ".dist-info", built.wheel.name)
    metadata = {"METADATA", "WHEEL", "RECORD", "entry_points.txt", "top_level.txt", "licenses/LICENSE"}
    names = built.wheel_names()
    assert {name for name in names if not name.startswith(info)} == set(packaged_files(repo_root))
    assert {name.removeprefix(info + "/") for name in names if name.startswith(info)} == metadata


def test_wheel_has_the_data_that_users_rely_on(built: Built) -> None:
    names = built.wheel_names()
    assert {"costmodel/py.typed", "costmodel/hardware/index.toml", "costmodel/hardware/h100-sxm.toml"} <= names
    assert "costmodel/architecture/presets/Llama-3.1-8B.json" in names
    assert sum(name.startswith("costmodel/hardware/") and name.endswith(".toml") for name in names) > 40


def test_sdist_has_what_a_packager_needs(repo_root: Path, built: Built) -> None:
    names = built.sdist_names()
    wanted = {"pyproject.toml", "LICENSE", "README.md", "CHANGELOG.md", "MANIFEST.in"}
    for folder in (*FOLDERS.values(), "tests", "docs", "examples", "benchmarks"):
        for path in (repo_root / folder).rglob("*"):
            if (
                path.is_file()
                and "__pycache__" not in path.parts
                and path.suffix in {".py", ".toml", ".json", ".md", ".csv"}
            ):
                wanted.add(path.relative_to(repo_root).as_posix())
    assert wanted - names == set()
    assert [name for name in names if "__pycache__" in name or name.endswith(".pyc") or "/." in name] == []


def test_command_runs_from_the_wheel(installed: Path, tmp_path: Path) -> None:
    command = installed / "costmodel"
    assert run(command, "--version", cwd=tmp_path).stdout.strip().endswith(costmodel.__version__)
    done = run(command, "predict", "--prompt", "8000", "--gpu", "h100", "--json", cwd=tmp_path)
    document = json.loads(done.stdout)
    assert document["schema"] == "costmodel.prediction/1"
    assert document["gpu"]["profile"] == "h100-sxm"
    assert run(command, "predict", "--gpu", "nothing-like-it", cwd=tmp_path, check=False).returncode == 2


def test_wheel_is_what_runs(installed: Path, tmp_path: Path) -> None:
    ask = "import costmodel, costmodel.hardware.catalog as c; print(costmodel.__file__); print(c.__file__)"
    files = run(installed / "python", "-c", ask, cwd=tmp_path).stdout.split()
    assert all(Path(file).is_relative_to(installed.parent) for file in files)


def test_every_packaged_gpu_and_model_loads_from_the_wheel(installed: Path, tmp_path: Path) -> None:
    ask = "; ".join(
        (
            "import costmodel",
            "gpus = [costmodel.load_gpu(name) for name in costmodel.gpu_names()]",
            "models = [costmodel.load_model(name) for name in costmodel.model_names()]",
            "print(len(gpus), len(models))",
        )
    )
    gpus, models = map(int, run(installed / "python", "-c", ask, cwd=tmp_path).stdout.split())
    assert gpus == len(costmodel.gpu_names())
    assert models == len(costmodel.model_names())


def test_one_version_everywhere(repo_root: Path) -> None:
    version = project(repo_root)["project"]["version"]
    assert costmodel.__version__ == version, "install the checkout again: its metadata are of another version"
    changelog = (repo_root / "CHANGELOG.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## \[?([^\]\s]+)", changelog, flags=re.MULTILINE)
    assert next(heading for heading in headings if heading != "Unreleased") == version


def test_dependencies_keep_to_what_the_code_imports(repo_root: Path) -> None:
    names = {re.split(r"[<>=!~ \[]", line)[0] for line in project(repo_root)["project"]["dependencies"]}
    assert names == {"numpy", "scipy", "sympy", "matplotlib", "click", "pydantic", "tomli-w", "h11"}
