"""An estimate of each replica's prefix cache, from the prompts that this router has sent there.

`prompt` turns a request into digests of its prefixes, and `index` remembers which replica was sent which.
"""
