"""Memory against the size of the load: what a larger batch or a longer sequence takes, and what each unit of work leaves.

    bytes = base + a * batch^p * tokens^q + r * units of work done

A program says its load with `leakscope.tick(batch=, tokens=)`. Activations grow with the batch to the power of one and with
the length to that of one to two, weights do not grow: so a power law with a base. The powers are searched on a grid; for each
of them the rest is linear and solved by least squares (variable projection: Golub and Pereyra 1973, SIAM J. Numer. Anal. 10).
The intervals come from a bootstrap of blocks of neighbouring observations (Kuensch 1989, Annals of Statistics 17): neighbours
say the same thing. It is seeded, so that one session gives one answer.

Memory is sampled at any moment of a request, and what counts is its peak: an observation is the highest sample among some of
about the same load and time, and what lies below the curve weighs little (asymmetric least squares: Newey and Powell 1987,
Econometrica 55). Where the allocator's own peak rose since the row before, that peak is taken: it is what the largest request
of that row took. The peak is never reset, as the program may read it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from leakscope.analyse import layers
from leakscope.analyse.layers import Points, Window
from leakscope.analyse.memory import LEAST_BYTES
from leakscope.analyse.trend import theil_sen
from leakscope.units import bytes_text

Sample = dict[str, Any]
_Floats = NDArray[np.float64]

LEAST_OBSERVATIONS = 12  # for five numbers; ours
ROWS_OF_AN_OBSERVATION = 6  # the highest of so many rows is near the peak; ours, tuned on sawtooths
LEAST_STRETCHES, MOST_STRETCHES = 4, 24  # of time, each of which has its own observations; ours
SIZES_IN_AN_OCTAVE = (4, 2, 1)  # loads that differ by less are about the same: as fine as the rows allow; ours
BELOW = 0.1  # weight of what lies below the curve, against what lies above; ours
ROUNDS = 3  # of weighing again; ours
LEAST_SIZES, LEAST_RANGE = 4, 1.5  # different batches (or lengths), and the largest over the smallest, for a power; ours
POWERS = (0.25, 3.0)  # of batch and length: attention is quadratic in the length, nothing known is worse than cubic
COARSE, FINE = 0.25, 0.05  # steps of the search
MOST_ALIKE = 0.9  # of its variance that the load may share with the count of work, to be told apart from it; ours
SAMPLES, SEED = 100, 5  # of the bootstrap
TAIL = 2.5  # per cent outside of the interval on either side
LATE_SHARE = 0.5  # of what is left per unit still comes in the second half (page "gpu", 5.1: the last third against all)
ERRORS = 2.0  # mean errors of the curve that a predicted batch allows for, to either side
GOOD = 0.9  # of the variance has to be explained for a claim; ours
EXPLAINS = 0.5  # of the growth, as in work.py
NOTHING = 0.01  # of the growth that is certainly left per unit is as good as none; ours
DEVICE_LEAST_BYTES, DEVICE_LEAST_SHARE = 64 << 20, 0.01  # the least growth on a device that matters (page "gpu", 5.1)
REACHES = 4.0  # times the largest batch seen: further nothing is predicted; ours
NARROW = 2.0  # the upper bound of a predicted batch is at most so many times the lower; ours


class Estimate(NamedTuple):
    """A number and its interval of 95 %."""

    value: float
    low: float
    high: float


class LoadFit(NamedTuple):
    """Memory as a function of the load.

    `base`: bytes without load. `batch_power`, `token_power`: None where that did not vary. `per_unit`: bytes that a unit of
    work leaves behind at equal load. `fit_ratio`: of the variance that the fit explains. `growth_bytes`: of what was observed,
    from the start to the end of the window; `explained_ratio` of it by the load, None where nothing grew. `most_bytes`: the
    highest observation. `too_large_batch`: the least batch that would not fit into `limit_bytes` at `most_tokens`; None where
    that cannot be said. `is_separable`: load and count of work did not just rise together. `goes_on`: what is left at equal
    load still comes in the second half of the window; memory that stays at its high water does not. `least_bytes`: less growth
    does not matter.
    """

    base: Estimate
    batch_power: Estimate | None
    token_power: Estimate | None
    per_unit: Estimate
    units: int
    fit_ratio: float
    growth_bytes: float
    explained_ratio: float | None
    most_batch: int | None
    most_tokens: int | None
    most_bytes: int
    limit_bytes: int | None
    too_large_batch: Estimate | None
    is_separable: bool
    goes_on: bool
    least_bytes: int

    @property
    def is_good(self) -> bool:
        """True if it may be told: it fits, its powers lie inside of what was searched, and load and work are told apart."""
        powers = [each.value for each in (self.batch_power, self.token_power) if each]
        inside = all(POWERS[0] < power < POWERS[1] for power in powers)
        return self.is_separable and inside and self.fit_ratio >= GOOD

    @property
    def grows_per_unit(self) -> bool:
        """True if memory certainly grows at equal load, and by what matters."""
        return self.is_good and self.goes_on and self.per_unit.low * self.units >= self.least_bytes

    @property
    def is_explained(self) -> bool:
        """True if the load explains most of the growth, and nothing certain is left at equal load."""
        is_little = self.per_unit.high * self.units <= EXPLAINS * self.growth_bytes
        explained = self.explained_ratio is not None and self.explained_ratio >= EXPLAINS
        return self.is_good and explained and is_little and self.per_unit.low * self.units <= NOTHING * self.growth_bytes

    def sentence(self, where: str, unit: str) -> str:
        """Return what there is to say of memory `where` ("on cuda:0") by `unit` of work; "" where nothing is certain."""
        if not self.is_good:
            return ""
        parts = [f"{name} to the power of {each.value:.1f} ({each.low:.1f} to {each.high:.1f})"
                  for name, each in (("the batch", self.batch_power), ("the length", self.token_power)) if each]
        said = f"Peak memory {where} is {bytes_text(max(0.0, self.base.value))} and a part that grows with "
        said += " and ".join(parts)
        if self.grows_per_unit:
            left, least, most = map(bytes_text, self.per_unit)
            said += f"; on top of it each {unit} leaves {left} ({least} to {most})"
        elif self.is_explained:
            said += f", which explains the growth; nothing certain is left per {unit}"
        if self.too_large_batch is None:
            return said + "."
        value, low, high = (int(each) + 1 for each in self.too_large_batch)  # the next whole one
        at = f" of {self.most_tokens:,} tokens" if self.most_tokens else ""
        bounds = f" ({low:,} to {high:,})" if low < high else ""
        return f"{said}. A batch of {value:,}{at} would no longer fit{bounds}."


class _Observed(NamedTuple):
    """(N,) each: when, bytes, units of work done; and the load: batch and tokens, 1 where not told."""

    t_s: _Floats
    size: _Floats
    done: _Floats
    load: _Floats  # (2, N)


class _Solution(NamedTuple):
    powers: tuple[float, float]
    base: float
    factor: float  # bytes at a load of 1, 1
    per_unit: float
    fit_ratio: float
    error_bytes: float  # root of the mean square of what is left

    def by_load(self, observed: _Observed) -> _Floats:
        """What the load takes at each observation."""
        taken: _Floats = self.factor * np.prod(observed.load ** np.array(self.powers)[:, None], axis=0)
        return taken

    def at(self, observed: _Observed) -> _Floats:
        """The curve at each observation."""
        return self.base + self.per_unit * observed.done + self.by_load(observed)


def load_fit(timeline: Sequence[Sample], window: Window, device: str | None = None, limit_bytes: int | None = None,
             points: Points | None = None) -> LoadFit | None:
    """Fit memory against the load in a window of the run.

    Args:
        timeline: samples with load_batch, load_tokens and work_count.
        device: "cuda:0"; None: the host's private memory.
        limit_bytes: what there is for the memory that is fitted; None: not known.
        points: (seconds, bytes) of the host's memory; by default its column anon_bytes.

    Returns None where the program did not say its load, or the load hardly varied, or there are too few moments.
    """
    observed = _observed(_rows(timeline, window, device, points), window)
    best = _best(observed) if observed is not None else None
    if observed is None or best is None:
        return None
    least = LEAST_BYTES if device is None else max(DEVICE_LEAST_BYTES, int(DEVICE_LEAST_SHARE * (limit_bytes or 0)))
    return _told(best, observed, window, limit_bytes, least)


# --- observations -----------------------------------------------------------------------------------------------------

_Row = tuple[float, float, float, int, int]
_Load = tuple[int, int]  # batch and tokens, 0 where not told
_NONE: _Load = (0, 0)


def _rows(timeline: Sequence[Sample], window: Window, device: str | None, points: Points | None) -> list[_Row]:
    """(seconds, bytes, units done, batch, tokens): the highest memory of the time up to a load that was told, or some of them.

    A unit is told when it is done: what was measured before it belongs to it. Devices are asked less often than rows are
    written: then the largest load of some rows goes with what was measured at the end of them.
    """
    known = dict(points) if points is not None else {}
    prefix = device.replace(":", "") + "_" if device else ""
    done, peak, high, largest, found = 0.0, None, None, _NONE, []  # type: float, int | None, float | None, _Load, list[_Row]
    for sample in timeline:
        t_s = sample["t_ns"] / 1e9
        done = float(sample.get("work_count", done))
        load = int(sample.get("load_batch", 0)), int(sample.get("load_tokens", 0))
        largest = max(largest, load, key=_product)
        size = sample.get(prefix + "allocated_bytes") if device else known.get(t_s, sample.get("anon_bytes"))
        before = peak
        peak = sample.get(prefix + "allocated_peak_bytes", peak) if device else None
        is_new_peak = before is not None and peak is not None and peak > before
        now = peak if is_new_peak else size
        high = now if high is None or now is not None and now > high else high
        if high is None or largest == _NONE:
            continue
        if window.start_s <= t_s <= window.end_s:
            is_own = load != _NONE and high == size and not is_new_peak
            found.append((t_s, float(high), done, *(load if is_own else largest)))
        high, largest = None, _NONE
    return found


def _product(load: _Load) -> int:
    return max(load[0], 1) * max(load[1], 1) if load != _NONE else 0


def _observed(rows: Sequence[_Row], window: Window) -> _Observed | None:
    """The highest rows of about the same load and time; None where there are too few, or the load is always the same."""
    if len(rows) < ROWS_OF_AN_OBSERVATION * LEAST_OBSERVATIONS:
        return None
    t_s, _, _, batch, tokens = np.array(rows, float).T
    logs = np.log2([_or_one(batch), _or_one(tokens)])
    for fine in SIZES_IN_AN_OCTAVE:
        alike = np.round(logs * fine).astype(int)
        stretches = len(rows) // (ROWS_OF_AN_OBSERVATION * len(np.unique(alike, axis=1).T))
        if stretches >= LEAST_STRETCHES:
            break
    stretch = ((t_s - window.start_s) / window.length_s * np.clip(stretches, 1, MOST_STRETCHES)).astype(int)
    highest: dict[tuple[int, ...], _Row] = {}
    seen: Counter[tuple[int, ...]] = Counter()
    for key, row in zip(zip(stretch.tolist(), *alike.tolist()), rows):
        highest[key] = max(highest.get(key, row), row, key=lambda each: each[1])
        seen[key] += 1
    chosen = sorted(row for key, row in highest.items() if seen[key] >= ROWS_OF_AN_OBSERVATION // 2)
    if len(chosen) < LEAST_OBSERVATIONS:
        return None
    t_s, size, done, batch, tokens = np.array(chosen, float).T
    load = np.array([_or_one(batch), _or_one(tokens)])
    return _Observed(t_s, size, done, load) if any(map(_varies, load)) else None


def _or_one(sizes: _Floats) -> _Floats:
    """The same; all ones where some are not told: then this cannot be asked of the memory."""
    return sizes if sizes.min() > 0 else np.ones_like(sizes)


def _varies(sizes: _Floats) -> bool:
    return len(np.unique(sizes)) >= LEAST_SIZES and sizes.max() >= LEAST_RANGE * sizes.min()


# --- the fit ----------------------------------------------------------------------------------------------------------

def _best(observed: _Observed) -> _Solution | None:
    """The best powers, weighed again so that what was sampled between the peaks counts little; None: memory does not rise."""
    weights, found = np.ones_like(observed.size), None
    for _ in range(ROUNDS):
        found = _search(observed, weights)
        if found is None:
            return None
        weights = _weights(observed, found)
    return found


def _weights(observed: _Observed, found: _Solution) -> _Floats:
    return np.where(observed.size >= found.at(observed), 1.0, BELOW)


def _search(observed: _Observed, weights: _Floats) -> _Solution | None:
    """The least squares over the grid of powers, then over the fine one around the best."""
    varying = [_varies(each) for each in observed.load]
    coarse = [np.arange(POWERS[0], POWERS[1] + COARSE / 2, COARSE) if varies else np.zeros(1) for varies in varying]
    found = _solve(observed, weights, coarse)
    if found is None:
        return None
    fine = [np.clip(np.arange(power - COARSE, power + COARSE + FINE / 2, FINE), *POWERS) if varies else np.zeros(1)
            for power, varies in zip(found.powers, varying)]
    return _solve(observed, weights, fine) or found


def _solve(observed: _Observed, weights: _Floats, grid: Sequence[_Floats]) -> _Solution | None:
    batch_powers, token_powers = (each.ravel() for each in np.meshgrid(*grid, indexing="ij"))
    roots = np.sqrt(weights)
    logs = np.log(observed.load) - np.log(observed.load.max(axis=1, keepdims=True))
    shapes = np.exp(np.outer(logs[0], batch_powers) + np.outer(logs[1], token_powers)) * roots[:, None]  # (N, G)
    fixed = np.column_stack([roots, observed.done * roots] if np.ptp(observed.done) > 0 else [roots])
    basis, _ = np.linalg.qr(fixed)
    size = observed.size * roots
    free_shapes, free_size = shapes - basis @ (basis.T @ shapes), size - basis @ (basis.T @ size)
    power, along = (free_shapes ** 2).sum(axis=0), free_shapes.T @ free_size
    usable = (along > 0) & (power > 1e-9 * (shapes ** 2).sum(axis=0))
    spread = float((weights * (observed.size - np.average(observed.size, weights=weights)) ** 2).sum())
    if not usable.any() or spread <= 0:
        return None
    gain = np.where(usable, along ** 2 / np.where(usable, power, 1.0), -1.0)
    chosen = int(gain.argmax())
    height = float(along[chosen] / power[chosen])
    rest = np.linalg.lstsq(fixed, size - height * shapes[:, chosen], rcond=None)[0]
    powers = float(batch_powers[chosen]), float(token_powers[chosen])
    factor = height / float(np.prod(observed.load.max(axis=1) ** np.array(powers)))
    left = float((free_size ** 2).sum() - gain[chosen])
    per_unit = float(rest[1]) if len(rest) > 1 else 0.0
    error = float(np.sqrt(max(0.0, left) / weights.sum()))
    return _Solution(powers, float(rest[0]), factor, per_unit, 1.0 - left / spread, error)


def _resampled(observed: _Observed, weights: _Floats) -> list[_Solution]:
    """Fits of the observations drawn again in blocks."""
    count = len(observed.size)
    length = max(3, round(count ** (1 / 3)))
    draw, found = np.random.default_rng(SEED), []
    for _ in range(SAMPLES):
        starts = draw.integers(0, count - length + 1, -(-count // length))
        rows = np.sort((starts[:, None] + np.arange(length)).ravel()[:count])
        again = _Observed(observed.t_s[rows], observed.size[rows], observed.done[rows], observed.load[:, rows])
        is_alike = [*map(_varies, again.load)] == [*map(_varies, observed.load)]  # else it says nothing of one of the powers
        solution = _search(again, weights[rows]) if is_alike else None
        if solution is not None:
            found.append(solution)
    return found


def _told(best: _Solution, observed: _Observed, window: Window, limit_bytes: int | None, least_bytes: int) -> LoadFit:
    again = _resampled(observed, _weights(observed, best)) or [best]
    varying = [_varies(each) for each in observed.load]
    powers = [_estimate(best.powers[row], [each.powers[row] for each in again], FINE / 2) if varies else None
              for row, varies in enumerate(varying)]
    taken = best.by_load(observed)
    growth = layers.change(list(zip(observed.t_s.tolist(), observed.size.tolist())), window) or 0.0
    by_load = layers.change(list(zip(observed.t_s.tolist(), taken.tolist())), window) or 0.0
    told = LoadFit(
        base=_estimate(best.base, [each.base for each in again]), batch_power=powers[0], token_power=powers[1],
        per_unit=_estimate(best.per_unit, [each.per_unit for each in again]), units=round(np.ptp(observed.done)),
        fit_ratio=best.fit_ratio, growth_bytes=growth,
        explained_ratio=min(1.0, max(0.0, by_load / growth)) if growth > 0 else None,
        most_batch=_most(observed.load[0]), most_tokens=_most(observed.load[1]), most_bytes=int(observed.size.max()),
        limit_bytes=limit_bytes, too_large_batch=None, is_separable=_is_separable(observed, best),
        goes_on=_goes_on(observed, best, window), least_bytes=least_bytes)
    return told._replace(too_large_batch=_too_large(told, best, again, observed)) if told.is_good and varying[0] else told


def _most(sizes: _Floats) -> int | None:
    return int(sizes.max()) if sizes.max() > 1 else None


def _estimate(value: float, drawn: Sequence[float], step: float = 0.0) -> Estimate:
    """The value and what most of the drawn ones lie between; `step`: how finely they were searched, to either side."""
    low, high = np.percentile(drawn, [TAIL, 100 - TAIL])
    return Estimate(value, min(value, float(low)) - step, max(value, float(high)) + step)


def _is_separable(observed: _Observed, best: _Solution) -> bool:
    """True if the load did not just rise (or fall) with the count of work: then either explains what the other does."""
    if np.ptp(observed.done) <= 0:
        return True
    shapes = (best.by_load(observed), observed.load.prod(axis=0))
    alike = [np.corrcoef(shape, observed.done)[0, 1] ** 2 if np.ptp(shape) > 0 else 1.0 for shape in shapes]
    return bool(max(alike) <= MOST_ALIKE)


def _goes_on(observed: _Observed, best: _Solution, window: Window) -> bool:
    """True if what is left at equal load rises in the second half of the window, about as much as in the whole."""
    left = observed.size - best.by_load(observed)
    late = (observed.t_s >= window.tail.start_s) & (observed.size >= best.at(observed) - best.error_bytes)
    slope = theil_sen(list(zip(observed.done[late].tolist(), left[late].tolist())))
    return slope is not None and slope.is_positive and slope.value >= LATE_SHARE * best.per_unit


def _too_large(told: LoadFit, best: _Solution, again: Sequence[_Solution], observed: _Observed) -> Estimate | None:
    """The batch at which memory reaches its limit at the longest sequence seen, at the end of the run."""
    if told.limit_bytes is None or told.limit_bytes <= told.most_bytes:
        return None
    tokens, done = float(observed.load[1].max()), float(observed.done.max())

    limit, error = float(told.limit_bytes), ERRORS * best.error_bytes

    def least(fit: _Solution, limit: float) -> float:
        room = limit - fit.base - max(0.0, fit.per_unit) * done
        return float((max(room, 0.0) / (fit.factor * tokens ** fit.powers[1])) ** (1 / fit.powers[0]))

    found = _estimate(least(best, limit), [least(each, limit + side) for each in again for side in (-error, error)])
    most = float(observed.load[0].max())
    is_near = most < found.low and found.value <= REACHES * most
    return found if is_near and found.high <= NARROW * found.low else None
