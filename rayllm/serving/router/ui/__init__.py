"""The page at `/ui`: `source` is what it is written in, `static` what `make ui` builds of it and routers serve."""
