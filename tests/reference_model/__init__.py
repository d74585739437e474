"""A plain-Python model of the log, written from the format's description alone: slow and obvious.

It shares no code with the engine, so that a mistake has to be made twice to go unseen.
"""
