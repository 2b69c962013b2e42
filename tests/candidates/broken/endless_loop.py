# expect: timeout still computing
# Computes for ever.
def solution(tensor):
    while True:
        tensor.sum()
