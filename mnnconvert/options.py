"""Every conversion option, once: the command line, the Python keywords, the help text and the checks derive from here.

`ConversionOptions` holds the values, `OPTIONS` says how each is spelled and what it may be, `REFUSED` names those
that would have no effect, and `CONTRADICTIONS` the pairs that cannot be meant together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields

from mnnconvert.errors import Diagnostic, UsageError
from mnnconvert.option_types import Kind, Option, did_you_mean

FRAMEWORKS = ("ONNX", "TF", "TFLITE", "TORCH", "CAFFE", "MNN", "JSON")
TARGETS = ("mnn-3.6.1", "none")
SMALLEST_BLOCK = 8  # input channels; smaller blocks would cost more for scales than they save on codes


@dataclass(frozen=True)
class ConversionOptions:
    """What was asked of one conversion. An impossible mix does not get past the constructor (UsageError).

    Sizes are in elements, `weight_quant_block` counts input channels (0 = one scale per output channel),
    `weight_quant_bits` 0 means weights keep their type, `tolerance` is relative to the largest value of an output.
    """

    framework: str | None = None
    model_file: str | None = None
    mnn_model: str | None = None
    prototxt: str | None = None
    json_file: str | None = None
    signature: str | None = None
    batch: int | None = None
    input_config_file: str | None = None
    save_static_model: bool = False
    input_shape: dict[str, tuple[int, ...]] = field(default_factory=dict)
    input_type: tuple[str, ...] = ()
    input_value: tuple[str, ...] = ()
    keep_input_format: bool = True
    optimize_level: int = 1
    optimize_prefer: int = 0
    fp16: bool = False
    weight_quant_bits: int = 0
    weight_quant_block: int = 0
    weight_quant_asymmetric: bool = True
    hqq: bool = False
    weight_quant_scale_bit: int = 32
    quant_method: str | None = None
    data: str | None = None
    quant_scaling: str | None = None
    quant_embedding: int | None = None
    recipe: str | None = None
    quant_rule: tuple[str, ...] = ()
    save_recipe: str | None = None
    compression_params_file: str | None = None
    transformer_fuse: bool = False
    use_gelu_approximation: bool = False
    convert_matmul_to_conv: bool = True
    group_conv_native: bool = False
    use_origin_rnn_impl: bool = False
    split_block_quant: bool = False
    detect_sparse_speed_up: bool = False
    transformer_fuse_c4: bool = False
    save_external_data: bool = False
    testdir: str | None = None
    testconfig: str | None = None
    thredhold: float = 0.01
    benchmark_model: bool = False
    biz_code: str | None = None
    auth_code: str | None = None
    target_version: str | None = None
    for_training: bool = False
    allow_custom_op: bool = False
    custom_op_libs: str | None = None
    align_denormalized_value: bool = False
    dump_pass: bool = False
    debug: bool = False
    verify: str = "auto"
    tolerance: float = 1e-3
    inputs: str | None = None
    seed: int = 0
    plan: bool = False
    html: str | None = None
    target: str = TARGETS[0]
    json: bool = False
    quiet: bool = False
    no_color: bool = False
    force: bool = False
    disable_pass: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.validate()

    @classmethod
    def from_keywords(cls, **keywords: object) -> ConversionOptions:
        """Options from field names or their short aliases (`weight_bits=4`); UsageError lists every wrong one."""
        values: dict[str, object] = {}
        problems: list[Diagnostic] = []
        for word, value in keywords.items():
            try:
                option = _by_keyword(word)
                if option.field in values:
                    raise UsageError.of("repeated-option", f"{option.field} is given twice.")
                values[option.field] = option.default if value is None else option.read(value)
            except UsageError as error:
                problems.extend(error.diagnostics)
        if problems:
            raise UsageError(problems)
        if values.get("weight_quant_block") == -1:  # MNN's own spelling of "per channel"
            values["weight_quant_block"] = 0
        return cls(**values)  # type: ignore[arg-type]  # `read` gave each its field's type

    def validate(self) -> None:
        """UsageError that lists all values out of range, contradictions, and options that would have no effect."""
        problems = [*_ranges(self), *_contradictions(self), *_refusals(self)]
        if problems:
            raise UsageError(problems)

    @property
    def chosen(self) -> dict[str, str]:
        """What tells the source model beside its file, where it is given: `prototxt`, `signature`."""
        texts = {"prototxt": self.prototxt, "signature": self.signature}
        return {name: text for name, text in texts.items() if text}

    @property
    def passes(self) -> dict[str, bool]:
        """The options of passes, by the names that `run_pipeline` knows."""
        names = ("convert_matmul_to_conv", "use_gelu_approximation", "transformer_fuse")
        return {name: getattr(self, name) for name in names}

    def given(self, name: str) -> bool:
        """Whether field `name` differs from its default."""
        return getattr(self, name) != _DEFAULTS[name]


_DEFAULTS: dict[str, object] = {
    f.name: f.default_factory() if callable(f.default_factory) else f.default for f in fields(ConversionOptions)
}

FILES = "Files"
SIZES = "Input sizes"
WEIGHTS = "Weights"
GRAPH = "Graph"
CHECKS = "Checks"
MODEL = "What is written"
TALK = "Output"
GROUPS = (FILES, SIZES, WEIGHTS, GRAPH, CHECKS, MODEL, TALK)


def _option(flag: str, name: str, kind: Kind, group: str, text: str, **more: object) -> Option:
    return Option(flag, name, kind, text, group, _DEFAULTS[name], **more)  # type: ignore[arg-type]


OPTIONS: tuple[Option, ...] = (
    _option("--framework", "framework", "choice", FILES, "source format, any case; guessed when left out",
            short="-f", choices=FRAMEWORKS, metavar="NAME"),
    _option("--modelFile", "model_file", "path", FILES, "the model to read", metavar="IN"),
    _option("--MNNModel", "mnn_model", "path", FILES, "the file to write", metavar="OUT"),
    _option("--prototxt", "prototxt", "path", FILES, "network description of a Caffe model", metavar="FILE"),
    _option("--JsonFile", "json_file", "path", FILES, "write an MNN model in its JSON form", metavar="FILE"),
    _option("--signature", "signature", "text", FILES, "which signature of a SavedModel to convert", metavar="NAME"),
    _option("--batch", "batch", "int", SIZES, "replace an unknown batch size", low=1, metavar="N"),
    _option("--input-shape", "input_shape", "shapes", SIZES, "fix the sizes of one input (repeatable)",
            metavar="NAME:1x3x224x224"),
    _option("--input-type", "input_type", "texts", SIZES, "element type of one input of a TorchScript (repeatable)",
            metavar="NAME:TYPE"),
    _option("--input-value", "input_value", "texts", SIZES,
            "make an input of a TorchScript that is a number a constant (repeatable)", metavar="NAME:NUMBER"),
    _option("--inputConfigFile", "input_config_file", "path", SIZES, "file that fixes the sizes of inputs",
            metavar="FILE"),
    _option("--saveStaticModel", "save_static_model", "flag", SIZES, "write a model of fixed sizes"),
    _option("--keepInputFormat", "keep_input_format", "flag", SIZES, "inputs keep the layout of the source"),
    _option("--fp16", "fp16", "flag", WEIGHTS, "store weights in half precision"),
    _option("--weightQuantBits", "weight_quant_bits", "int", WEIGHTS, "store weights in 2 to 8 bits (0 = off)",
            choices=(0, 2, 3, 4, 5, 6, 7, 8), accepts="2 to 8, or 0 for off", metavar="N", alias="weight_bits"),
    _option("--weightQuantBlock", "weight_quant_block", "int", WEIGHTS,
            "one scale per N input channels (0 = one per output channel)",
            metavar="N", alias="weight_block"),
    _option("--weightQuantAsymmetric", "weight_quant_asymmetric", "flag", WEIGHTS, "scales with an offset",
            alias="weight_asymmetric"),
    _option("--hqq", "hqq", "flag", WEIGHTS, "search better scales (half-quadratic quantization)"),
    _option("--weightQuantScaleBit", "weight_quant_scale_bit", "int", WEIGHTS, "precision of stored scales",
            choices=(16, 32), metavar="N", alias="weight_scale_bit"),
    _option("--quantMethod", "quant_method", "choice", WEIGHTS, "how codes are found; gptq needs --data",
            choices=("rtn", "hqq", "hqq-reference", "lsq", "gptq"), metavar="NAME"),
    _option("--data", "data", "path", WEIGHTS, "inputs to calibrate with: .npz, .npy, or a folder of them",
            metavar="PATH"),
    _option("--quantScaling", "quant_scaling", "choice", WEIGHTS,
            "rescale channels first, as the data say; outputs of the float model stay", choices=("awq", "smooth"),
            metavar="NAME"),
    _option("--quantEmbedding", "quant_embedding", "int", WEIGHTS,
            "bits of large tables that are looked up: 8, 4, 0 = leave them", choices=(0, 4, 8), metavar="N"),
    _option("--recipe", "recipe", "path", WEIGHTS, "settings and rules per layer, as TOML", metavar="FILE"),
    _option("--quantRule", "quant_rule", "texts", WEIGHTS,
            "a rule such as name=head*,bits=8 or op=Gather,skip (repeatable)", metavar="RULE"),
    _option("--saveRecipe", "save_recipe", "path", WEIGHTS, "write the recipe that was used", metavar="FILE"),
    _option("--compressionParamsFile", "compression_params_file", "path", WEIGHTS,
            "settings per layer in MNN's form; created when it does not exist", metavar="FILE"),
    _option("--optimizeLevel", "optimize_level", "int", GRAPH,
            "0 none, 1 always exact, 2 may assume value ranges", low=0, high=2, metavar="N"),
    _option("--optimizePrefer", "optimize_prefer", "int", GRAPH, "0 balanced, 1 small, 2 fast", low=0, high=2,
            metavar="N"),
    _option("--transformerFuse", "transformer_fuse", "flag", GRAPH, "fuse attention"),
    _option("--transformerFuseC4", "transformer_fuse_c4", "flag", GRAPH, "packed layout for fused transformers"),
    _option("--useGeluApproximation", "use_gelu_approximation", "flag", GRAPH, "tanh form of GELU"),
    _option("--convertMatmulToConv", "convert_matmul_to_conv", "flag", GRAPH,
            "matrix products with a constant become convolutions"),
    _option("--groupConvNative", "group_conv_native", "flag", GRAPH, "keep grouped convolutions in one piece"),
    _option("--useOriginRNNImpl", "use_origin_rnn_impl", "flag", GRAPH, "MNN's former LSTM and GRU operators"),
    _option("--splitBlockQuant", "split_block_quant", "flag", GRAPH, "cut blockwise layers into several"),
    _option("--detectSparseSpeedUp", "detect_sparse_speed_up", "flag", GRAPH, "look for sparse weights"),
    _option("--disablePass", "disable_pass", "texts", GRAPH, "switch a pass off by name (repeatable)",
            metavar="NAME"),
    _option("--dumpPass", "dump_pass", "flag", GRAPH, "print what each pass changed"),
    _option("--verify", "verify", "choice", CHECKS, "prove the written file against the source engine",
            choices=("auto", "always", "never"), metavar="WHEN"),
    _option("--tolerance", "tolerance", "float", CHECKS, "largest accepted relative difference", low=0, metavar="X"),
    _option("--inputs", "inputs", "path", CHECKS, "arrays to check with, by input name", metavar="FILE.npz"),
    _option("--seed", "seed", "int", CHECKS, "seed of the random inputs used otherwise", low=0, metavar="N"),
    _option("--testdir", "testdir", "path", CHECKS, "check against recorded inputs and outputs", metavar="DIR"),
    _option("--thredhold", "thredhold", "float", CHECKS, "accepted relative difference with --testdir", low=0,
            metavar="X"),
    _option("--testconfig", "testconfig", "path", CHECKS, "settings of MNN's own test run", metavar="FILE"),
    _option("--saveExternalData", "save_external_data", "flag", MODEL, "weights in OUT.weight"),
    _option("--benchmarkModel", "benchmark_model", "flag", MODEL, "structure without weights"),
    _option("--alignDenormalizedValue", "align_denormalized_value", "flag", MODEL,
            "write denormal numbers as zero"),
    _option("--bizCode", "biz_code", "text", MODEL, "a label stored in the file", metavar="TEXT"),
    _option("--target", "target", "choice", MODEL, "runtime whose known defects are worked around, or none",
            choices=TARGETS, metavar="RUNTIME"),
    _option("--targetVersion", "target_version", "text", MODEL, "write for an older MNN", metavar="TEXT"),
    _option("--authCode", "auth_code", "text", MODEL, "authentication code", metavar="TEXT"),
    _option("--forTraining", "for_training", "flag", MODEL, "keep training operators"),
    _option("--allowCustomOp", "allow_custom_op", "flag", MODEL, "write operators that come from plug-ins"),
    _option("--customOpLibs", "custom_op_libs", "text", MODEL, "libraries of own operators", metavar="LIBS"),
    _option("--force", "force", "flag", MODEL, "overwrite the output (the default, as in MNN)"),
    _option("--plan", "plan", "flag", TALK, "say what would be done, and stop"),
    _option("--html", "html", "path", TALK, "write a page: verdict, errors and sizes of layers, graph, weights",
            metavar="FILE"),
    _option("--json", "json", "flag", TALK, "results as JSON on stdout, text on stderr"),
    _option("--quiet", "quiet", "flag", TALK, "only problems", short="-q"),
    _option("--no-color", "no_color", "flag", TALK, "plain text"),
    _option("--debug", "debug", "flag", TALK, "check the graph between passes, and show everything"),
)  # fmt: skip

COMMON = tuple(option for option in OPTIONS if option.field in ("json", "quiet", "no_color"))

REFUSED: dict[str, str] = {
    "keep_input_format": "inputs always keep the layout of the source.",
    "optimize_prefer": "no pass trades size for speed.",
    "group_conv_native": "grouped convolutions are always kept in one piece.",
    "benchmark_model": "a model without weights could neither be run nor be proved.",
    "transformer_fuse_c4": "fused transformers are written in the plain layout, which every runtime computes.",
    "use_origin_rnn_impl": "LSTM and GRU have one form here, which the target runtime computes right.",
    "split_block_quant": "blockwise weights are always stored in one piece, which the target runtime reads.",
    "detect_sparse_speed_up": "weights are always stored dense.",
    "testconfig": "it configures MNN's own test run; --tolerance and --thredhold say how exact ours must be.",
    "auth_code": "written models carry no authentication.",
    "target_version": "files are written for one runtime, the one that --target names.",
    "for_training": "only inference models are written; training operators are folded away.",
    "custom_op_libs": "operator libraries are not loaded.",
}
"""Options that would change nothing, by field, and why: asking for one is an error instead of a silent no-op."""


@dataclass(frozen=True)
class Contradiction:
    """Two options that cannot be meant together: `test` is true when they are."""

    first: str
    second: str
    test: Callable[[ConversionOptions], bool]
    reason: str
    hint: str

    def problem(self) -> Diagnostic:
        return Diagnostic("contradictory-options", f"{self.first} and {self.second}: {self.reason}", hint=self.hint)


def _needs(first: str, name: str, second: str, other: str, reason: str) -> Contradiction:
    """`first` was given although `second`, without which it has no effect, was not."""
    return Contradiction(
        first,
        second,
        lambda o: o.given(name) and not o.given(other),
        reason,
        f"Add {second}, or leave {first} out.",
    )


def _codes(o: ConversionOptions) -> bool:
    """Whether anything asks for weights in few bits. What the recipe files say is not known here."""
    return bool(o.weight_quant_bits or o.quant_rule or o.recipe is not None or o.compression_params_file is not None)


def _needs_codes(flag: str, name: str, reason: str) -> Contradiction:
    return Contradiction(
        flag,
        "--weightQuantBits",
        lambda o: o.given(name) and not _codes(o),
        reason,
        f"Add --weightQuantBits or --recipe, or leave {flag} out.",
    )


def _unlike_halves(flag: str, test: Callable[[ConversionOptions], bool]) -> Contradiction:
    return Contradiction(
        "--fp16",
        flag,
        lambda o: o.fp16 and test(o),
        "each says how weights are stored.",
        "Keep one of them; --weightQuantScaleBit 16 stores the scales of quantized weights in half precision.",
    )


def _unused_without_verification(flag: str, name: str) -> Contradiction:
    return Contradiction(
        flag,
        "--verify never",
        lambda o: o.given(name) and o.verify == "never",
        "it says how the result is proved, but the proof is switched off.",
        f"Leave out one of {flag} and --verify never.",
    )


CONTRADICTIONS: tuple[Contradiction, ...] = (
    Contradiction("--html", "--plan", lambda o: o.html is not None and o.plan,
                  "a report is on a file, and a plan writes none.", "Leave out one of them."),
    _unlike_halves("--weightQuantBits", lambda o: o.weight_quant_bits > 0),
    _unlike_halves("--recipe", lambda o: o.recipe is not None),
    _unlike_halves("--quantRule", lambda o: bool(o.quant_rule)),
    _unlike_halves("--compressionParamsFile", lambda o: o.compression_params_file is not None),
    Contradiction(
        "--weightQuantBits",
        "--convertMatmulToConv=0",
        lambda o: _codes(o) and not o.convert_matmul_to_conv,
        "matrix products can only be stored in few bits as convolutions.",
        "Leave out one of them.",
    ),
    Contradiction(
        "--transformerFuse",
        "--optimizeLevel 0",
        lambda o: o.transformer_fuse and o.optimize_level == 0,
        "nothing is fused at level 0.",
        "Leave out one of them.",
    ),
    Contradiction(
        "--hqq",
        "--weightQuantAsymmetric=0",
        lambda o: (o.hqq or (o.quant_method or "").startswith("hqq")) and not o.weight_quant_asymmetric,
        "HQQ searches the offset that symmetric weights do not have.",
        "Leave out one of them.",
    ),
    Contradiction(
        "--hqq",
        "--quantMethod",
        lambda o: o.hqq and o.quant_method not in (None, "hqq"),
        "each names a method.",
        "Leave out one of them.",
    ),
    _needs_codes("--weightQuantBlock", "weight_quant_block",
                 "a block size says nothing about weights that are not quantized."),
    _needs_codes("--hqq", "hqq", "there are no scales to search when weights are not quantized."),
    _needs_codes("--quantMethod", "quant_method", "there are no codes to find when weights are not quantized."),
    _needs_codes("--data", "data", "there is nothing to calibrate when weights are not quantized."),
    _needs_codes("--quantEmbedding", "quant_embedding", "tables are stored in few bits beside quantized weights."),
    _needs_codes("--saveRecipe", "save_recipe", "there is no recipe when weights are not quantized."),
    _needs_codes("--weightQuantScaleBit", "weight_quant_scale_bit",
                 "there are no scales when weights are not quantized."),
    _needs_codes("--weightQuantAsymmetric=0", "weight_quant_asymmetric",
                 "there are no scales when weights are not quantized."),
    _needs("--quantScaling", "quant_scaling", "--data", "data", "the scales are searched on inputs of the model."),
    _needs("--thredhold", "thredhold", "--testdir", "testdir", "the bound is that of the recorded test."),
    Contradiction(
        "--prototxt",
        "--framework",
        lambda o: o.prototxt is not None and o.framework not in (None, "CAFFE"),
        "only Caffe models have a prototxt.",
        "Use -f CAFFE, or leave --prototxt out.",
    ),
    Contradiction(
        "--signature",
        "--framework",
        lambda o: o.signature is not None and o.framework not in (None, "TF"),
        "only SavedModels of TensorFlow have signatures to choose from.",
        "Use -f TF, or leave --signature out.",
    ),
    _unused_without_verification("--tolerance", "tolerance"),
    _unused_without_verification("--inputs", "inputs"),
    _unused_without_verification("--seed", "seed"),
)  # fmt: skip


def _ranges(options: ConversionOptions) -> Iterator[Diagnostic]:
    for option in OPTIONS:
        problem = option.range_problem(getattr(options, option.field))
        if problem is not None:
            yield problem
    if options.weight_quant_block and options.weight_quant_block < SMALLEST_BLOCK:
        yield Diagnostic(
            "out-of-range",
            f"--weightQuantBlock takes at least {SMALLEST_BLOCK} channels, or 0 for one scale per output channel, not "
            f"{options.weight_quant_block}.",
            hint="32, 64 and 128 are usual.",
        )


def _contradictions(options: ConversionOptions) -> Iterator[Diagnostic]:
    return (pair.problem() for pair in CONTRADICTIONS if pair.test(options))


def _refusals(options: ConversionOptions) -> Iterator[Diagnostic]:
    for name, reason in REFUSED.items():
        if options.given(name):
            flag = _BY_FIELD[name].flag
            yield Diagnostic(
                "option-without-effect", f"{flag} would have no effect: {reason}", hint=f"Leave {flag} out."
            )


def _by_keyword(word: str) -> Option:
    option = _BY_FIELD.get(word) or _BY_ALIAS.get(word)
    if option is None:
        hint = did_you_mean(word, [*_BY_FIELD, *_BY_ALIAS])
        raise UsageError.of("unknown-option", f"There is no option {word!r}.", hint=hint)
    return option


_BY_FIELD = {option.field: option for option in OPTIONS}
_BY_ALIAS = {option.alias: option for option in OPTIONS if option.alias}
