"""Every entry of the catalog has what computes it, and nothing is computed that has no entry."""

from lnexp.model import catalog
from lnexp.model.branches import BLOCKS
from lnexp.model.gpt import ACTIVATION_FUNCTIONS
from lnexp.model.init import DRAWS
from lnexp.model.norms import NORM_CLASSES, STATISTICS, beside_eps
from lnexp.model.worked import WORKED
from lnexp.train.optim import OPTIMIZER_CLASSES


def test_each_name_has_its_module_draw_function_or_class():
    assert {placement.block for placement in catalog.PLACEMENTS.values()} == set(BLOCKS)
    assert list(catalog.NORMS) == list(NORM_CLASSES)
    assert list(catalog.INITS) == list(DRAWS)
    assert list(catalog.ACTIVATIONS) == list(ACTIVATION_FUNCTIONS)
    assert list(catalog.OPTIMIZERS) == list(OPTIMIZER_CLASSES)
    assert list(catalog.EXAMPLES) == list(WORKED)


def test_what_eps_stands_beside_is_a_statistic_that_is_known():
    assert {norm.beside_eps for norm in catalog.NORMS.values()} - {None} == set(STATISTICS)
    assert [name for name in catalog.NORMS if beside_eps(name) is None] == ["dyt"]


def test_an_optimizer_reads_either_betas_or_momentum():
    assert all(o.reads_betas != o.reads_momentum for o in catalog.OPTIMIZERS.values())
    moments = {name: [o.moments(m) for m in (0, 0.9)] for name, o in catalog.OPTIMIZERS.items()}
    assert moments == {"adamw": [2, 2], "adam": [2, 2], "sgd": [0, 1]}
