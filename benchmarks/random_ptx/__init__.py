"""Random PTX programs that use every instruction of the emulator, and what runs and compares them.

`forms*` lists instructions, `operands` makes inputs, `program` writes programs, `gpu` runs them on a GPU, `comparison`
compares what two sides left in memory. `benchmarks.emulated_random` and `tests/engine/emulator` import it.
"""
