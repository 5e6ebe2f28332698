"""What a rescue tries: one change each. A new one is one entry of CHANGES. Free of torch."""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from lnexp.config.rules import Settings
from lnexp.model.catalog import NORMS, OPTIMIZERS, PLACEMENTS


@dataclass(frozen=True)
class Failure:
    """The run to rescue, and where it is gone on from."""

    settings: Settings
    start: int  # step of the snapshot; 0: from the beginning
    bad_step: int | None  # None: it stayed finite


@dataclass(frozen=True)
class Change:
    """One change of settings; `batch` and `order` are changes of the data instead."""

    name: str
    settings: Settings
    order: bool = False  # other batches from the start or snapshot on
    batch: bool = False  # the batch of the failing step is left out

    @property
    def from_zero(self) -> bool:
        """Whether it changes what weights or moments mean: no snapshot can be gone on from."""
        return any(key in REMADE or _new_function(key) for key in self.settings)


# Keys of model that leave the function of given weights what it is, or nearly so.
SAME_FUNCTION = ("model.eps", "model.dropout", "model.attention", "model.softmax")
# The optimizer's state is another one's; second moments that underflowed to 0 at one loss scale
# stay 0 at another, under first moments that do not: Adam's updates would be that much too large.
REMADE = ("train.optimizer", "train.loss_scale")


def _new_function(key: str) -> bool:
    return key.startswith(("model.", "data.")) and key not in SAME_FUNCTION


Make = Callable[[Failure], Settings]  # {}: it does not apply


def _clip(failure: Failure) -> Settings:
    clip = failure.settings["train.clip"]
    return {"train.clip": 1.0 if clip > 1 else clip / 10}


def _warmup(failure: Failure) -> Settings:
    """The rate is back at its peak only twice as far away as the failure was."""
    if failure.bad_step is None:
        return {"train.warmup": max(20, 2 * failure.settings["train.warmup"])}
    steps = failure.start + 2 * (failure.bad_step + 1 - failure.start)
    return {"train.warmup": steps} if steps > failure.settings["train.warmup"] else {}


def _adam_eps(failure: Failure) -> Settings:
    if not OPTIMIZERS[failure.settings["train.optimizer"]].reads_betas:
        return {}
    eps = failure.settings["train.adam_eps"]
    return {"train.adam_eps": 1e-5 if eps < 1e-5 else 10 * eps}


def _eps(failure: Failure) -> Settings:
    settings = failure.settings
    stands = PLACEMENTS[settings["model.placement"]].has_norm or settings["model.qk_norm"]
    reads_eps = NORMS[settings["model.norm"]].beside_eps is not None
    return {"model.eps": 1e-3} if stands and reads_eps else {}


def _scale(failure: Failure) -> Settings:
    settings = failure.settings
    absorbed = OPTIMIZERS[settings["train.optimizer"]].absorbs_scale
    in_half = settings["train.precision"] == "fp16"
    return {"train.loss_scale": 256.0} if in_half and absorbed else {}


def _precision(wanted: str, *instead_of: str) -> Make:
    return lambda failure: (
        {"train.precision": wanted} if failure.settings["train.precision"] in instead_of else {}
    )


HALF = ("fp16", "bf16", "fp16-mixed", "bf16-mixed")

CHANGES: dict[str, Make] = {
    "half the learning rate": lambda failure: {"train.lr": failure.settings["train.lr"] / 2},
    "warm-up": _warmup,
    "clipping": _clip,
    "adam_eps": _adam_eps,
    "eps": _eps,
    "fp32": _precision("fp32", *HALF),
    "mixed precision": _precision("fp16-mixed", "fp16"),
    "loss scaling": _scale,
    "z-loss": lambda failure: {} if failure.settings["train.z_loss"] else {"train.z_loss": 1e-4},
}


def changes(failure: Failure) -> list[Change]:
    """The control first; then what applies to this run."""
    tries = [Change("control", {})]
    for name, make in CHANGES.items():
        settings = make(failure)
        new = {key: v for key, v in settings.items() if v != failure.settings[key]}
        if new and not any(v == inf for v in new.values()):
            tries.append(Change(name, new))
    if failure.bad_step is not None:
        tries.append(Change("without that batch", {}, batch=True))
    return [*tries, Change("other data order", {}, order=True)]
