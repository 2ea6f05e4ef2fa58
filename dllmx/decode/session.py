"""The decode loop of one batch: block, plan, forward, select, apply, after, trace."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch

from dllmx.config.schema import RunConfig
from dllmx.decode.batch import Parts, Request, build_parts, build_sequences
from dllmx.decode.forwarding import run_works
from dllmx.decode.work import Outcome, work_of
from dllmx.engine.engine import Engine
from dllmx.engine.interface import Commit, Prediction, View
from dllmx.engine.sequence import SequenceState
from dllmx.engine.trace import StepRecord
from dllmx.errors import RunError
from dllmx.kernels.choice import choose
from dllmx.models.model import Model


class Session:
    """A batch in the middle of its decode; ``step`` advances every unfinished sequence by one."""

    def __init__(self, model: Model, config: RunConfig, requests: Sequence[Request]) -> None:
        self.model = model
        self.config = config
        self.kernels = choose(config.hardware.kernels, model.device, config.hardware.attention)
        batch = build_sequences(model, config, requests)
        self.sequences: list[SequenceState] = batch.sequences
        self.noise: list[torch.Generator] = batch.noise
        self.parts: list[Parts] = [build_parts(config) for _ in requests]
        self.needs = self.parts[0].cache.needs
        self.rule_needs = self.parts[0].commit.needs
        for state in self.sequences:
            state.read_signals = self.needs.reads | self.rule_needs.reads
            state.kernels = self.kernels
        self.host = batch.host
        self.given = batch.given
        self.engine = Engine(
            model, batch.canvas, batch.padding, self.needs.store, kernels=self.kernels
        )
        self.views = [View(state) for state in self.sequences]
        self.finished = [False] * len(requests)
        for parts, view in zip(self.parts, self.views, strict=True):
            parts.cache.begin(view)

    @property
    def guided(self) -> bool:
        """Whether every sequence has a second slot, without its prompt."""
        return bool(self.config.sampler.guidance > 0)

    def clone(self) -> Session:
        """An independent copy that continues exactly as this one; weights and config are shared."""
        shared = {id(part): part for part in (self.model, self.config, self.kernels)}
        return copy.deepcopy(self, shared)

    @torch.inference_mode()
    def step(self) -> list[int]:
        """Advance all unfinished sequences by one forward; the members that took part."""
        active = [member for member in range(len(self.sequences)) if self._enter_block(member)]
        shifted, read = self.model.shape.shifted, self.rule_needs.read
        works = []
        for member in active:
            view = self.views[member]
            plan = self.parts[member].cache.plan(view)
            works.append(work_of(member, view, plan, read, shifted))
        for outcome in run_works(self, works):
            self._conclude(outcome)
        return active

    def _enter_block(self, member: int) -> bool:
        """Make sure that the member has a block with masks; False when it is finished."""
        if self.finished[member]:
            return False
        state, parts, view = self.sequences[member], self.parts[member], self.views[member]
        while not state.eligible().numel():
            block = parts.sampler.next_block(view)
            if block is None:
                self.finished[member] = True
                return False
            state.enter(block)
            parts.cache.enter_block(view)
        return True

    def _conclude(self, outcome: Outcome) -> None:
        """Select, apply, fill, count, record and notify for one sequence."""
        work = outcome.work
        state, parts, view = (
            self.sequences[work.member],
            self.parts[work.member],
            self.views[work.member],
        )
        state.computed_at[slice(None) if work.rows is None else work.rows] = state.step
        parts.cache.publish(view)
        commit = parts.commit.select(view, outcome.prediction)
        forced = state.must_force(commit)
        if forced:
            commit = _best(state, outcome.prediction)
            state.counters.forced += 1
        state.apply(commit, self.rule_needs.replaces)
        if outcome.prediction.entropy is not None:
            seen = torch.searchsorted(outcome.prediction.positions, state.committed_last)
            state.committed_entropy = outcome.prediction.entropy[seen]
        filled = state.fill_after_end(self.config.sampler.eos)
        layers = self.model.shape.layers
        state.counters.count_forward(outcome.row_layers, work.length, layers, work.rows is None)
        state.records.append(_record(state, outcome, commit, forced, filled))
        state.step += 1
        state.block_step += 1
        parts.cache.after(view)
        if commit.stop:
            self.finished[work.member] = True


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
    prediction, work = outcome.prediction, outcome.work
    seen = torch.searchsorted(prediction.positions, positions)
    assert state.block is not None
    return StepRecord(
        commit=pairs,
        remask=commit.remask.tolist(),
        confidence=prediction.confidence[seen].tolist(),
        rows=work.row_count,
        row_positions=None if work.rows is None else work.rows.tolist(),
        predicted=prediction.positions.numel(),
        full=work.rows is None,
        reason=work.plan.reason,
        forced=forced,
        filled=filled,
        block=(state.block.lo, state.block.hi),
        note={**work.plan.note, **commit.note},
    )
