# expect: compile_error SyntaxError; candidate.py; line 5
# A colon is missing.
import torch

def solution(tensor)
    return tensor
