"""`mnnconvert llm SRC OUT_DIR`: a language model, as the folder that MNN's runtime for them loads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mnnconvert.cli.output import Output, size
from mnnconvert.cli.parser import Arguments, Syntax
from mnnconvert.option_types import Option
from mnnconvert.options import COMMON

if TYPE_CHECKING:
    from mnnconvert.llm import LlmReport

BITS = "2 to 8, 16 for halves or 32 for floats"

SYNTAX = Syntax(
    usage="mnnconvert llm SRC OUT_DIR [--quant_bit N] [--quant_block N] [--lm_quant_bit N] [--hqq | --sym]",
    summary="Convert a Hugging Face folder (config.json, safetensors, tokenizer) or a GGUF file to what MNN's runtime\n"
    "for language models loads. Codes of GGUF, GPTQ and AWQ stay as they are (docs/llm.md).",
    options=(
        Option("--quant_bit", "quant_bit", "int", "bits of float weights", default=4, low=2, high=32,
               accepts=BITS, metavar="N"),
        Option("--quant_block", "quant_block", "int", "inputs that share a scale; 0: all of a row", default=64, low=0,
               metavar="N"),
        Option("--lm_quant_bit", "lm_quant_bit", "int", "bits of the head (as --quant_bit)", low=2, high=32,
               accepts=BITS, metavar="N"),
        Option("--hqq", "hqq", "flag", "fit scales and offsets iteratively", default=False),
        Option("--sym", "sym", "flag", "codes without offsets", default=False),
        Option("--seperate_embed", "seperate_embed", "flag", "write embeddings also where the head is their table",
               default=False),
        Option("--verify", "verify", "choice", "compare logits with the source's: auto (small models), always, never",
               default="auto", choices=("auto", "always", "never"), metavar="WHEN"),
        *COMMON,
    ),
    words=("SRC", "OUT_DIR"),
    required=2,
    examples=(
        "mnnconvert llm Qwen3-0.6B/ qwen3-mnn --quant_block 32 --lm_quant_bit 8",
        "mnnconvert llm SmolLM2-135M-Instruct.Q4_1.gguf smollm2-mnn",
    ),
)  # fmt: skip


def run(arguments: Arguments, out: Output) -> int:
    from mnnconvert.llm import LlmOptions, convert_llm

    given = {option.field: arguments[option.field] for option in SYNTAX.options if option not in COMMON}
    source, target = arguments.words
    report = convert_llm(source, target, LlmOptions(**given), out.progress)  # type: ignore[arg-type]
    out.data({"ok": True, "exit_code": 0, **report.to_dict()})
    for diagnostic in report.diagnostics:
        out.warning(str(diagnostic))
    out.detail(in_words(report))
    if report.error is not None:
        out.detail(f"logits differ by {report.error:.3g} of their norm from those of the source, in floats")
    sizes = f"{size(report.source_bytes)} -> {size(report.target_bytes)}"
    out.result(f"wrote {target}: {', '.join(report.files)}, {sizes}, {report.seconds:.1f} s")
    return 0


def in_words(report: LlmReport) -> str:
    """For example "llama, 30 layers, 135 M parameters: 211 matrices keep the codes of the source"."""
    kinds = (
        (report.quantized, "are coded"),
        (report.kept, "keep the codes of the source"),
        (report.floats, "have none"),
    )
    parts = ", ".join(f"{count} {does}" for count, does in kinds if count)
    return (
        f"{report.family}, {report.layers} layers, {report.parameters / 1e6:.0f} M parameters; of its matrices {parts}"
    )
