"""Restore eigenvectors that came from a rounded basis."""

import torch
from torch import Tensor

from lt_lib.curvature.basis import products
from lt_lib.curvature.eigenpairs import Eigenpairs, judged, rayleigh_quotient
from lt_lib.curvature.operators import Operator, norm

ROUNDS = 4  # products a pair may take


def refine(operator: Operator, pairs: Eigenpairs) -> Eigenpairs:
    """Return the pairs after orthogonal iteration in the operator's precision, verified.

    What rounding of stored vectors put in lies mostly in the bulk, whose eigenvalues are small beside the
    spikes': each product shrinks it by their ratio. The product that certifies a vector is also its next
    iterate, so a pair takes one product if it is good already, and at most `ROUNDS`. Vectors are overwritten
    one by one, so that no second set is held.
    """
    vectors = pairs.vectors
    values, errors = torch.zeros_like(pairs.values), torch.zeros_like(pairs.residuals)
    spent = 0
    for i in range(len(vectors)):  # the largest first
        for _ in range(ROUNDS):
            q = _orthogonal(vectors[i], vectors[:i])
            vectors[i] = q
            image = operator.matvec(q)
            spent += 1
            values[i], errors[i] = rayleigh_quotient(q, image)
            if errors[i] <= pairs.tol * abs(float(values[i])):
                break
            vectors[i] = image
        else:
            vectors[i] = q  # what was judged last
    return judged(operator, pairs, values, errors, spent)


def _orthogonal(w: Tensor, earlier: Tensor) -> Tensor:
    for _ in range(2):
        w = w - products(earlier, w).to(w) @ earlier
    return w / norm(w)
