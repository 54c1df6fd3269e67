"""Imports every file of import rules, which registers them."""

from importlib import import_module

FAMILIES = (
    "elementwise",
    "normalization",
    "convolution",
    "matmul",
    "pooling",
    "shape",
    "reduction",
    "resample",
    "recurrent",
    "priors",
    "detection",
    "proposals",
    "regions",
)

for _family in FAMILIES:
    import_module(f"mnnconvert.frontends.caffe.{_family}")
