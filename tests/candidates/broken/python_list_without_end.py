# expect: out_of_memory MemoryError
# memory_mib: 512
# Takes memory in small pieces until there is none.
def solution(tensor):
    kept = []
    while True:
        kept.append(bytearray(1 << 20))
