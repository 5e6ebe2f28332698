"""A disk that is full: the run says which file and why, and what was written stays good."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lnexp.config.sweep import load_sweep
from lnexp.runs import checkpoint, rundir
from lnexp.runs.execute import earlier_run
from lnexp.runs.plan import Plan, make_plan
from lnexp.runs.rundir import read_status
from tests.runs.small import SMALL, rows, train_here, write_config

ONE = ("seeds=[0]", "model.dropout=[0.1]", "model.placement=[pre]")
FULL = Path("/dev/full")  # no write to it succeeds (and no read ends: never for steps.csv)
needs_full = pytest.mark.skipif(not FULL.exists(), reason="no /dev/full")


def plan_of(folder: Path, *overrides: str, text: str = SMALL) -> Plan:
    return make_plan(load_sweep(write_config(folder, text), [*ONE, *overrides]))


@needs_full
@pytest.mark.parametrize(
    "name", ["layers.csv", "checkpoint.pt", "status.json", "env.json", "config.yaml"]
)
def test_a_write_that_fails_is_this_runs_failure_with_path_and_cause(tmp_path, name):
    plan = plan_of(tmp_path)
    folder = tmp_path / "small" / "runs" / plan.runs[0].name
    folder.mkdir(parents=True)
    written = name if name.endswith(".csv") else name + ".tmp"
    (folder / written).symlink_to(FULL)
    (status,) = train_here(plan, tmp_path)
    assert status.status == "failed" and not earlier_run(plan.runs[0], folder).done
    assert status.error == f"OSError: [Errno 28] No space left on device: '{folder / name}'"
    assert read_status(folder) == status and "Traceback" in (folder / "error.txt").read_text()
    assert not (folder / "checkpoint.pt.tmp").exists()


def test_a_run_that_cannot_even_say_so_is_never_read_as_finished(tmp_path, monkeypatch):
    whole = rundir.write_whole

    def no_status(path: Path, content) -> None:
        if path.name in ("status.json", "error.txt"):
            raise OSError(28, "No space left on device", str(path))
        whole(path, content)

    plan = plan_of(tmp_path)
    monkeypatch.setattr(rundir, "write_whole", no_status)
    (status,) = train_here(plan, tmp_path)
    folder = tmp_path / "small" / "runs" / plan.runs[0].name
    assert status.status == "failed" and "status.json" in (status.error or "")
    assert read_status(folder) is None and not earlier_run(plan.runs[0], folder).done


@needs_full
def test_a_snapshot_that_could_not_be_written_leaves_the_one_before_it(tmp_path):
    train_here(plan_of(tmp_path), tmp_path / "a")
    longer = plan_of(tmp_path, "train.steps=20")
    folder = tmp_path / "a" / "small" / "runs" / longer.runs[0].name
    before = (folder / "checkpoint.pt").read_bytes()
    (folder / "checkpoint.pt.tmp").symlink_to(FULL)
    (status,) = train_here(longer, tmp_path / "a")
    assert status.status == "failed" and (folder / "checkpoint.pt").read_bytes() == before
    train_here(longer, tmp_path / "a")  # there is space again
    train_here(longer, tmp_path / "b")
    assert rows(tmp_path / "a") == rows(tmp_path / "b")


def has_namespaces() -> bool:
    try:
        return subprocess.run(["unshare", "-rm", "true"], capture_output=True).returncode == 0
    except OSError:
        return False


SCRIPT = """
mount -t tmpfs -o size=900k tmpfs "$1" && shift 1 || exit 77
"$@"; code=$?
cp -r disk/small copy
exit $code
"""


@pytest.mark.slow
@pytest.mark.skipif(not has_namespaces(), reason="may not mount a small disk")
def test_on_a_disk_that_fills_up_one_run_fails_and_the_others_stay_what_they_are(tmp_path):
    text = SMALL.replace("steps: 12", "steps: 200").replace("eval_every: 5", "keep: none")
    write_config(tmp_path, text)
    (tmp_path / "disk").mkdir()
    words = "run small.yaml -o disk -j 1 -s seeds=[0,1] -s model.dropout=[0.1]"
    words += " -s model.placement=[pre]"
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", SCRIPT, "sh", "disk"]
        + [sys.executable, "-m", "lnexp", *words.split()],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    if done.returncode == 77:
        pytest.skip("may not mount a small disk")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "No space left on device: 'disk/small/runs/pre-layernorm-d2-w16-s1-" in done.stderr
    (tmp_path / "full").mkdir()
    shutil.move(tmp_path / "copy", tmp_path / "full" / "small")
    plan = plan_of(tmp_path, "seeds=[0,1]", text=text)
    runs = tmp_path / "full" / "small" / "runs"
    assert [earlier_run(run, runs / run.name).done for run in plan.runs] == [True, False]
    assert checkpoint.read(runs / plan.runs[1].name) is not None
    train_here(plan, tmp_path / "full", plan.runs[1:])
    train_here(plan, tmp_path / "calm")
    assert rows(tmp_path / "full") == rows(tmp_path / "calm")
