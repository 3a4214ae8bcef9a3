"""Simulations of a sweep on an existing Dask scheduler. A worker that is lost loses nothing: Dask gives its work to the others."""

from __future__ import annotations

import importlib.util
import logging
import socket
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager
from typing import Any

import costmodel
from costmodel.hardware.errors import CostModelError, InputError, shown
from costmodel.sweeping.configurations import Configuration, simulate_configuration
from costmodel.sweeping.runners import Numbered

CONNECT_S = 10
"""A scheduler that does not answer for so long is not there."""
CHECK_S = 2.0
"""How often it is looked whether there still are workers, while none of them answers."""
GRACE_S = 60.0
"""How long new ones are waited for where all are lost."""
POLL_S = 0.02


def check_distributed() -> None:
    """Raise :class:`InputError` where ``distributed`` is not installed."""
    if importlib.util.find_spec("distributed") is None:
        raise InputError("--dask needs distributed (pip install 'llm-costmodel[dask]')")


def run_on_dask(configurations: Sequence[Configuration], address: str) -> Iterator[Numbered]:
    """Simulate on the workers of a Dask scheduler, each of which needs this release of costmodel.

    Args:
        configurations: what to simulate.
        address: of the scheduler, such as ``tcp://10.0.0.1:8786``.

    Raises:
        InputError: no ``distributed``, no scheduler, or one without workers.
        CostModelError: a simulation failed, the workers cannot run it, or scheduler or workers are lost.
    """
    check_distributed()
    from distributed import Client, as_completed
    from distributed.comm import get_address_host_port

    try:  # a client that finds nobody takes long to close
        socket.create_connection(get_address_host_port(address), CONNECT_S).close()
        client = Client(address, timeout=CONNECT_S, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:  # a TimeoutError is an OSError
        raise InputError(f"no Dask scheduler answers at {shown(address)}: {error or type(error).__name__}") from None
    try:
        if not client.scheduler_info()["workers"]:
            raise InputError(f"the Dask scheduler at {address} has no workers; start some with `dask worker {address}`")
        asked = {
            client.submit(simulate_there, each, costmodel.__version__, pure=False): number
            for number, each in enumerate(configurations)
        }
        waiting = as_completed(asked, loop=client.loop)
        watch = _Watch(client, address)
        while waiting.count():
            done = waiting.next_batch(block=False)
            for future in done:
                yield asked[future], _row(future, watch)
            if done:
                watch.seen()
            else:
                watch.check()
                time.sleep(POLL_S)
    finally:
        with _quiet("distributed.client"):  # which logs the traceback of a scheduler that is lost
            client.close()


@contextmanager
def _quiet(name: str) -> Iterator[None]:
    """Let a logger say nothing for a while."""
    logger = logging.getLogger(name)
    before = logger.disabled
    logger.disabled = True
    try:
        yield
    finally:
        logger.disabled = before


class _Watch:
    """Looks now and then whether there are workers."""

    def __init__(self, client: Any, address: str) -> None:
        self._client, self._address = client, address
        self.seen()

    def seen(self) -> None:
        """Take note that a worker has answered."""
        self._alive = self._looked = time.monotonic()

    def lost(self) -> CostModelError:
        """Return what to say where the scheduler does not answer."""
        return CostModelError(f"lost the Dask scheduler at {self._address}")

    def check(self) -> None:
        """Raise :class:`CostModelError` where the scheduler is lost, or there have been no workers for :data:`GRACE_S`."""
        now = time.monotonic()
        if now - self._looked < CHECK_S:
            return
        self._looked = now
        if self._client.status != "running":
            raise self.lost()
        if self._client.scheduler_info()["workers"]:
            self._alive = now
        elif now - self._alive > GRACE_S:
            raise CostModelError(f"all workers of the Dask scheduler at {self._address} are lost, for {GRACE_S:g} s")


def _row(future: Any, watch: _Watch) -> dict[str, Any]:
    """Return the row of a simulation that has ended, or raise :class:`CostModelError`."""
    while True:
        try:
            failure = None if future.cancelled() else future.exception(timeout=CHECK_S)
            if failure is not None:
                raise _told(failure)
            return dict(future.result(timeout=CHECK_S))
        except TimeoutError:  # it was on a worker that is lost, and is simulated once more
            watch.check()
        except (OSError, CancelledError):  # of the way to the scheduler: what a simulation raises is its exception
            raise watch.lost() from None


def simulate_there(configuration: Configuration, version: str) -> dict[str, Any]:
    """Return the row of a configuration, on a worker.

    Raises:
        CostModelError: the worker has another release, or as in :func:`simulate_configuration`.
    """
    if costmodel.__version__ != version:
        raise CostModelError(
            f"a Dask worker has costmodel {costmodel.__version__}, but this is {version}; install the same on all of them"
        )
    return simulate_configuration(configuration)


def _told(error: BaseException) -> CostModelError:
    if isinstance(error, CostModelError):
        return error
    if isinstance(error, ImportError):
        return CostModelError(f"the Dask workers need costmodel {costmodel.__version__} installed ({error})")
    return CostModelError(f"a simulation failed on the Dask workers: {error!r}")
