"""Models and Trainer of transformers (extra `hf`), random weights, no download."""

import json
import math

import pytest
import torch

pytestmark = pytest.mark.slow
transformers = pytest.importorskip("transformers")
adapter = pytest.importorskip("lnexp.adapters.hf")

import lnexp  # noqa: E402
from tests.attach.loops import hooks_of, origin, rows  # noqa: E402

SMALL = {"vocab_size": 60, "bos_token_id": 0, "eos_token_id": 0}


def gpt2():
    torch.manual_seed(0)
    config = transformers.GPT2Config(n_layer=4, n_embd=32, n_head=2, n_positions=32, **SMALL)
    return transformers.GPT2LMHeadModel(config)


def llama():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=32, num_hidden_layers=4, num_attention_heads=2, intermediate_size=64, **SMALL
    )
    return transformers.LlamaForCausalLM(config)


def loop(model, out=None, steps=30, at=lambda step: None, **options) -> list[float]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator, losses = torch.Generator().manual_seed(1), []
    torch.manual_seed(2)
    model.train()
    w = lnexp.watch(model, optimizer, out, **options) if out else None
    if w:
        w.__enter__()
    for step in range(steps):
        at(step)
        ids = torch.randint(60, (4, 16), generator=generator)
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        if w:
            w.step(loss, replay=lambda ids=ids: model(input_ids=ids, labels=ids).loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    if w:
        w.__exit__(None, None, None)
    return losses


@pytest.mark.parametrize("make", [gpt2, llama])
def test_thirty_steps_are_bit_identical_with_and_without_watch(make, tmp_path):
    plain_model = make()
    plain = loop(plain_model)
    for level in ("light", "full"):
        model = make()
        assert loop(model, tmp_path / level, level=level) == plain
        assert all(map(torch.equal, model.parameters(), plain_model.parameters()))
    found = rows(tmp_path / "full", "layers")
    assert {row["layer"] for row in found} == {"-1", "0", "1", "2", "3", "4"}
    assert all(row["act_rms"] and row["norm_input_rms"] for row in found if row["part"] == "mlp")


def poisoned(model, name: str, when):
    """The module's output is NaN while `when()` holds."""

    def hook(module, given, output):
        if not when():
            return None
        if isinstance(output, tuple):
            return output[0] * math.nan, *output[1:]
        return output * math.nan

    model.get_submodule(name).register_forward_hook(hook)
    return model


PLACES = [
    (gpt2, "transformer.h.2.attn.c_attn"),
    (gpt2, "transformer.h.1.attn"),
    (llama, "model.layers.1.self_attn.q_proj"),
    (llama, "model.layers.3.self_attn.k_proj"),
    (llama, "model.layers.0.self_attn.v_proj"),
]


@pytest.mark.parametrize(("make", "name"), PLACES)
def test_a_nan_in_an_attention_is_located_through_the_plain_loop(make, name, tmp_path):
    now = [0]
    model = poisoned(make(), name, lambda: now[0] == 3)
    loop(model, tmp_path / "run", steps=5, at=lambda step: now.__setitem__(0, step))
    found = origin(tmp_path / "run")
    assert (found["module"], found["op"], found["phase"]) == (name, "aten.mul.Tensor", "forward")
    assert json.loads((tmp_path / "run" / "status.json").read_text())["first_bad_step"] == 3


class BackwardNan(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return g * math.nan


INSIDE = [
    (gpt2, "transformer.h.2.attn", ["c_attn"]),
    (llama, "model.layers.2.self_attn", ["q_proj", "k_proj"]),
]


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize(("make", "attention", "scores"), INSIDE)
def test_scores_that_overflow_are_found_in_their_attention_and_fp64_holds_them(
    make, attention, scores, implementation, tmp_path
):
    model, now = make(), [0]
    model.set_attn_implementation(implementation)
    for name in scores:
        module = model.get_submodule(f"{attention}.{name}")
        module.register_forward_hook(lambda m, given, out: out * 1e25 if now[0] == 2 else None)
    loop(model, tmp_path / "run", steps=4, at=lambda step: now.__setitem__(0, step))
    found = origin(tmp_path / "run")
    assert (found["module"], found["phase"]) == (attention, "forward")
    assert "bmm" in found["op"] or "attention" in found["op"]
    autopsy = json.loads((tmp_path / "run" / "autopsy.json").read_text())
    assert (autopsy["step"], autopsy["nature"]) == (2, "numerical")


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("through", ["loop", "trainer"])
@pytest.mark.parametrize(("make", "attention", "last"), [(m, a, n[-1]) for m, a, n in INSIDE])
def test_a_gradient_that_goes_bad_in_an_attention_is_found_in_backward(
    make, attention, last, through, tmp_path
):
    model, name = make(), f"{attention}.{last}"
    model.get_submodule(name).register_forward_hook(lambda m, g, out: BackwardNan.apply(out))
    if through == "loop":
        loop(model, tmp_path / "run", steps=1)
    else:
        trainer(model, tmp_path, [adapter.WatchCallback(out=tmp_path / "run")])
    found = origin(tmp_path / "run")
    assert (found["module"], found["phase"], found["kind"]) == (name, "backward", "nan")
    assert found["op"] == "BackwardNanBackward/aten.mul.Tensor"


class Data(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index):
        ids = torch.randint(60, (16,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": ids, "labels": ids}


def trainer(model, tmp_path, callbacks=(), accumulate=1):
    args = transformers.TrainingArguments(
        output_dir=str(tmp_path / "trainer"), max_steps=5, per_device_train_batch_size=4,
        gradient_accumulation_steps=accumulate, logging_steps=1, save_strategy="no", use_cpu=True,
        report_to=[], disable_tqdm=True,
    )  # fmt: skip
    made = transformers.Trainer(
        model=model, args=args, train_dataset=Data(), callbacks=list(callbacks)
    )
    made.train()
    return [row for row in made.state.log_history if "loss" in row]


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(("make", "accumulate"), [(gpt2, 1), (gpt2, 2), (llama, 1)])
def test_the_trainers_callback_reads_gradients_before_clipping_and_changes_nothing(
    make, accumulate, tmp_path
):
    plain, model = make(), make()
    trainer(plain, tmp_path, accumulate=accumulate)
    watch = adapter.WatchCallback(out=tmp_path / "run", level="full")
    logged = trainer(model, tmp_path, [watch], accumulate)
    assert all(map(torch.equal, model.parameters(), plain.parameters()))
    assert hooks_of(model) == 0
    found = rows(tmp_path / "run", "steps")
    assert len(found) == len(logged) == 5
    for row, said in zip(found, logged, strict=True):
        assert float(row["loss"]) == pytest.approx(float(said["loss"]), rel=1e-3)
        assert float(row["grad_norm"]) == pytest.approx(float(said["grad_norm"]), rel=1e-3)


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(("make", "name"), PLACES)
def test_a_nan_in_an_attention_is_located_through_the_trainer(make, name, tmp_path):
    model = poisoned(make(), name, lambda: True)
    trainer(model, tmp_path, [adapter.WatchCallback(out=tmp_path / "run")])
    found = origin(tmp_path / "run")
    assert (found["module"], found["op"], found["phase"]) == (name, "aten.mul.Tensor", "forward")


@pytest.mark.filterwarnings("default")
def test_an_exception_in_training_lets_go_at_the_end_of_the_with(tmp_path):
    model = gpt2()
    handle = model.transformer.h[0].register_forward_hook(lambda *_: 1 / 0)
    with (
        pytest.raises(ZeroDivisionError),
        adapter.WatchCallback(out=tmp_path / "run") as watch,
    ):
        trainer(model, tmp_path, [watch])
    handle.remove()
    assert hooks_of(model) == 0
    assert json.loads((tmp_path / "run" / "status.json").read_text())["status"] == "failed"
