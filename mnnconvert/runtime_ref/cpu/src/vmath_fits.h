// Polynomials of vmath.h, lowest power first: printed by tests/runtime_ref/cpu/fit_vmath.py.
#pragma once

namespace mnnk {

// (e^r - 1 - r) / r^2, |r| <= ln 2 / 2; largest error 3.1e-09
constexpr float EXP_FIT[] = {0.49999994f, 0.166665211f, 0.0416682735f, 0.00836868584f, 0.00138201355f};
// 2^r, |r| <= 1/2; largest error 1.2e-07
constexpr float EXP2_FIT[] = {1.00000012f, 0.693147242f, 0.240219593f, 0.0555020086f, 0.0096818842f, 0.00134504447f};
// (tanh x / x - 1) / s, s = x^2, x <= 0.6; largest error 2.7e-09
constexpr float TANH_FIT[] = {-0.333332986f, 0.133319393f, -0.0537851229f, 0.0208003167f, -0.00590017904f};
// erf x / x - 1, s = x^2, x <= 0.8; largest error 3.4e-09
constexpr float ERF_FIT[] = {0.128379166f, -0.376126081f, 0.112831622f, -0.0268222429f, 0.00508686574f, -0.000654224947f};
// log2 erfc x, 0.8 <= x <= 4; largest error 3.5e-09
constexpr float ERFC_FIT[] = {-9.5185067e-05f, -1.62769032f, -0.917874038f, -0.151192904f, 0.0326862074f, -0.00454979017f, 0.000299306354f};
// log2 erfc x, 0 <= x <= 5; largest error 4.2e-08
constexpr float GELU_FIT[] = {4.22779962e-08f, -1.62791121f, -0.918382406f, -0.148650855f, 0.0286571104f, -0.00127996283f, -0.00115061342f, 0.000331144896f, -3.01816253e-05f};
// (log(1 + f) - f + f^2 / 2) / f^3; largest error 8.0e-10
constexpr float LOG_FIT[] = {0.333333135f, -0.250000119f, 0.20002088f, -0.166678637f, 0.142197385f, -0.12407656f, 0.118903905f, -0.116664484f, 0.0672939122f};
// (sin r / r - 1) / s, s = r^2, |r| <= pi / 4; largest error 3.7e-09
constexpr float SIN_FIT[] = {-0.166666552f, 0.0083321901f, -0.000195184082f};
// (cos r - 1 + s / 2) / s^2; largest error 1.1e-10
constexpr float COS_FIT[] = {0.0416666456f, -0.00138873013f, 2.44306684e-05f};

}  // namespace mnnk
