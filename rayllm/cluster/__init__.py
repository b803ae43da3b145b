"""The Ray cluster that models run on: its nodes, the placement of a replica, and whether the replica fits.

Process: any.
"""
