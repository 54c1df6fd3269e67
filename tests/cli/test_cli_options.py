"""Conversion options: one table for command line and Python, and no impossible mix gets through."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from mnnconvert.errors import UsageError
from mnnconvert.options import CONTRADICTIONS, GROUPS, OPTIONS, REFUSED, ConversionOptions

INTERFACE_FLAGS = {
    "--framework",
    "--modelFile",
    "--MNNModel",
    "--prototxt",
    "--JsonFile",
    "--signature",
    "--batch",
    "--inputConfigFile",
    "--saveStaticModel",
    "--input-shape",
    "--input-type",
    "--input-value",
    "--keepInputFormat",
    "--optimizeLevel",
    "--optimizePrefer",
    "--fp16",
    "--weightQuantBits",
    "--weightQuantBlock",
    "--weightQuantAsymmetric",
    "--hqq",
    "--weightQuantScaleBit",
    "--compressionParamsFile",
    "--quantMethod",
    "--data",
    "--quantScaling",
    "--quantEmbedding",
    "--recipe",
    "--quantRule",
    "--saveRecipe",
    "--transformerFuse",
    "--useGeluApproximation",
    "--convertMatmulToConv",
    "--groupConvNative",
    "--useOriginRNNImpl",
    "--splitBlockQuant",
    "--detectSparseSpeedUp",
    "--transformerFuseC4",
    "--saveExternalData",
    "--testdir",
    "--testconfig",
    "--thredhold",
    "--benchmarkModel",
    "--bizCode",
    "--authCode",
    "--targetVersion",
    "--forTraining",
    "--allowCustomOp",
    "--customOpLibs",
    "--alignDenormalizedValue",
    "--dumpPass",
    "--debug",
    "--verify",
    "--tolerance",
    "--inputs",
    "--seed",
    "--html",
    "--plan",
    "--target",
    "--json",
    "--no-color",
    "--force",
    "--disablePass",
    "--quiet",
}


def test_table_and_fields_are_the_same_set() -> None:
    assert sorted(option.field for option in OPTIONS) == sorted(f.name for f in fields(ConversionOptions))
    assert {option.flag for option in OPTIONS} == INTERFACE_FLAGS
    assert {option.group for option in OPTIONS} == set(GROUPS)
    assert set(REFUSED) <= {option.field for option in OPTIONS}


def test_defaults_are_those_of_the_fields() -> None:
    options = ConversionOptions()
    assert all(getattr(options, option.field) == option.default for option in OPTIONS)


def test_keywords_take_names_aliases_and_paths() -> None:
    options = ConversionOptions.from_keywords(
        model_file=Path("a.onnx"), weight_bits=4, weight_block=64, framework="onnx", input_shape={"x": (1, 3)}
    )
    assert (options.model_file, options.framework) == ("a.onnx", "ONNX")
    assert (options.weight_quant_bits, options.weight_quant_block) == (4, 64)
    assert options.input_shape == {"x": (1, 3)}


def test_none_means_the_default() -> None:
    assert ConversionOptions.from_keywords(batch=None, seed=None, framework=None) == ConversionOptions()


def test_block_minus_one_is_per_channel() -> None:
    assert ConversionOptions.from_keywords(weight_bits=4, weight_block=-1).weight_quant_block == 0


@pytest.mark.parametrize(
    ("keywords", "reference", "mentions"),
    [
        ({"weight_bitz": 4}, "unknown-option", "weight_bits"),
        ({"weight_bits": 4, "weight_quant_bits": 8}, "repeated-option", "weight_quant_bits"),
        ({"weight_bits": "many"}, "bad-option-value", "--weightQuantBits"),
        ({"weight_bits": True}, "bad-option-value", "--weightQuantBits"),
        ({"model_file": 3}, "bad-option-value", "--modelFile"),
        ({"model_file": "a\0b"}, "bad-option-value", "--modelFile"),
        ({"fp16": "maybe"}, "bad-option-value", "--fp16"),
        ({"input_shape": {"x": (1, "n")}}, "bad-option-value", "--input-shape"),
        ({"weight_bits": 1}, "out-of-range", "2 to 8"),
        ({"weight_bits": 4, "weight_block": 7}, "out-of-range", "at least 8"),
        ({"weight_bits": 4, "weight_block": -16}, "out-of-range", "at least 8"),
        ({"weight_bits": 4, "weight_scale_bit": 8}, "out-of-range", "16, 32"),
        ({"optimize_level": 3}, "out-of-range", "0 to 2"),
        ({"tolerance": -1.0}, "out-of-range", "--tolerance"),
        ({"tolerance": float("nan")}, "out-of-range", "--tolerance"),
    ],
)
def test_bad_keywords_are_named(keywords: dict[str, object], reference: str, mentions: str) -> None:
    with pytest.raises(UsageError) as caught:
        ConversionOptions.from_keywords(**keywords)
    assert [d.reference for d in caught.value.diagnostics] == [reference]
    assert mentions in str(caught.value)


CONFLICTS: list[tuple[dict[str, object], str, str]] = [
    ({"html": "m.html", "plan": True}, "--html", "--plan"),
    ({"fp16": True, "weight_bits": 4}, "--fp16", "--weightQuantBits"),
    ({"transformer_fuse": True, "optimize_level": 0}, "--transformerFuse", "--optimizeLevel 0"),
    ({"fp16": True, "recipe": "r.toml"}, "--fp16", "--recipe"),
    ({"fp16": True, "quant_rule": "op=Gather,bits=8"}, "--fp16", "--quantRule"),
    ({"fp16": True, "compression_params_file": "p.json"}, "--fp16", "--compressionParamsFile"),
    ({"weight_bits": 4, "hqq": True, "quant_method": "rtn"}, "--hqq", "--quantMethod"),
    ({"quant_method": "rtn"}, "--quantMethod", "--weightQuantBits"),
    ({"weight_bits": 4, "quant_scaling": "awq"}, "--quantScaling", "--data"),
    ({"data": "d"}, "--data", "--weightQuantBits"),
    ({"quant_embedding": 8}, "--quantEmbedding", "--weightQuantBits"),
    ({"save_recipe": "r.toml"}, "--saveRecipe", "--weightQuantBits"),
    ({"weight_bits": 4, "convert_matmul_to_conv": False}, "--weightQuantBits", "--convertMatmulToConv=0"),
    ({"weight_bits": 4, "hqq": True, "weight_asymmetric": False}, "--hqq", "--weightQuantAsymmetric"),
    ({"weight_block": 32}, "--weightQuantBlock", "--weightQuantBits"),
    ({"hqq": True}, "--hqq", "--weightQuantBits"),
    ({"weight_scale_bit": 16}, "--weightQuantScaleBit", "--weightQuantBits"),
    ({"weight_asymmetric": False}, "--weightQuantAsymmetric=0", "--weightQuantBits"),
    ({"thredhold": 0.1}, "--thredhold", "--testdir"),
    ({"prototxt": "a", "framework": "ONNX"}, "--prototxt", "--framework"),
    ({"signature": "a", "framework": "ONNX"}, "--signature", "--framework"),
    ({"verify": "never", "tolerance": 0.1}, "--tolerance", "--verify never"),
    ({"verify": "never", "inputs": "x.npz"}, "--inputs", "--verify never"),
    ({"verify": "never", "seed": 1}, "--seed", "--verify never"),
]


@pytest.mark.parametrize(("keywords", "first", "second"), CONFLICTS)
def test_contradictions_name_both_options(keywords: dict[str, object], first: str, second: str) -> None:
    with pytest.raises(UsageError) as caught:
        ConversionOptions.from_keywords(**keywords)
    (problem,) = caught.value.diagnostics
    assert problem.reference == "contradictory-options"
    assert first in problem.message
    assert second in problem.message
    assert problem.hint


def test_every_contradiction_is_tried_above() -> None:
    assert sorted((c.first, c.second) for c in CONTRADICTIONS) == sorted(
        (first, second.replace("Asymmetric", "Asymmetric=0") if first == "--hqq" else second)
        for _, first, second in CONFLICTS
    )


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_options_without_effect_are_refused_with_the_reason(name: str) -> None:
    option = next(option for option in OPTIONS if option.field == name)
    asked = {"flag": not option.default, "int": 1}.get(option.kind, "value")
    with pytest.raises(UsageError) as caught:
        ConversionOptions.from_keywords(**{name: asked})
    (problem,) = caught.value.diagnostics
    assert problem.reference == "option-without-effect"
    assert REFUSED[name] in problem.message


def test_asking_for_what_is_the_case_is_not_refused() -> None:
    assert ConversionOptions.from_keywords(for_training=False, use_gelu_approximation=False) == ConversionOptions()
