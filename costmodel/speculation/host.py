"""What speculation costs an engine beside its kernels: measured with vLLM, on the calibrated rung only.

``verify_s`` is added to every pass: drafted tokens are put into the batch, accepted ones sorted out from the others, and nothing is
scheduled ahead meanwhile. ``pass_s`` is the time in which the host gets the next draft pass under way (positions, slots, attention
metadata, launches): the kernels of the pass run meanwhile, so that a pass takes the longer of the two.

Four series of vLLM's chained drafts, step time = accepted length × TPOT, line through the smallest and the largest k:

=========================================  =============  ===============  ==============================
series                                     per pass [ms]  beside [ms]      source
=========================================  =============  ===============  ==============================
EAGLE, H100, k = 2 … 7 (vLLM 0.9)          0.73           0.65             vllm-project/vllm#20780
EAGLE-3, H100, k = 2 … 7 (vLLM 0.9)        1.00           1.13             the same
EAGLE, k = 2 and 4 (April 2025; H100 by    0.90           1.20             vllm-project/vllm#16035
the author's other threads)
EAGLE, A100 40 GB, k = 1 and 32            1.23           1.0              vllm-project/vllm#29334, #24343
=========================================  =============  ===============  ==============================

"Beside" is the step at k = 0 on that line less the step without speculation. Least squares through all six k of the first two series
give 0.74 and 0.62, and 1.02 and 1.28 ms (the other two have two k each): means of 0.89 and 1.02 ms in place of 0.88 and 1.0, within their
standard errors. On the A100 a pass is as long as its kernels (1.0 ms of
weights at the datasheet's bandwidth), on the H100 they take half of it (0.46 ms for EAGLE, 0.23 for EAGLE-3) and the host the rest: so
the longer counts, not the sum. (The first two series are the project's acceptance case as well: docs/speculation.md has the errors with and
without them.) ``pass_s`` is the mean of the three H100 series, ``verify_s`` that of all four.

SGLang records all passes of a draft into one CUDA graph (sgl-project/sglang#6606), and TensorRT-LLM overlaps the host with them
(NVIDIA/TensorRT-LLM#4802): no host time per pass there. What they take beside was not found; vLLM's stands in, and answers say so.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HostTimes:
    """Time of an engine's host beside the kernels [s]."""

    verify_s: float
    """Added to every pass that verifies drafts."""
    pass_s: float
    """Least time of one draft pass."""
    note: str = ""
    """What the reader should know of it."""


VLLM = HostTimes(verify_s=1.0e-3, pass_s=0.88e-3)
"""Standard errors over the series: 0.12 and 0.08 ms."""
NO_HOST = HostTimes(0.0, 0.0)
"""On the roofline rung: kernels alone."""


def host_times(engine: str) -> HostTimes:
    """Return the host times of an engine: ``vllm``, ``sglang`` or ``trtllm``."""
    if engine == "vllm":
        return VLLM
    return HostTimes(
        VLLM.verify_s, 0.0, f"what verifying costs the host was measured with vLLM, not with {engine}: vLLM's stands in"
    )
