# expect: compile_error SyntaxError; expected ':'
# A colon is missing.
import torch

def solution(tensor)
    return tensor
