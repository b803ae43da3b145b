"""The relay over HTTP: for replicas on other nodes, behind proxies, and for replies that must be read.

Process: router (`lane`, `transport`), replica (`reply`).
"""
