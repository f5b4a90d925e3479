"""Which modules a config adapts, with which rank and alpha: PEFT's own matching, bounded.

Names of modules are paths in the Hugging Face model, without PEFT's prefix. Standard library only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.adapters.patterns import SUFFIX, Found, PatternError, Search, search
from engine.adapters.peft import PeftConfig
from engine.errors import AdapterRejected

ALL_LINEAR = "all-linear"
HEADS = ("model.embed_tokens", "lm_head")
"""The modules that "all-linear" leaves out."""
LAYER_NUMBER = Search((r".*?\.[^.]*\.(?P<idx>\d+)\.",))


@dataclass(frozen=True, slots=True)
class Target:
    """What the config says of one module."""

    adapted: bool
    rank: int
    alpha: float
    scale: float


@dataclass(frozen=True, slots=True)
class Targets:
    """By module name. `unmatched` are keys of rank_pattern and alpha_pattern that no name has."""

    modules: dict[str, Target]
    unmatched: tuple[str, ...]


def resolve(config: PeftConfig, names: Sequence[str]) -> Targets:
    """Apply `config` to the modules `names`. Raises AdapterRejected for a pattern that can't be
    evaluated."""
    ranks = Search(tuple(k for k, _ in config.rank_pattern), *SUFFIX)
    alphas = Search(tuple(k for k, _ in config.alpha_pattern), *SUFFIX)
    # Modules that are saved whole never get a LoRA.
    saved = Search(config.modules_to_save, r"(^|.*\.)", r"($|\..*)")
    try:
        found = search(
            [ranks, alphas, saved, _whole(config.targets), _whole(config.exclude), _layer(config)],
            names,
        )
    except PatternError as error:
        raise AdapterRejected(
            f"adapter_config.json: {error}. Name the modules instead.", code="pattern_rejected"
        ) from error
    modules = {}
    for name, rank_hit, alpha_hit, *hits in zip(names, *found, strict=True):
        rank = config.rank if rank_hit is None else config.rank_pattern[rank_hit[0]][1]
        alpha = config.alpha if alpha_hit is None else config.alpha_pattern[alpha_hit[0]][1]
        modules[name] = Target(
            _adapted(config, name, *hits), rank, alpha, config.scale(rank, alpha)
        )
    return Targets(modules, (*_unmatched(ranks, found[0]), *_unmatched(alphas, found[1])))


def _adapted(
    config: PeftConfig, name: str, saved: Found, target: Found, excluded: Found, layer: Found
) -> bool:
    if saved is not None or excluded is not None or _listed(config.exclude, name):
        return False
    if config.targets is None:
        return True
    if isinstance(config.targets, str):
        everything = config.targets.lower() == ALL_LINEAR
        return name not in HEADS if everything else target is not None
    in_layer = config.layers is None or (
        layer is not None and layer[1] is not None and int(layer[1]) in config.layers
    )
    # A list that names a module by its whole path means it, whatever the layers.
    return name in config.targets or (in_layer and _listed(config.targets, name))


def _listed(modules: tuple[str, ...] | str, name: str) -> bool:
    """A list names a module whole, or by its end behind a dot."""
    return not isinstance(modules, str) and any(
        name == module or name.endswith(f".{module}") for module in modules
    )


def _whole(modules: tuple[str, ...] | str | None) -> Search:
    is_pattern = isinstance(modules, str) and modules and modules.lower() != ALL_LINEAR
    return Search((str(modules),) if is_pattern else (), whole=True)


def _layer(config: PeftConfig) -> Search:
    if config.layers is None:
        return Search(())
    if not config.layers_pattern:
        return LAYER_NUMBER
    return Search(config.layers_pattern, r"(?:^|.*?\.)", r"\.(?P<idx>\d+)\.")


def _unmatched(patterns: Search, found: list[Found]) -> list[str]:
    hit = {match[0] for match in found if match is not None}
    return [key for i, key in enumerate(patterns.patterns) if i not in hit]
