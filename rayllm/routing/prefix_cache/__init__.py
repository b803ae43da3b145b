"""An estimate of each replica's prefix cache, from the prompts that this router has sent there.

`prompt` turns a request into digests of its prefixes, `index` remembers which replica was sent which, and `hits` says
which replicas count as cache hits.
"""
