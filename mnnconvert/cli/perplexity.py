"""`mnnconvert perplexity MODEL --text FILE`: how surprised a language model is by a text."""

from __future__ import annotations

from pathlib import Path

from mnnconvert.cli.output import Output
from mnnconvert.cli.parser import Arguments, Syntax
from mnnconvert.cli.run import PRECISION
from mnnconvert.errors import UsageError
from mnnconvert.option_types import Option
from mnnconvert.options import COMMON

SYNTAX = Syntax(
    usage="mnnconvert perplexity MODEL --text FILE [--window N] [--stride N]",
    summary="Measure the perplexity of a folder that `mnnconvert llm` wrote, on our engine: over windows whose second\n"
    "halves count, as llama.cpp does, or with --stride over overlapping windows, as Hugging Face does.",
    options=(
        Option("--text", "text", "path", "the text, UTF-8", metavar="FILE"),
        Option("--window", "window", "int", "tokens of a window", default=512, low=2, metavar="N"),
        Option("--stride", "stride", "int", "tokens from window to window (none: llama.cpp's definition)", low=1,
               metavar="N"),
        Option("--characters", "characters", "int", "only so many first characters of the text", low=1, metavar="N"),
        Option("--threads", "threads", "int", "threads (0: all cores)", default=0, low=0, metavar="N"),
        PRECISION,
        *COMMON,
    ),
    words=("MODEL",),
    required=1,
    examples=(
        "mnnconvert perplexity smollm2-mnn --text novel.txt",
        "mnnconvert perplexity smollm2-mnn --text novel.txt --window 1024 --stride 512",
    ),
)  # fmt: skip


def run(arguments: Arguments, out: Output) -> int:
    from mnnconvert.llm_session import LlmSession
    from mnnconvert.perplexity import encode, measure, read_text

    folder, path = Path(arguments.words[0]), arguments.text("text")
    if path is None:
        raise UsageError.of("missing-option", "There is no text.", hint=f"Usage: {SYNTAX.usage}")
    text = read_text(Path(path))
    if arguments["characters"] is not None:
        text = text[: arguments.number("characters")]
    model = LlmSession(folder, arguments.number("threads"), str(arguments["precision"]))
    tokens, first = encode(folder, text)
    window, stride = arguments.number("window"), arguments["stride"]
    if model.context is not None and window > model.context:
        out.warning(f"the model was trained on {model.context} tokens, fewer than a window of {window}")
    result = measure(model, tokens, window, int(str(stride or 0)), first, lambda done: out.progress("perplexity", done))
    out.data({"ok": True, "exit_code": 0, **result.to_dict()})
    steps = f", one every {result.stride}" if result.stride else ""
    out.detail(f"{result.counted} of {result.tokens} tokens count, in {result.windows} windows of {window}{steps}")
    out.result(f"perplexity {result.perplexity:.4f} +/- {result.error:.4f} (as {result.definition} defines it)")
    return 0
