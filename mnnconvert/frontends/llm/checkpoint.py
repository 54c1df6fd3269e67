"""A checkpoint, whatever its files are: a configuration in the words of Hugging Face, and weights by their names."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mnnconvert.errors import ConversionError
from mnnconvert.frontends.llm import gguf_names
from mnnconvert.frontends.llm.gguf import GgufFile, read_gguf
from mnnconvert.frontends.llm.packed import PackedLinear, Packing
from mnnconvert.frontends.llm.safetensors import read_folder, read_json
from mnnconvert.ir import CodedLater, CodedWeights, LazyTensor, Tensor

EMBEDDING = "model.embed_tokens"
HEAD = "lm_head"
PREFIXES = ("language_model.model.", "model.language_model.", "model.text_model.")
"""What decoders inside larger models have before the names of their weights, in place of `model.`"""


class Checkpoint(ABC):
    """`config` has the keys of a Hugging Face config.json; names of weights come without `.weight`.

    `gains_with_offset`: gains of norms have what a family adds to them already.
    """

    config: dict[str, Any]
    gains_with_offset = False

    @abstractmethod
    def has(self, name: str) -> bool:
        """Whether there is a weight, or a tensor, of this name."""

    @abstractmethod
    def find(self, name: str) -> Tensor:
        """The tensor of a weight that there is."""

    def matrix(self, name: str) -> Tensor:
        """A weight [out, in]; the head of a model without one is its table of embeddings."""
        if name == HEAD and not self.has(name):
            name = EMBEDDING
        tensor = self._get(name)
        if len(tensor.shape) != 2:
            raise ConversionError.of("bad-checkpoint", f"'{name}' is no matrix but {list(tensor.shape)}")
        return tensor

    def vector(self, name: str) -> np.ndarray:
        """A weight as float32 [n]."""
        tensor = self._get(name)
        if len(tensor.shape) != 1:
            raise ConversionError.of("bad-checkpoint", f"'{name}' is no vector but {list(tensor.shape)}")
        return tensor.numpy().astype(np.float32)

    def _get(self, name: str) -> Tensor:
        if not self.has(name):
            raise ConversionError.of("bad-checkpoint", f"the checkpoint has no weight '{name}'")
        return self.find(name)


def open_checkpoint(source: Path) -> Checkpoint:
    """A GGUF file or a Hugging Face folder. Raises what their readers raise."""
    return GgufCheckpoint(source) if not source.is_dir() else FolderCheckpoint(source)


class FolderCheckpoint(Checkpoint):
    """config.json and safetensors files."""

    def __init__(self, folder: Path):
        config = read_json(folder / "config.json")
        inner = config.get("text_config")
        self.config = {**config, **inner} if isinstance(inner, dict) else config
        settings = self.config.get("quantization_config")
        self._packing = Packing.of(settings) if isinstance(settings, dict) else None
        self._tensors = {_plain(name): tensor for name, tensor in read_folder(folder).items()}

    def has(self, name: str) -> bool:
        return any(n in self._tensors for n in (f"{name}.weight", f"{name}.qweight", name))

    def find(self, name: str) -> Tensor:
        found = self._tensors.get(f"{name}.weight") or self._tensors.get(name)
        if found is not None:
            return found
        if self._packing is None:
            raise ConversionError.of("bad-checkpoint", f"'{name}' is packed, and the configuration does not say how")
        parts = {part: self._tensors.get(f"{name}.{part}") for part in ("qweight", "qzeros", "scales", "g_idx")}
        qweight, qzeros, scales, g_idx = parts.values()
        if qweight is None or qzeros is None or scales is None:
            lost = next(part for part, tensor in parts.items() if tensor is None)
            raise ConversionError.of("bad-checkpoint", f"the packed layer '{name}' has no {lost}")
        return PackedLinear(name, self._packing, qweight, qzeros, scales, g_idx).tensor()


def _plain(name: str) -> str:
    prefix = next((p for p in PREFIXES if name.startswith(p)), None)
    if prefix is not None:
        return "model." + name.removeprefix(prefix)
    return name.removeprefix("language_model.")


class GgufCheckpoint(Checkpoint):
    """A GGUF file, whose metadata are put into the words of a config.json."""

    gains_with_offset = True

    def __init__(self, path: Path):
        self.file: GgufFile = read_gguf(path)
        self.config = gguf_names.configuration(self.file)
        self._names = {gguf_names.published(self.file, name): name for name in self.file.entries}

    def has(self, name: str) -> bool:
        return f"{name}.weight" in self._names or name in self._names

    def find(self, name: str) -> Tensor:
        stored = self._names.get(f"{name}.weight") or self._names[name]
        tensor = self.file.tensor(stored)
        heads = gguf_names.interleaved(self.file, name)
        return tensor if heads == 0 else _halves_apart(tensor, heads)


def _halves_apart(tensor: Tensor, heads: int) -> Tensor:
    """The rows of a projection whose heads hold pairs side by side, with first and second of the pairs apart."""
    order = np.arange(tensor.shape[0]).reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)
    if isinstance(tensor, CodedLater):
        return replace(tensor, parts=partial(_reordered, tensor, order))
    return LazyTensor(tensor, lambda array: array[order], tensor.dtype, tuple(tensor.shape))


def _reordered(tensor: CodedLater, order: np.ndarray) -> Iterator[CodedWeights]:
    coded = tensor.make()
    minimum = None if coded.minimum is None else coded.minimum[order]
    yield CodedWeights(coded.codes[order], coded.scale[order], minimum, coded.bits, coded.half_scales)
