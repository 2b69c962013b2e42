"""pkb-gym: the 87 multi-GPU problems of ParallelKernelBench as Gymnasium environments."""

import signal
import sys

if sys.argv[:1] and sys.argv[0].endswith("/pkb") and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    # The imports of the command line end without a traceback on Ctrl-C; `cli.program.main` has Python's handler again.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from pkb_gym.envs.registration import register_evaluator, register_problem, register_with_gymnasium

__all__ = ["register_problem"]
__version__ = "0.1.0"

register_with_gymnasium()
register_evaluator("ray", "pkb_gym.cluster.evaluator:RayEvaluator")
