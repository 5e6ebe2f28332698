import os

import pytest

from lnexp.config.names import find
from lnexp.messages import UserError


@pytest.mark.parametrize("word", ["", " "])
def test_an_unset_shell_variable_is_not_this_folder(tmp_path, monkeypatch, word):
    (tmp_path / "a.yaml").write_text("seeds: [0]\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="names no config"):
        find([word])
    assert [path.name for path in find(["."])] == ["a.yaml"]


def test_a_setting_without_s_is_told_where_it_goes():
    with pytest.raises(UserError) as caught:
        find(["quickstart", "model.norm=rmsnorm", "seeds=[0, 1]"])
    assert caught.value.problems == (
        "model.norm=rmsnorm: a setting needs -s before it: -s model.norm=rmsnorm",
        "seeds=[0, 1]: a setting needs -s before it: -s 'seeds=[0, 1]'",
    )


@pytest.mark.parametrize("word", ["a" * 300, "a" * 5000, "a/" * 3000 + "b.yaml", "a\0b"])
def test_a_word_that_no_file_system_takes_is_one_short_line(word):
    with pytest.raises(UserError) as caught:
        find([word])
    (line,) = caught.value.problems
    assert "no such file or folder" in line and len(line) < 700


def test_a_folder_of_shipped_experiments_is_named_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = [path.stem for path in find(["lessons"])]
    assert find(["configs/lessons/"]) == find(["lessons"])
    assert names.index("L3") < names.index("L10")
    assert [path.name for path in find(["lessons/L3", "configs/lessons/L3.yaml"])] == ["L3.yaml"]


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("quikstart", "did you mean quickstart?"),
        ("l3", "did you mean lessons/L3?"),
        ("xyzzy", "lnexp configs lists them"),
    ],
)
def test_a_misspelt_experiment_is_told_the_nearest(word, said):
    with pytest.raises(UserError) as caught:
        find([word])
    assert caught.value.problems[0].endswith(said)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
def test_a_pipe_is_refused_and_not_waited_for(tmp_path):
    from lnexp.config.document import read

    os.mkfifo(tmp_path / "a.yaml")
    with pytest.raises(UserError, match="is no regular file"):
        read(tmp_path / "a.yaml")
