"""Imports every file of import rules, which registers them."""

from importlib import import_module

FAMILIES = (
    "control",
    "recurrent",
    "sequence",
    "elementwise",
    "convolution",
    "pooling",
    "padding",
    "resample",
    "vision",
    "matmul",
    "reduction",
    "search",
    "einsum",
    "packed_weights",
    "quantization",
    "integer_products",
    "quantized_ops",
    "quantized_recurrent",
    "suppression",
    "signal",
    "logic",
    "cast",
    "activation",
    "normalization",
    "softmax",
    "attention",
    "contrib_attention",
    "shape",
    "arrange",
    "gather",
    "scatter",
    "generators",
    "training",
    "deform",
    "features",
    "trees",
)

for _family in FAMILIES:
    import_module(f"mnnconvert.frontends.onnx.{_family}")
