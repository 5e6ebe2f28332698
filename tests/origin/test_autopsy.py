"""One injected fault a phase, each located exactly: module, operation, phase, kind, step."""

import math
from contextlib import contextmanager

import pytest
import torch
from torch import nn

from lnexp.config.schema import Data, Measure, Model, RunConfig, Train
from lnexp.data import load
from lnexp.origin.autopsy import examine
from lnexp.rows import Record
from lnexp.train.loop import train
from lnexp.train.state import State, set_up

CORPUS = load(Data(source="markov", length=5000))
SIX = {"depth": 6, "width": 16, "heads": 2, "context": 12, "init": "xavier"}


def state_of(model=None, train=None, measure=None) -> State:
    config = RunConfig(
        data=Data(source="markov", length=5000),
        model=Model(**{**SIX, **(model or {})}),
        train=Train(**{"steps": 5, "batch_size": 4, **(train or {})}),
        measure=Measure(**(measure or {})),
    )
    return set_up(config, CORPUS, "cpu")


def records(state: State) -> list[Record]:
    return list(train(state))


def roles(rows: list[Record], role: str):
    return [e for r in rows for e in r.events if e.role == role]


@contextmanager
def hooked(module: nn.Module, hook, when):
    """The module's output goes through `hook` while `when()` holds; the replay included."""
    handle = module.register_forward_hook(lambda m, i, out: hook(out) if when() else None)
    try:
        yield
    finally:
        handle.remove()


class Separate(nn.Module):
    """Causal attention with W_Q, W_K and W_V as modules of their own, in a container."""

    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        parts = [p.detach().clone() for p in attention.wqkv.weight.chunk(3)]
        width = parts[0].shape[1]
        self.heads, self.softmax = attention.heads, lambda scores: scores.softmax(-1)
        self.qkv = nn.ModuleDict({n: nn.Linear(width, width, bias=False) for n in "qkv"})
        with torch.no_grad():
            for name, part in zip("qkv", parts, strict=True):
                self.qkv[name].weight.copy_(part)
        self.wo = attention.wo

    def forward(self, x):
        B, T, D = x.shape
        q, k, v = (self.qkv[n](x).view(B, T, self.heads, -1).transpose(1, 2) for n in "qkv")
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        later = torch.ones(T, T, dtype=torch.bool).triu(1)
        p = self.softmax(scores.masked_fill(later, -math.inf))
        return self.wo((p @ v).transpose(1, 2).flatten(2))


def test_inf_out_of_an_mlp_is_one_origin_there_although_it_becomes_nan_in_the_next_norm():
    state = state_of()
    target = state.model.blocks[2].mlp.body
    with hooked(target, lambda y: y * math.inf, lambda: state.steps_done == 3):
        rows = records(state)
    (origin,) = roles(rows, "origin")
    assert (origin.step, origin.phase, origin.kind) == (3, "forward", "inf")
    assert origin.module == "blocks.2.mlp.body" and origin.op == "aten.mul.Tensor"
    assert state.first_bad_step == 3 and len(rows) == 4
    assert {e.phase for e in roles(rows, "propagated")} == {"loss", "backward"}
    assert all(e.role for r in rows for e in r.events if e.kind in ("nan", "inf"))
    # Again in the same process without the fault: no event, no hook left.
    again = state_of()
    assert not [e for r in records(again) for e in r.events]
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in again.model.modules())


class RootPlusEps(nn.Module):
    """(x - mean) / (sqrt(var) + eps): its backward at zero variance is 0 x inf."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.eps = 1e-5
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        centred = x - x.mean(-1, keepdim=True)
        return centred / (centred.square().mean(-1, keepdim=True).sqrt() + self.eps) * self.weight


def test_a_root_without_eps_at_zero_variance_is_located_in_backward_in_its_block():
    state = state_of()
    norm = state.model.blocks[3].mlp.before = RootPlusEps(16)
    with hooked(
        state.model.blocks[3].attn, lambda h: h * 0 + 1, lambda: state.steps_done == 2
    ):  # constant rows
        rows = records(state)
    (origin,) = roles(rows, "origin")
    assert (origin.step, origin.phase) == (2, "backward")
    assert origin.module == "blocks.3.mlp.before" and origin.op.startswith("SqrtBackward0/")
    assert math.isfinite(rows[-1].step.loss)
    assert isinstance(norm, RootPlusEps)


def test_eps_inside_the_root_has_no_event_on_constant_rows():
    for norm in ("layernorm", "layernorm_plain", "rmsnorm"):
        state = state_of(model={"norm": norm})
        with hooked(state.model.blocks[3].attn, lambda h: h * 0 + 1, lambda: True):
            assert not [e for r in records(state) for e in r.events if e.kind in ("nan", "inf")]


@pytest.mark.parametrize("separate", [False, True])
def test_a_fully_masked_row_is_born_in_the_softmax_though_the_loss_is_finite(separate):
    state = state_of(model={"attention": "plain"})
    body = state.model.blocks[4].attn.body
    if separate:
        body = state.model.blocks[4].attn.body = Separate(body)
    softmax, strict = body.softmax, [False]

    def mask_more(scores):
        T = scores.shape[-1]
        if strict[0]:
            scores = scores.masked_fill(torch.ones(T, T, dtype=torch.bool).triu(0), -math.inf)
        return softmax(scores)

    body.softmax = mask_more
    plain_objective = state.objective

    def without_first_row(model, x, y):
        logits = model(x)[:, 1:].flatten(0, 1)
        loss = nn.functional.cross_entropy(logits, y[:, 1:].flatten())
        return loss, loss

    # Row 0 sees nothing: softmax(-inf, ...) is 0/0. Later blocks must not see it either.
    class DropRow(nn.Module):
        def forward(self, h):
            return torch.cat([torch.zeros_like(h[:, :1]), h[:, 1:]], 1) if strict[0] else h

    state.model.blocks[5] = DropRow()
    state.objective = without_first_row  # type: ignore[method-assign]
    del plain_objective
    stream = RowsWith(state, lambda: strict.__setitem__(0, state.steps_done == 2))
    rows = stream.records()
    (origin,) = roles(rows, "origin")
    assert (origin.step, origin.phase, origin.kind) == (2, "forward", "nan")
    assert origin.module == "blocks.4.attn.body" and origin.op == "aten._softmax.default"
    assert math.isfinite(rows[-1].step.loss)
    assert [e.phase for e in roles(rows, "propagated")] == ["backward"]


class RowsWith:
    """Trains with something done before each step."""

    def __init__(self, state: State, before) -> None:
        self.state, self.before = state, before

    def records(self) -> list[Record]:
        draw = self.state.batches.draw

        def drawing():
            self.before()
            return draw()

        self.state.batches.draw = drawing  # type: ignore[method-assign]
        return records(self.state)


def test_the_causal_mask_itself_never_makes_an_event():
    state = state_of(model={"attention": "plain"}, measure={"level": "full"})
    with hooked(state.model.blocks[5].mlp.body, lambda y: y * math.nan, lambda: True):
        (origin,) = roles(records(state), "origin")
    assert origin.module == "blocks.5.mlp.body"  # not an earlier masked_fill or softmax


@pytest.mark.parametrize("separate", [False, True])
def test_an_fp16_overflow_of_q_k_is_inf_at_the_product_not_nan_at_the_softmax(separate):
    state = state_of(model={"attention": "plain", "width": 64}, train={"precision": "fp16"})
    body = state.model.blocks[1].attn.body
    if separate:
        body = state.model.blocks[1].attn.body = Separate(body).half()
        targets = [body.qkv["q"], body.qkv["k"]]
        from contextlib import ExitStack

        with ExitStack() as stack:
            for target in targets:
                stack.enter_context(hooked(target, lambda y: y * 0 + 50, lambda: True))
            rows = records(state)
    else:
        with hooked(body.wqkv, lambda y: y * 0 + 50, lambda: True):
            rows = records(state)
    (origin,) = roles(rows, "origin")  # 32 x 50 x 50 = 80000 > 65504
    assert (origin.step, origin.phase, origin.kind) == (0, "forward", "inf")
    assert origin.module == "blocks.1.attn.body" and origin.op == "aten.bmm.default"


@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_separate_q_k_and_v_are_told_apart_in_backward(name):
    state = state_of()
    body = state.model.blocks[2].attn.body = Separate(state.model.blocks[2].attn.body)

    class Poison(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, g):
            return g * math.inf

    class Poisoned(nn.Linear):
        def forward(self, x):
            return Poison.apply(super().forward(x))

    body.qkv[name] = Poisoned(16, 16, bias=False)
    (origin,) = roles(records(state), "origin")
    assert (origin.phase, origin.module) == ("backward", f"blocks.2.attn.body.qkv.{name}")


def test_inf_in_one_gradient_names_its_parameter_in_backward():
    state = state_of()
    weight = state.model.blocks[1].mlp.body.w1.weight

    def poison(g):
        g = g.clone()
        g[2, 3] = math.inf
        return g if state.steps_done == 1 else None

    weight.register_hook(poison)
    before = None
    rows = []
    for record in train(state):
        rows.append(record)
        if record.step.step == 0:
            before = [p.detach().clone() for p in state.model.parameters()]
    (origin,) = roles(rows, "origin")
    assert (origin.step, origin.phase, origin.kind) == (1, "backward", "inf")
    assert origin.module.startswith("blocks.1.mlp.body.w1")
    assert all(map(torch.equal, before, state.model.parameters()))  # the optimizer did not act


def test_adams_eps_in_fp16_with_the_unfused_kernel_is_the_optimizers_fault():
    state = state_of(train={"precision": "fp16", "lr": 1e-3})
    state.optimizer = torch.optim.AdamW(state.model.parameters(), lr=1e-3, eps=1e-8, foreach=False)
    rows = records(state)
    (origin,) = roles(rows, "origin")
    assert (origin.step, origin.phase) == (0, "optimizer") and origin.op == "AdamW (per tensor)"
    assert len(rows) == 1 and math.isfinite(rows[0].step.loss)
    facts = rows[0].autopsy["optimizer"]
    assert facts["parameter"] == origin.module and facts["eps"] == 1e-8 and facts["eps_held"] == 0
    assert facts["exp_avg_sq"] == 0 and facts["underflowed"] > 0
    assert rows[0].autopsy["nature"] == "numerical"


def test_weights_made_nonfinite_end_the_run_even_under_continue():
    state = state_of(train={"precision": "fp16", "lr": 1e-3, "on_nonfinite": "continue"})
    state.optimizer = torch.optim.AdamW(state.model.parameters(), lr=1e-3, eps=1e-8, foreach=False)
    assert len(records(state)) == 1


def test_the_fp64_replay_tells_an_overflow_of_the_format_from_a_mathematical_fault():
    overflow = state_of(model={"placement": "none", "init_scale": 30.0})
    (record,) = records(overflow)
    assert record.autopsy["nature"] == "numerical"
    assert record.autopsy["shadow"]["float64"]["finite"]
    beyond = state_of(model={"placement": "none", "init_scale": 1e9})
    (record,) = records(beyond)
    assert record.autopsy["nature"] == "overflow"  # of fp64, too
    assert record.autopsy["shadow"]["float64"]["origin"]["kind"] == "inf"
    division = state_of()
    with hooked(division.model.blocks[0].mlp.body, lambda y: (y * 0) / (y * 0), lambda: True):
        (record,) = records(division)
    assert record.autopsy["nature"] == "mathematical"
    assert not record.autopsy["shadow"]["float64"]["finite"]


def test_half_precision_is_replayed_in_fp32_too():
    state = state_of(model={"attention": "plain", "width": 64}, train={"precision": "fp16"})
    with hooked(state.model.blocks[1].attn.body.wqkv, lambda y: y * 0 + 50, lambda: True):
        shadows = records(state)[0].autopsy["shadow"]
    assert set(shadows) == {"float64", "float32"} and shadows["float32"]["finite"]


def test_a_failure_that_the_replay_does_not_show_is_said_to_be_not_reproduced():
    state = state_of()
    poisoned = [True]

    def once(y):
        if poisoned[0]:
            poisoned[0] = False
            return y * math.nan
        return y

    with hooked(state.model.blocks[0].mlp.body, once, lambda: True):
        (record,) = records(state)
    assert record.autopsy["nature"] == "not reproduced" and record.autopsy["origin"] is None
    assert "not_reproduced" in [e.kind for e in record.events]
    assert not roles([record], "origin")


def test_dropout_draws_the_same_masks_in_the_replay():
    state = state_of(model={"dropout": 0.5})
    seen = []

    def look(y):
        seen.append((y == 0).sum().item())
        return y * math.inf if state.steps_done == 1 else y

    with hooked(state.model.blocks[0].mlp.body, look, lambda: True):
        rows = records(state)
    assert roles(rows, "origin") and seen[1] == seen[2] != seen[0]  # step 1 and its replay


@pytest.mark.parametrize("level", ["off", "light", "full"])
def test_an_autopsy_changes_no_training_under_continue(level):
    def run(examined: bool) -> list[float]:
        state = state_of(
            model={"dropout": 0.1}, train={"on_nonfinite": "continue"}, measure={"level": level}
        )
        if not examined:
            state.first_bad_step = 0  # an autopsy is made of the first failing step alone
        with hooked(
            state.model.blocks[0].mlp, lambda y: y * math.nan, lambda: state.steps_done == 2
        ):
            return [r.step.loss for r in train(state)]

    one, other = run(True), run(False)
    assert one[:2] == other[:2] and one[3:] == other[3:] and math.isnan(one[2])


def test_no_hook_survives_an_exception_in_the_replay():
    model = nn.Sequential(nn.Linear(2, 2), nn.Tanh())

    def fail(m):
        m(torch.ones(1, 2))
        raise KeyError

    with pytest.raises(KeyError):
        examine(model, fail, step=0, shadow=lambda m, dtype: m(torch.ones(1, 2)).sum())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert torch.ones(1).log().isfinite()  # and no mode is left on


def test_any_model_can_be_examined():
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)

    def run(m):
        dtype = next(m.parameters()).dtype
        x = torch.linspace(-1, 1, 24, dtype=dtype).view(1, 3, 8)
        return (m(x).sum() * 0 - 1).log()

    found = examine(model, run, step=7, shadow=lambda m, dtype: run(m))
    assert found.origin is not None and found.origin.phase == "loss"
    assert found.origin.op == "aten.log.default" and found.origin.kind == "nan"
    assert found.nature == "mathematical"


def test_the_origin_says_what_went_in():
    state = state_of(model={"attention": "plain", "width": 64}, train={"precision": "fp16"})
    with hooked(state.model.blocks[1].attn.body.wqkv, lambda y: y * 0 + 50, lambda: True):
        origin = records(state)[0].autopsy["origin"]
    assert [t["absmax"] for t in origin["inputs"]] == [50.0, 50.0]
    assert origin["inputs"][0]["dtype"] == "float16" and origin["outputs"][0]["inf"] > 0


def test_a_deep_stack_without_norms_dies_in_backward_first():
    model = {"placement": "none", "depth": 60, "width": 32, "context": 32, "embed_std": 1.0}
    rows = records(state_of(model=model))
    (origin,) = roles(rows, "origin")
    assert math.isfinite(rows[0].step.loss) and origin.phase == "backward" and origin.step == 0
    assert origin.op == "AddmmBackward0/aten.mm.default" and origin.module.startswith("blocks.5")
    assert rows[0].autopsy["nature"] == "numerical"


@pytest.mark.parametrize("attention", ["sdpa", "plain"])
def test_a_hundred_blocks_without_norms_fail_in_fp32_by_rounding_alone(attention):
    model = {"placement": "none", "depth": 100, "width": 32, "context": 32, "embed_std": 0.02,
             "attention": attention}  # fmt: skip
    rows = records(state_of(model=model))
    (origin,) = roles(rows, "origin")
    assert math.isfinite(rows[0].step.loss) and origin.phase == "backward"
    assert origin.op == "AddmmBackward0/aten.mm.default" and origin.module.startswith("blocks.9")
    assert rows[0].autopsy["nature"] == "numerical"
    # The gradient that fp64 finds would fit into fp32: what leaves it there is amplified rounding.
    assert rows[0].autopsy["shadow"]["float64"]["grad_norm"] < 3e38


FP64 = {"precision": "fp64"}


def test_fused_attention_fails_at_large_scores_in_fp64_too_and_the_shadow_does_not_use_it():
    # From which scores on the kernel fails depends on the processor.
    runs = (
        records(state_of(model={"placement": "none", "init_scale": scale}, train=FP64))
        for scale in (10.0, 2000.0)
    )
    record = next(rows[-1] for rows in runs if rows[-1].autopsy)
    assert "attention" in record.autopsy["origin"]["op"].lower()
    assert record.autopsy["nature"] == "numerical"
    assert record.autopsy["shadow"]["float64"]["finite"]
    assert record.autopsy["shadow"]["float64"]["grad_norm"] < 1e80


@pytest.mark.parametrize("norm", ["batchnorm", "powernorm"])
def test_an_autopsy_leaves_running_statistics_where_they_were(norm):
    def run(examined: bool) -> tuple[list[float], list[torch.Tensor]]:
        state = state_of(model={"norm": norm}, train={"on_nonfinite": "continue"})
        if not examined:
            state.first_bad_step = 0
        weight = state.model.blocks[0].mlp.body.w1.weight
        weight.register_hook(lambda g: g * math.inf if state.steps_done == 2 else g)
        losses = [r.step.loss for r in train(state)]
        return losses, list(state.model.buffers())

    (losses, buffers), (others, theirs) = run(True), run(False)
    assert losses == others and all(map(torch.equal, buffers, theirs))
