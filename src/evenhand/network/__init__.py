"""The same methods on real machines: a server and clients that exchange messages.
"""
