"""A plan: what the decodes of a configuration cost at least, and what that rests on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from dllmx.config.schema import RunConfig
from dllmx.errors import ConfigError
from dllmx.models.loading import load_shape
from dllmx.plan.costs import DecodeCost, KindCost, Target, decode_cost
from dllmx.plan.published import Published, published_figures
from dllmx.plan.steps import PlannedStep, planned_steps, traced_steps
from dllmx.runs.folder import RunFolder
from dllmx.runs.trace import read_trace

SCHEDULED = (
    "Rows of a step: those that the policy plans on a small random model with the same lengths, "
    "committing so many tokens a step. Its clusters are of random states; for policies that watch "
    "the entropy one step in 16 is uncertain."
)
TRACED = (
    "Rows of a step: those of the trace. TPF and TPS count tokens that are not end-of-text. Logits "
    "are taken to be read for the masks of the block."
)
TIME = (
    "Time of a step: the longer of its bytes at the full bandwidth and its operations at the full "
    "peak of the profile. Real steps take longer: these are upper limits of TPS, at batch 1."
)
WORK = (
    "Bytes: every weight of the layers and the head once, every stored key and value once. "
    "Operations: 2 a weight and row, 4 a row, key and channel of the heads."
)
FREE = (
    "Free of charge: activations, norms, logits once computed, clustering, proxies, packing, "
    "decisions, launches and copies."
)
PAPERS = (
    "Published TPS stand beside this plan at their TPF. The papers' prompts have other lengths (a "
    "shorter one can pass 100 %), and their TPF leaves out end-of-text."
)


@dataclass(frozen=True, slots=True)
class Plan:
    """``costs``: of a decode at each of ``labels`` tokens a step, or of all of a trace's;
    ``kinds``: over all of them; ``floors``: most TPS at the TPF of each of ``figures``.
    ``length``: positions of the longest canvas.
    """

    target: Target
    policy: str
    title: str
    length: int
    labels: Sequence[str]
    costs: Sequence[DecodeCost]
    kinds: Sequence[KindCost]
    assumptions: Sequence[str]
    figures: Sequence[Published] = ()
    floors: Sequence[float | None] = ()

    @property
    def store_bytes(self) -> int:
        """Bytes of the stored keys and values."""
        return self.target.store_bytes(self.length)

    @property
    def fits(self) -> bool:
        """Whether weights, keys and values fit into the profile's memory, where it states one."""
        memory = self.target.memory
        return memory is None or self.target.weight_bytes + self.store_bytes <= memory

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "policy": self.policy,
            "plan": self.title,
            "weight_bytes": self.target.weight_bytes,
            "store_bytes": self.store_bytes,
            "fits": self.fits,
            "kinds": [asdict(kind) for kind in self.kinds],
            "decodes": [
                {"tokens_per_step": label, **cost.to_dict()}
                for label, cost in zip(self.labels, self.costs, strict=True)
            ],
            "published": [
                {**asdict(figure), "floor_tps": floor}
                for figure, floor in zip(self.figures, self.floors, strict=True)
            ],
            "assumptions": list(self.assumptions),
        }


def plan_schedule(config: RunConfig, prompt_length: int, rates: Sequence[float]) -> Plan:
    """Decodes with the parts of ``config``, one for each number of tokens a step in ``rates``.

    ConfigError for guidance, and for a profile that does not state its peaks.
    """
    target, tokens, policy = target_of(config), config.sampler.gen_length, config.policy.name
    figures = published_figures(config.model.name, policy, tokens)
    published = [figure.tpf for figure in figures if figure.tpf is not None]
    steps = {
        rate: planned_steps(target.shape, config, prompt_length, rate)
        for rate in dict.fromkeys([*rates, *published])
    }
    costs = {rate: decode_cost(target, taken, tokens) for rate, taken in steps.items()}
    together = [step for rate in rates for step in steps[rate]]
    return Plan(
        target=target,
        policy=policy,
        title=f"{policy}, prompt {prompt_length}, response {tokens}",
        length=prompt_length + tokens,
        labels=[f"{rate:g}" for rate in rates],
        costs=[costs[rate] for rate in rates],
        kinds=decode_cost(target, together, tokens).kinds,
        assumptions=[SCHEDULED, TIME, WORK, FREE, *([PAPERS] if figures else [])],
        figures=figures,
        floors=[None if f.tpf is None else costs[f.tpf].tokens_per_second for f in figures],
    )


def plan_trace(config: RunConfig, run: RunFolder) -> Plan:
    """The decodes of a run's trace, on the model and the profile of ``config``.

    ConfigError where the run has no trace, or no finished sample in it.
    """
    if not run.trace.exists():
        raise ConfigError(f"{run.path} has no trace. Make one: dllmx run ... trace=true")
    target, stored = target_of(config), run.read_config()
    gen_length, policy = int(stored["sampler"]["gen_length"]), str(stored["policy"]["name"])
    tokens = {record.id: record.tokens_non_eos for record in run.read_samples()}
    entries = [entry for entry in read_trace(run.trace) if entry["id"] in tokens]
    if not entries:
        raise ConfigError(f"{run.path} has no finished sample in its trace. Run it to its end.")
    steps: list[PlannedStep] = []
    for entry in entries:
        steps += traced_steps(entry, gen_length)
    cost = decode_cost(target, steps, sum(tokens[entry["id"]] for entry in entries))
    return Plan(
        target=target,
        policy=policy,
        title=f"{policy}, all {len(entries)} decodes of {run.path.name}",
        length=max(step.keys for step in steps),
        labels=["trace"],
        costs=[cost],
        kinds=cost.kinds,
        assumptions=[TRACED, TIME, WORK, FREE],
    )


def target_of(config: RunConfig) -> Target:
    """Model and GPU of ``config``. The shape is the option's own where no folder is given."""
    return Target.of(load_shape(replace(config.model, weights="random")), config.hardware)
