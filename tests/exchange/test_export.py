"""What is exported is what was measured: NaN stays NaN, and what was not measured stays away."""

import json
import struct
from dataclasses import fields
from math import inf, isnan, nan
from pathlib import Path

import pandas as pd
import pytest

from lnexp.exchange.vocabulary import LAYER_KEYS, STEP_KEYS
from lnexp.results.load import load
from lnexp.rows import EventRow, LayerRow, StepRow
from tests.cli import lnexp
from tests.results.folders import write_points, write_run

LOSSES = [4.0, 3.0, nan, inf]
NORMS = [1.5, None, nan, -inf]


@pytest.fixture
def sweep(tmp_path) -> Path:
    """Two runs of one sweep; the first has a NaN, an Inf and a reading that was not taken."""
    folder = tmp_path / "results" / "small"
    write_points(folder, [("a", 0, {"model.depth": 4}), ("b", 1, {"model.depth": 4})])
    steps = [
        StepRow(i, 8 * i, 0.1 * i, 1e-3, loss, 3.2, grad_norm=norm)
        for i, (loss, norm) in enumerate(zip(LOSSES, NORMS, strict=True))
    ]
    layers = [
        LayerRow(i, layer, part, grad_norm=norm)
        for i, norm in enumerate(NORMS)
        for layer, part in ((-1, "embed"), (0, "attn"), (3, "mlp"), (4, "head"))
    ]
    event = EventRow(2, "loss", "nan", "origin", "loss", "", 'a "detail", quoted')
    write_run(folder, "a", steps=steps, layers=layers, events=[event])
    write_run(folder, "b", steps=[StepRow(0, 8, 0.1, 1e-3, 2.5, 3.2)])
    return folder


def measured(sweep: Path) -> dict[tuple[str, int, str], float]:
    """(run, step, key) -> value, straight from the row types' fields and the frames."""
    results, found = load(sweep), {}
    for row_type, frame, keys in (
        (StepRow, results.steps(), STEP_KEYS),
        (LayerRow, results.layers(), LAYER_KEYS),
    ):
        for row in frame.to_dict("records"):
            where = ""
            if row_type is LayerRow:
                inner = row["part"] in ("attn", "mlp")
                where = f"/blocks.{row['layer']}.{row['part']}" if inner else f"/{row['part']}"
            for field in fields(row_type):
                key = keys.get(field.name)
                if key and not (row[field.name] is None or row[field.name] is pd.NA):
                    found[row["run"], row["step"], key + where] = float(row[field.name])
    return found


def same(one: dict, other: dict) -> bool:
    """NaN equals NaN here, and never Inf."""
    return one.keys() == other.keys() and all(
        one[k] == other[k] or (isnan(one[k]) and isnan(other[k])) for k in one
    )


def test_json_reads_back_to_the_frames(sweep, tmp_path):
    said = lnexp("export", sweep, "--to", "json", cwd=tmp_path)
    assert said.code == 0, said.err
    path = Path(said.out.strip())
    assert path == sweep / "export" / "json" / "results.json"
    data = json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(name))
    back = {
        (run["run"], row["step"], key): float(value)
        for run in data["runs"]
        for row in run["history"]
        for key, value in row.items()
        if key != "step"
    }
    expected = measured(sweep)
    assert same(back, expected)
    assert isnan(back["a", 2, "train/loss"]) and back["a", 3, "train/loss"] == inf
    assert back["a", 0, "grad/norm/blocks.3.mlp"] == 1.5 and back["a", 3, "grad/norm"] == -inf
    assert ("a", 1, "grad/norm") not in back  # not measured
    first = data["runs"][0]
    assert first["verdict"] == "nonfinite" and first["model.depth"] == 4
    assert first["events"][0]["detail"] == 'a "detail", quoted'


def test_an_export_never_writes_over_another(sweep, tmp_path):
    words = ("export", sweep, "--to", "json", "-o", tmp_path / "there")
    assert lnexp(*words).code == 0
    said = lnexp(*words)
    assert said.code == 2 and "not empty" in said.err


def test_an_unknown_format_and_a_missing_package_are_one_line_each(sweep, monkeypatch):
    said = lnexp("export", sweep, "--to", "csv")
    assert said.code == 2 and "tensorboard, wandb, parquet, json" in said.err
    monkeypatch.setattr("lnexp.commands.exchange.find_spec", lambda name: None)
    said = lnexp("export", sweep, "--to", "wandb")
    assert said.code == 2
    assert said.err == 'export --to wandb needs wandb: pip install "lnexp[wandb]"\n'
    assert not (sweep / "export").exists()


@pytest.mark.slow
def test_parquet_keeps_null_and_nan_apart(sweep, tmp_path):
    pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    out = tmp_path / "out"
    said = lnexp("export", sweep, "--to", "parquet", "-o", out)
    assert said.code == 0, said.err
    rows = pq.read_table(out / "history.parquet").to_pylist()
    assert same({(r["run"], r["step"], r["key"]): r["value"] for r in rows}, measured(sweep))
    runs = pq.read_table(out / "runs.parquet").to_pylist()
    assert [run["verdict"] for run in runs] == ["nonfinite", "learned"]
    assert [run["first_bad_step"] for run in runs] == [2, None]
    assert (
        runs[0]["end_loss"] == inf
        and runs[0]["grad_ratio_end"] is None
        or isnan(runs[0]["grad_ratio_end"])
    )
    assert pq.read_table(out / "events.parquet").num_rows == 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_tensorboard_reads_every_value_back(sweep, tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

    out = tmp_path / "out"
    said = lnexp("export", sweep, "--to", "tensorboard", "-o", out)
    assert said.code == 0, said.err
    back, texts = {}, []
    for run in ("a", "b"):
        (file,) = (out / "small" / run).iterdir()
        for event in LegacyEventFileLoader(str(file)).Load():
            for value in event.summary.value:
                if value.tag == "lnexp/run/text_summary" or value.HasField("tensor"):
                    texts.append(value)
                else:
                    back[run, event.step, value.tag] = value.simple_value
    expected = {k: struct.unpack("f", struct.pack("f", v))[0] for k, v in measured(sweep).items()}
    assert same(back, expected)  # TensorBoard holds 32 bits
    assert len(texts) == 2 and b"nonfinite" in texts[0].tensor.string_val[0]


def wandb_records(data: bytes):
    """Of a .wandb file: LevelDB's log format behind a header of 7 bytes."""
    at, whole = 7, b""
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a record, or the last piece of one
            yield whole
            whole = b""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_wandb_offline_holds_every_value(sweep, tmp_path):
    pytest.importorskip("wandb")
    from wandb.proto import wandb_internal_pb2

    out = tmp_path / "out"
    said = lnexp("export", sweep, "--to", "wandb", "-o", out, WANDB_MODE="offline")
    assert said.code == 0, said.err
    back = {}
    for file in out.rglob("*.wandb"):
        name = ""
        for data in wandb_records(file.read_bytes()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            name = name or record.run.display_name
            items = {i.key or "/".join(i.nested_key): i.value_json for i in record.history.item}
            for key, value in items.items():
                if not key.startswith("_"):
                    back[name, int(items["_step"]), key] = float(json.loads(value))
    assert same(back, measured(sweep))
