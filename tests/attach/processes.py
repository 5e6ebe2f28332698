"""A watched loop in several gloo processes on this machine."""

import contextlib
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import lnexp

STEPS, VOCABULARY = 5, 20


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.embed = nn.Embedding(VOCABULARY, 16)
        self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.head = nn.Linear(16, VOCABULARY)
        self.poison = ""

    def forward(self, ids):
        h = self.encoder(self.embed(ids))
        if self.poison == "forward":
            h = h * float("nan")
        if self.poison == "backward":
            h = h + (h * 0).abs().sqrt()  # a gradient of 0 x inf
        return self.head(h)


def plain(model: Small) -> nn.Module:
    return model


def averaged(model: Small) -> nn.Module:
    return DistributedDataParallel(model)


def sharded(model: Small) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    for block in model.encoder.layers:
        fully_shard(block)
    return fully_shard(model)


def replicated(model: Small) -> nn.Module:
    """Every weight's one part lies on both processes (hybrid sharding)."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    return fully_shard(model, mesh=init_device_mesh("cpu", (2, 1), mesh_dim_names=("copy", "part")))


def full(tensor: Any) -> torch.Tensor:
    tensor = tensor.detach()
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


@dataclass(frozen=True)
class Case:
    """Each process trains on its share of the batch; rank `poisoned` makes a NaN in step 2."""

    name: str  # of the run folder
    wrap: Callable[[Small], nn.Module]
    level: str = ""  # '': not watched
    poisoned: int | None = None
    way: str = "forward"
    fails: int | None = None  # the rank whose loop raises in step 3, between reading and update
    scaled: bool = False

    def run(self, folder: Path, rank: int, size: int) -> None:
        """Leaves NAME.pt: losses and last weights of each rank."""
        losses, model = self.trained(folder, rank, size)
        weights = [full(p) for p in model.parameters()] if self.fails is None else []
        torch.save((losses, weights), folder / f"{self.name}.{rank}.pt")

    def trained(self, folder: Path, rank: int, size: int) -> tuple[list[float], nn.Module]:
        torch.set_num_threads(1)
        inner = Small()
        model = self.wrap(inner)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, enabled=self.scaled)
        losses = []
        with contextlib.ExitStack() as stack:
            w = None
            if self.fails is not None:
                # The other process finds nobody to talk to.
                stack.enter_context(contextlib.suppress(KeyError, RuntimeError))
            if self.level:
                out = folder / self.name
                watch = lnexp.watch(model, optimizer, out=out, level=self.level, scaler=scaler)
                w = stack.enter_context(watch)
            for step in range(STEPS):
                generator = torch.Generator().manual_seed(step)
                ids = torch.randint(VOCABULARY, (8, 6), generator=generator).chunk(size)[rank]
                inner.poison = self.way if step == 2 and rank == self.poisoned else ""

                def loss_of(ids=ids):
                    return nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten())

                loss = loss_of()
                scaler.scale(loss).backward()
                if w:
                    w.step(loss, replay=loss_of)
                if step == 3 and rank == self.fails:
                    raise KeyError("lost")
                if self.fails is None and (step != 2 or self.poisoned is None or self.scaled):
                    scaler.step(optimizer)
                    scaler.update()
                optimizer.zero_grad()
                losses.append(loss.item())
        return losses, model


def _one(rank: int, size: int, port: int, folder: Path, cases: Sequence[Case]) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=rank, world_size=size)
    try:
        for case in cases:
            case.run(folder, rank, size)
            if case.fails is not None:
                os._exit(0)  # gloo's own threads may abort a process whose peer is gone
    finally:
        dist.destroy_process_group()


def in_processes(folder: Path, cases: Sequence[Case], size: int = 2) -> None:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    mp.spawn(_one, args=(size, port, folder, cases), nprocs=size)  # type: ignore[attr-defined]
