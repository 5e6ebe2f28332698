"""The depth profile of every cell of a sweep, at a few early steps: a short sweep of its own."""

import csv
from collections.abc import Iterator, Sequence
from math import gcd, isfinite
from pathlib import Path
from statistics import fmean

from lnexp.config.sweep import Sweep
from lnexp.lab.profile import Reading, figures, readings, root
from lnexp.lab.schemas import ProbeRow
from lnexp.lab.skip import counting
from lnexp.lab.subject import HALVES, ratio
from lnexp.probe.reading import FORMATS, depths, trend
from lnexp.rows import Part, header
from lnexp.runs.derived import cells, derive
from lnexp.runs.plan import Plan, PlannedRun
from lnexp.runs.rundir import read_status

TABLE = "sampled_skip"  # what is measured after training
# Settings that the steps asked for decide.
OWN = (
    "train.steps", "train.schedule", "measure.level", "measure.every", "measure.sample",
    "measure.keep",
)  # fmt: skip


def probe_plan(sweep: Sweep, steps: Sequence[int]) -> Plan:
    """NAME-probe: the same cells and seeds up to the last of the steps, read in full. The rate is
    the config's, as it is before any decay: a schedule has hardly moved by then."""
    cases = [{k: v for k, v in cell.items() if k not in OWN} for cell in cells(sweep)]
    batch = max(point.config.train.batch_size for point in sweep.points)
    train, measure = (dict(sweep.document.get(name) or {}) for name in ("train", "measure"))
    train |= {"steps": max(steps) + 1, "schedule": "constant"}
    measure = {"sample": batch, **measure, "level": "full", "keep": "weights"}
    measure["every"] = gcd(*steps) or 1
    return derive(sweep, "probe", cases, train=train, measure=measure)


def probe_rows(plan: Plan, out: Path, steps: Sequence[int]) -> Iterator[ProbeRow]:
    """A row a run and step that it came to."""
    folder = plan.folder(out)
    changes = _changes(folder / "lab" / f"{TABLE}.csv")
    for run in plan.runs:
        path = folder / "runs" / run.name
        status = read_status(path)
        if status is None or not (path / "layers.csv").is_file():
            continue
        read, last = readings(path), max(steps)
        for step in steps:
            # The weights at the end are those of the last step, unless the run once went further.
            skips = changes.get((run.name, "start")) if step == 0 else None
            if step == last and step > 0 and status.steps_done == last + 1:
                skips = changes.get((run.name, "end"))
            if step in read:
                yield _row(run, status.steps_done, step, read[step], skips)


def _row(
    run: PlannedRun, steps_done: int, step: int, reading: Reading, skips: list[float] | None
) -> ProbeRow:
    depth = run.config.model.depth
    profile = figures(reading, depth, sums=False)
    wanted = header(ProbeRow)

    def column(name: str, part: Part) -> list[float | None]:
        return [reading.get((layer, part), {}).get(name) for layer in range(depth)]

    def both(name: str) -> list[float]:
        values = [value for part in HALVES for value in column(name, part)]
        return [value for value in values if value is not None]

    def first_over_last(part: Part) -> float | None:
        gradients = column("grad_norm", part)
        return ratio(gradients[0], gradients[-1])

    inputs, inert, scores = map(both, ("norm_input_rms", "eps_floor_fraction", "attn_logit_max"))
    forward = column("act_absmax", "mlp")
    backward = column("stream_grad_rms", "attn")[::-1]
    reach = {}
    for name, values in (("forward", forward), ("backward", backward)):
        law = trend(values, backward=name == "backward")
        reach |= {f"{name}_law": law.law, f"{name}_rate": law.rate, f"{name}_r2": law.r2}
        reach |= {f"{name}_{kind}": depths(values, law)[kind] for kind in FORMATS}
    counted = counting(skips) if skips and all(map(isfinite, skips)) else None
    return ProbeRow(
        run=run.name,
        steps_done=steps_done,
        step=step,
        blocks=depth,
        **{name: value for name, value in profile.items() if name in wanted},
        norm_input_mean=fmean(inputs) if inputs else None,
        grad_per_sublayer=root(profile["grad_ratio"], 2 * depth),
        wv_ratio=first_over_last("wv"),
        wo_ratio=first_over_last("wo"),
        w1_ratio=first_over_last("w1"),
        w2_last=column("grad_norm", "w2")[-1],
        branch_first=column("branch_to_stream", "attn")[0],
        branch_last=column("branch_to_stream", "mlp")[-1],
        attn_logit_max=_largest(scores),
        eps_floor_fraction=fmean(inert) if inert else None,
        blocks_skipped=len(skips) if skips and counted is not None else None,
        blocks_counting=counted,
        effective_depth=None if counted is None or not skips else depth * counted / len(skips),
        **reach,
    )


def _largest(values: Sequence[float]) -> float | None:
    """NaN where one is."""
    return next((v for v in values if v != v), max(values)) if values else None


def _changes(table: Path) -> dict[tuple[str, str], list[float]]:
    """(run, start or end) -> by how much the loss changes without each block."""
    changes: dict[tuple[str, str], list[float]] = {}
    if table.is_file():
        with table.open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                changes.setdefault((row["run"], row["at"]), []).append(float(row["change"]))
    return changes
