# expect: runtime_error SystemExit; call it a day
# SystemExit is an exception like any other.
def solution(tensor):
    raise SystemExit("call it a day")
