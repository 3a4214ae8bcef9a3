"""Times single predictions of aiconfigurator's SDK and prints one JSON document; exit code 3 where it is not installed.

The package aiconfigurator-core is enough. Run by ``speed.py``, in the interpreter that has it::

    python benchmarks/peer_aiconfigurator.py --repeats 7
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import logging
import sys
import time
import warnings

from timing import per_call, prompt_tokens

MODEL, SYSTEM, ENGINE = "meta-llama/Meta-Llama-3.1-8B", "h100_sxm", "vllm"
NOT_INSTALLED = 3


def main() -> int:
    """Print the medians, or exit with 3."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    repeats = parser.parse_args().repeats
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    start = time.perf_counter()
    try:
        from aiconfigurator_core.sdk.backends.factory import get_backend
        from aiconfigurator_core.sdk.config import ModelConfig, RuntimeConfig
        from aiconfigurator_core.sdk.models import get_model
        from aiconfigurator_core.sdk.perf_database import get_database, get_latest_database_version
        from aiconfigurator_core.sdk.step_estimate import MixedStepInput
    except ImportError as error:
        print(f"aiconfigurator is not installed ({error})", file=sys.stderr)
        return NOT_INSTALLED
    with contextlib.redirect_stdout(sys.stderr):
        version = get_latest_database_version(SYSTEM, ENGINE)
        database = get_database(SYSTEM, ENGINE, version)
        backend = get_backend(ENGINE)
        model = get_model(MODEL, ModelConfig(tp_size=1), ENGINE)

        def decode(number: int) -> float:
            config = RuntimeConfig(batch_size=1 + number % 256, isl=500 + number % 4001, osl=2)
            return float(backend.run_static_latency_only(model, database, config, "static_gen"))

        def prefill(tokens: int) -> float:
            config = RuntimeConfig(batch_size=1, isl=tokens, osl=1)
            return float(backend.run_static_latency_only(model, database, config, "static_ctx"))

        def mixed(tokens: int) -> float:
            config, step = RuntimeConfig(isl=tokens, osl=2), MixedStepInput(tokens, 32)
            return float(backend.run_mixed(model, database, config, step).latency_ms)

        decode(31)
        loaded = time.perf_counter() - start
        of_32_streams = RuntimeConfig(batch_size=32, isl=500, osl=2)
        document = {
            "version": importlib.metadata.version("aiconfigurator-core"),
            "tables": f"{SYSTEM} {ENGINE} {version}",
            "load_s": loaded,
            "decode_call_s": per_call(decode, repeats),
            "prefill_call_s": per_call(lambda number: prefill(prompt_tokens(number)), repeats),
            "mixed_call_s": per_call(lambda number: mixed(prompt_tokens(number)), repeats),
            "decode_step_s": backend.run_static_latency_only(model, database, of_32_streams, "static_gen") / 1e3,
            "prefill_s": prefill(8000) / 1e3,
            "mixed_step_s": mixed(8000) / 1e3,
        }
    print(json.dumps(document))
    return 0


if __name__ == "__main__":
    sys.exit(main())
