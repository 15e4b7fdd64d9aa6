"""List the sizes that can be built, and what they are."""

from __future__ import annotations

import argparse

from recap.models.mage import MAGEConfig
from recap.models.zoo import SIZES, TOKENIZER_SIZES, count_parameters, family_of


def arguments(parser: argparse.ArgumentParser) -> None:
    """No arguments."""


def run(args: argparse.Namespace) -> int:
    for name, config in SIZES.items():
        kind = "unconditional" if isinstance(config, MAGEConfig) else f"{config.classes} classes"
        parameters = count_parameters(config) / 1e6
        print(
            f"{name:<14} {family_of(config).name:<8} {parameters:7.1f} M  width {config.width:<5} "
            f"{config.num_tokens} tokens  {kind}"
        )
    for name, tokenizer in TOKENIZER_SIZES.items():
        print(f"{name:<14} tokenizer {count_parameters(tokenizer) / 1e6:6.1f} M  {tokenizer.stride} pixels a token")
    return 0
