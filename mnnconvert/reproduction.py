"""One layer in a folder of its own: what to look at, to send, and to run again when a layer is wrong."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from mnnconvert.errors import ConversionError
from mnnconvert.passes.layout import PlaceLayout
from mnnconvert.passes.names import NameOutputs
from mnnconvert.schema.files import replacing, unwritable
from mnnconvert.schema.writer import write_model
from mnnconvert.verify.engines import Feeds, OnnxRuntimeEngine
from mnnconvert.verify.layers import LayerReport
from mnnconvert.verify.localise import Localiser


def write_layer(localiser: Localiser, feeds: Feeds, layer: LayerReport, folder: Path) -> dict[str, str]:
    """Write a layer to `folder`; the path of each file by what it is.

    `layer.mnn` is the part of the file, `inputs.npz` what it reads, `got.npz` what it makes of that and `expected.npz`
    what the source makes. Of an ONNX source `layer.onnx` is the same part, with `source_inputs.npz`. `layer.json` holds
    the measured errors. Raises `no-layer-values` where the layer cannot be had by itself, and `unwritable-output`.
    """
    localiser = localiser.opened(feeds)
    alone = localiser.alone(feeds, layer.name)
    if alone is None:
        raise ConversionError.of(
            "no-layer-values", f"the layer '{layer.name}' cannot be run by itself", layer=layer.name,
            hint="The values that it is computed from are not at hand in both models.",
        )  # fmt: skip
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(folder, error) from error
    for each in (PlaceLayout(), NameOutputs()):
        each.run(alone.graph)
    write_model(alone.graph, folder / "layer.mnn")
    _save(folder / "inputs.npz", alone.feeds)
    _save(folder / "expected.npz", {layer.name: alone.expected})
    _save(folder / "got.npz", {layer.name: alone.got})
    files = ["layer.mnn", "inputs.npz", "expected.npz", "got.npz", "layer.json"]
    if isinstance(localiser.reference, OnnxRuntimeEngine):
        _write_onnx(localiser.reference, layer.name, alone.source, folder)
        files += ["layer.onnx", "source_inputs.npz"]
    with replacing(folder / "layer.json", text=True) as stream:
        json.dump(layer.to_dict(), stream, indent=2)
    return {name: str(folder / name) for name in files}


def _write_onnx(engine: OnnxRuntimeEngine, name: str, inputs: Mapping[str, np.ndarray], folder: Path) -> None:
    from mnnconvert.verify.onnx_values import single

    part = single(engine.proto, [name], dict(inputs))
    with replacing(folder / "layer.onnx") as stream:
        stream.write(part.SerializeToString())
    _save(folder / "source_inputs.npz", inputs)


def _save(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """An .npz file; `numpy.savez` itself takes no array that is called "file"."""
    with replacing(path) as stream, zipfile.ZipFile(stream, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, np.asarray(array), allow_pickle=False)
