# expect: wrong_shape_or_dtype nothing: expected None, got a Tensor of shape ()
# problem: ImportanceSamplingLoss
import torch


def solution(hidden_states, weight, labels, old_logprobs, advantages, ignore_index=-100):
    loss = torch.zeros(())
    return loss, loss, old_logprobs.clone(), old_logprobs.clone(), torch.zeros(5)
