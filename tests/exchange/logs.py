"""Logs as other tools write them, with numbers made up here."""

import json
from math import exp
from pathlib import Path


def loss_at(step: int) -> float:
    """Falls from 4.3 to 2.2 within a few hundred steps."""
    return round(2.2 + 2.1 * exp(-step / 100) + 0.02 * ((step * 7) % 11 - 5) / 5, 4)


def text_log(path: Path, steps: int = 400) -> Path:
    """A line every 10 iterations, an evaluation every 100, other lines between them."""
    lines = ["number of parameters: 10.65M", "using fused AdamW: True"]
    for step in range(0, steps + 1, 10):
        loss = loss_at(step)
        if step % 100 == 0:
            lines.append(f"step {step}: train loss {loss - 0.1:.4f}, val loss {loss + 0.1:.4f}")
            lines.append("saving checkpoint to out")
        lines.append(f"iter {step}: loss {loss:.4f}, time {80 + step % 7}.25ms, mfu 1.20%")
    path.write_text("\n".join(lines) + "\n")
    return path


def trainer_state(path: Path, bad: int | None = None, steps: int = 500) -> Path:
    """From the step `bad` on a loss of 0.0 and a gradient norm of NaN."""
    history = []
    for step in range(10, steps + 1, 10):
        broken = bad is not None and step >= bad
        history.append(
            {
                "epoch": step / 100,
                "grad_norm": float("nan") if broken else 1.5,
                "learning_rate": 5e-5 * (1 - step / steps),
                "loss": 0.0 if broken else loss_at(step),
                "step": step,
            }
        )
        if step % 100 == 0:
            history.append({"eval_loss": loss_at(step) + 0.1, "eval_runtime": 1.0, "step": step})
    history.append({"step": steps, "train_loss": 3.0, "train_runtime": 100.0})
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"global_step": steps, "log_history": history}))
    return path


def csv_log(path: Path, rows: list[str], head: str = "step,loss,lr") -> Path:
    path.write_text("\n".join([head, *rows]) + "\n")
    return path
