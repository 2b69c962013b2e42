"""The evaluation service: one owner of a node's devices, asked by many. Imports envs and what lies below it."""
