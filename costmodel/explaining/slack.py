"""What becomes of the slack that speculation lives on, from one stream to all that fit: said of the rows of its table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from costmodel.equations.step import step_operators
from costmodel.explaining.documents import Cell
from costmodel.explaining.layers import experts_of
from costmodel.explaining.scene import Scene, of, time_of
from costmodel.explaining.tables import number
from costmodel.explaining.words import count, listed, plural, share, significant, times
from costmodel.speculation.steps import verify_work

HALF = 0.5
HIGHER = 1.02
"""How far above, or below, those at both ends a speed-up between them is called out."""
USE_UP = "the rows of others use up that slack"
LIGHTER = "drafts and host weigh less beside a longer step"

Rows = Sequence[Mapping[str, Cell]]


def slack(rows: Rows, scene: Scene) -> str:
    """Return how the speed-up goes with the batch, what it is made of, and why.

    With E tokens per pass, v decode steps for verification and o for drafts and host, the speed-up is E/(v + o): all of them are in a row.

    Args:
        rows: of the table of batches, those that fit, the smallest batch first; each with its best number of drafts, or the one that is
            asked for.
        scene: model, GPU and context.
    """
    gains = [number(row["speedup_ratio"]) for row in rows]
    told = _turns(gains)
    drafts = {int(number(row["draft_tokens"])) for row in rows}
    each = f"with {plural(next(iter(drafts)), 'draft')}" if len(drafts) == 1 else "each batch with its best k"
    batches = [f"{int(number(rows[place]['streams'])):,}" for place in told]
    verify, beside = ([significant(_steps(rows[place])[part]) for place in told] for part in (0, 1))
    tokens = [significant(number(rows[place]["tokens_per_pass"])) for place in told]
    said = (
        f"From one stream to the {batches[-1]} that fit, {each} (table of batches), the speed-up {_path(gains, told, batches)}. "
        f"A pass yields {_at(tokens, batches)}, its verification takes {listed(verify)} decode steps, drafts and host "
        f"{listed(beside)}. The speed-up is its tokens over both times together."
    )
    return " ".join([said, *_why(rows, scene, told, gains)])


def _turns(gains: Sequence[float]) -> list[int]:
    """Return the places of both ends, and of the lowest and the highest between them where they stand out."""
    low, high = gains.index(min(gains)), gains.index(max(gains))
    ends = gains[0], gains[-1]
    found = {0, len(gains) - 1}
    if gains[low] * HIGHER < min(ends):
        found.add(low)
    if gains[high] > HIGHER * max(ends):
        found.add(high)
    return sorted(found)


def _steps(row: Mapping[str, Cell]) -> tuple[float, float]:
    """Return verification, and drafts and host, in decode steps."""
    plain = number(row["decode_step_s"])
    return number(row["verification_s"]) / plain, (number(row["drafting_s"]) + number(row["host_s"])) / plain


def _path(gains: Sequence[float], told: Sequence[int], batches: Sequence[str]) -> str:
    """Return ``falls from 1.73 × to 1.55 × at 4, then rises to 2.01 ×``."""
    words: list[str] = []
    before = told[0]
    for place, batch in zip(told[1:], batches[1:], strict=True):
        first, last = times(gains[before]), times(gains[place])
        goes = "stays at" if first == last else "rises" if gains[place] > gains[before] else "falls"
        origin = "" if words or first == last else f" from {first}"
        where = "" if place == told[-1] else f" at {batch}"
        words.append(f"{goes}{origin}{'' if first == last else ' to'} {last}{where}")
        before = place
    return ", then ".join(words)


def _at(tokens: Sequence[str], batches: Sequence[str]) -> str:
    """Return ``2.31 tokens at one stream, 3.05 at 4 and 3.29 at 20``; ``3.29 tokens`` where they are as many everywhere."""
    places = ["one stream", *batches[1:]]
    if len(set(tokens)) == 1:
        return f"{tokens[0]} tokens; at {listed(places)}"
    first, *others = (f"{each} at {place}" for each, place in zip(tokens, places, strict=True))
    return listed([first.replace(" at", " tokens at", 1), *others])


def _why(rows: Rows, scene: Scene, told: Sequence[int], gains: Sequence[float]) -> list[str]:
    """Return the reasons, a sentence each."""
    first, last, between = told[0], told[-1], told[1:-1]
    verify = [_steps(row)[0] for row in rows]
    beside = [_steps(row)[1] for row in rows]
    mixed = experts_of(scene, 1) is not None
    dip = next((place for place in between if gains[place] < gains[first]), None)
    if dip is not None:
        found = [_further_experts(rows[dip], scene) if mixed else f"First {USE_UP}."]
        causes = ([LIGHTER] if beside[last] < beside[dip] else []) + (
            ["a large batch reads most experts anyway"] if mixed and verify[last] < verify[dip] else []
        )
        return [*found, f"Then {' and '.join(causes)}."] if causes else found
    if between:
        return [f"First {LIGHTER}, then {USE_UP}."]
    if gains[last] <= gains[first]:
        further = _extra_experts(rows[last], scene) if mixed else 0.0
        return [
            _further_experts(rows[last], scene)
            if further > HALF * (verify[last] - 1)
            else f"In a large batch {USE_UP}."
        ]
    found = [f"{LIGHTER.capitalize()}."] if beside[last] < beside[first] else []
    if mixed and verify[last] < verify[first]:
        found.append("A large batch reads most experts anyway.")
    step = scene.decode(int(number(rows[last]["streams"])), scene.context)
    contexts = time_of(of(step, ["attention"])) / time_of(step)
    if contexts > HALF:
        found.append(
            "The rows of others do not use up the slack: attention, which reads K and V of a sequence once for all its rows, has "
            f"{share(contexts)} of the step."
        )
    return found


def _extra_experts(row: Mapping[str, Cell], scene: Scene) -> float:
    """Return the decode steps that verification takes for experts which a decode step does not read, or with more rows each."""
    streams, drafts = int(number(row["streams"])), int(number(row["draft_tokens"]))
    work = verify_work(streams, scene.context, drafts, scene.parameters.windows)
    verified = time_of(of(step_operators(scene.parameters, work), ["experts"]))
    plain = scene.decode(streams, scene.context)
    return (verified - time_of(of(plain, ["experts"]))) / time_of(plain)


def _further_experts(row: Mapping[str, Cell], scene: Scene) -> str:
    """Return how many more experts verification reads than a decode step, and what that takes."""
    streams, drafts = int(number(row["streams"])), int(number(row["draft_tokens"]))
    one, several = experts_of(scene, streams), experts_of(scene, streams * (drafts + 1))
    assert one is not None
    assert several is not None
    return (
        f"Further rows choose further experts, and those are read too: with {plural(streams, 'stream')} a layer reads "
        f"{significant(one.touched)} of its {count(one.all)} experts for one row of each, {significant(several.touched)} for {drafts + 1} "
        f"rows, and this alone takes {significant(_extra_experts(row, scene))} decode steps."
    )
