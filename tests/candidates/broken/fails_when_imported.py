# expect: compile_error cannot be imported; ModuleNotFoundError; no_such_module
# An import that is not there.
import no_such_module


def solution(tensor):
    return no_such_module.solve(tensor)
