"""The communication of processes: frames, messages, orders and their replies, the layout of shared memory.

Every process imports it. It answers which messages there are and in which form, never what is done about them.
Imports the standard library alone.
"""
