"""Functions of other libraries that take arrays of the array API standard, each called with tensors and with NumPy arrays.

Run as a program, in a process of its own: scipy reads SCIPY_ARRAY_API when it is imported. It prints one line for each call:
its name, and "ok" or what differs. The argument is the library whose calls are made.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import is_dataclass
from typing import Any

import numpy as np

import tritium as tt

Call = Callable[[Callable[[Any], Any]], Any]  # a call, of a function that makes an array of the library

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 4))
LABELS = (X[:, 0] + X[:, 1] > 0).astype(np.int64) + (X[:, 2] > 1)
SIGNAL = RNG.normal(size=256)
ON_HOST = (
    "spectra",
    "coherence",
    "linalg",
    "integrate",
    "xarray",
)  # calls that answer NumPy arrays, whatever they are given
QUATERNIONS = RNG.normal(size=(5, 4))


def scipy_calls() -> dict[str, Call]:
    from scipy import cluster, differentiate, fft, integrate, interpolate, linalg, signal, special, stats
    from scipy.cluster import vq
    from scipy.optimize import elementwise
    from scipy.spatial.transform import Rotation

    def rotations(a: Any) -> Any:
        r = Rotation.from_quat(a(QUATERNIONS))
        return r.as_matrix(), r.as_rotvec(), r.as_euler("xyz"), (r * r.inv()).as_matrix(), r.apply(a(X[:5, :3]))

    def tests(a: Any) -> Any:
        x = a(X)
        return [
            tuple(t)
            for t in (stats.ttest_1samp(x, 0.0), stats.ttest_ind(x, x + 1), stats.skewtest(x), stats.normaltest(x))
        ]

    def roots(a: Any) -> Any:
        found = elementwise.find_root(lambda z: z * z - 2.0, (a(np.array([0.0, 1.0])), a(np.array([2.0, 3.0]))))
        return found.x

    return {
        "kmeans2": lambda a: vq.kmeans2(a(X), a(X[:3]), minit="matrix"),
        "whiten": lambda a: vq.whiten(a(X)),
        "linkage": lambda a: cluster.hierarchy.linkage(a(X)),
        "pearsonr": lambda a: tuple(stats.pearsonr(a(X[:, 0]), a(X[:, 1]))),
        "variation": lambda a: (stats.variation(a(X[:, 0])), stats.variation(a(X), axis=0, ddof=1)),
        "moments": lambda a: [f(a(X)) for f in (stats.skew, stats.kurtosis, stats.zscore, stats.sem, stats.circmean)],
        "tests": tests,
        "mode": lambda a: tuple(stats.mode(a(LABELS))),
        "Rotation": rotations,
        "spectra": lambda a: [f(a(SIGNAL)) for f in (signal.welch, signal.periodogram, signal.spectrogram)],
        "coherence": lambda a: signal.coherence(a(SIGNAL), a(SIGNAL[::-1].copy())),
        "filters": lambda a: [signal.fftconvolve(a(SIGNAL), a(SIGNAL[:9])), signal.hilbert(a(SIGNAL)), signal.detrend(a(SIGNAL))],
        "fft": lambda a: [f(a(X)) for f in (fft.fft, fft.rfftn, fft.fft2, fft.fftshift, fft.dct)],
        "special": lambda a: [special.logsumexp(a(X) + 1j), special.softmax(a(X)), special.gammaln(a(abs(X))), special.expit(a(X))],
        "linalg": lambda a: [linalg.inv(a(X[:4])), linalg.svdvals(a(X)), linalg.expm(a(X[:4]))],
        "integrate": lambda a: [integrate.trapezoid(a(X), axis=0), integrate.simpson(a(X), axis=0)],
        "interpolate": lambda a: interpolate.CubicSpline(a(np.arange(60.0)), a(X))(a(np.array([0.5, 30.2]))),
        "find_root": roots,
        "derivative": lambda a: differentiate.derivative(lambda z: z**3, a(np.array([1.0, 2.0]))).df,
    }  # fmt: skip


def sklearn_calls() -> dict[str, Call]:
    from sklearn import decomposition, discriminant_analysis, linear_model, metrics, mixture, naive_bayes, preprocessing

    def encoded(a: Any) -> Any:
        encoder = preprocessing.LabelEncoder().fit(a(LABELS))
        return encoder.transform(a(LABELS)), encoder.inverse_transform(encoder.transform(a(LABELS)))

    def classes(make: Callable[[], Any]) -> Call:
        def call(a: Any) -> Any:
            model = make().fit(a(X), a(LABELS))
            return model.predict(a(X)), model.predict_proba(a(X))

        return call

    def regression(make: Callable[[], Any]) -> Call:
        return lambda a: make().fit(a(X), a(X[:, 0] + 2)).predict(a(X))

    def mixtures(a: Any) -> Any:
        model = mixture.GaussianMixture(2, init_params="random_from_data", random_state=0).fit(a(X))
        return model.predict(a(X))

    def scores(a: Any) -> Any:
        guess = a(np.roll(LABELS, 1))
        return [metrics.accuracy_score(a(LABELS), guess), metrics.f1_score(a(LABELS), guess, average="macro"),
                metrics.confusion_matrix(a(LABELS), guess), metrics.r2_score(a(X), a(X + 0.1)),
                metrics.pairwise.rbf_kernel(a(X)), metrics.pairwise.cosine_similarity(a(X))]  # fmt: skip

    def scaled(a: Any) -> Any:
        scalers = preprocessing.StandardScaler, preprocessing.MinMaxScaler, preprocessing.Normalizer
        return [s().fit(a(X)).transform(a(X)) for s in scalers]

    return {
        "LabelEncoder": encoded,
        "LogisticRegression": classes(linear_model.LogisticRegression),
        "LinearDiscriminantAnalysis": classes(discriminant_analysis.LinearDiscriminantAnalysis),
        "GaussianNB": classes(naive_bayes.GaussianNB),
        "GaussianMixture": mixtures,
        "Ridge": regression(lambda: linear_model.Ridge(solver="svd")),
        "RidgeCV": regression(linear_model.RidgeCV),
        "PCA": lambda a: abs(decomposition.PCA(2, svd_solver="full").fit(a(X)).transform(a(X))),
        "PCA by eigh": lambda a: abs(decomposition.PCA(2, svd_solver="covariance_eigh").fit(a(X)).transform(a(X))),
        "metrics": scores,
        "scalers": scaled,
    }


def other_calls() -> dict[str, Call]:
    import einops.array_api
    import xarray

    x = X.reshape(6, 10, 4)

    def labelled(a: Any) -> Any:
        table = xarray.DataArray(a(X), dims=("a", "b"))
        return [(table + table).mean("a").data, table.where(table > 0, 0.0).data, table.transpose("b", "a").data,
                xarray.concat([table, table], "a").data, table.std("a").data, table.isel(a=slice(0, 3)).data]  # fmt: skip

    return {
        "einops": lambda a: [einops.array_api.rearrange(a(x), "a b c -> (a c) b"), einops.array_api.reduce(a(x), "a b c -> a c", "mean")],
        "xarray": labelled,
    }  # fmt: skip


def opt_einsum_calls() -> dict[str, Call]:
    import opt_einsum

    return {"contract": lambda a: opt_einsum.contract("ij,kj,kl->li", a(X), a(X), a(X))}


def flat(value: Any) -> Iterator[Any]:
    """Yield the arrays and numbers inside a result."""
    if isinstance(value, dict) or is_dataclass(value):
        value = list(value.values()) if isinstance(value, dict) else list(vars(value).values())
    if isinstance(value, (list, tuple)):
        for part in value:
            yield from flat(part)
    else:
        yield value


def difference(name: str, got: Any, want: Any) -> str:
    """Return how two results differ; "": not at all."""
    for g, w in zip(flat(got), flat(want), strict=True):
        if isinstance(w, np.ndarray) and w.ndim and name not in ON_HOST and not isinstance(g, tt.Tensor):
            return f"the result is {type(g).__name__}, not a tensor"
        if not np.allclose(np.asarray(g), np.asarray(w), rtol=1e-4, atol=1e-6, equal_nan=True):
            return f"{np.asarray(g)} instead of {np.asarray(w)}"
    return ""


def dispatching(library: str) -> AbstractContextManager[Any]:
    """Return the context in which a library takes arrays of others."""
    if library != "sklearn":
        return nullcontext()
    import sklearn

    context: AbstractContextManager[Any] = sklearn.config_context(array_api_dispatch=True)
    return context


def main(library: str) -> None:
    warnings.simplefilter("ignore")
    calls = {"scipy": scipy_calls, "sklearn": sklearn_calls, "xarray": other_calls, "opt_einsum": opt_einsum_calls}[
        library
    ]()
    for name, call in calls.items():
        try:
            want = call(np.array)
            with dispatching(library):
                got = call(lambda data: tt.asarray(np.array(data)))
            sys.stdout.write(f"{name}: {difference(name, got, want) or 'ok'}".replace("\n", " ") + "\n")
        except Exception as error:
            sys.stdout.write(f"{name}: {type(error).__name__}: {error}".replace("\n", " ") + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
