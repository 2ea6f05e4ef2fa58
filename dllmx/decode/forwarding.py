"""From works to predictions: groups, forwards, output head, one transfer to the host a group."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dllmx.decode.prediction import guided, is_plain, propose
from dllmx.decode.work import Outcome, Work, grouped
from dllmx.engine.interface import NOTHING, LayerContext, Prediction, Rows
from dllmx.engine.rows import RowSet, SlotSet
from dllmx.errors import RunError
from dllmx.kernels.confidence import Confidence

if TYPE_CHECKING:
    from dllmx.decode.session import Session

LOGIT_ROWS = 256
"""Rows whose logits exist at one time; bounds the memory of the largest vocabulary."""

MEASURED_LOGITS = {"cpu": 2**18, "cuda": 2**22}
"""Logits that plain PyTorch measures at one time, as it keeps several values of each: few on the
CPU, where they stay in its cache, more on a GPU, where every operation costs a launch.
"""


def run_works(session: Session, works: Sequence[Work]) -> list[Outcome]:
    """One main forward for every work; works with equal row counts share one.

    Raises RunError for NaN logits.
    """
    upload(session)
    plain, outcomes = [], []
    for work in works:
        if _hooks(session, work) or _reads_out(session, work):
            outcomes.append(_run_hooked(session, work))
        else:
            plain.append(work)
    return outcomes + [o for group in grouped(plain) for o in _run_group(session, group)]


def _hooks(session: Session, work: Work) -> bool:
    return session.needs.layer_hook and work.plan.hook


def _reads_out(session: Session, work: Work) -> bool:
    return session.needs.attention is not None and work.plan.read_out


def upload(session: Session) -> None:
    """Bring the device's canvas up to date; with guidance, also the copies without prompt."""
    if session.guided:
        count = len(session.sequences)
        mask_id = session.model.shape.mask_id
        session.host[count:] = session.host[:count].masked_fill(session.given, mask_id)
    if session.engine.canvas is not session.host:
        session.engine.canvas.copy_(session.host, non_blocking=True)


def _run_group(session: Session, group: list[Work]) -> list[Outcome]:
    rows = _row_set(session, group)
    hidden = session.engine.forward(_slots(session, group), rows, _visible(session, group[0]))
    group = [work if work.rows is None else work.fresh_only(work.rows) for work in group]
    index = [_row_index(session, work, rows) for work in group]
    proposals = _propose(session, group, hidden, index)
    layers = session.model.shape.layers
    return [
        Outcome(work, _prediction(session, work, proposal), work.row_count * layers)
        for work, proposal in zip(group, proposals, strict=True)
    ]


def _run_hooked(session: Session, work: Work) -> Outcome:
    padding, device = session.engine.padding[work.member], session.model.device
    if work.plan.visible is not None:
        raise RunError("A cache policy with a layer hook or read-out cannot hide rows (visible).")
    rows = work.rows if work.rows is not None else torch.arange(work.length)
    block = session.views[work.member].block
    inside = rows[(rows >= block.lo) & (rows < block.hi)]
    hidden, columns, row_layers, readouts = session.engine.forward_hooked(
        work.member,
        (rows + padding).to(device),
        _own_hook(session, work.member, padding) if _hooks(session, work) else None,
        session.needs.attention if _reads_out(session, work) else None,
        (inside + padding).to(device),
    )
    session.sequences[work.member].attention = readouts
    computed = columns.cpu() - padding
    work = work.fresh_only(computed)
    index = torch.searchsorted(computed, work.source)
    proposal = _propose(session, [work], hidden[None], [index])[0]
    return Outcome(work, _prediction(session, work, proposal), row_layers)


def _own_hook(session: Session, member: int, padding: int) -> Callable[[LayerContext], Rows | None]:
    """The policy's layer hook, translated between its own positions and canvas columns."""
    cache, view = session.parts[member].cache, session.views[member]

    def hook(context: LayerContext) -> Rows | None:
        stored = {
            name: tensor.narrow(-2, padding, tensor.shape[-2] - padding)
            for name, tensor in context.store.items()
        }
        own = dataclasses.replace(context, rows=context.rows - padding, store=stored)
        rows = cache.on_layer(view, own)
        if rows is None or isinstance(rows, Tensor):
            return None if rows is None else Rows(rows + padding)
        held = None if rows.held is None else rows.held + padding
        return Rows(rows.positions + padding, held, rows.inputs)

    return hook


def _slots(session: Session, group: Sequence[Work]) -> SlotSet:
    members = [work.member for work in group]
    if session.guided:
        members += [member + len(session.sequences) for member in members]
    return SlotSet(tuple(members))


def _row_set(session: Session, group: Sequence[Work]) -> RowSet:
    copies = 2 if session.guided else 1
    device = session.model.device
    if group[0].rows is None:
        return RowSet.of_span(0, session.host.shape[1], len(group) * copies, device)
    padding = session.engine.padding
    columns = [work.rows + padding[work.member] for work in group if work.rows is not None]
    return RowSet.of_columns(columns * copies, device)


def _row_index(session: Session, work: Work, rows: RowSet) -> Tensor:
    """Where the source rows of ``work`` stand among the computed rows."""
    if rows.span is not None:
        return work.source + session.engine.padding[work.member] - rows.span[0]
    assert work.rows is not None
    return torch.searchsorted(work.rows, work.source)


def _visible(session: Session, work: Work) -> Tensor | None:
    if work.plan.visible is None:
        return None
    return (work.plan.visible + session.engine.padding[work.member]).to(session.model.device)


def _propose(
    session: Session, group: Sequence[Work], hidden: Tensor, index: Sequence[Tensor]
) -> list[Confidence]:
    """Proposals of each work, on the host; ``index`` [N] picks from ``hidden`` [b, R, D]."""
    model, sampling = session.model, session.config.sampler
    measures = session.rule_needs.measures | session.needs.measures
    picked = _pick(hidden, index)  # [N, D]
    other = _pick(hidden[len(group) :], index) if session.guided else None
    noise = [
        (rows.numel(), session.noise[work.member]) for rows, work in zip(index, group, strict=True)
    ]
    standing = torch.cat([session.sequences[work.member].tokens[work.wanted] for work in group])
    standing = standing.to(model.device, non_blocking=True)
    found, size = [], _rows_at_once(session)
    for lo in range(0, picked.shape[0], LOGIT_ROWS):
        logits = model.head_logits(picked[lo : lo + LOGIT_ROWS])
        base = None if other is None else model.head_logits(other[lo : lo + LOGIT_ROWS])
        for start in range(0, logits.shape[0], size):
            chunk = slice(start, start + size)
            values = logits[chunk] if session.kernels.reads_all_dtypes else logits[chunk].float()
            if base is not None:
                values = guided(values.float(), base[chunk].float(), sampling.guidance)
            runs = _window(noise, lo + start, lo + start + size)
            current = standing[lo + start : lo + start + size]
            found.append(
                propose(values, sampling, model.shape, measures, runs, current, session.kernels)
            )
    return _to_host(found, [rows.numel() for rows in index])


def _rows_at_once(session: Session) -> int:
    """Rows whose logits are measured together: all of them where nothing else of them is kept."""
    if not session.kernels.overwrites_logits and is_plain(session.config.sampler):
        return LOGIT_ROWS
    logits = MEASURED_LOGITS[session.model.device.type]
    return max(1, logits // session.model.shape.vocab)


def _pick(hidden: Tensor, index: Sequence[Tensor]) -> Tensor:
    parts = [hidden[i].index_select(0, rows.to(hidden.device)) for i, rows in enumerate(index)]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _window(
    noise: list[tuple[int, torch.Generator]], lo: int, hi: int
) -> list[tuple[int, torch.Generator]]:
    """The part of the runs in ``noise`` that covers rows [lo, hi)."""
    runs, start = [], 0
    for count, generator in noise:
        covered = min(hi, start + count) - max(lo, start)
        if covered > 0:
            runs.append((covered, generator))
        start += count
    return runs


def _to_host(chunks: Sequence[Confidence], sizes: list[int]) -> list[Confidence]:
    """One packed transfer to the host, split by sequence."""
    if not chunks:
        empty = torch.empty(0, dtype=torch.float64)
        return [Confidence(NOTHING, empty) for _ in sizes]
    names = [name for name in Confidence._fields if getattr(chunks[0], name) is not None]
    packed = torch.stack(
        [torch.cat([getattr(chunk, name).double() for chunk in chunks]) for name in names]
    ).cpu()
    columns = dict(zip(names, packed, strict=True))
    columns["token"] = columns["token"].long()
    split = {name: column.split(sizes) for name, column in columns.items()}
    return [
        Confidence(*(split[name][i] if name in split else None for name in Confidence._fields))
        for i in range(len(sizes))
    ]


def _prediction(session: Session, work: Work, proposal: Confidence) -> Prediction:
    state = session.sequences[work.member]
    if bool(proposal.probability.isnan().any()):
        raise RunError(
            f"{state.id}: NaN logits at step {state.step}. "
            "Check the checkpoint, or try hardware.dtype=float32."
        )
    eligible = torch.isin(work.wanted, state.eligible())
    return Prediction(
        work.wanted,
        proposal.token,
        proposal.probability,
        eligible,
        proposal.entropy,
        proposal.margin,
        proposal.current,
    )
