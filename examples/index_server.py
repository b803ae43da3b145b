"""A vector index over HTTP: `POST /` with a vector, a JSON list, gives the nearest document's `text` and its `score`.

    .venv/bin/python examples/index_server.py VECTORS [--port PORT]

VECTORS is a folder of parquet files with the columns `text` and `embedding`, unit vectors. It embeds nothing itself;
rag.py writes such a folder and starts this program, which prints its address.
"""

from __future__ import annotations

import argparse
import socket

import faiss
import numpy as np
import pyarrow.parquet as pq
import uvicorn
from fastapi import FastAPI


def application(vectors: str) -> FastAPI:
    """The application that serves the vectors in the folder `vectors`."""
    table = pq.read_table(vectors)
    texts = table.column("text").to_pylist()
    embeddings = np.array(table.column("embedding").to_pylist(), dtype=np.float32)
    # Of unit vectors, the inner product is the cosine.
    index = faiss.IndexFlatIP(embeddings.shape[1])
    index.add(embeddings)
    app = FastAPI()

    @app.post("/")
    def nearest(vector: list[float]) -> dict[str, str | float]:
        scores, places = index.search(np.array([vector], dtype=np.float32), 1)
        return {"text": texts[places[0, 0]], "score": float(scores[0, 0])}

    return app


def main(vectors: str, port: int) -> None:
    """Serve the index until the process is ended."""
    server = uvicorn.Server(uvicorn.Config(application(vectors), log_level="warning"))
    with socket.create_server(("127.0.0.1", port)) as listener:
        # Clients may come from now on; they wait until the server takes them.
        print(f"http://127.0.0.1:{listener.getsockname()[1]}/", flush=True)
        server.run([listener])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("vectors", metavar="VECTORS", help="folder of parquet files")
    parser.add_argument("--port", type=int, default=0, help="0, the default, is any that is free")
    options = parser.parse_args()
    main(options.vectors, options.port)
