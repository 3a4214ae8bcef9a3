"""From a deployment to the parameters of the equations: which kernels a step runs, their FLOPs and bytes per token, their rates.

One module per kind of kernel; :mod:`costmodel.building.parameters` puts them together.
"""

from costmodel.building.matrices import linear_gemm
from costmodel.building.parameters import build_parameters, roofline_parameters
from costmodel.building.textbook import build_textbook

__all__ = ["build_parameters", "build_textbook", "linear_gemm", "roofline_parameters"]
