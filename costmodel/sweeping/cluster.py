"""Simulations of a sweep on an existing Dask scheduler. A worker that is lost loses nothing: Dask gives its work to the others."""

from __future__ import annotations

import importlib.util
import socket
from collections.abc import Iterator, Sequence
from typing import Any

import costmodel
from costmodel.hardware.errors import CostModelError, InputError, shown
from costmodel.sweeping.configurations import Configuration, simulate_configuration
from costmodel.sweeping.runners import Numbered

CONNECT_S = 10
"""A scheduler that does not answer for so long is not there."""


def run_on_dask(configurations: Sequence[Configuration], address: str) -> Iterator[Numbered]:
    """Simulate on the workers of a Dask scheduler, each of which needs this release of costmodel.

    Args:
        configurations: what to simulate.
        address: of the scheduler, such as ``tcp://10.0.0.1:8786``.

    Raises:
        InputError: no ``distributed``, no scheduler, or one without workers.
        CostModelError: a simulation failed, or the workers cannot run it.
    """
    if importlib.util.find_spec("distributed") is None:
        raise InputError("--dask needs distributed (pip install 'llm-costmodel[dask]')")
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
        for future in as_completed(asked, loop=client.loop):
            failure = future.exception()
            if failure is not None:
                raise _told(failure)
            yield asked[future], future.result()
    finally:
        client.close()


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
