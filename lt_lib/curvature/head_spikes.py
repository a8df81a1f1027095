"""Closed-form Hessian spectrum of a collapsed softmax head (Theorem T3): every eigenvalue, with directions.

Setting: C balanced classes; all features of class c sit at `mu_c = mu_G + m_c`, the m_c are a simplex ETF of
radius r, mu_G is orthogonal to them and has length g; each class gives its own label the probability p and
every other label q = (1 - p)/(C - 1). Parameters are the head's weight (C, d), row by row, then its bias.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from lt_lib.collapse.etf import helmert, simplex_etf


@dataclass(frozen=True)
class Level:
    """One eigenvalue with its eigenspace's dimension."""

    name: str  # "temperature", "upper", "lower", "mini_bulk"
    value: float
    multiplicity: int


@dataclass(frozen=True)
class HeadSpikes:
    """Eigenvalues of `H = 1/C sum_c A_c (x) mu_c mu_c^T`, A_c = diag(p_c) - p_c p_c^T (Theorem T3)."""

    classes: int  # C
    p: float  # probability of a sample's own label
    radius: float  # r
    common: float  # length of what all class means share: g, with a bias sqrt(||mu_G||^2 + 1)
    temperature: float  # lambda_1, once: the weight itself under NC3
    upper: float  # lambda_+, C - 1 times: bias shifts mixed with class gains
    lower: float  # lambda_-, C - 1 times; 0 if nothing is common
    mini_bulk: float  # lambda_b, C^2 - 3C + 1 times
    angle: float  # an upper eigenvector is cos(angle) bias shift + sin(angle) class gain, both of unit length

    @property
    def gamma(self) -> float:
        """The ratio g^2 / r^2 that decides where the largest gap lies."""
        return (self.common / self.radius) ** 2

    @property
    def trace(self) -> float:
        """Return `(1 - p^2 - (C - 1) q^2) (g^2 + r^2)`, the sum of all eigenvalues."""
        q = (1 - self.p) / (self.classes - 1)
        return (1 - self.p**2 - (self.classes - 1) * q**2) * (self.common**2 + self.radius**2)

    @property
    def levels(self) -> tuple[Level, ...]:
        """The four eigenvalues with multiplicities, largest first; C(C - 1) of them in all, the rest is 0."""
        c = self.classes
        found = (
            Level("temperature", self.temperature, 1),
            Level("upper", self.upper, c - 1),
            Level("lower", self.lower, c - 1),
            Level("mini_bulk", self.mini_bulk, c * c - 3 * c + 1),
        )
        return tuple(sorted(found, key=lambda level: -level.value))

    def eigenvalues(self, size: int | None = None) -> Tensor:
        """Return the C(C - 1) eigenvalues of the levels, each as often as it occurs, largest first, float64.

        Args:
            size: number of parameters, C d or C (d + 1) with a bias; zeros fill up to it. None: no filling.

        Raises:
            ValueError: `size` is too small for the class means to exist.
        """
        values = [level.value for level in self.levels for _ in range(level.multiplicity)]
        rank = len(values) if self.common > 0 else (self.classes - 1) ** 2
        if size is not None and size < rank:
            raise ValueError(f"`size` must be at least {rank}, the rank of this Hessian; found {size}.")
        filled = values + [0.0] * (0 if size is None else size - len(values))
        return torch.tensor(filled[: size or len(values)], dtype=torch.float64)

    def directions(self, means: Tensor, bias: bool = False, mini_bulk: bool = False) -> dict[str, Tensor]:
        """Return orthonormal eigenvectors of each level, as rows over (weight row by row, then bias).

        With unit u along what is common, `f_c = e_c - 1/C` and v over an orthonormal basis of 1^perp:
        temperature `sum_c f_c (x) m_c`; upper and lower mix `v (x) u` with `sum_c v_c f_c (x) m_c`, both
        normalised; the mini-bulk is what is left of 1^perp (x) span(m_c).

        Args:
            means: (C, d) collapsed class means with this radius and common length.
            bias: whether the bias is a parameter (a last feature 1).
            mini_bulk: whether to build the mini-bulk too (a QR of (C - 1)^2 columns).

        Returns:
            name -> (multiplicity, C d [+ C]) float64; "lower" is left out when nothing is common.
        """
        centred, axis = _frame(means, bias)
        basis = helmert(self.classes)
        gains = torch.einsum("ck,ca,cd->kad", basis, _centring(self.classes), centred)
        gains = gains / gains.flatten(1).norm(dim=1)[:, None, None]
        found = {"temperature": (_centring(self.classes) @ centred)[None]}
        found["temperature"] = found["temperature"] / found["temperature"].norm()
        if axis is None:
            found["upper"] = gains
        else:
            shifts = torch.einsum("ak,d->kad", basis, axis)
            cos, sin = math.cos(self.angle), math.sin(self.angle)
            found["upper"], found["lower"] = cos * shifts + sin * gains, cos * gains - sin * shifts
        if mini_bulk:
            found["mini_bulk"] = _mini_bulk(centred, basis)
        return {name: _flatten(block, bias) for name, block in found.items()}


def head_spikes(
    classes: int, p: float, radius: float = 1.0, common: float = 0.0, bias: bool = False
) -> HeadSpikes:
    """Return all eigenvalues of the collapsed head's Hessian, which equals its Gauss-Newton matrix.

    With q = (1 - p)/(C - 1) and b = (C - 2)/(C - 1) (Theorem T3)::

        temperature  C p q r^2 / (C - 1)
        upper, lower eigenvalues of q [[g^2 (Cp + C - 2)/(C - 1), .], [g r (Cp - 1) sqrt(C - 2)/(C - 1)^1.5,
                                       r^2/(C - 1) (1 + (Cp - 1) b)]]
        mini_bulk    q r^2 / (C - 1)

    Their product is `upper * lower = q g^2 * temperature`. The mean cross-entropy is -log p.

    Args:
        classes: C, at least 3.
        p: probability of the own label, strictly between 0 and 1.
        radius: r > 0, length of a centred class mean.
        common: ||mu_G|| >= 0.
        bias: whether the head's bias is a parameter; it adds 1 to ||mu_G||^2.

    Raises:
        ValueError: an argument outside its range.
    """
    _check(classes, p, radius, common)
    g2, r2, n, q = common**2 + bias, radius**2, classes - 1, (1 - p) / (classes - 1)
    excess = classes * p - 1
    shift = g2 * (excess + n) / n
    gain = r2 / n * (1 + excess * (n - 1) / n)
    mixed = math.sqrt(g2 * r2 * (n - 1) / n) * excess / n
    upper = (shift + gain + math.hypot(shift - gain, 2 * mixed)) / 2
    first = classes * p * r2 / n
    return HeadSpikes(
        classes=classes,
        p=p,
        radius=radius,
        common=math.sqrt(g2),
        temperature=q * first,
        upper=q * upper,
        lower=q * g2 * first / upper,  # the determinant over the larger root: no cancellation
        mini_bulk=q * r2 / n,
        angle=math.atan2(2 * mixed, shift - gain) / 2,
    )


@dataclass(frozen=True)
class CollapsedHead:
    """A head with one feature a class that satisfies the assumptions of Theorem T3 exactly; float64."""

    means: Tensor  # (C, d)
    probabilities: Tensor  # (C, C), row c: softmax of class c
    weight: Tensor  # (C, d), a multiple of the centred means (NC3) that gives these probabilities; bias 0


def collapsed_head(
    classes: int, p: float, radius: float = 1.0, common: float = 0.0, dim: int | None = None, seed: int = 0
) -> CollapsedHead:
    """Return class means, probabilities and self-dual weight of a collapsed head.

    Args:
        classes: C, at least 3.
        p: probability of the own label, strictly between 0 and 1.
        radius: r > 0.
        common: ||mu_G|| >= 0; mu_G lies along the last axis.
        dim: d, at least C (C - 1 if nothing is common). None: C.
        seed: of the frame's rotation.

    Raises:
        ValueError: an argument outside its range, or too few dimensions for an ETF beside mu_G.
    """
    _check(classes, p, radius, common)
    dim = classes if dim is None else dim
    spare = int(common > 0)
    centred = radius * simplex_etf(classes, dim - spare, seed)
    shared = torch.full((classes, spare), common, dtype=torch.float64)
    q = (1 - p) / (classes - 1)
    probabilities = torch.full((classes, classes), q, dtype=torch.float64).fill_diagonal_(p)
    scale = math.log(p / q) * (classes - 1) / (classes * radius**2)  # gap log(p/q) = scale r^2 C/(C - 1)
    weight = scale * torch.cat([centred, torch.zeros_like(shared)], 1)
    return CollapsedHead(torch.cat([centred, shared], 1), probabilities, weight)


def head_hessian(
    features: Tensor, probabilities: Tensor, weights: Tensor | None = None, bias: bool = False
) -> Tensor:
    """Return the dense Hessian `sum_i w_i (diag(p_i) - p_i p_i^T) (x) h_i h_i^T` of a softmax head, float64.

    It does not depend on the labels, and is exact for every linear head: there H equals the Gauss-Newton
    matrix. Memory is the square of the number of parameters.

    Args:
        features: (n, d).
        probabilities: (n, C), rows that sum to one.
        weights: (n,) of the samples; None: 1/n each.
        bias: whether a bias follows the weight (C, d) in the parameter vector.

    Returns:
        (P, P) with P = C d, or C (d + 1).
    """
    features, probabilities = features.to(torch.float64), probabilities.to(torch.float64)
    n, classes = probabilities.shape
    weights = features.new_full((n,), 1 / n) if weights is None else weights.to(features)
    inner = torch.diag_embed(probabilities) - probabilities[:, :, None] * probabilities[:, None, :]
    if bias:
        features = torch.cat([features, features.new_ones(n, 1)], 1)
    width = features.shape[1]
    dense = torch.einsum("n,nab,nd,ne->adbe", weights, inner, features, features)
    dense = dense.reshape(classes * width, classes * width)
    order = _flatten(torch.arange(classes * width).reshape(1, classes, width), bias)[0]
    return dense[order][:, order]


def _check(classes: int, p: float, radius: float, common: float) -> None:
    if classes < 3:
        raise ValueError(f"`classes` must be at least 3; found {classes}. Two classes have a single spike.")
    if not 0 < p < 1:
        raise ValueError(f"`p` must lie strictly between 0 and 1; found {p}. At 1 the Hessian is zero.")
    if not (0 < radius < math.inf and 0 <= common < math.inf):
        raise ValueError(
            f"`radius` must be positive and `common` not negative, both finite; found {radius} and {common}."
        )


def _centring(classes: int) -> Tensor:
    return torch.eye(classes, dtype=torch.float64) - 1 / classes


def _frame(means: Tensor, bias: bool) -> tuple[Tensor, Tensor | None]:
    """Centred means (C, d') and the unit vector (d',) along the common part, None if that is zero."""
    means = means.to(torch.float64)
    if bias:
        means = torch.cat([means, means.new_ones(len(means), 1)], 1)
    shared = means.mean(0)
    if float(shared.norm()) <= 1e-12 * float(means.norm()):
        return means - shared, None
    return means - shared, shared / shared.norm()


def _mini_bulk(centred: Tensor, basis: Tensor) -> Tensor:
    """Orthonormal basis of the part of 1^perp (x) span(m_c) orthogonal to all f_c (x) m_c."""
    classes, rest = len(centred), basis.shape[1]
    pairs = (basis[:, :, None] * basis[:, None, :]).reshape(
        classes, rest * rest
    )  # f_c (x) f_c in coordinates
    q, _ = torch.linalg.qr(pairs.T, mode="complete")
    inside = basis.T @ centred  # rows orthogonal, of one length
    inside = inside / inside.norm(dim=1, keepdim=True)
    return torch.einsum("ai,kij,jd->kad", basis, q[:, classes:].T.reshape(-1, rest, rest), inside)


def _flatten(block: Tensor, bias: bool) -> Tensor:
    """(k, C, d') to (k, P): weight row by row, then, if the last feature is the bias's, that column."""
    if not bias:
        return block.flatten(1)
    return torch.cat([block[:, :, :-1].flatten(1), block[:, :, -1]], 1)
