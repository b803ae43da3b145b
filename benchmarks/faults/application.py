"""The application that suffers the faults: two replicas of the demo behind two routers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml
from ray import serve

from benchmarks.servers import DEMO, free_port
from rayllm import build_app
from rayllm.access import Key, KeyFile, new_key
from rayllm.access.key import key_hash

APP = "faults"
MODEL = "steady"
# In the folder of adapters, and registered under a name by an administrator.
ADAPTER, REGISTERED = f"{MODEL}:pirate", f"{MODEL}:captain"
REPLICAS, ROUTERS = 2, 2
# A router waits five minutes for its last replies.
_LONGEST_DELETION_S = 360.0
# Never reached: that limits exist makes routers settle them with each other.
_LIMITS = {"requests_per_minute": 10**9, "tokens_per_minute": 10**12}


class Deployment:
    """Changes the running application, while clients ask. All methods block until the change is made.

    Args:
        port: the routers'.
        folder: has the file of keys, and keeps the usage.
        route_prefix: of the application.
    """

    def __init__(self, port: int, folder: Path, route_prefix: str) -> None:
        self._port, self._folder, self._route_prefix = port, folder, route_prefix
        self._engine: dict[str, Any] = {}

    def update(self, **engine: Any) -> None:
        """Deploy it with these `engine_kwargs`, which takes new replicas."""
        self._engine = engine
        self.scale(REPLICAS)

    def scale(self, replicas: int) -> None:
        """Deploy it with so many replicas."""
        built = application(self._port, self._folder, self._engine, num_replicas=replicas)
        serve.run(built, name=APP, route_prefix=self._route_prefix)


@dataclass(frozen=True)
class Address:
    """Where the application is, the key of its clients, and what changes it."""

    url: str
    key: str
    deployment: Deployment | None = None

    @property
    def headers(self) -> dict[str, str]:
        """What its clients send."""
        return {"Authorization": f"Bearer {self.key}"}


@contextmanager
def running(folder: Path, route_prefix: str = "/") -> Iterator[Address]:
    """The application, ready, on the Ray cluster that this process is connected to.

    Args:
        folder: an empty one for what it writes.
        route_prefix: of the application.
    """
    port, key = free_port(), write_key(folder)
    deployment = Deployment(port, folder, route_prefix)
    deployment.scale(REPLICAS)
    address = Address(f"http://127.0.0.1:{port}{route_prefix.rstrip('/')}", key, deployment)
    try:
        register_adapter(address)
        yield address
    finally:
        delete()


def delete() -> None:
    """Delete the application. `serve.delete` gives up after a minute; a router may wait longer for its last replies.

    Raises:
        TimeoutError: it is still there after six minutes.
    """
    serve.delete(APP, _blocking=False)
    end = time.monotonic() + _LONGEST_DELETION_S
    while APP in serve.status().applications:
        if time.monotonic() > end:
            raise TimeoutError(f"`{APP}` is still there {_LONGEST_DELETION_S:g} s after it was deleted")
        time.sleep(0.5)


def write_key(folder: Path) -> str:
    """Write a file of keys into a folder; returns the one key in it."""
    secret, file = new_key(), KeyFile(str(folder / "keys.yaml"))
    with file.change() as keys:
        keys.append(Key(name="clients", hash=key_hash(secret, file.salt), admin=True, **_LIMITS))
    return secret


def application(port: int, folder: Path | None = None, engine: dict[str, Any] | None = None, **options: Any) -> Any:
    """Two replicas of the demo with its adapters, behind two routers.

    Args:
        port: the routers'.
        folder: has the file of keys, and keeps the usage; without it there are no keys.
        engine: more `engine_kwargs` of the model.
        options: more keys of the model's `deployment_config`.
    """
    return build_app(arguments(f"127.0.0.1:{port}", folder, engine, **options))


def arguments(
    listen: str, folder: Path | None = None, engine: dict[str, Any] | None = None, **options: Any
) -> dict[str, Any]:
    """The arguments of the application; `listen` is the routers' address, for the others see `application`."""
    demo: dict[str, Any] = yaml.safe_load(DEMO.read_text())
    weights = (DEMO.parent / demo["model_loading_config"]["model_source"]).resolve()
    demo["model_loading_config"] = {"model_id": MODEL, "model_source": str(weights)}
    demo["deployment_config"] = {"num_replicas": REPLICAS, "health_check_period_s": 2, **options}
    demo["engine_kwargs"] |= engine or {}
    demo["lora_config"]["dynamic_lora_loading_path"] = str(_adapters())
    # Replies to web pages of other origins are relayed.
    cors = {"allow_origins": ["http://elsewhere"]}
    router: dict[str, Any] = {"num_replicas": ROUTERS, "listen": listen, "cors": cors}
    if folder:
        router |= {"keys": str(folder / "keys.yaml"), "usage": str(folder / "usage")}
    return {"llm_configs": [demo], "router": router}


def register_adapter(address: Address) -> None:
    """Register an adapter as an administrator does."""
    # An application of this name may have been there before.
    body = {"lora_name": REGISTERED, "lora_path": str(_adapters() / "pirate"), "load_inplace": True}
    reply = httpx.post(f"{address.url}/v1/load_lora_adapter", json=body, headers=address.headers, timeout=120)
    if reply.status_code != 200:
        raise RuntimeError(f"the adapter was not loaded: {reply.status_code} {reply.text}")


def _adapters() -> Path:
    return DEMO.parent / "rayllm-demo" / "adapters"
