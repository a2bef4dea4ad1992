"""Estimators of scikit-learn on our arrays agree with themselves on NumPy's."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

# A process of its own: SciPy looks for the array API once, when it is imported.
PROGRAM = """
import numpy as np
import sklearn
from baregrad import Tensor
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import Ridge

sklearn.set_config(array_api_dispatch=True)
random = np.random.default_rng(0)
features = random.normal(size=(60, 5)) @ random.normal(size=(5, 5))
target = features @ random.normal(size=5) + 0.1 * random.normal(size=60)
classes = (target > 0).astype(np.int64) + (target > 1)


def components(x, y, c):
    found = PCA(n_components=2, svd_solver="full").fit(x)
    made = found.transform(x)
    return made, found.explained_variance_, found.inverse_transform(made)


def regression(x, y, c):
    found = Ridge(alpha=0.7, solver="svd").fit(x, y)
    return found.coef_, found.predict(x)


def discriminants(x, y, c):
    found = LinearDiscriminantAnalysis().fit(x, c)
    return found.predict(x), found.predict_proba(x), found.decision_function(x)


for estimator in (components, regression, discriminants):
    ours = estimator(Tensor(features), Tensor(target), Tensor(classes))
    theirs = estimator(features, target, classes)
    for one, other in zip(ours, theirs, strict=True):
        assert isinstance(one, Tensor), (estimator, type(one))
        np.testing.assert_allclose(one.numpy(), other, rtol=1e-9, atol=1e-12)
print("agree")
"""


@pytest.mark.slow
@pytest.mark.differential
def test_pca_ridge_and_lda_agree() -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False,
        env={**os.environ, "SCIPY_ARRAY_API": "1"},
    )
    assert found.stdout == "agree\n", found.stderr
