"""Attention as one operation of oneDNN, through its graphs: torch's own multiplies with MKL, half as fast."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor

from recap.core.attention import Ops

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
Layout = tuple[tuple[int, ...], ...]  # the shape of the heads, then the strides of queries, keys and values
PARTS = ("parse_ir", "_create_function_from_graph", "_jit_set_llga_enabled")  # of torch, under names of its own
ALIGNED = 4  # rows of which each is a number of a buffer, and 16 bytes are four numbers
CALLS = 3  # the first is looked at, the second compiled

GRAPH = """
graph(%q : Tensor, %k : Tensor, %v : Tensor):
  %last : int = prim::Constant[value=-1]()
  %before : int = prim::Constant[value=-2]()
  %none : NoneType = prim::Constant()
  %root : float = prim::Constant[value={root}]()
  %turned : Tensor = aten::transpose(%k, %before, %last)
  %scores : Tensor = aten::matmul(%q, %turned)
  %scaled : Tensor = aten::div(%scores, %root)
  %weights : Tensor = aten::softmax(%scaled, %last, %none)
  %mixed : Tensor = aten::matmul(%weights, %v)
  return (%mixed)
"""


def available() -> bool:
    return all(hasattr(torch._C, part) for part in PARTS)


class CPUOps(Ops):
    """Torch's steps, but where all rows attend to all of them: there the shape is the same at every step.

    A shape takes 5 to 20 ms to set up, too long for those that come once in a run. Images go one by one: their bits
    do not depend on the batch, and the table of weights stays in the processor's cache.
    """

    def __init__(self, rows: int) -> None:
        self.rows = rows  # the fewest that count as all of them

    def attention(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        alone = self.seen is None and q.dtype == torch.float32 and not torch.is_grad_enabled()
        if not alone or not self.rows <= q.shape[2] == k.shape[2]:
            return self.few(q, k, v)
        shape, *strides = (1, *q.shape[1:]), q.stride(), k.stride(), v.stride()
        attend = compiled((shape, *strides), torch.get_num_threads())
        mixed = [attend(*one) for one in zip(*(torch.split(x, 1) for x in (q, k, v)), strict=True)]
        return torch.cat([one.transpose(1, 2) for one in mixed]).transpose(1, 2)  # as `attend` asks for them

    def few(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention of torch's own with queries added until they fill its buffers, of which each thread has one.

        Otherwise those of all threads but the first are not aligned, and products with them are rounded otherwise.
        """
        rows = q.shape[2]
        if self.seen is not None or not (more := -rows % ALIGNED):
            return super().attention(q, k, v)
        q = torch.cat([q, q[:, :, -1:].expand(-1, -1, more, -1)], dim=2)
        return super().attention(q, k, v)[:, :, :rows]


@lru_cache(maxsize=64)
def compiled(layout: Layout, threads: int) -> Attend:
    """What attends over heads of this layout with so many threads."""
    shape, *strides = layout
    graph = torch._C.parse_ir(GRAPH.format(root=repr(shape[-1] ** 0.5)))
    attend: Attend = torch._C._create_function_from_graph("attend", graph)
    before = torch._C._jit_set_llga_enabled(True)
    try:
        for _ in range(CALLS):
            attend(*(torch.empty_strided(shape, stride).zero_() for stride in strides))
    finally:
        torch._C._jit_set_llga_enabled(before)
    return attend
