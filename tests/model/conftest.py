"""What several tests of the model need: the prediction of the lesson."""

from __future__ import annotations

import pytest

from costmodel.documents import Prediction
from costmodel.prediction import predict


@pytest.fixture(scope="module")
def lesson() -> Prediction:
    """8,000 tokens beside 32 streams at context 500, Llama-3.1-8B on one H100 SXM, the lesson's 8e9 parameters, no calibration."""
    return predict(params=8e9, calibration="none")
