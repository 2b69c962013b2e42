# expect: runtime_error rank 0
# An error message that is no valid Unicode, and long.
def solution(tensor):
    raise RuntimeError("\ud800\0" * 100_000)
