"""What a run is said to take, against what torch keeps."""

from collections.abc import Iterator
from itertools import product

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional as F

from lnexp.config.schema import Measure, Model, RunConfig, Train
from lnexp.messages import UserError
from lnexp.model.catalog import NORMS, PLACEMENTS
from lnexp.model.check import (
    BLOCK,
    LOOSE,
    PROCESS,
    activation_bytes,
    architecture,
    kept_bytes,
    parameters,
    peak_bytes,
)
from lnexp.model.init import build
from lnexp.train.precision import FORMATS


def config(model=None, measure=None, **settings) -> RunConfig:
    return RunConfig(
        model=Model(**{"width": 32, **(model or {})}),
        train=Train(**settings),
        measure=Measure(**(measure or {})),
    )


def really_kept(of: RunConfig) -> int:
    """Bytes of the storages that one forward on real tensors leaves in the graph."""
    number_format, cpu = FORMATS[of.train.precision], torch.device("cpu")
    model = build(of.model, 103, 0).to(number_format.weights)
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    ids_BT = torch.zeros(of.train.batch_size, of.model.context, dtype=torch.long)
    with saved_tensors_hooks(keep, lambda tensor: tensor), number_format.forward(cpu):
        F.cross_entropy(model(ids_BT).flatten(0, 1), ids_BT.flatten())
    return sum(t.untyped_storage().nbytes() for at, t in kept.items() if at not in weights)


@pytest.mark.parametrize("precision", FORMATS)
@pytest.mark.parametrize("attention", ["sdpa", "plain"])
def test_activations_are_those_that_torch_really_keeps(precision, attention):
    of = config({"depth": 2, "attention": attention, "dropout": 0.1}, precision=precision)
    assert kept_bytes(of, 103, False) == pytest.approx(really_kept(of), rel=0.02)
    assert torch.get_default_dtype() == torch.float32


@pytest.mark.parametrize("norm", NORMS)
def test_with_every_norm(norm):
    of = config({"depth": 2, "width": 16, "context": 8, "norm": norm, "qk_norm": True})
    assert kept_bytes(of, 103, False) == pytest.approx(really_kept(of), rel=0.02)


def crossed() -> Iterator:
    """Every two of placement, depth and recomputing meet; all three in the slow suite."""
    for i, placement in enumerate(PLACEMENTS):
        for depth, recompute in product((1, 17), (False, True)):
            paired = (i + (depth == 1) + recompute) % 2 == 0
            yield pytest.param(
                placement, depth, recompute, marks=() if paired else pytest.mark.slow
            )


@pytest.mark.parametrize(("placement", "depth", "recompute"), [*crossed()])
def test_a_deep_model_counts_as_it_would_whole(placement, depth, recompute):
    of = config({"depth": depth, "placement": placement})
    assert activation_bytes(of, 103, recompute) == kept_bytes(of, 103, recompute)
    assert parameters(of, 103) == architecture(of.model, 103).parameters


def test_checkpointing_keeps_an_input_a_block_and_one_block():
    one, two, three = (activation_bytes(config({"depth": d}), 103, True) for d in (1, 2, 3))
    stream = 16 * 64 * 32 * 4  # B T D, fp32
    assert three - two == two - one == stream
    kept = [activation_bytes(config({"depth": d}), 103) for d in (1, 2)]
    assert kept[1] - kept[0] > 8 * stream


def test_the_peak_is_all_that_lives_through_a_backward_and_a_snapshot():
    for of in (config(), config({"width": 512, "depth": 1, "context": 8}, batch_size=1)):
        weights = 4 * architecture(of.model, 103).parameters
        activations = int(LOOSE * activation_bytes(of, 103))
        # Weights and two moments, twice; gradients, the weights before an update, the difference.
        assert peak_bytes(of, 103) == PROCESS + of.model.depth * BLOCK + 9 * weights + activations
    wide = {"width": 512, "depth": 1, "context": 8}
    read, plain = config(wide), config(wide, {"level": "off"})
    weights = 4 * architecture(plain.model, 103).parameters
    assert peak_bytes(read, 103) - peak_bytes(plain, 103) == 2 * weights


def test_what_torch_cannot_count_is_said_and_what_it_can_is_built():
    big = {"width": 10_000_000, "mlp_ratio": 1000, "depth": 1, "heads": 1}
    assert architecture(Model(**big), 103).parameters > 10**17
    too_big = RunConfig(model=Model(**big, context=1_000_000), train=Train(batch_size=1_000_000))
    with pytest.raises(UserError, match=r"^train.batch_size: .* write smaller sizes"):
        peak_bytes(too_big, 103)
    for size in (2**62, 2**63 - 1, 2**70):  # beyond what a config may say
        with pytest.raises(UserError, match=r"^model.width: .* write smaller sizes"):
            architecture(Model.model_construct(**dict(Model(depth=1)) | {"mlp_ratio": size}), 103)
