# expect: compile_error SystemExit
# The module ends the process when it is imported.
import sys

sys.exit(0)


def solution(tensor):
    return tensor
