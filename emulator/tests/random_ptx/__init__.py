"""Random PTX programs that use every instruction of the emulator, with digests of what they left in a GPU's memory.

`forms*` lists instructions, `operands` makes inputs, `program` writes programs.
"""
