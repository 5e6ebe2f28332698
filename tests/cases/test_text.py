"""C1, C3, C5, C6: a text of another kind than the config says is refused, or just works."""

import csv
import json
import shutil
from math import isfinite
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lnexp import data
from lnexp.config.schema import Data
from lnexp.data import Batches, load, short_splits
from lnexp.messages import UserError
from tests.cases.conftest import run_here
from tests.cli import lnexp
from tests.runs.small import files, write_config

TEXT = """
data: {source: file, path: text.txt}
model: {depth: 1, width: 8, heads: 1, context: 16}
train: {steps: 4, batch_size: 4}
measure: {eval_every: 1}
"""
CAFE = "naïve café\n" * 30


# ------------------------------------------------------------- C1: not UTF-8, whatever the locale

BAD_TEXTS = {
    "cp1252": (CAFE.encode("cp1252"), "is not utf-8: byte 0xef at offset 2", "cp1252"),
    "utf-16": (CAFE.encode("utf-16"), "is not utf-8: byte 0xff at offset 0", "utf-16"),
    "utf-16-le": (CAFE.encode("utf-16-le"), "byte 0xef at offset 4", "data.encoding"),
    "plain utf-16-le": ("cafe\n".encode("utf-16-le") * 99, "a NUL at character 1", "utf-16-le"),
    "cut in a letter": (CAFE.encode()[:-2], "is not utf-8: byte 0xc3 at offset", "data.encoding"),
    "empty": (b"", "has no text", "data.path"),
    "only a mark": (b"\xef\xbb\xbf", "has no text", "data.path"),
}


@pytest.mark.parametrize("case", BAD_TEXTS)
def test_text_that_cannot_be_read_is_one_line_with_the_key_that_helps(refused, tmp_path, case):
    """C1"""
    raw, what, key = BAD_TEXTS[case]
    (tmp_path / "text.txt").write_bytes(raw)
    (line,) = refused(TEXT)
    assert line.startswith("small.yaml:2: data.path: ") and what in line and key in line


def test_a_folder_or_nothing_at_the_path_is_one_line(refused, tmp_path):
    """C1"""
    (tmp_path / "folder").mkdir()
    assert (
        "is a folder; write the path of a text file"
        in refused(TEXT.replace("text.txt", "folder"))[0]
    )
    assert "no such file" in refused(TEXT)[0]


@pytest.mark.parametrize("offset", [0, 1, 100, 328])
def test_the_offset_is_that_of_the_first_byte_that_is_no_utf8(refused, tmp_path, offset):
    """C1"""
    raw = bytearray(b"plain text\n" * 30)
    raw[offset] = 0x92  # a quotation mark of cp1252
    (tmp_path / "text.txt").write_bytes(raw)
    (line,) = refused(TEXT)
    assert f"byte 0x92 at offset {offset};" in line


@pytest.mark.parametrize("encoding", ["utf-8-sig", "cp1252", "utf-16", "utf-16-le", "utf-32"])
def test_the_same_text_in_another_encoding_is_the_same_run(names, tmp_path, encoding):
    """C1"""
    (tmp_path / "text.txt").write_bytes(CAFE.encode())
    plain = names(TEXT)
    (tmp_path / "text.txt").write_bytes(CAFE.encode(encoding))
    assert names(TEXT, "-s", f"data.encoding={encoding}") == plain


@pytest.mark.parametrize("encoding", ["punycode", "unicode_escape", "undefined", "hex", "utf-99"])
def test_a_codec_that_gives_no_text_is_one_line_too(refused, tmp_path, encoding):
    """C1"""
    (tmp_path / "text.txt").write_bytes(b"\\ud800 ]\n" * 99)
    (line,) = refused(TEXT, "-s", f"data.encoding={encoding}")
    assert line.startswith(f"-s data.encoding={encoding}: data.encoding: ")
    assert "write utf-8, cp1252" in line


def test_a_config_that_is_not_utf8_is_one_line(tmp_path):
    """C1"""
    (tmp_path / "a.yaml").write_bytes("question: où?\n".encode("cp1252"))
    said = lnexp("run", "a.yaml", cwd=tmp_path)
    assert (said.code, said.err) == (
        2, "a.yaml: is not UTF-8 (byte 0xf9 at offset 11); save it as UTF-8\n"
    )  # fmt: skip


# ------------------------------------------------------------- C3, C5: splits that are too short


def test_every_context_that_a_split_cannot_hold_is_listed_before_anything_trains(refused, tmp_path):
    """C3"""
    (tmp_path / "text.txt").write_text("abcdefghij" * 30)
    lines = refused(TEXT + "sweep:\n  model.context: [16, 64, 29, 256, 280]\n")
    assert lines == [
        f"small.yaml:7: model.context: the {part} part of text.txt has {size} characters, "
        f"model.context {context} needs {context + 1}: the largest context that fits is {size - 1}"
        for part, size, context in (
            ("validation", 30, 64), ("validation", 30, 256), ("training", 270, 280),
            ("validation", 30, 280),
        )
    ]  # fmt: skip


def test_the_context_that_is_named_as_the_largest_fits_and_the_next_does_not(
    names, refused, tmp_path
):
    """C3"""
    (tmp_path / "text.txt").write_text("abcdefghij" * 30)
    assert names(TEXT, "-s", "model.context=29")
    assert "fits is 29" in refused(TEXT, "-s", "model.context=30")[0]
    assert names(TEXT, "-s", "model.context=299", "-s", "data.val_fraction=0")


def test_one_letter_is_a_text_that_no_context_fits(refused, tmp_path):
    """C3"""
    (tmp_path / "text.txt").write_text("a")
    (line,) = refused(TEXT, "-s", "data.val_fraction=0", "-s", "model.context=1")
    assert "text.txt has 1 letter: too short for model.context 1;" in line and line.endswith(
        "none fits"
    )


def corpus_of(text: str, val_fraction: float) -> data.Corpus:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(data.SOURCES, "markov", lambda _: (text, None))
        return load(Data(source="markov", val_fraction=val_fraction))


@given(
    size=st.integers(1, 200),
    val_fraction=st.floats(0, 1, exclude_max=True),
    context=st.integers(1, 64),
)
@settings(deadline=None, max_examples=200, derandomize=True)
def test_a_text_is_cut_in_two_in_order_and_what_is_not_refused_has_its_windows(
    size, val_fraction, context
):
    """C3, C5"""
    text = "".join(chr(ord("a") + i * i % 7) for i in range(size))
    try:
        corpus = corpus_of(text, val_fraction)
    except UserError as error:
        assert 0 < size * val_fraction < 1 and "is less than one; write 0" in str(error)
        return
    ids = np.array([corpus.vocabulary.index(letter) for letter in text])
    assert np.array_equal(np.concatenate([corpus.train, corpus.val]), ids)
    assert len(corpus.train) >= 1 and (len(corpus.val) > 0) == (val_fraction > 0)
    assert abs(len(corpus.val) - size * val_fraction) < 1
    if short_splits(corpus, context):
        assert min(len(corpus.train), len(corpus.val) or size) <= context
        return
    batches = Batches(corpus, 4, context, 0, torch.device("cpu"))
    assert batches.draw()[0].shape == (4, context)
    assert bool(batches.validation()) == (val_fraction > 0)
    assert all(len(x_BT) > 0 for x_BT, _ in batches.validation())


@pytest.mark.parametrize(
    "fraction, what",
    [
        ("0.001", "0.001 of 500 characters is less than one; write 0 for no validation"),
        ("0.002", "the validation part of text.txt has 1 character,"),
        ("0.03", "the validation part of text.txt has 15 characters"),
        ("0.99", "the training part of text.txt has 5 characters"),
        ("1.0", "1.0 does not fit; write a number, at least 0, below 1"),
        ("-0.1", "-0.1 does not fit; write a number, at least 0, below 1"),
    ],
)
def test_a_fraction_that_leaves_a_split_without_a_window_is_refused_and_named(
    refused, tmp_path, fraction, what
):
    """C5"""
    (tmp_path / "text.txt").write_text("abcde" * 100)
    (line,) = refused(TEXT + f"sweep: {{data.val_fraction: [0, {fraction}, 0.1]}}")
    assert what in line and fraction in line


# ------------------------------------------- C5, C6: no validation; letters seen by one split only


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """Without validation, and with one whose part alone holds a Z; no line end, no space."""
    folder = tmp_path_factory.mktemp("text")
    (folder / "text.txt").write_text("abc" * 180 + "abZ" * 20)
    write_config(folder, TEXT + "sweep: {data.val_fraction: [0, 0.1]}")
    said = run_here("small.yaml", cwd=folder)
    assert said.code == 0, said.err
    return folder


@pytest.fixture(scope="module")
def runs(trained) -> dict[float, Path]:
    """val_fraction -> run folder."""
    points = json.loads((trained / "results" / "small" / "points.json").read_text())["runs"]
    folder = trained / "results" / "small" / "runs"
    return {point["settings"]["data.val_fraction"]: folder / point["run"] for point in points}


def steps(run: Path) -> list[dict[str, str]]:
    with (run / "steps.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_no_validation_leaves_its_column_empty_and_makes_no_event(runs):
    """C5"""
    assert [row["val_loss"] for row in steps(runs[0])] == [""] * 4
    assert all(isfinite(float(row["loss"])) for row in steps(runs[0]))
    for run in runs.values():
        assert len((run / "events.csv").read_text().splitlines()) == 1  # its header
        assert json.loads((run / "status.json").read_text())["first_bad_step"] is None


def test_letters_that_only_the_validation_part_holds_are_in_the_vocabulary(runs):
    """C6"""
    env = json.loads((runs[0.1] / "env.json").read_text())
    assert env["vocabulary"] == "Zabc"
    assert all(isfinite(float(row["val_loss"])) for row in steps(runs[0.1]))
    assert all(isfinite(float(row["unigram_loss"])) for row in steps(runs[0.1]))


def test_unseen_letters_of_a_prompt_are_named_with_their_positions(runs, trained):
    """C6"""
    said = lnexp("sample", runs[0.1], "--prompt", "aQ?", cwd=trained)
    assert (said.code, said.out) == (2, "") and "Traceback" not in said.err
    assert "no 'Q' at position 1, '?' at position 2" in said.err


@pytest.mark.parametrize("prompt", ["", "a", "Z", "abcZ" * 20])
def test_every_prompt_of_known_letters_goes_on(runs, trained, prompt):
    """C6"""
    said = lnexp("sample", runs[0.1], "--prompt", prompt, "--length", 20, cwd=trained)
    assert said.code == 0, said.err
    text = said.out.removesuffix("\n")
    assert text.startswith(prompt) and len(text) == len(prompt) + 20 and set(text) <= set("Zabc")


def test_another_text_under_the_same_path_is_another_run_and_leaves_the_old_one(trained, tmp_path):
    """C6: nothing of an earlier text's vocabulary is used again."""
    folder = tmp_path / "copy"
    shutil.copytree(trained, folder)
    before = files(folder / "results")
    assert lnexp("run", "small.yaml", "--dry-run", cwd=folder).out == ""
    (folder / "text.txt").write_text("abcdef" * 100)
    said = lnexp("run", "small.yaml", "--dry-run", cwd=folder)
    held = {path.name for path in (folder / "results" / "small" / "runs").iterdir()}
    assert said.code == 0 and len(said.out.split()) == 2 and not held & set(said.out.split())
    assert "2 runs on disk, no longer in this config, stay as they are" in said.err
    assert files(folder / "results") == before


def test_a_letter_is_a_letter_whatever_its_code_point(planned, tmp_path):
    """C6"""
    (tmp_path / "text.txt").write_text("añ語🙂\U0010ffff" * 100, encoding="utf-8")
    (text,) = planned(TEXT)["texts"]
    assert (text["letters"], text["training"], text["validation"]) == (5, 450, 50)
