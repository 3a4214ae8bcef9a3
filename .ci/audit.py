"""Judge the runs of the test suite together: no test may have been skipped in all of them without a reason that is listed here.

    python .ci/audit.py --tests tests --shared yes README.xml wheel.xml

The runs differ in what they have: the checkout, optional packages. A test that one run skips must pass in another. Prints the counts
of distinct tests as ``passed skipped xfailed failed`` on the last line; exit code 1 if something was not tested.
"""

import argparse
import os
import re
import sys
import xml.etree.ElementTree as ET
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path


def is_root() -> bool:
    """Whether files cannot be made unreadable for this user."""
    return not hasattr(os, "geteuid") or os.geteuid() == 0


ALLOWED = {
    "needs a user whom permissions bind": is_root,
    "root may read every file": is_root,
}
"""Reason of a skip → whether it holds on this machine."""

REQUIRED = {
    "aiconfigurator[-_]core": "tests against aiconfigurator-core",
    "mini_racer": "tests that run JavaScript",
    r"mark\.vllm": "tests with the real vLLM",
    r"importorskip\(.distributed": "tests on a Dask scheduler",
}
"""Pattern of the text of a test file → what its tests are; at least one such test must have passed."""

OUTCOMES = ("failed", "passed", "xfailed", "skipped")
"""What can become of a test; of several runs of one test, the first of these counts."""

SHARED = "shared_folder"
"""Fixture of the tests that need the shared data folder."""


@dataclass(frozen=True)
class Result:
    """What became of one test in one run."""

    outcome: str
    reason: str = ""


def read_run(path: Path) -> dict[tuple[str, str], Result]:
    """Read one JUnit report: (module, test) → result. A module skipped as a whole has the test name ""."""
    found = {}
    for case in ET.parse(path).iter("testcase"):
        module, name = case.get("classname", ""), case.get("name", "")
        key = (module, name) if module else (name, "")
        skipped = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            found[key] = Result("failed")
        elif skipped is not None:
            reason = f"{skipped.get('message', '')} {skipped.text or ''}"
            expected = skipped.get("type") == "pytest.xfail"
            found[key] = Result("xfailed" if expected else "skipped", " ".join(reason.split()))
        elif key not in found:
            found[key] = Result("passed")
    return found


def merge(runs: list[dict[tuple[str, str], Result]]) -> dict[tuple[str, str], Result]:
    """Return the verdict per test: failed if any run failed it, else passed if any passed it, else expected to fail, else skipped."""
    together: dict[tuple[str, str], list[Result]] = defaultdict(list)
    for run in runs:
        for key, result in run.items():
            together[key].append(result)
    verdict = {}
    for key, results in together.items():
        verdict[key] = min(results, key=lambda result: OUTCOMES.index(result.outcome))
    # What one run skipped as a whole, a module or a test without its parameters, was tested if another run passed a part of it.
    passed = {key for key, result in verdict.items() if result.outcome == "passed"}
    covered = {(module, "") for module, _ in passed} | {(module, name.partition("[")[0]) for module, name in passed}
    return {
        key: result
        for key, result in verdict.items()
        if result.outcome != "skipped" or (key[0], key[1].removesuffix("[NOTSET]")) not in covered
    }


def faults(verdict: dict[tuple[str, str], Result], tests: Path, shared: bool) -> list[str]:
    """Return what was not tested and should have been."""
    found = []
    for (module, name), result in sorted(verdict.items()):
        if result.outcome != "skipped":
            continue
        if any(reason in result.reason and holds() for reason, holds in ALLOWED.items()):
            continue
        if not shared and "shared data folder" in result.reason:
            continue
        found.append(f"skipped in every run: {module}::{name}: {result.reason}")
    required = dict(REQUIRED)
    # The tests of the packaging name these things without using them.
    paths = [path for path in tests.rglob("test_*.py") if path.parent != tests / "packaging"]
    sources = {
        ".".join(path.relative_to(tests.parent).with_suffix("").parts): path.read_text("utf-8") for path in paths
    }
    if shared and any(SHARED in text for text in sources.values()):
        required[SHARED] = "tests on the shared data"
    for pattern, what in required.items():
        users = {module for module, text in sources.items() if re.search(pattern, text)}
        ran = sum(result.outcome == "passed" for (module, _), result in verdict.items() if module in users)
        print(f"{what}: {ran} tests passed in {len(users)} files")
        if not ran:
            found.append(f"no test of this kind passed: {what}")
    return found


def main() -> int:
    """Read the reports, print what was found, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--tests", type=Path, required=True, help="folder of the tests")
    parser.add_argument(
        "--shared", choices=("yes", "no"), required=True, help="whether the shared data folder was there"
    )
    parser.add_argument("reports", type=Path, nargs="+", help="JUnit reports")
    options = parser.parse_args()
    missing = [f"no report: {path.name}" for path in options.reports if not path.is_file()]
    verdict = merge([read_run(path) for path in options.reports if path.is_file()])
    found = missing + faults(verdict, options.tests, options.shared == "yes")
    for fault in found:
        print("FAULT", fault)
    outcomes = [result.outcome for result in verdict.values()]
    for (module, name), result in sorted(verdict.items()):
        if result.outcome != "passed":
            print(f"{result.outcome}: {module}::{name} {result.reason}")
    print(*(outcomes.count(outcome) for outcome in ("passed", "skipped", "xfailed", "failed")))
    return 1 if found or "failed" in outcomes or "passed" not in outcomes else 0


if __name__ == "__main__":
    sys.exit(main())
