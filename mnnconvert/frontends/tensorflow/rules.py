"""Imports every file of import rules, which registers them."""

from importlib import import_module

FAMILIES = (
    "elementwise",
    "convolution",
    "pooling",
    "normalization",
    "matmul",
    "shape",
    "reduction",
    "resample",
    "gather",
    "search",
    "generators",
    "quantization",
    "recurrent",
    "signal",
    "lists",
    "control",
    "frames",
)

for _family in FAMILIES:
    import_module(f"mnnconvert.frontends.tensorflow.{_family}")
