"""Modules, layers, operations and tensors in words."""

from math import prod

from lnexp.records import TensorFigures
from lnexp.results.causes import text

PARTS = {
    "embed": "embedding", "attn": "attention", "mlp": "MLP", "norm": "norms", "head": "head",
}  # fmt: skip
MODULES = {
    "wqkv": "queries, keys and values", "wq": "query matrix", "wk": "key matrix",
    "wv": "value matrix", "wo": "output matrix", "w1": "first matrix", "w2": "second matrix",
    "q_norm": "norm of the queries", "k_norm": "norm of the keys", "before": "norm before it",
    "inside": "norm inside the branch", "after": "norm after it", "token": "letters",
    "position": "positions",
}  # fmt: skip
WHOLE = {"embed": "embedding", "norm": "final norm", "head": "head", "loss": "loss"}
OPS = {
    "addmm": "matrix product", "mm": "matrix product", "bmm": "matrix product",
    "baddbmm": "matrix product", "matmul": "matrix product", "_softmax": "softmax",
    "_safe_softmax": "softmax", "_log_softmax": "log-softmax", "exp": "exponential",
    "div": "division", "sqrt": "square root", "rsqrt": "1 / square root", "log": "logarithm",
    "pow": "power", "square": "square", "mul": "multiplication", "add": "addition",
    "sub": "subtraction", "sum": "sum", "mean": "mean", "var": "variance",
    "native_layer_norm": "layer norm", "_fused_rms_norm": "RMS norm", "gelu": "GELU",
    "relu": "ReLU", "embedding": "look-up of the embedding", "nll_loss_forward": "loss",
    "_to_copy": "change of type",
}  # fmt: skip

# What goes into attention in one operation, in order.
QUERY_KEY_VALUE = ("query", "key", "value")
FLASH_BACKWARD = ("gradient of the output", *QUERY_KEY_VALUE, "output", "log-sum")


def module_words(name: str, depth: int) -> str:
    """'blocks.2.mlp.body.w2' -> 'block 3 of 6 (layer 2), MLP, second matrix (blocks.2.mlp...)'."""
    head, *rest = name.split(".")
    if head == "blocks" and rest and rest[0].isdigit():
        index, *rest = rest
        words = [f"block {int(index) + 1} of {depth} (layer {index})"]
    elif head in WHOLE:
        words = [WHOLE[head]]
    else:
        return name or "no module"
    kind = rest.pop() if rest and rest[-1] in ("weight", "bias") else ""
    for word in rest:
        if word != "body":
            words.append(PARTS.get(word) or MODULES.get(word) or word)
    words += ["gain" if kind == "weight" and "norm" in words[-1] else kind] if kind else []
    phrase = ", ".join(words)
    return phrase if phrase == name else f"{phrase} ({name})"


def layer_words(layer: int, part: str, depth: int) -> str:
    """A place of layers.csv: 'block 3 of 6 (layer 2), MLP'."""
    if layer < 0:
        return "the embedding"
    if layer >= depth:
        return "the final norm" if part == "norm" else "the head"
    return f"block {layer + 1} of {depth} (layer {layer})" + (f", {PARTS[part]}" if part else "")


def op_words(op: str) -> str:
    """'AddmmBackward0/aten.mm.default' -> 'matrix product (AddmmBackward0/aten.mm.default)'."""
    base = op_base(op)
    back = base.replace("_backward_data", "").removesuffix("_backward")
    words = "attention" if "scaled_dot_product" in back else OPS.get(back, "")
    if not words:
        return op or "an operation that was not named"
    return f"{'gradient of the ' if back != base else ''}{words} ({op})"


def op_base(op: str) -> str:
    """'AddmmBackward0/aten.mm.default' -> 'mm'."""
    aten = op.rsplit("/", 1)[-1]
    return aten.split(".")[1] if aten.startswith("aten.") else aten


def is_fused_attention(op: str) -> bool:
    return "scaled_dot_product" in op


def input_names(op: str, count: int) -> list[str]:
    """'query, ' for each input of a fused attention; '' where an operation does not name them."""
    names: tuple[str, ...] = ()
    if is_fused_attention(op):
        backward = op_base(op).endswith("_backward")
        names = QUERY_KEY_VALUE if not backward else FLASH_BACKWARD
        if backward and "flash" not in op:  # others have a mask between value and output
            names = FLASH_BACKWARD[:4]
    return [f"{name}, " for name in names[:count]] + [""] * (count - len(names))


def block_of(module: str) -> int | None:
    """'blocks.2.mlp.body.w2' -> 2."""
    head, *rest = module.split(".")
    return int(rest[0]) if head == "blocks" and rest and rest[0].isdigit() else None


def tensor_words(tensor: TensorFigures) -> str:
    """'float32 8 x 64 x 32, finite from -1 to 2, 3 of 16384 elements Inf'."""
    shape = " x ".join(map(str, tensor.shape)) or "scalar"
    size = prod(tensor.shape)
    words = [f"{tensor.dtype} {shape}"]
    if tensor.min is None or tensor.max is None:
        words.append("no finite element")
    else:
        only = "finite elements" if tensor.nan or tensor.inf else "all finite,"
        words.append(f"{only} from {text(tensor.min)} to {text(tensor.max)}")
    counts = {"NaN": tensor.nan, "Inf": tensor.inf}
    words += [f"{n} of {size} elements {kind}" for kind, n in counts.items() if n]
    return ", ".join(words)
