"""A12, C14: a loss that stands still is told from measured numbers, never from a name."""

from itertools import product

import pytest
import yaml

from lnexp.config.schema import Data
from lnexp.results.causes import VANISHING
from lnexp.results.run_folder import COLUMNS
from tests.cases.trained import Told, config, read, records, state_of, told

STEPS = 60
NAMES = {"model.placement": "post", "model.init": "torch", "model.norm": "rmsnorm"}


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Data:
    """SUMS."""
    path = tmp_path_factory.mktemp("text") / "sums.txt"
    lines = (f"{a} plus {b} is {a + b}.\n" for a in range(60) for b in range(60))
    path.write_bytes("".join(lines).encode())
    return Data(source="file", path=str(path))


# ------------------------------------------------------- C14: five reasons

# Activations and gradients of such a chain underflow to exact zeros.
DEAD = {"placement": "none", "residual": False, "bias": False, "init_scale": 1e-3, "depth": 12}
FIVE: dict[str, dict] = {
    "lr 0": {"lr": 0.0},
    "lr tiny": {"lr": 1e-7},
    "blocks dead": {"lr": 3e-3, "model": DEAD},
    "warming up": {"lr": 1e-3, "warmup": 100_000},
    "healthy": {"lr": 1e-2},
}


@pytest.fixture(scope="module")
def five(data, tmp_path_factory) -> dict[str, Told]:
    folder = tmp_path_factory.mktemp("five")
    runs = {}
    for name, more in FIVE.items():
        settings = {"steps": 100, "batch_size": 8} | more
        model = {"depth": 2, "width": 32, "context": 16} | settings.pop("model", {})
        runs[name] = told(folder / name.replace(" ", "-"), config(data, model, **settings))
    return runs


def test_each_reason_is_read_off_its_own_fact(five):
    frozen, slow, dead, warm, healthy = (five[name] for name in FIVE)
    assert set(frozen.numbers("update_norm")) == {0.0} and "frozen" in frozen.causes
    assert frozen.row["verdict"] == "stalled"
    assert 0 < max(slow.numbers("update_norm")) < 1e-3 and "too_slow" in slow.causes
    blocks = {r["grad_norm"] for r in dead.table("layers") if r["part"] in ("attn", "mlp")}
    assert blocks == {"0.0"} and "zero_gradient" in dead.causes
    assert max(warm.numbers("lr")) < 1e-3 and "warming_up" in warm.causes
    assert healthy.row["verdict"] in ("learned", "spiked") and not healthy.causes


def test_no_reason_is_given_to_a_run_that_has_another(five):
    for name, cause in [("lr 0", "frozen"), ("blocks dead", "zero_gradient"),
                        ("warming up", "warming_up")]:  # fmt: skip
        assert [run for run, t in five.items() if cause in t.causes and run != name] in (
            [],
            # The dead blocks' own weights never move either: a fact beside its reason.
            ["blocks dead"],
        ), cause
    assert "too_slow" not in five["lr 0"].causes and "too_slow" not in five["healthy"].causes


def test_five_runs_get_five_different_diagnoses_of_one_line(five):
    lines = [run.explained.diagnosis for run in five.values()]
    starts = {line.split(":")[0] for line in lines}
    assert len(starts) == 5 and not any("\n" in line for line in lines), lines


def test_the_reference_levels_of_the_text_are_recorded_with_each_run(five):
    for run in five.values():
        assert run.row["ln_v"] == pytest.approx(2.8904, abs=1e-4)
        assert run.row["h1"] == pytest.approx(2.647, abs=5e-3) and run.row["h2"] < run.row["h1"]


# ------------------------------------------------------- A12: numbers, not names


def relabelled(run: Told, key: str, value: str) -> Told:
    """The same numbers under another name in config.yaml."""
    path = run.folder / "config.yaml"
    nested = yaml.safe_load(path.read_text(encoding="utf-8"))
    section, leaf = key.split(".")
    assert nested[section][leaf] != value
    nested[section][leaf] = value
    path.write_text(yaml.safe_dump(nested), encoding="utf-8")
    return read(run.folder)


def judged(run: Told) -> dict:
    """All that is said of what happened; not what to try, which names settings."""
    words = run.explained
    keys = ("verdict", "cause", "evidence")
    return {key: run.row[key] for key in keys} | {
        "diagnosis": words.diagnosis,
        "evidence told": words.evidence,
        "origin": words.origin,
        "chain": words.chain,
        "unknown": words.unknown,
    }


def chained(tmp_path, name: str) -> Told:
    """A stack whose first block's gradient is about 1e-4 of its last one's, or a sound one."""
    model = {"depth": 6, "residual": False, "init_scale": 0.6, "placement": "none"}
    if name != "vanishing":
        model = {"depth": 2}
    settings = {"steps": STEPS, "lr": 1e-3 if name == "vanishing" else 1e-2}
    fault = (lambda state: None) if name != "nonfinite" else break_at_30
    return told(tmp_path / name, config(model=model, **settings), fault)


def break_at_30(state) -> None:
    body = state.model.blocks[1].mlp.body
    body.register_forward_hook(lambda m, i, y: y * float("inf") if state.steps_done == 30 else y)


@pytest.mark.parametrize("name", ["vanishing", "sound", "nonfinite"])
def test_what_is_said_of_a_run_does_not_depend_on_what_its_settings_are_called(tmp_path, name):
    run = chained(tmp_path, name)
    first = judged(run)
    for key, value in NAMES.items():
        assert judged(relabelled(run, key, value)) == first, key
    assert ("vanishing" in run.causes) == (name == "vanishing")
    assert (run.row["verdict"] == "nonfinite") == (name == "nonfinite")


@pytest.mark.parametrize(
    "placement, init, warmup", list(product(["pre", "post"], ["gpt2", "xavier"], [0, 30]))
)
def test_the_word_vanishing_comes_with_a_measured_ratio_below_its_bar(
    tmp_path, placement, init, warmup
):
    model = {"depth": 6, "placement": placement, "init": init}
    run = told(tmp_path / "run", config(model=model, warmup=warmup, steps=20, batch_size=2))
    rows = [r for r in run.table("layers") if r["part"] in ("attn", "mlp", "norm")]

    def norm(step: int, layer: int) -> float:
        mine = [r for r in rows if (r["step"], r["layer"]) == (str(step), str(layer))]
        return sum(float(r["grad_norm"]) ** 2 for r in mine) ** 0.5

    ratios = sorted(norm(step, 0) / norm(step, 5) for step in range(16, 20))
    assert run.row["grad_ratio_end"] == pytest.approx((ratios[1] + ratios[2]) / 2)
    vanishes = run.row["grad_ratio_end"] < VANISHING
    assert ("vanishing" in run.causes) == (vanishes and run.row["verdict"] != "learned")
    for key in ("model.placement", "model.init", "train.warmup", "seed_init", "seed_data"):
        assert key in COLUMNS and run.row[key] not in (None, "")
    assert (run.row["model.init"], run.row["train.warmup"]) == (init, warmup)


@pytest.mark.parametrize("placement", ["pre", "post"])
@pytest.mark.parametrize("depth", [2, 12])
def test_at_the_start_a_gpt2_init_has_no_vanishing_gradient_under_either_placement(
    placement, depth
):
    """Nor at depth 48, by the numbers; textbooks say otherwise of Post-LN."""
    model = {"placement": placement, "init": "gpt2", "depth": depth, "width": 64, "heads": 4}
    (row,) = records(state_of(model=model, steps=1))

    def norm(layer: int) -> float:
        parts = [r for r in row.layers if r.layer == layer and r.part in ("attn", "mlp")]
        return sum((r.grad_norm or 0) ** 2 for r in parts) ** 0.5

    assert norm(0) / norm(depth - 1) > 0.7
