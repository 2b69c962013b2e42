# expect: runtime_error RuntimeError
# An error message that is no valid Unicode, and long.
def solution(tensor):
    raise RuntimeError("\ud800\udfff\0" * 100_000)
