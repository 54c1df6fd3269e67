"""The op vocabulary: one class per op, one file per family. Importing this package registers all of them."""

from importlib import import_module

FAMILIES = (
    "layout",
    "control",
    "recurrent",
    "elementwise",
    "convolution",
    "matmul",
    "attention",
    "reduction",
    "search",
    "signal",
    "quantization",
    "integer",
    "shape",
    "arrange",
    "slicing",
    "gather",
    "scatter",
    "generators",
    "activation",
    "normalization",
    "convolution3d",
    "deconvolution",
    "pooling",
    "padding",
    "resample",
    "vision",
    "plugin",
)

for _family in FAMILIES:
    import_module(f"mnnconvert.ops.{_family}")
