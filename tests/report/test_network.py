"""The drawn network is the one that is built, and the mark stands where the value was born."""

import re
from types import SimpleNamespace
from typing import Any, cast

import pytest
from torch import nn

from lnexp.config.schema import Model
from lnexp.model.catalog import PLACEMENTS
from lnexp.model.gpt import GPT
from lnexp.records import Autopsy
from lnexp.report.network import BirthMark, diagram, marks, norms_at, shown_blocks
from tests.origin.autopsies import autopsy, birth

DEPTH = 8


def settings(placement: str = "pre", depth: int = DEPTH, residual: bool = True) -> dict[str, Any]:
    return {"model.placement": placement, "model.depth": depth, "model.residual": residual}


def blocks(svg: str) -> list[int]:
    return [int(n) for n in re.findall(r"block (\d+) of \d+</text>", svg)]


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_norms_stand_where_the_built_model_has_them(placement):
    model = GPT(Model(depth=DEPTH, width=8, heads=2, context=4, placement=placement), 5)
    for i, block in enumerate(cast(Any, model.blocks)):
        for half in ("attn", "mlp"):
            parts = (
                (name, getattr(getattr(block, half), name))
                for name in ("before", "inside", "after")
            )
            built = " ".join(n for n, part in parts if not isinstance(part, nn.Identity))
            assert norms_at(placement, DEPTH, i, half) == built
    final = ">final norm<" in diagram(settings(placement), [])
    assert final != isinstance(model.norm, nn.Identity)


def test_an_unknown_placement_is_drawn_without_norms():
    assert ">norm<" not in diagram(settings("of a later version"), [])


def test_a_hundred_blocks_are_condensed_to_the_first_the_last_and_the_origins_neighbours():
    assert shown_blocks(100, [13]) == [0, 12, 13, 14, 99]
    assert shown_blocks(100, [None]) == [0, 99] and shown_blocks(100, [99]) == [0, 98, 99]
    assert shown_blocks(6, [3]) == list(range(6))
    svg = diagram(settings(depth=100), [BirthMark("Inf", "forward", "blocks.13.mlp.body.w2")])
    assert blocks(svg) == [1, 13, 14, 15, 100]
    assert "… 11 more blocks …" in svg and "… 84 more blocks …" in svg


@pytest.mark.parametrize(
    ("module", "place"),
    [
        ("blocks.13.mlp.body.w2", (13, "mlp", "body")),
        ("blocks.0.attn.before", (0, "attn", "before")),
        ("blocks.0.attn.after", (0, "attn", "after")),
        ("blocks.98.mlp", (98, "mlp", "plus")),
        ("blocks.5", (5, "", "")),
        ("embed.token", (None, "embed", "")),
        ("loss", (None, "loss", "")),
        ("head", (None, "head", "")),
    ],
)
def test_a_module_has_its_place_in_the_drawing(module, place):
    assert BirthMark("NaN", "forward", module).place == place


@pytest.mark.parametrize(
    ("phase", "words"),
    [
        ("forward", "forward ▼"),
        ("backward", "backward ▲"),
        ("loss", "loss ▼"),
        ("optimizer", "update"),
    ],
)
@pytest.mark.parametrize(
    "module",
    [
        "blocks.1.mlp.body",
        "blocks.1.mlp",
        "blocks.1",
        "embed",
        "norm",
        "head",
        "loss",
        "blocks.1.attn.before",
    ],
)
@pytest.mark.parametrize("residual", [True, False])
def test_the_mark_says_what_was_born_and_on_which_way(phase, words, module, residual):
    svg = diagram(settings(residual=residual), [BirthMark("NaN", phase, module)])
    assert ">NaN born<" in svg and f">{words}<" in svg


def test_a_network_without_residuals_has_no_sum():
    assert "circle" in diagram(settings(), []) and "circle" not in diagram(
        settings(residual=False), []
    )


def case(said: dict | None, events=(), verdict="nonfinite") -> Any:
    return SimpleNamespace(
        autopsy=said and Autopsy.of(said),
        judgement=SimpleNamespace(verdict=verdict),
        events_of=lambda *kinds: (e for e in events if e["kind"] in kinds),
    )


def test_the_birth_comes_from_the_autopsy_and_the_first_bad_gradient_beside_it():
    origin = birth(module="blocks.1.mlp.body.w2", kind="inf")
    spread = birth(module="blocks.5.attn.body", kind="nan", phase="backward")
    found = marks(case(autopsy(origin, propagated=spread)))
    assert [(m.kind, m.role, m.module) for m in found] == [
        ("Inf", "born", "blocks.1.mlp.body.w2"),
        ("NaN", "spread", "blocks.5.attn.body"),
    ]
    assert len(marks(case(autopsy(origin, propagated=origin)))) == 1


def test_without_an_autopsy_the_events_tell_and_a_healthy_run_has_no_mark():
    event = {"kind": "nan", "role": "origin", "phase": "backward", "module": "blocks.2.attn"}
    assert marks(case(None, [event])) == [BirthMark("NaN", "backward", "blocks.2.attn")]
    assert marks(case(None, [], verdict="learned")) == []
