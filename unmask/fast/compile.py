"""`unmask.compile`: make a model faster on a GPU by changing its layers and its executor."""

from __future__ import annotations

from functools import partial
from typing import TypeVar

from torch import Tensor, nn

from unmask.errors import FieldError, whole
from unmask.fast import kernels
from unmask.fast.executor import GraphExecutor
from unmask.fast.experts import use_expert_kernels
from unmask.fast.graphs import GraphRunner, allow_shapes
from unmask.fast.quantized import split_multiply, use_quantized_products
from unmask.fast.split_products import can_split, split_product
from unmask.models.experts import Experts, can_group
from unmask.models.layers import PAGE, Attention, Mask, Pages, SwiGLU, attend, linear
from unmask.models.quantized.experts import QuantizedExperts
from unmask.models.quantized.linear import QuantizedLinear
from unmask.models.trunk import Trunk

MAX_SHORT = 512  # total queries up to which our attention is faster on an H200
MAX_SHORT_GROUPED = 4096  # the same for heads that share keys
MAX_SPLIT = 128  # columns up to which a product takes as long as loading its weights
Model = TypeVar("Model", bound=Trunk)


def compile(
    model: Model, *, layers: bool = True, join: bool = True, bucket: int = 64, graphs: int = 64
) -> Model:
    """Make a model faster on a GPU, from the second forward of each shape on. Change it in place.

    `layers` compiles layers and decisions with torch.compile, which rounds differently in the last bit.
    `join` computes queries, keys and values in one product, and both halves of the feed-forward layer in
    another. Canvases are padded to a multiple of `bucket` columns. At most `graphs` CUDA graphs are kept, and
    the least recently used one is dropped first.
    """
    if not isinstance(model, Trunk):
        raise FieldError("model", type(model).__name__, "must be a model from unmask.load")
    group_experts(model)
    whole("bucket", bucket, 1)
    whole("graphs", graphs, 1)
    if join:
        for module in model.modules():
            if isinstance(module, Attention | SwiGLU):
                module.join()
    reads_pages = False
    if layers:
        allow_shapes()
        reads_pages = use_attention_kernel(model)
        use_split_products(model)
        use_quantized_products(model)
        use_expert_kernels(model, model.norm.weight.dtype)
        for each in (*model.layers, model.norm):
            each.compile(dynamic=False)
    model.runner = runner = GraphRunner(model, bucket, graphs, reads_pages=reads_pages)
    model.executor = partial(GraphExecutor, runner=runner, compiled=layers)
    return model


def group_experts(model: Trunk) -> None:
    """Run experts on a GPU as grouped products. Raise if they need a loop, which no graph can capture."""
    for module in model.modules():
        if not isinstance(module, Experts | QuantizedExperts):
            continue
        stack = module.gate_up if isinstance(module, Experts) else module.stacked(module.gate_up.weight)
        inputs = model.norm.weight  # has the dtype of the experts' inputs
        if not stack.is_cuda:
            continue
        if not can_group(inputs, stack):
            dtype = str(inputs.dtype).removeprefix("torch.")
            problem = "must be bfloat16 on a GPU of compute capability 9.0 or more to compile experts"
            raise FieldError("dtype", dtype, problem, "load it with dtype='bfloat16' or do not compile it")
        module.grouped = True  # a compiled layer cannot query the GPU's capability


def use_attention_kernel(model: Trunk) -> bool:
    """Use our attention kernels for short canvases and for pages. Return whether they can be used."""
    if not kernels.attends(model.norm.weight, model.shape.head_size):
        return False
    from unmask.fast.kernels.attention import fused_attend
    from unmask.fast.kernels.paged_attention import attend_to_pages

    # The library's kernel is faster for longer canvases, but needs the keys of grouped heads repeated.
    short = MAX_SHORT if model.shape.heads == model.shape.key_heads else MAX_SHORT_GROUPED

    def attention(query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        if isinstance(mask, Pages):
            mixed: Tensor = attend_to_pages(query, key, value, *mask, PAGE)
            return mixed
        queries = query.shape[0] * query.shape[2]
        return (fused_attend if queries <= short else attend)(query, key, value, mask)

    for module in model.modules():
        if isinstance(module, Attention):
            module.attention_fn = attention
    return True


def use_split_products(model: Trunk) -> None:
    """Leave products of few columns as partial sums where a norm adds them up anyway."""
    for module in model.modules():
        if isinstance(module, Attention | SwiGLU):
            module.linear_fn = split_linear


def split_linear(layer: nn.Module, x: Tensor) -> Tensor:
    """Return `layer(x)`, as unsummed partial products if that is faster."""
    if isinstance(layer, QuantizedLinear):
        return split_multiply(layer, x)
    weight = _plain_weight(layer)
    if weight is None or x.shape[:-1].numel() > MAX_SPLIT or not can_split(weight):
        return linear(layer, x)
    pieces: Tensor = split_product(x, weight)
    return pieces


def _plain_weight(layer: nn.Module) -> Tensor | None:
    """Return the weight of a plain bias-free nn.Linear without hooks, else None."""
    if type(layer) is not nn.Linear or layer.bias is not None:
        return None
    return None if layer._forward_hooks or layer._forward_pre_hooks else layer.weight
