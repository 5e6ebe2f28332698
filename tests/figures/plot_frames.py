"""Made-up frames of a sweep: each run's curves are known, so what a picture must show is known."""

from itertools import product

import numpy as np
import pandas as pd
from pandas.arrays import FloatingArray

LN_V, H1, H2 = 4.57, 3.25, 2.48
SETTINGS = {
    "model.depth": 4,
    "model.width": 32,
    "model.placement": "pre",
    "model.norm": "layernorm",
    "model.residual": True,
    "model.init": "xavier",
    "train.lr": 1e-3,
    "train.warmup": 0,
    "train.steps": 200,
    "train.batch_size": 8,
    "train.precision": "fp32",
    "measure.level": "light",
}


MEASURED = (
    "first_bad_step", "first_loss", "end_loss", "end_gap", "grad_ratio_step0", "grad_ratio_end",
)  # fmt: skip
READ = (
    "grad_norm", "weight_norm", "update_norm", "act_rms", "stream_grad_rms", "token_cosine",
    "norm_input_rms", "branch_to_stream", "attn_logit_max", "eps_floor_fraction",
)  # fmt: skip


def nullable(values) -> pd.Series:
    """A nullable column: None is <NA>, nan and inf stay numbers."""
    missing = np.array([value is None for value in values], dtype=bool)
    data = np.array([1.0 if value is None else value for value in values], dtype=float)
    return pd.Series(FloatingArray(data, missing))


class Made:
    """Collects runs; `frames()` gives them as the analysis would."""

    def __init__(self, axes: list[str], full: bool = False):
        self.axes, self.full = axes, full
        self.rows: list[dict] = []
        self.steps: list[tuple] = []
        self.layers: list[tuple] = []

    def run(self, settings=None, *, seed=0, loss=None, grads=None, every=1, **row) -> str:
        """`loss` one number a step; `grads[step]` one norm a block (None: no readings)."""
        run = f"run{len(self.rows)}"
        values = SETTINGS | (settings or {})
        loss = [] if loss is None else list(loss)
        blank = dict.fromkeys(MEASURED, None)
        base = {"sweep": "made", "run": run, "seed_init": seed, "seed_data": seed, **values}
        base |= {"status": "finished", "verdict": "", "cause": ""}
        base |= {"ln_v": LN_V, "h1": H1, "h2": H2, **blank}
        if loss:
            base |= {"first_loss": loss[0], "end_loss": loss[-1]}
        self.rows.append(base | {"steps_done": len(loss)} | row)
        for step, value in enumerate(loss):
            total = None
            if grads is not None and step % every == 0:
                total = float(np.hypot.reduce(grads[step]))
                self._read(run, step, grads[step])
            self.steps.append((run, step, value, value - 0.02, total))
        return run

    def _read(self, run: str, step: int, norms) -> None:
        self._part(run, step, -1, "embed", norms[0] * 0.5)
        for layer, norm in enumerate(norms):
            # 3-4-5: attention and MLP make up the block's norm exactly.
            self._part(run, step, layer, "attn", norm * 0.6)
            self._part(run, step, layer, "mlp", norm * 0.8)
            self._part(run, step, layer, "wq", norm * 0.5)
        self._part(run, step, len(norms), "norm", norms[-1] * 0.3)
        self._part(run, step, len(norms), "head", norms[-1] * 0.4)

    def _part(self, run: str, step: int, layer: int, part: str, norm: float) -> None:
        """Weights of norm 1, updates a hundredth of the gradient; the stream is as the gradient."""
        update = norm / 100 if np.isfinite(norm) else None
        branch = [norm, norm, min(norm, 1.0)]
        stream = [norm, norm / 10, min(norm, 1.0), norm, *branch] if self.full else [None] * 7
        self.layers.append((run, step, layer, part, norm, 1.0, update, *stream))

    def frames(self) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame, list[str]]:
        if not self.rows:
            return pd.DataFrame(), pd.DataFrame(), pd.DataFrame(), self.axes
        runs = pd.DataFrame(self.rows)
        for column in MEASURED:
            runs[column] = nullable([row[column] for row in self.rows])
        names = ["run", "step", "loss", "unigram_loss", "grad_norm"]
        steps = pd.DataFrame(self.steps, columns=names).assign(sweep="made")
        steps["grad_norm"] = nullable([row[4] for row in self.steps])
        names = ["run", "step", "layer", "part", *READ]
        layers = pd.DataFrame(self.layers, columns=names).assign(sweep="made")
        for i, name in enumerate(READ):
            layers[name] = nullable([row[4 + i] for row in self.layers])
        return runs, steps, layers, self.axes


def norms(depth: int, steps: int, ratio: float, size: float = 1.0) -> np.ndarray:
    """Norms that change geometrically from first to last block: first / last = ratio."""
    profile = size * ratio ** np.linspace(1, 0, depth)
    return np.repeat(profile[None, :], steps, axis=0)


def learning(steps: int, end: float, rng) -> np.ndarray:
    return end + (LN_V - end) * np.exp(-np.arange(steps) / 40) + rng.normal(0, 0.08, steps)


def quickstart(seeds: int = 4, steps: int = 200) -> Made:
    """Like the quickstart: depth x (pre, post, pre without residual) x seeds; 24 post stalls."""
    made = Made(["model.depth", "model.placement", "model.residual"])
    cases = [("pre", True), ("post", True), ("pre", False)]
    for depth, (placement, residual), seed in product((2, 8, 24), cases, range(seeds)):
        rng = np.random.default_rng(100 * depth + seed + 7 * residual)
        dead = depth == 24 and (placement == "post" or not residual)
        ratio = {"pre": 1.5, "post": 0.7**depth}[placement] if residual else 0.5**depth
        ratio *= rng.uniform(0.8, 1.25)
        loss = learning(steps, 3.25 if dead else 2.3 + 0.01 * depth, rng)
        grads = norms(depth, steps, ratio, 0.5) * np.exp(-np.arange(steps) / 150)[:, None]
        made.run(
            {"model.depth": depth, "model.placement": placement, "model.residual": residual},
            seed=seed,
            loss=loss,
            grads=grads,
            verdict="stalled" if dead else "learned",
            end_gap=0.01 * rng.normal() if dead else -0.9 + 0.02 * rng.normal(),
            grad_ratio_step0=ratio,
            grad_ratio_end=ratio * rng.uniform(0.5, 2),
        )
    return made


KNOBS = {"train.lr": (1e-3, 1e-2, 1e-1, 0.0), "model.eps": (1e-5, 1e-8, 1e-12, 0.0)}


def four_fates(*knobs: str) -> Made:
    """Healthy, NaN from step 0, Inf at step 7 then NaN, and gradients exactly zero.

    They differ in depth and in the knobs as well; read at level full.
    """
    made = Made(["model.depth", *knobs], full=True)
    at = [{knob: KNOBS[knob][i] for knob in knobs} for i in range(4)]
    rng = np.random.default_rng(0)
    good = dict(verdict="learned", end_gap=-0.9, grad_ratio_step0=1.2, grad_ratio_end=1.1)
    loss = learning(40, 2.3, rng)
    made.run({"model.depth": 2} | at[0], loss=loss, grads=norms(2, 40, 1.2), **good)
    bad = dict(verdict="nonfinite", end_gap=np.nan, grad_ratio_end=np.nan)
    nans = np.full((1, 4), np.nan)
    made.run(
        {"model.depth": 4} | at[1],
        loss=[np.nan],
        grads=nans,
        first_bad_step=0,
        grad_ratio_step0=np.nan,
        **bad,
    )
    grads = np.vstack([norms(6, 7, 3.0), np.full((1, 6), np.inf), np.full((1, 6), np.nan)])
    made.run(
        {"model.depth": 6} | at[2],
        loss=[4.6] * 7 + [np.inf, np.nan],
        grads=grads,
        first_bad_step=7,
        grad_ratio_step0=3.0,
        **bad,
    )
    zeros = dict(
        verdict="stalled",
        cause="zero_gradient",
        end_gap=0.0,
        grad_ratio_step0=0.0,
        grad_ratio_end=0.0,
    )
    grads = np.zeros((40, 8))
    grads[:, 4:] = 1e-4
    made.run({"model.depth": 8} | at[3], loss=[4.57] * 40, grads=grads, **zeros)
    return made


def alike(value: float, steps: int = 3) -> Made:
    """Four runs over depth, lr and eps in which every number read is this one."""
    made = Made(["model.depth", "train.lr", "model.eps"], full=True)
    ends = dict.fromkeys(("end_gap", "grad_ratio_step0", "grad_ratio_end"), value)
    ends |= {"verdict": "nonfinite" if np.isnan(value) else "stalled"}
    for depth, lr, eps in ((2, 1e-3, 0.0), (2, 1e-2, 0.0), (4, 1e-3, 1e-5), (4, 1e-2, 1e-5)):
        made.run(
            {"model.depth": depth, "train.lr": lr, "model.eps": eps},
            loss=[value] * steps,
            grads=np.full((steps, depth), value),
            first_bad_step=0 if np.isnan(value) else None,
            **ends,
        )
    return made


def thirty() -> Made:
    """Thirty learning rates, one run each."""
    made = Made(["train.lr"])
    for i in range(30):
        rng = np.random.default_rng(i)
        lr = float(f"{1e-5 * 1.5**i:.3g}")
        loss, grads = learning(30, 2 + i / 15, rng), norms(4, 30, 1.5)
        figures = dict(end_gap=i / 15 - 1, grad_ratio_step0=1.5, grad_ratio_end=1.0 + i)
        made.run({"train.lr": lr}, loss=loss, grads=grads, verdict="learned", **figures)
    return made


def mixed() -> Made:
    """One cell with a run of every kind of end, a second one that is pending."""
    made = Made(["model.depth", "model.placement"])
    post = {"model.depth": 100, "model.placement": "post"}
    rng = np.random.default_rng(1)
    good = dict(end_gap=-0.9, grad_ratio_step0=0.1, grad_ratio_end=0.2)
    for depth, seed in product((4, 100), range(2)):
        made.run(
            {"model.depth": depth},
            seed=seed,
            loss=learning(60, 2.4, rng),
            grads=norms(depth, 60, 0.5),
            verdict="learned",
            **good,
        )
    made.run(
        post,
        seed=0,
        loss=learning(60, 3.2, rng),
        grads=norms(100, 60, 1e-7),
        verdict="stalled",
        **good,
    )
    made.run(
        post,
        seed=1,
        loss=[4.5] * 20 + [np.nan],
        grads=norms(100, 21, 1e-7),
        verdict="nonfinite",
        first_bad_step=20,
        end_gap=np.nan,
        grad_ratio_step0=1e-7,
    )
    made.run(
        post,
        seed=2,
        loss=[4.4] * 10,
        grads=norms(100, 10, 1e-7),
        verdict="nonfinite",
        first_bad_step=9,
        grad_ratio_step0=1e-7,
        grad_ratio_end=1e-8,
    )
    made.run(
        post,
        seed=3,
        loss=[4.3] * 30,
        grads=norms(100, 30, 1e-7),
        status="failed",
        grad_ratio_step0=1e-7,
    )
    for seed in (0, 1):
        made.run({"model.depth": 4, "model.placement": "post"}, seed=seed, status="pending")
    return made


def one_run(steps: int = 1, depth: int = 1, grads: bool = True) -> Made:
    made = Made([])
    made.run(
        {"model.depth": depth},
        loss=[4.6] * steps,
        grads=norms(depth, steps, 1.0) if grads else None,
        verdict="too_short",
        end_gap=0.1,
        grad_ratio_step0=1.0 if grads else None,
    )
    return made


def nothing() -> Made:
    return Made([])
