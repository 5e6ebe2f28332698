"""Anybody's model and checkpoint in plain figures (norms, weights, Adam's moments, init), and the
sentences on what stands out in them, each with its figures.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from math import sqrt
from typing import Any

import torch
from torch import Tensor, nn

from lnexp.inspect.checkpoint_file import Checkpoint
from lnexp.inspect.placement import (
    NOT_FOUND,
    Graph,
    forward_graph,
    norm_places,
    residual_projections,
)
from lnexp.measure.tensors import describe, held, type_name
from lnexp.model.check import is_norm
from lnexp.records import TensorFigures

EPS = ("eps", "epsilon", "variance_epsilon", "norm_eps")
NAMED_NORM = re.compile(r"norm|dynamictanh|^dyt", re.IGNORECASE)
LENGTH = 8  # tokens of the traced forward
LARGEST = 5  # tensors that are shown
NEAR = 0.1  # of a type's largest number
HALF_LIMIT = torch.finfo(torch.float16).max
FEWEST_SUMS = 8  # residual additions from which depth scaling matters
SAME = 0.1  # two standard deviations within a tenth of each other
NAMED = 3

Inputs = list[tuple[str, Callable[[], Any]]]  # in words, and what makes them


def find_norms(model: nn.Module) -> dict[str, nn.Module]:
    """Torch's, ours, and modules without children whose class says norm."""
    return {
        name: module
        for name, module in model.named_modules()
        if is_norm(module)
        or isinstance(module, nn.modules.batchnorm._NormBase | nn.GroupNorm)
        or (NAMED_NORM.search(type(module).__name__) and not [*module.children()])
        if not re.search(r"(^|\.)parametrizations(\.|$)", name)
    }


def eps_of(norm: nn.Module) -> float | None:
    """None: it has none."""
    for name in EPS:
        value = getattr(norm, name, None)
        if isinstance(value, int | float):
            return float(value)
    if isinstance(norm, nn.RMSNorm):  # eps=None: that of the numbers it gets
        weight = norm.weight
        return torch.finfo(torch.float32 if weight is None else weight.dtype).eps
    return None


def trace(model: nn.Module, example: tuple[Any, ...] | None) -> tuple[Graph | None, str]:
    """The graph of one forward, and of what; None and why where no input fits."""
    norms = {module: name for name, module in find_norms(model).items()}
    tried: list[str] = []
    given: Inputs = [("the example given", lambda: example)] if example is not None else []
    for words, inputs in given or _inputs(model):
        try:
            return forward_graph(model, norms, inputs), words
        except Exception as problem:  # what a model says of an input that it cannot take
            message = (str(problem).splitlines() or [""])[0]
            tried.append(f"{words} ({type(problem).__name__}: {message[:80]})")
    return None, "; ".join(tried)


def _inputs(model: nn.Module) -> Inputs:
    """Token ids where there is an embedding, else vectors of the first layer's width."""
    tensor = next(model.parameters(), torch.zeros(()))
    device, dtype = tensor.device, tensor.dtype
    inputs: Inputs = []
    table = next((m for m in model.modules() if isinstance(m, nn.Embedding)), None)
    if table is not None:
        ids_BT = torch.arange(LENGTH, device=device)[None] % table.num_embeddings
        inputs += [(f"token ids 1x{n}", lambda n=n: (ids_BT[:, :n],)) for n in (LENGTH, 2)]
    widths = [m.in_features for m in model.modules() if isinstance(m, nn.Linear)][:1]
    widths += [m.embed_dim for m in model.modules() if isinstance(m, nn.MultiheadAttention)][:1]

    def vectors(count: int, width: int) -> tuple[Tensor, ...]:
        torch.manual_seed(0)
        return tuple(torch.randn(1, LENGTH, width).to(device, dtype) for _ in range(count))

    for width in dict.fromkeys(widths):
        for count, words in ((1, ""), (2, "two times ")):
            words += f"vectors 1x{LENGTH}x{width}"
            inputs.append((words, lambda count=count, width=width: vectors(count, width)))
    return inputs


def inspected(
    model: nn.Module,
    example: tuple[Any, ...] | None,
    checkpoint: Checkpoint | None,
    order: Sequence[str] = (),
) -> dict[str, Any]:
    """Everything as plain data. Figures are of the checkpoint's tensors where one is given;
    `order`: names of the optimizer's tensors, where they are known."""
    checkpoint = checkpoint or Checkpoint({})
    tensors = checkpoint.tensors or unique_tensors(model)
    graph, traced = trace(model, example)
    places = {} if graph is None else norm_places(graph)
    parameters = list(model.parameters())
    floating = {n: t for n, t in tensors.items() if t.is_floating_point()}
    figures = {name: describe(tensor) for name, tensor in floating.items()}
    return {
        "parameters": sum(p.numel() for p in parameters),
        "tensors": len(parameters),
        "dtypes": sorted({type_name(t.dtype) for t in tensors.values()}),
        "traced": traced if graph is not None else "",
        "not_traced": traced if graph is None else "",
        "missing": checkpoint.missing,
        "unexpected": checkpoint.unexpected,
        "norms": [
            _norm(name, norm, tensors, places.get(name, NOT_FOUND))
            for name, norm in find_norms(model).items()
        ],
        "nonfinite": [
            _nonfinite(name, tensor, figures[name])
            for name, tensor in floating.items()
            if figures[name].nan or figures[name].inf
        ],
        "largest": _largest(figures),
        "adam": moments(checkpoint.optimizer, order) if checkpoint.optimizer is not None else [],
        "init": {} if graph is None else _projections(model, graph, tensors),
    }


def unique_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers, a tied one once."""
    known: set[int] = set()
    tensors = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if isinstance(tensor, Tensor) and id(tensor) not in known:
            known.add(id(tensor))
            tensors[name] = tensor.detach()
    return tensors


def _norm(name: str, norm: nn.Module, tensors: Mapping[str, Tensor], place: str) -> dict[str, Any]:
    own = dict(norm.named_parameters(recurse=False))
    values = {key: tensors.get(f"{name}.{key}" if name else key, p) for key, p in own.items()}
    gain = values.get("weight", next(iter(values.values()), None))
    eps, dtype = eps_of(norm), torch.float32 if gain is None else gain.dtype
    elements = torch.empty(0) if gain is None else gain.detach().double()
    return {
        "module": name,
        "kind": type(norm).__name__,
        "place": place,
        "eps": eps,
        "eps_held": None if eps is None or not dtype.is_floating_point else held(eps, dtype),
        "dtype": type_name(dtype),
        "parameters": sum(p.numel() for p in own.values()),
        "gain_min": float(elements.min()) if elements.numel() else None,
        "gain_max": float(elements.max()) if elements.numel() else None,
    }


def _nonfinite(name: str, tensor: Tensor, figures: TensorFigures) -> dict[str, Any]:
    first = (~torch.isfinite(tensor)).nonzero()[0].tolist()
    return {"tensor": name, "elements": tensor.numel(), "first": first, **asdict(figures)}


def _largest(figures: Mapping[str, TensorFigures]) -> list[dict[str, Any]]:
    """The tensors nearest to the limit of their own type."""
    rows = []
    for name, tensor in figures.items():
        if tensor.absmax is not None:
            limit = torch.finfo(getattr(torch, tensor.dtype)).max
            row = {"tensor": name, "dtype": tensor.dtype, "absmax": tensor.absmax, "limit": limit}
            rows.append({**row, "share": tensor.absmax / limit})
    return sorted(rows, key=lambda row: -row["share"])[:LARGEST]


def moments(optimizer: Mapping[str, Any], order: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Adam's moments, a row a tensor: what is not finite, v = 0 under m != 0, sqrt(v_hat) < eps."""
    rows = []
    for group in optimizer["param_groups"]:
        betas, eps = group.get("betas"), group.get("eps")
        names = group.get("param_names") or [
            order[i] if i < len(order) else f"number {i}" for i in group["params"]
        ]
        for index, name in zip(group["params"], names, strict=False):
            state = optimizer["state"].get(index, {})
            m, v = state.get("exp_avg"), state.get("exp_avg_sq")
            if not (isinstance(m, Tensor) and isinstance(v, Tensor) and betas and v.numel()):
                continue
            correction = 1 - betas[1] ** max(1.0, float(state.get("step", 1)))
            rows.append(
                {
                    "tensor": name,
                    "shape": list(v.shape),
                    "dtype": type_name(v.dtype),
                    "steps": float(state.get("step", 0)),
                    "nonfinite": sum(int((~torch.isfinite(t)).sum()) for t in (m, v)),
                    "vanished": float(((v == 0) & (m != 0)).float().mean()),
                    "below_eps": float((v.double() < eps**2 * correction).float().mean()),
                    "eps": eps,
                    "eps_held": held(eps, v.dtype),
                }
            )
    return rows


def _projections(model: nn.Module, graph: Graph, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Standard deviation of the matrices that write into a stream, and of the other matrices."""
    matrices = {name: tensor for name, tensor in sorted(tensors.items()) if tensor.dim() == 2}
    writing = {}
    for module in residual_projections(graph):
        names = [n for n in (f"{module}.weight", f"{module}.out_proj.weight") if n in matrices]
        writing |= {name: matrices[name] for name in names[:1]}
    linears = _linears(model)
    others = [
        matrix
        for name, matrix in matrices.items()
        if name.rpartition(".")[0] in linears and name not in writing
    ]
    if not writing or not others:
        return {}
    return {
        "projections": len(writing),
        "std": _std(writing.values()),
        "others_std": _std(others),
        "scaled_std": 0.02 / sqrt(len(writing)),
    }


def _linears(model: nn.Module) -> set[str]:
    """Modules that hold the matrices of a model, without tables of embeddings and heads."""
    embeddings = [m for m in model.modules() if isinstance(m, nn.Embedding)]
    tables = {id(m.weight) for m in embeddings}
    sizes = {m.num_embeddings for m in embeddings}
    return {
        name
        for name, module in model.named_modules()
        if isinstance(weight := getattr(module, "weight", None), Tensor)
        and weight.dim() == 2
        and id(weight) not in tables
        and not (isinstance(module, nn.Linear) and module.out_features in sizes)
    }


def _std(tensors: Collection[Tensor]) -> float:
    """Over all elements together, about 0."""
    squares = sum(float(t.double().square().sum()) for t in tensors)
    return sqrt(squares / sum(t.numel() for t in tensors))


# What stands out.


def concerns(inspection: dict[str, Any], trained: bool) -> list[str]:
    """`trained`: the weights are a checkpoint's; in a fresh model every gain is at its start."""
    return [
        *_of_nonfinite(inspection["nonfinite"]),
        *_of_largest(inspection["largest"]),
        *_of_eps(inspection["norms"]),
        *(_of_gains(inspection["norms"]) if trained else ()),
        *_of_adam(inspection["adam"]),
        *_of_init(inspection["init"]),
        *_of_names("not in the checkpoint", inspection["missing"]),
        *_of_names("in the checkpoint alone", inspection["unexpected"]),
    ]


def _few(names: list[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def _of_names(words: str, names: list[str]) -> Iterator[str]:
    if names:
        yield f"{words}: {_few(names)}"


def _of_nonfinite(rows: list[dict[str, Any]]) -> Iterator[str]:
    for row in rows:
        yield (
            f"{row['tensor']}: {row['nan']} NaN and {row['inf']} Inf of {row['elements']} "
            f"elements, first at {row['first']}"
        )


def _of_largest(rows: list[dict[str, Any]]) -> Iterator[str]:
    for row in rows:
        largest, limit = row["absmax"], row["limit"]
        if row["share"] > NEAR:
            yield f"{row['tensor']} reaches {largest:.4g}: {row['dtype']} ends at {limit:.4g}"
        elif largest > HALF_LIMIT:
            yield f"{row['tensor']} reaches {largest:.4g}: it would be Inf in float16"


def _of_eps(norms: list[dict[str, Any]]) -> Iterator[str]:
    known = [norm for norm in norms if norm["eps"] is not None]
    counts = Counter(norm["eps"] for norm in known)
    if len(counts) > 1:
        usual, count = counts.most_common(1)[0]
        for eps in sorted(counts):
            names = [norm["module"] for norm in known if norm["eps"] == eps]
            if eps != usual:
                yield f"eps {eps:g} in {_few(names)}; {usual:g} in the other {count}"
    for eps in sorted(counts):
        mine = [norm for norm in known if norm["eps"] == eps]
        lost = [norm for norm in mine if eps == 0 or norm["eps_held"] == 0]
        if eps == 0:
            yield f"eps is 0 in {_few([n['module'] for n in lost])}: a constant row gives 0/0"
        elif lost:
            dtype = lost[0]["dtype"]
            limits = torch.finfo(getattr(torch, dtype))
            least = limits.smallest_normal * limits.eps
            yield (
                f"eps {eps:g} is 0 in {dtype}, whose least positive number is {least:.2g} "
                f"({_few([n['module'] for n in lost])}): a norm that computes in {dtype} divides "
                "a constant row by 0; torch's own layer_norm keeps eps in float32"
            )


def _of_gains(norms: list[dict[str, Any]]) -> Iterator[str]:
    """All elements at the same 1 or 0: where a gain starts."""
    learned = [norm for norm in norms if norm["gain_min"] is not None]
    frozen = [n for n in learned if n["gain_min"] == n["gain_max"] and n["gain_min"] in (0.0, 1.0)]
    if not frozen:
        return
    which = "all" if len(frozen) == len(learned) else f"{len(frozen)} of"
    dtype, value = frozen[0]["dtype"], frozen[0]["gain_min"]
    why = ""
    if dtype in ("bfloat16", "float16") and value == 1:
        below = 1 - torch.finfo(getattr(torch, dtype)).eps / 2
        why = f"; the next {dtype} below 1 is {below:.4g}, and a smaller step rounds away"
    names = _few([norm["module"] for norm in frozen])
    yield (
        f"{which} {len(learned)} norm gains are exactly {value:g}, as at their start ({names}){why}"
    )


def _of_adam(rows: list[dict[str, Any]]) -> Iterator[str]:
    bad = [row for row in rows if row["nonfinite"]]
    if bad:
        elements = sum(row["nonfinite"] for row in bad)
        names = [f"{row['tensor']} ({'x'.join(map(str, row['shape']))})" for row in bad]
        yield f"Adam's moments: {elements} elements not finite, in {_few(names)}"
    vanished = [row for row in rows if row["vanished"] > 0]
    if vanished:
        worst = max(vanished, key=lambda row: row["vanished"])
        yield (
            f"Adam's second moment is 0 under a first that is not in {len(vanished)} tensors "
            f"(most: {worst['vanished']:.0%} of {worst['tensor']}): the update there is m / eps"
        )
    no_eps = [row for row in rows if row["eps"] and row["eps_held"] == 0]
    if no_eps:
        yield (
            f"Adam's eps {no_eps[0]['eps']:g} is 0 in {no_eps[0]['dtype']}, the type of its "
            "moments: an update computed in it is 0/0 where a gradient is 0 (fused kernels use "
            "float32)"
        )


def _of_init(init: dict[str, Any]) -> Iterator[str]:
    if not init or init["projections"] < FEWEST_SUMS or not init["others_std"]:
        return
    if abs(init["std"] / init["others_std"] - 1) < SAME:
        yield (
            f"no depth scaling: the {init['projections']} matrices that write into the stream have "
            f"std {init['std']:.3g}, the others {init['others_std']:.3g}; GPT-2's init would start "
            f"them at {init['scaled_std']:.2g}"
        )
