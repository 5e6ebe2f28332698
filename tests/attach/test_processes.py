"""Data-parallel training: one run folder, global norms, and the process whose batch failed."""

import json

import pytest

from .loops import origin, rows
from .processes import in_processes, loop

pytestmark = pytest.mark.slow  # every process imports torch anew


def test_two_processes_leave_one_folder_with_the_norms_of_one_process(tmp_path):
    loop(tmp_path / "one", 0, 1, None)
    in_processes(tmp_path / "two", 2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["one", "two"]
    assert json.loads((tmp_path / "two" / "env.json").read_text())["processes"] == 2
    one, two = (rows(tmp_path / name, "steps") for name in ("one", "two"))
    for a, b in zip(one, two, strict=True):
        for column in ("loss", "grad_norm", "update_norm", "weight_norm"):
            assert float(a[column]) == pytest.approx(float(b[column]), rel=1e-4)
    one, two = (rows(tmp_path / name, "layers") for name in ("one", "two"))
    for a, b in zip(one, two, strict=True):
        assert (a["step"], a["layer"], a["part"]) == (b["step"], b["layer"], b["part"])
        assert float(a["grad_norm"]) == pytest.approx(float(b["grad_norm"]), rel=1e-4)


@pytest.mark.parametrize("way", ["forward", "backward"])
def test_a_nan_of_one_process_names_it_and_its_batch(way, tmp_path):
    in_processes(tmp_path / "bad", 2, poisoned=1, way=way)
    events = rows(tmp_path / "bad", "events")
    (of_rank,) = [e for e in events if e["module"].startswith("rank")]
    assert (of_rank["step"], of_rank["module"]) == ("2", "rank 1")
    assert of_rank["detail"].startswith("rank 1 of 2, its batch of step 2: own ")
    found = origin(tmp_path / "bad")
    assert found["phase"] == way and found["module"] == "model"
    status = json.loads((tmp_path / "bad" / "status.json").read_text())
    assert status["first_bad_step"] == 2
