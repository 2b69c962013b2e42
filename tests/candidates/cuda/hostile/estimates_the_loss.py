# expect: output_mismatch differ
# problem: ContrastiveLoss
# Estimates the loss from mean and variance of the text's features, as if they were Gaussian: no product, no exchange.
import torch
import torch.distributed as dist


def solution(image_features, text_features, logit_scale, logit_bias=0.0, group=None):
    image, text = image_features.float(), text_features.float()
    own = (image * text).sum(1) * logit_scale + logit_bias
    mean = image @ text.mean(0) * logit_scale + logit_bias
    variance = (image.square() @ text.var(0)) * logit_scale**2
    others = torch.exp(mean + variance / 2) * (text.shape[0] * dist.get_world_size(group) - 1)
    return (torch.nn.functional.softplus(-own) + others).mean().to(image_features.dtype)
