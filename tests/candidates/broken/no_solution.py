# expect: compile_error defines no function `solution`
# The name is mentioned, nothing is defined.
import torch

the_solution = torch.float32
solution = None
