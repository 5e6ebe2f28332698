"""Norms are named where they stand, and what the public cases show is found."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from lnexp.config.schema import Model
from lnexp.inspect.checkpoint_file import Checkpoint, matched, read_checkpoint
from lnexp.inspect.model import concerns, find_norms, inspected, moments, unique_tensors
from lnexp.inspect.placement import AFTER, BEFORE, EMBEDDING, INSIDE, NOT_FOUND, OUTPUT, WITHIN
from lnexp.messages import UserError
from lnexp.model.catalog import PLACEMENTS, Seat
from lnexp.model.gpt import GPT
from lnexp.model.init import build
from tests.cli import lnexp
from tests.runs.small import SMALL, write_config

SIZES = {"width": 16, "heads": 2, "context": 16}


def gpt(**settings) -> GPT:
    config = Model(**{"depth": 3, **SIZES, **settings})
    return build(config, 11, 0)


def standing(model: nn.Module, example=None) -> dict[str, str]:
    return {norm["module"]: norm["place"] for norm in inspected(model, example, None)["norms"]}


def warnings(model: nn.Module, tensors=None, optimizer=None, trained=True) -> list[str]:
    kept = Checkpoint(tensors or unique_tensors(model), optimizer)
    return concerns(inspected(model, None, kept), trained)


@pytest.mark.parametrize("norm", ["layernorm", "rmsnorm_plain", "dyt"])
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_each_norm_of_our_model_stands_where_its_placement_puts_it(placement, norm):
    found, depth = standing(gpt(placement=placement, norm=norm)), 3
    expected = {}
    for block in range(depth):
        for half in ("attn", "mlp"):
            form = PLACEMENTS[placement].at(Seat(block, half, depth))
            for name, place in (("before", BEFORE), ("inside", INSIDE), ("after", AFTER)):
                if getattr(form, name):
                    expected[f"blocks.{block}.{half}.{name}"] = place
    if PLACEMENTS[placement].final:
        expected["norm"] = OUTPUT
    assert found == expected


def test_without_residual_connections_no_place_is_guessed():
    found = standing(gpt(placement="pre", residual=False))
    assert set(found.values()) == {NOT_FOUND}


def test_qk_norm_stands_inside_a_sublayer():
    found = standing(gpt(qk_norm=True))
    assert {found[f"blocks.1.attn.body.{n}_norm"] for n in "qk"} == {WITHIN}
    assert found["blocks.1.attn.before"] == BEFORE


def encoder(first: bool, depth: int = 2, **more) -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(16, 2, 32, norm_first=first, batch_first=True, **more)
    return nn.TransformerEncoder(
        layer, depth, norm=nn.LayerNorm(16) if first else None, enable_nested_tensor=False
    )


@pytest.mark.parametrize("depth", [1, 3])
def test_torch_encoders_norms_are_found_before_or_after(depth):
    pre, post = standing(encoder(True, depth)), standing(encoder(False, depth))
    assert pre.pop("norm") == OUTPUT and set(pre.values()) == {BEFORE}
    assert len(post) == 2 * depth and set(post.values()) == {AFTER}


class Flat(nn.Module):
    """Blocks written out in one forward, with a norm on the embedding."""

    def __init__(self, post: bool) -> None:
        super().__init__()
        self.table, self.post = nn.Embedding(20, 8), post
        self.start, self.end = nn.LayerNorm(8), nn.LayerNorm(8)
        self.norms = nn.ModuleList(nn.LayerNorm(8) for _ in range(3))
        self.maps = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, ids_BT: torch.Tensor) -> torch.Tensor:
        h_BTD = self.start(self.table(ids_BT))
        for norm, body in zip(self.norms, self.maps, strict=True):
            h_BTD = norm(h_BTD + body(h_BTD)) if self.post else h_BTD + body(norm(h_BTD))
        return h_BTD if self.post else self.end(h_BTD)


def test_blocks_in_one_forward_and_a_norm_on_the_embedding_are_told_apart():
    pre, post = standing(Flat(False)), standing(Flat(True))
    assert pre["start"] == post["start"] == EMBEDDING
    assert [pre[f"norms.{i}"] for i in range(3)] == [BEFORE] * 3 and pre["end"] == OUTPUT
    assert [post[f"norms.{i}"] for i in range(3)] == [AFTER] * 3
    assert post["end"] == NOT_FOUND  # never called


def test_a_model_that_no_input_fits_is_still_looked_at():
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(4)

        def forward(self, one: dict) -> torch.Tensor:
            return self.norm(one["x"])

    found = inspected(Odd(), None, None)
    assert found["traced"] == "" and found["norms"][0]["place"] == NOT_FOUND
    assert inspected(Odd(), ({"x": torch.randn(2, 4)},), None)["traced"] == "the example given"


def test_tracing_leaves_the_model_as_it_was():
    model = gpt(dropout=0.1).train()
    before = [tensor.clone() for tensor in unique_tensors(model).values()]
    seeds = torch.random.get_rng_state()
    inspected(model, None, None)
    assert model.training and torch.equal(seeds, torch.random.get_rng_state())
    assert all(map(torch.equal, before, unique_tensors(model).values()))
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_a_nan_of_the_checkpoint_is_named_with_its_place():
    model = gpt()
    tensors = {name: tensor.clone() for name, tensor in unique_tensors(model).items()}
    tensors["blocks.1.mlp.body.w1.weight"][2, 3] = float("nan")
    tensors["head.weight"][0, 0] = float("inf")
    said = warnings(model, tensors, trained=False)
    assert any("blocks.1.mlp.body.w1.weight: 1 NaN and 0 Inf" in s and "[2, 3]" in s for s in said)
    assert any("head.weight: 0 NaN and 1 Inf" in s for s in said)


def test_a_gain_that_never_moved_is_named_only_in_a_trained_model():
    model = gpt()
    assert not any("gains" in said for said in warnings(model, trained=False))
    (said,) = [s for s in warnings(model) if "gains" in s]
    assert said.startswith("all 7 norm gains are exactly 1")
    for norm in list(find_norms(model).values())[1:]:
        norm.weight.data.mul_(1.01)
    (said,) = [s for s in warnings(model) if "gains" in s]
    assert said.startswith("1 of 7 norm gains") and "blocks.0.attn.before" in said
    (said,) = [s for s in warnings(gpt().bfloat16()) if "gains" in s]
    assert "0.9961" in said  # 1 - 1/256


def test_an_eps_that_differs_from_the_rest_is_named():
    model = gpt()
    model.blocks[1].mlp.before.eps = 1e-12
    (said,) = warnings(model, trained=False)
    assert said == "eps 1e-12 in blocks.1.mlp.before; 1e-05 in the other 6"


def test_an_eps_that_the_type_cannot_hold_is_named_and_one_that_it_can_is_not():
    small = gpt(eps=1e-12)
    assert not warnings(small, trained=False)
    (said,) = warnings(gpt(eps=1e-12).half(), trained=False)
    assert "eps 1e-12 is 0 in float16" in said and "6e-08" in said
    assert not warnings(gpt(eps=1e-7).half(), trained=False)
    (said,) = warnings(gpt(eps=0.0), trained=False)
    assert said.startswith("eps is 0 in")


def test_values_near_the_limit_of_their_type_are_named():
    model = gpt().half()
    model.head.weight.data[0, 0] = 6e4
    assert any("head.weight reaches 6e+04: float16 ends at" in s for s in warnings(model))
    wide = gpt()
    wide.head.weight.data[0, 0] = 7e4
    assert any("it would be Inf in float16" in s for s in warnings(wide))
    largest = inspected(wide, None, None)["largest"]
    assert largest[0]["tensor"] == "head.weight" and largest[0]["absmax"] == 7e4


@pytest.mark.parametrize("placement, scaled", [("pre", True), ("lns", False)])
def test_an_init_that_no_depth_scaling_reached_is_named(placement, scaled):
    """lns is GPT-2's init without / sqrt(2N)."""
    model = gpt(placement=placement, depth=8, width=64)
    init = inspected(model, None, None)["init"]
    assert init["projections"] == 16 and init["others_std"] == pytest.approx(0.02, rel=0.03)
    assert init["std"] == pytest.approx(0.02 / (4 if scaled else 1), rel=0.03)
    said = [s for s in warnings(model, trained=False) if "depth scaling" in s]
    assert bool(said) != scaled and all("0.005" in s for s in said)


def test_adams_moments_that_underflowed_are_counted():
    weight = nn.Parameter(torch.ones(4, dtype=torch.float16))
    adam = torch.optim.Adam([weight], eps=1e-8, fused=True)
    weight.grad = torch.tensor([1e-4, 0, 0.5, 0.5], dtype=torch.float16)
    adam.step()
    (row,) = moments(adam.state_dict())
    assert row["vanished"] == 0.25 and row["nonfinite"] == 0 and row["eps_held"] == 0
    model = nn.Sequential(nn.Linear(2, 2))
    said = warnings(model, optimizer=adam.state_dict(), trained=False)
    assert any("25% of number 0" in s for s in said)
    assert any("Adam's eps 1e-08 is 0 in float16" in s for s in said)
    adam.state[weight]["exp_avg"][0] = float("nan")
    said = warnings(model, optimizer=adam.state_dict(), trained=False)
    assert any("1 elements not finite" in s for s in said)


@pytest.mark.parametrize("wrap", ["", "model", "state_dict", "compiled", "parallel"])
def test_weights_are_found_wherever_training_scripts_put_them(tmp_path, wrap):
    model = gpt()
    tensors = model.state_dict()
    prefix = {"compiled": "_orig_mod.", "parallel": "module."}.get(wrap, "")
    kept = {prefix + name: tensor for name, tensor in tensors.items()}
    document = {wrap: kept, "iter_num": 3} if wrap in ("model", "state_dict") else kept
    torch.save(document, tmp_path / "a.pt")
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    found = matched(tmp_path / "a.pt", read_checkpoint(tmp_path / "a.pt"), shapes)
    assert found.tensors.keys() == tensors.keys() and not found.missing and not found.unexpected


def test_a_checkpoint_is_never_allowed_to_run_code(tmp_path):
    ran = tmp_path / "ran"

    class Trap:
        def __reduce__(self):
            return Path.touch, (ran,)

    torch.save({"model": Trap()}, tmp_path / "a.pt")
    with pytest.raises(UserError, match="would run its code"):
        read_checkpoint(tmp_path / "a.pt")
    assert not ran.exists()


@pytest.mark.slow
def test_safetensors_are_read(tmp_path):
    save_file = pytest.importorskip("safetensors.torch").save_file
    model = gpt()
    save_file(model.state_dict(), tmp_path / "a.safetensors")
    found = read_checkpoint(tmp_path / "a.safetensors").tensors
    assert all(torch.equal(found[name], tensor) for name, tensor in model.state_dict().items())


MINE = """
import torch
from torch import nn

def model():
    return nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))

def broken():
    raise ValueError("no weights here")

def number():
    return 3
"""


@pytest.mark.parametrize(
    "words, what",
    [
        (["nothing"], "neither a run folder nor module:callable"),
        (["nothing_there:model"], "No module named"),
        (["mine_a:missing"], "missing"),
        (["mine_a:broken"], "ValueError: no weights here"),
        (["mine_a:number"], "gave int, not a torch.nn.Module"),
        (["mine_a:model", "--checkpoint", "none.pt"], "no such file"),
        (["mine_a:model", "--checkpoint", "mine_a.py"], "damaged, or no checkpoint"),
        (["mine_a:model", "--checkpoint", "other.pt"], "none of its 1 names"),
        (["mine_a:model", "--checkpoint", "shape.pt"], "0.weight is 3x3, the model's is 4x4"),
        (["mine_a:model", "--checkpoint", "empty.pt"], "no weights found; it has step"),
        (["."], "is no run folder"),
    ],
)
def test_what_cannot_be_inspected_is_one_line(tmp_path, words, what):
    (tmp_path / "mine_a.py").write_text(MINE)
    torch.save({"x": torch.ones(1)}, tmp_path / "other.pt")
    torch.save({"0.weight": torch.ones(3, 3)}, tmp_path / "shape.pt")
    torch.save({"step": 3}, tmp_path / "empty.pt")
    said = lnexp("inspect", *words, cwd=tmp_path)
    assert said.code == 2 and what in said.err and "Traceback" not in said.err
    assert len(said.err.strip().splitlines()) == 1


def test_a_run_folder_is_inspected_with_its_checkpoint(tmp_path):
    write_config(tmp_path, SMALL.replace("{level: full", "{keep: all, level: full"))
    one = ["-s", "model.placement=[post]", "-s", "model.dropout=[0.0]", "-s", "seeds=[0]"]
    assert lnexp("run", "small.yaml", *one, cwd=tmp_path).code == 0
    (run,) = (tmp_path / "results" / "small" / "runs").iterdir()
    said = lnexp("inspect", run, cwd=tmp_path)
    assert said.code == 0 and "blocks.0..1.attn.after" in said.out and AFTER in said.out
    data = json.loads(lnexp("inspect", run, "--json", cwd=tmp_path).out)
    assert {norm["place"] for norm in data["norms"]} == {AFTER}
    names = {row["tensor"] for row in data["adam"]}
    assert "head.weight" in names and len(names) == data["tensors"]
    shapes = {row["tensor"]: row["shape"] for row in data["adam"]}
    assert shapes["blocks.0.attn.after.weight"] == [16]
    assert not any("gains" in warning for warning in data["warnings"])  # they moved
