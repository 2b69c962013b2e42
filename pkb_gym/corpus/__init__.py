"""Data to learn from: prompts, and conversations whose every submission was really evaluated.

Modules here import `pkb_gym.envs` and what lies below it. The kernels are those of `pkb_gym.kernels`; `breakages` holds
ways to break them; `prompts` and `conversations` make the rows, `evaluate` has them judged, `manifest` counts them.
"""
