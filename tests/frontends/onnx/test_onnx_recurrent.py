"""LSTM, GRU and RNN: directions, layouts, activations, start states, clipping, peepholes, lengths, missing outputs."""

from __future__ import annotations

import numpy as np
import onnx_cases
import pytest

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
STEPS, BATCH, INPUTS, HIDDEN = 5, 2, 3, 4


def case(
    kind,
    attributes="",
    directions=1,
    operands=("x", "w", "r", "b"),
    outputs="yh",
    batch_first=False,
    open_sizes=False,
    steps=STEPS,
):
    """Text and arrays of a model with one layer; `operands` and `outputs` are those that are given and asked for."""
    rng = np.random.default_rng(7)
    gates = GATES[kind] * HIDDEN

    def noise(*shape):
        return rng.uniform(-0.8, 0.8, shape).astype("float32")

    def turned(array):
        return np.ascontiguousarray(np.swapaxes(array, 0, 1)) if batch_first else array

    every = {
        "x": turned(noise(steps, BATCH, INPUTS)),
        "w": noise(directions, gates, INPUTS),
        "r": noise(directions, gates, HIDDEN),
        "b": noise(directions, 2 * gates),
        "lengths": np.array([steps, 2], "int32"),
        "h0": turned(noise(directions, BATCH, HIDDEN)),
        "c0": turned(noise(directions, BATCH, HIDDEN)),
        "p": noise(directions, 3 * HIDDEN),
    }
    order = ["x", "w", "r", "b", "lengths", "h0"] + (["c0", "p"] if kind == "LSTM" else [])
    names = [name if name in operands or f"{name}:fed" in operands else '""' for name in order]
    while names[-1] == '""':
        names.pop()
    fed = [f"{'int32' if o == 'lengths:fed' else 'float'}[{','.join(map(str, every[o[:-4]].shape))}] {o[:-4]}"
           for o in operands if o.endswith(":fed")]  # fmt: skip
    sizes = "s,n,3" if open_sizes else ",".join(map(str, every["x"].shape))
    made = ", ".join(o if o in outputs else '""' for o in "yhc"[: "yhc".index(outputs[-1]) + 1])
    results = ", ".join(f"float[{o}0,{o}1,{o}2{',y3' if o == 'y' else ''}] {o}" for o in outputs)
    text = f"""({", ".join([f"float[{sizes}] x", *fed])}) => ({results}) {{
        {made} = {kind} <hidden_size={HIDDEN}{attributes}> ({", ".join(names)})
    }}"""
    return text, {o.split(":")[0]: every[o.split(":")[0]] for o in operands}


def way(name):
    return {"attributes": f', direction="{name}"', "directions": 1 + (name == "bidirectional")}


ALL = ("x", "w", "r", "b", "lengths", "h0")
CASES = {
    **{f"{k}-{d}": case(k, **way(d), outputs="yhc" if k == "LSTM" else "yh")
       for k in GATES for d in ("forward", "reverse", "bidirectional")},
    **{f"{k}-{d}-states": case(k, **way(d), operands=("x", "w", "r", "b", "h0", *["c0"] * (k == "LSTM")))
       for k in GATES for d in ("forward", "reverse", "bidirectional")},
    **{f"{k}-{d}-open": case(k, **way(d), operands=("x", "w", "r", "h0"), open_sizes=True)
       for k in GATES for d in ("forward", "bidirectional")},
    **{f"{k}-{d}-lengths": case(k, **way(d), operands=ALL, outputs="yhc" if k == "LSTM" else "yh")
       for k in GATES for d in ("forward", "reverse", "bidirectional")},
    **{f"{k}-lengths-fed": case(k, **way("bidirectional"), operands=("x", "w", "r", "lengths:fed"), open_sizes=True)
       for k in GATES},
    **{f"{k}-weights-fed": case(k, operands=("x", "w:fed", "r:fed", "b:fed", "h0:fed")) for k in GATES},
    **{f"{k}-only-{o}": case(k, outputs=o) for k in GATES for o in "yh"},
    **{f"{k}-clip": case(k, ", clip=0.3", operands=("x", "w", "r", "b", "h0")) for k in GATES},
    **{f"{k}-clip-long": case(k, ", clip=0.3", steps=70) for k in GATES},
    "LSTM-only-c": case("LSTM", outputs="c"),
    "LSTM-one-state": case("LSTM", operands=("x", "w", "r", "c0")),
    "LSTM-peepholes": case("LSTM", **way("bidirectional"), outputs="yhc",
                           operands=("x", "w", "r", "b", "h0", "c0", "p")),
    "LSTM-coupled": case("LSTM", ", input_forget=1", outputs="yhc"),
    "GRU-linear": case("GRU", ", linear_before_reset=1", operands=("x", "w", "r", "b", "h0")),
    "GRU-linear-both": case("GRU", ', linear_before_reset=1, direction="bidirectional"', 2),
    "GRU-linear-clip": case("GRU", ", linear_before_reset=1, clip=0.5"),
    "RNN-relu-both": case("RNN", ', direction="bidirectional", activations=["Relu", "Tanh"]', 2),
    "LSTM-elu": case("LSTM", ', activations=["HardSigmoid", "Elu", "Softsign"], activation_alpha=[0.3, 0.7]'),
    "GRU-leaky": case("GRU", ', activations=["Sigmoid", "LeakyRelu"], activation_alpha=[0.2]'),
}  # fmt: skip
PARAMETERS = {
    "Affine": (0.7, 0.1), "LeakyRelu": (0.2,), "ThresholdedRelu": (0.3,), "ScaledTanh": (0.7, 0.6), "Elu": (0.6,),
    "HardSigmoid": (0.3, 0.4), "Softsign": (), "Softplus": (), "Relu": (), "Sigmoid": (),
}  # fmt: skip
for name, given in PARAMETERS.items():
    lists = "".join(f", activation_{k}=[{v}]" for k, v in zip(("alpha", "beta"), given, strict=False))
    CASES[f"RNN-{name}"] = case("RNN", f', activations=["{name}"]{lists}')
ORT_LACKS_LAYOUT = {
    f"{k}-{d}-batch-first": case(k, f', layout=1, direction="{d}"', 1 + (d != "forward"), ("x", "w", "r", "b", "h0"),
                                 batch_first=True)
    for k in GATES for d in ("forward", "bidirectional")
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_as_onnxruntime(name):
    text, arrays = CASES[name]
    onnx_cases.check(text, arrays, opset=14, rtol=1e-5)


@pytest.mark.parametrize("name", ORT_LACKS_LAYOUT)
def test_batch_first_is_the_same_layer_transposed(name):
    text, arrays = ORT_LACKS_LAYOUT[name]
    plain = {k: np.ascontiguousarray(np.swapaxes(v, 0, 1)) if k in ("x", "h0") else v for k, v in arrays.items()}
    proto, feeds = onnx_cases.model(text.replace(", layout=1", "").replace("float[2,5,3]", "float[5,2,3]"), plain, 14)
    y, h = onnx_cases.onnxruntime_outputs(proto, feeds).values()
    onnx_cases.check(text, arrays, opset=14, rtol=1e-5, want={"y": y.transpose(2, 0, 1, 3), "h": h.transpose(1, 0, 2)})


def test_plain_layers_use_the_layers_of_mnn():
    for kind in GATES:
        proto, _ = onnx_cases.model(*CASES[f"{kind}-reverse"], 14)
        kinds = [n.op.kind for n in onnx_cases.import_proto(proto).nodes]
        assert kind in kinds
        assert "While" not in kinds


def test_long_sequences_are_loops_and_short_ones_are_written_out():
    for name, loops in (("LSTM-clip", 0), ("LSTM-clip-long", 1)):
        proto, _ = onnx_cases.model(*CASES[name], 14)
        assert [n.op.kind for n in onnx_cases.import_proto(proto).nodes].count("While") == loops


def test_an_unknown_activation_is_named():
    text, arrays = case("RNN", ', activations=["Swish"]')
    (found,) = onnx_cases.refusal(text, arrays, 14)
    assert "swish" in found.message
