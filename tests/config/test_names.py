"""A run's identity is what decides its rows; names fit every file system."""

import re
import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lnexp.config.names import clean_name, identity, run_name, wrong_name
from lnexp.config.schema import Data, Measure, Model, RunConfig, Seed, Train

TEXT = "a" * 64


def hashed(text: str = TEXT, device: str = "cpu", **sections) -> str:
    return identity(RunConfig(**sections), text, device)


def test_an_identity_is_eight_hex_characters_and_stays_what_it_was():
    """A change of this value orphans every run on every disk."""
    assert re.fullmatch("[0-9a-f]{8}", hashed())
    assert hashed() == "4d9aebb4"


def test_a_value_written_at_its_default_is_the_default():
    assert hashed(model=Model(depth=4, eps=0.00001), train=Train(lr=1e-3)) == hashed()


@pytest.mark.parametrize(
    "other",
    [
        {"model": Model(depth=5)},
        {"model": Model(eps=1e-12)},
        {"train": Train(lr=0.0010001)},
        {"train": Train(clip=1.0)},
        {"data": Data(val_fraction=0.2)},
        {"measure": Measure(level="full")},
        {"measure": Measure(every=2)},
        {"seed": Seed(init=1)},
        {"seed": Seed(data=1)},
        {"text": "b" * 64},
        {"device": "cuda"},
        {"train": Train(schedule="cosine")},
    ],
)
def test_what_changes_a_row_changes_the_identity(other):
    assert hashed(**other) != hashed()


@pytest.mark.parametrize(
    "other",
    [
        {"data": Data(source="file", path="/a.txt", encoding="cp1252")},
        {"data": Data(source="markov", order=2, chain_seed=3)},
        {"measure": Measure(snapshot_every=10)},
        {"measure": Measure(keep="all")},
        {"train": Train(steps=400)},
        {"train": Train(device="cpu")},
        {"train": Train(momentum=0.5)},
        {"model": Model(embed_std=0.02)},
    ],
)
def test_what_changes_no_row_leaves_the_identity_alone(other):
    assert hashed(**other) == hashed()


def test_steps_count_where_the_schedule_depends_on_them():
    cosine = [hashed(train=Train(schedule="cosine", steps=steps)) for steps in (100, 200)]
    assert cosine[0] != cosine[1]


def test_near_equal_learning_rates_get_two_folders_and_equal_ones_one():
    names = {
        run_name(RunConfig(train=Train(lr=lr)), TEXT, "cpu") for lr in (0.001, 1e-3, 0.0010001)
    }
    assert len(names) == 2


def test_a_run_name_says_what_is_looked_for_first():
    config = RunConfig(model=Model(placement="post", depth=12), seed=Seed(init=3, data=3))
    assert run_name(config, TEXT, "cpu").startswith("post-layernorm-d12-w64-s3-")
    mixed = RunConfig(seed=Seed(init=1, data=0))
    assert "-s1.0-" in run_name(mixed, TEXT, "cpu")


@given(st.integers(0, 10**400), st.integers(1, 5000))
@settings(deadline=None, max_examples=30)
def test_every_run_name_is_a_valid_name_of_at_most_100_characters(seed, depth):
    config = RunConfig(model=Model(depth=depth), seed=Seed(init=seed))
    name = run_name(config, TEXT, "cpu")
    assert wrong_name(name) == ""
    assert name.endswith(identity(config, TEXT, "cpu"))


@pytest.mark.parametrize(
    "name", ["a", "placement_by_depth", "1e-5", "a.b-c_D", "console", "n" * 100]
)
def test_plain_names_are_right(name):
    assert wrong_name(name) == ""


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "...", "a.", "a b", "a/b", "a:b", "größe", "a\n", "CON", "nul", "com1.yaml",
     "Lpt9", "n" * 101]
)  # fmt: skip
def test_names_that_some_system_refuses_are_wrong(name):
    assert wrong_name(name)


@given(st.text(min_size=1))
@settings(deadline=None)
def test_every_file_stem_becomes_a_name_of_clean_letters(stem):
    name = clean_name(stem)
    assert name and set(name) <= set(string.ascii_letters + string.digits + "._-")
    assert wrong_name(name) in ("", "Windows keeps this name for itself")


def test_a_clean_stem_is_kept_and_others_stay_recognisable():
    assert clean_name("depth-4_x.1") == "depth-4_x.1"
    assert clean_name("Über größere Schritte") == "Uber_gro_ere_Schritte"
    assert clean_name("深い") != clean_name("浅い")
