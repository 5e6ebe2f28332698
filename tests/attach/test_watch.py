"""lnexp.watch: it sees what is there, changes nothing, and lets go."""

import json
import math
import subprocess
import sys

import pytest
import torch
from torch import nn

import lnexp
from lnexp.messages import UserError
from tests.attach.loops import (
    batches,
    cross_entropy,
    encoder,
    hooks_of,
    origin,
    rows,
    separate,
    trained,
)

LEVELS = ("off", "light", "full")


def two(model: nn.Module) -> list[torch.optim.Optimizer]:
    matrices = [p for p in model.parameters() if p.dim() > 1]
    rest = [p for p in model.parameters() if p.dim() < 2]
    return [torch.optim.SGD(matrices, lr=0.1, momentum=0.9), torch.optim.Adam(rest, lr=1e-3)]


def freeze(model: nn.Module) -> nn.Module:
    for weight in model.encoder.layers[1].parameters():  # type: ignore[union-attr]
        weight.requires_grad_(False)
    return model


WAYS = {
    "pre-norm": (lambda: encoder(8), {}),
    "post-norm": (lambda: encoder(8, norm_first=False), {}),
    "accumulated": (encoder, {"accumulate": 2}),
    "tied": (lambda: encoder(tie=True), {}),
    "frozen": (lambda: freeze(encoder()), {}),
    "two optimizers": (encoder, {"optimizers": two}),
    "separate q, k, v": (separate, {}),
}


@pytest.mark.parametrize("way", WAYS)
def test_watching_changes_no_bit_of_training(way, tmp_path):
    make, options = WAYS[way]
    plain_model = make()
    plain = trained(plain_model, **options)
    for level in LEVELS:
        model = make()
        assert trained(model, tmp_path / level, level=level, **options) == plain
        assert all(map(torch.equal, model.parameters(), plain_model.parameters()))
        assert hooks_of(model) == 0
    assert trained(make(), tmp_path / "third", every=3, level="full", **options) == plain
    third = rows(tmp_path / "third", "steps")
    assert [bool(row["grad_norm"]) for row in third] == [True, False, False] * 2
    assert [row["loss"] for row in third] == [
        row["loss"] for row in rows(tmp_path / "full", "steps")
    ]


def test_norms_by_layer_are_those_of_a_loop_written_out(tmp_path):
    model, (ids,) = encoder(3, dropout=0.0), batches(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with lnexp.watch(model, optimizer, out=tmp_path / "run") as w:
        loss = cross_entropy(model, ids)
        loss.backward()
        grads = {n: p.grad.double().clone() for n, p in model.named_parameters()}
        before = {n: p.detach().double().clone() for n, p in model.named_parameters()}
        w.step(loss)
        optimizer.step()
    moved = {n: p.detach().double() - before[n] for n, p in model.named_parameters()}

    def norm(tensors, has: str, *words: str) -> float:
        chosen = [
            t for n, t in tensors.items() if has in n and (not words or n.split(".")[3] in words)
        ]
        return math.sqrt(sum(float(t.square().sum()) for t in chosen))

    (step,), layers = rows(tmp_path / "run", "steps"), rows(tmp_path / "run", "layers")
    assert float(step["grad_norm"]) == pytest.approx(norm(grads, ""), rel=1e-5)
    assert float(step["update_norm"]) == pytest.approx(norm(moved, ""), rel=1e-4)
    assert float(step["weight_norm"]) == pytest.approx(norm(before, ""), rel=1e-5)
    parts = {"attn": ["self_attn"], "mlp": ["linear1", "linear2"], "norm": ["norm1", "norm2"]}
    for row in layers:
        if row["part"] in parts:
            of = f"layers.{row['layer']}.", *parts[row["part"]]
            assert float(row["grad_norm"]) == pytest.approx(norm(grads, *of), rel=1e-5)
            assert float(row["update_norm"]) == pytest.approx(norm(moved, *of), rel=1e-4)
    assert [(r["layer"], r["part"]) for r in layers[:2]] == [("-1", "embed"), ("0", "attn")]


def test_the_stream_is_read_where_blocks_are_called_with_it(tmp_path):
    model, (ids,) = encoder(3, dropout=0.0), batches(1)
    optimizer = torch.optim.AdamW(model.parameters())
    with lnexp.watch(model, optimizer, out=tmp_path / "run", level="full") as w:
        loss = cross_entropy(model, ids)
        loss.backward()
        w.step(loss)
        streams = [model.embed(ids)]
        for layer in model.encoder.layers:
            streams.append(layer(streams[-1]))
        for stream in streams:
            stream.retain_grad()
        nn.functional.cross_entropy(model.head(streams[-1]).flatten(0, 1), ids.flatten()).backward()
    found = {(int(r["layer"]), r["part"]): r for r in rows(tmp_path / "run", "layers")}

    def rms(x) -> float:
        return float(x.detach()[:2].double().square().mean().sqrt())

    for layer in range(3):
        assert float(found[layer, "mlp"]["act_rms"]) == pytest.approx(rms(streams[layer + 1]))
        given = found[layer, "attn"]
        assert float(given["norm_input_rms"]) == pytest.approx(rms(streams[layer]))
        gradient = rms(streams[layer].grad)
        assert float(given["stream_grad_rms"]) == pytest.approx(gradient, rel=1e-4)
    assert float(found[-1, "embed"]["act_rms"]) == pytest.approx(rms(streams[0]))


def test_a_scaled_loss_is_recorded_unscaled_and_its_search_is_no_failure(tmp_path):
    def loop(out, scaled):
        model = encoder(dropout=0.0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12, enabled=scaled)
        with lnexp.watch(model, optimizer, out=out, scaler=scaler) as w:
            for step, ids in enumerate(batches(5)):
                loss = cross_entropy(model, ids)
                scaler.scale(loss).backward()
                if step == 2 and scaled:
                    model.head.weight.grad[0, 0] = math.inf
                w.step(loss)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
        return out

    plain, out = loop(tmp_path / "plain", False), loop(tmp_path / "scaled", True)
    one, other = rows(plain, "steps"), rows(out, "steps")
    for a, b in zip(one[:2], other[:2], strict=True):  # a power of two
        assert float(a["grad_norm"]) == pytest.approx(float(b["grad_norm"]), rel=1e-6)
    assert [r["skipped"] for r in other] == ["0", "0", "1", "0", "0"]
    assert [r["loss_scale"] for r in other] == ["4096.0"] * 3 + ["2048.0"] * 2
    assert [r["kind"] for r in rows(out, "events")] == ["scaler_skip"]
    status = json.loads((out / "status.json").read_text())
    assert status["first_bad_step"] is None and status["skipped"] == 1


@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_a_nan_in_one_of_q_k_and_v_is_found_there_with_its_step(name, tmp_path):
    model = separate(4)
    target = model.encoder[2].attn[name]
    bad = [False]
    target.register_forward_hook(lambda m, i, out: out * math.nan if bad[0] else None)
    trained(model, tmp_path / "run", at=lambda step: bad.__setitem__(0, step == 3))
    found = origin(tmp_path / "run")
    assert (found["module"], found["phase"], found["kind"]) == (
        f"encoder.2.attn.{name}",
        "forward",
        "nan",
    )
    assert found["op"] == "aten.mul.Tensor"
    assert json.loads((tmp_path / "run" / "status.json").read_text())["first_bad_step"] == 3


def test_a_gradient_that_goes_bad_in_one_of_q_k_and_v_is_found_in_backward(tmp_path):
    model = separate(4)
    root = nn.Module()
    root.forward = lambda x: (x * 0).abs().sqrt() + x  # finite; its gradient is 0 x inf
    model.encoder[1].attn["k"] = nn.Sequential(model.encoder[1].attn["k"], root)
    trained(model, tmp_path / "run", steps=2)
    found = origin(tmp_path / "run")
    assert found["phase"] == "backward" and found["module"] == "encoder.1.attn.k.1"
    assert math.isfinite(float(rows(tmp_path / "run", "steps")[0]["loss"]))


def test_the_replay_draws_the_same_dropout_and_leaves_every_stream_where_it_was(tmp_path):
    seen = []

    def run(out):
        model = encoder(dropout=0.5)

        def look(module, given, output):
            if step[0] == 2:
                seen.append(int((output == 0).sum()))
                return output * math.inf
            return None

        step = [0]
        model.encoder.layers[1].dropout2.register_forward_hook(look)
        losses = trained(model, out, at=lambda s: step.__setitem__(0, s))
        return losses, torch.rand(1)

    losses, drawn = run(tmp_path / "run")
    others, theirs = run(None)
    assert seen[0] == seen[1] and losses[:2] == others[:2] and torch.equal(drawn, theirs)


def test_an_update_that_divides_zero_by_zero_is_the_optimizers(tmp_path):
    """Adam without eps, on the embeddings of letters that the batch does not hold."""
    way = {"optimizers": lambda m: [torch.optim.AdamW(m.parameters(), lr=1e-3, eps=0.0)]}
    trained(encoder(dropout=0.0), tmp_path / "run", steps=2, **way)
    found = origin(tmp_path / "run")
    assert (found["phase"], found["kind"], found["module"]) == ("optimizer", "nan", "embed.weight")
    first = rows(tmp_path / "run", "events")[0]
    assert (first["step"], first["role"]) == ("0", "origin")
    figures = json.loads((tmp_path / "run" / "autopsy.json").read_text())["optimizer"]
    assert figures["gradient"] == 0 and math.isfinite(figures["weight_before"])


class Reassigning(torch.optim.SGD):
    """Hand-written optimizers give a weight other memory; this one breaks it at its third step."""

    steps = 0

    def step(self, closure=None):
        self.steps += 1
        for group in self.param_groups:
            for p in group["params"]:
                p.data = p.data - group["lr"] * p.grad * (math.inf if self.steps == 3 else 1)


def test_weights_that_get_other_memory_are_read_where_they_are(tmp_path):
    model = encoder(dropout=0.0)
    optimizer = Reassigning(model.parameters(), lr=1e-2)
    norms = []
    with lnexp.watch(model, optimizer, out=tmp_path / "run") as w:
        for ids in batches(3):
            loss = cross_entropy(model, ids)
            loss.backward()
            w.step(loss)
            norms.append(
                math.sqrt(sum(float(p.detach().square().sum()) for p in model.parameters()))
            )
            optimizer.step()
            optimizer.zero_grad()
    steps = rows(tmp_path / "run", "steps")
    assert [float(r["weight_norm"]) for r in steps] == pytest.approx(norms, rel=1e-5)
    assert all(0 < float(r["update_norm"]) < 1 for r in steps[:2])
    events = rows(tmp_path / "run", "events")
    assert {r["step"] for r in events if r["phase"] == "optimizer"} == {"2"}


def test_an_exception_leaves_no_hook_and_a_status_that_names_it(tmp_path):
    model = encoder()

    def fail(step):
        if step == 3:
            raise KeyError("lost")

    with pytest.raises(KeyError):
        trained(model, tmp_path / "run", level="full", at=fail)
    assert hooks_of(model) == 0
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert status["status"] == "failed" and status["error"] == "KeyError: 'lost'"
    assert len(rows(tmp_path / "run", "steps")) == status["steps_done"] == 3
    trained(model, tmp_path / "run", level="full")  # it may be watched again
    assert (tmp_path / "run-2" / "status.json").exists()  # and nothing is overwritten


def watching(tmp_path, model, **options):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return lnexp.watch(model, optimizer, out=tmp_path / "run", **options), optimizer


def said(error) -> str:
    assert "\n" not in str(error.value)
    return str(error.value)


def test_step_before_backward_and_zero_grad_before_step_are_told_apart(tmp_path):
    model, (ids,) = encoder(), batches(1)
    w, optimizer = watching(tmp_path, model)
    with pytest.raises(UserError) as early, w:
        w.step(cross_entropy(model, ids))
    assert "after loss.backward()" in said(early)
    w, optimizer = watching(tmp_path, model)
    with pytest.raises(UserError) as late, w:
        loss = cross_entropy(model, ids)
        loss.backward()
        optimizer.zero_grad()
        w.step(loss)
    assert "call it before zero_grad()" in said(late)
    assert hooks_of(model) == 0


def test_a_watch_after_the_optimizer_two_watches_and_a_foreign_optimizer_are_refused(tmp_path):
    model, (ids,) = encoder(), batches(1)
    w, optimizer = watching(tmp_path, model)
    with pytest.raises(UserError) as order, w:
        loss = cross_entropy(model, ids)
        loss.backward()
        optimizer.step()
        w.step(loss)
    assert "the optimizer has stepped without it" in said(order)
    first, _ = watching(tmp_path, model)
    with first, pytest.raises(UserError) as twice:
        watching(tmp_path, model)[0].__enter__()
    assert "is watched already" in said(twice)
    other = torch.optim.AdamW(encoder().parameters())
    with pytest.raises(UserError) as foreign:
        lnexp.watch(model, other, out=tmp_path / "run").__enter__()
    assert "updates no parameter of this Text" in said(foreign)
    with pytest.raises(UserError) as outside:
        watching(tmp_path, model)[0].step(loss)
    assert "outside of" in said(outside)
    with pytest.raises(UserError) as level:
        watching(tmp_path, model, level="loud")
    assert "level='loud'" in said(level)
    with pytest.raises(UserError) as many, watching(tmp_path, model)[0] as w:
        w.step(torch.ones(4, 2))
    assert "4x2" in said(many)
    with pytest.raises(UserError) as output, watching(tmp_path, model)[0] as w:
        w.step({"loss": loss})
    assert "not a dict; of a model's output pass its loss" in said(output)
    for given, words in ((model, "not a Text"), ([], "not an empty list"), ([None], "a NoneType")):
        with pytest.raises(UserError) as kind:
            lnexp.watch(model, given, out=tmp_path / "run")
        assert words in said(kind)
    with pytest.raises(UserError) as function:
        lnexp.watch(model.forward, other, out=tmp_path / "run")
    assert "the model is a method, no torch.nn.Module" in said(function)


def test_evaluation_mode_and_gradients_of_zero_are_pointed_out_once(tmp_path):
    model, (ids,) = encoder(), batches(1)
    w, optimizer = watching(tmp_path, model.eval())
    with w, pytest.warns(UserWarning) as told:
        for _ in range(2):
            loss = cross_entropy(model, ids)
            loss.backward()
            optimizer.zero_grad(set_to_none=False)
            w.step(loss)
            optimizer.step()
    words = [str(warning.message) for warning in told]
    assert len(words) == 2 and "evaluation mode" in words[0] and "zero_grad()" in words[1]


def test_a_compiled_step_is_watched_by_the_names_of_what_was_compiled(tmp_path):
    model = encoder(2)
    wrapped = torch.compile(model, backend="eager")
    assert trained(wrapped, tmp_path / "run", steps=3) == trained(encoder(2), steps=3)
    assert {r["layer"] for r in rows(tmp_path / "run", "layers")} == {"-1", "0", "1", "2"}


def test_importing_lnexp_loads_no_torch():
    code = (
        "import sys, lnexp; assert 'torch' not in sys.modules; "
        "lnexp.watch; assert 'torch' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
