"""The symbols of the equations: name, LaTeX, unit, meaning. The table in the docs is made from this one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sympy


@dataclass(frozen=True, slots=True)
class Entry:
    """One symbol."""

    name: str
    latex: str
    unit: str
    meaning: str
    integer: bool = False
    may_be_zero: bool = False

    @property
    def symbol(self) -> Any:
        """The SymPy symbol: positive (or non-negative), integer where it counts things."""
        sign = {"nonnegative": True} if self.may_be_zero else {"positive": True}
        return sympy.Symbol(self.name, **sign, **({"integer": True} if self.integer else {}))


ENTRIES = (
    Entry("n", "n", "tokens", "tokens of the prompt", integer=True),
    Entry("q", "q", "tokens", "tokens of one prefill chunk", integer=True),
    Entry(
        "s",
        "s",
        "tokens",
        "tokens of the same prompt that earlier chunks put into the cache",
        integer=True,
        may_be_zero=True,
    ),
    Entry("m", "m", "tokens", "token budget per step (max_num_batched_tokens)", integer=True),
    Entry("N", "N", "tokens", "tokens of a step, Σ qᵢ", integer=True),
    Entry(
        "R",
        "R",
        "rows",
        "rows through lm_head: one per sequence in a step, and one per draft that is verified",
        integer=True,
    ),
    Entry("k_s", "k_s", "tokens", "speculative decoding: drafted tokens per pass", integer=True),
    Entry("alpha_s", r"\alpha_s", "–", "the same: chance that a drafted token is accepted if those before it were"),
    Entry("E_s", "E_s", "tokens", "the same: tokens per pass, (1 − α_s^(k_s + 1))/(1 − α_s)"),
    Entry("D", "D", "sequences", "decoding sequences (streams)", integer=True),
    Entry("c", "c", "tokens", "context of a decoding sequence", integer=True, may_be_zero=True),
    Entry("A_w", "A_w", "pairs", "attended (query, key) pairs in layers of window w"),
    Entry("C_w", "C_w", "tokens", "KV tokens that decoding sequences read in layers of window w"),
    Entry("C_p", "C_p", "tokens", "KV tokens that prefill chunks read"),
    Entry("P", "P", "parameters", "parameters of the model"),
    Entry("P_a", "P_a", "parameters", "active parameters of a mixture of experts"),
    Entry("b", "b", "B", "bytes per weight, averaged over the model"),
    Entry("L", "L", "layers", "layers", integer=True),
    Entry("d", "d", "–", "hidden size", integer=True),
    Entry("h", "h", "heads", "query heads", integer=True),
    Entry("h_kv", "h_{kv}", "heads", "KV heads", integer=True),
    Entry("d_h", "d_h", "–", "head dimension (query and key)", integer=True),
    Entry("d_v", "d_v", "–", "value head dimension where it differs from d_h", integer=True),
    Entry("r_q", "r_q", "–", "MLA, DeepSeek-V4: query rank (q_lora_rank)", integer=True),
    Entry("r_kv", "r_{kv}", "–", "MLA: latent rank (kv_lora_rank)", integer=True),
    Entry("d_r", "d_r", "–", "MLA, DeepSeek-V4: rotary head dimension", integer=True),
    Entry("g_o", "g_o", "groups", "groups of heads that are projected apart on their way out (o_groups)", integer=True),
    Entry("r_o", "r_o", "–", "width of one of them after that (o_lora_rank)", integer=True),
    Entry("H_I", "H_I", "heads", "heads of an indexer (sparse attention)", integer=True),
    Entry("d_I", "d_I", "–", "dimension of an indexer's head", integer=True),
    Entry("H_s", "H_s", "heads", "heads of a recurrent layer, a state each", integer=True),
    Entry("G_s", "G_s", "heads", "key heads, or groups, of a recurrent layer", integer=True),
    Entry("N_s", "N_s", "–", "rows of a state: key dimension, or state size", integer=True),
    Entry("P_s", "P_s", "–", "columns of a state: value dimension, or head dimension", integer=True),
    Entry("d_l", "d_l", "–", "width that routed experts work in, where it is not d", integer=True),
    Entry("d_ff", "d_{ff}", "–", "feed-forward width", integer=True),
    Entry("d_e", "d_e", "–", "width of one routed expert", integer=True),
    Entry("d_s", "d_s", "–", "width of the shared experts", integer=True),
    Entry("E", "E", "experts", "routed experts", integer=True),
    Entry("k", "k", "experts", "experts per token", integer=True),
    Entry("r_A", "r_A", "–", "rank of LoRA adapters, as the engine has it (max_lora_rank)", integer=True),
    Entry("n_A", "n_A", "adapters", "LoRA adapters that requests of a step use at most (max_loras)", integer=True),
    Entry("E_x", "E_x", "states", "states of an encoder that a sequence attends to in cross-attention", integer=True),
    Entry("N_i", "N_i", "patches", "patches of the images of a step", integer=True),
    Entry("A_i", "A_i", "pairs", "pairs of patches that see one another, Σ p²"),
    Entry("A_iw", "A_{iw}", "pairs", "the same in layers whose patches see only their window"),
    Entry("R_i", "R_i", "rows", "features of the images of a step = rows through the projector", integer=True),
    Entry("p_i", "p_i", "patches", "patches of the largest tile", integer=True),
    Entry("P_i", "P_i", "parameters", "parameters of the encoder of images, projector included"),
    Entry("c_i", "c_i", "–", "numbers of a patch: channels, frames and pixels", integer=True),
    Entry("d_i", "d_i", "–", "width of the encoder", integer=True),
    Entry("d_fi", "d_{fi}", "–", "feed-forward width of the encoder", integer=True),
    Entry("L_i", "L_i", "layers", "layers of the encoder", integer=True),
    Entry("h_i", "h_i", "heads", "heads of the encoder", integer=True),
    Entry("h_kvi", "h_{kvi}", "heads", "heads of keys and values of the encoder", integer=True),
    Entry("d_hi", "d_{hi}", "–", "head dimension of the encoder", integer=True),
    Entry("k_i", "k_i", "–", "inputs of a matrix of the projector", integer=True),
    Entry("m_i", "m_i", "–", "outputs of a matrix of the projector", integer=True),
    Entry("V", "V", "entries", "vocabulary", integer=True),
    Entry("b_w", "b_w", "B", "bytes per weight of a module, scales included"),
    Entry("b_a", "b_a", "B", "bytes per activation"),
    Entry("b_kv", "b_{kv}", "B", "bytes per KV-cache element"),
    Entry("F", "F", "FLOP/s", "dense peak at the operator's compute dtype"),
    Entry("W", "W", "B/s", "memory bandwidth"),
    Entry("B_link", "B_{link}", "B/s", "link bandwidth per direction"),
    Entry("SM", "SM", "units", "multiprocessors or compute units", integer=True),
    Entry("t", "t", "GPUs", "tensor-parallel size", integer=True),
    Entry("e_c", "e_c", "–", "compute efficiency in (0, 1], fitted"),
    Entry("e_b", "e_b", "–", "bandwidth efficiency in (0, 1], fitted"),
    Entry("t_0", "t_0", "s", "launch time of a kernel, fitted"),
    Entry("p", "p", "–", "sharpness of the smooth maximum, fitted; ∞ on the roofline"),
    Entry("k_0", "k_0", "–", "inputs over which a tile's prologue costs as much as its products, fitted"),
    Entry("e_1", "e_1", "–", "efficiency of an all-reduce in one shot, fitted"),
    Entry("s_b", "s_b", "–", "how much slower an all-reduce is for GPUs that share a host's bridges, fitted"),
    Entry("e_q", "e_q", "–", "bandwidth efficiency of quantising activations, fitted"),
    Entry("t_k", "t_k", "s", "time per input of a kernel that does not split its depth, fitted"),
    Entry("T_q", "T_q", "rows", "rows of a tile of attention, fitted, or of a product"),
    Entry(
        "omega", r"\omega", "–", "passes of prefill attention over bytes beyond reading and writing each once, fitted"
    ),
    Entry(
        "t_t",
        "t_t",
        "s",
        "time of a decoding sequence's attention tile beside its keys, in a step with prefill, fitted",
    ),
    Entry("t_e", "t_e", "s", "time of an attention tile without rows, fitted"),
    Entry("r", "r", "tokens", "KV tokens per sequence that take decode attention time at least, fitted"),
    Entry("t_1", "t_1", "s", "time that decode attention takes more at long context or for a further kernel, fitted"),
    Entry("t_c", "t_c", "s", "time per key of decode attention on one multiprocessor, fitted"),
    Entry("t_w", "t_w", "s", "time of a wave of tiles or blocks, fitted"),
    Entry("c_1", "c_1", "tokens", "context at which half of it is reached, fitted"),
    Entry("kappa", r"\kappa", "–", "passes over the activations per layer in elementwise kernels, fitted"),
    Entry("x_1", "x_1", "B", "activations of which a cache saves half the traffic of elementwise kernels, fitted"),
    Entry("alpha", r"\alpha", "s", "latency of a message, fitted"),
    Entry("t_layer", r"t_{layer}", "s", "overhead per layer, fitted"),
    Entry("t_step", r"t_{step}", "s", "overhead per step, fitted"),
    Entry("t_moe", r"t_{moe}", "s", "overhead per layer with routed experts, fitted"),
    Entry("t_norm", r"t_{norm}", "s", "overhead per layer that normalises queries and keys, fitted"),
    Entry("t_seq", r"t_{seq}", "s", "overhead per decoding sequence, fitted"),
    Entry("o", "o", "–", "share of a launch that disappears behind the kernel before it, fitted"),
    Entry("T_x", "T_x", "rows", "rows multiplied in vain for every expert touched, fitted"),
    Entry("t_x", "t_x", "s", "time for every expert touched, fitted"),
    Entry("tau", r"\tau", "s", "time between two long prompts"),
    Entry("G", "G", "gaps", "gaps between tokens that one stream sees in τ"),
    Entry("f", "f", "–", "share of them that are mixed steps"),
)

BY_NAME = {entry.name: entry for entry in ENTRIES}


def entry_of(name: str) -> Entry:
    """Return the entry of a symbol; ``L_2`` or ``b_w_fp8`` fall back to ``L`` and ``b_w``."""
    base = name
    while base and base not in BY_NAME:
        base = base.rpartition("_")[0]
    return BY_NAME[base]


def symbol(name: str) -> Any:
    """Return the SymPy symbol ``name`` with the assumptions of its entry."""
    entry = entry_of(name)
    return Entry(name, name, entry.unit, entry.meaning, entry.integer, entry.may_be_zero).symbol
