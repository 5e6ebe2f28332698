"""Pictures over the layers: each matrix's gradient, and what sublayers add to the stream."""

from matplotlib.figure import Figure

from lnexp.present.layerframes import sublayer
from lnexp.present.over_layers import Quantity, profile_rows, was_read
from lnexp.present.subject import Sweep

MATRICES = tuple(
    Quantity(f"gradient norm of {name}", "grad_norm", sublayer("grad_norm", part))
    for part, name in (("wq", "W_Q"), ("wv", "W_V"), ("wo", "W_O"), ("w1", "W1"), ("w2", "W2"))
)
BRANCHES = (
    Quantity("attention / stream (RMS)", "branch_to_stream", sublayer("branch_to_stream", "attn")),
    Quantity("MLP / stream (RMS)", "branch_to_stream", sublayer("branch_to_stream", "mlp")),
    Quantity("largest score", "attn_logit_max", sublayer("attn_logit_max", "attn")),
    Quantity(
        "LN-inert tokens",
        "eps_floor_fraction",
        sublayer("eps_floor_fraction", "attn"),
        "linear",
        (0.0, 1.0),
    ),
)
NO_SUBLAYERS = "no run recorded its sublayers: measure.level full of lnexp's own models does"


def matrix_by_layer(sweep: Sweep) -> Figure:
    what, where = "gradients by layer and matrix", "Ends: the embedding, and the head."
    return profile_rows(sweep, MATRICES, what, where, lacks_sublayers(sweep))


def branch_by_layer(sweep: Sweep) -> Figure:
    where = (
        "RMS of what a sublayer adds over that of the stream before it; largest attention score "
        "|q k / sqrt(width of a head)|; share of tokens whose variance is below eps, in the norm "
        "of each attention (head: in the final norm)."
    )
    what = "what sublayers add, by layer"
    return profile_rows(sweep, BRANCHES, what, where, lacks_sublayers(sweep))


def lacks_sublayers(sweep: Sweep) -> str:
    return "" if any(was_read(sweep, q.column) for q in BRANCHES) else NO_SUBLAYERS
