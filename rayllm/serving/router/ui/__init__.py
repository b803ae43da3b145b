"""The page at `/ui`: its sources in `source`, and in `static` the files that `make ui` builds and routers serve."""
