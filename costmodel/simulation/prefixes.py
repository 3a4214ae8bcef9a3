"""What a prefix cache without end would find in a trace: a count, without any simulation.

Every full block of a prompt is kept as soon as its request is there, and nothing is ever lost. A simulated cache of unlimited size comes to
the same hits where prompts are computed before the next ones come; a real one loses blocks, and has those of a prompt only once it has been
scheduled.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from costmodel.checks import cached_part
from costmodel.hardware.errors import InputError
from costmodel.simulation.blocks import Key
from costmodel.simulation.requests import Request


@dataclass(frozen=True, slots=True)
class PrefixHits:
    """Tokens of prompts, and those that an endless prefix cache has."""

    prompt_tokens: int
    cached_tokens: int
    kept_tokens: int
    """In the cache at the end: of full blocks, each once."""

    @property
    def hit_rate(self) -> float:
        """Share of the prompts' tokens that is found."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


def block_keys(request: Request, block_tokens: int, chains: dict[tuple[int, int], int]) -> Iterator[Key]:
    """Yield what the full blocks of a request's shared prefix hold: equal where all tokens up to the end of the block are.

    Args:
        request: with the ids of its leading blocks.
        block_tokens: tokens of a KV block.
        chains: numbers of the beginnings seen so far, kept from one request to the next.
    """
    each, chain, part = request.prefix_block, -1, 0
    for index in range(min(len(request.prefix) * each, request.prompt) // block_tokens):
        # A block is that of another request if all tokens up to its end are: all ids up to the one that it ends in.
        while part <= ((index + 1) * block_tokens - 1) // each:
            chain = chains.setdefault((chain, request.prefix[part]), len(chains))
            part += 1
        yield chain, index


def prefix_hits(requests: Iterable[Request], block_tokens: int = 16) -> PrefixHits:
    """Count what an endless prefix cache finds, requests in the order in which they come.

    The last token of a prompt is computed in any case, so a prompt that is all there still computes its last block.
    """
    chains: dict[tuple[int, int], int] = {}
    reached: list[int] = []  # of the id at the end of each chain, the tokens that the longest prompt so far has
    prompts = cached = kept = 0
    for request in requests:
        prompts += request.prompt
        known, all_known, chain = 0, True, -1
        shared = min(len(request.prefix) * request.prefix_block, request.prompt)
        for part, name in enumerate(request.prefix):
            tokens = max(min(request.prefix_block, shared - part * request.prefix_block), 0)
            chain = chains.setdefault((chain, name), len(chains))
            if chain == len(reached):
                reached.append(0)
            if all_known:
                known += min(reached[chain], tokens)
                all_known = reached[chain] >= tokens
            reached[chain] = max(reached[chain], tokens)
        cached += min(known // block_tokens, (request.prompt - 1) // block_tokens) * block_tokens
        kept += shared // block_tokens - known // block_tokens
    return PrefixHits(prompts, cached, kept * block_tokens)


def cached_tokens(cached_prefix: int, prompt: int, caching: bool) -> int:
    """Return the tokens of a prompt that the prefix cache is said to have.

    Args:
        cached_prefix: what was asked for.
        prompt: tokens.
        caching: whether there is a prefix cache.

    Raises:
        InputError: as many as the prompt, or there is no prefix cache.
    """
    cached = cached_part(cached_prefix, prompt)
    if cached and not caching:
        raise InputError("a cached prefix needs the prefix cache, which is off; leave out --no-enable-prefix-caching")
    return cached
