"""The decode loop of one batch: block, plan, forward, select, apply, after, trace."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dllmx.config.schema import RunConfig
from dllmx.decode.batch import Parts, Request, build_parts, build_sequences
from dllmx.decode.prediction import guided, propose
from dllmx.engine.engine import Engine
from dllmx.engine.interface import (
    NOTHING,
    CachePolicy,
    Commit,
    LayerContext,
    Plan,
    Prediction,
    View,
)
from dllmx.engine.rows import RowSet, SlotSet
from dllmx.engine.sequence import SequenceState
from dllmx.engine.trace import StepRecord
from dllmx.errors import RunError
from dllmx.kernels.confidence import Confidence
from dllmx.models.model import Model

LOGIT_ROWS = 256
"""Rows whose logits exist at one time; bounds the memory of the largest vocabulary."""


@dataclass(frozen=True, slots=True)
class Work:
    """What one sequence asks of the next forward, in its own positions.

    ``rows`` sorted, None for all; ``wanted`` [N] positions to predict, ``source`` [N] the rows
    whose logits predict them (the same, or one before in shifted models).
    """

    member: int
    plan: Plan
    rows: Tensor | None
    wanted: Tensor
    source: Tensor


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came back for one ``Work``: its prediction and what the forward cost."""

    work: Work
    prediction: Prediction
    row_layers: int
    row_count: int


class Session:
    """A batch in the middle of its decode; ``step`` advances every unfinished sequence by one."""

    def __init__(self, model: Model, config: RunConfig, requests: Sequence[Request]) -> None:
        self.model = model
        self.config = config
        batch = build_sequences(model, config, requests)
        self.sequences: list[SequenceState] = batch.sequences
        self.noise: list[torch.Generator] = batch.noise
        self.parts: list[Parts] = [build_parts(config) for _ in requests]
        self.needs = self.parts[0].cache.needs
        self.rule_needs = self.parts[0].commit.needs
        self.host = batch.host
        self.given = batch.given
        self.engine = Engine(model, batch.canvas, batch.padding, self.needs.store)
        self.views = [View(state) for state in self.sequences]
        self.finished = [False] * len(requests)
        for parts, view in zip(self.parts, self.views, strict=True):
            parts.cache.begin(view)

    def clone(self) -> Session:
        """An independent copy that continues exactly as this one; weights and config are shared."""
        shared = {id(self.model): self.model, id(self.config): self.config}
        return copy.deepcopy(self, shared)

    @torch.inference_mode()
    def step(self) -> list[int]:
        """Advance all unfinished sequences by one forward; the members that took part."""
        active = [i for i in range(len(self.sequences)) if self._enter_block(i)]
        works = [self._work(i) for i in active]
        if works:
            self._upload()
            for outcome in self._run(works):
                self._conclude(outcome)
        return active

    def _enter_block(self, member: int) -> bool:
        """Make sure that the member has a block with masks; False when it is finished."""
        if self.finished[member]:
            return False
        state, parts, view = self.sequences[member], self.parts[member], self.views[member]
        while not state.eligible_masks():
            block = parts.sampler.next_block(view)
            if block is None:
                self.finished[member] = True
                return False
            state.enter(block)
            parts.cache.enter_block(view)
        return True

    def _work(self, member: int) -> Work:
        view, state = self.views[member], self.sequences[member]
        plan = self.parts[member].cache.plan(view)
        wanted = self._wanted(view)
        source = (wanted - 1).clamp(min=0) if self.model.shape.shifted else wanted
        rows = plan.rows
        if rows is not None:
            if rows.numel() == 0:
                raise RunError(f"{state.id}: the cache policy planned a forward without rows.")
            rows = rows.unique()
            if self.model.shape.shifted:
                rows = _with_sources(rows, wanted, source)
            if not self.needs.layer_hook:
                fresh = torch.isin(source, rows)
                wanted, source = wanted[fresh], source[fresh]
        return Work(member, plan, rows, wanted, source)

    def _wanted(self, view: View) -> Tensor:
        block = view.block
        read = self.rule_needs.read
        if read == "block":
            return torch.arange(block.lo, block.hi)
        masks = view.is_mask.nonzero()[:, 0]
        if read == "masks":
            return masks
        return masks[(masks >= block.eligible_from) & (masks < block.hi)]

    def _upload(self) -> None:
        if self._guided:
            count = len(self.sequences)
            without_prompt = self.host[:count].masked_fill(self.given, self.model.shape.mask_id)
            self.host[count:] = without_prompt
        if self.engine.canvas is not self.host:
            self.engine.canvas.copy_(self.host, non_blocking=True)

    def _run(self, works: list[Work]) -> list[Outcome]:
        if self.needs.layer_hook or self.needs.attention is not None:
            return [self._run_hooked(work) for work in works]
        outcomes: list[Outcome] = []
        for group in _grouped(works):
            outcomes.extend(self._run_group(group))
        return outcomes

    def _run_group(self, group: list[Work]) -> list[Outcome]:
        slots, rows = self._slots(group), self._row_set(group)
        hidden = self.engine.forward(slots, rows, self._visible(group[0]))
        index = [self._row_index(work, rows, i) for i, work in enumerate(group)]
        proposals = self._propose(group, hidden, index)
        layers = self.model.shape.layers
        outcomes = []
        for work, proposal in zip(group, proposals, strict=True):
            count = self._length(work) if work.rows is None else work.rows.numel()
            prediction = self._prediction(work, proposal)
            outcomes.append(Outcome(work, prediction, count * layers, count))
        return outcomes

    def _run_hooked(self, work: Work) -> Outcome:
        member = work.member
        view, cache, padding = self.views[member], self.parts[member].cache, self._padding(member)
        rows = work.rows if work.rows is not None else torch.arange(self._length(work))
        block_rows = work.source + padding
        hook = _own_hook(cache, view, padding) if self.needs.layer_hook else None
        hidden, columns, row_layers, readouts = self.engine.forward_hooked(
            member,
            (rows + padding).to(self.model.device),
            hook,
            self.needs.attention,
            block_rows.to(self.model.device),
        )
        self.sequences[member].attention = readouts
        final = columns.cpu() - padding
        fresh = torch.isin(work.source, final)
        work = Work(member, work.plan, work.rows, work.wanted[fresh], work.source[fresh])
        index = torch.searchsorted(final, work.source)
        proposal = self._propose([work], hidden[None], [index])[0]
        return Outcome(work, self._prediction(work, proposal), row_layers, rows.numel())

    def _propose(self, group: list[Work], hidden: Tensor, index: list[Tensor]) -> list[Confidence]:
        """Proposals of each work, on the host: one transfer for the group."""
        picked = self._pick(hidden, index)
        other = self._pick(hidden[len(group) :], index) if self._guided else picked
        noise = [(part.numel(), self.noise[w.member]) for part, w in zip(index, group, strict=True)]
        chunks = []
        for lo in range(0, picked.shape[0], LOGIT_ROWS):
            hi = lo + LOGIT_ROWS
            logits = self.model.head_logits(picked[lo:hi]).float()
            if self._guided:
                base = self.model.head_logits(other[lo:hi]).float()
                logits = guided(logits, base, self.config.sampler.guidance)
            chunks.append(
                propose(
                    logits,
                    self.config.sampler,
                    self.model.shape,
                    self.rule_needs.measures,
                    _window(noise, lo, hi),
                )
            )
        return _to_host(chunks, [part.numel() for part in index])

    def _pick(self, hidden: Tensor, index: list[Tensor]) -> Tensor:
        parts = [hidden[i].index_select(0, rows.to(hidden.device)) for i, rows in enumerate(index)]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _prediction(self, work: Work, proposal: Confidence) -> Prediction:
        state = self.sequences[work.member]
        block = state.block
        assert block is not None
        inside = (work.wanted >= block.eligible_from) & (work.wanted < block.hi)
        eligible = inside & (state.tokens[work.wanted] == state.mask_id)
        if bool(proposal.probability.isnan().any()):
            raise RunError(
                f"{state.id}: NaN logits at step {state.step}. "
                "Check the checkpoint, or try hardware.dtype=float32."
            )
        return Prediction(
            work.wanted,
            proposal.token,
            proposal.probability,
            eligible,
            proposal.entropy,
            proposal.margin,
        )

    def _conclude(self, outcome: Outcome) -> None:
        """Select, apply, notify, count and record one sequence's step."""
        member = outcome.work.member
        state, parts, view = self.sequences[member], self.parts[member], self.views[member]
        rows = outcome.work.rows
        state.computed_at[slice(None) if rows is None else rows] = state.step
        commit = parts.commit.select(view, outcome.prediction)
        forced = state.must_force(commit)
        if forced:
            commit = _best(state, outcome.prediction)
            state.counters.forced += 1
        state.apply(commit, self.rule_needs.replaces)
        filled = self._fill(state)
        is_full = rows is None
        state.counters.count_forward(
            outcome.row_layers, state.tokens.shape[0], self.model.shape.layers, is_full
        )
        state.counters.host_syncs += 1
        state.records.append(_record(state, outcome, commit, forced, filled))
        state.step += 1
        state.block_step += 1
        parts.cache.after(view)
        if commit.stop:
            self.finished[member] = True

    def _fill(self, state: SequenceState) -> list[int]:
        """End-of-text handling: positions that the sampler sets to end-of-text now."""
        mode = self.config.sampler.eos
        if mode == "none" or (mode == "stop" and state.eligible_masks()):
            return []
        response = state.tokens[state.prompt_length :]
        ends = (response == state.eos_id).nonzero()
        if not ends.numel():
            return []
        first = state.prompt_length + int(ends[0])
        later = first + (state.tokens[first:] == state.mask_id).nonzero()[:, 0]
        state.tokens[later] = state.eos_id
        positions: list[int] = later.tolist()
        return positions

    @property
    def _guided(self) -> bool:
        return bool(self.config.sampler.guidance > 0)

    def _padding(self, member: int) -> int:
        return self.engine.padding[member]

    def _length(self, work: Work) -> int:
        return self.sequences[work.member].tokens.shape[0]

    def _slots(self, group: list[Work]) -> SlotSet:
        members = [work.member for work in group]
        if self._guided:
            members += [member + len(self.sequences) for member in members]
        return SlotSet(tuple(members))

    def _row_set(self, group: list[Work]) -> RowSet:
        copies = 2 if self._guided else 1
        device = self.model.device
        if group[0].rows is None:
            return RowSet.of_span(0, self.host.shape[1], len(group) * copies, device)
        columns = [w.rows + self._padding(w.member) for w in group if w.rows is not None]
        return RowSet.of_columns(columns * copies, device)

    def _row_index(self, work: Work, rows: RowSet, place: int) -> Tensor:
        """Where the source rows of ``work`` stand among the computed rows."""
        columns = work.source + self._padding(work.member)
        if rows.span is not None:
            return columns - rows.span[0]
        assert work.rows is not None
        return torch.searchsorted(work.rows, work.source)

    def _visible(self, work: Work) -> Tensor | None:
        if work.plan.visible is None:
            return None
        return (work.plan.visible + self._padding(work.member)).to(self.model.device)


def _with_sources(rows: Tensor, wanted: Tensor, source: Tensor) -> Tensor:
    """``rows`` and, for each wanted position among them, the row that predicts it."""
    needed = source[torch.isin(wanted, rows)]
    missing = needed[~torch.isin(needed, rows)]
    return torch.cat([rows, missing]).unique() if missing.numel() else rows


def _grouped(works: Iterable[Work]) -> list[list[Work]]:
    """Works that can share a forward: all full ones, others by row count; absent rows alone."""
    groups: dict[object, list[Work]] = {}
    for work in works:
        key: object = None if work.rows is None else work.rows.numel()
        if work.plan.visible is not None:
            key = ("alone", work.member)
        groups.setdefault(key, []).append(work)
    return list(groups.values())


def _own_hook(
    cache: CachePolicy, view: View, padding: int
) -> Callable[[LayerContext], Tensor | None]:
    """The policy's layer hook, translated between its own positions and canvas columns."""

    def hook(context: LayerContext) -> Tensor | None:
        stored = {
            name: tensor.narrow(-2, padding, tensor.shape[-2] - padding)
            for name, tensor in context.store.items()
        }
        own = LayerContext(
            context.layer,
            context.rows - padding,
            context.x,
            context.q,
            context.k,
            context.v,
            stored,
        )
        rows = cache.on_layer(view, own)
        return None if rows is None else rows + padding

    return hook


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


def _to_host(chunks: list[Confidence], sizes: list[int]) -> list[Confidence]:
    """One packed transfer to the host, split by sequence."""
    if not chunks:
        empty = torch.empty(0, dtype=torch.float64)
        return [Confidence(NOTHING, empty, None, None) for _ in sizes]
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


def _best(state: SequenceState, prediction: Prediction) -> Commit:
    """The best eligible token, committed so that the decode goes on."""
    candidates = prediction.restricted(prediction.eligible)
    if not candidates.positions.numel():
        raise RunError(
            f"{state.id}: step {state.step} computed no masked row of the block, so nothing can "
            "be committed. The cache policy must plan rows of the block."
        )
    return candidates.commit(candidates.confidence.argmax()[None])


def _record(
    state: SequenceState, outcome: Outcome, commit: Commit, forced: bool, filled: list[int]
) -> StepRecord:
    order = commit.positions.argsort()
    positions = commit.positions[order]
    pairs = list(zip(positions.tolist(), commit.tokens[order].tolist(), strict=True))
    prediction, block, rows = outcome.prediction, state.block, outcome.work.rows
    assert block is not None
    seen = torch.searchsorted(prediction.positions, positions)
    return StepRecord(
        commit=pairs,
        remask=commit.remask.tolist(),
        confidence=prediction.confidence[seen].tolist(),
        rows=outcome.row_count,
        row_positions=None if rows is None else rows.tolist(),
        predicted=prediction.positions.numel(),
        full=rows is None,
        reason=outcome.work.plan.reason,
        forced=forced,
        filled=filled,
        block=(block.lo, block.hi),
        note=dict(commit.note),
    )
