"""The parameters of the step equations, put together from the kernels of a deployment."""

from __future__ import annotations

from functools import lru_cache

from costmodel.architecture.linears import layer_linears
from costmodel.building.adapters import adapter_experts, adapter_gemms, adapter_transfers
from costmodel.building.attention import attention_kernels
from costmodel.building.layers import blocks, count_layers, layer_kinds
from costmodel.building.matrices import add, distinct, expert_gemm, head_gemms, linear_gemm
from costmodel.building.residuals import residual_gemms
from costmodel.building.states import state_kernels
from costmodel.building.transfers import transfers_between
from costmodel.deployment import Deployment
from costmodel.equations.parameters import ExpertGemm, Gemm, Parameters
from costmodel.equations.rate_sources import DatasheetRates, RateSource


def build_parameters(deployment: Deployment, rates: RateSource | None = None) -> Parameters:
    """Build the parameters of the step equations from architecture, profile and (through ``rates``) calibration.

    Args:
        deployment: model, part and number formats; its dimensions and hardware numbers may be symbols.
        rates: datasheet rates by default (roofline rung), or :class:`~costmodel.equations.rates.CalibratedRates`.
    """
    rates = rates or DatasheetRates()
    gemms: dict[tuple[object, ...], Gemm] = {}
    experts: dict[tuple[object, ...], ExpertGemm] = {}
    for kind, count in layer_kinds(deployment):
        for linear in layer_linears(kind, deployment.architecture.hidden, deployment.tp, deployment.ep):
            if linear.of_encoder:
                continue  # once per request, with its encoder
            key = (linear.name, linear.inputs, linear.outputs, linear.copies, linear.fmt)
            if linear.group == "experts":
                made = expert_gemm(deployment, rates, kind, linear, count)
                experts[key] = add(experts[key], made) if key in experts else made
            else:
                gemm = linear_gemm(deployment, rates, linear, count)
                gemms[key] = add(gemms[key], gemm) if key in gemms else gemm
    layers = blocks(deployment)
    architecture = deployment.architecture
    return Parameters(
        gemms=(
            *distinct(gemms.values()),
            *residual_gemms(deployment, rates),
            *head_gemms(deployment, rates),
            *adapter_gemms(deployment, rates, layer_kinds(deployment)),
        ),
        experts=tuple(distinct([*experts.values(), *adapter_experts(deployment, rates, layer_kinds(deployment))])),
        attention=attention_kernels(deployment, rates),
        transfers=(
            *transfers_between(deployment, rates),
            *adapter_transfers(deployment, rates, layer_kinds(deployment)),
        ),
        elementwise=rates.elementwise(
            layers, architecture.hidden, deployment.activation_bytes, deployment.hardware.bandwidth
        ),
        overheads=rates.overheads(
            layers,
            count_layers(deployment, lambda kind: kind.feed_forward.kind == "moe"),
            count_layers(deployment, lambda kind: kind.attention.qk_norm != "none"),
        ),
        states=state_kernels(deployment, rates, layer_kinds(deployment)),
    )


@lru_cache(maxsize=256)
def roofline_parameters(deployment: Deployment) -> Parameters:
    """Return the parameters at datasheet rates, built once per deployment."""
    return build_parameters(deployment)
