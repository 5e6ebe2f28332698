import json
from math import inf, nan

import pytest

from lnexp.files import strict_json
from lnexp.records import Status
from lnexp.rows import EventRow, LayerRow, Record, StepRow
from lnexp.runs.rundir import LastRow, RunDir, last_row, read_status


def record(step: int, loss: float = 1.5, **fields) -> Record:
    return Record(
        StepRow(step, 64, 0.1, 1e-3, loss, 3.0, **fields), [LayerRow(step, 0, "attn", 0.25)]
    )


def test_nonfinite_numbers_are_written_out_and_what_was_not_measured_is_empty(tmp_path):
    with RunDir(tmp_path / "run").begin("a: 1\n", {}) as run:
        run.write(record(0, nan, grad_norm=inf, update_norm=-inf))
    row = (tmp_path / "run" / "steps.csv").read_text().splitlines()[1]
    assert row == "0,64,0.1,0.001,nan,3.0,,inf,-inf,,,,,"


def test_rows_are_on_disk_after_every_step(tmp_path):
    with RunDir(tmp_path / "run").begin("a: 1\n", {}) as run:
        for step in range(3):
            run.write(record(step))
            assert last_row(run.path) == LastRow(step, 0.1, 1.5)
            assert (run.path / "layers.csv").read_text().count("\n") == step + 2
        assert read_status(run.path) is None


def test_a_fresh_start_leaves_nothing_of_an_earlier_try(tmp_path):
    run = RunDir(tmp_path)
    with run.begin("a: 1\n", {}):
        run.write(record(0))
        run.finish(Status("finished", 1))
    (tmp_path / "steps.csv").write_text("")  # a 0-byte file gets its header, too
    with run.begin("a: 1\n", {}):
        assert read_status(tmp_path) is None and last_row(tmp_path) is None
    assert (tmp_path / "steps.csv").read_text().count("step") == 1


def test_a_half_written_last_line_is_not_read(tmp_path):
    with RunDir(tmp_path).begin("a: 1\n", {}) as run:
        run.write(record(0))
    with (tmp_path / "steps.csv").open("a") as file:
        file.write("1,128,0.2,0.001,1.2")
    assert last_row(tmp_path) == LastRow(0, 0.1, 1.5)


def test_status_reads_back_and_a_broken_one_is_none(tmp_path):
    status = Status("finished", 7, 1.5, first_bad_step=6, unmoved=("a", "b"))
    RunDir(tmp_path).finish(status)
    assert read_status(tmp_path) == status
    (tmp_path / "status.json").write_text('{"status": "fini')
    assert read_status(tmp_path) is None


def test_json_is_strict():
    def refuse(name: str) -> None:
        raise ValueError(name)

    text = strict_json({"a": nan, "b": [inf, -inf, 1.0], "c": {"d": None}})
    assert json.loads(text, parse_constant=refuse) == {
        "a": "nan", "b": ["inf", "-inf", 1.0], "c": {"d": None},
    }  # fmt: skip


def test_text_with_commas_quotes_and_line_ends_stays_one_row(tmp_path):
    with RunDir(tmp_path).begin("a: 1\n", {}) as run:
        event = EventRow(0, "loss", "nan", detail='a "b",\nc')
        run.write(Record(record(0).step, [], [event]))
    assert (tmp_path / "events.csv").read_text().splitlines()[1:] == ['0,loss,nan,,,,"a ""b"", c"']


@pytest.mark.parametrize("value", [0.1, 1e-300, 2.0**0.5, 1e22])
def test_floats_read_back_to_the_bit(value, tmp_path):
    with RunDir(tmp_path).begin("a: 1\n", {}) as run:
        run.write(record(0, value))
    assert float((tmp_path / "steps.csv").read_text().splitlines()[1].split(",")[4]) == value
