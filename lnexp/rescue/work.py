"""Drives a rescue: the run's own batches again from before the failure, with one change each. A new
change to try is one entry of CHANGES."""

import csv
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any

import torch

from lnexp.config.rules import Settings, build, show
from lnexp.config.schema import RunConfig
from lnexp.data import Corpus
from lnexp.explain.case import Case, read_case
from lnexp.lab.schemas import RescueRow
from lnexp.messages import UserError
from lnexp.model.catalog import NORMS, OPTIMIZERS, PLACEMENTS
from lnexp.runs import checkpoint
from lnexp.runs.derived import Train, missing, part, read
from lnexp.runs.plan import PlannedRun, make_plan
from lnexp.train.loop import train
from lnexp.train.state import State, set_up


@dataclass(frozen=True)
class Failure:
    """The run to rescue, and where it is gone on from."""

    settings: Settings
    start: int  # step of the snapshot; 0: from the beginning
    bad_step: int | None  # None: it stayed finite


@dataclass(frozen=True)
class Change:
    """One change of settings; `batch` and `order` are changes of the data instead."""

    name: str
    settings: Settings
    order: bool = False  # other batches from the start or snapshot on
    batch: bool = False  # the batch of the failing step is left out

    @property
    def from_zero(self) -> bool:
        """Whether it changes what weights or moments mean: no snapshot can be gone on from."""
        return any(key in REMADE or _new_function(key) for key in self.settings)


# Keys of model that leave the function of given weights what it is, or nearly so.
SAME_FUNCTION = ("model.eps", "model.dropout", "model.attention", "model.softmax")
# The optimizer's state is another one's; second moments that underflowed to 0 at one loss scale
# stay 0 at another, under first moments that do not: Adam's updates would be that much too large.
REMADE = ("train.optimizer", "train.loss_scale")


def _new_function(key: str) -> bool:
    return key.startswith(("model.", "data.")) and key not in SAME_FUNCTION


Make = Callable[[Failure], Settings]  # {}: it does not apply


def _clip(failure: Failure) -> Settings:
    clip = failure.settings["train.clip"]
    return {"train.clip": 1.0 if clip > 1 else clip / 10}


def _warmup(failure: Failure) -> Settings:
    """The rate is back at its peak only twice as far away as the failure was."""
    if failure.bad_step is None:
        return {"train.warmup": max(20, 2 * failure.settings["train.warmup"])}
    steps = failure.start + 2 * (failure.bad_step + 1 - failure.start)
    return {"train.warmup": steps} if steps > failure.settings["train.warmup"] else {}


def _adam_eps(failure: Failure) -> Settings:
    if not OPTIMIZERS[failure.settings["train.optimizer"]].reads_betas:
        return {}
    eps = failure.settings["train.adam_eps"]
    return {"train.adam_eps": 1e-5 if eps < 1e-5 else 10 * eps}


def _eps(failure: Failure) -> Settings:
    settings = failure.settings
    stands = PLACEMENTS[settings["model.placement"]].has_norm or settings["model.qk_norm"]
    reads_eps = NORMS[settings["model.norm"]].beside_eps is not None
    return {"model.eps": 1e-3} if stands and reads_eps else {}


def _scale(failure: Failure) -> Settings:
    settings = failure.settings
    absorbed = OPTIMIZERS[settings["train.optimizer"]].absorbs_scale
    in_half = settings["train.precision"] == "fp16"
    return {"train.loss_scale": 256.0} if in_half and absorbed else {}


def _precision(wanted: str, *instead_of: str) -> Make:
    return lambda failure: (
        {"train.precision": wanted} if failure.settings["train.precision"] in instead_of else {}
    )


HALF = ("fp16", "bf16", "fp16-mixed", "bf16-mixed")

CHANGES: dict[str, Make] = {
    "half the learning rate": lambda failure: {"train.lr": failure.settings["train.lr"] / 2},
    "warm-up": _warmup,
    "clipping": _clip,
    "adam_eps": _adam_eps,
    "eps": _eps,
    "fp32": _precision("fp32", *HALF),
    "mixed precision": _precision("fp16-mixed", "fp16"),
    "loss scaling": _scale,
    "z-loss": lambda failure: {} if failure.settings["train.z_loss"] else {"train.z_loss": 1e-4},
}


def changes(failure: Failure) -> list[Change]:
    """The control first; then what applies to this run."""
    tries = [Change("control", {})]
    for name, make in CHANGES.items():
        settings = make(failure)
        new = {key: v for key, v in settings.items() if v != failure.settings[key]}
        if new and not any(v == inf for v in new.values()):
            tries.append(Change(name, new))
    if failure.bad_step is not None:
        tries.append(Change("without that batch", {}, batch=True))
    return [*tries, Change("other data order", {}, order=True)]


ORDER = 1000  # added to the data seed for another order
TABLES = ("steps.csv", "layers.csv", "events.csv")


@dataclass(frozen=True)
class Trial:
    """A change and the run that tries it."""

    change: Change
    run: PlannedRun
    from_step: int


class Rescue:
    """`prepare()`, `train()`, then `rows()`."""

    def __init__(self, folder: Path, tries: Sequence[str], out: Path | None) -> None:
        self.origin = folder.resolve()
        self.case = read_case(self.origin)
        self._refuse_what_cannot_be()
        sweep = self.origin.parent.parent
        self.name = f"{sweep.name}-rescue"
        self.folder = (out or sweep.parent) / self.name
        self.start = snapshot_step(self.origin, self.case.bad_step)
        failure = Failure(self.case.settings, self.start, self.case.bad_step)
        self.notes: list[str] = []
        own = [self._tried(text) for text in tries]
        wanted = [*self._possible(changes(failure)), *own]
        self.plan = make_plan(read(self._document(wanted), "rescue.yaml"))
        self._same_text()
        self.trials = list(self._trials(wanted))

    def _refuse_what_cannot_be(self) -> None:
        case = self.case
        if not case.judgement.verdict:
            raise UserError(f"{self.origin}: no verdict yet ({case.process.status}); nothing to do")
        if case.judgement.verdict in ("learned", "nothing_to_learn"):
            raise UserError(
                f"{self.origin}: it did not fail ({case.judgement.verdict}); name a run that did"
            )

    def _document(self, wanted: Sequence[Change]) -> dict[str, Any]:
        """The run's own config, with a case for every change."""
        question = f"What would have saved {self.origin.name}?"
        nested: dict[str, Any] = {"name": self.name, "question": question}
        for key, value in self.case.settings.items():
            section, _, leaf = key.partition(".")
            nested.setdefault(section, {})[leaf] = value
        seed = self.case.seeds["seed_data"]
        seeds = {"init": [self.case.seeds["seed_init"]], "data": [seed, seed + ORDER]}
        return {**nested, "seeds": seeds, "cases": [change.settings for change in wanted]}

    def _tried(self, text: str) -> Change:
        """--try KEY=VALUE. Raises UserError where the setting cannot be."""
        key, sign, _ = text.partition("=")
        if not sign or key in ("name", "seeds") or key.partition(".")[0] == "measure":
            raise UserError(f"--try {text}: write a setting of data, model or train: train.lr=1e-4")
        document = self._document([])
        document.pop("cases")
        points = read(document, "rescue.yaml", [text]).points
        value = points[0].config.settings().get(key)
        if value is None or key == "train.steps":
            raise UserError(f"--try {text}: write one value of a setting of data, model or train")
        return Change(text, {key: value})

    def _possible(self, wanted: Sequence[Change]) -> Iterator[Change]:
        """Without those that other settings of this run rule out."""
        for change in wanted:
            try:
                read(self._document([change]), "rescue.yaml")
            except UserError as error:
                self.notes.append(f"{change.name}: not possible here: {error.problems[0]}")
                continue
            yield change

    def _same_text(self) -> None:
        ours, theirs = self.plan.runs[0].corpus.sha256, self.case.env.get("data_sha256")
        if ours != theirs:
            raise UserError(
                f"{self.origin}: its text is not the one that is there now: SHA-256 was {theirs}, "
                f"is {ours}"
            )

    def _trials(self, wanted: Sequence[Change]) -> Iterator[Trial]:
        seed = self.case.seeds["seed_data"]
        taken: set[str] = set()
        for change in wanted:
            seeds = {"init": self.case.seeds["seed_init"], "data": seed + ORDER * change.order}
            config = build({**self.case.settings, **change.settings}, seeds)
            run = self._run_of(config.settings(), seeds["data"])
            if change.batch:
                run = replace(run, name=f"without-{self.case.bad_step}-{run.name}"[:100])
            if run.name in taken:
                self.notes.append(f"{change.name}: changes nothing in this run")
                continue
            taken.add(run.name)
            yield Trial(change, run, 0 if change.from_zero else self.start)

    def _run_of(self, settings: dict[str, Any], seed: int) -> PlannedRun:
        keys = self.plan.sweep.axes
        for run in self.plan.runs:
            same = all(run.point.settings[key] == settings[key] for key in keys)
            if same and run.config.seed.data == seed:
                return run
        raise AssertionError(f"no run of the plan has {settings}")

    def prepare(self) -> None:
        """The folders of runs that go on from a snapshot, or from just after a batch."""
        control = self.trials[0].run
        for run, change, from_step in ((t.run, t.change, t.from_step) for t in self.trials):
            folder = self.folder / "runs" / run.name
            if folder.exists() or not (from_step or change.batch):
                continue
            what = (run.config, run.corpus, run.device)
            if from_step:
                state = transplanted(self.origin, control.config, *what, order=change.order)
            else:
                state = set_up(*what)
            if change.batch:
                assert self.case.bad_step is not None
                past_the_batch(state, self.case.bad_step)
            make_ready(folder, self.origin, state, run.corpus.sha256)

    def train(self, train: Train) -> None:
        """What is not done yet. The run without a batch has the settings of the control, so the
        sweep's tables leave it out: it is no second seed of it."""
        listed = [trial.run for trial in self.trials if not trial.change.batch]
        todo = missing([trial.run for trial in self.trials], self.folder)
        train(part(self.plan, listed), todo)

    def rows(self) -> list[RescueRow]:
        return [self._row(trial) for trial in self.trials]

    def _row(self, trial: Trial) -> RescueRow:
        folder = self.folder / "runs" / trial.run.name
        case = read_case(folder)
        control = trial.change.name == "control"
        settings = (f"{key}={show(value)}" for key, value in trial.change.settings.items())
        return RescueRow(
            run=self.origin.name,
            change=trial.change.name,
            settings=", ".join(settings),
            from_step=trial.from_step,
            bad_step=self.case.bad_step,
            failed_at=case.bad_step,
            steps_done=len(case.steps),
            verdict=case.judgement.verdict or case.process.status,
            outcome=outcome(self.case, case),
            identical=int(same_rows(self.origin, folder, self._until())) if control else None,
            loss_change=self._loss_change(case),
            end_loss=case.figures.get("end_loss"),
            end_gap=case.figures.get("end_gap"),
            trial=folder.name,
        )

    def _until(self) -> int:
        """Rows from this step on need not be the same: the failing one stops a run."""
        return len(self.case.steps) if self.case.bad_step is None else self.case.bad_step + 1

    def _loss_change(self, case: Case) -> float | None:
        """Of the last step before the failure."""
        if not self.case.bad_step or len(case.steps) < self.case.bad_step:
            return None
        last = self.case.bad_step - 1
        one, other = (float(of.steps["loss"].iloc[last]) for of in (case, self.case))
        return one - other


# A trial's run folder.


def snapshot_step(folder: Path, before: int | None) -> int:
    """Steps done in the run's snapshot; 0 where there is none to go on from, or none so early."""
    saved = checkpoint.read(folder) or {}
    done = int(saved["steps_done"]) if "optimizer" in saved else 0
    return done if before is not None and done <= before else 0


def transplanted(
    origin: Path, old: RunConfig, new: RunConfig, corpus: Corpus, device: str, order: bool
) -> State:
    """The state of `new` where the snapshot of `old` stands; `order`: with batches of its own."""
    state, saved = set_up(new, corpus, device), checkpoint.read(origin) or {}
    state.model.load_state_dict(saved["model"])
    factor = fixed_scale(new) / fixed_scale(old)
    moments = {
        at: {name: _scaled(name, value, factor) for name, value in of.items()}
        for at, of in saved["optimizer"]["state"].items()
    }
    groups = state.optimizer.state_dict()["param_groups"]  # with the new lr, eps, betas
    state.optimizer.load_state_dict({"state": moments, "param_groups": groups})
    if not order:
        state.batches.generator.set_state(saved["data_generator"])
    state.dropout.state = saved["dropout_state"]
    state.steps_done, state.seconds = saved["steps_done"], saved["seconds"]
    state.skipped = saved["skipped"]
    state.seen = {(kind, module) for kind, module in saved["seen"]}
    return state


def fixed_scale(config: RunConfig) -> float:
    """What Adam's gradients are multiplied by: the loss scale of fp16 without master weights."""
    scale = config.train.loss_scale
    in_half = config.train.precision == "fp16"
    return float(scale) if in_half and not isinstance(scale, str) else 1.0


def _scaled(name: str, value: Any, factor: float) -> Any:
    """A moment of gradients that are scaled otherwise."""
    if name not in ("exp_avg", "exp_avg_sq") or factor == 1:
        return value
    power = 2 if name == "exp_avg_sq" else 1
    return (value.double() * factor**power).to(torch.float32)


def past_the_batch(state: State, step: int) -> None:
    """Trains up to this step and leaves out its batch."""
    if state.steps_done < step:
        for record in train(state):
            if record.step.step == step - 1:
                break
    state.batches.draw()


def make_ready(folder: Path, origin: Path, state: State, data_sha256: str) -> None:
    """A run folder as if interrupted where `state` stands, with the origin's rows up to there.

    It is filled under another name and renamed: a kill leaves none or a whole one.
    """
    draft = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    for name in TABLES:
        shutil.copyfile(origin / name, draft / name)
    checkpoint.save(draft, state, data_sha256)
    os.replace(draft, folder)


# What became of it.


def outcome(origin: Case, case: Case) -> str:
    """What became of the failure."""
    verdict = case.judgement.verdict
    if not verdict:
        return f"not finished: {case.process.status}"
    if origin.bad_step is None:
        if verdict != origin.judgement.verdict:
            return f"{verdict} instead"
        return f"{verdict} again: {case.judgement.reason}" if case.judgement.reason else "again"
    if case.bad_step is None:
        return f"prevented, to step {len(case.steps) - 1}"
    if case.bad_step == origin.bad_step:
        return f"fails at step {case.bad_step} again"
    when = "put off" if case.bad_step > origin.bad_step else "sooner"
    return f"{when}, to step {case.bad_step}"


def same_rows(one: Path, other: Path, before: int) -> bool:
    """Whether both have the same rows, to the bit, up to a step; wall time aside."""
    return all(
        _rows(one / name, before) == _rows(other / name, before)
        for name in ("steps.csv", "layers.csv")
    )


def _rows(path: Path, before: int) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if int(row["step"]) < before]
    for row in rows:
        row.pop("seconds", None)
    return rows
