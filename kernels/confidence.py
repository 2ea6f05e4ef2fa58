"""Token, probability, entropy and margin of logit rows in one pass; no softmax is kept.

The probability is w / (w + s), w the weight of the best token and s the sum of all others: s is
summed without the best token, so that rows whose confidences round to 1.0 in float32 still have
an order.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from dllmx.kernels.compiled import Variant
from dllmx.kernels.language import jit, next_power_of_2, tl

MOST_COLUMNS = 4096  # of the vocabulary at a time; a thread then has 8
STAGES = 3  # loads in flight: one multiprocessor must stream a whole row


class Confidence(NamedTuple):
    """``token`` [N] int64; ``probability``, ``entropy``, ``margin``, ``current`` [N] float64.

    The last three are None where they were not asked for; ``current`` is the probability of a
    given token of each row.
    """

    token: Tensor
    probability: Tensor
    entropy: Tensor | None = None
    margin: Tensor | None = None
    current: Tensor | None = None


def confidence_torch(
    logits: Tensor,
    forbidden: int,
    with_entropy: bool = False,
    with_margin: bool = False,
    suppressed: tuple[int, ...] = (),
    noise: Tensor | None = None,
    temperature: float = 1.0,
) -> Confidence:
    """Best token of each row of ``logits`` [N, V] (float32 is overwritten), never ``forbidden``.

    The forbidden token keeps its share of the probability mass. -inf logits have none, nor have
    the ids ``suppressed``. Entropy is in nats; margin is the best minus the second-best
    probability (of tokens not forbidden). A NaN in a row, or no token to choose, gives NaN.

    With ``noise`` [N, V] the token is the argmax of logits / ``temperature`` + noise, added in
    float64 (Gumbel noise makes it a sample). All measures stay those of the logits without
    temperature and noise: the probability is the drawn token's, entropy and margin the row's.
    """
    logits = _suppress(logits.float(), suppressed)
    drawn = None if noise is None else _draw(logits, forbidden, noise, temperature)
    mass = logits[:, forbidden].clone()
    logits[:, forbidden] = -torch.inf
    best, token = logits.max(dim=-1)
    second = _second_best(logits, token) if with_margin else None
    logits[:, forbidden] = mass
    highest = torch.maximum(best, mass)  # the forbidden token's logit may be above the best
    relative = logits.sub_(highest[:, None])  # [N, V]
    of_drawn = None if drawn is None else relative.gather(1, drawn[:, None])[:, 0].double()
    weight = relative.exp()
    weight.scatter_(1, token[:, None], 0.0)
    rest = weight.sum(-1, dtype=torch.float64)
    of_best = (best - highest).double()
    total = (of_best.exp() + rest).masked_fill(best == -torch.inf, torch.nan)
    entropy = None
    if with_entropy:
        moment = (weight * relative.clamp_(min=-1e4)).sum(-1, dtype=torch.float64)
        moment += of_best.exp() * of_best.clamp(min=-1e4)
        entropy = torch.log1p(rest + torch.expm1(of_best)) - moment / total
    margin = None
    if second is not None:
        margin = (of_best.exp() - (second - highest).double().exp()) / total
    if drawn is None or of_drawn is None:
        return Confidence(token, of_best.exp() / total, entropy, margin)
    return Confidence(drawn, of_drawn.exp() / total, entropy, margin)


def _suppress(logits: Tensor, suppressed: tuple[int, ...]) -> Tensor:
    for token in suppressed:
        logits[:, token] = -torch.inf
    return logits


def _draw(logits: Tensor, forbidden: int, noise: Tensor, temperature: float) -> Tensor:
    perturbed = (logits / temperature).double() + noise.double()
    perturbed[:, forbidden] = -torch.inf
    return perturbed.argmax(-1)


def _second_best(logits: Tensor, token: Tensor) -> Tensor:
    kept = logits.gather(1, token[:, None])
    logits.scatter_(1, token[:, None], -torch.inf)
    second = logits.max(dim=-1).values
    logits.scatter_(1, token[:, None], kept)
    return second


def probability_of_torch(logits: Tensor, token: Tensor, suppressed: tuple[int, ...] = ()) -> Tensor:
    """Probability [N] float64 of ``token`` [N] under ``logits`` [N, V] (float32 is overwritten).

    A token whose logit is -inf, or that is ``suppressed``, has probability 0.
    """
    logits = _suppress(logits.float(), suppressed)
    chosen = logits.gather(1, token[:, None])  # [N, 1]
    impossible = chosen[:, 0] == -torch.inf
    weight = logits.sub_(chosen.masked_fill(impossible[:, None], 0.0)).exp_()
    weight.scatter_(1, token[:, None], 0.0)
    probability = 1 / (1 + weight.sum(-1, dtype=torch.float64))
    return probability.masked_fill(impossible, 0.0)


@jit
def possible(x, token, SUPPRESSED: tl.constexpr, FLOOR: tl.constexpr):  # type: ignore[no-untyped-def]
    """Logits ``x`` of ids ``token`` in float32; FLOOR where they are -inf or suppressed."""
    x = x.to(tl.float32)
    x = tl.where(x < FLOOR, FLOOR, x)  # keeps a NaN, which a maximum would not
    for index in tl.static_range(len(SUPPRESSED)):
        x = tl.where(token == SUPPRESSED[index], FLOOR, x)
    return x


@jit
def scan_row(  # type: ignore[no-untyped-def]
    logits, noise, vocab, excluded, temperature,
    SUPPRESSED: tl.constexpr, ENTROPY: tl.constexpr, MARGIN: tl.constexpr, NOISE: tl.constexpr,
    BLOCK: tl.constexpr, STAGES: tl.constexpr, FLOOR: tl.constexpr,
):  # fmt: skip
    """One pass over a row without the id ``excluded``; see ``merge_lanes`` for what it returns.

    Every lane keeps the best of its columns and, relative to it, the weight ``rest`` of its
    other columns and their ``moment``, the sum of weight * (logit - best); one exponential a
    column serves both when the best stays and when it is replaced.
    """
    lane = tl.arange(0, BLOCK)
    best = tl.full([BLOCK], FLOOR, tl.float32)
    second = tl.full([BLOCK], FLOOR, tl.float32)
    rest = tl.zeros([BLOCK], tl.float32)
    moment = tl.zeros([BLOCK], tl.float32)
    token = tl.zeros([BLOCK], tl.int32)
    score = tl.full([BLOCK], float("-inf"), tl.float64)
    drawn = tl.zeros([BLOCK], tl.int32)
    for start in tl.range(0, vocab, BLOCK, num_stages=STAGES):
        column = start + lane
        inside = column < vocab
        x = tl.load(logits + column, mask=inside, other=float("-inf"))
        x = possible(x, column, SUPPRESSED, FLOOR)
        x = tl.where(column == excluded, FLOOR, x)
        better = x > best
        gap = -tl.abs(x - best)
        weight = tl.exp(gap)
        if ENTROPY:
            replaced = weight * (moment + (rest + 1.0) * gap)
            moment = tl.where(better, replaced, moment + weight * gap)
        if MARGIN:
            second = tl.where(better, best, tl.maximum(second, x))
        rest = tl.where(better, (rest + 1.0) * weight, rest + weight)
        token = tl.where(better, column, token)
        best = tl.where(better, x, best)
        if NOISE:
            added = tl.load(noise + column, mask=inside, other=0.0).to(tl.float64)
            perturbed = tl.div_rn(x, temperature).to(tl.float64) + added
            improved = perturbed > score
            score = tl.where(improved, perturbed, score)
            drawn = tl.where(improved, column, drawn)
    top, chosen, rest, moment, second = merge_lanes(best, token, rest, moment, second, vocab)
    if NOISE:
        chosen = tl.min(tl.where(score == tl.max(score, 0), drawn, vocab), 0)
    return top, chosen, rest, moment, second


@jit
def merge_lanes(best, token, rest, moment, second, vocab):  # type: ignore[no-untyped-def]
    """Best logit, its token, rest and moment of all other tokens, and the second-best logit."""
    top = tl.max(best, 0)
    chosen = tl.min(tl.where(best == top, token, vocab), 0)
    gap = best - top
    scale = tl.exp(gap)
    winner = (best == top) & (token == chosen)
    joined = tl.where(winner, 0.0, scale)  # the other lanes' best tokens
    second = tl.max(tl.where(winner, second, best), 0)
    moment = tl.sum(scale * (moment + rest * gap) + joined * gap, 0)
    rest = tl.sum(rest * scale + joined, 0)
    return top, chosen, rest, moment, second


@jit
def log1p(z):  # type: ignore[no-untyped-def]
    """log(1 + z) in float64 without loss where z is small."""
    sum = 1.0 + z
    return tl.where(sum == 1.0, z, tl.log(sum) * (z / tl.where(sum == 1.0, 1.0, sum - 1.0)))


@jit
def confidence_kernel(  # type: ignore[no-untyped-def]
    logits, noise, token, probability, entropy, margin,
    row_stride, noise_stride, vocab, forbidden, temperature,
    SUPPRESSED: tl.constexpr, ENTROPY: tl.constexpr, MARGIN: tl.constexpr, NOISE: tl.constexpr,
    BLOCK: tl.constexpr, STAGES: tl.constexpr, FLOOR: tl.constexpr = -1.0e30,
):  # fmt: skip
    """One program a row; the sums are float32, what is made of them at the end float64."""
    row = tl.program_id(0).to(tl.int64)
    logits += row * row_stride
    if NOISE:
        noise += row * noise_stride
    top, chosen, rest, moment, second = scan_row(
        logits, noise, vocab, forbidden, temperature,
        SUPPRESSED, ENTROPY, MARGIN, NOISE, BLOCK, STAGES, FLOOR,
    )  # fmt: skip
    mass = possible(tl.load(logits + forbidden), forbidden, SUPPRESSED, FLOOR)
    highest = tl.maximum(top, mass)
    of_best = (top - highest).to(tl.float64)
    of_mass = (mass - highest).to(tl.float64)
    best_weight, mass_weight = tl.exp(of_best), tl.exp(of_mass)
    rest = rest.to(tl.float64)
    others = rest * best_weight + mass_weight
    total = best_weight + others
    total = tl.where(top <= FLOOR, float("nan"), total)  # no token to choose in this row
    tl.store(token + row, chosen.to(tl.int64))
    drawn_weight = best_weight
    if NOISE:
        of_drawn = possible(tl.load(logits + chosen), chosen, SUPPRESSED, FLOOR) - highest
        drawn_weight = tl.exp(of_drawn.to(tl.float64))
    tl.store(probability + row, drawn_weight / total)
    if ENTROPY:
        moment = best_weight * (moment.to(tl.float64) + (rest + 1.0) * of_best)
        moment += mass_weight * of_mass
        tl.store(entropy + row, log1p(others + (best_weight - 1.0)) - moment / total)
    if MARGIN:
        of_second = (second - highest).to(tl.float64)
        tl.store(margin + row, (best_weight - tl.exp(of_second)) / total)


@jit
def probability_kernel(  # type: ignore[no-untyped-def]
    logits, token, probability, row_stride, vocab,
    SUPPRESSED: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
    FLOOR: tl.constexpr = -1.0e30,
):  # fmt: skip
    """One program a row: the row is scanned without the token, whose weight is added last."""
    row = tl.program_id(0).to(tl.int64)
    logits += row * row_stride
    target = tl.load(token + row).to(tl.int32)
    top, _, rest, _, _ = scan_row(
        logits, logits, vocab, target, 1.0,
        SUPPRESSED, False, False, False, BLOCK, STAGES, FLOOR,
    )  # fmt: skip
    own = possible(tl.load(logits + target), target, SUPPRESSED, FLOOR)
    highest = tl.maximum(top, own)
    weight = tl.exp((own - highest).to(tl.float64))
    others = (1.0 + rest.to(tl.float64)) * tl.exp((top - highest).to(tl.float64))
    tl.store(probability + row, tl.where(own <= FLOOR, 0.0, weight / (weight + others)))


def confidence_triton(
    logits: Tensor,
    forbidden: int,
    with_entropy: bool = False,
    with_margin: bool = False,
    suppressed: tuple[int, ...] = (),
    noise: Tensor | None = None,
    temperature: float = 1.0,
) -> Confidence:
    """``confidence_torch`` in one pass; ``logits`` of any float dtype, which stay as they are.

    Rows may have any stride. The token of a row with a NaN is not defined.
    """
    _check_rows(logits, noise)
    rows, vocab = logits.shape
    token = torch.empty(rows, dtype=torch.int64, device=logits.device)
    probability = torch.empty(rows, dtype=torch.float64, device=logits.device)
    entropy = torch.empty_like(probability) if with_entropy else None
    margin = torch.empty_like(probability) if with_margin else None
    if rows:
        confidence_kernel[(rows,)](
            logits, noise, token, probability, entropy, margin,
            logits.stride(0), 0 if noise is None else noise.stride(0),
            vocab, forbidden % vocab, float(temperature),
            SUPPRESSED=suppressed, ENTROPY=with_entropy, MARGIN=with_margin,
            NOISE=noise is not None, **_settings(vocab),
        )  # fmt: skip
    return Confidence(token, probability, entropy, margin)


def probability_of_triton(
    logits: Tensor, token: Tensor, suppressed: tuple[int, ...] = ()
) -> Tensor:
    """``probability_of_torch`` in one pass; ``logits`` of any float dtype stay as they are."""
    _check_rows(logits, None)
    rows, vocab = logits.shape
    probability = torch.empty(rows, dtype=torch.float64, device=logits.device)
    if rows:
        probability_kernel[(rows,)](
            logits, token.contiguous(), probability, logits.stride(0), vocab,
            SUPPRESSED=suppressed, **_settings(vocab),
        )  # fmt: skip
    return probability


def _check_rows(logits: Tensor, noise: Tensor | None) -> None:
    for name, tensor in (("logits", logits), ("noise", noise)):
        if tensor is not None and (tensor.shape != logits.shape or tensor.stride(-1) != 1):
            raise ValueError(
                f"{name} {tuple(tensor.shape)} with strides {tensor.stride()}: need "
                f"{tuple(logits.shape)} with neighbouring columns side by side"
            )


def _settings(vocab: int) -> dict[str, int]:
    block = min(MOST_COLUMNS, max(next_power_of_2(vocab), 32))
    return {"BLOCK": block, "STAGES": STAGES, "num_warps": min(max(block // 256, 1), 16)}


def _confidence_variant(name: str, logits: str, noise: str | None, measures: bool) -> Variant:
    result = "*fp64" if measures else "constexpr"
    absent = {} if measures else {"entropy": None, "margin": None}
    return Variant(
        name=f"confidence, {name}",
        kernel=confidence_kernel,
        signature={
            "logits": logits, "noise": noise or "constexpr", "token": "*i64",
            "probability": "*fp64", "entropy": result, "margin": result,
            "row_stride": "i32", "noise_stride": "i32", "vocab": "i32", "forbidden": "i32",
            "temperature": "fp32",
            **dict.fromkeys(
                ("SUPPRESSED", "ENTROPY", "MARGIN", "NOISE", "BLOCK", "STAGES", "FLOOR"),
                "constexpr",
            ),
        },
        constants={
            "SUPPRESSED": (126081,), "ENTROPY": measures, "MARGIN": measures,
            "NOISE": noise is not None, "BLOCK": MOST_COLUMNS, "STAGES": STAGES, "FLOOR": -1.0e30,
            **({} if noise else {"noise": None}), **absent,
        },
        registers=128,
        warps=16,
        stages=STAGES,
        aligned=("row_stride", "noise_stride", "vocab"),
    )  # fmt: skip


VARIANTS: tuple[Variant, ...] = (
    _confidence_variant("bf16 logits", "*bf16", None, measures=False),
    _confidence_variant("all measures of float32 logits", "*fp32", None, measures=True),
    _confidence_variant("drawn with float64 noise", "*fp32", "*fp64", measures=True),
    Variant(
        name="probability_of, float32 logits",
        kernel=probability_kernel,
        signature={
            "logits": "*fp32", "token": "*i64", "probability": "*fp64", "row_stride": "i32",
            "vocab": "i32",
            **dict.fromkeys(("SUPPRESSED", "BLOCK", "STAGES", "FLOOR"), "constexpr"),
        },
        constants={"SUPPRESSED": (), "BLOCK": MOST_COLUMNS, "STAGES": STAGES, "FLOOR": -1.0e30},
        registers=128,
        warps=16,
        stages=STAGES,
        aligned=("row_stride", "vocab"),
    ),
)  # fmt: skip
