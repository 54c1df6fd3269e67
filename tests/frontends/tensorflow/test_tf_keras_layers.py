"""Layers of Keras one by one, with what they compute in TensorFlow."""

from __future__ import annotations

import numpy as np
import pytest
from tf_cases import array, compare, source_of, tf

L = tf.keras.layers
IMAGE, ROWS, WORDS = (8, 7, 4), (6, 4), (6,)
FAST = {
    "conv1d": (lambda: L.Conv1D(5, 3, padding="causal", dilation_rate=2), ROWS),
    "separable1d": (lambda: L.SeparableConv1D(5, 3, padding="same"), ROWS),
    "transposed1d": (lambda: L.Conv1DTranspose(5, 3, strides=2), ROWS),
    "separable2d": (lambda: L.SeparableConv2D(5, 3, depth_multiplier=2), IMAGE),
    "groups": (lambda: L.Conv2D(6, 3, groups=2), IMAGE),
    "dilated": (lambda: L.Conv2D(6, 3, dilation_rate=2, padding="same"), IMAGE),
    "transposed2d": (lambda: L.Conv2DTranspose(5, 4, strides=3, padding="same"), IMAGE),
    "conv3d": (lambda: L.Conv3D(5, 2, strides=2, padding="same"), (4, 6, 6, 3)),
    "upsampling": (lambda: L.UpSampling2D((2, 3), interpolation="nearest"), IMAGE),
    "upsampling bilinear": (lambda: L.UpSampling2D(2, interpolation="bilinear"), IMAGE),
    "upsampling1d": (lambda: L.UpSampling1D(3), ROWS),
    "cropping": (lambda: L.Cropping2D(((1, 2), (0, 3))), IMAGE),
    "padding": (lambda: L.ZeroPadding2D(((1, 2), (0, 3))), IMAGE),
    "pools": (lambda: tf.keras.Sequential([L.MaxPooling1D(2), L.AveragePooling1D(2, padding="same")]), ROWS),
    "global max": (lambda: L.GlobalMaxPooling2D(keepdims=True), IMAGE),
    "global mean of rows": (lambda: L.GlobalAveragePooling1D(), ROWS),
    "batch norm": (lambda: L.BatchNormalization(), ROWS),
    "layer norm": (lambda: L.LayerNormalization(axis=(-2, -1)), ROWS),
    "group norm": (lambda: L.GroupNormalization(2), IMAGE),
    "rms norm": (lambda: L.RMSNormalization(), ROWS),
    "unit norm": (lambda: L.UnitNormalization(), ROWS),
    "prelu": (lambda: L.PReLU(alpha_initializer="normal", shared_axes=[1, 2]), IMAGE),
    "embedding": (lambda: L.Embedding(9, 5), WORDS),
    "rescaling": (lambda: L.Rescaling(1 / 127.5, -1), IMAGE),
    "resizing": (lambda: L.Resizing(5, 9), IMAGE),
    "center crop": (lambda: L.CenterCrop(5, 4), IMAGE),
    "permute": (lambda: L.Permute((2, 1)), ROWS),
    "repeat": (lambda: L.RepeatVector(3), WORDS),
    "time distributed": (lambda: L.TimeDistributed(L.Dense(3, activation="elu")), ROWS),
    "einsum dense": (lambda: L.EinsumDense("abc,cde->abde", (None, 2, 3)), ROWS),
    "attention": (lambda: Self(L.MultiHeadAttention(2, 3)), ROWS),
    "causal attention": (lambda: Self(L.MultiHeadAttention(2, 3), use_causal_mask=True), ROWS),
    "grouped attention": (lambda: Self(L.GroupQueryAttention(4, 4, 2)), ROWS),
    "random layers rest": (lambda: tf.keras.Sequential([L.RandomFlip(), L.Dropout(0.5), L.GaussianNoise(1.0)]), IMAGE),
}
SLOW = {
    "lstm": (lambda: L.LSTM(3, return_sequences=True, go_backwards=True), ROWS),
    "gru": (lambda: L.GRU(3, reset_after=False, activation="relu"), ROWS),
    "masked": (lambda: tf.keras.Sequential([L.Embedding(9, 5, mask_zero=True), L.LSTM(3)]), WORDS),
    "conv lstm": (lambda: L.ConvLSTM2D(3, 2), (4, 5, 5, 2)),
    "stacked cells": (lambda: L.RNN([L.GRUCell(3), L.LSTMCell(2)]), ROWS),
}
CASES = [*FAST, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]
ACTIVATIONS = [
    "celu", "elu", "exponential", "gelu", "glu", "hard_shrink", "hard_sigmoid", "hard_tanh", "leaky_relu", "linear",
    "log_sigmoid", "log_softmax", "mish", "relu", "relu6", "selu", "sigmoid", "silu", "soft_shrink", "softmax",
    "softplus", "softsign", "sparse_plus", "squareplus", "tanh", "tanh_shrink",
]  # fmt: skip


@tf.keras.utils.register_keras_serializable()
class Self(tf.keras.layers.Layer):
    """Attention of a sequence to itself."""

    def __init__(self, inner, **options):
        super().__init__()
        self.inner, self.options = inner, options

    def call(self, x):
        return self.inner(x, x, **self.options)


def frozen(model, shape, dtype):
    from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

    call = tf.function(lambda x: model(x, training=False), autograph=False)
    concrete = call.get_concrete_function(tf.TensorSpec(shape, dtype, name="x"))
    return concrete, convert_variables_to_constants_v2(concrete, lower_control_flow=False)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("batch", [2, None])
def test_layer(name, batch):
    make, sizes = (FAST | SLOW)[name]
    tf.keras.utils.set_random_seed(0)
    whole = sizes == WORDS and name != "repeat"
    x = array((2, *sizes), "int32" if whole else "float32")
    x = np.abs(x) if whole else x
    layer = make()
    layer(x)
    random = np.random.default_rng(0)
    for weight in layer.weights:
        if weight.dtype == "float32" and "seed" not in weight.name:
            weight.assign(random.uniform(0.2, 1.0, weight.shape) * (1 if "variance" in weight.name else 0.7))
    concrete, constant = frozen(layer, (batch, *sizes), x.dtype)
    compare(source_of(constant), [x], [np.asarray(concrete(tf.constant(x)))], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation(name):
    function = tf.keras.activations.get(name)
    x = array((3, 8), low=-4, high=4)
    concrete, constant = frozen(lambda x, training: function(x), x.shape, x.dtype)
    compare(source_of(constant), [x], [np.asarray(concrete(tf.constant(x)))])
