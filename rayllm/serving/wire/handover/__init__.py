"""The handover: on one node, a replica writes its reply directly to the client's socket.

The router parses the request, chooses a replica and passes the socket; the replica reports how the reply ended. No byte
of the reply passes through the router, which keeps reading from the connection: the client's disconnect, or its next
request.

Process: router (`lane`, `sender`), replica (`receiver`, `reply`, `client_connection`), both (`channel`).
"""
