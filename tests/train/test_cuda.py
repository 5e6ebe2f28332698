"""Readings leave the device in a few transfers; a run on a GPU has the rows of one on the CPU."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from itertools import islice
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from lnexp.rows import Record
from lnexp.train.loop import train
from lnexp.train.state import set_up
from tests.train.test_loop import config, markov

on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

# Transfers of a step that has a reading, beyond those of the same step without one.
ADDED = {"light": 1, "full": 1}
WAITING = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


class Calls(TorchFunctionMode):
    """tolist and numpy, which on the CPU reach no operation."""

    transfers = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.transfers += getattr(func, "__name__", "") in ("tolist", "numpy")
        return func(*args, **(kwargs or {}))


class Operations(TorchDispatchMode):
    """Operations that wait for values: item, float, bool, and those whose shape depends on them."""

    transfers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        by_position = func.overloadpacket is torch.ops.aten.index and not any(
            places is not None and places.dtype == torch.bool for places in args[1]
        )
        self.transfers += bool(WAITING & set(func.tags)) and not by_position
        return func(*args, **(kwargs or {}))


def steady(depth: int, level: str, device: str = "cpu") -> Iterator[Record]:
    """A run whose first steps, which make what later ones find, are done."""
    cfg = config(model={"depth": depth}, train={"steps": 10}, measure={"level": level})
    stream = train(set_up(cfg, markov(), device))
    list(islice(stream, 3))
    return stream


def transfers(depth: int, level: str) -> int:
    stream = steady(depth, level)
    with Calls() as calls, Operations() as operations:
        next(stream)
    return calls.transfers + operations.transfers


def test_what_counts_transfers_sees_each_way_to_read_a_value():
    x = torch.ones(3)
    ways = (x.tolist, x.numpy, x[0].item, lambda: float(x[0]), lambda: bool(x[0]), x.nonzero)
    ways += (lambda: x[x > 0],)
    for number, read in enumerate(ways):
        with Calls() as calls, Operations() as operations:
            read()
        assert calls.transfers + operations.transfers == 1, number
    with Calls() as calls, Operations() as operations:
        x[torch.tensor([2, 0])].sum()
    assert calls.transfers + operations.transfers == 0


@pytest.mark.parametrize("level, most", ADDED.items())
def test_a_reading_adds_one_transfer_whatever_the_depth(level, most):
    added = {transfers(depth, level) - transfers(depth, "off") for depth in (1, 2, 6)}
    assert len(added) == 1 and added.pop() <= most


@contextmanager
def watched() -> Iterator[list[warnings.WarningMessage]]:
    """torch's warnings about synchronising operations."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield caught
        finally:
            torch.cuda.set_sync_debug_mode("default")


def synchronisations(depth: int, level: str) -> int:
    stream = steady(depth, level, "cuda")
    with watched() as caught:
        next(stream)
    return sum("called a synchronizing CUDA operation" in str(w.message) for w in caught)


@on_a_gpu
@pytest.mark.parametrize("level, most", ADDED.items())
def test_a_reading_adds_one_synchronisation_on_a_gpu(level, most):
    for depth in (1, 6):
        off = synchronisations(depth, "off")
        assert off > 0  # the losses of a step are read at every level
        assert synchronisations(depth, level) - off <= most


@pytest.mark.parametrize(
    "device, precision", [pytest.param("cuda", "fp32", marks=on_a_gpu), ("cpu", "fp64")]
)
@pytest.mark.parametrize("level", ["off", "light", "full"])
def test_a_gpus_rows_are_those_of_the_cpu_within_rounding_and_so_are_fp64s(
    level, device, precision
):
    def rows(device: str, precision: str) -> Iterator[Record]:
        cfg = config(train={"steps": 5, "precision": precision}, measure={"level": level})
        return train(set_up(cfg, markov(), device))

    for here, there in zip(rows("cpu", "fp32"), rows(device, precision), strict=True):
        close(asdict(here.step), asdict(there.step))
        for one, other in zip(here.layers, there.layers, strict=True):
            close(asdict(one), asdict(other))
        assert here.events == there.events


def close(row: dict[str, Any], other: dict[str, Any]) -> None:
    for name in row.keys() - {"seconds"}:
        value, expected = row[name], other[name]
        # The key's bias has no gradient but what rounding makes: an exact 0 here, none there.
        tolerance = 0.05 if name == "zero_grad_fraction" else 1e-6
        if isinstance(expected, float):
            expected = pytest.approx(expected, rel=2e-3, abs=tolerance)
        assert value == expected, name
