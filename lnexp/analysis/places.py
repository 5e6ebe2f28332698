"""Modules, layers and operations in words."""

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
    said = ", ".join(words)
    return said if said == name else f"{said} ({name})"


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
