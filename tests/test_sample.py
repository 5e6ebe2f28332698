from pathlib import Path

import pytest
import torch

from lnexp.config.sweep import load_sweep
from lnexp.messages import UserError
from lnexp.runs.execute import run_plan
from lnexp.runs.plan import make_plan
from lnexp.sample import Sampler, load_sampler, next_letter


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("sample")
    (folder / "text.txt").write_text("abc" * 300)
    (folder / "letters.yaml").write_text(
        "data: {source: file, path: text.txt}\n"
        "model: {depth: 1, width: 16, heads: 2, context: 8}\n"
        "train: {steps: 60, batch_size: 8, lr: 1e-2}\n"
    )
    plan = make_plan(load_sweep(folder / "letters.yaml"))
    run_plan(plan, folder, jobs=1)
    return folder / "letters" / "runs" / plan.runs[0].name


@pytest.fixture(scope="module")
def sampler(run_folder) -> Sampler:
    return load_sampler(run_folder)


def test_a_trained_run_goes_on_with_its_text(sampler):
    assert sampler.generate("ab", 10, 0.0, 0) == "ab" + "cabcabcabc"


def test_the_same_seed_draws_the_same_text_whatever_the_global_state(sampler):
    torch.manual_seed(1)
    one = sampler.generate("a", 30, 2.0, 5)
    torch.manual_seed(2)
    assert sampler.generate("a", 30, 2.0, 5) == one != sampler.generate("a", 30, 2.0, 6)


def test_unseen_letters_of_a_prompt_are_named_with_their_positions(sampler):
    with pytest.raises(UserError, match="no 'Q' at position 0, '\\?' at position 2"):
        sampler.generate("Qa?Q", 5, 1.0, 0)


def test_without_a_prompt_a_text_without_line_ends_or_spaces_starts_too(sampler):
    assert sampler.default_prompt() == "a"
    assert sampler.generate("", 5, 0.0, 0) == "bcabc"


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_nonfinite_logits_are_said_and_never_sampled(bad):
    logits = torch.zeros(5)
    logits[2] = bad
    with pytest.raises(UserError, match="not finite"):
        next_letter(logits, 1.0, torch.Generator())


def test_a_checkpoint_with_another_vocabulary_is_refused_with_both_sizes(run_folder, tmp_path):
    import shutil

    other = tmp_path / "run"
    shutil.copytree(run_folder, other)
    env = (other / "env.json").read_text()
    (other / "env.json").write_text(env.replace('"vocabulary": "abc"', '"vocabulary": "abcd"'))
    with pytest.raises(UserError, match="has 3 letters, its vocabulary 4"):
        load_sampler(other)


def test_what_is_no_finished_run_is_said(run_folder, tmp_path):
    with pytest.raises(UserError, match="is no run folder"):
        load_sampler(tmp_path)
    (tmp_path / "config.yaml").write_text("model: {}\n")
    with pytest.raises(UserError, match="only a finished run"):
        load_sampler(tmp_path)


@pytest.mark.parametrize(
    "name, content, says",
    [
        ("checkpoint.pt", b"", "damaged"),
        ("checkpoint.pt", b"garbage" * 99, "damaged"),
        ("env.json", b"", "damaged"),
        ("env.json", b'{"vocabulary": 3}', "damaged"),
        ("config.yaml", b"model: {depth: 2, width: 16, heads: 2, context: 8}\n", "weights"),
        ("config.yaml", b"model: {dpeth: 2}\n", "not the config"),
    ],
)
def test_a_damaged_run_folder_is_named_in_a_line(run_folder, tmp_path, name, content, says):
    import shutil

    other = tmp_path / "run"
    shutil.copytree(run_folder, other)
    (other / name).write_bytes(content)
    with pytest.raises(UserError, match=says):
        load_sampler(other)


def test_a_tiny_temperature_takes_the_likeliest(sampler):
    assert sampler.generate("ab", 6, 1e-320, 0) == sampler.generate("ab", 6, 0.0, 0)
