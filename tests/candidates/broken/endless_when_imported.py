# expect: compile_error no end after 3 s
# compile_timeout_s: 3
# The import never ends.
while True:
    pass


def solution(tensor):
    return tensor
