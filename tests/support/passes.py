"""What the passes of an 8B model on one large GPU cost, as measured."""

from __future__ import annotations

from engine.pass_costs import PassCosts

SIZES = (64, 128, 192, 256, 320, 384, 512, 640, 768, 1024, 1280, 1536, 2048)
MIXED_MS = (5.2, 5.7, 6.6, 7.7, 9.2, 9.5, 11.4, 15.2, 17.1, 20.8, 27.0, 32.6, 41.0)
DECODE_MS = {1: 4.6, 16: 4.8, 64: 5.2, 128: 5.5, 256: 7.5}
PASSES = PassCosts(
    tuple((n, 1e-3 * ms) for n, ms in zip(SIZES, MIXED_MS, strict=True)),
    tuple((n, 1e-3 * ms) for n, ms in DECODE_MS.items()),
    38e-9,
    29e-9,
)
