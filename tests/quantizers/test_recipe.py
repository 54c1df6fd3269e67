"""Recipes: rules per layer, TOML files and the command line; excluded layers, and rules that fit nothing."""

import json
import re
import tomllib
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx_cases import model

import mnnconvert
from mnnconvert.cli.main import main
from mnnconvert.errors import UsageError
from mnnconvert.ir import CodedTensor
from mnnconvert.quantizers import hqq
from mnnconvert.quantizers.methods import METHODS as CODERS
from mnnconvert.quantizers.recipe import METHODS, Recipe, Rule, Setting
from mnnconvert.quantizers.recipe_file import RULE, read_recipe, recipe_from, rule_from, write_recipe
from mnnconvert.schema.reader import read_model

RNG = np.random.default_rng(5)
NETWORK = """(float[2,64] x, float[1,16,6,6] z) => (float[2,40] y, float[1,8,6,6] c) {
    a = MatMul(x, w1)
    b = Relu(a)
    y = MatMul(b, w2)
    c = Conv <kernel_shape=[3,3], pads=[1,1,1,1]> (z, w3)
}"""


def noise(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    arrays = {"x": noise(2, 64), "z": noise(1, 16, 6, 6), "w1": noise(64, 48), "w2": noise(48, 40),
              "w3": noise(8, 16, 3, 3)}  # fmt: skip
    path = tmp_path_factory.mktemp("recipe") / "m.onnx"
    onnx.save(model(NETWORK, arrays)[0], path)
    return path


def convert(source, target, **options):
    return mnnconvert.convert(source, target, verify="never", **options)


def bits(report):
    """First letter of the name of each layer -> its bits, 0 for float."""
    return {x.name[0]: x.setting.bits if x.changed else 0 for x in report.layers}


def weights(path):
    """First letter of the name of each layer -> its stored weight."""
    return {n.name[0]: n.inputs[1].tensor for n in read_model(path).nodes if n.op.kind == "Convolution"}


@pytest.mark.parametrize(
    ("rules", "want"),
    [
        (["name=c,skip"], {"b": 8, "y": 8, "c": 0}),
        (["name=a,bits=4"], {"b": 4, "y": 8, "c": 8}),
        (["name=a__matmul_converted,bits=4"], {"b": 4, "y": 8, "c": 8}),
        (["name=w2,bits=4"], {"b": 8, "y": 4, "c": 8}),
        (["name=[ay],bits=3"], {"b": 3, "y": 3, "c": 8}),
        (["regex=^y,bits=2,block=16"], {"b": 8, "y": 2, "c": 8}),
        (["op=MatMul,bits=4"], {"b": 4, "y": 4, "c": 8}),
        (["op=convolution,bits=4", "op=MatMul,skip"], {"b": 0, "y": 0, "c": 4}),
        (["op=MatMul,skip", "op=Convolution,bits=4"], {"b": 4, "y": 4, "c": 4}),
        (["min_bytes=12288,bits=4"], {"b": 4, "y": 8, "c": 8}),
        (["max_bytes=4608,bits=4"], {"b": 8, "y": 8, "c": 4}),
        (["name=*,bits=4", "name=y,skip=false,bits=6"], {"b": 4, "y": 6, "c": 4}),
    ],
)
def test_rules_decide_by_name_operator_and_size_and_the_last_one_counts(rules, want, source, tmp_path):
    report = convert(source, tmp_path / "m.mnn", weight_bits=8, quant_rule=rules)
    assert bits(report) == want
    stored = weights(tmp_path / "m.mnn")
    assert {k: t.coded.bits if isinstance(t, CodedTensor) else 0 for k, t in stored.items()} == want


def test_rules_alone_code_what_they_name(source, tmp_path):
    report = convert(source, tmp_path / "m.mnn", quant_rule=["name=y,bits=4,symmetric,block=24,method=rtn,half_scales"])
    assert bits(report) == {"b": 0, "y": 4, "c": 0}
    coded = weights(tmp_path / "m.mnn")["y"].coded
    assert (coded.bits, coded.block, coded.minimum, coded.half_scales) == (4, 24, None, True)


def test_excluded_layers_have_the_bytes_of_the_float_conversion(source, tmp_path):
    convert(source, tmp_path / "float.mnn")
    report = convert(
        source, tmp_path / "m.mnn", weight_bits=4, weight_block=16, quant_rule=["op=MatMul,skip"], save_recipe=None
    )
    plain, stored = weights(tmp_path / "float.mnn"), weights(tmp_path / "m.mnn")
    for name in ("b", "y"):
        assert stored[name].dtype == np.float32 and not isinstance(stored[name], CodedTensor)
        assert stored[name].numpy().tobytes() == plain[name].numpy().tobytes()
    assert isinstance(stored["c"], CodedTensor)
    assert [x.reason for x in report.layers] == ["the rule 'op=MatMul' leaves it"] * 2 + [""]


def test_an_excluded_layer_is_not_cut_so_that_blocks_fit(tmp_path):
    text = "(float[2,67] x) => (float[2,8] y) { y = MatMul(x, w) }"
    onnx.save(model(text, {"x": noise(2, 67), "w": noise(67, 8)})[0], tmp_path / "m.onnx")
    for rules, count in (([], 2), (["name=y,skip"], 1), (["name=y,bits=8,block=0"], 1)):
        convert(tmp_path / "m.onnx", tmp_path / "m.mnn", weight_bits=4, weight_block=64, quant_rule=rules)
        assert len([n for n in read_model(tmp_path / "m.mnn").nodes if n.op.kind == "Convolution"]) == count


def test_a_layer_that_is_cut_in_two_is_one_layer_for_rules(tmp_path):
    text = "(float[2,67] x) => (float[2,8] y) { y = MatMul(x, w) }"
    onnx.save(model(text, {"x": noise(2, 67), "w": noise(67, 8)})[0], tmp_path / "m.onnx")
    rules = ["name=y__matmul_converted,bits=6,block=64"]
    report = convert(tmp_path / "m.onnx", tmp_path / "m.mnn", weight_bits=4, weight_block=64, quant_rule=rules)
    assert [x.setting.bits for x in report.layers] == [6, 6]


def test_layers_that_share_a_weight_may_be_stored_differently(tmp_path):
    text = "(float[2,64] x) => (float[2,64] y) { a = MatMul(x, w) b = Relu(a) y = MatMul(b, w) }"
    onnx.save(model(text, {"x": noise(2, 64), "w": noise(64, 64)})[0], tmp_path / "m.onnx")
    convert(tmp_path / "m.onnx", tmp_path / "float.mnn")
    convert(tmp_path / "m.onnx", tmp_path / "m.mnn", weight_bits=8, quant_rule=["name=y,skip"])
    stored = weights(tmp_path / "m.mnn")
    assert isinstance(stored["b"], CodedTensor)
    assert stored["y"].numpy().tobytes() == weights(tmp_path / "float.mnn")["y"].numpy().tobytes()


@pytest.mark.parametrize("rule", ["name=nothing*,skip", "op=LSTM,bits=4", "min_bytes=999999,bits=4", "regex=^q,bits=4"])
def test_a_rule_that_fits_nothing_is_an_error(rule, source, tmp_path, capsys):
    words = ["--modelFile", str(source), "--MNNModel", str(tmp_path / "m.mnn"), "--verify", "never"]
    assert main([*words, "--weightQuantBits", "8", "--quantRule", rule, "--quantRule", "name=y,bits=4"]) == 2
    said = capsys.readouterr().err
    assert "unmatched-rule" in said and rule.split(",")[0] in said
    assert not (tmp_path / "m.mnn").exists()


@pytest.mark.parametrize(
    ("rule", "mentions"),
    [
        ("nmae=y,skip", "nmae"),
        ("name=y,bits=nine", "bits"),
        ("name=y,bits=9", "2 to 8"),
        ("name=y,bits=-1", "bits"),
        ("name=y,block=many", "block"),
        ("name=y,method=best", "rtn, hqq"),
        ("name=y,symmetric=perhaps", "symmetric"),
        ("name=y,bits=4,skip", "skips"),
        ("regex=(,bits=4", "regular expression"),
        ("name=y,symmetric,method=hqq", "offset"),
        ("", "there is no ''"),
    ],
)
def test_bad_rules_are_named(rule, mentions):
    with pytest.raises(UsageError, match="bad-recipe") as caught:
        rule_from(rule)
    assert mentions in str(caught.value)


@pytest.mark.parametrize(
    ("text", "mentions"),
    [
        ("bits = 4", "there is no 'bits'"),
        ("[default]\nbit = 4", "there is no 'bit'"),
        ("[default]\nbits = 4.5", "whole number"),
        ("[default]\nbits = true", "whole number"),
        ("[default]\nbits = 1", "2 to 8"),
        ("[default]\nmethod = 'magic'", "rtn"),
        ("[rule]\nbits = 4", "[[rule]]"),
        ("rule = [3]", "rule 1 is no table"),
        ("[[rule]]\nbits = 4\n[[rule]]\nbits = 'x'", "rule 2"),
        ("embedding = 5", "8 or 4"),
        ("default = 3", "no table"),
        ("[default\nbits", "no TOML"),
        ("\x00", "no TOML"),
    ],
)
def test_bad_recipe_files_are_named(text, mentions, tmp_path):
    (tmp_path / "r.toml").write_text(text)
    with pytest.raises(UsageError, match="bad-recipe") as caught:
        read_recipe(tmp_path / "r.toml", Setting())
    assert mentions in str(caught.value) and "r.toml" in str(caught.value)


PIECES = ("[default]", "[[rule]]", "bits = 4", "block = -3", "name = 'a'", "skip = true", "regex = '('", "block = 8",
          "x.y = 1", "bits = [", "rule = {}", "method = 'hqq'", "symmetric = true")  # fmt: skip


@given(lines=st.lists(st.sampled_from(PIECES) | st.text(max_size=8), max_size=6))
def test_no_recipe_file_makes_it_crash(lines, tmp_path_factory):
    path = tmp_path_factory.mktemp("r") / "r.toml"
    path.write_text("\n".join(lines), encoding="utf-8", errors="surrogatepass")
    try:
        assert isinstance(read_recipe(path, Setting()), Recipe)
    except UsageError as error:
        assert {d.reference for d in error.diagnostics} == {"bad-recipe"}


def test_a_recipe_file_that_is_missing_or_idle_is_named(source, tmp_path, capsys):
    words = ["--modelFile", str(source), "--MNNModel", str(tmp_path / "m.mnn"), "--recipe", str(tmp_path / "r.toml")]
    assert main(words) == 1 and "missing-file" in capsys.readouterr().err
    (tmp_path / "r.toml").write_text("[default]\nblock = 32\n")
    assert main(words) == 2 and "option-without-effect" in capsys.readouterr().err


def test_the_command_line_comes_before_the_default_and_after_the_rules_of_a_file(source, tmp_path):
    (tmp_path / "r.toml").write_text(
        "[default]\nbits = 4\nblock = 16\nmethod = 'hqq'\n"
        "[[rule]]\nname = 'c'\nbits = 6\n[[rule]]\nname = 'y'\nskip = true\n"
    )
    options = {"recipe": tmp_path / "r.toml", "weight_bits": 3, "quant_rule": ["name=y,bits=5"]}
    report = convert(source, tmp_path / "m.mnn", **options)
    assert bits(report) == {"b": 3, "y": 5, "c": 6}
    assert {(x.method, x.setting.block) for x in report.layers} == {("hqq", 16)}


def test_a_saved_recipe_gives_the_same_file(source, tmp_path):
    options = {"weight_bits": 4, "weight_block": 32, "quant_rule": ["name=c,bits=8,block=0", "name=y,skip"]}
    convert(source, tmp_path / "a.mnn", save_recipe=tmp_path / "r.toml", **options)
    convert(source, tmp_path / "b.mnn", recipe=tmp_path / "r.toml")
    assert (tmp_path / "a.mnn").read_bytes() == (tmp_path / "b.mnn").read_bytes()
    text = (tmp_path / "r.toml").read_text()
    assert "'c/packed': Convolution, 8 bit" in text and "float32, the rule 'name=y' leaves it" in text


texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
sizes = st.integers(0, 10**9)
optional = {"bits": st.integers(2, 8), "block": st.integers(0, 512), "half_scales": st.booleans(),
            "method": st.sampled_from(METHODS)}  # fmt: skip
rules = st.builds(Rule, name=texts, op=st.just("") | texts, min_bytes=sizes, max_bytes=st.none() | sizes,
                  skip=st.just(False), changes=st.fixed_dictionaries({}, optional=optional))  # fmt: skip
skips = st.builds(Rule, name=texts, skip=st.just(True))


@given(
    bits=st.sampled_from([0, 2, 4, 8]),
    rules=st.lists(rules | skips, max_size=3),
    embedding=st.sampled_from([None, 0, 4, 8]),
)
def test_recipes_read_back_as_they_were_written(bits, rules, embedding, tmp_path_factory):
    recipe = Recipe(Setting(bits, method="lsq"), tuple(rules), embedding=embedding)
    path = tmp_path_factory.mktemp("r") / "r.toml"
    path.write_text(write_recipe(recipe, ["a layer"]), encoding="utf-8")
    assert read_recipe(path, Setting()) == recipe


def test_the_recipe_of_the_page_is_one():
    page = (Path(__file__).parents[2] / "docs/quantization.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    recipe = recipe_from(tomllib.loads(text), Setting(), "the page")
    assert len(recipe.rules) == 3 and recipe.embedding == 8
    assert all(key in page for key in (*RULE, "embedding"))


def test_the_report_says_everything_as_json(source, tmp_path, capsys):
    words = ["--modelFile", str(source), "--MNNModel", str(tmp_path / "m.mnn"), "--json", "--weightQuantBits", "4"]
    assert main([*words, "--quantRule", "name=y,skip", "--quantRule", "name=c,bits=8,symmetric,method=rtn"]) == 0
    document = json.loads(capsys.readouterr().out)
    layers = {x["name"][0]: x for x in document["layers"]}
    assert {k: (x["bits"], x["symmetric"], x["method"]) for k, x in layers.items()} == {
        "b": (4, False, "lsq"), "y": (None, None, ""), "c": (8, True, "rtn")}  # fmt: skip
    assert layers["b"]["error"] > layers["c"]["error"] > 0 and layers["y"]["reason"]
    assert document["weights"]["bytes_before"] == sum(x["bytes_before"] for x in layers.values())
    assert document["weights"]["bytes_after"] == sum(x["bytes_after"] for x in layers.values())
    overhead = document["target_bytes"] - document["weights"]["bytes_after"]
    assert 0 < overhead < 6000  # codebooks, tables and names: the sizes of the report are those of the file


def test_the_plan_predicts_sizes_and_errors_before_any_work(source, tmp_path, capsys):
    words = ["--modelFile", str(source), "--weightQuantBits", "4", "--weightQuantBlock", "16", "--json"]
    assert main([*words, "--plan"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert main([*words, "--MNNModel", str(tmp_path / "m.mnn")]) == 0
    done = json.loads(capsys.readouterr().out)
    assert planned["weights"] == done["weights"]
    for before, after in zip(planned["layers"], done["layers"], strict=True):
        assert before["error"] is None and before["predicted"] == pytest.approx(after["error"], rel=0.1)


@pytest.mark.parametrize(("method", "worst"), [("rtn", 1.0), ("hqq", 1.0), ("lsq", 1.0)])
def test_methods_are_chosen_by_name_and_the_default_is_never_worse(method, worst, source, tmp_path):
    default = convert(source, tmp_path / "d.mnn", weight_bits=3, weight_block=16)
    named = convert(source, tmp_path / "n.mnn", weight_bits=3, weight_block=16, quant_method=method)
    assert {x.method for x in named.layers} == {method}
    for ours, theirs in zip(default.layers, named.layers, strict=True):
        assert ours.error <= worst * theirs.error * (1 + 1e-6)


def test_hqq_has_two_spellings(source, tmp_path):
    convert(source, tmp_path / "a.mnn", weight_bits=4, hqq=True)
    convert(source, tmp_path / "b.mnn", weight_bits=4, quant_method="hqq")
    assert (tmp_path / "a.mnn").read_bytes() == (tmp_path / "b.mnn").read_bytes()


def test_files_that_cannot_be_written_are_found_out_before_any_work(source, tmp_path, capsys):
    target = tmp_path / "m.mnn"
    words = ["--modelFile", str(source), "--MNNModel", str(target), "--weightQuantBits", "4", "--verify", "never"]
    for flag in ("--saveRecipe", "--compressionParamsFile"):
        assert main([*words, flag, str(tmp_path / "no" / "r")]) == 1
        assert "unwritable-output" in capsys.readouterr().err
        assert main([*words, flag, str(target)]) == 2
    assert main([*words, "--saveRecipe", str(source)]) == 2
    assert not target.exists()


def test_the_published_hqq_is_a_method():
    rows = np.random.default_rng(3).standard_normal((30, 1, 96)).astype(np.float32) / 20
    setting = Setting(3, 48, method="hqq-reference")
    found, published, converter = (
        np.concatenate([code(row).minimum for row in rows])
        for code in (
            lambda w: CODERS["hqq-reference"](w, setting, None),
            lambda w: hqq.quantize(w, 3, 48, variant="reference"),
            lambda w: hqq.quantize(w, 3, 48),
        )
    )
    np.testing.assert_array_equal(found, published)
    assert (published != converter).any()
