"""One run from its config to its folder; what a worker process does."""

from functools import lru_cache
from pathlib import Path
from traceback import format_exc

import torch

from ..config import Data, RunConfig
from ..data import Corpus, load
from ..errors import UserError
from ..measure.optimizer import underflow
from ..model.init import build
from ..sweep import dump, resolved
from ..train.loop import train
from ..train.state import State, set_up
from . import checkpoint
from .environment import environment
from .rundir import RunDir, Status, last_row


@lru_cache(maxsize=4)
def _corpus(data_json: str) -> Corpus:
    return load(Data.model_validate_json(data_json))


def train_run(folder: str, config: RunConfig, device: str, data_sha256: str) -> Status:
    """Train one run into its folder. An exception becomes status failed with its traceback in
    error.txt; it never leaves this function."""
    run = RunDir(Path(folder))
    try:
        corpus = _corpus(config.data.model_dump_json())
        if corpus.sha256 != data_sha256:
            raise UserError("data: the text changed after the sweep was planned; run it again")
        state = set_up(config, corpus, device)
        with _opened(run, state, corpus, device):
            for record in train(state):
                run.write(record)
                # A run that a bad value stopped keeps its last healthy snapshot.
                if state.steps_done % config.measure.snapshot_every == 0 and not state.stopped:
                    checkpoint.save(run.path, state, data_sha256)
            if not state.stopped:
                checkpoint.save(run.path, state, data_sha256)
            if config.measure.keep == "none":
                (run.path / checkpoint.NAME).unlink(missing_ok=True)
            underflowed, below_eps = _adam(state)
            status = Status(
                status="finished",
                steps_done=state.steps_done,
                seconds=state.seconds,
                stopped=state.stopped,
                first_bad_step=state.first_bad_step,
                unmoved=tuple(_unmoved(state, len(corpus.vocabulary))),
                skipped=state.skipped,
                adam_underflowed=underflowed,
                adam_below_eps=below_eps,
            )
            run.finish(status)
    except Exception as error:  # whatever happens to this run must not stop the others
        status = record_failure(run.path, f"{type(error).__name__}: {error}", format_exc())
    return status


def _opened(run: RunDir, state: State, corpus: Corpus, device: str) -> RunDir:
    """The run's folder: gone on with from its last snapshot, or begun."""
    again = checkpoint.restore(run.path, state, corpus.sha256)
    start = state.steps_done if again else None
    env = {**environment(state, corpus, device), "resumed_at_step": start}
    config_yaml = dump(resolved(state.config))
    if start is None:
        return run.begin(config_yaml, env)
    # The last row of a shorter run has a val_loss that a longer one has not there.
    extra = start % state.config.measure.eval_every != 0
    return run.resume(config_yaml, env, start, blank="val_loss" if extra else "")


def record_failure(path: Path, why: str, whole: str) -> Status:
    """Status failed with what the rows tell; `whole`, a traceback or a sentence, in error.txt."""
    last = last_row(path)
    status = Status(
        "failed",
        steps_done=last.step + 1 if last else 0,
        seconds=last.seconds if last else 0.0,
        error=(why.splitlines() or [why])[0][:500],
    )
    try:
        path.mkdir(parents=True, exist_ok=True)
        (path / "error.txt").write_text(whole, encoding="utf-8")
        RunDir(path).finish(status)
    except OSError:  # a full disk: the missing status.json reads as interrupted, never as finished
        pass
    return status


def _adam(state: State) -> tuple[float, float] | tuple[None, None]:
    """Shares of elements whose second moment underflowed, and whose lies below eps."""
    weights = list(state.model.parameters())
    found = underflow(state.optimizer, weights)
    elements = sum(u.elements for u in found)
    if not elements:
        return None, None
    vanished, below = sum(u.vanished for u in found), sum(u.below_eps for u in found)
    return vanished / elements, below / elements


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
