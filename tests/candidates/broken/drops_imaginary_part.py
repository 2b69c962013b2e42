# expect: output_mismatch differ
# problem: DistributedRFFT
# world_size: 1
import torch


def solution(x, s, dim, norm="ortho", group=None):
    y = torch.fft.fftn(x, s=s, dim=dim, norm=norm).narrow(dim[1], 0, s[1] // 2 + 1).contiguous()
    return torch.complex(y.real.contiguous(), torch.zeros_like(y.real))
