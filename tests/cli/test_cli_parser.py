"""Reading the command line: every spelling that is right, and a named problem for every one that is not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mnnconvert.cli.convert import SYNTAX
from mnnconvert.cli.parser import Syntax, parse, peek_flag, wants_help
from mnnconvert.errors import UsageError
from mnnconvert.option_types import Option


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("", {}),
        ("--modelFile a.onnx", {"model_file": "a.onnx"}),
        ("--modelFile=a.onnx --MNNModel=b=c.mnn", {"model_file": "a.onnx", "mnn_model": "b=c.mnn"}),
        ("--MNNModel b.mnn --modelFile a.onnx", {"model_file": "a.onnx", "mnn_model": "b.mnn"}),
        ("-f onnx", {"framework": "ONNX"}),
        ("-f=Tflite", {"framework": "TFLITE"}),
        ("--framework torch", {"framework": "TORCH"}),
        ("--fp16", {"fp16": True}),
        ("--fp16=1", {"fp16": True}),
        ("--fp16=FALSE", {"fp16": False}),
        ("--fp16 0", {"fp16": False}),
        ("--fp16 true --hqq", {"fp16": True, "hqq": True}),
        ("--hqq --modelFile 1", {"hqq": True, "model_file": "1"}),
        ("--keepInputFormat=0 -q", {"keep_input_format": False, "quiet": True}),
        ("--weightQuantBits 4 --weightQuantBlock -1", {"weight_quant_bits": 4, "weight_quant_block": -1}),
        ("--tolerance 1e-4", {"tolerance": 1e-4}),
        ("--bizCode=-x", {"biz_code": "-x"}),
        ("--input-shape x:1x3 --input-shape scope/y:0:2X4", {"input_shape": {"x": (1, 3), "scope/y:0": (2, 4)}}),
        ("--input-shape x:1,3,8", {"input_shape": {"x": (1, 3, 8)}}),
        ("--disablePass a --disablePass b", {"disable_pass": ("a", "b")}),
    ],
)
def test_reads_every_spelling(line: str, values: dict[str, object]) -> None:
    assert parse(line.split(), SYNTAX).values == values


@pytest.mark.parametrize(
    ("words", "reference", "mentions"),
    [
        (["--weigthQuantBits", "4"], "unknown-option", "--weightQuantBits"),
        (["--weightquantbits", "4"], "unknown-option", "--weightQuantBits"),
        (["-modelFile", "x"], "unknown-option", "--modelFile"),
        (["--zzzzzz"], "unknown-option", "--help"),
        (["--modelFile"], "missing-value", "--modelFile"),
        (["--modelFile="], "missing-value", "--modelFile"),
        (["--modelFile", "--MNNModel", "b"], "missing-value", "--modelFile"),
        (["--bizCode", "-x"], "missing-value", "--bizCode=VALUE"),
        (["--fp16", "--fp16"], "repeated-option", "--fp16"),
        (["--batch", "1", "--batch=2"], "repeated-option", "--batch"),
        (["--input-shape", "x:1", "--input-shape", "x:2"], "repeated-option", "'x'"),
        (["--batch", "two"], "bad-option-value", "whole number"),
        (["--batch", "1.5"], "bad-option-value", "whole number"),
        (["--batch", "0"], "out-of-range", "at least 1"),
        (["--tolerance", "nan"], "out-of-range", "--tolerance"),
        (["--fp16=yes"], "bad-option-value", "true or false"),
        (["--verify", "alway"], "bad-option-value", "always"),
        (["-f", "onxx"], "bad-option-value", "ONNX"),
        (["--weightQuantBits", "9"], "out-of-range", "2 to 8"),
        (["--input-shape", "1x3"], "bad-option-value", "input:1x3x224x224"),
        (["--input-shape", "x:"], "bad-option-value", "NAME:SIZE"),
        (["--input-shape", "x:-1x3"], "bad-option-value", "NAME:SIZE"),
        (["a.mnn", "b.mnn"], "unexpected-word", "b.mnn"),
    ],
)
def test_names_what_is_wrong(words: list[str], reference: str, mentions: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(words, SYNTAX)
    assert [d.reference for d in caught.value.diagnostics] == [reference]
    assert mentions in str(caught.value)


def test_reports_all_problems_at_once() -> None:
    with pytest.raises(UsageError) as caught:
        parse(["--nothing", "x", "--batch", "x", "--optimizeLevel", "7"], SYNTAX)
    references = [d.reference for d in caught.value.diagnostics]
    assert references == ["unknown-option", "bad-option-value", "out-of-range"]


def test_required_words_are_named() -> None:
    syntax = Syntax("verify SRC MNN", "", (), words=("SRC", "MNN"), required=2)
    with pytest.raises(UsageError, match="MNN is missing"):
        parse(["a"], syntax)
    assert parse(["a", "b"], syntax).words == ["a", "b"]


def test_values_fall_back_to_defaults() -> None:
    option = Option("--seed", "seed", "int", "", default=7)
    assert parse([], Syntax("", "", (option,))).number("seed") == 7
    assert parse(["--seed", "3"], Syntax("", "", (option,))).number("seed") == 3


@pytest.mark.parametrize(
    ("line", "on"),
    [("--json", True), ("a --json=1", True), ("--json 0", False), ("--json=false", False), ("--jsonx", False)],
)
def test_flags_are_seen_before_the_line_is_read(line: str, on: bool) -> None:
    assert peek_flag(line.split(), "--json") is on


def test_help_is_seen_anywhere() -> None:
    assert wants_help(["--modelFile", "x", "-h"])
    assert not wants_help(["--modelFile", "x"])


WORDS = st.sampled_from([name for option in SYNTAX.options for name in option.names]) | st.text(max_size=8)


@given(st.lists(WORDS | st.builds("{}={}".format, WORDS, st.text(max_size=4)), max_size=8))
def test_any_line_is_read_or_refused(words: list[str]) -> None:
    try:
        arguments = parse(words, SYNTAX)
    except UsageError as error:
        assert error.diagnostics
    else:
        assert set(arguments.values) <= {option.field for option in SYNTAX.options}
