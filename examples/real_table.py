"""A real table: 442 patients, ten inputs, and how a disease went on a year later.

The table comes with scikit-learn (Efron, Hastie, Johnstone and Tibshirani 2004), so nothing is downloaded. Cross-validation,
intervals and the probability that a patient exceeds a threshold, for any data frame.

Run it with ``python examples/real_table.py`` (some minutes).
"""

# %% The table
import numpy as np
from matplotlib.figure import Figure
from sklearn.datasets import load_diabetes
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.linear_model import RidgeCV
from sklearn.model_selection import cross_val_score, train_test_split

from bieqno import PretrainedGGPRegressor

X, y = load_diabetes(return_X_y=True, as_frame=True, scaled=False)
X["sex"] = X["sex"].map({1.0: "one", 2.0: "two"})  # a column of texts is a category

# %% Beside a linear model and boosted trees, by five folds
numbers = X.assign(sex=X["sex"] == "two").astype(float)
for name, model, table in [
    ("PretrainedGGPRegressor", PretrainedGGPRegressor(), X),
    ("ridge regression", RidgeCV(np.logspace(-3, 3, 13)), numbers),
    ("boosted trees", HistGradientBoostingRegressor(learning_rate=0.03, max_iter=150, random_state=0), numbers),
]:
    scores = -cross_val_score(model, table, y, cv=5, scoring="neg_root_mean_squared_error")
    print(f"{name}: RMSE {scores.mean():.1f} +- {scores.std(ddof=1) / 5**0.5:.1f}")

# %% Intervals and probabilities for new patients
known, new, known_y, new_y = train_test_split(X, y, test_size=100, random_state=0)
model = PretrainedGGPRegressor().fit(known, known_y)
print(model.summary())
law = model.predict_distribution(new)  # a distribution for each row
lower, upper = law.ppf([0.05, 0.95])
print(f"90 % intervals hold {np.mean((lower <= new_y) & (new_y <= upper)):.0%} of {len(new_y)} new values")
print("chance of more than 200, first five:", np.round(1 - law.cdf(200.0)[:5], 2))

# %% Picture
order = np.argsort(law.mean())
figure = Figure(figsize=(7.2, 2.8), layout="constrained")
axes = figure.subplots()
axes.vlines(np.arange(100), lower[order], upper[order], color="#0072b2", alpha=0.4, label="90 % interval")
axes.plot(law.mean()[order], color="#0072b2", label="mean")
axes.plot(new_y.to_numpy()[order], "k.", markersize=4, label="observed")
axes.set(xlabel="new patients, ordered by prediction", ylabel="progression")
axes.legend(fontsize=8, loc="upper left")
figure.savefig("real_table.png", dpi=100)
