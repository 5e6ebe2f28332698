"""A run gone on with under other settings, from the snapshot of another: the same weights, moments
and position in the text.

A run folder is made ready under another name and renamed: a kill leaves none or a whole one.
"""

import os
import shutil
from pathlib import Path
from typing import Any

import torch

from ..config import RunConfig
from ..data import Corpus
from ..runs import checkpoint
from ..train.loop import train
from ..train.state import State, set_up

TABLES = ("steps.csv", "layers.csv", "events.csv")


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
    """A run folder as if interrupted where `state` stands, with the origin's rows up to there."""
    draft = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    for name in TABLES:
        shutil.copyfile(origin / name, draft / name)
    checkpoint.save(draft, state, data_sha256)
    os.replace(draft, folder)
