"""A thousand and two thousand blocks: nothing has a limit of depth, and no time but a line."""

import json

import pytest

from tests.cases.conftest import run_here
from tests.cli import lnexp

DEEP = """
name: deep
data: {source: markov, length: 900, val_fraction: 0}
model: {width: 4, heads: 1, context: 4}
train: {steps: 1, batch_size: 1}
"""


@pytest.mark.slow
@pytest.mark.parametrize("depth", [1000, 2000])
@pytest.mark.parametrize("checkpointing, level", [("true", "full"), ("false", "light")])
def test_a_very_deep_network_is_planned_trained_and_explained(
    tmp_path, depth, checkpointing, level
):
    (tmp_path / "deep.yaml").write_text(DEEP, encoding="utf-8")
    settings = (
        f"model.depth={depth}", f"train.checkpointing={checkpointing}", f"measure.level={level}",
    )  # fmt: skip
    how = [word for setting in settings for word in ("-s", setting)]
    planned = lnexp("plan", "deep.yaml", *how, "--json", cwd=tmp_path)
    ((model,),) = (plan["models"] for plan in json.loads(planned.out))
    assert model["depth"] == depth and model["seconds_per_step"] > 0
    assert run_here("deep.yaml", *how, cwd=tmp_path).code == 0
    (run,) = (tmp_path / "results" / "deep" / "runs").iterdir()
    env = json.loads((run / "env.json").read_text(encoding="utf-8"))
    assert env["checkpointing"] == ("each block" if checkpointing == "true" else "off")
    said = lnexp("explain", run, cwd=tmp_path)
    assert said.code == 0 and f"depth {depth}" in " ".join(said.out.split())
