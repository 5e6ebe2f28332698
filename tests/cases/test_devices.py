"""A16, C10, C12: what a run really used is recorded; what a machine cannot do is refused."""

import json
import math
from itertools import product

import numpy as np
import pytest
import torch

from lnexp.config.schema import Train
from lnexp.figures.canvas import house_style
from lnexp.figures.drawing import SweepFrames
from lnexp.figures.plots import PICTURES
from lnexp.messages import UserError
from lnexp.model.catalog import PRECISIONS
from lnexp.results.axes import dress
from lnexp.runs.environment import environment
from lnexp.sample import Sampler, next_letter
from tests.cases.conftest import run_here
from tests.cases.trained import MARKOV, config, corpus, state_of, told
from tests.cli import lnexp
from tests.figures.plot_frames import Made, learning, norms
from tests.runs.small import write_config

TINY = """
data: {source: markov, length: 2000}
model: {depth: 1, width: 8, heads: 1, context: 8}
train: {steps: 2, batch_size: 2}
"""


# ------------------------------------------------------- C10: device and precision


def test_a_device_that_is_not_there_is_refused_before_anything_is_written(refused, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for device in ("cuda", "mps"):
        (line,) = refused(TINY + f"  # {device}\n", "-s", f"train.device={device}")
        assert f"train.device: {device}: this machine has no {device.upper()} device" in line
    (line,) = refused(TINY, "-s", "train.device=[cpu, cuda]")
    assert "cuda" in line
    (line,) = refused(TINY, "-s", "train.device=gpu")
    assert "auto" in line and "cuda" in line


def test_auto_is_recorded_as_the_cpu_that_it_was_and_never_as_cuda(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    write_config(tmp_path, TINY)
    said = run_here("small.yaml", cwd=tmp_path)
    assert said.code == 0, said.err
    (env,) = tmp_path.glob("results/small/runs/*/env.json")
    text = env.read_text(encoding="utf-8")
    assert json.loads(text)["device"] == "cpu" and "cuda" not in json.loads(text)["device_name"]


def test_every_precision_of_the_cpu_runs_and_a_slow_one_is_announced(tmp_path, monkeypatch):
    slow = {"fp16": 7.0, "bf16": 6.0}
    monkeypatch.setattr("lnexp.runs.plan.slowness", lambda p, device: slow.get(p, 1.0))
    write_config(tmp_path, TINY + f"sweep: {{train.precision: [{', '.join(PRECISIONS)}]}}\n")
    said = run_here("small.yaml", cwd=tmp_path)
    assert said.code == 0, said.err
    notes = [line for line in said.err.splitlines() if "slow" in line]
    assert len(notes) == 2 and all("note: " in line and "times fp32's" in line for line in notes)
    envs = [json.loads(p.read_text()) for p in tmp_path.glob("results/small/runs/*/env.json")]
    assert sorted(env["precision"] for env in envs) == sorted(PRECISIONS)
    assert {env["device"] for env in envs} == {"cpu"}


def test_a_precision_without_kernels_is_refused_with_torchs_reason(refused, monkeypatch):
    why = "\"addmm_impl_cpu_\" not implemented for 'Half'"
    monkeypatch.setattr(
        "lnexp.runs.plan.precision_problem", lambda p, device: why if p == "fp16" else None
    )
    (line,) = refused(TINY, "-s", "train.precision=[fp32, fp16]")
    assert "train.precision: fp16 does not work on cpu" in line and why in line


# ------------------------------------------------------- C12: MPS


def test_mps_is_refused_where_it_is_there_too_and_the_line_says_why(refused, monkeypatch):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    (line,) = refused(TINY, "-s", "train.device=mps")
    assert "MPS lacks" in line and "write cpu" in line


class Broken(torch.nn.Module):
    """Sound logits for two letters, then what a bad device returns."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.value, self.calls = value, 0

    def forward(self, ids_BT):
        self.calls += 1
        logits = torch.zeros(1, ids_BT.shape[1], 3)
        return logits if self.calls < 3 else logits.index_fill(2, torch.tensor([1]), self.value)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_sampler_says_that_logits_are_not_finite_and_draws_no_letter_from_them(
    value, temperature
):
    model = Broken(value)
    with pytest.raises(UserError, match="logits are not finite"):
        Sampler(model, "abc", 8).generate("a", 10, temperature, 0)  # type: ignore[arg-type]
    assert model.calls == 3


def test_a_temperature_near_0_overflows_no_probability():
    logits = torch.tensor([100.0, 99.0, -100.0])
    for temperature in (1e-300, 1e-30, 1e-3):
        assert next_letter(logits, temperature, torch.Generator()) == 0


def test_the_command_says_it_in_a_line(tmp_path):
    write_config(tmp_path, TINY + "measure: {keep: all}\n")
    assert run_here("small.yaml", cwd=tmp_path).code == 0
    (run,) = tmp_path.glob("results/small/runs/*")
    saved = torch.load(run / "checkpoint.pt", weights_only=True)
    saved["model"]["head.weight"][0, 0] = math.nan
    torch.save(saved, run / "checkpoint.pt")
    said = lnexp("sample", run, cwd=tmp_path)
    assert said.code != 0 and "not finite" in said.err and "Traceback" not in said.err
    assert len(said.err.splitlines()) <= 2


# ------------------------------------------------------- A16: what was used

USED = {
    "fp32": ("", {"norm": "float32", "softmax": "float32", "loss": "float32"}),
    "fp16": ("", {"norm": "float16", "softmax": "float16", "loss": "float16"}),
    "bf16": ("", {"norm": "bfloat16", "softmax": "bfloat16", "loss": "bfloat16"}),
    "bf16-mixed": ("bfloat16", {"softmax": "bfloat16", "loss": "float32", "norm": "float32"}),
    "fp16-mixed": ("float16", {"softmax": "float16", "loss": "float32", "norm": "float32"}),
}


@pytest.mark.parametrize("precision", USED)
def test_device_autocast_compile_and_the_types_of_norm_softmax_and_loss_are_recorded(
    tmp_path, precision
):
    run = told(tmp_path / "run", config(precision=precision, steps=1))
    env, (autocast, types) = run.env, USED[precision]
    assert (env["device"], env["autocast_dtype"], env["precision"]) == ("cpu", autocast, precision)
    found = env["compute_dtypes"]
    assert {kind: found[kind] for kind in types} == types
    assert found["matmul"] == (autocast or found["softmax"])
    assert run.row["train.compile"] is False and env["torch"] == torch.__version__
    assert env["threads"] == Train().threads and env["cpu_capability"]


@pytest.mark.parametrize("attention", ["sdpa", "plain"])
def test_the_types_of_an_attention_written_out_are_read_too(tmp_path, attention):
    """Not of a list: the product, the softmax and the norm that ran."""
    model = {"attention": attention, "norm": "layernorm_plain", "qk_norm": True}
    run = told(tmp_path / "run", config(model=model, precision="bf16-mixed", steps=1))
    assert set(run.env["compute_dtypes"]) == {"matmul", "norm", "softmax", "loss", "optimizer"}
    assert "bfloat16" in run.env["compute_dtypes"]["norm"]


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_weights_times_100_overflow_at_a_product_in_fp16_alone(tmp_path, precision):
    model = {"init_scale": 100.0, "width": 32, "placement": "none"}
    run = told(tmp_path / "run", config(model=model, precision=precision, steps=1))
    births = [e for e in run.table("events") if e["role"] == "origin"]
    if precision != "fp16":
        assert not births or births[0]["phase"] == "backward"
        return
    (born,) = births
    assert (born["phase"], born["kind"]) == ("forward", "inf") and "mm" in born["op"]
    assert run.env["device"] == "cpu" and run.env["compute_dtypes"]["matmul"] == "float16"
    assert "float16" in run.explained.diagnosis


def two_devices() -> Made:
    made = Made(["train.device", "model.placement", "train.lr", "model.eps"], full=True)
    cells = {"pre": (1e-3, 1e-5), "post": (1e-2, 1e-8)}
    for device, (placement, (lr, eps)) in product(("cpu", "cuda"), cells.items()):
        setting = {"model.placement": placement, "train.lr": lr, "model.eps": eps}
        made.run(
            {"train.device": device, **setting},
            loss=learning(30, 2.4, np.random.default_rng(0)),
            grads=norms(4, 30, 1.5), verdict="learned", end_gap=-0.5,
            grad_ratio_step0=1.5, grad_ratio_end=1.5,
        )  # fmt: skip
    return made


def test_no_legend_entry_holds_runs_of_two_devices():
    runs, steps, layers, axes = two_devices().frames()
    sweep = SweepFrames(runs, steps, layers, axes, "made")
    dressed = dress(runs, sweep.look).merge(runs[["run", "train.device"]], on="run")
    for _, group in dressed.groupby(["facet", "series"]):
        assert group["train.device"].nunique() == 1
    for kind, picture in PICTURES.items():
        with house_style():
            figure = picture(sweep)
        words = " ".join(t.get_text() for t in figure.findobj(lambda a: hasattr(a, "get_text")))
        assert "cpu" in words and "cuda" in words, kind
        figure.clear()


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_what_env_says_of_the_optimizer_is_its_kernel(precision):
    state = state_of(precision=precision)
    fused = environment(state, corpus(MARKOV), "cpu")
    state.optimizer = torch.optim.AdamW(state.model.parameters(), foreach=False)
    single = environment(state, corpus(MARKOV), "cpu")
    assert (fused["optimizer_kernel"], single["optimizer_kernel"]) == ("fused", "per tensor")
    assert fused["compute_dtypes"]["optimizer"] == "float32"
    narrow = "float16" if precision == "fp16" else "float32"
    assert single["compute_dtypes"]["optimizer"] == narrow
