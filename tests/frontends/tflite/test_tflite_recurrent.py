"""Recurrent layers against LiteRT; their states are inputs and outputs."""

import numpy as np
import pytest
from tflite_cases import G, Op, T, build, check, const, import_bytes, refusal

RNG = np.random.default_rng(11)
STEPS, BATCH, SIZE, HIDDEN = 5, 2, 3, 4


def weight(*shape: int) -> T:
    return const(RNG.standard_normal(shape) * 0.5)


def state(*shape: int) -> T:
    return T(shape, variable=True)


def layer(name: str, operands: list[T | None], options: str, results: int = 1, **fields) -> bytes:
    """A model of one operator in which operands may be left out."""
    tensors = [t for t in operands if t is not None]
    for i, t in enumerate(tensors):
        t.name = f"t{i}"
    places, count = [], 0
    for t in operands:
        places.append(-1 if t is None else count)
        count += t is not None
    made = list(range(count, count + results))
    return build(G([*tensors, *[T() for _ in made]], [Op(name, places, made, options, fields)], [0], made))


def sequence(major: bool, size: int = SIZE) -> T:
    return T((STEPS, BATCH, size) if major else (BATCH, STEPS, size))


@pytest.mark.parametrize("activation", [1, 4])
@pytest.mark.parametrize("major", [False, True])
def test_rnn_over_a_sequence(major, activation, tmp_path):
    operands = [sequence(major), weight(HIDDEN, SIZE), weight(HIDDEN, HIDDEN), weight(HIDDEN), state(BATCH, HIDDEN)]
    fields = {"timeMajor": major, "fusedActivationFunction": activation}
    content = layer("UNIDIRECTIONAL_SEQUENCE_RNN", operands, "SequenceRNNOptions", **fields)
    check(content, tmp_path, with_states(content))
    assert [name for name, _ in import_bytes(content).outputs] == ["t5", "t4/next"]


def with_states(content: bytes) -> dict[str, np.ndarray]:
    """Seeded numbers for the inputs, states among them."""
    return {v.name: RNG.uniform(-1, 1, v.shape).astype(np.float32) for v in import_bytes(content).inputs}


@pytest.mark.parametrize("activation", [0, 4])
def test_rnn_step(activation, tmp_path):
    operands = [T((BATCH, SIZE)), weight(HIDDEN, SIZE), weight(HIDDEN, HIDDEN), weight(HIDDEN), state(BATCH, HIDDEN)]
    content = layer("RNN", operands, "RNNOptions", fusedActivationFunction=activation)
    check(content, tmp_path, with_states(content))


@pytest.mark.parametrize("merge", [False, True])
def test_bidirectional_rnn(merge, tmp_path):
    def direction() -> list[T]:
        return [weight(HIDDEN, SIZE), weight(HIDDEN, HIDDEN), weight(HIDDEN), state(BATCH, HIDDEN)]

    operands = [sequence(True), *direction(), *direction(), None, None, None]
    content = layer("BIDIRECTIONAL_SEQUENCE_RNN", operands, "BidirectionalSequenceRNNOptions", 1 if merge else 2,
                    timeMajor=True, mergeOutputs=merge, fusedActivationFunction=4)  # fmt: skip
    check(content, tmp_path, with_states(content))


def gates(coupled: bool, peepholes: bool, projection: int, size: int = SIZE) -> list[T | None]:
    """The operands 1 to 17 of an LSTM."""
    out = projection or HIDDEN
    first = [None] if coupled else [weight(HIDDEN, size)]
    second = [None] if coupled else [weight(HIDDEN, out)]
    bias = [None] if coupled else [weight(HIDDEN)]
    look = [None if coupled else weight(HIDDEN), weight(HIDDEN), weight(HIDDEN)] if peepholes else [None] * 3
    return [
        *first, *(weight(HIDDEN, size) for _ in range(3)), *second, *(weight(HIDDEN, out) for _ in range(3)), *look,
        *bias, *(weight(HIDDEN) for _ in range(3)),
        *([weight(projection, HIDDEN), weight(projection)] if projection else [None, None]),
    ]  # fmt: skip


FORMS = {
    "plain": {}, "coupled": {"coupled": True}, "peepholes": {"peepholes": True}, "projection": {"projection": 3},
    "all": {"peepholes": True, "projection": 3},
}  # fmt: skip


@pytest.mark.parametrize("clip", [0.0, 0.4])
@pytest.mark.parametrize("major", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_lstm_over_a_sequence(form, major, clip, tmp_path):
    given = {"coupled": False, "peepholes": False, "projection": 0} | FORMS[form]
    states = [state(BATCH, given["projection"] or HIDDEN), state(BATCH, HIDDEN)]
    operands = [sequence(major), *gates(**given), *states, None, None, None, None]
    fields = {"timeMajor": major, "fusedActivationFunction": 4, "cellClip": clip, "projClip": clip}
    content = layer("UNIDIRECTIONAL_SEQUENCE_LSTM", operands, "UnidirectionalSequenceLSTMOptions", **fields)
    check(content, tmp_path, with_states(content))
    plain = form == "plain" and not clip
    assert ("LSTM" in {n.op.kind for n in import_bytes(content).nodes}) == plain


def test_lstm_with_layer_norms(tmp_path):
    norms = [weight(HIDDEN) for _ in range(4)]
    operands = [sequence(True), *gates(False, False, 0), state(BATCH, HIDDEN), state(BATCH, HIDDEN), *norms]
    fields = {"timeMajor": True, "fusedActivationFunction": 4}
    content = layer("UNIDIRECTIONAL_SEQUENCE_LSTM", operands, "UnidirectionalSequenceLSTMOptions", **fields)
    check(content, tmp_path, with_states(content))


def test_lstm_step(tmp_path):
    operands = [T((BATCH, SIZE)), *gates(False, True, 0), state(BATCH, HIDDEN), state(BATCH, HIDDEN)]
    content = layer("LSTM", operands, "LSTMOptions", fusedActivationFunction=4)
    check(content, tmp_path, with_states(content))


@pytest.mark.parametrize("merge", [False, True])
def test_bidirectional_lstm(merge, tmp_path):
    states = [state(BATCH, HIDDEN) for _ in range(4)]
    operands = [sequence(True), *gates(False, False, 0), *gates(False, False, 0), *states, *[None] * 9]
    content = layer("BIDIRECTIONAL_SEQUENCE_LSTM", operands, "BidirectionalSequenceLSTMOptions", 1 if merge else 2,
                    timeMajor=True, mergeOutputs=merge, fusedActivationFunction=4)  # fmt: skip
    check(content, tmp_path, with_states(content))


@pytest.mark.parametrize("rank", [1, 2])
@pytest.mark.parametrize("bias", [False, True])
def test_svdf(rank, bias, tmp_path):
    units, memory = 4, 5
    operands = [
        T((BATCH, SIZE)), weight(units * rank, SIZE), weight(units * rank, memory), weight(units) if bias else None,
        state(BATCH, memory * units * rank),
    ]  # fmt: skip
    content = layer("SVDF", operands, "SVDFOptions", rank=rank, fusedActivationFunction=1)
    check(content, tmp_path, with_states(content))


def test_quantized_activations_are_refused():
    operands = [T((BATCH, SIZE), "int8", 0.1), weight(4, SIZE), weight(4, 4), weight(4), state(BATCH, 4)]
    (problem,) = refusal(layer("RNN", operands, "RNNOptions"))
    assert problem.reference == "unsupported-type"
