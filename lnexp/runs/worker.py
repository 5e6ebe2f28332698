"""One run from its config to its folder; what a worker process does."""

from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from math import inf
from pathlib import Path
from traceback import format_exc

import torch

from lnexp.config.rules import show
from lnexp.config.schema import Data, RunConfig
from lnexp.config.sweep import dump, resolved
from lnexp.data import Corpus, load
from lnexp.files import write_whole
from lnexp.measure.optimizer import underflow
from lnexp.messages import UserError
from lnexp.model.init import build
from lnexp.records import Status
from lnexp.rows import cell
from lnexp.runs import checkpoint
from lnexp.runs.environment import environment
from lnexp.runs.rundir import RunDir, last_row
from lnexp.runs.stop import asked
from lnexp.train.loop import train, validation_loss
from lnexp.train.state import State, set_up


@lru_cache(maxsize=4)
def _corpus(data_json: str) -> Corpus:
    return load(Data.model_validate_json(data_json))


def text_of(data: Data, sha256: str) -> Corpus:
    """A run's text, read once a process. Raises UserError where it is not the one planned for."""
    corpus = _corpus(data.model_dump_json())
    if corpus.sha256 != sha256:
        raise UserError("data: the text changed after the sweep was planned; run it again")
    return corpus


def train_run(
    folder: str,
    config: RunConfig,
    device: str,
    data_sha256: str,
    memory: float = inf,
    corpus: Corpus | None = None,
) -> Status:
    """Train one run into its folder, on `corpus` or else the text it names, in `memory` bytes.

    An exception becomes status failed with its traceback in error.txt; it never leaves this
    function. Asked to stop, it leaves at the next step boundary with a snapshot to go on from.
    """
    if asked():  # before this run began
        return Status("interrupted")
    run = RunDir(Path(folder))
    try:
        corpus = corpus or text_of(config.data, data_sha256)
        state = set_up(config, corpus, device, memory)
        with run:
            _open(run, state, corpus, device)
            for record in train(state):
                run.write(record)
                # A run that a bad value stopped keeps its last healthy snapshot.
                if state.steps_done % config.measure.snapshot_every == 0 and not state.stopped:
                    checkpoint.save(run.path, state, data_sha256)
                if asked() or state.seconds >= config.train.max_seconds:
                    break
            if not state.stopped:
                checkpoint.save(run.path, state, data_sha256)
            status = _status(state, len(corpus.vocabulary))
            if config.measure.keep == "none" and status.status == "finished":
                (run.path / checkpoint.NAME).unlink(missing_ok=True)
            run.finish(status)
    except Exception as error:  # whatever happens to this run must not stop the others
        status = record_failure(run.path, f"{type(error).__name__}: {error}", format_exc())
    return status


def _open(run: RunDir, state: State, corpus: Corpus, device: str) -> None:
    """The run's folder: gone on with from its last snapshot, or begun."""
    env = environment(state, corpus, device)  # of the weights that the run began with
    again = checkpoint.restore(run.path, state, corpus.sha256)
    start = state.steps_done if again else None
    env["resumed_at_step"] = start
    config_yaml = dump(resolved(state.config))
    if start is None:
        run.begin(config_yaml, env)
    else:
        run.resume(config_yaml, env, start, {"val_loss": _last_val_loss(state)})


def _last_val_loss(state: State) -> str | None:
    """What the last row there has in this run: a val_loss belongs to a run's last row, and to
    every eval_every-th, where it stays as it is (None)."""
    settings, done = state.config.measure, state.steps_done
    if done % settings.eval_every == 0:
        return None
    if done < state.config.train.steps or settings.level == "off":
        return ""
    return cell(validation_loss(state))


def record_failure(path: Path, why: str, whole: str) -> Status:
    """Status failed with what the rows tell; `whole`, a traceback or a sentence, in error.txt."""
    last = last_row(path)
    status = Status(
        "failed",
        steps_done=last.step + 1 if last else 0,
        seconds=last.seconds if last else 0.0,
        error=(why.splitlines() or [why])[0][:500],
    )
    with suppress(OSError):  # a full disk: no status.json reads as interrupted, never as finished
        path.mkdir(parents=True, exist_ok=True)
        RunDir(path).finish(status)
        write_whole(path / "error.txt", whole)
    return status


def _status(state: State, vocabulary: int) -> Status:
    """What training came to: all steps or a bad value, a stop that was asked for, or its time."""
    limit, steps = state.config.train.max_seconds, state.config.train.steps
    reached = Status(
        "interrupted",
        steps_done=state.steps_done,
        seconds=state.seconds,
        first_bad_step=state.first_bad_step,
        skipped=state.skipped,
    )
    if not state.stopped and state.steps_done < steps:
        if state.seconds < limit:
            return reached
        why = (
            f"stopped after train.max_seconds {show(limit)}, at step {state.steps_done} of {steps}"
        )
        return replace(reached, error=why)
    underflowed, below_eps = _adam(state)
    return replace(
        reached,
        status="finished",
        stopped=state.stopped,
        unmoved=tuple(_unmoved(state, vocabulary)),
        adam_underflowed=underflowed,
        adam_below_eps=below_eps,
    )


def _adam(state: State) -> tuple[float, float] | tuple[None, None]:
    """Shares of elements whose second moment underflowed, and whose lies below eps."""
    weights = list(state.model.parameters())
    counts = underflow(state.optimizer, weights)
    elements = sum(count.elements for count in counts)
    if not elements:
        return None, None
    vanished = sum(count.vanished for count in counts)
    return vanished / elements, sum(count.below_eps for count in counts) / elements


def _unmoved(state: State, vocabulary: int) -> list[str]:
    """Tensors bit-identical to their start, which is drawn anew from the seed."""
    start = build(state.config.model, vocabulary, state.config.seed.init)
    start.to(dtype=state.format.weights)
    return [
        name
        for (name, now), (_, then) in zip(
            state.model.named_parameters(), start.named_parameters(), strict=True
        )
        if torch.equal(now.detach().cpu(), then)
    ]
