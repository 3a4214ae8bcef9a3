"""Where the files lie that some tests need besides the installed package; without them, those tests are skipped and say why."""

import os
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# The same examples in every run, however slow the machine is at the moment.
settings.register_profile("tests", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")

# With a process of tests on every core, threads of linear algebra would only wait for one another: a fit takes twice the processor time.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# A script's background job ignores Ctrl-C, and so would its children: it could not be tested.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def find_checkout() -> Path | None:
    """Return the source checkout: ``COSTMODEL_CHECKOUT``, or the folder above ``tests/`` if it holds the sources."""
    named = os.environ.get("COSTMODEL_CHECKOUT")
    folder = Path(named) if named else Path(__file__).parents[1]
    return folder if (folder / "pyproject.toml").is_file() and (folder / "costmodel").is_dir() else None


@pytest.fixture(scope="session")
def repo_root() -> Path:
    """The source checkout, for tests of what is not installed: documents, examples, the build."""
    folder = find_checkout()
    if folder is None:
        pytest.skip("needs the source checkout (set COSTMODEL_CHECKOUT)")
    return folder


@pytest.fixture(scope="session")
def shared_folder() -> Path:
    """The folder of shared cases and measurements: ``COSTMODEL_SHARED``, or ``shared`` beside the checkout."""
    named = os.environ.get("COSTMODEL_SHARED")
    checkout = find_checkout()
    folder = Path(named) if named else checkout.parent / "shared" if checkout else None
    if folder is None or not folder.is_dir():
        pytest.skip("needs the shared data folder (set COSTMODEL_SHARED)")
    return folder
