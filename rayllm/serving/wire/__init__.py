"""A client's bytes: one road from its connection to a replica and back.

An `Exchange` is one client's request with the reply to it. `Wire.send` takes an exchange to a replica and says by an
`Outcome` how that ended. There are two lanes:

- `relay`: the router sends the request by HTTP and writes the reply to the client. Read this first.
- `handover`: on one node, the router passes the client's socket to the replica, which writes the reply itself.

`states` lists the states of an exchange, and who may make which step. `journal` has what another replica needs
to continue a stream, and `listener` the sockets that clients connect to.

Process: router, replica.
"""
