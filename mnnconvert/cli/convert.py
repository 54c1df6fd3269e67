"""`mnnconvert -f FRAMEWORK --modelFile IN --MNNModel OUT`: conversion, and the forms that only look (--info, --OP)."""

from __future__ import annotations

from dataclasses import replace

from mnnconvert.cli.output import Output
from mnnconvert.cli.parser import Arguments, Syntax
from mnnconvert.errors import UsageError
from mnnconvert.option_types import Option
from mnnconvert.options import FILES, GROUPS, OPTIONS, REFUSED, TALK, ConversionOptions

ACTIONS = (
    Option("--info", "info", "flag", "describe an MNN model (mnnconvert --info m.mnn)", FILES, False),
    Option("--OP", "op", "flag", "list the source operators that are supported", FILES, False),
    Option("--version", "version", "flag", "show the version", TALK, False, short="-v"),
)

REFUSED_GROUP = "Known from MNN, refused here because they would have no effect"


def _shown() -> tuple[Option, ...]:
    """All options by group; those that are refused come last, with the reason in place of their purpose."""
    working = [option for option in (*OPTIONS, *ACTIONS) if option.field not in REFUSED]
    refused = [replace(o, group=REFUSED_GROUP, help=REFUSED[o.field]) for o in OPTIONS if o.field in REFUSED]
    return (*(option for group in GROUPS for option in working if option.group == group), *refused)


SYNTAX = Syntax(
    usage="mnnconvert [-f FRAMEWORK] --modelFile IN --MNNModel OUT [options]",
    summary="Convert a model to MNN, quantize its weights, and prove that the answers are still the same.",
    options=_shown(),
    words=("FILE",),
    examples=(
        "mnnconvert --modelFile m.onnx --MNNModel m.mnn",
        "mnnconvert --modelFile m.onnx --MNNModel m.mnn --weightQuantBits 4 --weightQuantBlock 64",
        "mnnconvert --modelFile m.onnx --MNNModel m.mnn --input-shape image:1x3x224x224",
        "mnnconvert --modelFile m.onnx --weightQuantBits 8 --plan",
        "mnnconvert --info m.mnn",
    ),
)


def run(arguments: Arguments, out: Output) -> int:
    """Do what the flat form asks: version, operator list, description, JSON form, plan or conversion."""
    if arguments["version"]:
        return _version(out)
    _reject_stray_file(arguments)
    keywords = {name: value for name, value in arguments.values.items() if name not in {a.field for a in ACTIONS}}
    options = ConversionOptions.from_keywords(**keywords)
    if arguments["op"]:
        return _operators(options, out)
    if arguments["info"]:
        return _info(options, arguments.word(0), out)
    if options.json_file is not None:
        return _to_json(options, out)
    if options.framework == "JSON" or (options.framework is None and _suffix(options.model_file) == ".json"):
        return _from_json(options, out)
    return _convert(options, out)


def _reject_stray_file(arguments: Arguments) -> None:
    """A file that no option claims; only --info takes one so."""
    word = arguments.word(0)
    if word is not None and (not arguments["info"] or arguments["model_file"] is not None):
        raise UsageError.of("unexpected-word", f"{word!r} belongs to no option.", hint=f"Usage: {SYNTAX.usage}")


def _version(out: Output) -> int:
    from mnnconvert.cli.report import installed_version

    version = installed_version("mnnconvert") or "(running from its sources)"
    out.data({"version": version})
    out.result(f"mnnconvert {version}")
    return 0


def _operators(options: ConversionOptions, out: Output) -> int:
    from mnnconvert.cli.ops import print_operators

    return print_operators(options.framework or "ONNX", out)


def _info(options: ConversionOptions, word: str | None, out: Output) -> int:
    if options.framework not in (None, "MNN"):
        _contradict("--info", f"-f {options.framework}", "only MNN models can be described.")
    path = options.model_file or word or _missing("--modelFile", "the model to describe", "mnnconvert --info m.mnn")
    from mnnconvert import api
    from mnnconvert.cli.summary import print_info

    info = api.info(path)
    out.data(info.to_dict())
    print_info(info.to_dict(), path, out, everything=options.debug)
    return 0


def _to_json(options: ConversionOptions, out: Output) -> int:
    if options.framework not in (None, "MNN"):
        _contradict("--JsonFile", f"-f {options.framework}", "it writes the JSON form of an MNN model.")
    if options.mnn_model is not None:
        _contradict("--JsonFile", "--MNNModel", "each names the file to write; do one after the other.")
    example = "mnnconvert -f MNN --modelFile m.mnn --JsonFile m.json"
    source = options.model_file or _missing("--modelFile", "the MNN model to read", example)
    target = options.json_file or _missing("--JsonFile", "the file to write", example)
    from mnnconvert import api

    api.to_json(source, target)
    return _written(source, target, out)


def _from_json(options: ConversionOptions, out: Output) -> int:
    example = "mnnconvert -f JSON --modelFile m.json --MNNModel m.mnn"
    source = options.model_file or _missing("--modelFile", "the JSON form to read", example)
    target = options.mnn_model or _missing("--MNNModel", "the file to write", example)
    from mnnconvert import api

    api.from_json(source, target)
    return _written(source, target, out)


def _convert(options: ConversionOptions, out: Output) -> int:
    if options.model_file is None:
        _missing("--modelFile", "the model to convert", "mnnconvert --modelFile m.onnx --MNNModel m.mnn")
    if options.mnn_model is None and not options.plan:
        _missing("--MNNModel", "the file to write", f"mnnconvert --modelFile {options.model_file} --MNNModel m.mnn")
    from mnnconvert import api
    from mnnconvert.cli.summary import print_conversion

    report = api.convert_with(options, out.progress)
    verification = report.verification.lines() if report.verification is not None else []
    document = report.to_dict()
    out.data({"ok": True, "exit_code": 0, **document})
    print_conversion(document, list(verification), options, out)
    return 0


def _written(source: str, target: str, out: Output) -> int:
    out.data({"ok": True, "exit_code": 0, "source": source, "target": target})
    out.detail(f"{source} -> {target}")
    return 0


def _suffix(path: str | None) -> str:
    from os.path import splitext

    return splitext(path or "")[1].lower()


def _missing(flag: str, what: str, example: str) -> str:
    raise UsageError.of(
        "missing-option", f"{flag} is missing: {what}.", hint=f"For example: {example} (--help lists all options)."
    )


def _contradict(first: str, second: str, reason: str) -> None:
    raise UsageError.of("contradictory-options", f"{first} and {second}: {reason}", hint="Leave out one of them.")
