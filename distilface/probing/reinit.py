"""Taking pre-trained weights away from some layers, or the layers out of their order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import nn

from distilface.errors import UserError
from distilface.probing.config import ReinitConfig
from distilface.shrinking.architecture import family_of, layers_of


def layers_in(backbone: nn.Module) -> nn.ModuleList:
    """The transformer layers; `UserError` naming an architecture whose layers are laid out otherwise."""
    return layers_of(backbone, family_of(backbone, "probing layers"))


def reinitialise(backbone: nn.Module, layers: Iterable[int], seed: int, config: ReinitConfig) -> None:
    """Give these layers (numbered from 0) the weights of an untrained model, in place.

    What a layer draws depends on ``seed`` and its own number only, so that settings which re-initialise the same layer
    differ in nothing else.
    """
    spread = float(backbone.config.initializer_range)
    every = layers_in(backbone)
    for index in layers:
        generator = torch.Generator().manual_seed(int(np.random.SeedSequence([seed, index]).generate_state(1)[0]))
        with torch.no_grad():
            for name, module in every[index].named_modules():
                if isinstance(module, nn.Linear):
                    _draw(module, spread, generator, config)
                elif isinstance(module, nn.LayerNorm):
                    if not config.keep_layernorms:
                        module.reset_parameters()
                elif next(module.parameters(recurse=False), None) is not None:
                    raise UserError(f"layer {index} of {backbone.config.model_type!r} holds {type(module).__name__} "
                                    f"{name!r}, which probing can't re-initialise; it knows Linear and LayerNorm")


def _draw(module: nn.Linear, spread: float, generator: torch.Generator, config: ReinitConfig) -> None:
    if config.weights == "authors":
        # Their truncation takes 2 * spread for the bound of a weight, but it is one of weight / spread.
        bound = 2 * spread * spread
        nn.init.trunc_normal_(module.weight, std=spread, a=-bound, b=bound, generator=generator)
    else:
        nn.init.normal_(module.weight, std=spread, generator=generator)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def permute(backbone: nn.Module, order: Sequence[int]) -> None:
    """Place ``i`` gets the layer that was number ``order[i]``, in place."""
    family = family_of(backbone, "probing layers")
    layers = layers_of(backbone, family)
    if sorted(order) != list(range(len(layers))):
        raise ValueError(f"{list(order)} is no order of {len(layers)} layers")
    holder, _, name = family.layers.rpartition(".")
    setattr(backbone.get_submodule(holder), name, nn.ModuleList(layers[index] for index in order))
