"""Replies that a router passes on: what a replica sends beside the events of a stream."""

from rayllm.serving.relay.frames import Frame, FrameReader, encode

__all__ = ["Frame", "FrameReader", "encode"]
