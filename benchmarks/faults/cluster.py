"""The processes of the application that suffers the faults."""

from __future__ import annotations

from collections import Counter

import psutil
from ray import serve

from benchmarks.faults.application import APP, MODEL, REPLICAS, ROUTERS, Deployment
from benchmarks.processes import engines_of, titled

# Actors of the cluster that outlive applications, by what their processes are called.
DETACHED = {"quotas": "ray::QuotaActor", "loaded adapters": "ray::AdapterRegistryActor"}


class Cluster:
    """The processes of the running application.

    Args:
        replicas: how many it has of the model.
        deployment: changes the application; without it, faults cannot be planned changes.
    """

    def __init__(self, replicas: int = REPLICAS, deployment: Deployment | None = None) -> None:
        self._replicas = replicas
        self._deployment = deployment

    @property
    def deployment(self) -> Deployment:
        """What changes the application.

        Raises:
            RuntimeError: it was not given.
        """
        if self._deployment is None:
            raise RuntimeError("this application cannot be changed")
        return self._deployment

    def replicas(self) -> list[psutil.Process]:
        """The model's."""
        return titled(f"ray::ServeReplica:{APP}:{MODEL}")

    def routers(self) -> list[psutil.Process]:
        """The router's."""
        return titled(f"ray::ServeReplica:{APP}:Router")

    def engines(self) -> list[psutil.Process]:
        """The replicas' engines."""
        return engines_of(self.replicas())

    def engine(self, replica: psutil.Process) -> psutil.Process:
        """The engine of a replica."""
        [engine] = engines_of([replica])
        return engine

    def controllers(self) -> list[psutil.Process]:
        """Ray Serve's controller."""
        return self._beside_replicas("ray::ServeController")

    def proxies(self) -> list[psutil.Process]:
        """Ray Serve's proxies."""
        return self._beside_replicas("ray::ProxyActor")

    def detached(self, name: str) -> list[psutil.Process]:
        """A detached actor, by its name in `DETACHED`."""
        return self._beside_replicas(DETACHED[name])

    def socket_keepers(self) -> list[psutil.Process]:
        """What keeps the routers' listening socket."""
        return [process for process in psutil.process_iter() if _is_socket_keeper(process)]

    def counts(self) -> Counter[str]:
        """How many processes of each kind there are, of those that are replaced when they end."""
        kinds = {
            "replica": self.replicas(),
            "router": self.routers(),
            "engine": self.engines(),
            "controller": self.controllers(),
            "proxy": self.proxies(),
            **{name: self.detached(name) for name in DETACHED},
        }
        return Counter({kind: len(found) for kind, found in kinds.items()})

    def is_whole(self) -> bool:
        """Whether Ray Serve's controller knows every replica and every router to be up. Blocks."""
        try:
            application = serve.status().applications[APP]
        except Exception:
            return False
        running = {name: one.replica_states for name, one in application.deployments.items()}
        return running == {"Router": {"RUNNING": ROUTERS}, MODEL: {"RUNNING": self._replicas}}

    def _beside_replicas(self, title: str) -> list[psutil.Process]:
        """Processes of the cluster that the application is in, whatever other clusters this machine has."""
        nodes = {process.ppid() for process in (*self.replicas(), *self.routers())}
        return [process for process in titled(title) if process.ppid() in nodes]


def _is_socket_keeper(process: psutil.Process) -> bool:
    try:
        return any(word.endswith("/listener/socket_keeper.py") for word in process.cmdline())
    except psutil.Error:
        return False
