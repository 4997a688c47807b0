"""The regressors among scikit-learn's tools, and what they predict as a distribution."""

import copy

import equinox as eqx
import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm
from sklearn.compose import make_column_transformer
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from bieqno import PretrainedGGPRegressor
from bieqno.regression.pretrained.transforms import Transform

X = np.linspace(0, 3, 30)[:, None]
NEW = X[3:28:5]


pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def fitted():
    """Two outputs."""
    noise = 0.1 * np.random.default_rng(0).normal(size=30)
    return PretrainedGGPRegressor(correction=False).fit(X, np.stack([X[:, 0] + noise, 2 - X[:, 0]], axis=1))


@pytest.fixture
def skewed(fitted):
    """The first output alone, as if its logarithm had been fitted."""
    model = copy.copy(fitted)
    model.single_output_ = True
    model._use([eqx.tree_at(lambda process: process.transform, fitted.processes_[0], Transform("log", 0.0, 1.0))])
    return model


def test_pipelines_column_transformers_and_frames():
    random = np.random.default_rng(0)
    table = pd.DataFrame({"depth": random.uniform(0, 6, 30), "site": random.choice(["north", "south"], 30)})
    y = np.sin(table["depth"]) + (table["site"] == "north") + 0.1 * random.normal(size=30)
    encoder = OneHotEncoder(drop="if_binary", sparse_output=False)
    columns = make_column_transformer((encoder, ["site"]), (StandardScaler(), ["depth"]))
    pipeline = make_pipeline(columns, PretrainedGGPRegressor(correction=False)).set_output(transform="pandas")
    pipeline.fit(table, y)
    assert list(pipeline[-1].feature_names_in_) == list(pipeline[:-1].get_feature_names_out())
    assert pipeline.score(table, y) > 0.8
    mean, std = pipeline.predict(table[:4], return_std=True)
    law = pipeline[-1].predict_distribution(pipeline[:-1].transform(table[:4]))
    assert (law.mean() == mean).all()
    assert (law.std() == std).all()
    assert (law.var() == std**2).all()


def test_a_grid_search_over_a_pipeline():
    pipeline = make_pipeline(StandardScaler(), PretrainedGGPRegressor(correction=False))
    grid = GridSearchCV(
        pipeline, {"pretrainedggpregressor__alpha": [1e-6, 4.0]}, cv=KFold(2, shuffle=True, random_state=0)
    )
    grid.fit(X, np.sin(3 * X[:, 0]))
    assert grid.best_params_ == {"pretrainedggpregressor__alpha": 1e-6}
    assert grid.best_estimator_.predict(NEW, return_std=True)[1].shape == (5,)


def test_cross_validation_in_two_processes():
    folds = KFold(2, shuffle=True, random_state=0)
    scores = cross_val_score(PretrainedGGPRegressor(correction=False), X, 2 * X[:, 0], cv=folds, n_jobs=2)
    assert (scores > 0.99).all()


def test_a_distribution_agrees_with_what_the_regressor_says(skewed):
    law = skewed.predict_distribution(NEW)
    quantiles = law.ppf([0.05, 0.5, 0.95])
    np.testing.assert_allclose(quantiles.T, skewed.predict_quantiles(NEW, [0.05, 0.5, 0.95]))
    np.testing.assert_allclose(law.cdf(quantiles[0]), 0.05)
    # The density is the derivative of the distribution function, and that of one row is that of the joint distribution.
    step = 1e-4 * quantiles[1]
    slope = (law.cdf(quantiles[1] + step) - law.cdf(quantiles[1] - step)) / (2 * step)
    np.testing.assert_allclose(np.exp(law.log_pdf(quantiles[1])), slope, rtol=1e-5)
    joint = skewed.log_predictive_density(NEW[:1], quantiles[1][:1])
    np.testing.assert_allclose(law.log_pdf(quantiles[1])[0], joint, rtol=1e-5)
    assert (law.sample(3, random_state=1) == skewed.sample_y(NEW, 3, random_state=1).T).all()
    with pytest.raises(ValueError, match=r"values of shape \(5,\), got shape \(2,\)"):
        law.cdf([1.0, 2.0])


def test_a_distribution_of_several_outputs(fitted):
    law = fitted.predict_distribution(NEW)
    assert law.mean().shape == law.cdf(0.0).shape == (5, 2)
    assert law.ppf([0.1, 0.9]).shape == (2, 5, 2)
    assert law.sample(7).shape == (7, 5, 2)
    np.testing.assert_allclose(law.log_pdf(1.0), norm.logpdf(1.0, law.mean(), law.std()), rtol=1e-6)
