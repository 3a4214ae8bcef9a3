"""The small programs of CI: which command they read from the README, and what they call untested."""

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

CASE = '<testcase classname="{0}" name="{1}">{2}</testcase>'
SKIPPED = '<skipped type="pytest.skip" message="{0}"/>'


def load(repo_root: Path, name: str) -> ModuleType:
    path = repo_root / ".ci" / f"{name}.py"
    if not path.is_file():
        pytest.skip("the scripts of CI are not part of the sdist")
    spec = importlib.util.spec_from_file_location(f"ci_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def audit(repo_root: Path) -> Iterator[ModuleType]:
    yield load(repo_root, "audit")
    sys.modules.pop("ci_audit")


@pytest.mark.parametrize("name", ["run", "test"])
def test_readme_has_both_commands(repo_root: Path, name: str) -> None:
    readme = (repo_root / "README.md").read_text(encoding="utf-8")
    command = load(repo_root, "setup_command").setup_command(readme, name)
    assert command.startswith("python3 -m venv .venv && .venv/bin/pip install")
    assert len(command.splitlines()) == 1


@pytest.mark.parametrize(
    "readme",
    [
        "no marker\n```bash\nrun\n```\n",
        "<!-- set-up: test -->\ntext\n```bash\nrun\n```\n",
        "<!-- set-up: test -->\n```text\nrun\n```\n",
        "<!-- set-up: test -->\n```bash\n\n```\n",
        "<!-- set-up: test -->\n```bash\na\n```\n<!-- set-up: test -->\n```bash\nb\n```\n",
    ],
)
def test_readme_without_a_clear_command_is_refused(repo_root: Path, readme: str) -> None:
    with pytest.raises(ValueError, match="set-up: test"):
        load(repo_root, "setup_command").setup_command(readme, "test")


def judge(audit: ModuleType, folder: Path, *runs: list[str], shared: bool = False) -> list[str]:
    """Write one report per run, and return the faults that are found in them, those of missing kinds of tests left out."""
    reports = []
    for number, cases in enumerate(runs):
        path = folder / f"{number}.xml"
        path.write_text(f"<testsuites><testsuite>{''.join(cases)}</testsuite></testsuites>", encoding="utf-8")
        reports.append(audit.read_run(path))
    found: list[str] = audit.faults(audit.merge(reports), folder / "tests", shared)
    return [fault for fault in found if not fault.startswith("no test of this kind")]


def test_skipped_once_and_passed_once_is_tested(audit: ModuleType, tmp_path: Path) -> None:
    skipped, passed = CASE.format("m", "t", SKIPPED.format("no docs")), CASE.format("m", "t", "")
    assert judge(audit, tmp_path, [skipped], [passed]) == []
    assert judge(audit, tmp_path, [passed], [skipped]) == []


def test_skipped_everywhere_is_a_fault(audit: ModuleType, tmp_path: Path) -> None:
    skipped = CASE.format("m", "t", SKIPPED.format("no docs"))
    (fault,) = judge(audit, tmp_path, [skipped], [skipped])
    assert "m::t" in fault
    assert "no docs" in fault
    assert len(judge(audit, tmp_path, [skipped], [])) == 1


def test_module_skipped_as_a_whole(audit: ModuleType, tmp_path: Path) -> None:
    whole = CASE.format("", "m", SKIPPED.format("collection skipped"))
    assert judge(audit, tmp_path, [whole], [CASE.format("m", "t", "")]) == []
    assert len(judge(audit, tmp_path, [whole], [whole])) == 1
    assert len(judge(audit, tmp_path, [whole], [CASE.format("m", "t", SKIPPED.format("why"))])) == 2


def test_parameters_that_one_run_does_not_have(audit: ModuleType, tmp_path: Path) -> None:
    none = CASE.format("m", "t[NOTSET]", SKIPPED.format("empty parameter set"))
    assert judge(audit, tmp_path, [none], [CASE.format("m", "t[a]", "")]) == []
    assert len(judge(audit, tmp_path, [none], [CASE.format("m", "u[a]", "")])) == 1


def test_reasons_that_are_allowed(audit: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bound = CASE.format("m", "t", SKIPPED.format("needs a user whom permissions bind"))
    monkeypatch.setattr(audit.os, "geteuid", lambda: 0, raising=False)
    assert judge(audit, tmp_path, [bound]) == []
    monkeypatch.setattr(audit.os, "geteuid", lambda: 1000, raising=False)
    assert len(judge(audit, tmp_path, [bound])) == 1
    data = CASE.format("m", "t", SKIPPED.format("needs the shared data folder (set COSTMODEL_SHARED)"))
    assert judge(audit, tmp_path, [data]) == []
    assert len(judge(audit, tmp_path, [data], shared=True)) == 1


def test_failures_win_and_expected_failures_are_no_skips(audit: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "run.xml"
    cases = [
        CASE.format("m", "t", "<failure/>"),
        CASE.format("m", "x", '<skipped type="pytest.xfail" message="known"/>'),
        CASE.format("m", "e", ""),
        CASE.format("m", "e", "<error/>"),
    ]
    path.write_text(f"<testsuite>{''.join(cases)}</testsuite>", encoding="utf-8")
    run = audit.read_run(path)
    outcomes = {name: result.outcome for (_, name), result in audit.merge([run, run]).items()}
    assert outcomes == {"t": "failed", "x": "xfailed", "e": "failed"}
    assert audit.merge([{("m", "t"): audit.Result("passed")}, run])["m", "t"].outcome == "failed"


def test_kinds_of_tests_that_must_have_run(audit: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_js.py").write_text("import py_mini_racer", encoding="utf-8")
    passed = {("tests.test_js", "t"): audit.Result("passed")}
    assert audit.faults(passed, tmp_path / "tests", False) == [
        f"no test of this kind passed: {kind}"
        for kind in ("tests against aiconfigurator-core", "tests with the real vLLM", "tests on a Dask scheduler")
    ]
    skipped = {("tests.test_js", "t"): audit.Result("skipped", "why")}
    assert len(audit.faults(skipped, tmp_path / "tests", False)) == 5
