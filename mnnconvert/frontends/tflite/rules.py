"""Imports every file of import rules, which registers them."""

from importlib import import_module

FAMILIES = (
    "elementwise",
    "convolution",
    "pooling",
    "matmul",
    "shape",
    "reduction",
    "resample",
    "scatter",
    "control",
    "recurrent",
    "detection",
    "signal",
    "stablehlo",
)

for _family in FAMILIES:
    import_module(f"mnnconvert.frontends.tflite.{_family}")
