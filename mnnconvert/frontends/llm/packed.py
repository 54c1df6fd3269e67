"""Linear layers of GPTQ and AWQ checkpoints: their integers, scales and zero points reach the file unchanged.

Both keep q of (q - zero) * scale packed into int32, with groups of inputs that share scale and zero:
GPTQ   qweight [in * bits / 32, out], qzeros [groups, out * bits / 32] (less one, but in format gptq_v2), g_idx [in]
AWQ    qweight [in, out / 8], qzeros [groups, out / 8]; the eight of a number are outputs 0, 2, 4, 6, 1, 3, 5, 7
scales are float16 [groups, out] in both (AutoGPTQ's and AutoAWQ's documentation of their tensors).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NoReturn

import numpy as np

from mnnconvert.errors import ConversionError
from mnnconvert.frontends.common.coded_weights import BLOCK_STEP, coded, unpacked
from mnnconvert.ir import CodedForm, CodedLater, CodedWeights, FileTensor

AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
"""Place of output 0, 1, ... 7 among the eight numbers of an AWQ int32, lowest bits first."""
METHODS = ("gptq", "awq")
WIDTHS = {"gptq": (2, 4, 8), "awq": (4,)}


@dataclass(frozen=True)
class Packing:
    """How a checkpoint packs its layers: `quantization_config` of its configuration."""

    method: str
    bits: int
    offset: int

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Packing:
        """Raises `llm-unsupported` for other methods and widths than those here."""
        method, bits = str(settings.get("quant_method", "?")), settings.get("bits", settings.get("w_bit", 4))
        if method not in METHODS or bits not in WIDTHS[method]:
            _refuse(
                f"checkpoints of '{method}' with {bits} bits are not read",
                "gptq with 2, 4 or 8 bits and awq with 4 are",
            )
        if method == "awq" and str(settings.get("version", "gemm")).lower() != "gemm":
            _refuse(f"AWQ packed as '{settings['version']}' is not read", "save it as gemm")
        plain = settings.get("checkpoint_format", "gptq") == "gptq"
        return cls(method, int(bits), int(method == "gptq" and plain))


@dataclass(frozen=True)
class PackedLinear:
    """The tensors of one layer."""

    name: str
    packing: Packing
    qweight: FileTensor
    qzeros: FileTensor
    scales: FileTensor
    g_idx: FileTensor | None = None

    def tensor(self) -> CodedLater:
        """The weight [out, in]. Raises `llm-unsupported`, `bad-checkpoint`."""
        inputs, outputs = self._sizes()
        groups = self.scales.shape[0]
        block = inputs // max(1, groups)
        if (
            self.scales.shape != (groups, outputs)
            or groups < 1
            or inputs % groups
            or (groups > 1 and block % BLOCK_STEP)
        ):
            self._bad(f"scales {list(self.scales.shape)} for {inputs} inputs and {outputs} outputs")
        if self.g_idx is not None and not np.array_equal(self.g_idx.numpy(), np.arange(inputs) // block):
            _refuse(f"the groups of '{self.name}' are not in the order of its inputs (desc_act), "
                    "and a block of an MNN file is of inputs that follow one another",
                    "quantize it again with desc_act=False, or start from the float checkpoint")  # fmt: skip
        symmetric = bool((self._zero == 1 << (self.packing.bits - 1)).all())
        form = CodedForm((outputs, inputs), self.packing.bits, groups, symmetric)
        return CodedLater(self.qweight, (outputs, inputs), form, self._coded)

    def _sizes(self) -> tuple[int, int]:
        per = 32 // self.packing.bits
        if len(self.qweight.shape) != 2 or len(self.scales.shape) != 2 or self.qweight.dtype != np.int32:
            self._bad(f"qweight {list(self.qweight.shape)} {self.qweight.dtype}")
        rows, columns = self.qweight.shape
        return (rows * per, columns) if self.packing.method == "gptq" else (rows, columns * per)

    @cached_property
    def _zero(self) -> np.ndarray:
        """Zero points [out, groups]."""
        zero = self._unpack(self.qzeros.numpy()).astype(np.int16) + self.packing.offset
        if zero.shape != self.scales.shape:
            self._bad(f"qzeros {list(self.qzeros.shape)} for scales {list(self.scales.shape)}")
        return zero.T

    def _unpack(self, packed: np.ndarray) -> np.ndarray:
        """int32 [n, k] -> codes uint8 [n, k * 32 / bits]."""
        codes = unpacked(np.ascontiguousarray(packed).view(np.uint8), self.packing.bits)
        if self.packing.method == "awq":
            codes = codes.reshape(len(codes), -1, 8)[:, :, list(AWQ_ORDER)].reshape(len(codes), -1)
        return codes

    def _coded(self) -> Iterator[CodedWeights]:
        packed = self.qweight.numpy()
        codes = self._unpack(packed.T) if self.packing.method == "gptq" else self._unpack(packed).T
        scale = self.scales.numpy().T.astype(np.float32)
        yield coded(codes, f"uint{self.packing.bits}", scale, self._zero.astype(np.float32))

    def _bad(self, what: str) -> NoReturn:
        raise ConversionError.of("bad-checkpoint", f"the packed layer '{self.name}' does not fit together: {what}")


def _refuse(what: str, hint: str) -> NoReturn:
    raise ConversionError.of("llm-unsupported", what, hint=hint)
