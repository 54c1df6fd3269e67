"""Language models: from a checkpoint to a folder that MNN's runtime for them loads, one weight in memory at a time."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from mnnconvert.errors import ConversionError, Diagnostic, GateError, UsageError
from mnnconvert.frontends.llm.block import Decoder, decoder_graph
from mnnconvert.frontends.llm.checkpoint import EMBEDDING, HEAD, Checkpoint, open_checkpoint
from mnnconvert.frontends.llm.families import decoder_of
from mnnconvert.frontends.llm.tokenizer import Tokenizer, read_tokenizer
from mnnconvert.ir import F16, F32, CastTensor, CodedForm, CodedLater, HalfTensor, Node, Tensor
from mnnconvert.ir.coded import fitting_block
from mnnconvert.quantizers.apply import code_rows, form_of
from mnnconvert.quantizers.expected import expected_power
from mnnconvert.quantizers.recipe import Setting
from mnnconvert.quantizers.statistics import Statistics

MODEL, CONFIG, EMBEDDINGS, TOKENIZER = "llm.mnn", "llm_config.json", "embeddings_bf16.bin", "tokenizer.txt"
TOKENIZER_JSON = "tokenizer.json"
BF16 = np.dtype(ml_dtypes.bfloat16)
BITS = (2, 3, 4, 5, 6, 7, 8, 16, 32)
TABLE_BITS = (4, 8)
VERIFIED = 200_000_000  # parameters up to which a conversion is proved unless asked for
VERIFIED_TOKENS = 16
ROUNDING = 1e-3  # relative error of logits that the order of additions explains
Progress = Callable[[str, float], None]


@dataclass(frozen=True)
class LlmOptions:
    """How weights are stored, under the names of MNN's llmexport.

    `quant_bit` 2..8 codes with a scale per `quant_block` inputs (0: per row), 16 halves or 32 floats; `lm_quant_bit` is
    that of the head (None: the same). Grids are of least squares, with `hqq` HQQ's, with `sym` without offsets.
    `seperate_embed` writes the table of embeddings also where the head is that table. Codes of the source stay.
    `verify` "auto" runs models of up to `VERIFIED` parameters before they get their name, "always" all, "never" none.
    """

    quant_bit: int = 4
    quant_block: int = 64
    lm_quant_bit: int | None = None
    hqq: bool = False
    sym: bool = False
    seperate_embed: bool = False
    verify: str = "auto"

    def __post_init__(self) -> None:
        for bits in (self.quant_bit, self.lm_quant_bit):
            if bits is not None and bits not in BITS:
                raise UsageError.of("out-of-range", f"weights have {', '.join(map(str, BITS))} bits, not {bits}")
        if self.quant_block < 0:
            raise UsageError.of("out-of-range", f"a block has at least one input, not {self.quant_block}")
        if self.verify not in ("auto", "always", "never"):
            raise UsageError.of("bad-option-value", f"verify is auto, always or never, not '{self.verify}'")
        if self.hqq and self.sym:
            raise UsageError.of("contradictory-options", "--hqq fits offsets, which --sym does without")

    def setting(self, name: str) -> Setting | None:
        """How a weight is coded; None where it is not."""
        bits = self.bits(name)
        method = "hqq" if self.hqq else "lsq"
        return Setting(bits, self.quant_block, self.sym, method) if bits <= 8 else None

    def bits(self, name: str) -> int:
        return self.lm_quant_bit if name == HEAD and self.lm_quant_bit is not None else self.quant_bit


@dataclass
class LlmReport:
    """What was converted: `quantized`, `kept` and `floats` count matrices that were coded, that keep the codes of the
    source, and that have none. `error` is how far the logits of the file are from those of the source, for the
    same embeddings, relative to their norm; None where nobody looked. Sizes are bytes of all files together."""

    source: str
    target: str
    family: str
    layers: int
    parameters: int = 0
    quantized: int = 0
    kept: int = 0
    floats: int = 0
    error: float | None = None
    source_bytes: int = 0
    target_bytes: int = 0
    files: list[str] = field(default_factory=list)
    diagnostics: list[Diagnostic] = field(default_factory=list)
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"diagnostics": [d.to_dict() for d in self.diagnostics]}


def convert_llm(
    source: str | Path, target: str | Path, options: LlmOptions | None = None, progress: Progress | None = None
) -> LlmReport:
    """Convert a Hugging Face folder or a GGUF file to the folder `target`, which appears when it is complete.

    Raises `bad-checkpoint`, `llm-unsupported`, `missing-file`, `unwritable-output`, and what quantizers refuse.
    """
    conversion = _LlmConversion(Path(source), Path(target), options or LlmOptions(), progress or _quiet)
    return conversion.run()


def _quiet(stage: str, fraction: float) -> None:
    """Nobody watches."""


class _LlmConversion:
    """The steps of one conversion."""

    def __init__(self, source: Path, target: Path, options: LlmOptions, progress: Progress):
        if not source.exists():
            raise ConversionError.of("missing-file", f"'{source}' does not exist", file=source)
        self.source, self.target, self.options, self.progress = source, target, options, progress
        self.checkpoint = open_checkpoint(source)
        decoder = decoder_of(self.checkpoint.config)
        self.decoder = replace(decoder, norm_offset=0.0) if self.checkpoint.gains_with_offset else decoder
        family = str(self.checkpoint.config["model_type"])
        self.report = LlmReport(str(source), str(target), family, decoder.layers, diagnostics=list(decoder.notes))
        self.weights = StoredWeights(self.decoder, self.checkpoint, options, self.shares_table, self.report)

    @property
    def shares_table(self) -> bool:
        """Whether the runtime reads embeddings from the coded head of the model, which it can in some widths."""
        table = self.checkpoint.matrix(EMBEDDING)
        bits = table.form.bits if isinstance(table, CodedLater) else self.options.bits(HEAD)
        return self.decoder.tied and bits in TABLE_BITS and not self.options.seperate_embed

    def run(self) -> LlmReport:
        from mnnconvert.passes.pipeline import run_pipeline
        from mnnconvert.schema.files import staged_folder
        from mnnconvert.schema.writer import write_model

        started = time.perf_counter()
        tokenizer = read_tokenizer(self.source, self.checkpoint)
        self.report.diagnostics += tokenizer.notes
        graph = decoder_graph(self.decoder, self.weights)
        if not self.decoder.tied:
            self.report.parameters += math.prod(self.checkpoint.matrix(EMBEDDING).shape)
        run_pipeline(graph, level=0)
        with staged_folder(self.target, CONFIG) as folder:
            write_model(graph, folder / MODEL, external=True, progress=partial(self.progress, "write"))
            table = self._embeddings(folder)
            tokenizer.write(folder / TOKENIZER, folder / TOKENIZER_JSON)
            _write_json(folder / CONFIG, self._described(tokenizer, table))
            _write_json(folder / "config.json", runtime_settings())
            self._verify(folder)
            self.report.files = sorted(path.name for path in folder.iterdir())
            self.report.target_bytes = _bytes_of(folder)
        self.report.source_bytes = _bytes_of(self.source)
        self.report.seconds = time.perf_counter() - started
        return self.report

    def _verify(self, folder: Path) -> None:
        """Run the folder against the weights of the source, in floats: without rounding they agree.

        Raises `verification-missed` where they do not; with rounded weights the error is reported.
        """
        from mnnconvert.llm_session import LlmSession

        wanted, large = self.options.verify, self.report.parameters > VERIFIED
        if wanted == "never" or (wanted == "auto" and large):
            if large:
                self.report.diagnostics.append(_unproved(self.report.parameters))
            return
        self.progress("verify", 0.0)
        tokens = np.random.default_rng(0).integers(0, self.decoder.vocabulary, VERIFIED_TOKENS).tolist()
        made = LlmSession(folder)
        found = made.logits(tokens, rows=0)
        made.reset()
        expected = made.on(decoder_graph(self.decoder, self.checkpoint)).logits(tokens, rows=0)
        self.report.error = float(np.linalg.norm(found - expected) / np.linalg.norm(expected))
        exact = not self.report.quantized and 16 not in (self.options.quant_bit, self.options.lm_quant_bit)
        if not self.report.error < (ROUNDING if exact else math.inf):
            raise GateError.of(
                "verification-missed", f"logits differ by {self.report.error:.3g} from those of the source"
            )

    def _embeddings(self, folder: Path) -> list[int] | None:
        """Write the table of embeddings as bfloat16, or say where the runtime finds it in the weights of the model."""
        if self.shares_table:
            return table_in(folder / MODEL)
        with (folder / EMBEDDINGS).open("wb", buffering=1 << 20) as stream:
            CastTensor(self.checkpoint.matrix(EMBEDDING), BF16).write_to(stream)
        return None

    def _described(self, tokenizer: Tokenizer, table: list[int] | None) -> dict[str, Any]:
        """llm_config.json: what MNN's runtime has to know of the model."""
        decoder = self.decoder
        positions = [n for n in (self.checkpoint.config.get("max_position_embeddings"), decoder.positions) if n]
        described: dict[str, Any] = {
            "model_type": self.report.family, "hidden_size": decoder.width, "layer_nums": decoder.layers,
            "attention_mask": "float", "attention_type": "mix" if decoder.window else "full",
            "key_value_shape": [2, 1, 0, decoder.groups, decoder.size], "is_visual": False, "is_single": True,
            "max_position_embeddings": min(positions, default=None),
            **tokenizer.described(),
        }  # fmt: skip
        if decoder.window:
            described["sliding_window"] = decoder.window
        return described | ({} if table is None else {"tie_embeddings": table})


@dataclass
class StoredWeights:
    """The weights of a checkpoint as they will stand in the file."""

    decoder: Decoder
    checkpoint: Checkpoint
    options: LlmOptions
    shares_table: bool
    report: LlmReport

    def has(self, name: str) -> bool:
        return self.checkpoint.has(name)

    def vector(self, name: str) -> np.ndarray:
        values = self.checkpoint.vector(name)
        self.report.parameters += values.size
        return values

    def matrix(self, name: str) -> Tensor:
        """Codes of the source stay; floats are coded, halved or widened as the options say, when they are written."""
        tensor = self.checkpoint.matrix(name)
        self.report.parameters += math.prod(tensor.shape)
        if isinstance(tensor, CodedLater):
            self.report.kept += 1
        else:
            tensor = self._stored(name, tensor)
        if name == HEAD and self.shares_table and isinstance(tensor, CodedLater):
            tensor = replace(tensor, from_zero=True)
        return tensor

    @cached_property
    def _layers(self) -> dict[str, Node]:
        """The products of the model as the checkpoint has it."""
        return {node.name: node for node in decoder_graph(self.decoder, self.checkpoint).nodes}

    def _expected(self, name: str) -> Statistics | None:
        """What the weights before a layer tell of its inputs: those that are large count more in its codes."""
        power = expected_power(self._layers[name])
        return None if power is None else Statistics(0, power)

    def _stored(self, name: str, tensor: Tensor) -> Tensor:
        setting = self.options.setting(name)
        if setting is not None:
            self.report.quantized += 1
            return coded_later(name, tensor, setting, partial(self._expected, name))
        self.report.floats += 1
        wanted = F16 if self.options.bits(name) == 16 else F32
        cast = tensor if tensor.dtype == wanted else CastTensor(tensor, wanted)
        return HalfTensor(cast) if wanted == F16 else cast


def _unproved(parameters: int) -> Diagnostic:
    problem = f"the model has {parameters / 1e9:.1f} G parameters, so the files were not proved"
    return Diagnostic(
        "not-verified", problem, hint="--verify always proves them, in floats: 4 bytes a parameter, twice"
    )


def coded_later(
    name: str, tensor: Tensor, setting: Setting, statistics: Callable[[], Statistics | None] = lambda: None
) -> CodedLater:
    """A float matrix [out, in] whose codes are computed when they are written. Raises `llm-block`."""
    rows, columns = tensor.shape
    block = fitting_block(columns, setting.block) if setting.block else 0
    if block < 0:
        problem = f"no block of up to {setting.block} divides the {columns} inputs of '{name}'"
        raise ConversionError.of("llm-block", problem, hint="choose --quant_block so that it does, or 0 for none")
    settled = replace(setting, block=block)
    form = form_of(rows, columns, settled)
    return CodedLater(tensor, (rows, columns), form, lambda: code_rows(tensor, rows, settled, statistics()))


def table_in(model: Path) -> list[int]:
    """Where the codes of the head lie in the weights of a written model: first byte of codes, first byte of numbers,
    bytes of numbers, bits, block."""
    from mnnconvert.schema import flatbuffer, tables
    from mnnconvert.schema.writer import map_file

    net: Any = flatbuffer.read(map_file(model), tables.Net)
    head = next(op.main for op in net.oplists if op.name == HEAD)
    common, quan = head.common, head.quanParameter
    offset, codes, numbers = (int(n) for n in head.external[:3])
    symmetric = quan.readType == 0
    blocks = numbers // (4 if symmetric else 8) // common.outputCount
    form = CodedForm((common.outputCount, common.inputCount), quan.aMaxOrBits, blocks, symmetric)
    return [offset + form.nbytes_head, offset + codes, numbers, form.bits, form.block]


def runtime_settings() -> dict[str, Any]:
    """config.json of the runtime, for people to change: greedy, and with weights that stay codes. What these are
    multiplied with is rounded to 8 bits then; by blocks (`dynamic_option` 2), as outliers would drown a whole row."""
    return {"llm_model": MODEL, "llm_weight": f"{MODEL}.weight", "backend_type": "cpu", "thread_num": 4,
            "precision": "low", "memory": "low", "dynamic_option": 2, "sampler_type": "greedy",
            "max_new_tokens": 512}  # fmt: skip


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _bytes_of(path: Path) -> int:
    files = [path] if path.is_file() else [p for p in path.iterdir() if p.is_file()]
    return sum(p.stat().st_size for p in files)
