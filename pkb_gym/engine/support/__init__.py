"""Small tools without any notion of kernels. Imports nothing of the engine but `errors`."""
