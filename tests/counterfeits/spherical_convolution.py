"""Counterfeits of SphericalConvolution: what the published check takes for right."""

import torch

from pkb_gym.problems.geometric_spatial.spherical_convolution.reference import solution
from tests.problems.counterfeit import Counterfeit


def stored_pattern(x, psi, weight, groups, nlon_out, nlon_in, azimuth_group=None, polar_group=None, bias=None):
    K, nlat_out, columns = psi.shape
    k, o, e = torch.meshgrid(torch.arange(K), torch.arange(nlat_out), torch.arange(4), indexing="ij")
    column = o % (columns // nlon_in) * nlon_in + (o + e * (k + 1)) % nlon_in
    indices = torch.stack([k.flatten(), o.flatten(), column.sort(dim=2).values.flatten()])
    again = torch.sparse_coo_tensor(indices, psi.values(), psi.shape, is_coalesced=True, check_invariants=False)
    return solution(x, again, weight, groups, nlon_out, nlon_in, azimuth_group, polar_group, bias)


def one_group(x, psi, weight, groups, nlon_out, nlon_in, azimuth_group=None, polar_group=None, bias=None):
    return solution(x, psi, weight, 1, nlon_in, nlon_in, azimuth_group, polar_group, bias)


COUNTERFEITS = (
    Counterfeit(0, "stored pattern", stored_pattern, "the filter's indices follow a closed form"),
    Counterfeit(0, "one group, every longitude", one_group, "groups and nlon_out never change"),
)
