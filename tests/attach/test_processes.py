"""Training on several processes: one folder, global norms, and the process whose batch failed."""

import json
import math

import pytest
import torch

from tests.attach.loops import origin, rows
from tests.attach.processes import Case, averaged, in_processes, plain, replicated, sharded

pytestmark = pytest.mark.slow  # every process imports torch anew

WRAPS = {"averaged": averaged, "sharded": sharded, "replicated": replicated}
WAYS = ("forward", "backward")
CASES = [
    case
    for name, wrap in WRAPS.items()
    for case in (
        Case(f"{name}-unwatched", wrap),
        *(Case(f"{name}-{level}", wrap, level) for level in ("light", "full")),
        *(Case(f"{name}-{way}", wrap, "light", 1, way) for way in WAYS),
        *(Case(f"{name}-{way}-unwatched", wrap, "", 1, way) for way in WAYS),
    )
]


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    folder = tmp_path_factory.mktemp("processes")
    Case("one", plain, "full").run(folder, 0, 1)
    in_processes(folder, CASES)
    return folder


@pytest.mark.parametrize("name", WRAPS)
def test_two_processes_leave_one_folder_with_the_norms_of_one_process(name, ran):
    folders = sorted(path.name for path in ran.iterdir() if path.is_dir())
    assert folders == sorted(["one", *(case.name for case in CASES if case.level)])
    for level in ("light", "full"):
        run = ran / f"{name}-{level}"
        assert json.loads((run / "env.json").read_text())["processes"] == 2
        status = json.loads((run / "status.json").read_text())
        assert (status["status"], status["unmoved"]) == ("finished", [])
        for a, b in zip(rows(ran / "one", "steps"), rows(run, "steps"), strict=True):
            for column in ("loss", "grad_norm", "update_norm", "weight_norm"):
                assert float(a[column]) == pytest.approx(float(b[column]), rel=1e-4)
            assert b["nonfinite_grads"] == "0"
        for a, b in zip(rows(ran / "one", "layers"), rows(run, "layers"), strict=True):
            assert (a["step"], a["layer"], a["part"]) == (b["step"], b["layer"], b["part"])
            for column in ("grad_norm", "weight_norm", "update_norm"):
                assert float(a[column]) == pytest.approx(float(b[column]), rel=1e-4)
            # Sums that cancel: whether they come out 0 is a matter of rounding.
            zeros = float(b["zero_grad_fraction"])
            assert float(a["zero_grad_fraction"]) == pytest.approx(zeros, abs=2e-3)


@pytest.mark.parametrize("name", WRAPS)
def test_watching_changes_no_bit_of_training_in_several_processes(name, ran):
    def left(which: str, rank: int):
        return torch.load(ran / f"{name}-{which}.{rank}.pt")

    for rank in (0, 1):
        losses, weights = left("unwatched", rank)
        for level in ("light", "full"):
            theirs, moved = left(level, rank)
            assert theirs == losses and all(map(torch.equal, moved, weights))
        for way in WAYS:  # also past a step that was replayed, and not applied
            losses, weights = left(f"{way}-unwatched", rank)
            theirs, moved = left(way, rank)
            assert str(theirs) == str(losses) and all(map(torch.equal, moved, weights))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", WRAPS)
def test_a_nan_of_one_process_names_it_and_its_batch(name, way, ran):
    run = ran / f"{name}-{way}"
    events = rows(run, "events")
    (of_rank,) = [e for e in events if e["module"].startswith("rank")]
    assert (of_rank["step"], of_rank["module"]) == ("2", "rank 1")
    assert of_rank["detail"].startswith("rank 1 of 2, its batch of step 2: own ")
    found = origin(run)
    assert found["phase"] == way and found["module"] == "model"
    assert json.loads((run / "status.json").read_text())["first_bad_step"] == 2
    one = rows(run, "steps")[2]
    elements = json.loads((run / "env.json").read_text())["parameters"]
    assert 0 < int(one["nonfinite_grads"]) <= elements and math.isnan(float(one["grad_norm"]))


def test_a_loss_scale_and_an_exception_of_one_process_work_with_sharded_weights(tmp_path):
    in_processes(tmp_path, [Case("scaled", sharded, "light", 1, scaled=True)])
    assert [row["skipped"] for row in rows(tmp_path / "scaled", "steps")] == list("00100")
    assert [row["loss_scale"] for row in rows(tmp_path / "scaled", "steps")][3] == "128.0"
    in_processes(tmp_path, [Case("failed", sharded, "light", fails=0)])
    status = json.loads((tmp_path / "failed" / "status.json").read_text())
    assert (status["status"], status["error"]) == ("failed", "KeyError: 'lost'")
    assert len(rows(tmp_path / "failed", "steps")) == status["steps_done"] == 4
