"""Calls of other libraries with arrays, for tests/interop/run.py: library -> name -> function of the sample arrays.

The functions are called with arrays of polyarr and with the same arrays of NumPy, and the results are compared.
"""

import functools
import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

os.environ["SCIPY_ARRAY_API"] = "1"  # before SciPy is imported

import array_api_compat as compat
import array_api_extra as xpx
import einops
import matplotlib
import numpy as np
import opt_einsum
import pandas as pd
import scipy.special
import scipy.stats
import sklearn
import xarray as xr
from sklearn import (
    decomposition,
    discriminant_analysis,
    kernel_approximation,
    linear_model,
    metrics,
    mixture,
    model_selection,
    naive_bayes,
    preprocessing,
)

matplotlib.use("agg")
from matplotlib import pyplot as plt

sklearn.set_config(array_api_dispatch=True)
Call = Callable[[Any], Any]


def samples(asarray: Callable[[np.ndarray], Any]) -> SimpleNamespace:
    """Return the sample arrays, made by `asarray`: numbers between 0 and 1, normal points, labels, targets, others."""
    rng = np.random.default_rng(0)
    points = rng.normal(size=(60, 4)).astype("float32")
    targets = points @ np.arange(4, dtype="float32")
    labels = (points[:, 0] > 0).astype("int64")
    found = {
        "x": rng.uniform(0.1, 0.9, (6, 4)).astype("float32"),
        "v": rng.uniform(0.1, 0.9, 20).astype("float32"),
        "w": rng.uniform(0.1, 0.9, 20).astype("float32"),
        "i": np.array([3, 1, 2, 1]),
        "images": rng.uniform(size=(2, 4, 6, 3)).astype("float32"),
        "points": points,
        "targets": targets,
        "labels": labels,
        "guesses": np.where(np.arange(60) % 5 == 0, 1 - labels, labels),
        "scores": (1 / (1 + np.exp(-targets))).astype("float32"),
        "positive": np.abs(targets) + 1,
        "kernel": points @ points.T,
    }
    return SimpleNamespace(**{name: asarray(value) for name, value in found.items()})


def _each(module: Any, names: str, call: Callable[[Any, SimpleNamespace], Any]) -> dict[str, Call]:
    """Return a call of each named function of a module."""
    return {name: functools.partial(call, getattr(module, name)) for name in names.split()}


def _estimator(kind: Any, then: str, target: str = "", **options: Any) -> Call:
    """Return a call that fits an estimator of scikit-learn to the points, and to a target if it is named."""

    def call(d: SimpleNamespace) -> Any:
        fitted = kind(**options).fit(*filter(lambda a: a is not None, (d.points, getattr(d, target, None))))
        return getattr(fitted, then)(d.points)

    return call


NUMPY: dict[str, Call] = {
    "asarray": lambda d: np.asarray(d.x),
    **_each(np, "exp sqrt sin isnan absolute", lambda f, d: f(d.x)),
    **_each(np, "add multiply maximum arctan2 power", lambda f, d: f(d.x, d.x)),
    "matmul": lambda d: np.matmul(d.x, d.kernel[:4, :4]),
    **_each(np, "sum mean std var max min prod argmax", lambda f, d: f(d.x, axis=0)),
    **_each(np, "sort cumsum median stack round", lambda f, d: f(d.x)),
    "linalg.norm": lambda d: np.linalg.norm(d.x),
    "histogram": lambda d: np.histogram(d.v),
    "float32(2) * x": lambda d: np.float32(2) * d.x,
}
EINOPS: dict[str, Call] = {
    "rearrange": lambda d: einops.rearrange(d.images, "b (h p) (w q) c -> b (h w) (p q c)", p=2, q=3),
    "rearrange of a list": lambda d: einops.rearrange([d.x, d.x], "n a b -> a n b"),
    **{
        f"reduce ({kind})": functools.partial(lambda kind, d: einops.reduce(d.images, "b h w c -> b c", kind), kind)
        for kind in ("mean", "sum", "max", "min", "prod")
    },
    "repeat": lambda d: einops.repeat(d.x, "a b -> a 3 (b 2)"),
    "einsum": lambda d: einops.einsum(d.images, d.images, "b h w c, b h w k -> b c k"),
    "pack": lambda d: einops.pack([d.images, d.images[:, 0, 0]], "b * c")[0],
    "unpack": lambda d: einops.unpack(d.x, [(1,), (3,)], "a *"),
    "parse_shape": lambda d: tuple(einops.parse_shape(d.images, "b h w c").values()),
    "asnumpy": lambda d: einops.asnumpy(d.x),
}
OPT_EINSUM: dict[str, Call] = {
    "contract": lambda d: opt_einsum.contract("ab,cb,cd->ad", d.x, d.x, d.x),
    "contract_expression": lambda d: opt_einsum.contract_expression("ab,cb->ac", (6, 4), (6, 4))(d.x, d.x),
}
COMPAT: dict[str, Call] = {
    "array_namespace": lambda d: compat.array_namespace(d.x).sum(d.x),
    "is_array_api_obj": lambda d: compat.is_array_api_obj(d.x),
    "size": lambda d: compat.size(d.x),
    "to_device": lambda d: compat.to_device(d.x, compat.device(d.x)),
}
EXTRA: dict[str, Call] = {
    **_each(xpx, "sinc angle nan_to_num cov nunique", lambda f, d: f(d.x)),
    **_each(xpx, "isclose kron isin", lambda f, d: f(d.x, d.x)),
    **_each(xpx, "setdiff1d union1d", lambda f, d: f(d.v, d.w[:5])),
    "apply_where": lambda d: xpx.apply_where(d.x > 0.5, d.x, lambda x: x * 2, fill_value=0.0),
    "argpartition": lambda d: xpx.argpartition(d.v, 3).shape,
    "at": lambda d: xpx.at(d.x, 0).set(1.0, copy=True),
    "atleast_nd": lambda d: xpx.atleast_nd(d.x, ndim=3),
    "create_diagonal": lambda d: xpx.create_diagonal(d.v),
    "expand_dims": lambda d: xpx.expand_dims(d.x, axis=(0, 2)),
    "lazy_apply": lambda d: xpx.lazy_apply(np.sin, d.x, as_numpy=True),
    "one_hot": lambda d: xpx.one_hot(d.i, 4),
    "pad": lambda d: xpx.pad(d.x, 1),
    "partition": lambda d: xpx.partition(d.v, 3).shape,
    "searchsorted": lambda d: xpx.searchsorted(compat.array_namespace(d.v).sort(d.v), d.w),
}
SPECIAL: dict[str, Call] = {
    **_each(
        scipy.special,
        """digamma entr erf erfc erfinv exp1 expi expit gamma gammaln i0 i0e i1 i1e k0 k0e k1 k1e log_ndtr log_softmax
        logit logsumexp ndtr ndtri psi sinc softmax softplus""",
        lambda f, d: f(d.x),
    ),
    **_each(
        scipy.special,
        "chdtr chdtrc gammainc gammaincc hyp0f1 kl_div rel_entr stdtr xlog1py xlogy zeta",
        lambda f, d: f(d.x + 1, d.x),
    ),
    **_each(scipy.special, "betainc betaincc betaincinv", lambda f, d: f(d.x, d.x, d.x)),
    "binom": lambda d: scipy.special.binom(d.x + 4, d.x),
}
STATS: dict[str, Call] = {
    **_each(
        scipy.stats,
        """circmean circstd circvar combine_pvalues describe entropy false_discovery_control gmean gstd gzscore hmean
        iqr jarque_bera kstat kstatvar kurtosis kurtosistest lmoment median_abs_deviation moment normaltest
        power_divergence rankdata sem sigmaclip skew skewtest tmax tmean tmin tsem tstd tvar variation zscore""",
        lambda f, d: f(d.v),
    ),
    **_each(
        scipy.stats,
        "bartlett f_oneway fligner kruskal levene mannwhitneyu pearsonr spearmanr ttest_ind ttest_rel wilcoxon zmap",
        lambda f, d: f(d.v, d.w),
    ),
    **_each(scipy.stats, "pmean quantile ttest_1samp", lambda f, d: f(d.v, 0.5)),
    "boxcox_llf": lambda d: scipy.stats.boxcox_llf(0.5, d.v),
    "trim_mean": lambda d: scipy.stats.trim_mean(d.v, 0.1),
}
LEARN: dict[str, Call] = {
    **{
        name: _estimator(getattr(preprocessing, name), "transform")
        for name in "Binarizer MaxAbsScaler MinMaxScaler Normalizer PolynomialFeatures StandardScaler".split()
    },
    "KernelCenterer": lambda d: preprocessing.KernelCenterer().fit_transform(d.kernel),
    "LabelBinarizer": lambda d: preprocessing.LabelBinarizer().fit_transform(d.labels),
    "LabelEncoder": lambda d: preprocessing.LabelEncoder().fit_transform(d.labels),
    "PCA (full)": lambda d: abs(decomposition.PCA(2, svd_solver="full").fit_transform(d.points)),
    "PCA (covariance_eigh)": lambda d: abs(decomposition.PCA(2, svd_solver="covariance_eigh").fit_transform(d.points)),
    "Ridge": _estimator(linear_model.Ridge, "predict", "targets", solver="svd"),
    "RidgeCV": _estimator(linear_model.RidgeCV, "predict", "targets"),
    "RidgeClassifier": _estimator(linear_model.RidgeClassifier, "predict", "labels", solver="svd"),
    "LinearRegression": _estimator(linear_model.LinearRegression, "predict", "targets"),
    "LogisticRegression": _estimator(linear_model.LogisticRegression, "predict", "labels"),
    "PoissonRegressor": _estimator(linear_model.PoissonRegressor, "predict", "positive"),
    "LinearDiscriminantAnalysis": _estimator(
        discriminant_analysis.LinearDiscriminantAnalysis, "predict", "labels"
    ),
    "GaussianNB": _estimator(naive_bayes.GaussianNB, "predict", "labels"),
    "GaussianMixture": _estimator(
        mixture.GaussianMixture, "predict", n_components=2, init_params="random", random_state=0
    ),
    "Nystroem": lambda d: kernel_approximation.Nystroem(n_components=5, random_state=0).fit_transform(d.points).shape,
    "train_test_split": lambda d: model_selection.train_test_split(d.points, d.labels, random_state=0),
    "cross_val_predict": lambda d: model_selection.cross_val_predict(
        linear_model.Ridge(solver="svd"), d.points, d.targets
    ),
    **_each(
        metrics,
        """accuracy_score balanced_accuracy_score cohen_kappa_score confusion_matrix f1_score hamming_loss jaccard_score
        matthews_corrcoef precision_score recall_score zero_one_loss""",
        lambda f, d: f(d.labels, d.guesses),
    ),
    **_each(
        metrics,
        "average_precision_score brier_score_loss log_loss precision_recall_curve roc_auc_score roc_curve",
        lambda f, d: f(d.labels, d.scores),
    ),
    **_each(
        metrics,
        """d2_absolute_error_score d2_pinball_score d2_tweedie_score explained_variance_score max_error
        mean_absolute_error mean_absolute_percentage_error mean_gamma_deviance mean_pinball_loss mean_poisson_deviance
        mean_squared_error mean_squared_log_error mean_tweedie_deviance median_absolute_error r2_score
        root_mean_squared_error""",
        lambda f, d: f(d.positive, d.positive + 0.5),
    ),
    **_each(
        metrics.pairwise,
        """cosine_distances cosine_similarity euclidean_distances laplacian_kernel linear_kernel manhattan_distances
        pairwise_distances polynomial_kernel rbf_kernel sigmoid_kernel""",
        lambda f, d: f(d.points),
    ),
    **_each(
        metrics.pairwise,
        "additive_chi2_kernel chi2_kernel paired_cosine_distances paired_euclidean_distances",
        lambda f, d: f(abs(d.points), abs(d.points)),
    ),
}


def _drawn(name: str, given: tuple[str, ...], d: SimpleNamespace) -> None:
    figure, axes = plt.subplots()
    getattr(axes, name)(*(getattr(d, each) for each in given))
    figure.canvas.draw()
    plt.close(figure)


MATPLOTLIB: dict[str, Call] = {
    **{
        name: functools.partial(_drawn, name, given)
        for given, names in {
            ("v", "w"): "bar fill_between plot scatter", ("v",): "hist", ("x",): "boxplot contourf imshow",
        }.items()
        for name in names.split()
    }
}  # fmt: skip
PANDAS: dict[str, Call] = {
    "DataFrame(x)": lambda d: pd.DataFrame(d.x).to_numpy(),
    "DataFrame({...})": lambda d: pd.DataFrame({"v": d.v, "w": d.w}).describe().to_numpy(),
    "Series(v)": lambda d: pd.Series(d.v).rolling(2).mean().to_numpy(),
}
XARRAY: dict[str, Call] = {
    "DataArray": lambda d: xr.DataArray(d.x, dims=("a", "b")).data,
    "arithmetic": lambda d: (xr.DataArray(d.x, dims=("a", "b")) * 2 + 1).data,
    "isel": lambda d: xr.DataArray(d.x, dims=("a", "b")).isel(a=1).data,
    "max (skipna=False)": lambda d: xr.DataArray(d.x, dims=("a", "b")).max("a", skipna=False).data,
    "mean": lambda d: xr.DataArray(d.x, dims=("a", "b")).mean("a").data,
    "sum": lambda d: xr.DataArray(d.x, dims=("a", "b")).sum("a").data,
    "transpose": lambda d: xr.DataArray(d.x, dims=("a", "b")).transpose("b", "a").data,
    "where": lambda d: xr.DataArray(d.x, dims=("a", "b")).where(lambda x: x > 0.5, 0.0).data,
}
CALLS: dict[str, dict[str, Call]] = {
    "numpy": NUMPY,
    "einops": EINOPS,
    "opt_einsum": OPT_EINSUM,
    "array-api-compat": COMPAT,
    "array-api-extra": EXTRA,
    "scipy.special": SPECIAL,
    "scipy.stats": STATS,
    "scikit-learn": LEARN,
    "matplotlib": MATPLOTLIB,
    "pandas": PANDAS,
    "xarray": XARRAY,
}
