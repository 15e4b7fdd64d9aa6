"""A family that the library has never heard of: points in space, drawn by a network of a few blocks."""

from dataclasses import replace

from recap.core.protocols import Head
from recap.models.family import Family, Tensors
from recap.tokenizers.layers import depth
from tests.models.toy.net import Toy, ToyAdapter, ToyConfig, ToyHead


def infer(tensors: Tensors, heads: int | None = None) -> ToyConfig:
    tokens, width = tensors["places"].shape
    return ToyConfig(tokens, width, depth(tensors, "blocks"), heads or 2, tensors["say.weight"].shape[0])


class QuickHead(ToyHead):
    """What stands for kernels and graphs of its own."""

    def graphed(self, new_graphs: object) -> "QuickHead":
        quick = QuickHead(self.say)
        quick.replayed = True
        return quick

    replayed = False


def fused_head(head: Head) -> Head | None:
    return QuickHead(head.say) if isinstance(head, ToyHead) else None


TOY = Family(
    name="toy",
    title="Toy",
    config=ToyConfig,
    network=Toy,
    adapter=ToyAdapter,
    draws="latents",
    conditional=False,
    sizes={"toy-small": ToyConfig()},
    tiny=lambda config: replace(config, width=8),
    preset="mar",
    tokenizer_config=lambda config: None,
    key="say.weight",
    infer=infer,
    fused_head=fused_head,
)

__all__ = ["TOY", "QuickHead", "Toy", "ToyAdapter", "ToyConfig"]
