"""What processes say to each other: frames, messages, orders and their replies, the layout of shared memory.

Every process imports it. It answers what may be said and in which form, never what is done about it. Imports the
standard library alone.
"""
