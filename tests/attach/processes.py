"""A watched loop in several gloo processes on this machine."""

import os
import socket
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import lnexp

STEPS, VOCABULARY = 4, 20


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


def batch(step: int) -> torch.Tensor:
    return torch.randint(VOCABULARY, (8, 6), generator=torch.Generator().manual_seed(step))


def loop(
    out: Path, rank: int, size: int, poisoned: int | None, way: str = "forward"
) -> list[float]:
    """Each process trains on its share of the batch; rank `poisoned` makes a NaN in step 2."""
    torch.set_num_threads(1)
    inner = Small()
    model: nn.Module = DistributedDataParallel(inner) if size > 1 else inner
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    with lnexp.watch(model, optimizer, out=out) as w:
        for step in range(STEPS):
            ids = batch(step).chunk(size)[rank]
            inner.poison = way if step == 2 and rank == poisoned else ""

            def loss_of(ids=ids):
                return nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten())

            loss = loss_of()
            loss.backward()
            w.step(loss, replay=loss_of)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    return losses


def _one(rank: int, size: int, port: int, out: str, poisoned: int | None, way: str) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=rank, world_size=size)
    try:
        loop(Path(out), rank, size, poisoned, way)
    finally:
        dist.destroy_process_group()


def in_processes(out: Path, size: int, poisoned: int | None = None, way: str = "forward") -> None:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    mp.spawn(_one, args=(size, port, str(out), poisoned, way), nprocs=size)  # type: ignore[attr-defined]
