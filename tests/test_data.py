import os
from collections import Counter
from math import log

import numpy as np
import pytest
import torch

from lnexp.config.schema import Data
from lnexp.data import Batches, Corpus, draw_chain, entropy_rate, load, short_splits, unigram_nll
from lnexp.messages import UserError

CPU = torch.device("cpu")


def text_file(tmp_path, content: bytes, **keys) -> Data:
    path = tmp_path / "text.txt"
    path.write_bytes(content)
    return Data(source="file", path=str(path), **keys)


def complaint(data: Data) -> str:
    with pytest.raises(UserError) as caught:
        load(data)
    return str(caught.value)


def test_sums_has_the_entropies_that_a_plain_count_gives(sums):
    corpus = load(Data(source="file", path=str(sums), val_fraction=0.0))
    text = sums.read_text()
    letters, pairs = Counter(text), Counter(zip(text, text[1:], strict=False))
    firsts = Counter(text[:-1])
    h1 = -sum(n / len(text) * log(n / len(text)) for n in letters.values())
    h2 = -sum(n / (len(text) - 1) * log(n / firsts[a]) for (a, _), n in pairs.items())
    assert len(corpus.vocabulary) == 18
    assert corpus.ln_v == pytest.approx(2.8904, abs=1e-4)
    assert corpus.h1 == pytest.approx(h1) == pytest.approx(2.647, abs=1e-3)
    assert corpus.h2 == pytest.approx(h2)
    assert corpus.floor == corpus.h2


def test_pydoc_is_real_text_with_the_entropies_of_english():
    corpus = load(Data())
    assert len(corpus.train) > 100_000
    assert corpus.h1 == pytest.approx(3.25, abs=0.05)
    assert corpus.h2 == pytest.approx(2.48, abs=0.05)


def test_the_markov_floor_is_the_entropy_rate_that_counting_converges_to():
    text, rate = draw_chain(order=1, symbols=4, length=200_000, seed=0)
    pairs = Counter(zip(text, text[1:], strict=False))
    firsts = Counter(text[:-1])
    counted = -sum(n / (len(text) - 1) * log(n / firsts[a]) for (a, _), n in pairs.items())
    assert rate == pytest.approx(counted, abs=0.005)


def test_the_rate_of_a_two_state_chain_is_the_closed_form():
    a, b = 0.1, 0.4  # leave state 0, leave state 1
    chain = np.array([[1 - a, a], [b, 1 - b]])
    pi = np.array([b, a]) / (a + b)

    def h(p: float) -> float:
        return -p * log(p) - (1 - p) * log(1 - p)

    assert entropy_rate(chain) == pytest.approx(pi[0] * h(a) + pi[1] * h(b))


def test_the_rate_of_an_order_two_chain_solves_the_stationary_equations():
    _, rate = draw_chain(order=2, symbols=3, length=100, seed=5)
    text, _ = draw_chain(order=2, symbols=3, length=300_000, seed=5)
    triples = Counter(zip(text, text[1:], text[2:], strict=False))
    pairs = Counter(zip(text[:-1], text[1:-1], strict=False))
    counted = -sum(n / (len(text) - 2) * log(n / pairs[t[:2]]) for t, n in triples.items())
    assert rate == pytest.approx(counted, abs=0.005)


def test_the_same_chain_seed_gives_the_same_text_and_another_gives_another():
    one, other = Data(source="markov", length=500), Data(source="markov", length=500, chain_seed=1)
    assert load(one).sha256 == load(one).sha256 != load(other).sha256


def test_a_byte_order_mark_and_crlf_never_become_letters(tmp_path):
    plain = load(text_file(tmp_path, "naïve café\nzwei\n".encode() * 9))
    windows = load(text_file(tmp_path, b"\xef\xbb\xbf" + "naïve café\r\nzwei\r\n".encode() * 9))
    assert windows.vocabulary == plain.vocabulary
    assert windows.sha256 == plain.sha256


def test_accents_are_read_as_utf8_whatever_the_locale(tmp_path, monkeypatch):
    monkeypatch.setenv("LC_ALL", "C")
    assert "é" in load(text_file(tmp_path, "café ".encode() * 20)).vocabulary


def test_another_encoding_is_named_with_its_offset_and_the_key_that_sets_it(tmp_path):
    cp1252 = "naïve café ".encode("cp1252") * 10
    said = complaint(text_file(tmp_path, cp1252))
    assert "0xef at offset 2" in said and "data.encoding: cp1252" in said
    assert "é" in load(text_file(tmp_path, cp1252, encoding="cp1252")).vocabulary


def test_utf16_is_recognised_and_readable_when_named(tmp_path):
    raw = ("abc def\n" * 20).encode("utf-16")
    assert "data.encoding: utf-16" in complaint(text_file(tmp_path, raw))
    assert load(text_file(tmp_path, raw, encoding="utf-16")).vocabulary == "\n abcdef"
    assert "NUL" in complaint(text_file(tmp_path, ("abc\n" * 20).encode("utf-16-le")))


@pytest.mark.parametrize("encoding", ["utf-99", "rot13", "hex"])
def test_an_encoding_that_is_none_is_refused(tmp_path, encoding):
    assert "no text encoding" in complaint(text_file(tmp_path, b"abc" * 99, encoding=encoding))


def test_an_empty_file_a_folder_and_a_missing_file_are_each_said(tmp_path):
    assert "has no text" in complaint(text_file(tmp_path, b""))
    assert "is a folder" in complaint(Data(source="file", path=str(tmp_path)))
    assert "no such file" in complaint(Data(source="file", path=str(tmp_path / "none.txt")))


def test_no_validation_is_no_validation(tmp_path):
    corpus = load(text_file(tmp_path, b"abcde" * 100, val_fraction=0.0))
    assert len(corpus.train) == 500 and len(corpus.val) == 0
    assert short_splits(corpus, 32) == []
    assert Batches(corpus, 4, 32, 0, CPU).validation() == []


def test_a_fraction_that_rounds_to_nothing_is_an_error(tmp_path):
    said = complaint(text_file(tmp_path, b"abcde" * 100, val_fraction=0.001))
    assert "less than one" in said and "write 0" in said


def test_a_split_without_a_window_is_named_with_the_context_that_fits(tmp_path):
    corpus = load(text_file(tmp_path, b"abc" * 100))
    (said,) = short_splits(corpus, 256)
    assert (
        "validation part of the text has 30" in said and "largest context that fits is 29" in said
    )
    assert short_splits(corpus, 29) == []
    assert len(short_splits(corpus, 270)) == 2


def test_a_text_that_is_too_short_as_a_whole_is_one_line(tmp_path):
    corpus = load(text_file(tmp_path, b"abcde" * 10))
    assert short_splits(corpus, 64, "short.txt") == [
        "short.txt has 50 letters: too short for model.context 64; "
        "the largest context that fits is 4"
    ]
    assert short_splits(corpus, 4) == []


def test_the_vocabulary_is_that_of_the_whole_file(tmp_path):
    corpus = load(text_file(tmp_path, b"abc" * 60 + b"Z" * 20))
    assert corpus.vocabulary == "Zabc" and 0 not in corpus.train
    assert torch.isinf(unigram_nll(corpus, CPU)[0])  # never a training target


def corpus_of(text: str) -> Corpus:
    from lnexp.data import SOURCES

    SOURCES["test"] = lambda data: (text, None)
    try:
        return load(Data.model_construct(source="test", path="", val_fraction=0.1))
    finally:
        del SOURCES["test"]


def test_batches_are_windows_of_the_training_text_and_targets_follow_inputs():
    corpus = corpus_of("abcdefghij" * 50)
    x_BT, y_BT = Batches(corpus, 8, 16, 0, CPU).draw()
    assert torch.equal((x_BT + 1) % 10, y_BT) and torch.equal(x_BT[:, 1:], y_BT[:, :-1])


def test_batches_depend_on_the_data_seed_alone_and_not_on_torchs_global_state():
    corpus = load(Data())
    torch.manual_seed(1)
    first = Batches(corpus, 4, 8, seed=3, device=CPU)
    a = [first.draw()[0] for _ in range(3)]
    torch.manual_seed(2)
    second = Batches(corpus, 4, 8, seed=3, device=CPU)
    b = []
    for _ in range(3):
        torch.rand(7)
        b.append(second.draw()[0])
    assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))
    assert not torch.equal(a[0], Batches(corpus, 4, 8, seed=4, device=CPU).draw()[0])


def test_every_window_can_be_drawn_the_last_one_too():
    corpus = corpus_of("ab" * 10)  # 18 letters to train on: windows start at 0 .. 12
    batches = Batches(corpus, 2000, 5, 0, CPU)
    assert len(batches._windows) == 13 and batches.draw()[0].shape == (2000, 5)


def test_the_letter_frequency_predictor_scores_h1_on_the_whole_training_text(sums):
    corpus = load(Data(source="file", path=str(sums)))
    nll_V = unigram_nll(corpus, CPU)
    assert float(nll_V[torch.from_numpy(corpus.train)].mean()) == pytest.approx(corpus.h1)


@pytest.mark.parametrize("name", ["n" * 256, "n" * 5000, "n/" * 3000])
def test_a_path_that_no_file_system_takes_is_said(tmp_path, name):
    assert "cannot be read: " in complaint(Data(source="file", path=str(tmp_path / name)))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
def test_pipes_and_devices_are_refused_and_not_read_for_ever(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", "/dev/zero"):
        assert "is no regular file" in complaint(Data(source="file", path=str(path)))


@pytest.mark.parametrize(
    ("order", "symbols"),
    [(1, 64), (2, 2), (2, 16), (3, 5), pytest.param(3, 7, marks=pytest.mark.slow)],
)
def test_the_stationary_law_is_that_of_the_eigenvectors(order, symbols):
    contexts = symbols**order
    chain = np.random.default_rng(order).exponential(size=(contexts, symbols)) ** 2
    chain /= chain.sum(axis=1, keepdims=True)
    moves = np.zeros((contexts, contexts))
    for context in range(contexts):
        for letter in range(symbols):
            moves[context, (context * symbols + letter) % contexts] = chain[context, letter]
    values, vectors = np.linalg.eig(moves.T)
    pi = np.real(vectors[:, np.argmax(np.real(values))])
    rate = -(pi / pi.sum()) @ (chain * np.log(chain)).sum(axis=1)
    assert entropy_rate(chain) == pytest.approx(rate, abs=1e-9)


def test_a_law_over_a_quarter_of_a_million_contexts_settles_in_a_few_rounds(monkeypatch):
    from lnexp import data as markov

    rounds = []
    absolute = np.abs
    monkeypatch.setattr(markov.np, "abs", lambda x: rounds.append(1) or absolute(x))
    chain = np.random.default_rng(0).exponential(size=(64**3, 64)) ** 2
    chain /= chain.sum(axis=1, keepdims=True)
    assert 0 < entropy_rate(chain) < log(64)
    assert len(rounds) < 100
