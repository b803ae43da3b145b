"""What is deployed, what a new configuration would change, and which changes restart replicas.

Process: command line, router, and replica.
"""
