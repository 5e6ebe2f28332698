"""Parameters end to end in memory: every bit is as with the tensors apart."""

from copy import deepcopy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from lnexp.config.schema import Train
from lnexp.train.flat import Flat, rows
from lnexp.train.optim import new_optimizer

SIZES = [(3, 5), (32,), (32, 32), (), (96,), (7,), (64, 33), (1,), (128, 32)]


class Several(nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(0)
        self.weights = nn.ParameterList(
            nn.Parameter(torch.randn(size, generator=draw).to(dtype)) for size in SIZES
        )


def gradients(seed: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """From tiny to large, none beyond what fp16's squares hold."""
    draw = torch.Generator().manual_seed(seed)

    def one(size: tuple[int, ...]) -> torch.Tensor:
        powers = 10 ** (2 * torch.randn(size, generator=draw))
        return (torch.randn(size, generator=draw) * powers).clamp(-99, 99).to(dtype)

    return [one(size) for size in SIZES]


def apart(model: Several, optimizer: torch.optim.Optimizer, steps: range, dtype) -> None:
    for step in steps:
        for weight, gradient in zip(model.weights, gradients(step, dtype), strict=True):
            weight.grad = gradient
        optimizer.step()


def together(model: Several, flat: Flat, steps: range, dtype) -> None:
    for step in steps:
        flat.ready()
        for weight, gradient in zip(model.weights, gradients(step, dtype), strict=True):
            weight.grad += gradient  # as backward does
        flat.step()


def equal(model: Several, other: Several) -> bool:
    pairs = zip(model.weights, other.weights, strict=True)
    return all(torch.equal(a.detach(), b.detach()) for a, b in pairs)


KINDS = [
    *((name, dtype) for name in ("adamw", "adam") for dtype in ("float32", "bfloat16", "float16")),
    ("sgd", "float32"),
]


@pytest.mark.parametrize(("name", "dtype"), KINDS)
def test_updates_and_moments_are_those_of_the_tensors_apart(name, dtype):
    dtype, train = getattr(torch, dtype), Train(optimizer=name, lr=1e-2, momentum=0.9)
    one, two = Several(dtype), Several(dtype)
    first, second = new_optimizer(one, train), new_optimizer(two, train)
    flat = Flat(two, second)
    for steps in (range(3), range(3, 9)):
        apart(one, first, steps, dtype)
        together(two, flat, steps, dtype)
        assert equal(one, two)
    for weight, other in zip(one.weights, two.weights, strict=True):
        mine, theirs = first.state[weight], second.state[other]
        assert mine.keys() == theirs.keys()
        assert all(torch.equal(mine[key], theirs[key]) for key in mine)


def test_a_changed_learning_rate_counts_from_the_next_step():
    one, two = Several(torch.float32), Several(torch.float32)
    first, second = new_optimizer(one, Train()), new_optimizer(two, Train())
    flat = Flat(two, second)
    for steps, lr in ((range(2), 1e-3), (range(2, 4), 0.5)):
        for optimizer in (first, second):
            for group in optimizer.param_groups:
                group["lr"] = lr
        apart(one, first, steps, torch.float32)
        together(two, flat, steps, torch.float32)
    assert equal(one, two)


def test_a_saved_state_of_either_is_gone_on_from_by_the_other():
    one, two = Several(torch.float32), Several(torch.float32)
    first, second = new_optimizer(one, Train()), new_optimizer(two, Train())
    flat = Flat(two, second)
    apart(one, first, range(4), torch.float32)
    together(two, flat, range(4), torch.float32)
    saved_apart, saved_together = deepcopy(first.state_dict()), deepcopy(second.state_dict())
    three, four = Several(torch.float32), Several(torch.float32)
    three.load_state_dict(two.state_dict())
    four.load_state_dict(one.state_dict())
    third, fourth = new_optimizer(three, Train()), new_optimizer(four, Train())
    third.load_state_dict(saved_together)
    fourth.load_state_dict(saved_apart)
    apart(three, third, range(4, 8), torch.float32)
    together(four, Flat(four, fourth), range(4, 8), torch.float32)
    apart(one, first, range(4, 8), torch.float32)
    assert equal(one, three) and equal(one, four)


def test_what_the_optimizer_does_not_hold_has_its_gradient_and_stays():
    model = Several(torch.float32)
    held = list(model.weights)[:4]
    flat = Flat(model, torch.optim.AdamW(held, fused=True))
    before = [weight.detach().clone() for weight in model.weights]
    together(model, flat, range(2), torch.float32)
    same = [torch.equal(a, b.detach()) for a, b in zip(before, model.weights, strict=True)]
    assert same == [False] * 4 + [True] * 5
    assert all(weight.grad is not None for weight in model.weights)


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 5), st.integers(0, 3)), max_size=12),
    st.randoms(use_true_random=False),
)
def test_rows_hold_every_piece_once_wherever_it_lies(drawn, random):
    pieces, at = [], 0
    for kind, length, gap in drawn:
        pieces.append((kind, at + gap, length))
        at += gap + length
    random.shuffle(pieces)
    whole = torch.arange(max(at, 1))
    found = {}
    for row in rows(pieces):
        for position, values in zip(row.which, row.view(whole), strict=True):
            found[position] = values.tolist()
    wanted = {i: list(range(at, at + n)) for i, (_, at, n) in enumerate(pieces)}
    assert found == wanted


def test_the_same_tensor_of_all_blocks_is_one_row():
    pieces = [(kind, 10 * block + at, n) for block in range(50) for kind, at, n in
              (("w", 0, 6), ("b", 6, 2))]  # fmt: skip
    assert [len(row.which) for row in rows(pieces)] == [50, 50]
